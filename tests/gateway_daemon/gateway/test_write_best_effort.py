"""A failed write never ends the gateway."""

from pathlib import Path

import pytest
from soak.disk import fill, mounted

from service_runtime.files import write_best_effort


def test_full_disk_keeps_the_old_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, and the next write with free space succeeds."""
    with mounted(tmp_path / "disk", "1m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        path = disk / "table.json"
        write_best_effort(path, b"old")
        filler = fill(disk)
        write_best_effort(path, b"new" * 10_000)

        assert path.read_bytes() == b"old"
        assert f"cannot write {path}: " in caplog.text
        filler.unlink()
        write_best_effort(path, b"new")
        assert path.read_bytes() == b"new"

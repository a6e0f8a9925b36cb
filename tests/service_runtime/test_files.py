"""A program's own file that cannot be read never ends it."""

from pathlib import Path

import pytest

from service_runtime.files import read_json_or


@pytest.mark.parametrize("content", [b"", b"[1, ", b'["a"]', b"\xff"])
def test_damaged_file_gives_the_default_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    """One that is missing gives the default too, without a line in the log."""
    path = tmp_path / "numbers.json"
    assert read_json_or(path, list[int], None) is None
    assert not caplog.text

    path.write_bytes(content)
    assert read_json_or(path, list[int], None) is None
    assert f"{path} cannot be read: " in caplog.text
    path.write_bytes(b"[1]")
    assert read_json_or(path, list[int], None) == [1]

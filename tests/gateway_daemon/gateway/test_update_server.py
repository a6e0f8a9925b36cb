"""Chunks of update bundles."""

from pathlib import Path

import pytest

from gateway_daemon.gateway.update_server import read_chunk
from spatial_mqtt.file_transfer import FileChunkRequest


@pytest.mark.parametrize("at", [0, 5, 999, 1000])
def test_chunk_holds_the_bytes_at_its_offset(tmp_path: Path, at: int) -> None:
    """Beyond the end of the file it is empty."""
    data = bytes(range(250)) * 4
    (tmp_path / f"{'0' * 64}.update").write_bytes(data)

    assert (
        read_chunk(tmp_path, FileChunkRequest("0" * 64, at, 300)).data
        == data[at : at + 300]
    )


@pytest.mark.parametrize("name", ["0" * 64, "../secret", "/etc/passwd", ""])
def test_only_bundles_are_served(tmp_path: Path, name: str) -> None:
    """A client cannot read other files."""
    (tmp_path / "served").mkdir()
    (tmp_path / "secret.update").write_bytes(b"secret")
    assert read_chunk(tmp_path / "served", FileChunkRequest(name, 0)).data == b""

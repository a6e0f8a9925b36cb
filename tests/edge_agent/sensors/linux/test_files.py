from pathlib import Path

import pytest

from edge_agent.sensors.linux import LinuxFiles


def test_file_is_read_under_its_root(tmp_path: Path) -> None:
    """A missing file gives the kernel's own error."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "uptime").write_text("12.5 9.0\n", encoding="utf-8")
    files = LinuxFiles(tmp_path)
    assert files.read("/proc/uptime") == "12.5 9.0\n"
    with pytest.raises(FileNotFoundError, match="proc/loadavg"):
        files.read("/proc/loadavg")


def test_free_bytes_are_less_than_total_bytes(tmp_path: Path) -> None:
    """Of the disk that holds the root folder."""
    free, whole = LinuxFiles(tmp_path).disk_usage("/")
    assert 0 < free <= whole

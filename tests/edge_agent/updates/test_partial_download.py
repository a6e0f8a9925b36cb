"""A bundle that is being downloaded to the card."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from edge_agent.updates import SYNC_BYTES, PartialDownload

DATA = bytes(range(251)) * 20_000
NAME = hashlib.sha256(DATA).hexdigest()


def append_until(part: PartialDownload, until: int) -> None:
    while part.received_bytes < until and not part.is_whole:
        assert part.append(
            part.received_bytes,
            DATA[part.received_bytes : part.received_bytes + 65_536],
        )


def test_download_resumes_after_a_power_cut(tmp_path: Path) -> None:
    """Bytes that were not synced are requested again, since they may be zeros."""
    part = PartialDownload(tmp_path / "update", NAME, len(DATA))
    append_until(part, 2 * SYNC_BYTES + 9)
    part.close()
    path = tmp_path / "update" / f"{NAME}.part"
    truncated = path.read_bytes()[: 2 * SYNC_BYTES] + bytes(300_000)
    path.write_bytes(truncated)
    again = PartialDownload(tmp_path / "update", NAME, len(DATA))

    assert again.received_bytes == 2 * SYNC_BYTES
    append_until(again, len(DATA))
    assert again.finish(tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == DATA


def test_wrong_digest_restarts_the_download(tmp_path: Path) -> None:
    """The digest comes from the signed rollout."""
    part = PartialDownload(tmp_path, NAME, 10)
    assert part.append(0, bytes(10))

    assert not part.finish(tmp_path / "whole")
    assert part.received_bytes == 0
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize(("at", "data"), [(5, b"x"), (0, bytes(11))])
def test_unexpected_chunk_is_refused(tmp_path: Path, at: int, data: bytes) -> None:
    """A repeated chunk, and one that exceeds the size."""
    part = PartialDownload(tmp_path, NAME, 10)
    assert not part.append(at, data)
    assert part.received_bytes == 0


@pytest.mark.parametrize(
    ("kept", "expected"), [(9, 9), (65_536, 65_536), (70_000, 65_536)]
)
def test_second_session_continues_after_the_last_chunk(
    tmp_path: Path, kept: int, expected: int
) -> None:
    """A write may have failed before or after its bytes were in the file."""
    part = PartialDownload(tmp_path, NAME, len(DATA))
    append_until(part, 65_536)
    part.close()

    again = PartialDownload(tmp_path, NAME, len(DATA), kept)
    assert again.received_bytes == expected
    append_until(again, len(DATA))
    assert again.finish(tmp_path / "whole")


def test_bytes_of_a_failed_sync_are_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel drops what it could not write, and the next fsync reports success."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    part = PartialDownload(tmp_path, NAME, len(DATA))
    append_until(part, SYNC_BYTES + 9)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="I/O error"):
        append_until(part, len(DATA))
    part.close()

    again = PartialDownload(tmp_path, NAME, len(DATA), part.received_bytes)
    assert again.received_bytes == SYNC_BYTES

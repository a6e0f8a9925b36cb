"""A bundle on its way to the card."""

import hashlib
from pathlib import Path

import pytest

from edge_agent.updates.download import SYNC_BYTES, PartialDownload

DATA = bytes(range(251)) * 20_000
NAME = hashlib.sha256(DATA).hexdigest()


def pull(part: PartialDownload, until: int) -> None:
    while part.received_bytes < until and not part.is_whole:
        assert part.append(
            part.received_bytes,
            DATA[part.received_bytes : part.received_bytes + 65_536],
        )


def test_file_arrives_through_a_power_cut(tmp_path: Path) -> None:
    """What was not synced is asked for again: it may be zeros."""
    part = PartialDownload(tmp_path / "update", NAME, len(DATA))
    pull(part, 2 * SYNC_BYTES + 9)
    part.close()
    path = tmp_path / "update" / f"{NAME}.part"
    torn = path.read_bytes()[: 2 * SYNC_BYTES] + bytes(300_000)
    path.write_bytes(torn)
    again = PartialDownload(tmp_path / "update", NAME, len(DATA))

    assert again.received_bytes == 2 * SYNC_BYTES
    pull(again, len(DATA))
    assert again.finish(tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == DATA


def test_wrong_bytes_begin_anew(tmp_path: Path) -> None:
    """The digest is the rollout's, which is signed."""
    part = PartialDownload(tmp_path, NAME, 10)
    assert part.append(0, bytes(10))

    assert not part.finish(tmp_path / "whole")
    assert part.received_bytes == 0
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize(("at", "data"), [(5, b"x"), (0, bytes(11))])
def test_piece_out_of_turn_is_not_taken(tmp_path: Path, at: int, data: bytes) -> None:
    """One that comes twice, and one that is longer than the file."""
    part = PartialDownload(tmp_path, NAME, 10)
    assert not part.append(at, data)
    assert part.received_bytes == 0

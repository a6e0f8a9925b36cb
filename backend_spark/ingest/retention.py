"""What of the log may go: the oldest, beyond a limit, and only what is scored.

A loss of power between any two steps costs nothing: ids are on disk before their
segments go, and a segment that stays is found again.

How far scoring has come, read from the checkpoints that Spark leaves.

A checkpoint holds a file ``offsets/N`` for each batch that was planned and a file
``commits/N`` for each that is done. Of an offset file, the first line is its version
and the second its settings; each line after them is the offset of one source.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from backend_spark.ingest.deduplication import PastIds
from backend_spark.ingest.segment_log import SegmentName, list_segments, read_segment
from service_runtime.files import fsync_file, fsync_folder, is_disk_full

log = logging.getLogger(__name__)

DAY_S: Final = 86_400.0
AT_ONCE: Final = 500
RESERVE_BYTES: Final = 65_536
IDS_KEEP_S: Final = 90 * DAY_S
"""How long the ids of a boot of a node are known after its last message: far longer
than any queue on the way keeps one."""


class Limits(NamedTuple):
    """What may be kept of the log of one ingester; beyond any of it the oldest goes."""

    age_s: float
    size_bytes: int
    segments: int


class Kept(NamedTuple):
    """A segment in the log."""

    name: SegmentName
    size_bytes: int
    written_s: float


class Trimmed(NamedTuple):
    """What one pass did.

    Attributes:
        removed: Segments that went.
        held: Segments beyond a limit that are not scored yet.
        left_bytes: Bytes of the log after it.
        left: Segments of the log after it.
    """

    removed: int
    held: int
    left_bytes: int
    left: int


def surplus(
    kept: Iterable[Kept], limits: Limits, now_s: float, scored: dict[str, int]
) -> tuple[list[Kept], list[Kept]]:
    """Segments that are beyond a limit: those to remove, and those not scored yet."""
    oldest_first = sorted(kept, key=lambda each: (each.written_s, each.name))
    count, size_bytes = len(oldest_first), sum(k.size_bytes for k in oldest_first)
    gone: list[Kept] = []
    held: list[Kept] = []
    for each in oldest_first:
        is_old = now_s - each.written_s > limits.age_s
        if not is_old and count <= limits.segments and size_bytes <= limits.size_bytes:
            break
        if each.name.seq > scored.get(each.name.stream, -1):
            held.append(each)
            continue
        gone.append(each)
        count -= 1
        size_bytes -= each.size_bytes
    return gone, held


@dataclass
class Retention:
    """Trims the segments of one ingester; call it under the ingester's lock.

    Attributes:
        folder: The log.
        ingester: Its id.
        limits: What may be kept.
        scored: Sequence of the last segment of each stream that may go.
        past: Where the ids of what goes are kept; None where nobody asks for them.
    """

    folder: Path
    ingester: str
    limits: Limits
    scored: Callable[[], dict[str, int]]
    past: Path | None

    def trim(self, now_s: float, is_full: bool = False) -> Trimmed:
        """Remove what may go.

        Args:
            now_s: Unix time.
            is_full: Whether the disk is: half of what is there may go then.

        Raises:
            OSError: The disk refused; what is not scored is there still.
        """
        kept = self._kept()
        size_bytes = sum(each.size_bytes for each in kept)
        limits = self.limits
        if is_full:
            limits = limits._replace(size_bytes=min(limits.size_bytes, size_bytes // 2))
        gone, held = surplus(kept, limits, now_s, self.scored())
        past = PastIds.load(self.past) if gone and self.past is not None else None
        for first in range(0, len(gone), AT_ONCE):
            some = [self.folder / str(k.name) for k in gone[first : first + AT_ONCE]]
            if past is not None:
                for path in some:
                    past.add_rows(read_segment(path, PastIds.NEEDS))
                self._save(past, now_s)
            for path in some:
                path.unlink()
            fsync_folder(self.folder)
        if self.past is not None:
            self._set_aside(self.past)
        size_bytes -= sum(each.size_bytes for each in gone)
        return Trimmed(len(gone), len(held), size_bytes, len(kept) - len(gone))

    def _save(self, past: PastIds, now_s: float) -> None:
        since_us = round((now_s - IDS_KEEP_S) * 1e6)
        try:
            past.save(since_us)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # A full disk is made roomy by removing segments, once their ids are safe.
            _reserve(past.path).unlink(missing_ok=True)
            past.save(since_us)

    def _set_aside(self, past: Path) -> None:
        """Keep room for the next version of the file of ids, if there is any."""
        used_bytes = past.stat().st_size if past.exists() else 0
        wanted_bytes = max(RESERVE_BYTES, 2 * used_bytes)
        reserve = _reserve(past)
        try:
            if not reserve.exists() or reserve.stat().st_size < wanted_bytes:
                with reserve.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, wanted_bytes)
        except OSError as error:
            if not is_disk_full(error):
                raise
            reserve.unlink(missing_ok=True)

    def _kept(self) -> list[Kept]:
        kept = []
        for name in list_segments(self.folder):
            if name.stream.rpartition(".")[0] == self.ingester:
                told = (self.folder / str(name)).stat()
                kept.append(Kept(name, told.st_size, told.st_mtime))
        return kept


def _reserve(past: Path) -> Path:
    return past.with_name(f".reserve{past.name}")


@dataclass
class Quarantined:
    """Segments of the quarantine, all of which may go: nobody scores them."""

    folder: Path

    def __call__(self) -> dict[str, int]:
        """The last segment of each stream."""
        return {name.stream: name.seq for name in list_segments(self.folder)}


_HEAD_LINES = 2
_STREAM = re.compile(r".+\.[0-9a-f]+")


def committed(checkpoints: Path) -> dict[str, int]:
    """Sequence of the last segment of each stream that every query has done with.

    Spark never calls fsync. What counts here is on disk when this returns, so that
    no loss of power makes a query ask again for what was removed.

    Returns:
        Nothing for a stream that some query has not begun; empty without queries.
    """
    folders = checkpoints.glob("*/offsets")
    reached = [each for f in folders if (each := _reached(f.parent)) is not None]
    if not reached:
        return {}
    streams = set.intersection(*(set(each) for each in reached))
    return {stream: min(each[stream] for each in reached) for stream in streams}


def unscored(names: Iterable[SegmentName], scored: dict[str, int]) -> int:
    """How many segments some query has not done with; a stream not begun counts whole.

    Messages that come while a query runs make new ones, an urgent message at once: one
    run of ``score --once`` leaves what came since it began.
    """
    return sum(name.seq > scored.get(name.stream, -1) for name in names)


def _reached(checkpoint: Path) -> dict[str, int] | None:
    """Offset of the last batch that is done; None of a query that reads no log."""
    batches = [int(p.name) for p in checkpoint.glob("commits/*") if p.name.isdigit()]
    if not batches:
        return {}
    offset = checkpoint / "offsets" / str(max(batches))
    commit = checkpoint / "commits" / str(max(batches))
    try:
        for path in (offset, commit):
            fsync_file(path)
            fsync_folder(path.parent)
        lines = offset.read_text(encoding="utf-8").splitlines()[_HEAD_LINES:]
        told = [json.loads(line) for line in lines if line.startswith("{")]
    except (FileNotFoundError, json.JSONDecodeError):
        return {}  # Spark is at work on it: next time
    ours = [each for each in told if all(_STREAM.fullmatch(name) for name in each)]
    return ours[0] if ours else None

"""Retention of the segment log: deletes the oldest scored segments above a limit.

A power cut between any two steps loses nothing: ids are on disk before their segments
are deleted, and a segment that stays is found again.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from typing import Final, NamedTuple

from backend_spark.errors import SegmentError
from backend_spark.ingest.deduplication import ArchivedIds, archived_ids_path
from backend_spark.ingest.segment_log import (
    SegmentName,
    list_segments,
    read_segment_ids,
    set_segment_aside,
)
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import (
    acquire_lock,
    file_size,
    fsync_file,
    fsync_folder,
    is_disk_full,
)

log = logging.getLogger(__name__)

DAY_S: Final = 86_400.0
SEGMENTS_AT_ONCE: Final = 500
RESERVE_BYTES: Final = 65_536
IDS_KEEP_S: Final = 90 * DAY_S
"""Time after the last message of a (node, boot) until its ids may be forgotten: far
longer than any queue keeps a message."""


class LogLimits(NamedTuple):
    """Limits of an ingester's log; above any of them the oldest segment is deleted."""

    age_s: float
    size_bytes: int
    segments: int


class StoredSegment(NamedTuple):
    """A segment in the log."""

    name: SegmentName
    size_bytes: int
    written_s: float


class TrimResult(NamedTuple):
    """Result of one pass.

    Attributes:
        removed: Segments deleted.
        held: Segments above a limit that are not scored yet.
        remaining_bytes: Bytes of the log afterwards.
        remaining: Segments of the log afterwards.
    """

    removed: int
    held: int
    remaining_bytes: int
    remaining: int


def find_surplus(
    segments: Iterable[StoredSegment],
    limits: LogLimits,
    now_s: float,
    scored: dict[str, int],
) -> tuple[list[StoredSegment], list[StoredSegment]]:
    """Segments above a limit: those to delete, and those not scored yet."""
    oldest_first = sorted(segments, key=lambda each: (each.written_s, each.name))
    count, size_bytes = len(oldest_first), sum(k.size_bytes for k in oldest_first)
    to_delete: list[StoredSegment] = []
    held: list[StoredSegment] = []
    for each in oldest_first:
        is_old = now_s - each.written_s > limits.age_s
        if not is_old and count <= limits.segments and size_bytes <= limits.size_bytes:
            break
        if each.name.seq > scored.get(each.name.stream, -1):
            held.append(each)
            continue
        to_delete.append(each)
        count -= 1
        size_bytes -= each.size_bytes
    return to_delete, held


@dataclass
class SegmentRetention:
    """Deletes segments of one ingester; call it under the ingester's lock.

    Attributes:
        folder: Folder of the log.
        ingester: Id of the ingester.
        limits: Limits of its log.
        scored: Gives the last sequence number of each stream that may be deleted.
        archive_path: File for the ids of deleted segments; None if they are not needed.
    """

    folder: Path
    ingester: str
    limits: LogLimits
    scored: Callable[[], dict[str, int]]
    archive_path: Path | None

    def trim(self, now_s: float, is_full: bool = False) -> TrimResult:
        """Delete scored segments above the limits.

        Args:
            now_s: Unix time.
            is_full: Whether the disk is full; the size limit is then half of the log.

        Raises:
            OSError: Disk error; segments that are not scored are still there.
        """
        kept = self._list()
        size_bytes = sum(each.size_bytes for each in kept)
        limits = self.limits
        if is_full:
            limits = limits._replace(size_bytes=min(limits.size_bytes, size_bytes // 2))
        surplus_segments, held = find_surplus(kept, limits, now_s, self.scored())
        count = len(surplus_segments)
        past = (
            ArchivedIds.load(self.archive_path)
            if count and self.archive_path is not None
            else None
        )
        for first in range(0, count, SEGMENTS_AT_ONCE):
            chunk = surplus_segments[first : first + SEGMENTS_AT_ONCE]
            paths = [self.folder / str(each.name) for each in chunk]
            if past is not None:
                paths = [path for path in paths if _archive_ids(past, path)]
                self._save(past, now_s)
            for path in paths:
                path.unlink()
            fsync_folder(self.folder)
        if self.archive_path is not None:
            self._reserve_space(self.archive_path)
        size_bytes -= sum(each.size_bytes for each in surplus_segments)
        return TrimResult(count, len(held), size_bytes, len(kept) - count)

    def _save(self, past: ArchivedIds, now_s: float) -> None:
        since_us = round((now_s - IDS_KEEP_S) * 1e6)
        try:
            past.save(since_us)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # Segments can only be deleted after their ids are on disk: free the
            # space that was reserved for that.
            _reserve_path(past.path).unlink(missing_ok=True)
            past.save(since_us)

    def _reserve_space(self, past: Path) -> None:
        """Reserve disk space for the next version of the id file, if possible."""
        wanted_bytes = max(RESERVE_BYTES, 2 * file_size(past))
        reserve = _reserve_path(past)
        try:
            if not reserve.exists() or reserve.stat().st_size < wanted_bytes:
                with reserve.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, wanted_bytes)
        except OSError as error:
            if not is_disk_full(error):
                raise
            reserve.unlink(missing_ok=True)

    def _list(self) -> list[StoredSegment]:
        kept = []
        for name in list_segments(self.folder):
            if _ingester(name) == self.ingester:
                status = (self.folder / str(name)).stat()
                kept.append(StoredSegment(name, status.st_size, status.st_mtime))
        return kept


@dataclass(frozen=True)
class RemovedIngesters:
    """Retention of the segments of ingesters that were removed or renamed.

    Attributes:
        own: Retention of the ingester that does it; its limits apply to each of them.
        known: Ids of the settings, whose ingesters trim their segments themselves.
    """

    own: SegmentRetention
    known: frozenset[str]

    @property
    def folder(self) -> Path:
        """Folder of the log."""
        return self.own.folder

    def trim(self, now_s: float, is_full: bool = False) -> TrimResult:
        """Delete scored segments above the limits, as `SegmentRetention.trim`."""
        total = TrimResult(0, 0, 0, 0)
        for ingester in sorted({*map(_ingester, list_segments(self.folder))}):
            if ingester not in self.known:
                result = self._trim(ingester, now_s, is_full)
                total = TrimResult(*map(add, total, result))
        return total

    def _trim(self, ingester: str, now_s: float, is_full: bool) -> TrimResult:
        try:
            lock = acquire_lock(self.folder / f".lock-{ingester}")
        except AlreadyRunningError:
            return TrimResult(0, 0, 0, 0)  # it runs, by other settings
        try:
            path = archived_ids_path(self.folder, ingester)
            each = replace(self.own, ingester=ingester, archive_path=path)
            return each.trim(now_s, is_full)
        finally:
            os.close(lock)


def _ingester(name: SegmentName) -> str:
    return name.stream.rpartition(".")[0]


def _archive_ids(past: ArchivedIds, path: Path) -> bool:
    """Add the ids of a segment; one that cannot be read is moved out of the log."""
    try:
        past.add_segment(read_segment_ids(path))
    except SegmentError as error:
        log.error("%s; moved to %s", error, set_segment_aside(path))  # noqa: TRY400
        return False
    return True


def _reserve_path(past: Path) -> Path:
    return past.with_name(f".reserve{past.name}")


def last_segments(folder: Path) -> dict[str, int]:
    """Sequence number of the last segment of each stream."""
    return {name.stream: name.seq for name in list_segments(folder)}


SCORING_QUERY: Final = "score"
"""Name of the query that stores all messages in the tables, and of its checkpoint."""

ALERTS_QUERY: Final = "alerts"
"""Name of the checkpoint of ``alerts``."""

_HEADER_LINES: Final = 2
_STREAM = re.compile(r".+\.[0-9a-f]+")


def read_committed_offsets(checkpoints: Path) -> dict[str, int]:
    """Last segment of each stream that every query has committed.

    The scoring query counts also without a checkpoint, as after a restore: nothing else
    shows that a segment is in the tables.

    Spark never calls fsync. The files this result depends on are fsynced here, so that
    after a power cut no query needs a segment that was deleted.

    A checkpoint has a file ``offsets/N`` for each planned batch and a file
    ``commits/N`` for each finished one. The first line of an offset file is its
    version, the second its settings, each further line the offset of one source.

    Returns:
        Sequence number by stream, without streams that some query has not begun; empty
        without a commit of the scoring query.
    """
    scored = read_query_offset(checkpoints / SCORING_QUERY)
    if not scored:
        return {}
    folders = [path.parent for path in checkpoints.glob("*/offsets")]
    others = (read_query_offset(each) for each in folders if each.name != SCORING_QUERY)
    offsets = [scored, *(each for each in others if each is not None)]
    streams = set.intersection(*(set(each) for each in offsets))
    return {stream: min(each[stream] for each in offsets) for stream in streams}


def read_query_offset(checkpoint: Path) -> dict[str, int] | None:
    """Offset of the last finished batch of a query, empty without one.

    Returns:
        Sequence number by stream; None if the query does not read the log.
    """
    batches = [int(p.name) for p in checkpoint.glob("commits/*") if p.name.isdigit()]
    if not batches:
        return {}
    offset = checkpoint / "offsets" / str(max(batches))
    commit = checkpoint / "commits" / str(max(batches))
    try:
        for path in (offset, commit):
            fsync_file(path)
            fsync_folder(path.parent)
    except FileNotFoundError:
        return {}  # Spark is writing it; the next pass reads it
    return read_planned_offset(offset)


def read_planned_offset(plan: Path) -> dict[str, int] | None:
    """Offset of the log in a file ``offsets/N``; None if it has none of a log."""
    try:
        lines = plan.read_text(encoding="utf-8").splitlines()[_HEADER_LINES:]
        sources = [json.loads(line) for line in lines if line.startswith("{")]
    except (FileNotFoundError, json.JSONDecodeError):
        return {}  # Spark is writing it
    logs = [each for each in sources if all(_STREAM.fullmatch(name) for name in each)]
    return logs[0] if logs else None

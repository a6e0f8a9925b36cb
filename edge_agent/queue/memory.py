"""Queues in memory: without a file, and a spare file where a disk cannot be written.

`MemoryQueue`, for tests and safe mode, has the same contract and nothing durable.

A worn SD card becomes read-only. What it has is read once at the start, and nothing on
it changes; a queue file in memory takes its place. A path that the node may not write
has the same consequence and another remedy.
"""

import errno
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from edge_agent.queue.base import (
    Depth,
    MessageDraft,
    QueuedMessage,
    QueueFileError,
    QueueFullError,
    QueueStats,
    SpareReason,
    cost_bytes,
    lease_order,
)
from edge_agent.queue.recovery import has_only_its_log, salvage
from edge_agent.queue.schema import connect, migrate
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import Store
from edge_agent.queue.write_journal import journal_path
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

SPARE_BYTES = 10_000_000
"""Budget of a spare queue. Its file takes as much of the memory."""

_MISPLACED = {
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
"""Errors of a path or of rights, which no disk has."""

_IN_USE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class MemoryQueue:
    """A `Queue` without a file.

    Args:
        node: Id of the node.
        boot: Boot id in the message ids.
        max_bytes: Budget.
        now_s: The clock of `age_s`; None for a queue without ages.
    """

    def __init__(
        self,
        node: str,
        boot: str,
        max_bytes: int,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self.boot = boot
        self._node = node
        self._max_bytes = max_bytes
        self._now_s = now_s
        self._lock = threading.RLock()
        self._stored: dict[int, QueuedMessage] = {}
        self._leased: set[int] = set()
        self._withheld: set[int] = set()
        self._known_ids: set[MessageId] = set()
        self._state: dict[str, str] = {}
        self._next_seq = 1
        self._counts = {
            name: dict.fromkeys(LADDER.descending, 0)
            for name in ("put", "acked", "dropped", "duplicates")
        }

    def put(
        self, drafts: Sequence[MessageDraft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        with self._lock:
            before = (dict(self._stored), set(self._known_ids), self._next_seq)
            try:
                ids = [self._insert(draft) for draft in drafts]
            except QueueFullError:
                self._stored, self._known_ids, self._next_seq = before
                raise
            self._state.update(state or {})
            return ids

    def waiting_priorities(self) -> frozenset[int]:
        with self._lock:
            return frozenset(m.priority for m in self._unleased())

    def lease(
        self,
        limit: int = 1,
        max_bytes: int | None = None,
        *,
        priority: int | None = None,
        newest: bool = False,
    ) -> list[QueuedMessage]:
        ladder = lease_order(priority, newest)
        with self._lock:
            found = [m for m in self._unleased() if m.priority in ladder]
            sign = -1 if newest else 1
            found.sort(key=lambda m: (-m.priority, sign * m.seq))
            leased: list[QueuedMessage] = []
            for message in found[:limit]:
                total = sum(len(m.payload) for m in (*leased, message))
                if leased and max_bytes is not None and total > max_bytes:
                    break
                leased.append(message)
            self._leased.update(m.seq for m in leased)
            return leased

    def ack(self, seqs: Iterable[int]) -> None:
        with self._lock:
            for seq in set(seqs) & self._leased:
                self._leased.discard(seq)
                self._counts["acked"][self._stored.pop(seq).priority] += 1

    def hand_over(self, seqs: Iterable[int]) -> None:
        with self._lock:
            moved = [self._stored[seq].id for seq in set(seqs) & self._leased]
            self.ack(seqs)
            self._known_ids.difference_update(moved)

    def release(self, seqs: Iterable[int]) -> None:
        with self._lock:
            self._leased.difference_update(seqs)

    def withhold(self, seqs: Iterable[int]) -> None:
        with self._lock:
            self._withheld.update(self._leased.intersection(seqs))
            self._leased.difference_update(seqs)

    def age_s(self, message: QueuedMessage) -> float | None:
        if self._now_s is None or message.born_s is None:
            return None
        return max(0.0, self._now_s() - message.born_s)

    def oldest_s(self) -> float | None:
        return max(self.ages_s().values(), default=None)

    def ages_s(self) -> Mapping[int, float]:
        with self._lock:
            ages: dict[int, float] = {}
            for seq, message in self._stored.items():
                if seq in self._withheld:
                    continue
                age_s = self.age_s(message)
                if age_s is not None:
                    known_s = ages.get(message.priority, 0.0)
                    ages[message.priority] = max(known_s, age_s)
            return ages

    def release_all(self) -> int:
        with self._lock:
            count = len(self._leased)
            self._leased.clear()
            return count

    def get_state(self, name: str) -> str | None:
        with self._lock:
            return self._state.get(name)

    def stats(self) -> QueueStats:
        with self._lock:
            depth = {}
            for priority in LADDER.descending:
                costs = [
                    _cost_bytes(m)
                    for m in self._stored.values()
                    if m.priority == priority
                ]
                depth[priority] = Depth(len(costs), sum(costs))
            return QueueStats(
                depth=depth,
                leased=len(self._leased),
                put=dict(self._counts["put"]),
                acked=dict(self._counts["acked"]),
                dropped=dict(self._counts["dropped"]),
                duplicates=sum(self._counts["duplicates"].values()),
            )

    def close(self) -> None: ...

    def _unleased(self) -> list[QueuedMessage]:
        hidden = self._leased | self._withheld
        return [m for m in self._stored.values() if m.seq not in hidden]

    def _insert(self, draft: MessageDraft) -> MessageId | None:
        LADDER.check(draft.priority)
        if draft.id is not None and draft.id in self._known_ids:
            self._counts["duplicates"][draft.priority] += 1
            return None
        message_id = draft.id or MessageId(self._node, self.boot, self._next_seq)
        message = QueuedMessage(
            self._next_seq,
            message_id,
            draft.priority,
            draft.topic,
            draft.encode(message_id),
            None if self._now_s is None else self._now_s() - draft.age_s,
        )
        self._evict_for(message)
        if draft.id is not None:
            self._known_ids.add(draft.id)
        self._stored[message.seq] = message
        self._next_seq += 1
        self._counts["put"][draft.priority] += 1
        return message_id

    def _evict_for(self, message: QueuedMessage) -> None:
        stored_bytes = sum(_cost_bytes(m) for m in self._stored.values())
        lower = [
            m
            for m in self._stored.values()
            if m.priority < message.priority and m.seq not in self._leased
        ]
        for victim in sorted(lower, key=lambda m: (m.priority, m.seq)):
            if stored_bytes + _cost_bytes(message) <= self._max_bytes:
                return
            stored_bytes -= _cost_bytes(self._stored.pop(victim.seq))
            self._counts["dropped"][victim.priority] += 1
        if stored_bytes + _cost_bytes(message) > self._max_bytes:
            raise QueueFullError(stored_bytes, self._max_bytes)


def _cost_bytes(message: QueuedMessage) -> int:
    return cost_bytes(message.topic, message.payload)


def open_or_spare(
    open_queue: Callable[[Path | None], SqliteQueue],
    path: Path,
    folder: Path,
    state_folder: Path | None = None,
) -> SqliteQueue:
    """Open a queue, or a spare one in memory if its disk cannot be written.

    Args:
        open_queue: Opens the queue, or a spare file.
        path: The queue file.
        folder: For the spare file, in memory; replaced.
        state_folder: The folder that systemd lets the service write; None without it.

    Raises:
        QueueFileError: The queue cannot be opened, for another reason or because
            there is no memory either; or another agent uses it.
    """
    try:
        _check_rights(path)
        return _owned(open_queue(None), path)
    except QueueFileError as error:
        if not is_disk_failure(error):
            raise
        is_misplaced = _is_misplaced(error, path, state_folder)
        remedy = _remedy(state_folder) if is_misplaced else "replace the SD card"
        log.error("%s; messages are in memory only: %s", error, remedy)  # noqa: TRY400
        try:
            made = open_queue(make_spare(path, folder))
        except OSError as second:
            log.error("there is no queue in memory either: %s", second)  # noqa: TRY400
            raise error from error.__cause__
        failure = f"{error}; {remedy}" if is_misplaced else str(error)
        made.spare_for = SpareReason(failure, is_misplaced)
        return made


def _check_rights(path: Path) -> None:
    """Raise QueueFileError for a file that the process may not write.

    SQLite reports some of them only at the first commit.
    """
    real = os.path.realpath(path)
    for file in (real, f"{real}-wal", f"{real}-shm"):
        is_wrong = os.path.lexists(file) and not os.access(file, os.W_OK)
        if is_wrong and not _is_read_only(Path(file).parent):
            cause = PermissionError(errno.EACCES, "it cannot be written", file)
            raise QueueFileError(str(path), str(cause)) from cause


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _owned(opened: SqliteQueue, path: Path) -> SqliteQueue:
    """The queue, unless another agent leases from it.

    Both would send the same messages, and end each other's connections.
    """
    if opened.is_owner:
        return opened
    opened.close()
    reason = "another agent uses it; stop that one, as by systemctl stop edge-agent"
    raise QueueFileError(str(path), reason)


def _is_misplaced(error: QueueFileError, path: Path, state_folder: Path | None) -> bool:
    """Whether a path or its owner is wrong, and not the disk."""
    cause = error.__cause__
    if not isinstance(cause, OSError):  # SQLite: the lock files could be written
        # It makes its log in the folder. On a card that has just become read-only,
        # nothing may be written, whoever owns it.
        return not (_is_read_only(path.parent) or os.access(path.parent, os.W_OK))
    if cause.errno == errno.EROFS:  # for a service, all but its folder is read-only
        return state_folder is not None and not path.is_relative_to(state_folder)
    return cause.errno in _MISPLACED


def _remedy(state_folder: Path | None) -> str:
    where = "in a folder" if state_folder is None else f"below {state_folder}, in one"
    return (
        f"queue.path must be {where} that user {os.geteuid()} may write: correct it "
        "in the settings, or the owner of the folder and its files by chown"
    )


def is_disk_failure(error: QueueFileError) -> bool:
    """Whether a queue cannot be opened because of its disk.

    A file that another process uses, or a later version wrote, is no failure of it.
    """
    cause = error.__cause__
    if isinstance(cause, sqlite3.DatabaseError):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF not in _IN_USE
    return isinstance(cause, OSError)


def make_spare(queue: Path, folder: Path) -> Path:
    """Make a queue file of what can be read of another one.

    Ids and priorities are kept: what was sent before is a duplicate for its receiver.

    Args:
        queue: The file that cannot be written.
        folder: In memory; replaced.

    Returns:
        The new file, with the journal of the old one beside it.

    Raises:
        OSError: The folder cannot be made.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    spare = folder / "queue.db"  # the path may have no name, as an empty one
    with closing(connect(str(spare))) as db:
        migrate(db)
        try:
            if queue.is_file() or has_only_its_log(queue):
                salvage(queue, Store(spare, db), SPARE_BYTES)
            if journal_path(queue).exists():
                shutil.copyfile(journal_path(queue), journal_path(spare))
        except (OSError, sqlite3.DatabaseError) as error:
            log.error("the rest of %s cannot be read: %s", queue, error)  # noqa: TRY400
    return spare

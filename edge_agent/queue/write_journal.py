"""Write journal for pending messages, blocks of sequence numbers, and commit windows.

A SQLite commit writes 72 KiB to an SD card: pages of the log, the log's index, and the
journal of the file system. A journal record overwrites preallocated zeros and writes
20 KiB. So a commit window ends with a record, and every `MAX_RECORDS`-th with a commit,
which invalidates the records before it by their generation. Records are read only on
the next start after a kill or a power cut.

Sequence numbers are never used twice, not even after a kill inside the window: a
process with a window first reserves a block of them on disk.
"""

import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import cbor2

from edge_agent.queue.store import CounterDeltas, QueueRow, Store

log = logging.getLogger(__name__)

JOURNAL_BYTES = 131_072
MAX_RECORDS = 10
"""Records before a commit; other processes see messages only after the commit."""

GENERATION_KEY = "queue/notes"
_MAGIC = b"\xf0NOT"
_HEAD = struct.Struct("<4sIII")

BLOCK_SIZE = 256
AHEAD = 2**20
"""Distance from the reserved numbers of those that are used while the file cannot be
written; other processes store fewer messages meanwhile."""

NEXT_SEQ_KEY = "queue/next_seq"
OPEN_BLOCK_KEY = "queue/block"
MAX_LOST_KEY = "queue/lost_at_most"


class JournalRecord(NamedTuple):
    """A journal record: the changes of one commit window.

    Attributes:
        generation: Number of commits that have invalidated records.
        rows: Messages.
        state: Key-value pairs to store.
    """

    generation: int
    rows: list[QueueRow]
    state: dict[str, str]


class WriteJournal:
    """Journal file beside one queue file.

    Args:
        path: The file; created with its full size when missing.
        generation: Generation of the next record.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, path: Path, generation: int) -> None:
        self._path = path
        self._fd: int | None = _open_preallocated(path)
        self._generation = generation
        self._seqs: set[int] = set()
        self._state: dict[str, str] = {}
        self._count = 0
        self._offset = 0

    def has_unwritten(
        self, rows: Collection[QueueRow], state: Mapping[str, str]
    ) -> bool:
        """Whether some pending changes are not in the journal yet."""
        return any(self._new(rows, state))

    def append(self, rows: Collection[QueueRow], state: Mapping[str, str]) -> bool:
        """Write new pending changes; they are on disk when this returns.

        Returns:
            False when a commit is needed instead.
        """
        new_rows, new_state = self._new(rows, state)
        record = _encode(JournalRecord(self._generation, new_rows, new_state))
        is_full = self._offset + len(record) > JOURNAL_BYTES
        if self._fd is None or is_full or self._count >= MAX_RECORDS:
            return False
        try:
            os.pwrite(self._fd, record, self._offset)
            os.fdatasync(self._fd)
        except OSError as error:
            # The journal can no longer be trusted; commits still can.
            log.warning("journal %s is not used any more: %s", self._path, error)
            self.close()
            return False
        self._seqs.update(row.seq for row in new_rows)
        self._state.update(new_state)
        self._count += 1
        self._offset += len(record)
        return True

    def _new(
        self, rows: Collection[QueueRow], state: Mapping[str, str]
    ) -> tuple[list[QueueRow], dict[str, str]]:
        new_rows = [row for row in rows if row.seq not in self._seqs]
        return new_rows, dict(state.items() - self._state.items())

    def invalidation_state(self) -> dict[str, str]:
        """State that a commit must store to invalidate the records before it."""
        return {GENERATION_KEY: str(self._generation + 1)} if self._count else {}

    def reset_after_commit(self) -> None:
        """Start over after a commit."""
        self._generation += 1 if self._count else 0
        self._seqs.clear()
        self._state.clear()
        self._count = self._offset = 0

    def delete(self) -> None:
        """Delete the file, to free its space on a full disk."""
        if self._fd is not None:
            self.close()
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def journal_path(queue: Path) -> Path:
    """Path of a queue file's journal."""
    return Path(f"{queue}.notes")


def recover_journal(store: Store, path: Path) -> int:
    """Commit the records that the previous process wrote but did not commit.

    A message that was delivered meanwhile is a duplicate for the next store.

    Returns:
        The highest sequence number among the messages; 0 for none.
    """
    try:
        records = list(_read(path))
    except OSError as error:
        _set_aside(path, error)
        return 0
    newest = max((record.generation for record in records), default=0)
    # A salvaged file may have none; one restored from a backup has an older one.
    generation = store.get_int(GENERATION_KEY, newest)
    valid = [record for record in records if record.generation >= generation]
    rows = [row for record in valid for row in record.rows if row.is_intact]
    if not valid:
        return 0
    changes = CounterDeltas()
    with store.transaction():
        changes.add_put([row for row in rows if store.insert_if_absent(row)])
        for record in valid:
            store.set_state(record.state)
        store.apply_deltas(changes)
        store.set_state({GENERATION_KEY: str(max(generation, newest) + 1)})
    log.info("%d pending messages are recovered from the journal", len(rows))
    return max((row.seq for row in rows), default=0)


def _set_aside(path: Path, error: OSError) -> None:
    """Keep a journal that cannot be read under another name.

    If a later start could read it, its records would replace a newer state.
    """
    aside = Path(f"{path}.unreadable")
    log.error("journal %s cannot be read, kept as %s: %s", path, aside, error)
    try:
        path.replace(aside)
    except OSError as second:
        log.error("it cannot be renamed: %s", second)  # noqa: TRY400


def open_journal(store: Store, path: Path) -> WriteJournal | None:
    """The journal of a process with a commit window; None when it cannot be made."""
    try:
        return WriteJournal(path, store.get_int(GENERATION_KEY, 0))
    except OSError as error:
        log.warning("no journal, each commit window ends with a commit: %s", error)
        return None


def _open_preallocated(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size < JOURNAL_BYTES:
            # Zeros instead of a hole: allocating later writes file system metadata.
            os.pwrite(fd, bytes(JOURNAL_BYTES - size), size)
            os.fsync(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _encode(record: JournalRecord) -> bytes:
    body = cbor2.dumps([[list(row) for row in record.rows], record.state])
    crc = zlib.crc32(body, record.generation)
    return _HEAD.pack(_MAGIC, record.generation, len(body), crc) + body


def _read(path: Path) -> Iterator[JournalRecord]:
    """The complete records of a file, in its order; torn ones are skipped."""
    raw = path.read_bytes() if path.exists() else b""
    at = raw.find(_MAGIC)
    while at >= 0 and at + _HEAD.size <= len(raw):
        _, generation, size, crc = _HEAD.unpack_from(raw, at)
        body = raw[at + _HEAD.size : at + _HEAD.size + size]
        if len(body) == size and zlib.crc32(body, generation) == crc:
            rows, state = cbor2.loads(body)
            yield JournalRecord(generation, [QueueRow(*row) for row in rows], state)
            at += _HEAD.size + size - 1
        at = raw.find(_MAGIC, at + 1)


class SequenceBlock(NamedTuple):
    """A block of reserved sequence numbers.

    Attributes:
        next: The next number to use.
        end: End of the block, exclusive.
        max_pending: Maximum number of pending messages; 0 for a process without a
            commit window, which draws its numbers inside each transaction.
    """

    next: int = 0
    end: int = 0
    max_pending: int = 0

    def has(self, count: int) -> bool:
        """Whether the block has this many numbers left."""
        return self.end - self.next >= count

    def after_using(self, count: int) -> "SequenceBlock":
        """The block without its first numbers."""
        return SequenceBlock(self.next + count, self.end, self.max_pending)

    def ahead(self, store: Store) -> "SequenceBlock":
        """A block for messages in memory; the next commit reserves its numbers."""
        start = max(store.get_int(NEXT_SEQ_KEY, 1), self.end) + AHEAD
        return SequenceBlock(start, start + AHEAD, self.max_pending)

    def with_reserved(self, count: int, store: Store) -> "SequenceBlock":
        """This block or one with at least this many; call it in a transaction."""
        start = store.get_int(NEXT_SEQ_KEY, 1)
        if self.end > start:  # `ahead` was used
            store.set_state({NEXT_SEQ_KEY: str(self.end)})
            start = self.end
        if self.has(count):
            return self
        end = start + (max(count, BLOCK_SIZE) if self.max_pending else count)
        store.set_state({NEXT_SEQ_KEY: str(end)})
        return SequenceBlock(start, end, self.max_pending)

    def to_state(self) -> dict[str, str]:
        """State to store with each commit: numbers below `next` are committed."""
        if not self.max_pending:
            return {}
        return {OPEN_BLOCK_KEY: f"{self.next} {self.end} {self.max_pending}"}


def close_previous_block(store: Store, journal_seq: int = 0) -> None:
    """Close the previous process's block; count the messages it may have lost.

    Args:
        store: The file.
        journal_seq: The highest sequence number in its journal.
    """
    block = store.get_state(OPEN_BLOCK_KEY)
    if not block:
        return
    try:
        first, end, max_pending = map(int, block.split())
    except ValueError:
        log.error("state %s is damaged: %a", OPEN_BLOCK_KEY, block)  # noqa: TRY400
        first, end, max_pending = 0, 0, 0
    first = min(max(first, journal_seq + 1), end)
    # No number from `first` on was stored, and at most `max_pending` were in use.
    lost = min(end - first, max_pending)
    total = store.get_int(MAX_LOST_KEY, 0) + lost
    with store.transaction():
        store.set_state({OPEN_BLOCK_KEY: "", MAX_LOST_KEY: str(total)})
    if lost:
        log.warning(
            "the previous process was killed inside its commit window: "
            "at most %d messages of low priority are lost",
            lost,
        )


def skip_used_numbers(store: Store) -> None:
    """Never draw a number that a stored message has.

    In a damaged or salvaged file the next number may be too low: the journal has later
    messages than the file, or a bit error has changed one of the numbers.
    """
    highest = store.highest_seq()
    if highest >= store.get_int(NEXT_SEQ_KEY, 1):
        with store.transaction():
            store.set_state({NEXT_SEQ_KEY: str(highest + 1)})


class CommitThread:
    """Thread that commits once, one window after it was woken.

    Args:
        window_s: Length of the window.
        commit: Commits; calls `wake` again if it fails.
    """

    def __init__(self, window_s: float, commit: Callable[[], None]) -> None:
        self._window_s = window_s
        self._commit = commit
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Start a window if none runs. Callers must hold the queue's lock."""
        if self._thread is None:
            # A daemon thread: the process must be able to exit without `close`.
            self._thread = threading.Thread(
                target=self._run, name="queue commits", daemon=True
            )
            self._thread.start()
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """End the thread without a final commit."""
        self._stop.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # `close` may set both events just before `clear`: `_stop` is checked after it.
        while not self._stop.is_set():
            self._woken.wait()
            if self._stop.wait(self._window_s):
                return
            self._woken.clear()
            self._commit()

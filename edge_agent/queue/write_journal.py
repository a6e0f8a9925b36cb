"""What waits in memory, written down on a card at a fifth of a commit's price.

A commit in SQLite makes a card write 72 KiB: pages of its log, the log's index, and
the journal of a file system whose file has grown. A note is one record, written over
zeros that are already there: 20 KiB, most of it the file's time of change. So a
window ends with a note, and every `MOST_NOTES`-th with a commit, which makes the
notes before it void by their generation. Nobody reads them but the next start after
a kill or a power cut.

Sequence numbers: never used twice, not even after a kill inside the window.

A process that lets messages wait in memory first reserves a block of numbers on
the disk. Every other process takes its numbers inside its own transaction, from
the same counter, so that they are stored in their order.
"""

import logging
import os
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import cbor2

from edge_agent.queue.store import Changes, Row, Store

log = logging.getLogger(__name__)

SIZE_BYTES = 131_072
MOST_NOTES = 10
"""Then a commit: whoever looks into the file from outside sees all before it."""

GENERATION = "queue/notes"
_MAGIC = b"\xf0NOT"
_HEAD = struct.Struct("<4sIII")


class Note(NamedTuple):
    """What one window brought.

    Attributes:
        generation: Counts the commits that made notes void.
        rows: Messages.
        state: Values to remember.
    """

    generation: int
    rows: list[Row]
    state: dict[str, str]


class Notes:
    """The notes beside one queue file.

    Args:
        path: Their file; made when missing, all of it at once.
        generation: That of the next note.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, path: Path, generation: int) -> None:
        self._path = path
        self._fd: int | None = _opened(path)
        self._generation = generation
        self._seqs: set[int] = set()
        self._state: dict[str, str] = {}
        self._count = 0
        self._at = 0

    def has_new(self, rows: Collection[Row], state: Mapping[str, str]) -> bool:
        """Whether some of what waits is not written down yet."""
        fresh, changed = self._new(rows, state)
        return bool(fresh or changed)

    def add(self, rows: Collection[Row], state: Mapping[str, str]) -> bool:
        """Write down what is new of what waits; on the disk when it returns.

        Returns:
            False when a commit is due instead.
        """
        fresh, changed = self._new(rows, state)
        record = _encoded(Note(self._generation, fresh, changed))
        is_full = self._at + len(record) > SIZE_BYTES
        if self._fd is None or is_full or self._count >= MOST_NOTES:
            return False
        try:
            os.pwrite(self._fd, record, self._at)
            os.fdatasync(self._fd)
        except OSError as error:
            # What it holds is doubtful from now on; commits are not.
            log.warning("%s is given up: %s", self._path, error)
            self.close()
            return False
        self._seqs.update(row.seq for row in fresh)
        self._state.update(changed)
        self._count += 1
        self._at += len(record)
        return True

    def _new(
        self, rows: Collection[Row], state: Mapping[str, str]
    ) -> tuple[list[Row], dict[str, str]]:
        fresh = [row for row in rows if row.seq not in self._seqs]
        return fresh, dict(state.items() - self._state.items())

    def void(self) -> dict[str, str]:
        """What a commit must remember so that the notes before it are void."""
        return {GENERATION: str(self._generation + 1)} if self._count else {}

    def committed(self) -> None:
        """The commit is on the disk."""
        self._generation += 1 if self._count else 0
        self._seqs.clear()
        self._state.clear()
        self._count = self._at = 0

    def give_up(self) -> None:
        """Give their space on a full disk to an alarm, and what waits with it."""
        if self._fd is not None:
            self.close()
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Write no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def notes_path(queue: Path) -> Path:
    """Where the notes of a queue file are."""
    return Path(f"{queue}.notes")


def take_over(store: Store, path: Path) -> int:
    """Put what the process before us wrote down, and did not commit, into the file.

    Of a message that was delivered meanwhile the next store knows the id.

    Returns:
        The highest number among the messages; 0 for none.
    """
    known = store.recall(GENERATION)
    notes = list(_read(path))
    newest = max((note.generation for note in notes), default=0)
    # A salvaged file may have lost it; one that went back in time knows an older one.
    generation = int(known) if known else newest
    valid = [note for note in notes if note.generation >= generation]
    rows = [row for note in valid for row in note.rows if row.is_sound]
    if not valid:
        return 0
    changes = Changes()
    with store.transaction():
        for row in rows:
            if store.restore(row):
                changes.put(row.priority, row.cost)
        for note in valid:
            store.remember(note.state)
        store.apply(changes)
        store.remember({GENERATION: str(max(generation, newest) + 1)})
    log.info("%d messages that waited in memory are taken over", len(rows))
    return max((row.seq for row in rows), default=0)


def opened(store: Store, path: Path) -> Notes | None:
    """Notes for a process that may let messages wait; None when there is no room."""
    try:
        return Notes(path, int(store.recall(GENERATION) or 0))
    except OSError as error:
        log.warning("each window of the queue is a commit: %s: %s", path, error)
        return None


def _opened(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size < SIZE_BYTES:
            # Zeros, no hole: a file that grows costs the file system's journal.
            os.pwrite(fd, bytes(SIZE_BYTES - size), size)
            os.fsync(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _encoded(note: Note) -> bytes:
    body = cbor2.dumps([[list(row) for row in note.rows], note.state])
    crc = zlib.crc32(body, note.generation)
    return _HEAD.pack(_MAGIC, note.generation, len(body), crc) + body


def _read(path: Path) -> Iterator[Note]:
    """The whole notes of a file, in its order; what is torn is passed over."""
    raw = path.read_bytes() if path.exists() else b""
    at = raw.find(_MAGIC)
    while at >= 0 and at + _HEAD.size <= len(raw):
        _, generation, size, crc = _HEAD.unpack_from(raw, at)
        body = raw[at + _HEAD.size : at + _HEAD.size + size]
        if len(body) == size and zlib.crc32(body, generation) == crc:
            rows, state = cbor2.loads(body)
            yield Note(generation, [Row(*row) for row in rows], state)
            at += _HEAD.size + size - 1
        at = raw.find(_MAGIC, at + 1)


BLOCK = 256
NEXT_SEQ = "queue/next_seq"
OPEN_BLOCK = "queue/block"
LOST_AT_MOST = "queue/lost_at_most"


class Numbers(NamedTuple):
    """Numbers at hand.

    Attributes:
        next: The next to be used.
        end: The first that is not ours.
        most_waiting: Messages that may be in memory at once; 0 for a process that
            reserves nothing.
    """

    next: int = 0
    end: int = 0
    most_waiting: int = 0

    def has(self, count: int) -> bool:
        """Whether so many are at hand."""
        return self.end - self.next >= count

    def used(self, count: int) -> "Numbers":
        """The rest after using some."""
        return Numbers(self.next + count, self.end, self.most_waiting)

    def drawn(self, count: int, store: Store) -> "Numbers":
        """With at least so many at hand; call it in a transaction."""
        if self.has(count):
            return self
        start = int(store.recall(NEXT_SEQ) or 1)
        end = start + (max(count, BLOCK) if self.most_waiting else count)
        store.remember({NEXT_SEQ: str(end)})
        return Numbers(start, end, self.most_waiting)

    def text(self) -> dict[str, str]:
        """What to remember with each commit: all below `next` are settled."""
        if not self.most_waiting:
            return {}
        return {OPEN_BLOCK: f"{self.next} {self.end} {self.most_waiting}"}


def settle(store: Store, noted: int = 0) -> None:
    """Close the block of the process before us; count what it may have lost.

    Args:
        store: The file.
        noted: The highest number that it wrote down without a commit.
    """
    left = store.recall(OPEN_BLOCK)
    if not left:
        return
    first, end, most_waiting = map(int, left.split())
    first = min(max(first, noted + 1), end)
    # The block's rest was never stored; all but those that waited was never used.
    lost = min(end - first, most_waiting)
    total = int(store.recall(LOST_AT_MOST) or 0) + lost
    with store.transaction():
        store.remember({OPEN_BLOCK: "", LOST_AT_MOST: str(total)})
    if lost:
        log.warning(
            "the process before us was killed inside its commit window: "
            "at most %d messages of low priority are lost",
            lost,
        )

"""Recovery of messages from a damaged queue file and its write-ahead log.

SQLite reads what it can; where it fails, the records are read from the single pages
without the b-trees. Only a message whose checksum matches is recovered.

Source: sqlite.org/fileformat2.html, sections 1.6, 2.1 and 4.
"""

import heapq
import json
import logging
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from io import SEEK_END, BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

from edge_agent.queue.base import ROW_OVERHEAD_BYTES
from edge_agent.queue.schema import connect, decode_text, migrate
from edge_agent.queue.store import (
    DROPPED_DAMAGED,
    PAGE_BYTES,
    CounterDeltas,
    QueueRow,
    Store,
)
from edge_agent.queue.write_journal import GENERATION_KEY, NEXT_SEQ_KEY
from service_runtime.files import file_size
from spatial_mqtt.priority import LADDER

log = logging.getLogger(__name__)

Value = int | float | str | bytes | None
Record = tuple[Value, ...]

LEAF_PAGE, INTERIOR_PAGE = 0x0A, 0x02
"""Page types of index b-trees, where ``WITHOUT ROWID`` tables keep their rows."""

WAL_HEAD_BYTES, FRAME_HEAD_BYTES = 32, 24
FRAME_BYTES = FRAME_HEAD_BYTES + PAGE_BYTES
MAX_LOCAL = (PAGE_BYTES - 12) * 64 // 255 - 23
MIN_LOCAL = (PAGE_BYTES - 12) * 32 // 255 - 23
_INT_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

EMPTIED = "it is missing or empty, and messages are only in its log (-wal)"

PAGE_COUNT_AT = 28
"""Offset of the number of pages in the header of a file."""

MAX_REBUILT_PAGES = 2**18
"""A higher number is damage, and would fill the disk."""

TORN_COMMITS = 1
"""Number of commits behind a bad frame that a power cut can leave: the torn one."""

_BIG_ENDIAN = 1
_MASK = 0xFFFFFFFF

Sums = tuple[int, int]

COLUMNS = ("priority", "seq", "node", "boot", "origin_seq", "topic", "crc", "payload")
OFFERS_PREFIX = "uplink/offers/"
HIGHEST_SEQ = 2**62
"""A higher number is damage, and would leave none for new messages."""


def salvage(damaged: Path, store: Store, max_bytes: int | None = None) -> int:
    """Copy the readable messages of a damaged queue into a new one.

    Ids, sequence numbers and priorities are kept. Ages are not, because the stored
    clock has no checksum; the recovered messages never expire. The new file keeps its
    own state: its boot id must differ, because numbers may be used again. The
    journal's generation is kept, or a void record would replace a newer state. Known
    ids and state values have no checksum either, so they are copied only from tables
    that SQLite reads without an error.

    Args:
        damaged: The damaged file, with its ``-wal`` beside it.
        store: The new queue, empty.
        max_bytes: Maximum size of the messages, the most urgent first, read as far
            as the disk can be read; None for all, or an error.

    Returns:
        Number of recovered messages.
    """
    changes = CounterDeltas()
    saved: Counter[int] = Counter()
    highest = 0
    with _readable(damaged) as file, store.transaction():
        rows = filter(None, map(_message, _message_records(damaged, file)))
        for row in rows if max_bytes is None else _most_urgent(rows, max_bytes):
            if store.insert_if_absent(row):
                saved[row.priority] += 1
                highest = max(highest, row.seq)
                changes.add_stored(row.priority, 1, row.cost_bytes)
        _copy_known_ids(store, _table(file, "taken"))
        if not (state := _table(file, "state")):
            log.error("state values of %s are lost: levels, counters", damaged)
        _copy_state(store, state or _offers(damaged))
        store.set_state({NEXT_SEQ_KEY: str(highest + 1)})
        is_known = file != damaged and max_bytes is None
        lost = _count_lost(file, saved, changes) if is_known else 0
        store.apply_deltas(changes)
    log.error("%d messages were saved from %s", saved.total(), damaged)
    if lost:
        log.error("at least %d messages of %s are lost", lost, damaged)
    return saved.total()


@contextmanager
def _readable(damaged: Path) -> Iterator[Path]:
    """The file that SQLite reads: the damaged one, or one that is made of its log."""
    if not has_only_its_log(damaged):
        yield damaged
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(TemporaryDirectory())
            file = _rebuild(damaged, Path(folder, "queue.db"))
        except (OSError, sqlite3.DatabaseError) as error:
            log.warning("only messages of %s-wal are read: %s", damaged, error)
            file = damaged
        yield file


def _rebuild(lost: Path, file: Path) -> Path:
    """Make a file of the newest pages in the log of a lost one.

    A log keeps pages of before its last checkpoint until it overwrites them. The first
    page, which names the tables, is the same in each file. Of another page that is
    missing SQLite reads zeros, which it reports as damage; it refuses a file that ends
    before the first page of a table.
    """
    with closing(connect(str(file))) as db:
        migrate(db)
    with _opened(Path(f"{lost}-wal")) as log_file, file.open("r+b") as made:
        size = made.seek(0, SEEK_END)
        made.truncate(PAGE_BYTES)
        made.truncate(size)
        frames = _by_age(log_file)
        while frames and not frames[-1].ends_commit:
            frames.pop()  # of a commit that was not complete
        for frame in frames:
            if 0 < frame.number <= MAX_REBUILT_PAGES:
                made.seek((frame.number - 1) * PAGE_BYTES)
                made.write(_bytes_at(log_file, frame.at, PAGE_BYTES))
        count = made.seek(0, SEEK_END) // PAGE_BYTES
        made.seek(PAGE_COUNT_AT)
        made.write(struct.pack(">I", count))
    return file


def _count_lost(file: Path, saved: Counter[int], changes: CounterDeltas) -> int:
    """Count messages of a lost file as dropped that only its counters name."""
    total = 0
    for priority, rows, size, *_ in _with_types(_table(file, "tally"), (int,) * 7):
        if priority not in LADDER.descending or rows * ROW_OVERHEAD_BYTES > size:
            continue  # damaged
        for _ in range(rows - saved[priority]):
            changes.add_stored(priority, 1, 0)
            changes.add_dropped(priority, 0, DROPPED_DAMAGED)
            total += 1
    return total


def _most_urgent(rows: Iterator[QueueRow], max_bytes: int) -> list[QueueRow]:
    """The most urgent messages, of equal ones the oldest, in few bytes.

    A log has most of them several times.
    """
    kept: list[tuple[int, int, QueueRow]] = []
    keys: set[tuple[int, int]] = set()
    size, is_complete = 0, True
    try:
        for row in rows:
            if row[:2] in keys:
                continue
            keys.add(row[:2])
            heapq.heappush(kept, (row.priority, -row.seq, row))
            size += row.cost_bytes
            while size > max_bytes:
                dropped = heapq.heappop(kept)[2]
                keys.remove(dropped[:2])
                size -= dropped.cost_bytes
                is_complete = False
    except (OSError, sqlite3.DatabaseError) as error:
        log.error("the rest of the messages cannot be read: %s", error)  # noqa: TRY400
    if not is_complete:
        log.error("less urgent messages stay on the disk only; there is no space")
    return [row for _, _, row in kept]


def count_lost_commits(path: Path) -> int:
    """Number of complete commits that SQLite ignores because the log is damaged.

    SQLite treats the first frame with a wrong checksum as the end of the log, because
    a power cut during a commit leaves such a frame. After a bit error, complete and
    durable commits can follow it, which SQLite discards without an error.

    Args:
        path: The queue file; its log is beside it.
    """
    count = 0
    with _opened(Path(f"{path}-wal")) as file:
        head = _bytes_at(file, 0, WAL_HEAD_BYTES + FRAME_HEAD_BYTES)
        if len(head) < WAL_HEAD_BYTES + FRAME_HEAD_BYTES:
            return 0
        byte_order = ">" if head[3] & _BIG_ENDIAN else "<"
        sums = _checksums(byte_order, head[:24], (0, 0))
        is_valid = sums == struct.unpack_from(">II", head, 24)
        salts = head[16:24] if is_valid else head[-16:-8]
        for _, frame in _frames(file):
            if is_valid:
                sums = _checksums(byte_order, frame[:8], sums)
                sums = _checksums(byte_order, frame[FRAME_HEAD_BYTES:], sums)
                found = frame[8:16], struct.unpack_from(">II", frame, 16)
                is_valid = found == (salts, sums)
            # The frame that ends a commit has the file's size; older ones other salts.
            if not is_valid and frame[8:16] == salts and any(frame[4:8]):
                count += 1
    return count if count > TORN_COMMITS else 0


def has_only_its_log(path: Path) -> bool:
    """Whether a queue file is missing or empty, but its log is not.

    SQLite deletes the log when it opens such a file.
    """
    return file_size(path) == 0 and file_size(Path(f"{path}-wal")) > 0


def _checksums(byte_order: str, raw: bytes, sums: Sums) -> Sums:
    first, second = sums
    numbers = iter(struct.unpack(f"{byte_order}{len(raw) // 4}I", raw))
    for even in numbers:
        first = (first + even + second) & _MASK
        second = (second + next(numbers) + first) & _MASK
    return first, second


def read_records(path: Path) -> Iterator[Record]:
    """All records in the pages of a file and of its log, stale ones included.

    The caller validates them by their checksum. A stale message that was delivered
    before is a duplicate for its receiver, which drops it.
    """
    with _opened(path) as file, _opened(Path(f"{path}-wal")) as log_file:
        frames = _by_age(log_file)
        main = _Pages(file, log_file, {})
        newest = _Pages(file, log_file, {each.number: each.at for each in frames})
        number = 1
        while page := main.get(number):
            # A long record continues in other pages: of the file, or of the log.
            for pages in [main, newest] if frames else [main]:
                yield from _records(page, pages)
            number += 1
        for frame in frames:
            yield from _records(_bytes_at(log_file, frame.at, PAGE_BYTES), newest)


class _Pages:
    """The pages of a file, read one by one: all of them may not fit into the memory.

    The file is not mapped into it, because an error of the disk would then end the
    process by SIGBUS.

    Args:
        file: The file.
        log_file: Its log.
        logged: Offset in the log of a newer version of a page, by its number.
    """

    def __init__(
        self, file: IO[bytes], log_file: IO[bytes], logged: Mapping[int, int]
    ) -> None:
        self._file = file
        self._log_file = log_file
        self._logged = logged

    def get(self, number: int) -> bytes | None:
        """A page by its number, the first is 1; None if there is none."""
        if number in self._logged:
            return _bytes_at(self._log_file, self._logged[number], PAGE_BYTES)
        if number < 1:
            return None
        page = _bytes_at(self._file, (number - 1) * PAGE_BYTES, PAGE_BYTES)
        return page.ljust(PAGE_BYTES, b"\0") if page else None


class _LoggedPage(NamedTuple):
    """A page in a log: by age, its place, its number, whether it ends a commit."""

    age: int
    at: int
    number: int
    ends_commit: bool


def _by_age(log_file: IO[bytes]) -> list[_LoggedPage]:
    """The pages of a log, the newest version of each last.

    After a checkpoint a log begins anew, with a salt that is higher by one, and
    overwrites its older pages from its start.
    """
    live = _salt(_bytes_at(log_file, 0, WAL_HEAD_BYTES), 16)
    return sorted(
        _LoggedPage(
            (_salt(frame, 8) - live - 1) & _MASK,
            at + FRAME_HEAD_BYTES,
            struct.unpack_from(">I", frame)[0],
            any(frame[4:8]),
        )
        for at, frame in _frames(log_file)
    )


def _salt(head: bytes, at: int) -> int:
    return int.from_bytes(head[at : at + 4])


def _frames(log_file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The complete frames of a log, with their offsets."""
    at = WAL_HEAD_BYTES
    while len(frame := _bytes_at(log_file, at, FRAME_BYTES)) == FRAME_BYTES:
        yield at, frame
        at += FRAME_BYTES


def _opened(path: Path) -> IO[bytes]:
    return path.open("rb") if path.exists() else BytesIO()


def _bytes_at(file: IO[bytes], start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _records(page: bytes, pages: _Pages) -> Iterator[Record]:
    # Page 1 begins with the file's header and contains no message.
    kind = page[0]
    if kind not in {LEAF_PAGE, INTERIOR_PAGE}:
        return
    head_bytes, skip = (8, 0) if kind == LEAF_PAGE else (12, 4)
    (count,) = struct.unpack_from(">H", page, 3)
    for number in range(min(count, PAGE_BYTES // 4)):
        at = head_bytes + 2 * number
        if at + 2 > PAGE_BYTES:
            return
        (start,) = struct.unpack_from(">H", page, at)
        try:
            yield _record(_payload(page, start + skip, pages))
        except (IndexError, ValueError, struct.error):
            continue  # damaged; the next cell does not depend on it


def _payload(page: bytes, start: int, pages: _Pages) -> bytes:
    size, start = _varint(page, start)
    if size <= MAX_LOCAL:
        return page[start : start + size]
    local = MIN_LOCAL + (size - MIN_LOCAL) % (PAGE_BYTES - 4)
    local = local if local <= MAX_LOCAL else MIN_LOCAL
    parts = [page[start : start + local]]
    (following,) = struct.unpack_from(">I", page, start + local)
    missing = size - local
    read: set[int] = set()
    while missing > 0:
        overflow = pages.get(following)
        if overflow is None or following in read:
            raise ValueError(following)
        read.add(following)
        (following,) = struct.unpack_from(">I", overflow, 0)
        parts.append(overflow[4 : 4 + min(missing, PAGE_BYTES - 4)])
        missing -= PAGE_BYTES - 4
    return b"".join(parts)


def _record(payload: bytes) -> Record:
    head_bytes, at = _varint(payload, 0)
    values: list[Value] = []
    body = head_bytes
    while at < head_bytes:
        serial, at = _varint(payload, at)
        value, size = _value(payload, body, serial)
        values.append(value)
        body += size
    return tuple(values)


def _value(raw: bytes, start: int, serial: int) -> tuple[Value, int]:
    if serial == 0:
        return None, 0
    if serial in {8, 9}:
        return serial - 8, 0
    if serial == 7:  # noqa: PLR2004 - the format's number for a double
        return struct.unpack_from(">d", raw, start)[0], 8
    size = _INT_BYTES.get(serial) or (serial - 12) // 2
    part = raw[start : start + size]
    if serial in {10, 11} or len(part) != size:
        raise ValueError(serial)
    if serial in _INT_BYTES:
        return int.from_bytes(part, "big", signed=True), size
    return (part.decode() if serial % 2 else part), size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(9):
        byte = raw[at + number]
        if number == 8:  # noqa: PLR2004 - the ninth byte carries eight bits
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004
            return value, at + number + 1
    raise ValueError(at)


def _message_records(path: Path, file: Path) -> Iterator[Record]:
    """Records that may be messages, some of them more than once.

    Args:
        path: The damaged file.
        file: The one that SQLite reads. Made of a log, it may have old pages.
    """
    try:
        yield from _read(file, f"SELECT {', '.join(COLUMNS)} FROM message")  # noqa: S608
    except sqlite3.DatabaseError as error:
        log.warning("messages of %s are read page by page: %s", path, error)
        yield from read_records(path)
        return
    if file != path or count_lost_commits(path):
        yield from read_records(path)


def _table(path: Path, name: str) -> list[Record]:
    """Rows of a table, as far as SQLite can read it."""
    rows: list[Record] = []
    try:
        rows.extend(_read(path, f"SELECT * FROM {name}"))  # noqa: S608 - our words
    except sqlite3.DatabaseError as error:
        log.warning("table %s is damaged: %s", name, error)
    return rows


def _read(path: Path, query: str) -> Iterator[Record]:
    with closing(connect_read_only(path)) as db:
        yield from db.execute(query)


def connect_read_only(path: Path, *, is_in_use: bool = False) -> sqlite3.Connection:
    """Open a file that is kept unchanged, so that its log is not applied."""
    if file_size(path) == 0:  # even so SQLite would delete the log
        raise sqlite3.DatabaseError("the file is empty")
    # On a read-only disk SQLite can open a file without a log only as immutable.
    has_log = is_in_use or file_size(Path(f"{path}-wal")) > 0
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    db = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
    db.text_factory = decode_text
    return db


def _message(record: Record) -> QueueRow | None:
    """A record as a message, or None unless its types and its checksum match."""
    if len(record) not in {len(COLUMNS), len(COLUMNS) + 1}:
        return None
    priority, seq, node, boot, origin_seq, topic, crc, payload = record[:8]
    numbers = [n for n in (priority, seq, origin_seq) if isinstance(n, int)]
    texts = [t for t in (node, boot, topic) if isinstance(t, str) and t.isprintable()]
    if len(numbers) + len(texts) != 6 or not isinstance(payload, bytes):  # noqa: PLR2004
        return None
    if numbers[0] not in LADDER.descending or not isinstance(crc, int):
        return None
    if not 0 < numbers[1] < HIGHEST_SEQ or numbers[2] < 0:
        return None
    priority, seq, origin_seq = numbers
    node, boot, topic = texts
    row = QueueRow(priority, seq, node, boot, origin_seq, topic, crc, payload)
    return row.with_checksum() if row.is_intact else None


def _copy_known_ids(store: Store, rows: list[Record]) -> None:
    for node, boot, low, high in _with_types(rows, (str, str, int, int)):
        # A wrong range would reject new messages; a lost one only costs duplicates.
        if 0 <= low <= high < HIGHEST_SEQ:
            store.known_ids.record_range(node, boot, low, high)


def _copy_state(store: Store, rows: list[Record]) -> None:
    values = dict(_with_types(rows, (str, str)))
    own = {name for name in values if name.startswith("queue/")} - {GENERATION_KEY}
    store.set_state({name: values[name] for name in values.keys() - own})


def _offers(damaged: Path) -> list[Record]:
    """Stored offers of receipts, which their structure identifies.

    Without them the uplink would treat a broker whose store is offline as one without
    a store, and messages would leave the queue on the broker's PUBACK.
    """
    return [
        (name, value)
        for name, value in _with_types(read_records(damaged), (str, str))
        if name.startswith(OFFERS_PREFIX) and _is_offers(value)
    ]


def _is_offers(value: str) -> bool:
    try:
        offers = json.loads(value)
    except ValueError:
        return False
    return isinstance(offers, list) and all(
        isinstance(each, list)
        and [type(part) for part in each][:3] == [str, list, list]
        and each[0].isprintable()
        for each in offers
    )


def _with_types(rows: Iterable[Record], types: tuple[type, ...]) -> Iterator[tuple]:  # type: ignore[type-arg]
    """Rows of these types whose texts are UTF-8, as SQLite needs to store them."""
    for record in rows:
        texts = [value for value in record if isinstance(value, str)]
        if tuple(map(type, record)) == types and all(map(_is_utf_8, texts)):
            yield tuple(record)


def _is_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a surrogate escape of `decode_text`
        return False
    return True

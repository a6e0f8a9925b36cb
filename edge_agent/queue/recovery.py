"""Salvage: what a damaged queue file still says, row by row.

SQLite itself reads what it can; where it gives up, the file's pages are read one
by one (see `pages`). A message counts only when its checksum matches.

Records of a SQLite file read page by page, without its trees.

For a file whose header or inner pages are damaged. Tables of the queue are
``WITHOUT ROWID``, so all their rows are in index pages.

Source: sqlite.org/fileformat2.html, sections 1.6, 2.1 and 4.1.

What SQLite's write-ahead log holds behind a frame that SQLite cannot read.

SQLite takes the first frame whose checksum is wrong for the log's end, because a
power cut in the middle of a commit leaves such a one. After a flipped bit there are
whole commits behind it, which were promised to be on the disk: it forgets them, and
says nothing.

Source: sqlite.org/fileformat2.html, section 4.
"""

import json
import logging
import sqlite3
import struct
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from edge_agent.queue.store import Changes, Row, Store
from edge_agent.queue.write_journal import NEXT_SEQ
from spatial_mqtt.priority import LADDER

Record = tuple[int | float | str | bytes | None, ...]

PAGE_BYTES = 4096
LEAF, INTERIOR = 0x0A, 0x02
WAL_HEAD_BYTES, FRAME_HEAD_BYTES = 32, 24
MAX_LOCAL = (PAGE_BYTES - 12) * 64 // 255 - 23
MIN_LOCAL = (PAGE_BYTES - 12) * 32 // 255 - 23
_INT_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def records(path: Path) -> Iterator[Record]:
    """Every record in the pages of a file and of its log, stale ones included.

    The caller judges them by their checksum. A stale message that was delivered
    before is dropped by its receiver, who knows its id.
    """
    main = _main_pages(path)
    logged = list(_wal_pages(Path(f"{path}-wal")))
    # A long record goes on in other pages: of the file, or newer ones of the log.
    newest = ChainMap(dict(logged), main)
    for page in main.values():
        yield from _records(page, main)
        yield from _records(page, newest)
    for _, page in logged:
        yield from _records(page, newest)


def _main_pages(path: Path) -> dict[int, bytes]:
    raw = path.read_bytes() if path.exists() else b""
    return {
        start // PAGE_BYTES + 1: raw[start : start + PAGE_BYTES].ljust(
            PAGE_BYTES, b"\0"
        )
        for start in range(0, len(raw), PAGE_BYTES)
    }


def _wal_pages(path: Path) -> Iterator[tuple[int, bytes]]:
    raw = path.read_bytes() if path.exists() else b""
    step = FRAME_HEAD_BYTES + PAGE_BYTES
    for start in range(WAL_HEAD_BYTES, len(raw) - step + 1, step):
        (number,) = struct.unpack_from(">I", raw, start)
        yield number, raw[start + FRAME_HEAD_BYTES : start + step]


def _records(page: bytes, pages: Mapping[int, bytes]) -> Iterator[Record]:
    # Page 1 begins with the file's header, and holds no row of ours.
    kind = page[0]
    if kind not in {LEAF, INTERIOR}:
        return
    head_bytes, skip = (8, 0) if kind == LEAF else (12, 4)
    (count,) = struct.unpack_from(">H", page, 3)
    for number in range(min(count, PAGE_BYTES // 4)):
        at = head_bytes + 2 * number
        if at + 2 > PAGE_BYTES:
            return
        (start,) = struct.unpack_from(">H", page, at)
        try:
            yield _record(_payload(page, start + skip, pages))
        except (IndexError, ValueError, struct.error):
            continue  # damage; the next cell stands for itself


def _payload(page: bytes, start: int, pages: Mapping[int, bytes]) -> bytes:
    size, start = _varint(page, start)
    if size <= MAX_LOCAL:
        return page[start : start + size]
    local = MIN_LOCAL + (size - MIN_LOCAL) % (PAGE_BYTES - 4)
    local = local if local <= MAX_LOCAL else MIN_LOCAL
    parts = [page[start : start + local]]
    (following,) = struct.unpack_from(">I", page, start + local)
    missing = size - local
    while missing > 0:
        overflow = pages.get(following)
        if overflow is None or len(parts) > len(pages):
            raise ValueError(following)
        (following,) = struct.unpack_from(">I", overflow, 0)
        parts.append(overflow[4 : 4 + min(missing, PAGE_BYTES - 4)])
        missing -= PAGE_BYTES - 4
    return b"".join(parts)


def _record(payload: bytes) -> Record:
    head_bytes, at = _varint(payload, 0)
    values: list[int | float | str | bytes | None] = []
    body = head_bytes
    while at < head_bytes:
        serial, at = _varint(payload, at)
        value, size = _value(payload, body, serial)
        values.append(value)
        body += size
    return tuple(values)


def _value(
    raw: bytes, start: int, serial: int
) -> tuple[int | float | str | bytes | None, int]:
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


LOG_HEAD_BYTES, LOG_FRAME_HEAD_BYTES = 32, 24
FRAME_BYTES = LOG_FRAME_HEAD_BYTES + PAGE_BYTES
TORN_COMMITS = 1
"""So many commits behind a bad frame a power cut can leave: the one it tore."""

_BIG_ENDIAN = 1
_MASK = 0xFFFFFFFF

Sums = tuple[int, int]


def commits_cut_off(path: Path) -> int:
    """How many whole commits a queue file loses by damage of its log.

    Args:
        path: The queue file; its log is beside it.
    """
    log = Path(f"{path}-wal")
    raw = log.read_bytes() if log.exists() else b""
    if len(raw) < LOG_HEAD_BYTES + FRAME_BYTES:
        return 0
    words = ">" if raw[3] & _BIG_ENDIAN else "<"
    sums = _sums(words, raw[:24], (0, 0))
    is_headed = sums == struct.unpack_from(">II", raw, 24)
    salts = raw[16:24] if is_headed else raw[LOG_HEAD_BYTES + 8 : LOG_HEAD_BYTES + 16]
    start = LOG_HEAD_BYTES
    while is_headed and start + FRAME_BYTES <= len(raw):
        frame = raw[start : start + FRAME_BYTES]
        sums = _sums(words, frame[LOG_FRAME_HEAD_BYTES:], _sums(words, frame[:8], sums))
        if frame[8:16] != salts or sums != struct.unpack_from(">II", frame, 16):
            break
        start += FRAME_BYTES
    behind = [
        raw[at : at + LOG_FRAME_HEAD_BYTES]
        for at in range(start, len(raw) - FRAME_BYTES + 1, FRAME_BYTES)
    ]
    # A frame that ends a commit tells the file's size; older runs have other salts.
    cut_off = sum(head[8:16] == salts and any(head[4:8]) for head in behind)
    return cut_off if cut_off > TORN_COMMITS or _is_empty(path) else 0


def _is_empty(path: Path) -> bool:
    """SQLite removes the log beside an empty file."""
    return not path.exists() or path.stat().st_size == 0


def _sums(words: str, raw: bytes, sums: Sums) -> Sums:
    first, second = sums
    numbers = iter(struct.unpack(f"{words}{len(raw) // 4}I", raw))
    for even in numbers:
        first = (first + even + second) & _MASK
        second = (second + next(numbers) + first) & _MASK
    return first, second


log = logging.getLogger(__name__)

COLUMNS = ("priority", "seq", "node", "boot", "origin_seq", "topic", "crc", "payload")
OFFERS = "uplink/offers/"
HIGHEST_SEQ = 2**62
"""A number above it is damage, and would leave none for new messages."""


def salvage(damaged: Path, store: Store) -> int:
    """Put into a new queue what can be read of a damaged one.

    Ids, numbers and priorities are kept; ages are not, because the clock they
    were measured with has no checksum, so what was saved never expires. The new
    file's own values stay: its boot id must differ, because numbers may be used
    again. Ids once taken and remembered values have no checksum either, so they
    come only from tables that SQLite reads without complaint.

    Args:
        damaged: The damaged file, with its ``-wal`` beside it.
        store: The new queue, empty.

    Returns:
        How many messages were saved.
    """
    changes = Changes()
    saved = 0
    highest = 0
    with store.transaction():
        for row in filter(None, map(_message, _found(damaged))):
            if store.restore(row):
                saved += 1
                highest = max(highest, row.seq)
                changes.held(row.priority, 1, row.cost)
        _keep_taken(store, _table(damaged, "taken"))
        state = _table(damaged, "state")
        _keep_state(store, state or _offers(damaged))
        store.remember({NEXT_SEQ: str(highest + 1)})
        store.apply(changes)
    log.error("%d messages were saved from %s", saved, damaged)
    return saved


def _found(path: Path) -> Iterator[Record]:
    """Records that may be messages, some of them more than once."""
    try:
        yield from _read(path, f"SELECT {', '.join(COLUMNS)} FROM message")  # noqa: S608
    except sqlite3.DatabaseError as error:
        log.warning("messages of %s are read page by page: %s", path, error)
        yield from records(path)
        return
    if commits_cut_off(path):
        yield from records(path)


def _table(path: Path, name: str) -> list[Record]:
    """Rows of a table, as far as SQLite can read it."""
    rows: list[Record] = []
    try:
        rows.extend(_read(path, f"SELECT * FROM {name}"))  # noqa: S608 - our words
    except sqlite3.DatabaseError as error:
        log.warning("table %s of %s is damaged: %s", name, path, error)
    return rows


def _read(path: Path, query: str) -> Iterator[Record]:
    # Read only: the damaged file is evidence, and its log must not be applied.
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    ) as db:
        # Damage need not be UTF-8: `_message` judges what comes out.
        db.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        yield from db.execute(query)


def _message(record: Record) -> Row | None:
    """The message of a record, when it is one and its checksum matches."""
    if len(record) not in {len(COLUMNS), len(COLUMNS) + 1}:
        return None
    priority, seq, node, boot, origin_seq, topic, crc, payload = record[:8]
    numbers = [n for n in (priority, seq, origin_seq) if isinstance(n, int)]
    texts = [t for t in (node, boot, topic) if isinstance(t, str) and t.isprintable()]
    if len(numbers) + len(texts) != 6 or not isinstance(payload, bytes):  # noqa: PLR2004
        return None
    if numbers[0] not in LADDER.descending() or not isinstance(crc, int):
        return None
    if not 0 < numbers[1] < HIGHEST_SEQ or numbers[2] < 0:
        return None
    priority, seq, origin_seq = numbers
    node, boot, topic = texts
    row = Row(priority, seq, node, boot, origin_seq, topic, crc, payload)
    return row.sealed() if row.is_sound else None


def _keep_taken(store: Store, read: list[Record]) -> None:
    for node, boot, low, high in _sound(read, (str, str, int, int)):
        # A wrong range would refuse messages for ever; a lost one costs duplicates.
        if 0 <= low <= high < HIGHEST_SEQ:
            store.take_range(node, boot, low, high)


def _keep_state(store: Store, read: list[Record]) -> None:
    values = dict(_sound(read, (str, str)))
    own = {name for name in values if name.startswith("queue/")}
    store.remember({name: values[name] for name in values.keys() - own})


def _offers(damaged: Path) -> list[Record]:
    """Remembered offers of receipts, which their own form vouches for.

    Without them a store that is away would be taken for none, and messages be let go
    with a broker's word.
    """
    return [
        (name, value)
        for name, value in _sound(list(records(damaged)), (str, str))
        if name.startswith(OFFERS) and _is_offers(value)
    ]


def _is_offers(value: str) -> bool:
    try:
        told = json.loads(value)
    except ValueError:
        return False
    return isinstance(told, list) and all(
        isinstance(each, list)
        and [type(part) for part in each] == [str, list, list]
        and each[0].isprintable()
        for each in told
    )


def _sound(read: list[Record], types: tuple[type, ...]) -> Iterator[tuple]:  # type: ignore[type-arg]
    for record in read:
        if tuple(map(type, record)) == types:
            yield tuple(record)

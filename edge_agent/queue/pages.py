"""Records of a SQLite file read page by page, without its trees.

For a file whose header or inner pages are damaged. Tables of the queue are
``WITHOUT ROWID``, so all their rows are in index pages.

Source: sqlite.org/fileformat2.html, sections 1.6, 2.1 and 4.1.
"""

import struct
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path

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

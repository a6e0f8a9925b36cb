"""What SQLite's write-ahead log holds behind a frame that SQLite cannot read.

SQLite takes the first frame whose checksum is wrong for the log's end, because a
power cut in the middle of a commit leaves such a one. After a flipped bit there are
whole commits behind it, which were promised to be on the disk: it forgets them, and
says nothing.

Source: sqlite.org/fileformat2.html, section 4.
"""

import struct
from pathlib import Path

PAGE_BYTES = 4096
HEAD_BYTES, FRAME_HEAD_BYTES = 32, 24
FRAME_BYTES = FRAME_HEAD_BYTES + PAGE_BYTES
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
    if len(raw) < HEAD_BYTES + FRAME_BYTES:
        return 0
    words = ">" if raw[3] & _BIG_ENDIAN else "<"
    sums = _sums(words, raw[:24], (0, 0))
    is_headed = sums == struct.unpack_from(">II", raw, 24)
    salts = raw[16:24] if is_headed else raw[HEAD_BYTES + 8 : HEAD_BYTES + 16]
    start = HEAD_BYTES
    while is_headed and start + FRAME_BYTES <= len(raw):
        frame = raw[start : start + FRAME_BYTES]
        sums = _sums(words, frame[FRAME_HEAD_BYTES:], _sums(words, frame[:8], sums))
        if frame[8:16] != salts or sums != struct.unpack_from(">II", frame, 16):
            break
        start += FRAME_BYTES
    behind = [
        raw[at : at + FRAME_HEAD_BYTES]
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

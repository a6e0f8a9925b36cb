"""Reproducible damage to a SQLite file and its write-ahead log.

Source of the offsets: sqlite.org/fileformat2.html, sections 1.3, 1.6 and 4.1.
"""

import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

PAGE = 4096
SECTOR = 512
ERASE_BLOCK = 65536
HEADER = 100
WAL_HEADER, FRAME_HEADER = 32, 24
FRAME = FRAME_HEADER + PAGE


class Files(NamedTuple):
    """Contents of a queue file and its write-ahead log.

    Attributes:
        main: The file.
        wal: The log; None if there is none.
    """

    main: bytes
    wal: bytes | None = None

    def write(self, path: Path) -> None:
        """Write the file to a path and the log beside it."""
        path.write_bytes(self.main)
        if self.wal is not None:
            Path(f"{path}-wal").write_bytes(self.wal)


@dataclass(frozen=True)
class Images:
    """One queue at three times.

    Attributes:
        older: The file at an earlier checkpoint.
        crash: The file and its log when the power fails.
        clean: The file after it was closed; there is no log.
        path: Path of the closed file, to look up the types of its pages.
    """

    older: Files
    crash: Files
    clean: Files
    path: Path

    @cached_property
    def pages(self) -> dict[str, list[int]]:
        """Page numbers of the message table, by page type."""
        query = "SELECT pagetype, pageno FROM dbstat WHERE name = 'message'"
        done = subprocess.run(
            ["sqlite3", str(self.path), query],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        pages: dict[str, list[int]] = {"leaf": [], "internal": [], "overflow": []}
        for line in done.stdout.splitlines():
            kind, number = line.split("|")
            pages[kind].append(int(number))
        return pages

    def start_of(self, kind: str, chance: random.Random) -> int:
        """Return the offset of a random page of a type."""
        return PAGE * (chance.choice(self.pages[kind]) - 1)


Damage = Callable[[Images, random.Random], Files]


def _flip(raw: bytes, *offsets: int, chance: random.Random) -> bytes:
    """Change the bytes at some offsets to other values."""
    changed = bytearray(raw)
    for at in offsets:
        changed[at] ^= chance.randint(1, 255)
    return bytes(changed)


def _fill(raw: bytes, start: int, size: int, value: int = 0) -> bytes:
    """Overwrite a range with one value; the length is unchanged."""
    size = max(0, min(size, len(raw) - start))
    return raw[:start] + bytes([value]) * size + raw[start + size :]


def tail_cut(images: Images, chance: random.Random) -> Files:
    """The file lost its end."""
    main = images.clean.main
    return Files(main[: int(len(main) * chance.uniform(0.3, 0.95))])


def half_page(images: Images, chance: random.Random) -> Files:
    """The disk was full: the last page was written only in part."""
    main = images.clean.main
    return Files(main[: len(main) - PAGE + SECTOR * chance.randint(1, 7)])


def byte_in(kind: str, limit: int = PAGE) -> Damage:
    """One byte of a page of a type is changed."""

    def damage(images: Images, chance: random.Random) -> Files:
        at = images.start_of(kind, chance) + chance.randrange(limit)
        return Files(_flip(images.clean.main, at, chance=chance))

    return damage


def byte_in_header(images: Images, chance: random.Random) -> Files:
    """One byte of the file's header is changed."""
    at = chance.randrange(HEADER)
    return Files(_flip(images.clean.main, at, chance=chance))


def header_lost(images: Images, _chance: random.Random) -> Files:
    """The file's header is overwritten."""
    return Files(_fill(images.clean.main, 0, HEADER, 0xFF))


def header_lost_beside_wal(images: Images, _chance: random.Random) -> Files:
    """The file's header is overwritten while the log contains commits."""
    return Files(_fill(images.crash.main, 0, HEADER, 0xFF), images.crash.wal)


def page_zeroed(kind: str) -> Damage:
    """A whole page of a type is zeros."""

    def damage(images: Images, chance: random.Random) -> Files:
        start = images.start_of(kind, chance)
        return Files(_fill(images.clean.main, start, PAGE))

    return damage


def first_page_zeroed(images: Images, _chance: random.Random) -> Files:
    """Header and schema are lost."""
    return Files(_fill(images.clean.main, 0, PAGE))


def run_zeroed(images: Images, chance: random.Random) -> Files:
    """4 KiB of zeros that begin at any sector and so cover two pages in part."""
    main = images.clean.main
    start = SECTOR * chance.randrange(1, (len(main) - PAGE) // SECTOR)
    return Files(_fill(main, start, PAGE))


def block_erased(images: Images, chance: random.Random) -> Files:
    """An erase block of the card is lost: 64 KiB of ones."""
    main = images.clean.main
    start = ERASE_BLOCK * chance.randrange(max(1, len(main) // ERASE_BLOCK))
    return Files(_fill(main, start, ERASE_BLOCK, 0xFF))


def bytes_anywhere(images: Images, chance: random.Random) -> Files:
    """Twenty single bytes anywhere in the file are changed."""
    main = images.clean.main
    offsets = [chance.randrange(len(main)) for _ in range(20)]
    return Files(_flip(main, *offsets, chance=chance))


def torn_page(images: Images, chance: random.Random) -> Files:
    """The sectors of one page are new up to a point, and old after it."""
    old, new = images.older.main, images.clean.main
    page = chance.choice(_changed(old, new))
    start = page + SECTOR * chance.randint(1, 7)
    end = page + PAGE
    return Files(new[:start] + old[start:end] + new[end:])


def checkpoint_torn(keeps_wal: bool) -> Damage:
    """Power failed during a checkpoint: half the pages copied, the last in part."""

    def damage(images: Images, chance: random.Random) -> Files:
        old, new = images.crash.main, images.clean.main
        main = bytearray(old.ljust(len(new), b"\0"))
        moved = _changed(bytes(main), new)
        moved = moved[: max(1, len(moved) // 2)]
        for start in moved:
            last = start == moved[-1]
            end = start + (SECTOR * chance.randint(1, 7) if last else PAGE)
            main[start:end] = new[start:end]
        return Files(bytes(main), images.crash.wal if keeps_wal else None)

    return damage


def _changed(old: bytes, new: bytes) -> list[int]:
    """Return the offsets of pages that exist in both and differ."""
    return [
        start
        for start in range(PAGE, min(len(old), len(new)), PAGE)
        if old[start : start + PAGE] != new[start : start + PAGE]
    ]


def wal_lost(images: Images, _chance: random.Random) -> Files:
    """The log is gone."""
    return Files(images.crash.main)


def wal_cut(images: Images, chance: random.Random) -> Files:
    """The log is cut off anywhere in its valid part."""
    wal, frames = _log(images)
    at = WAL_HEADER + int(frames * FRAME * chance.uniform(0.1, 0.95))
    return Files(images.crash.main, wal[:at])


def wal_half_frame(images: Images, chance: random.Random) -> Files:
    """The disk was full: the log's last frame was written only in part."""
    wal, frames = _log(images)
    end = WAL_HEADER + (frames - 1) * FRAME + SECTOR * chance.randint(1, 7)
    return Files(images.crash.main, wal[:end])


def byte_in_wal(images: Images, chance: random.Random) -> Files:
    """One byte in the valid part of the log is changed."""
    wal, frames = _log(images)
    at = WAL_HEADER + chance.randrange(frames * FRAME)
    return Files(images.crash.main, _flip(wal, at, chance=chance))


def byte_in_wal_header(images: Images, chance: random.Random) -> Files:
    """One byte of the log's header is changed."""
    wal, _ = _log(images)
    at = chance.randrange(WAL_HEADER)
    return Files(images.crash.main, _flip(wal, at, chance=chance))


def wal_run_zeroed(images: Images, chance: random.Random) -> Files:
    """4 KiB of zeros in the valid part of the log."""
    wal, frames = _log(images)
    start = WAL_HEADER + chance.randrange(max(1, frames * FRAME - PAGE))
    return Files(images.crash.main, _fill(wal, start, PAGE))


def _log(images: Images) -> tuple[bytes, int]:
    """Return the log and the number of its frames with the current salts."""
    wal = images.crash.wal or b""
    salts, count = wal[16:24], 0
    while wal[(at := WAL_HEADER + count * FRAME) + 8 : at + 16] == salts:
        count += 1
    return wal, count


DAMAGES: dict[str, Damage] = {
    "file: tail cut off": tail_cut,
    "file: last page half written": half_page,
    "file: 1 byte in a leaf": byte_in("leaf"),
    "file: 1 byte in a leaf's head": byte_in("leaf", 24),
    "file: 1 byte in an overflow page": byte_in("overflow"),
    "file: 1 byte in an interior page": byte_in("internal"),
    "file: 1 byte in an interior's head": byte_in("internal", 24),
    "file: 1 byte in the header": byte_in_header,
    "file: header lost": header_lost,
    "file: header and schema zeroed": first_page_zeroed,
    "file: leaf zeroed": page_zeroed("leaf"),
    "file: interior page zeroed": page_zeroed("internal"),
    "file: 4 KiB zeroed": run_zeroed,
    "file: 64 KiB erased": block_erased,
    "file: 20 bytes anywhere": bytes_anywhere,
    "file: torn page": torn_page,
    "both: checkpoint torn": checkpoint_torn(keeps_wal=True),
    "both: checkpoint torn, log lost": checkpoint_torn(keeps_wal=False),
    "both: header lost beside a log": header_lost_beside_wal,
    "log: lost": wal_lost,
    "log: cut off": wal_cut,
    "log: last frame half written": wal_half_frame,
    "log: 1 byte": byte_in_wal,
    "log: 1 byte in the header": byte_in_wal_header,
    "log: 4 KiB zeroed": wal_run_zeroed,
}

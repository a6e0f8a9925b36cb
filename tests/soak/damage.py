"""Damage to a queue file and its write-ahead log, and the bytes left intact."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
LOG_HEAD_BYTES, FRAME_HEAD_BYTES = 32, 24
FRAME_BYTES = FRAME_HEAD_BYTES + PAGE_BYTES


@dataclass
class Files:
    """The bytes of a queue file and of its write-ahead log."""

    main: bytearray
    log: bytearray

    @classmethod
    def read(cls, path: Path) -> "Files":
        """Read the files that a killed process left."""
        log = Path(f"{path}-wal")
        raw = log.read_bytes() if log.exists() else b""
        return cls(bytearray(path.read_bytes()), bytearray(raw))

    def write(self, path: Path) -> None:
        """Write them where a process will open them."""
        path.write_bytes(self.main)
        Path(f"{path}-wal").write_bytes(self.log)
        Path(f"{path}-shm").unlink(missing_ok=True)

    def copy(self) -> "Files":
        """A copy to be damaged."""
        return Files(bytearray(self.main), bytearray(self.log))


Damage = Callable[[Files, random.Random, list[bytes]], None]


def cut_file(files: Files, chance: random.Random, _texts: list[bytes]) -> None:
    """Truncate the file."""
    del files.main[chance.randrange(1, len(files.main)) :]


def cut_log(files: Files, chance: random.Random, _texts: list[bytes]) -> None:
    """Truncate the log."""
    if files.log:
        del files.log[chance.randrange(len(files.log)) :]


def flip_file(files: Files, chance: random.Random, _texts: list[bytes]) -> None:
    """Flip bits anywhere in the file."""
    _flip(files.main, chance, chance.randint(1, 60))


def flip_log(files: Files, chance: random.Random, _texts: list[bytes]) -> None:
    """Flip bits anywhere in the log."""
    _flip(files.log, chance, chance.randint(1, 10))


def flip_payloads(files: Files, chance: random.Random, texts: list[bytes]) -> None:
    """Flip bits of message payloads, which SQLite cannot detect."""
    for text in chance.sample(texts, min(5, len(texts))):
        at = files.main.find(text)
        if at >= 0:
            files.main[at + chance.randrange(len(text))] ^= 1 << chance.randrange(8)


def move_log_into_file(path: Path) -> None:
    """Move the messages from the log into the file by a checkpoint."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def whole_bytes(before: Files, after: Files) -> bytes:
    """Pages of the file and of the log's commits that are not damaged.

    A row in one of them survived. Frames after the log's last intact commit are left
    out: their recovery is not promised.
    """
    pages = zip(_pages(before.main), _pages(after.main), strict=False)
    frames = list(zip(_frames(before.log), _frames(after.log), strict=False))
    if is_torn(before, after):
        commits = [
            n for n in range(_first_bad(before, after)) if _is_commit(frames[n][0])
        ]
        frames = frames[: commits[-1] + 1] if commits else []
    return b"".join(a for a, b in (*pages, *frames) if a == b)


def is_torn(before: Files, after: Files) -> bool:
    """Whether the log looks as after a power cut: at most its last commit is damaged.

    Then the loss cannot be detected.
    """
    frames = [*zip(_frames(before.log), _frames(after.log), strict=False)]
    rest = frames[_first_bad(before, after) :]
    return (
        before.log != after.log and sum(_is_commit(a) for a, b in rest if a == b) <= 1
    )


def _first_bad(before: Files, after: Files) -> int:
    """Index of the first damaged frame; a damaged header makes all frames invalid."""
    if before.log[:LOG_HEAD_BYTES] != after.log[:LOG_HEAD_BYTES]:
        return 0
    pairs = list(zip(_frames(before.log), _frames(after.log), strict=False))
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))


def _is_commit(frame: bytes) -> bool:
    """Whether a frame ends a commit: its header then holds the file size in pages."""
    return any(frame[4:8])


def _flip(raw: bytearray, chance: random.Random, count: int) -> None:
    for _ in range(count if raw else 0):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)


def _pages(raw: bytearray) -> Iterator[bytes]:
    for start in range(0, len(raw) - PAGE_BYTES + 1, PAGE_BYTES):
        yield bytes(raw[start : start + PAGE_BYTES])


def _frames(raw: bytearray) -> Iterator[bytes]:
    for start in range(LOG_HEAD_BYTES, len(raw) - FRAME_BYTES + 1, FRAME_BYTES):
        yield bytes(raw[start : start + FRAME_BYTES])

"""A file that arrives in pieces, over days and power cuts if need be."""

import hashlib
import os
from pathlib import Path
from typing import Final

SYNC_BYTES: Final = 1 << 20
"""So much of it is on the disk for certain; a power cut costs what is above."""


class PartFile:
    """The bytes so far.

    Args:
        folder: Where it is kept; made if need be.
        sha256: Names it.
        size_bytes: Of the whole.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path, sha256: str, size_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{sha256}.part"
        self._sha256 = sha256
        self._size_bytes = size_bytes
        self._file = self._path.open("ab")
        # What was not synced may be zeros after a power cut.
        self.at = self._file.tell() // SYNC_BYTES * SYNC_BYTES
        self._file.truncate(self.at)

    @property
    def is_whole(self) -> bool:
        """Whether every byte is there; `finish` says whether they are right."""
        return self.at >= self._size_bytes

    def take(self, at: int, data: bytes) -> bool:
        """Append a piece, if it is the next one.

        Raises:
            OSError: It cannot be written.
        """
        if at != self.at or at + len(data) > self._size_bytes:
            return False
        self._file.write(data)
        before, self.at = self.at, at + len(data)
        if before // SYNC_BYTES != self.at // SYNC_BYTES:
            self._sync()
        return True

    def finish(self, to: Path) -> bool:
        """Put the whole in place if it is what was asked for, or begin anew.

        Raises:
            OSError: It cannot be written.
        """
        self._sync()
        with self._path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self._sha256:
            self._file.truncate(0)
            self.at = 0
            return False
        self._file.close()
        self._path.replace(to)
        return True

    def close(self) -> None:
        """Leave it for later."""
        self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

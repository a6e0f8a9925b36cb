"""What hot states follow from: the program, its settings and versions of the tables.

A job keeps the stamp of each finished pass beside the files of its hot states. The next
job uses these files only if it would have made the same ones: its program and settings
are the same, no later pass has been scored, and since then the tables have only had
commits that a job makes between two passes.
"""

import json
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from backend_spark.tables.recovery import DELTA_LOG
from backend_spark.tables.store import Folder, open_table, read_text

HOT_SOURCES: Final = ("silver", "levels", "sensors")
"""Tables that hot states follow from, or whose rows follow from them."""

PACKAGES: Final = ("backend_spark", "slope_science", "spatial_mqtt")
"""Packages whose code decides what a hot state contains."""

USUAL_OPERATIONS: Final = frozenset({"WRITE", "MERGE", "VACUUM START", "VACUUM END"})
"""Operations of a job: batches, a pass that ended early, compaction. A deletion or a
restored version is none of them."""


class HotStamp(msgspec.Struct, frozen=True):
    """What the hot states of a pass follow from.

    Attributes:
        program: Digest of the program.
        settings: Digest of the settings.
        transaction: Name of the transaction in `levels` with the last scored batch.
        batch_id: That batch; None before the first pass.
        commits: Newest version of each table, and the CRC of its commit.
    """

    program: str
    settings: int
    transaction: str
    batch_id: int | None
    commits: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, tables: Folder, transaction: str, settings: int) -> "HotStamp":
        """Stamp of the present tables."""
        opened = {name: open_table(tables / name) for name in HOT_SOURCES}
        versions = {name: table.version() for name, table in opened.items()}
        return cls(
            program_digest(),
            settings,
            transaction,
            opened["levels"].transaction_version(transaction),
            {
                name: (version, _commit_crc(tables / name, version))
                for name, version in versions.items()
            },
        )

    def leads_to(self, now: "HotStamp", tables: Folder) -> bool:
        """Whether hot states of this stamp are those of a job that starts now.

        Args:
            now: Stamp of the present tables.
            tables: Folder of the tables.
        """
        names = ("program", "settings", "transaction", "batch_id")
        return all(getattr(self, name) == getattr(now, name) for name in names) and all(
            _continues(tables / name, self.commits.get(name), now.commits[name][0])
            for name in HOT_SOURCES
        )


@cache
def program_digest() -> str:
    """Digest of the program's code; a new one each time if it cannot be read."""
    crc, count = 0, 0
    for name in PACKAGES:
        folder = Path(import_module(name).__path__[0])
        for file in sorted(folder.rglob("*.py")):
            crc = zlib.crc32(f"{file.relative_to(folder)}\n".encode(), crc)
            crc = zlib.crc32(file.read_bytes(), crc)
            count += 1
    return f"{count} files {crc:08x}" if count else str(uuid4())


def _continues(path: Folder, before: tuple[int, int] | None, newest: int) -> bool:
    """Whether a table has had only usual commits since a version that it still has."""
    if before is None or before[0] > newest:
        return False
    try:
        return _commit_crc(path, before[0]) == before[1] and all(
            _operation(path, version) in USUAL_OPERATIONS
            for version in range(before[0] + 1, newest + 1)
        )
    except FileNotFoundError:
        return False


def _read_commit(path: Folder, version: int) -> str:
    return read_text(path / DELTA_LOG, f"{version:020d}.json")


def _commit_crc(path: Folder, version: int) -> int:
    return zlib.crc32(_read_commit(path, version).encode())


def _operation(path: Folder, version: int) -> str | None:
    """Operation of a commit; None if it has none."""
    actions = map(json.loads, _read_commit(path, version).splitlines())
    found = (each["commitInfo"] for each in actions if "commitInfo" in each)
    return next((str(info.get("operation")) for info in found), None)

"""Files of hot states: a cache beside the tables.

Executors write a file for each share of cells, and read it in the next pass. The job
knows the file of each cell; a file that no cell needs is deleted. An index keeps these
names for the next job. Files are not synced: the name of a file has its CRC, and the
cells of a damaged one have no hot state.

The index has a stamp of what the hot states follow from. The next job uses the files
only if it would have made the same ones: its program and settings are the same, no
later pass has been scored, and since then the tables have only had commits that a job
makes between two passes.
"""

import json
import logging
import shutil
import uuid
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from backend_spark.tables.delta_log import DELTA_LOG
from backend_spark.tables.store import Folder, open_table, read_text
from service_runtime.decoding import DECODE_ERRORS, decode_msgpack
from service_runtime.files import make_folder, write_best_effort

log = logging.getLogger(__name__)

INDEX_FILE: Final = "index"

_SCHEMA = pa.schema([pa.field("cell", pa.string()), pa.field("body", pa.binary())])


def write_hot_states(folder: Path, bodies: Mapping[str, bytes]) -> str:
    """Write encoded hot states by cell; returns the name of the file."""
    rows = pa.table([list(bodies), list(bodies.values())], schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_table(rows)
    data = sink.getvalue()
    file = folder / f"{uuid.uuid4()}-{zlib.crc32(data):08x}.arrow"
    file.write_bytes(data)
    return file.name


def read_hot_states(folder: Path, files: Mapping[str, str]) -> dict[str, pa.Buffer]:
    """Encoded hot states of some cells; none from files that are missing or damaged.

    Args:
        folder: Folder of the files.
        files: File of each cell.
    """
    found: dict[str, pa.Buffer] = {}
    for name in sorted(set(files.values())):
        data = _read_undamaged(folder / name)
        if data is None:
            continue
        rows = pa.ipc.open_file(data).read_all()
        for place, cell in enumerate(rows["cell"].to_pylist()):
            if files.get(cell) == name:
                found[cell] = rows["body"][place].as_buffer()
    return found


def _read_undamaged(file: Path) -> bytes | None:
    """Content of a file that has the CRC of its name; None if it has not."""
    try:
        data = file.read_bytes()
    except OSError as error:
        log.warning("cells are scored from saved states: %s", error)
        return None
    if file.stem.rpartition("-")[2] == f"{zlib.crc32(data):08x}":
        return data
    log.warning("cells are scored from saved states: %s is damaged", file)
    return None


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
    return f"{count} files {crc:08x}" if count else str(uuid.uuid4())


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


class _Index(msgspec.Struct, frozen=True):
    """Files of the last finished pass: the cells of each."""

    stamp: HotStamp
    files: dict[str, list[str]]


class HotFiles:
    """File of the newest hot state of each cell.

    Changes count from the end of a pass: a pass that ends early is repeated from the
    states before it.

    Args:
        folder: Folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, str] = {}
        self._changes: dict[str, str | None] = {}

    def load(self, now: HotStamp, tables: Folder) -> None:
        """Use the files of an earlier job if they still hold, or delete them.

        Args:
            now: Stamp of the present tables.
            tables: Folder of the tables.
        """
        index = self._read_index()
        if index is None or not index.stamp.leads_to(now, tables):
            self.clear()
            return
        self._files = {
            cell: file for file, cells in index.files.items() for cell in cells
        }
        log.info("hot states of %d cells are used again", len(self._files))

    def _read_index(self) -> _Index | None:
        """The index of an earlier job; None if there is none that can be read."""
        try:
            data = (self.folder / INDEX_FILE).read_bytes()
            return decode_msgpack(data, _Index)
        except (OSError, *DECODE_ERRORS):
            return None

    def clear(self) -> None:
        """Delete the files of an earlier job."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._files, self._changes = {}, {}

    def begin(self) -> None:
        """Begin a pass; the changes of one that ended early are discarded."""
        make_folder(self.folder)
        self._changes = {}

    def of_cells(self, cells: Iterable[str]) -> dict[str, str]:
        """Files of those cells that have a hot state."""
        return {cell: self._files[cell] for cell in cells if cell in self._files}

    def __contains__(self, cell: str) -> bool:
        """Whether a cell has a hot state."""
        return cell in self._files

    def change(self, cells: Iterable[str], file: str | None) -> None:
        """Note the file of some cells from the end of the pass; None for no state."""
        self._changes.update(dict.fromkeys(cells, file))

    def end(self, stamp: HotStamp) -> None:
        """End a pass: save the index, and delete the files that no cell needs.

        Args:
            stamp: Stamp of the tables after the pass.
        """
        for cell, file in self._changes.items():
            if file is None:
                self._files.pop(cell, None)
            else:
                self._files[cell] = file
        self._changes = {}
        cells: dict[str, list[str]] = {}
        for cell, file in self._files.items():
            cells.setdefault(file, []).append(cell)
        index = msgspec.msgpack.encode(_Index(stamp, cells))
        write_best_effort(self.folder / INDEX_FILE, index)
        for path in self.folder.iterdir():
            if path.name != INDEX_FILE and path.name not in cells:
                path.unlink()

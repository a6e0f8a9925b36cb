"""Backup of log, tables and console in a folder or an object store, and its restore.

The job and ingest keep running. Each table is copied at one version, whose files never
change, and the versions fit each other (`_pin`). The log is listed after them, so that
it has every message that they lack. No checkpoint is copied: the job continues behind
the offset that bronze has.
"""

import hashlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from deltalake import DeltaTable
from pyarrow import fs

from backend_spark.config import (
    CHECKPOINTS_FOLDER,
    LOG_FOLDER,
    TABLES_FOLDER,
    BackendSection,
)
from backend_spark.console.databases import (
    LOSSES,
    check_integrity,
    find_emptied,
    is_damage,
)
from backend_spark.criteria.cell_rules import APPLIED_FILE
from backend_spark.errors import BackupError
from backend_spark.ingest.segment_log import SegmentName, list_segments
from backend_spark.scoring.reviews import REPORT_FILE
from backend_spark.tables.delta_log import DELTA_LOG
from backend_spark.tables.reader import open_dataset, read_transactions
from backend_spark.tables.schemas import RECEIVED, TABLES
from backend_spark.tables.store import (
    APP_ID_FILE,
    REPLAY_FILE,
    Folder,
    file_names,
    has_file,
    is_table,
    open_files,
    open_table,
    read_text,
    tables_folder,
    write_text,
)
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.files import make_folder

MANIFEST: Final = "backup.json"
"""Lists the files; written last, so that a part is not taken for a whole."""

FORMAT: Final = 1

SESSIONS: Final = "sessions.sqlite"
"""Not in a backup: a session that ended after it would become valid again."""

REPORTS: Final = frozenset({APPLIED_FILE, REPORT_FILE})
"""What the job states that its levels contain."""

PRIVATE: Final = 0o700
"""Of a folder, and with its execute bits off of a file: the accounts and the console's
databases hold secrets, so nobody else may read a backup."""

SHARED: Final = 0o750
"""Of restored log and tables: as under systemd the group reads them."""

COPIES_AT_ONCE: Final = 8
CHUNK_BYTES: Final = 4 << 20
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*parquet")


class StoredTable(msgspec.Struct, frozen=True):
    """A table in a backup.

    Attributes:
        version: Its version.
        rows: Number of rows.
    """

    version: int
    rows: int


class StoredFile(msgspec.Struct, frozen=True):
    """A file in a backup.

    Attributes:
        size_bytes: Its size.
        sha256: Of its content, in hex.
    """

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """Contents of a backup.

    Attributes:
        format: Version of the format.
        begun_at: Time from which messages may be missing in it.
        tables: The tables by name.
        files: The files by their path.
        damaged: What is wrong with the databases that were left out, by their path.
    """

    format: int
    begun_at: datetime
    tables: dict[str, StoredTable]
    files: dict[str, StoredFile]
    damaged: dict[str, str] = {}

    def __str__(self) -> str:
        """One line for the operator."""
        size_mb = sum(each.size_bytes for each in self.files.values()) / 1e6
        rows = self.tables["bronze"].rows if "bronze" in self.tables else 0
        return (
            f"backup of {self.begun_at.isoformat(timespec='seconds')}: "
            f"{len(self.files)} files, {size_mb:.1f} MB, {rows} messages in bronze"
            + "".join(f", without {each} (was damaged)" for each in self.damaged)
        )


@dataclass(frozen=True)
class _Source:
    """A file to copy: its folder and name there, and its path in the backup."""

    folder: Folder
    name: str
    path: str


def write_backup(section: BackendSection, target: Folder, now: datetime) -> Manifest:
    """Write a backup to a new folder or prefix.

    Args:
        section: Place of log and tables.
        target: Folder or prefix without a backup.
        now: The present, with its zone.

    Raises:
        BackupError: The target has a backup, no backend has used the place, or what
            is there cannot be copied. After a damaged database the backup is whole but
            for it.
    """
    tables, data = tables_folder(section), Path(section.data)
    _check_used(tables, data)
    _prepare(target, data)
    if has_file(tables, REPLAY_FILE):
        raise BackupError(str(tables), "whole", "an unfinished replay; finish it first")
    # Earlier reports beside later levels only let the job score again.
    files = _copy((each for each in _data_files(data) if each.name in REPORTS), target)
    pinned = _pin(tables)
    ids = [APP_ID_FILE] if has_file(tables, APP_ID_FILE) else []
    sources = [_Source(tables, name, f"{TABLES_FOLDER}/{name}") for name in ids]
    stored = {name: _stored(tables / name, table) for name, table in pinned.items()}
    # The job deletes commits after half an hour, and files after a day.
    for list_files in (_log_files, _row_files):
        for name, table in pinned.items():
            sources += list_files(tables / name, table)
    files |= _copy(sources, target)
    later = (each for each in _data_files(data) if each.name not in REPORTS)
    files |= _copy(later, target)
    databases, damaged = _copy_databases(data, target)
    files |= databases
    _check_log(target / TABLES_FOLDER, stored, files)
    _check_sizes(target, files)
    manifest = Manifest(FORMAT, now, stored, files, damaged)
    if isinstance(target, Path):
        os.sync()  # before the file that states that the others are whole
    write_text(target, MANIFEST, msgspec.json.encode(manifest).decode())
    _refuse_damaged(damaged, data, target)
    return manifest


def _prepare(target: Folder, data: Path) -> None:
    """Refuse a place that no new backup may have, and make its folder."""
    if isinstance(target, Path):
        if target.resolve().is_relative_to(data.resolve()):
            raise BackupError(str(target), f"outside of {data}", "a folder in it")
        make_folder(target, PRIVATE)
    if has_file(target, MANIFEST):
        raise BackupError(str(target), "without a backup", "one; name a new prefix")


def _refuse_damaged(damaged: Mapping[str, str], data: Path, target: Folder) -> None:
    for path, problem in damaged.items():
        rule, name = "an intact database", path.removeprefix("data/")
        remedy = f"the backup at {target} has everything else"
        raise BackupError(str(data / name), rule, f"{problem}; {remedy}")


def _check_used(tables: Folder, data: Path) -> None:
    """Refuse a place that no backend has used, which a wrong setting names.

    Ingest makes its folder at its first start, with a log in Kafka too.
    """
    is_used = (data / LOG_FOLDER).is_dir()
    if is_used or (data.is_dir() and any(is_table(tables / name) for name in TABLES)):
        return
    rule = f"a folder that ingest or score has used, with {LOG_FOLDER} or tables"
    remedy = "correct it in the settings, or start backend-ingest first if it is new"
    raise BackupError("backend.data", rule, f"{str(data)!r} without them; {remedy}")


def _pin(tables: Folder) -> dict[str, DeltaTable]:
    """Versions of the tables that a job can continue from.

    What is derived is not ahead of bronze: gold is opened before, and of the tables of
    batches the version with the last batch of bronze, or the one before, is taken. This
    is the state after a kill, which the job completes at its start. States of cells are
    opened after the levels: an earlier one may have been revoked.
    """
    order = ["levels", *(name for name in TABLES if name != "levels")]
    later = [name for name in order if name not in RECEIVED]
    names = [name for name in (*later, *RECEIVED) if is_table(tables / name)]
    pinned = {name: open_table(tables / name) for name in names}
    if "bronze" in pinned:
        app_id = read_text(tables, APP_ID_FILE)
        last = _batch(pinned["bronze"], app_id)
        for name in RECEIVED[1:]:
            while name in pinned and _batch(pinned[name], app_id) > last:
                version = pinned[name].version() - 1
                pinned[name] = open_table(tables / name, version)
    return pinned


def _batch(table: DeltaTable, app_id: str) -> int:
    number = table.transaction_version(app_id)
    return -1 if number is None else int(number)


def _stored(folder: Folder, table: DeltaTable) -> StoredTable:
    return StoredTable(table.version(), open_dataset(table, folder).count_rows())


def _log_files(folder: Folder, table: DeltaTable) -> Iterator[_Source]:
    """Commits of a table up to its opened version."""
    path, log = f"{TABLES_FOLDER}/{folder.name}/{DELTA_LOG}", folder / DELTA_LOG
    listed = open_files(log).get_file_info(fs.FileSelector(""))
    names = [info.base_name for info in listed]
    first = max(
        (n for n in _numbers(_CHECKPOINT, names) if n <= table.version()), default=0
    )
    for name in sorted(names):
        checkpoint, commit = _CHECKPOINT.fullmatch(name), _COMMIT.fullmatch(name)
        is_first = checkpoint is not None and int(checkpoint[1]) == first
        is_later = commit is not None and first <= int(commit[1]) <= table.version()
        if is_first or is_later:
            yield _Source(log, name, f"{path}/{name}")


def _row_files(folder: Folder, table: DeltaTable) -> Iterator[_Source]:
    """Files with the rows of a table at its opened version."""
    for name in file_names(table):
        yield _Source(folder, name, f"{TABLES_FOLDER}/{folder.name}/{name}")


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> Iterator[int]:
    return (int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def _data_files(data: Path) -> list[_Source]:
    """Files of the data folder; those of trimmed segments after the segments."""
    left_out = {TABLES_FOLDER, CHECKPOINTS_FOLDER}
    found = []
    for path in sorted(p for p in data.rglob("*") if p.is_file()):
        parts = path.relative_to(data).parts
        is_hidden = any(part.startswith(".") for part in parts)
        is_id_file = parts[0] == LOG_FOLDER and path.name.startswith(".ids-")
        if parts[0] in left_out or (is_hidden and not is_id_file):
            continue
        if ".sqlite" not in path.name:  # nor logs, nor sessions that were set aside
            name = path.relative_to(data).as_posix()
            found.append(_Source(data, name, f"data/{name}"))
    return sorted(found, key=lambda each: "/.ids-" in each.name)


def _copy_databases(
    data: Path, target: Folder
) -> tuple[dict[str, StoredFile], dict[str, str]]:
    """Copy the databases of the console; SQLite copies what is written meanwhile.

    Returns:
        The copies, and what is wrong with damaged ones, by their path in the backup.
    """
    damaged = {}
    with tempfile.TemporaryDirectory() as name:
        sources = []
        paths = [
            path for path in data.glob("console/*.sqlite") if path.name != SESSIONS
        ]
        removed = (data / "console" / name for name in LOSSES)
        paths += [p for p in removed if not p.exists() and find_emptied(p)]
        for path in paths:
            at = f"data/console/{path.name}"
            if problem := _copy_database(path, Path(name) / path.name):
                damaged[at] = problem
            else:
                sources.append(_Source(Path(name), path.name, at))
        return _copy(sources, target), damaged


def _copy_database(path: Path, to: Path) -> str:
    """Copy a database; returns what is wrong with it, empty if nothing is."""
    if problem := find_emptied(path):
        return problem
    try:
        with (
            closing(sqlite3.connect(path)) as live,
            closing(sqlite3.connect(to)) as copy,
        ):
            live.backup(copy)
            # Pages are copied as they are; a damaged one would be found by a restore.
            return check_integrity(copy)
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return str(error)
        rule = "an intact database"
        raise BackupError(str(path), rule, str(error)) from error


def _copy(sources: Iterable[_Source], target: Folder) -> dict[str, StoredFile]:
    """Copy files; a segment that is trimmed meanwhile is left out (`_check_log`)."""

    def copy(source: _Source) -> StoredFile | None:
        try:
            return _copy_file(source, target, source.path, PRIVATE)
        except FileNotFoundError as error:
            if SegmentName.parse(source.path.rpartition("/")[2]) is not None:
                return None
            rule, file = "kept while it is copied", f"{source.folder}/{source.name}"
            raise BackupError(file, rule, "deleted; run it again") from error

    sources = list(sources)
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        stored = pool.map(copy, sources)
        files = {each.path: file for each, file in zip(sources, stored, strict=True)}
    return {path: file for path, file in files.items() if file is not None}


def _copy_file(source: _Source, target: Folder, path: str, mode: int) -> StoredFile:
    """Copy a file; `mode` is that of a folder, as `PRIVATE`."""
    digest, size = hashlib.sha256(), 0
    with open_files(source.folder).open_input_stream(source.name) as stream:
        if isinstance(target, Path):
            make_folder((target / path).parent, mode)
            (target / path).touch(mode & 0o666)  # Arrow would make it with the umask
        with open_files(target).open_output_stream(path) as out:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
    return StoredFile(size, digest.hexdigest())


def _check_sizes(target: Folder, files: Mapping[str, StoredFile]) -> None:
    """Check that the target has the files in full."""
    listed = open_files(target).get_file_info(fs.FileSelector("", recursive=True))
    sizes = {info.path: info.size for info in listed}
    for path, file in files.items():
        if sizes.get(path) != file.size_bytes:
            rule = f"of {file.size_bytes} bytes"
            raise BackupError(f"{target}/{path}", rule, str(sizes.get(path)))


def _check_log(
    tables: Folder, stored: Mapping[str, StoredTable], files: Iterable[str]
) -> None:
    """Check that the log has each segment that bronze lacks.

    Args:
        tables: The copied tables; the commits of the originals may be deleted by now.
        stored: Their versions.
        files: Paths in the backup.

    Raises:
        BackupError: One was deleted meanwhile.
    """
    prefix = f"data/{LOG_FOLDER}/"
    names = [SegmentName.parse(path.removeprefix(prefix)) for path in files]
    streams: dict[str, set[int]] = {}
    for name in names:
        if name is not None:
            streams.setdefault(name.stream, set()).add(name.seq)
    read: Mapping[str, int] = {}
    if "bronze" in stored:
        bronze = open_table(tables / "bronze", stored["bronze"].version)
        read = read_transactions(bronze, streams)
    for stream, numbers in streams.items():
        wanted = range(read.get(stream, -1) + 1, max(numbers) + 1)
        if missing := set(wanted) - numbers:
            first = SegmentName(stream, min(missing))
            rule = "complete behind bronze"
            raise BackupError("the log", rule, f"no {first}; run it again")


def restore_backup(section: BackendSection, source: Folder) -> Manifest:
    """Restore a backup to an empty place, and check every byte and row.

    Args:
        section: Place of log and tables.
        source: Folder or prefix with a backup.

    Raises:
        BackupError: There is no whole backup, the place is not empty, or a file is not
            that of the backup.
    """
    manifest = _read_manifest(source)
    tables, data = tables_folder(section), Path(section.data)
    make_folder(data, SHARED)
    if isinstance(tables, Path):
        make_folder(tables, SHARED)
    _check_empty(tables, data)
    parts = {TABLES_FOLDER: tables, "data": data}

    def restore(path: str) -> None:
        part, _, name = path.partition("/")
        is_shared = part == TABLES_FOLDER or name.startswith(f"{LOG_FOLDER}/")
        mode = SHARED if is_shared else PRIVATE
        wanted = f"the file of the backup, sha256 {manifest.files[path].sha256}"
        try:
            found = _copy_file(_Source(source, path, path), parts[part], name, mode)
        except FileNotFoundError as error:
            raise BackupError(f"{source}/{path}", wanted, "no file") from error
        if found != manifest.files[path]:
            raise BackupError(f"{source}/{path}", wanted, found.sha256)

    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(restore, manifest.files))
    for name, stored in manifest.tables.items():
        found = _stored(tables / name, open_table(tables / name))
        if found != stored:
            raise BackupError(f"{tables}/{name}", f"{stored}", f"{found}")
    os.sync()
    return manifest


def _read_manifest(source: Folder) -> Manifest:
    try:
        text = read_text(source, MANIFEST)
        manifest = decode_json(text, Manifest)
    except FileNotFoundError as error:
        rule = f"a whole backup, with {MANIFEST}"
        raise BackupError(str(source), rule, "none") from error
    except DECODE_ERRORS as error:
        raise BackupError(f"{source}/{MANIFEST}", "intact", str(error)) from error
    if manifest.format != FORMAT:
        rule = f"of format {FORMAT}"
        raise BackupError(str(source), rule, f"{manifest.format}; use its program")
    unsafe = [path for path in manifest.files if not _is_below(path)]
    if unsafe:
        raise BackupError(f"{source}/{MANIFEST}", "of files below it", unsafe[0])
    return manifest


def _is_below(path: str) -> bool:
    """Whether a file stays in the place of its part, whoever wrote the manifest.

    An empty part would make the rest an absolute path.
    """
    part, *names = path.split("/")
    is_known = part in {TABLES_FOLDER, "data"} and bool(names)
    return is_known and {"", ".", ".."}.isdisjoint(names) and "\0" not in path


def _check_empty(tables: Folder, data: Path) -> None:
    found = [str(tables / name) for name in TABLES if is_table(tables / name)]
    found += [str(each) for each in list_segments(data / LOG_FOLDER)]
    # A write-ahead log that a killed console left would damage the restored database.
    found += [str(each) for each in data.glob("console/*.sqlite*")]
    if found:
        remedy = "move all they contain away first"
        raise BackupError(f"{data} and {tables}", "empty", f"{found[0]}; {remedy}")

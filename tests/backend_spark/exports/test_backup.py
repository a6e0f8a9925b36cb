"""Backups of log, tables and console, in a folder and in object stores."""

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from object_stores import run_store
from pyarrow import fs
from storm_log import message

from backend_spark.config import BackendSection
from backend_spark.console.audit_log import Journal
from backend_spark.criteria.cell_rules import APPLIED_FILE
from backend_spark.errors import BackupError
from backend_spark.exports import backup
from backend_spark.exports.backup import (
    MANIFEST,
    Manifest,
    restore_backup,
    write_backup,
)
from backend_spark.ingest.process import IngesterLock
from backend_spark.ingest.segment_log import SegmentWriter, list_segments
from backend_spark.scoring.reviews import REPORT_FILE
from backend_spark.tables import maintenance
from backend_spark.tables.delta_writer import (
    BatchTransaction,
    append_files,
    append_rows,
    create_tables,
    merge_rows,
    write_file,
)
from backend_spark.tables.maintenance import compact, shorten_log
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import (
    LEVEL_KEY,
    LEVELS,
    SPARK_TABLES,
    TABLES,
)
from backend_spark.tables.store import (
    Folder,
    has_file,
    open_files,
    open_table,
    parse_folder,
    read_text,
    tables_folder,
    write_text,
)

NOW = datetime(2026, 7, 2, tzinfo=UTC)
APP = "the-app"
STREAM = "ingest-0.0a"


def add_batch(tables: Folder, batch_id: int, names: tuple[str, ...]) -> None:
    """Commit a batch of one message, which has read one more segment."""
    at = datetime(2026, 7, 1, 0, batch_id, tzinfo=UTC)
    for name in names:
        row = {"node": "n", "boot": "b", "seq": batch_id, "received_at": at}
        rows = pa.Table.from_pylist([row], schema=TABLES[name])
        once = BatchTransaction(APP, batch_id)
        if name == "bronze":
            once = replace(once, offset={STREAM: batch_id})
        part = write_file(tables / name, rows, TABLES[name])
        append_files(tables / name, [part], once)


def fill(section: BackendSection) -> None:
    """Seven segments of which five are in the tables, levels, and the console's."""
    if section.tables is None:
        shutil.copytree(Path(_template().name) / "data", section.data)
    else:
        write_all(section)


@cache
def _template() -> TemporaryDirectory[str]:
    """A filled backend in folders, made once."""
    folder = TemporaryDirectory()
    write_all(BackendSection(data=f"{folder.name}/data"))
    return folder


def write_all(section: BackendSection) -> None:
    """Write what `fill` names."""
    data, tables = Path(section.data), tables_folder(section)
    writer = SegmentWriter(data / "log", STREAM)
    for seq in range(7):
        writer.append([message(seq)])
    (data / "log/.ids-0").write_bytes(b"ids")
    (data / "log/.unfinished-x").write_bytes(b"half")
    create_tables(tables, SPARK_TABLES)
    write_text(tables, ".app_id", APP)
    for batch_id in range(5):
        add_batch(tables, batch_id, ("bronze", "silver", "messages"))
        row = {"cell": "354e18bc", "at": NOW, "level": batch_id}
        levels = pa.Table.from_pylist([row], schema=LEVELS)
        (merge_rows if batch_id else append_rows)(
            tables / "levels", levels, *([LEVEL_KEY] if batch_id else [])
        )
    for name in ("bronze", "levels"):
        compact(tables / name)
        shorten_log(tables / name)
    add_batch(tables, 5, ("bronze", "silver", "messages"))
    (data / "console").mkdir()
    (data / "places.json").write_text("{}")
    for name in ("journal", "sessions"):
        path = data / f"console/{name}.sqlite"
        with closing(sqlite3.connect(path)) as journal, journal:
            journal.execute("PRAGMA journal_mode = wal")
            journal.execute("CREATE TABLE notes AS SELECT 'seen' AS note")
    (data / "console/sessions.sqlite.damaged-1").write_text("digests")


@pytest.fixture(params=["file", "s3", "az"])
def make_place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], str]]:
    """Function that names an empty place: a folder, or a prefix of a store."""
    if request.param == "file":
        yield lambda: str(tmp_path / "place")
        return
    with run_store(request.param, tmp_path / "store.log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server.make_place


@pytest.fixture
def section(tmp_path: Path) -> BackendSection:
    """A backend in folders."""
    return BackendSection(data=str(tmp_path / "data"))


def rows_of(tables: Folder) -> dict[str, tuple[object, ...]]:
    """Id, version, last batch and rows of each table."""
    found = {}
    for name in SPARK_TABLES:
        table = open_table(tables / name)
        rows = DeltaTables(tables).read(name).to_pylist()
        once = (table.transaction_version(APP), table.transaction_version(STREAM))
        found[name] = (
            table.metadata().id,
            table.version(),
            once,
            sorted(map(str, rows)),
        )
    return found


@pytest.mark.parametrize(
    "make_place",
    [
        pytest.param("file", marks=pytest.mark.long),
        "s3",
        pytest.param("az", marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_restored_backend_is_that_of_the_backup(
    make_place: Callable[[], str], section: BackendSection, tmp_path: Path
) -> None:
    """Also where the tables are in a store before, after, or both."""
    place = make_place()
    is_url = "://" in place
    section = replace(section, tables=place if is_url else None)
    fill(section)
    target = parse_folder(f"{place}-backup")
    manifest = write_backup(section, target, NOW)
    before = rows_of(tables_folder(section))
    add_batch(tables_folder(section), 6, ("bronze", "silver", "messages"))
    new = BackendSection(
        data=str(tmp_path / "new"), tables=f"{place}-new" if is_url else None
    )
    assert restore_backup(new, target) == manifest

    assert rows_of(tables_folder(new)) == before
    assert read_text(tables_folder(new), ".app_id") == APP
    data, restored = Path(section.data), Path(new.data)
    assert list_segments(restored / "log") == list_segments(data / "log")
    names = [".ids-0", *map(str, list_segments(data / "log"))]
    for name in names:
        assert (restored / "log" / name).read_bytes() == (
            data / "log" / name
        ).read_bytes()
    with closing(sqlite3.connect(restored / "console/journal.sqlite")) as journal:
        assert journal.execute("SELECT note FROM notes").fetchall() == [("seen",)]
    left = {path.name for path in restored.rglob("*")}
    assert left.isdisjoint({".unfinished-x", MANIFEST})
    assert not [name for name in left if name.startswith("sessions.sqlite")]
    assert "places.json" in left
    add_batch(tables_folder(new), 6, ("bronze", "silver", "messages"))


def test_no_table_is_ahead_of_bronze(section: BackendSection, tmp_path: Path) -> None:
    """What the job commits while the tables are opened is left out."""
    fill(section)
    tables = tables_folder(section)
    add_batch(tables, 6, ("silver",))
    add_batch(tables, 7, ("silver", "messages"))
    merge_rows(
        tables / "silver", DeltaTables(tables).read("silver").slice(0, 1), ["seq"]
    )
    write_backup(section, tmp_path / "backup", NOW)
    restore_backup(BackendSection(data=str(tmp_path / "new")), tmp_path / "backup")
    restored = DeltaTables(tmp_path / "new/tables")

    for name in ("bronze", "silver", "messages"):
        assert sorted(restored.read(name)["seq"].to_pylist()) == list(range(6))
        assert open_table(restored.path(name)).transaction_version(APP) == 5


def act_while_copying(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    """Do something when the first file with rows of a table is copied."""
    real, has_acted = backup.open_files, False

    def open_slowly(folder: Folder) -> fs.FileSystem:
        nonlocal has_acted
        if not has_acted and folder.name in TABLES:
            has_acted = True
            act()
        return real(folder)

    monkeypatch.setattr(backup, "open_files", open_slowly)
    monkeypatch.setattr(backup, "COPIES_AT_ONCE", 1)


def test_versions_of_a_slow_backup_may_leave_the_log(
    section: BackendSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a commit a second the job deletes those of a version after half an hour."""
    fill(section)
    tables = tables_folder(section)
    before = rows_of(tables)

    def go_on() -> None:
        for batch_id in range(6, 9):
            add_batch(tables, batch_id, ("bronze", "silver", "messages"))
        for name in ("bronze", "silver", "messages", "levels"):
            compact(tables / name)
            shorten_log(tables / name)

    monkeypatch.setattr(maintenance, "KEEP_COMMITS", 1)
    act_while_copying(monkeypatch, go_on)
    write_backup(section, tmp_path / "backup", NOW)
    restore_backup(BackendSection(data=str(tmp_path / "new")), tmp_path / "backup")

    assert open_table(tables / "bronze").version() > before["bronze"][1]
    assert rows_of(tmp_path / "new/tables") == before


@pytest.mark.parametrize("name", [REPORT_FILE, APPLIED_FILE])
def test_reports_of_the_job_are_not_ahead_of_the_levels(
    section: BackendSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A review that a restored report states as applied would never be applied."""
    fill(section)
    report = Path(section.data) / name
    report.write_text("before")
    act_while_copying(monkeypatch, lambda: report.write_text("after"))
    manifest = write_backup(section, tmp_path / "backup", NOW)

    assert report.read_text() == "after"
    assert f"data/{name}" in manifest.files
    assert (tmp_path / "backup/data" / name).read_text() == "before"


def modes(place: Path) -> dict[str, str]:
    """Permission bits of a folder and all below it."""
    found = {
        path.relative_to(place).as_posix(): f"{stat.S_IMODE(path.stat().st_mode):o}"
        for path in place.rglob("*")
    }
    return found | {".": f"{stat.S_IMODE(place.stat().st_mode):o}"}


def test_secrets_of_the_console_stay_private(
    section: BackendSection, tmp_path: Path
) -> None:
    """Under the umask of root; the group can read log and tables, as under systemd."""
    before = os.umask(0o022)
    try:
        fill(section)
        (tmp_path / "data/accounts").write_text("second-factor secrets")
        write_backup(section, tmp_path / "new/backup", NOW)
        new = BackendSection(data=str(tmp_path / "other/data"))
        restore_backup(new, tmp_path / "new/backup")
    finally:
        os.umask(before)
    copied, restored = modes(tmp_path / "new/backup"), modes(tmp_path / "other/data")
    segment = str(list_segments(tmp_path / "data/log")[0])

    assert copied["."] == "700"
    assert {mode for name, mode in copied.items() if name.endswith("sqlite")} == {"600"}
    assert copied["data/accounts"] == "600"
    wanted = {".": "750", "accounts": "600", "places.json": "600", "console": "700"}
    wanted |= {"console/journal.sqlite": "600", "log": "750", f"log/{segment}": "640"}
    wanted |= {"tables": "750", "tables/.app_id": "640"}
    assert {name: restored[name] for name in wanted} == wanted
    parquet = {mode for name, mode in restored.items() if name.endswith("parquet")}
    assert parquet == {"640"}
    assert modes(tmp_path / "other")["."] == "755"  # a service enters it


def write(section: BackendSection, place: Path) -> Manifest:
    """Fill a backend and back it up."""
    fill(section)
    return write_backup(section, place, NOW)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "sqlite", "json"])
def test_changed_byte_is_found(
    section: BackendSection, tmp_path: Path, kind: str
) -> None:
    """In a file of any kind; the error names it."""
    place = tmp_path / "backup"
    manifest = write(section, place)
    path = next(path for path in manifest.files if path.endswith(kind))
    content = bytearray((place / path).read_bytes())
    content[len(content) // 2] ^= 1
    (place / path).write_bytes(content)

    with pytest.raises(BackupError, match=f"{path} must be the file of the backup"):
        restore_backup(BackendSection(data=str(tmp_path / "new")), place)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "sqlite"])
def test_missing_file_is_named(
    section: BackendSection, tmp_path: Path, kind: str
) -> None:
    """As a changed one, without a traceback."""
    place = tmp_path / "backup"
    manifest = write(section, place)
    path = next(path for path in manifest.files if path.endswith(kind))
    (place / path).unlink()

    with pytest.raises(BackupError, match=f"{path} must be the file of the .*, got no"):
        restore_backup(BackendSection(data=str(tmp_path / "new")), place)


def test_unfinished_backup_is_none(section: BackendSection, tmp_path: Path) -> None:
    """The manifest is written last; a second backup needs a place of its own."""
    place, new = tmp_path / "backup", BackendSection(data=str(tmp_path / "new"))
    write(section, place)
    with pytest.raises(BackupError, match="must be without a backup"):
        write_backup(section, place, NOW)
    (place / MANIFEST).unlink()

    with pytest.raises(BackupError, match="must be a whole backup"):
        restore_backup(new, place)
    assert not list_segments(tmp_path / "new/log")


def test_nothing_is_overwritten(section: BackendSection, tmp_path: Path) -> None:
    """A restore needs empty places: the old ones are moved away."""
    write(section, tmp_path / "backup")
    for folder in ("log", "tables"):
        shutil.copytree(tmp_path / "data" / folder, tmp_path / folder / folder)
        there = BackendSection(data=str(tmp_path / folder))

        with pytest.raises(BackupError, match=r"must be empty, got .*; move all they"):
            restore_backup(there, tmp_path / "backup")


@pytest.mark.parametrize(
    "left", ["journal.sqlite", "journal.sqlite-wal", "notifications.sqlite"]
)
def test_database_of_the_console_is_not_overwritten(
    section: BackendSection, tmp_path: Path, left: str
) -> None:
    """SQLite would apply a left write-ahead log to the restored file, and damage it."""
    write(section, tmp_path / "backup")
    path = tmp_path / "left/console" / left
    path.parent.mkdir(parents=True)
    path.write_text("decisions since the backup")
    there = BackendSection(data=str(tmp_path / "left"))

    with pytest.raises(BackupError, match=rf"must be empty, got {path}; move all"):
        restore_backup(there, tmp_path / "backup")
    assert [p for p in (tmp_path / "left").rglob("*") if p.is_file()] == [path]
    assert path.read_text() == "decisions since the backup"


def test_missing_segment_stops_a_backup(
    section: BackendSection, tmp_path: Path
) -> None:
    """One that bronze lacks; those before are in the tables."""
    fill(section)
    segments = list_segments(tmp_path / "data/log")
    (tmp_path / "data/log" / str(segments[0])).unlink()
    write_backup(section, tmp_path / "first", NOW)
    (tmp_path / "data/log" / str(segments[6])).rename(tmp_path / "last")
    (tmp_path / "data/log" / str(replace(segments[6], seq=7))).write_bytes(b"later")

    with pytest.raises(BackupError, match=f"no {segments[6]}"):
        write_backup(section, tmp_path / "second", NOW)
    assert not has_file(tmp_path / "second", MANIFEST)


@pytest.mark.parametrize("begin", [0, 4096])
def test_damaged_database_is_named(
    section: BackendSection, tmp_path: Path, begin: int
) -> None:
    """SQLite's own error names no file, and it copies a damaged inner page."""
    fill(section)
    path = Path(section.data) / "console/journal.sqlite"
    sound = path.read_bytes()
    path.write_bytes(sound[:begin] + b"\xff" * 100 + sound[begin + 100 :])
    with pytest.raises(BackupError, match=f"{path} must be an intact database, got"):
        write_backup(section, tmp_path / "backup", NOW)


def test_damaged_database_costs_the_backup_nothing_else(
    section: BackendSection, tmp_path: Path
) -> None:
    """A bad sector below the journal must not end the backups of the messages."""
    fill(section)
    path = Path(section.data) / "console/journal.sqlite"
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 4096)
    with pytest.raises(BackupError, match=r"has everything else"):
        write_backup(section, tmp_path / "backup", NOW)
    place = replace(section, data=str(tmp_path / "restored"))
    manifest = restore_backup(place, tmp_path / "backup")

    assert not list((tmp_path / "restored").rglob("journal.sqlite*"))
    assert manifest.tables["bronze"].rows
    assert "without data/console/journal.sqlite (was damaged)" in str(manifest)


@pytest.mark.parametrize("what", ["emptied", "removed"])
def test_lost_database_is_named_and_its_log_is_kept(
    section: BackendSection, tmp_path: Path, what: str
) -> None:
    """SQLite takes it for a new database, and deletes the log with its content."""
    fill(section)
    path = Path(section.data) / "console/journal.sqlite"
    log = path.with_name("journal.sqlite-wal")
    log.write_bytes(b"decisions")
    path.unlink() if what == "removed" else os.truncate(path, 0)
    with pytest.raises(BackupError, match=f"{path} must be .* has everything else"):
        write_backup(section, tmp_path / "backup", NOW)
    assert log.read_bytes() == b"decisions"
    place = replace(section, data=str(tmp_path / "restored"))
    manifest = restore_backup(place, tmp_path / "backup")
    assert "without data/console/journal.sqlite (was damaged)" in str(manifest)


@pytest.mark.parametrize("what", ["nothing", "folder", "console"])
def test_place_that_no_backend_has_used_is_refused(
    section: BackendSection, tmp_path: Path, what: str
) -> None:
    """With a wrong setting each night's backup would be without a message."""
    if what != "nothing":
        Path(section.data).mkdir()
    if what == "console":  # a report made it, by the same wrong settings
        Journal(Path(section.data) / "console/journal.sqlite")
    with pytest.raises(BackupError, match=r"backend\.data must be .*, got .*; correct"):
        write_backup(section, tmp_path / "backup", NOW)
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("what", ["log", "tables"])
def test_new_backend_is_backed_up(
    section: BackendSection, tmp_path: Path, what: str
) -> None:
    """A nightly timer does not fail while nothing has been received."""
    if what == "log":
        path = Path(section.data) / "log/.lock-ingest-0"
        lock = IngesterLock(path, None, time.monotonic, lambda _s: False)
        lock.acquire(lambda: None)
        lock.release()
    else:
        create_tables(tables_folder(section), SPARK_TABLES)
        write_text(tables_folder(section), ".app_id", APP)
    write_backup(section, tmp_path / "backup", NOW)
    restore_backup(BackendSection(data=str(tmp_path / "new")), tmp_path / "backup")


def test_replayed_tables_are_not_backed_up(
    section: BackendSection, tmp_path: Path
) -> None:
    """While a replay is unfinished they lack levels."""
    fill(section)
    write_text(tables_folder(section), ".replaying", "")

    with pytest.raises(BackupError, match="an unfinished replay"):
        write_backup(section, tmp_path / "backup", NOW)


def test_backup_does_not_contain_itself(section: BackendSection) -> None:
    """A target in the data folder would be copied into itself."""
    fill(section)

    with pytest.raises(BackupError, match="must be outside of"):
        write_backup(section, Path(section.data) / "backup", NOW)


@pytest.mark.attack(
    "a backup whose list names files elsewhere", "folders made anywhere by data//"
)
@pytest.mark.parametrize(
    "name", ["data/../../x", "data/{outside}/x", "data/./x", "data/", "data", "x/y"]
)
def test_files_outside_are_refused(
    section: BackendSection, tmp_path: Path, name: str
) -> None:
    """Whoever can write to the store cannot write elsewhere, nor make a folder."""
    place, outside = tmp_path / "backup", tmp_path / "outside"
    write(section, place)
    name = name.format(outside=outside)
    text = read_text(place, MANIFEST).replace("data/places.json", name)
    write_text(place, MANIFEST, text)

    with pytest.raises(BackupError, match="must be of files below it"):
        restore_backup(BackendSection(data=str(tmp_path / "new")), place)
    assert not outside.exists()


def test_file_that_the_store_shortened_is_found(
    section: BackendSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes are compared before the manifest is written."""
    fill(section)
    place = tmp_path / "backup"
    (place / "data").mkdir(parents=True)
    (place / "data/places.json").symlink_to("/dev/null")

    with pytest.raises(BackupError, match=r"places.json must be of 2 bytes"):
        write_backup(section, place, NOW)
    assert open_files(place).get_file_info(MANIFEST).type.name == "NotFound"

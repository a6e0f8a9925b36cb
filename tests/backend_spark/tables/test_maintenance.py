"""Maintenance of tables: sorted compacted files, and a bounded Delta log."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from backend_spark.errors import SupersededError
from backend_spark.tables import delta_writer, maintenance
from backend_spark.tables.delta_writer import (
    TABLE_PROPERTIES,
    BatchTransaction,
    append_files,
    create_tables,
    merge_rows,
    update_flags,
    write_file,
)
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import FLAGS, LEVELS, SILVER
from backend_spark.tables.store import file_names, open_table

CELLS = ("a", "b", "c", "d")


def append(path: Path, batch_id: int) -> None:
    """A batch with a reading of every cell."""
    rows = [{"cell": cell, "at": batch_id, "seq": batch_id} for cell in CELLS]
    part = write_file(path, pa.Table.from_pylist(rows, schema=SILVER), SILVER)
    append_files(path, [part], BatchTransaction("app", batch_id))


@pytest.fixture
def silver(tmp_path: Path) -> Path:
    """An empty table."""
    create_tables(tmp_path, ["silver"])
    return tmp_path / "silver"


def test_compaction_sorts_readings_by_cell(
    silver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of one cell reads only the row groups of that cell."""
    for batch_id in range(8):
        append(silver, batch_id)
    monkeypatch.setattr(delta_writer, "ROW_GROUP_ROWS", 8)
    maintenance.compact(silver)
    [file] = DeltaTable(str(silver)).file_uris()
    groups = pq.ParquetFile(file)
    cells = [groups.read_row_group(n)["cell"].to_pylist() for n in range(4)]

    assert cells == [[cell] * 8 for cell in CELLS]
    assert groups.read_row_group(2)["seq"].to_pylist() == list(range(8))


def test_compaction_skips_files_that_are_large_enough(silver: Path) -> None:
    """Otherwise the same rows would be rewritten each time."""
    for batch_id in range(4):
        append(silver, batch_id)
    size = max(file.stat().st_size for file in silver.glob("*.parquet"))
    maintenance.compact(silver, min_whole_bytes=2 * size)
    first = set(DeltaTable(str(silver)).file_uris())
    maintenance.compact(silver, min_whole_bytes=size // 2)

    assert len(first) == 2
    assert set(DeltaTable(str(silver)).file_uris()) == first
    assert DeltaTables(silver.parent).silver().num_rows == 16


def test_compaction_reads_files_written_by_merges(tmp_path: Path) -> None:
    """delta-rs merges with other Arrow types; rows and lists stay equal."""
    create_tables(tmp_path, ["levels"])
    path = tmp_path / "levels"
    for level in range(3):
        rows = [
            {"cell": cell, "at": 1, "level": level, "reasons": ["x", cell]}
            for cell in CELLS[: level + 2]
        ]
        merge_rows(path, pa.Table.from_pylist(rows, LEVELS), ("cell", "at"))
        extra = [{"cell": "z", "at": level}]
        write_deltalake(path, pa.Table.from_pylist(extra, LEVELS), mode="append")
    before = DeltaTables(tmp_path).levels().sort_by([("cell", "ascending")])
    maintenance.compact(path)
    after = DeltaTables(tmp_path).levels().sort_by([("cell", "ascending")])

    assert len(DeltaTable(str(path)).file_uris()) == 1
    assert after.sort_by("at").to_pylist() == before.sort_by("at").to_pylist()


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (maintenance, "write_file", SupersededError),
        (delta_writer, "file_names", CommitFailedError),
    ],
)
def test_job_that_was_suspended_in_a_compaction_doubles_no_row(
    silver: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    error: type[Exception],
) -> None:
    """Before or within its commit: another job has taken over and compacts first."""
    for batch_id in range(2):
        append(silver, batch_id)
    call: Callable[..., object] = getattr(module, name)

    def call_late(*args: object) -> object:
        result = call(*args)
        monkeypatch.setattr(module, name, call)
        # The locks of a process do not hold for another one.
        monkeypatch.setattr(delta_writer, "_COMMIT_LOCKS", defaultdict(Lock))
        maintenance.compact(silver)
        return result

    monkeypatch.setattr(module, name, call_late)
    with pytest.raises(error):
        maintenance.compact(silver)

    assert DeltaTables(silver.parent).silver().num_rows == 2 * len(CELLS)


def test_flags_of_files_that_another_job_compacted_are_refused(silver: Path) -> None:
    """Else the rows would be in the compacted file and in the one with the flags."""
    for batch_id in range(2):
        append(silver, batch_id)
    file = file_names(open_table(silver))[0]
    flag = {"file": file, "row": 0, "flag": 4, "flag_why": "spike"}
    maintenance.compact(silver)
    with pytest.raises(SupersededError, match="claimed by another job"):
        update_flags(silver, pa.Table.from_pylist([flag], FLAGS))

    assert DeltaTables(silver.parent).silver().num_rows == 2 * len(CELLS)


def test_log_keeps_the_newest_commits_and_all_rows(
    silver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length is bounded, and the kept versions can be read."""
    monkeypatch.setattr(maintenance, "KEEP_COMMITS", 20)
    monkeypatch.setattr(maintenance, "COMPACT_EVERY", 10)
    log = silver / "_delta_log"
    lengths = []
    for batch_id in range(80):
        append(silver, batch_id)
        maintenance.maintain_tables([silver], batch_id)
        lengths.append(len(list(log.glob("*.json"))))
    newest = DeltaTable(str(silver)).version()
    old = DeltaTable(str(silver), version=newest - 19)

    assert max(lengths) <= 20 + 2 * 10 + 2
    assert DeltaTables(silver.parent).silver().num_rows == 80 * 4
    assert len(old.file_uris()) > 0
    assert DeltaTable(str(silver)).transaction_version("app") == 79


def test_table_of_an_earlier_version_gets_the_current_properties(
    tmp_path: Path,
) -> None:
    """Otherwise delta-rs removes commits before their checkpoint is synced."""
    path = tmp_path / "silver"
    path.mkdir()
    earlier = {"delta.logRetentionDuration": "interval 7 days"}
    DeltaTable.create(str(path), SILVER, configuration=earlier)
    create_tables(tmp_path, ["silver"])
    configuration = DeltaTable(str(path)).metadata().configuration

    assert {name: configuration[name] for name in TABLE_PROPERTIES} == TABLE_PROPERTIES

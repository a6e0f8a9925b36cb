"""The Delta writer and the history reader on real tables, without a JVM."""

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction

from backend_spark.tables.delta_log import statistics_of
from backend_spark.tables.delta_writer import (
    BatchTransaction,
    DataFile,
    append_files,
    append_rows,
    commit_lock,
    create_tables,
    merge_rows,
    write_file,
)
from backend_spark.tables.maintenance import COMPACT_EVERY, compact, maintain_tables
from backend_spark.tables.reader import HISTORY_SCHEMA, CellRowReader, DeltaTables
from backend_spark.tables.schemas import ALERTS, LEVELS, SILVER, SPARK_TABLES, TABLES


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Empty tables."""
    create_tables(tmp_path, SPARK_TABLES)
    return tmp_path


def silver(cell: str | None, *at_us: int) -> pa.RecordBatch:
    """Readings of a cell."""
    rows = [{"cell": cell, "at": at, "node": "n", "name": "rain"} for at in at_us]
    return pa.RecordBatch.from_pylist(rows, schema=SILVER)


def append(tables: Path, batch_id: int, *batches: pa.RecordBatch) -> None:
    """Append to silver as the job does, one file per batch of rows."""
    append_files(
        tables / "silver", parts(tables, *batches), BatchTransaction("app", batch_id)
    )


def parts(tables: Path, *batches: pa.RecordBatch) -> list[DataFile]:
    """Files of silver that are not committed yet."""
    return [
        write_file(tables / "silver", pa.Table.from_batches([batch]), SILVER)
        for batch in batches
        if batch.num_rows
    ]


def levels(level: int, *at_us: int) -> pa.Table:
    """Scored rows of one cell."""
    rows = [{"cell": "a", "at": at, "level": level, "reasons": []} for at in at_us]
    return pa.Table.from_pylist(rows, schema=LEVELS)


def test_batch_committed_twice_is_stored_once(tables: Path) -> None:
    """The second commit changes nothing; a task without rows writes no file."""
    for _ in range(2):
        append(tables, 0, silver("a", 1, 2), silver("b", 3), silver("c"))
    table = DeltaTable(str(tables / "silver"))

    assert DeltaTables(tables).silver().num_rows == 3
    assert len(table.file_uris()) == 2
    assert table.transaction_version("app") == 0


def test_table_of_an_earlier_version_gets_new_columns(
    tmp_path: Path,
) -> None:
    """Its rows stay, with null in the new column."""
    older = pa.schema([field for field in SILVER if field.name != "age_s"])
    (tmp_path / "silver").mkdir()
    DeltaTable.create(str(tmp_path / "silver"), older)
    write_deltalake(
        str(tmp_path / "silver"),
        pa.Table.from_pylist([{"cell": "a", "at": 1}], schema=older),
        mode="append",
    )
    create_tables(tmp_path, SPARK_TABLES)
    append(tmp_path, 0, silver("a", 2))

    rows = DeltaTables(tmp_path).silver()
    assert rows.num_rows == 2
    assert rows["age_s"].to_pylist() == [None, None]


@pytest.mark.parametrize(("name", "schema"), [("levels", LEVELS), ("alerts", ALERTS)])
def test_table_without_reason_codes_is_read_and_appended_to(
    tmp_path: Path, name: str, schema: pa.Schema
) -> None:
    """Readers work before the column is added."""
    older = pa.schema([field for field in schema if field.name != "reason_codes"])
    path = tmp_path / name
    path.mkdir()
    DeltaTable.create(str(path), older)
    old = pa.Table.from_pylist([{"cell": "a", "at": 1}], schema=older)
    write_deltalake(str(path), old, mode="append")

    assert DeltaTables(tmp_path).read(name, ["reason_codes"]).to_pylist() == [
        {"reason_codes": None}
    ]
    create_tables(tmp_path, [name])
    new = {"cell": "a", "at": 2, "reason_codes": ['["frost",-2]']}
    part = write_file(path, pa.Table.from_pylist([new], schema=schema), schema)
    append_files(path, [part], BatchTransaction("app", 0))

    rows = DeltaTables(tmp_path).read(name).sort_by("at")
    assert rows["reason_codes"].to_pylist() == [None, ['["frost",-2]']]
    assert DeltaTables(tmp_path).of(name, "cell", "a").num_rows == 2


def test_new_checkpoint_starts_at_batch_zero(tables: Path) -> None:
    """With another app id, batch 0 is not the batch 0 of the old checkpoint."""
    append(tables, 5, silver("a", 1))
    other = parts(tables, silver("a", 2))
    append_files(tables / "silver", other, BatchTransaction("other", 0))

    assert DeltaTables(tables).silver().num_rows == 2


def test_second_driver_with_a_stale_table_is_rejected(tables: Path) -> None:
    """A driver that was replaced cannot commit a batch that is already committed."""
    path = tables / "silver"
    stale = DeltaTable(str(path))
    append(tables, 0, silver("a", 1))
    again = [part.add_action() for part in parts(tables, silver("a", 1))]
    done = BatchTransaction("app", 0).commit_properties(stale)
    with pytest.raises(CommitFailedError, match=r"(?i)transaction"):
        stale.create_write_transaction(
            again, "append", stale.schema(), commit_properties=done
        )


def test_batch_is_committed_while_a_pass_rewrites_files(tables: Path) -> None:
    """The pass changes flags in silver, and removes the files with the old ones."""
    path = tables / "silver"
    append(tables, 0, silver("a", 1))
    (old,) = parts(tables, silver("a", 1))
    (file,) = DeltaTables(tables).dataset("silver").files
    new = parts(tables, silver("a", 2))
    with commit_lock(path):
        batch = Thread(
            target=append_files, args=(path, new, BatchTransaction("app", 1))
        )
        batch.start()
        time.sleep(0.5)  # it waits for the lock
        table = DeltaTable(str(path))
        changes = [old.add_action(), RemoveAction(Path(file).name, True, 0)]
        table.create_write_transaction(changes, "append", table.schema())
    batch.join()

    assert sorted(DeltaTables(tables).silver()["at"].cast(pa.int64()).to_pylist()) == [
        1,
        2,
    ]
    assert BatchTransaction("app", 1).is_committed(DeltaTable(str(path)))


def test_merge_replaces_rows_of_the_same_key(tables: Path) -> None:
    """(cell, at) stays unique."""
    path = tables / "levels"
    merge_rows(path, levels(1, 600, 1200), ("cell", "at"))
    for _ in range(2):
        merge_rows(path, levels(4, 1200, 1800), ("cell", "at"))
    table = DeltaTables(tables).levels().sort_by("at")

    assert table["level"].to_pylist() == [1, 4, 4]


def test_statistics_enclose_every_row() -> None:
    """Times are stored in milliseconds, so the maximum is rounded up."""
    statistics = statistics_of(pa.Table.from_batches([silver("a", 1_000_001)]))

    assert statistics["numRecords"] == 1
    texts = {"cell": "a", "node": "n", "name": "rain"}
    assert statistics["minValues"] == {**texts, "at": "1970-01-01T00:00:01.000Z"}
    assert statistics["maxValues"] == {**texts, "at": "1970-01-01T00:00:01.001Z"}


def test_statistics_enclose_long_texts_and_infinite_numbers() -> None:
    """Texts are cut at the lower end, and raised at the upper end; JSON has no inf."""
    rows = pa.table({
        "node": ["谷" * 33, "谷" * 32],
        "value": [float("nan"), float("-inf")],
        "is_set": [True, None],
    })
    statistics = statistics_of(rows)
    low, high = statistics["minValues"], statistics["maxValues"]

    assert low["node"] == "谷" * 32
    assert high["node"] > "谷" * 33
    assert (low["value"], high["value"]) == (-sys.float_info.max, sys.float_info.max)
    assert (low["is_set"], high["is_set"]) == (True, True)
    assert statistics["nullCount"] == {"node": 0, "value": 0, "is_set": 1}


def make_value(kind: pa.DataType, number: int) -> object:
    """Value of a type; of two numbers the values differ."""
    if pa.types.is_boolean(kind):
        return bool(number % 2)
    if pa.types.is_timestamp(kind):
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    if pa.types.is_string(kind):
        return f"text {number}" + "." * 40
    return number if pa.types.is_integer(kind) else number + 0.5


@pytest.mark.parametrize("name", TABLES)
def test_other_readers_can_filter_by_any_column(tmp_path: Path, name: str) -> None:
    """As pandas and DuckDB do by delta-rs, also after a merge and a compaction."""
    create_tables(tmp_path, [name])
    path, schema = tmp_path / name, TABLES[name]
    columns = [field for field in schema if not pa.types.is_nested(field.type)]
    columns = [field for field in columns if not pa.types.is_binary(field.type)]
    rows = [{c.name: make_value(c.type, number) for c in columns} for number in (0, 1)]
    rows.append({})  # nulls

    def assert_each_value_is_found() -> None:
        dataset = DeltaTable(str(path)).to_pyarrow_dataset()
        for each in columns:
            found = dataset.filter(pc.field(each.name) == rows[1][each.name])
            assert found.count_rows() == 1, each.name

    append_rows(path, pa.Table.from_pylist(rows, schema))
    assert_each_value_is_found()
    key = next(each.name for each in columns if not pa.types.is_boolean(each.type))
    merge_rows(path, pa.Table.from_pylist(rows[1:2], schema), [key])
    assert_each_value_is_found()
    append_rows(path, pa.Table.from_pylist(rows[:1], schema))
    compact(path)
    assert_each_value_is_found()


def test_history_reads_only_files_that_may_hold_a_cell(tables: Path) -> None:
    """Files of other cells or with only older rows are skipped; rows are filtered."""
    append(tables, 0, silver("a", 10), silver("b", 20))
    append(tables, 1, silver("a", 5_000_000), silver("c", 5_000_000))
    append(tables, 2, silver(None, 5_000_000))
    reader = CellRowReader(tables / "silver", HISTORY_SCHEMA, ["a"], 1_000_000)
    opened = reader.list_files()
    rows = reader.read(opened)

    assert len(opened) <= 2
    assert rows.select(HISTORY_SCHEMA.names).schema == HISTORY_SCHEMA
    assert rows["at"].to_pylist() == [datetime.fromtimestamp(5, UTC)]


def test_compaction_merges_small_files_and_keeps_all_rows(tables: Path) -> None:
    """After `COMPACT_EVERY` batches one file is left; the batch ids are kept."""
    for batch_id in range(4):
        append(tables, batch_id, silver("a", batch_id))
    maintain_tables([tables / "silver"], 3)
    many = len(DeltaTable(str(tables / "silver")).file_uris())
    maintain_tables([tables / "silver"], COMPACT_EVERY - 1)
    reader = CellRowReader(tables / "silver", HISTORY_SCHEMA, ["a"], 0)
    history = reader.read(reader.list_files())
    table = DeltaTable(str(tables / "silver"))

    assert (many, len(table.file_uris())) == (4, 1)
    assert DeltaTables(tables).silver().num_rows == 4
    assert table.transaction_version("app") == 3
    assert history.num_rows == 4, "the compacted file, too"


def test_merged_rows_are_in_small_row_groups(tables: Path) -> None:
    """The unit that a reader of one cell reads, also in a file that a merge wrote."""
    rows = [{"cell": f"{n:05d}", "at": 0, "level": 1} for n in range(20_000)]
    append_rows(tables / "levels", pa.Table.from_pylist(rows, schema=LEVELS))
    change = pa.Table.from_pylist([rows[7] | {"level": 2}], schema=LEVELS)
    merge_rows(tables / "levels", change, ("cell", "at"))
    (file,) = DeltaTable(str(tables / "levels")).file_uris()
    groups = pq.ParquetFile(file).metadata

    assert groups.num_rows == 20_000
    assert groups.num_row_groups == 2

"""Power is cut while tables are written: what counts as written is there, once."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import powercut
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from sizes import sizes

from backend_spark.streaming.session import repair_checkpoint as mend_checkpoint
from backend_spark.streaming.session import sync_plan
from backend_spark.tables.delta_writer import (
    BatchTransaction,
    append_files,
    create_tables,
    merge_rows,
    write_file,
)
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.recovery import recover_table
from backend_spark.tables.schemas import LEVELS, SILVER

DEATHS = sizes(range(81, 85), range(1, 150))
"""Before which fsync the writer dies: one after another, so that none is passed by."""

WRITER = """
import itertools, os, sys
from pathlib import Path
import pyarrow as pa
from backend_spark.tables.schemas import LEVELS, SILVER
from backend_spark.tables import maintenance
from backend_spark.tables.delta_writer import (
    BatchTransaction, append_files, delete_rows, create_tables, merge_rows,
)
from backend_spark.tables.delta_writer import write_file

maintenance.COMPACT_EVERY, maintenance.VACUUM_EVERY, maintenance.KEEP_COMMITS = 3, 4, 5
tables, told, first = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
create_tables(tables, ["silver", "levels"])
silver, levels = tables / "silver", tables / "levels"
for n in itertools.count(first):
    row = {"cell": "a", "at": n, "received_at": n, "node": "n", "seq": n}
    parts = [write_file(silver, pa.Table.from_pylist([row], SILVER), SILVER)]
    append_files(silver, parts, BatchTransaction("app", n))
    rows = [{"cell": "a", "at": at, "level": n} for at in (n, n + 1)]
    merge_rows(levels, pa.Table.from_pylist(rows, LEVELS), ("cell", "at"))
    maintenance.maintain_tables([silver, levels], n)
    if n % 5 == 4:
        delete_rows(levels, "level = -1")
    with told.open("a") as file:
        file.write(f"{n}\\n")
"""
"""Batch after batch, as the job writes them; what is done is told elsewhere."""


def numbers(told: Path) -> list[int]:
    """Batches that the writer was done with."""
    lines = told.read_text().split("\n")[:-1] if told.exists() else []
    return [int(line) for line in lines]


def a_row(seq: int) -> pa.Table:
    """A reading."""
    row = {"cell": "a", "at": seq, "received_at": seq, "node": "n", "seq": seq}
    return pa.Table.from_pylist([row], schema=SILVER)


def write_until(tmp_path: Path, dies_at: int) -> None:
    """Write until a syncing, which dies; with ever more of them a table gets on."""
    names = [str(tmp_path / name) for name in ("store", "root")]
    told, tables = tmp_path / "told", tmp_path / "root/new/tables"
    more = [str(tables), str(told), str(len(numbers(told)))]
    done = subprocess.run(
        [sys.executable, "-m", "powercut", *names, "writer", *more],
        env=os.environ | {powercut.DIES_AT: str(dies_at)},
        check=False,
    )

    assert done.returncode == -signal.SIGKILL


def check(tables: Path, done: int) -> None:
    """Every batch that was done is there once, and at most one that was not."""
    seqs = Counter(DeltaTables(tables).silver()["seq"].to_pylist())
    levels = DeltaTables(tables).levels()
    at = levels["at"].cast(pa.int64()).to_pylist()
    level_at = dict(zip(at, levels["level"].to_pylist(), strict=True))

    assert all(count == 1 for count in seqs.values()), seqs
    assert set(range(done)) <= seqs.keys() <= set(range(done + 1))
    assert len(level_at) == levels.num_rows
    assert all(level_at[n] >= n for n in range(done))


@pytest.mark.parametrize("deaths", DEATHS)
@pytest.mark.parametrize("keeps_names", [False, True])
def test_power_cut_leaves_every_batch_that_was_done_and_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: range, *, keeps_names: bool
) -> None:
    """Appends, merges, compactions and deletes; the next writer opens the tables."""
    (tmp_path / "writer.py").write_text(WRITER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    root, told = tmp_path / "root", tmp_path / "told"
    root.mkdir()
    for dies_at in deaths:
        write_until(tmp_path, dies_at)
        powercut.cut(tmp_path / "store", root, keeps_names=keeps_names)
        create_tables(root / "new/tables", ["silver", "levels"])
        done = len(numbers(told))

        assert numbers(told) == list(range(done))
        check(root / "new/tables", done)
    assert done >= 2


def test_what_is_torn_is_put_aside_and_the_batch_is_not_done(tmp_path: Path) -> None:
    """An empty commit, one whose file is not whole, a checkpoint and its hint."""
    create_tables(tmp_path, ["silver"])
    path = tmp_path / "silver"
    log = path / "_delta_log"
    for batch_id in range(3):
        append_files(path, [write_file(path, a_row(batch_id), SILVER)],
                     BatchTransaction("app", batch_id))  # fmt: skip
    lost = write_file(path, a_row(3), SILVER)
    append_files(path, [lost], BatchTransaction("app", 3))
    DeltaTable(str(path)).create_checkpoint()
    os.truncate(path / lost.file, 0)
    os.truncate(log / f"{4:020d}.checkpoint.parquet", 100)
    (log / f"{5:020d}.json").touch()
    create_tables(tmp_path, ["silver"])
    table = DeltaTable(str(path))

    assert sorted(p.name for p in log.glob("*.torn")) == [
        f"{4:020d}.checkpoint.parquet.torn",
        f"{4:020d}.json.torn",
        f"{5:020d}.json.torn",
        "_last_checkpoint.torn",
    ]
    assert (table.version(), table.transaction_version("app")) == (3, 2)
    assert sorted(DeltaTables(tmp_path).silver()["seq"].to_pylist()) == [0, 1, 2]


def test_whole_table_is_left_alone(tmp_path: Path) -> None:
    """Also when `vacuum` took the file of a late commit that a later one removed."""
    create_tables(tmp_path, ["levels"])
    path = tmp_path / "levels"
    for level in range(3):
        rows = pa.Table.from_pylist([{"cell": "a", "at": 1, "level": level}], LEVELS)
        merge_rows(path, rows, ("cell", "at"))
    DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)

    assert len(list(path.glob("*.parquet"))) == 1
    assert recover_table(path) == []


def test_table_whose_first_commit_is_torn_is_made_anew(tmp_path: Path) -> None:
    """Nobody had written to it."""
    log = tmp_path / "silver" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").touch()
    create_tables(tmp_path, ["silver"])

    assert DeltaTables(tmp_path).silver().num_rows == 0


def plan(folder: Path, name: str, text: str) -> Path:
    """A file of a checkpoint, with a checksum."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_name(f".{path.name}.crc").write_text("crc")
    return path


def test_torn_end_of_a_checkpoint_is_removed(tmp_path: Path) -> None:
    """The plan and the end that are whole stay, and what is before them."""
    told = json.dumps({"i.0a": 4})
    for number in (8, 9, 10):
        plan(tmp_path, f"offsets/{number}", f"v1\n{{}}\n{told}")
        plan(tmp_path, f"commits/{number}", f"v1\n{told}")
    plan(tmp_path, "metadata", told)
    plan(tmp_path, "offsets/11", "v1\n{}\n" + told[:4])
    plan(tmp_path, "commits/10", "")
    removed = mend_checkpoint(tmp_path)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("[0-9]*"))

    assert [path.name for path in removed] == ["11", "10"]
    assert left == ["commits/8", "commits/9", "offsets/10", "offsets/8", "offsets/9"]
    assert (tmp_path / "metadata").exists()
    assert mend_checkpoint(tmp_path) == []


def test_torn_metadata_goes_only_before_the_first_batch(tmp_path: Path) -> None:
    """Later it is damage, which is for a person: batches would be planned anew."""
    for name in ("young", "old"):
        plan(tmp_path / name, "metadata", "")
        plan(tmp_path / name, "offsets/0", 'v1\n{}\n{"i.0a": 4}')
    plan(tmp_path / "old", "commits/0", 'v1\n{"a": 1}')
    mend_checkpoint(tmp_path / "young")
    mend_checkpoint(tmp_path / "old")

    assert not (tmp_path / "young" / "metadata").exists()
    assert not (tmp_path / "young" / "offsets" / "0").exists()
    assert (tmp_path / "old" / "metadata").exists()


@pytest.mark.parametrize("keeps_names", [False, True])
def test_plan_of_a_batch_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keeps_names: bool
) -> None:
    """Once it is kept; the next one, which is not, does not count."""
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    recorder = powercut.Recorder(store)
    monkeypatch.setattr(os, "fsync", recorder)
    told = 'v1\n{}\n{"i.0a": 4}'
    plan(root, "metadata", "{}")
    plan(root, "offsets/0", told)
    recorder.keep_all(root)
    plan(root, "offsets/1", told)
    sync_plan(root, 1)
    plan(root, "offsets/2", told)
    monkeypatch.undo()
    powercut.cut(store, root, keeps_names=keeps_names)
    mend_checkpoint(root)
    left = {p.name: p.read_text() for p in (root / "offsets").glob("[0-9]*")}

    assert left == {"0": told, "1": told}

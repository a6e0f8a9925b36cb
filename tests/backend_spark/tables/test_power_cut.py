"""Power cuts while tables are written: each committed batch is there once."""

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

from backend_spark.streaming.checkpoint import repair_checkpoint, sync_plan
from backend_spark.tables.delta_log import recover_table
from backend_spark.tables.delta_writer import (
    BatchTransaction,
    append_files,
    create_tables,
    merge_rows,
    write_file,
)
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, SILVER

DEATHS = sizes(range(81, 85), range(1, 150))
"""Numbers of the fsync before which the writer is killed."""

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
tables, done_file, first = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
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
    with done_file.open("a") as file:
        file.write(f"{n}\\n")
"""
"""Writes batches as the job does, and the finished numbers to another file."""


def finished_batches(done_file: Path) -> list[int]:
    """Numbers of the batches that the writer finished."""
    lines = done_file.read_text().split("\n")[:-1] if done_file.exists() else []
    return [int(line) for line in lines]


def make_row(seq: int) -> pa.Table:
    """A reading."""
    row = {"cell": "a", "at": seq, "received_at": seq, "node": "n", "seq": seq}
    return pa.Table.from_pylist([row], schema=SILVER)


def write_until(tmp_path: Path, dies_at: int) -> None:
    """Write until the process is killed before fsync number `dies_at`."""
    names = [str(tmp_path / name) for name in ("store", "root")]
    done_file, tables = tmp_path / "done", tmp_path / "root/new/tables"
    more = [str(tables), str(done_file), str(len(finished_batches(done_file)))]
    done = subprocess.run(
        [sys.executable, "-m", "powercut", *names, "writer", *more],
        env=os.environ | {powercut.DIES_AT: str(dies_at)},
        check=False,
    )

    assert done.returncode == -signal.SIGKILL


def check(tables: Path, done: int) -> None:
    """Assert that each finished batch is there once, and at most one unfinished."""
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
def test_power_cut_keeps_each_finished_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: range, *, keeps_names: bool
) -> None:
    """With appends, merges, compactions and deletes; the next writer recovers them."""
    (tmp_path / "writer.py").write_text(WRITER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    root, done_file = tmp_path / "root", tmp_path / "done"
    root.mkdir()
    for dies_at in deaths:
        write_until(tmp_path, dies_at)
        powercut.cut(tmp_path / "store", root, keeps_names=keeps_names)
        create_tables(root / "new/tables", ["silver", "levels"])
        done = len(finished_batches(done_file))

        assert finished_batches(done_file) == list(range(done))
        check(root / "new/tables", done)
    assert done >= 2


@pytest.mark.parametrize("checkpoint_bytes", [100, None])
def test_torn_files_are_set_aside_and_the_batch_is_not_committed(
    tmp_path: Path, checkpoint_bytes: int | None
) -> None:
    """An empty commit, one with a truncated data file, its checkpoint and the hint.

    The checkpoint goes, too, when it is complete: it names the truncated file.
    """
    create_tables(tmp_path, ["silver"])
    path = tmp_path / "silver"
    log = path / "_delta_log"
    for batch_id in range(3):
        append_files(path, [write_file(path, make_row(batch_id), SILVER)],
                     BatchTransaction("app", batch_id))  # fmt: skip
    lost = write_file(path, make_row(3), SILVER)
    append_files(path, [lost], BatchTransaction("app", 3))
    DeltaTable(str(path)).create_checkpoint()
    os.truncate(path / lost.file, 0)
    if checkpoint_bytes is not None:
        os.truncate(log / f"{4:020d}.checkpoint.parquet", checkpoint_bytes)
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


def test_undamaged_table_is_not_changed(tmp_path: Path) -> None:
    """Also if `vacuum` deleted a file that a later commit had removed."""
    create_tables(tmp_path, ["levels"])
    path = tmp_path / "levels"
    for level in range(3):
        rows = pa.Table.from_pylist([{"cell": "a", "at": 1, "level": level}], LEVELS)
        merge_rows(path, rows, ("cell", "at"))
    DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)

    assert len(list(path.glob("*.parquet"))) == 1
    assert recover_table(path) == []


def test_table_with_a_torn_first_commit_is_created_again(tmp_path: Path) -> None:
    """It has no rows yet."""
    log = tmp_path / "silver" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").touch()
    create_tables(tmp_path, ["silver"])

    assert DeltaTables(tmp_path).silver().num_rows == 0


def write_checkpoint_file(folder: Path, name: str, text: str) -> Path:
    """Write a file of a Spark checkpoint with its checksum file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_name(f".{path.name}.crc").write_text("crc")
    return path


def test_unfinished_files_of_a_checkpoint_are_removed(tmp_path: Path) -> None:
    """Spark refuses to plan its first batch beside the file of a killed attempt."""
    write_checkpoint_file(tmp_path, "offsets/0", 'v1\n{}\n{"i.0a": 4}')
    for name in (".1.8f7e.tmp", "..1.8f7e.tmp.crc", ".7.crc"):
        (tmp_path / "offsets" / name).write_text("v1")
    repair_checkpoint(tmp_path)

    left = {path.name for path in (tmp_path / "offsets").iterdir()}
    assert left - {".0.crc"} == {"0"}


def test_torn_last_files_of_a_checkpoint_are_removed(tmp_path: Path) -> None:
    """Undamaged plans and commits stay."""
    offset = json.dumps({"i.0a": 4})
    for number in (8, 9, 10):
        write_checkpoint_file(tmp_path, f"offsets/{number}", f"v1\n{{}}\n{offset}")
        write_checkpoint_file(tmp_path, f"commits/{number}", f"v1\n{offset}")
    write_checkpoint_file(tmp_path, "metadata", offset)
    write_checkpoint_file(tmp_path, "offsets/11", "v1\n{}\n" + offset[:4])
    write_checkpoint_file(tmp_path, "commits/10", "")
    removed = repair_checkpoint(tmp_path)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("[0-9]*"))

    assert [path.name for path in removed] == ["11", "10"]
    assert left == ["commits/8", "commits/9", "offsets/10", "offsets/8", "offsets/9"]
    assert (tmp_path / "metadata").exists()
    assert repair_checkpoint(tmp_path) == []


def test_torn_metadata_is_removed_only_before_the_first_batch(tmp_path: Path) -> None:
    """Later an operator must repair it, or batches would be planned again."""
    for name in ("young", "old"):
        write_checkpoint_file(tmp_path / name, "metadata", "")
        write_checkpoint_file(tmp_path / name, "offsets/0", 'v1\n{}\n{"i.0a": 4}')
    write_checkpoint_file(tmp_path / "old", "commits/0", 'v1\n{"a": 1}')
    repair_checkpoint(tmp_path / "young")
    repair_checkpoint(tmp_path / "old")

    assert not (tmp_path / "young" / "metadata").exists()
    assert not (tmp_path / "young" / "offsets" / "0").exists()
    assert (tmp_path / "old" / "metadata").exists()


@pytest.mark.parametrize("keeps_names", [False, True])
def test_synced_plan_of_a_batch_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keeps_names: bool
) -> None:
    """The next plan, which is not synced, is lost."""
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    recorder = powercut.Recorder(store)
    monkeypatch.setattr(os, "fsync", recorder)
    text = 'v1\n{}\n{"i.0a": 4}'
    write_checkpoint_file(root, "metadata", "{}")
    write_checkpoint_file(root, "offsets/0", text)
    recorder.keep_all(root)
    write_checkpoint_file(root, "offsets/1", text)
    sync_plan(root, 1)
    write_checkpoint_file(root, "offsets/2", text)
    monkeypatch.undo()
    powercut.cut(store, root, keeps_names=keeps_names)
    repair_checkpoint(root)
    left = {p.name: p.read_text() for p in (root / "offsets").glob("[0-9]*")}

    assert left == {"0": text, "1": text}

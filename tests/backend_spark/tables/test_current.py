"""The table of newest levels: always what all of gold gives."""

import random
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from backend_spark.tables.current import CurrentLevels, read_current
from backend_spark.tables.delta_writer import (
    JobClaim,
    append_rows,
    commit_files,
    create_tables,
    delete_rows,
    merge_rows,
    time_literal,
)
from backend_spark.tables.maintenance import compact, renew_current, shorten_log
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import CURRENT, LEVEL_KEY, LEVELS

T0 = datetime(2026, 7, 1, tzinfo=UTC)
STEP = timedelta(minutes=10)
CELLS = ("354e18bc", "354e18c4", "it's")


def rows_of(levels: Iterable[tuple[str, int, int | None]]) -> pa.Table:
    """Rows of gold from cell, number of the step and level."""
    rows = [
        {"cell": cell, "at": T0 + step * STEP, "level": level, "reasons": [f"{level}"]}
        | {"margin_mm": float(step), "latest_received": T0 + step * STEP}
        for cell, step, level in levels
    ]
    return pa.Table.from_pylist(rows, schema=LEVELS)


Levels = dict[tuple[str, int], int | None]
"""Levels by cell and step."""


def _key(item: tuple[tuple[str, int], int | None]) -> tuple[str, int]:
    return item[0]


def _begin(levels: Levels, cell: str) -> int:
    """First step of the last run of a cell."""
    steps = sorted(step for each, step in levels if each == cell)
    begin = steps[-1]
    for step in reversed(steps):
        if levels[cell, step] != levels[cell, steps[-1]]:
            break
        begin = step
    return begin


class Gold:
    """Gold of a test, and beside it each level by cell and step.

    Attributes:
        tables: Folder of the tables.
        path: Folder of gold.
    """

    def __init__(self, tables: Path) -> None:
        self.tables, self.path = tables, tables / "levels"
        create_tables(tables, ["levels", "current"])
        self._levels: Levels = {}
        self._deleted: Levels = {}

    def write(self, *levels: tuple[str, int, int | None]) -> None:
        """Append new rows, and replace those that there are, as a pass does."""
        new = [each for each in levels if each[:2] not in self._levels]
        old = [each for each in levels if each[:2] in self._levels]
        append_rows(self.path, rows_of(new))
        merge_rows(self.path, rows_of(old), LEVEL_KEY)
        self._levels |= {(cell, step): level for cell, step, level in levels}

    def trim(self, first_step: int) -> None:
        """Delete rows before a step, as the retention does."""
        old = {key for key in self._levels if key[1] < first_step}
        self._deleted |= {key: self._levels.pop(key) for key in old}
        first_us = round((T0 + first_step * STEP).timestamp() * 1_000_000)
        delete_rows(self.path, f"at < {time_literal(first_us)}")

    def expected(self) -> dict[str, tuple[int, int | None, range]]:
        """Newest step and level of each cell, and where its run may begin.

        Rows that were deleted since may count to the run.
        """
        newest = {
            cell: (step, level)
            for (cell, step), level in sorted(self._levels.items(), key=_key)
        }
        ever = self._deleted | self._levels
        return {
            cell: (*last, range(_begin(ever, cell), _begin(self._levels, cell) + 1))
            for cell, last in newest.items()
        }

    def check(self) -> CurrentLevels:
        """Compare what is read with what all of gold gives."""
        found = read_current(self.tables)
        rows = found.rows.to_pylist()
        expected = self.expected()

        assert found.rows.schema == CURRENT
        assert [row["cell"] for row in rows] == sorted(expected)
        for row in rows:
            last, level, begins = expected[row["cell"]]
            assert row["at"] == T0 + last * STEP
            assert (row["level"], row["margin_mm"]) == (level, float(last))
            assert row["reasons"] == [f"{level}"]
            assert (row["level_since"] - T0) / STEP in begins
        return found


@pytest.fixture
def gold(tmp_path: Path) -> Gold:
    """Empty gold."""
    return Gold(tmp_path)


def _random_levels(dice: random.Random, upto: int) -> list[tuple[str, int, int | None]]:
    """Mostly new steps; sometimes late ones, and levels that change."""
    found = {}
    for cell in dice.sample(CELLS, dice.randint(1, len(CELLS))):
        first = upto if dice.random() < 0.6 else dice.randint(max(0, upto - 9), upto)
        for step in range(first, min(upto + 1, first + dice.randint(1, 4))):
            if dice.random() < 0.9:
                found[cell, step] = dice.choice([1, 1, 1, 2, 3, None])
    return [(cell, step, level) for (cell, step), level in found.items()]


def _check_history(gold: Gold, seed: int, turns: int) -> None:
    """Appends, revisions, late rows, compactions and deletions, read after each."""
    dice = random.Random(seed)
    for turn in range(turns):
        gold.write(*_random_levels(dice, turn))
        if dice.random() < 0.2:
            compact(gold.path)
        if dice.random() < 0.1:
            gold.trim(turn - 6)
        gold.check()
        if dice.random() < 0.4:
            renew_current(gold.tables)
            assert gold.check().is_stored


@pytest.mark.parametrize("seed", range(2))
def test_any_history_of_gold_gives_what_all_of_it_gives(gold: Gold, seed: int) -> None:
    """Whether the table is behind or not."""
    _check_history(gold, seed, 10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_any_long_history_gives_what_all_of_gold_gives(gold: Gold, seed: int) -> None:
    """As above, with more steps."""
    _check_history(gold, seed + 100, 40)


def _run_of(gold: Gold, cell: str) -> tuple[float, int | None]:
    (row,) = [r for r in gold.check().rows.to_pylist() if r["cell"] == cell]
    return (row["level_since"] - T0) / STEP, row["level"]


@pytest.mark.parametrize(
    ("later", "run"),
    [
        ([("c", 6, 2)], (3, 2)),
        ([("c", 6, 1)], (6, 1)),
        ([("c", 5, 1)], (5, 1)),
        ([("c", 4, 3)], (5, 2)),
        ([("c", 2, 2)], (2, 2)),
        ([("c", 2, 2), ("c", 1, 2)], (1, 2)),
        ([("c", 3, 1)], (4, 2)),
        ([("c", 7, 2), ("c", 9, 2)], (3, 2)),
        ([("c", 7, 1), ("c", 9, 2)], (9, 2)),
        ([("c", 4, 2), ("c", 6, None)], (6, None)),
    ],
)
def test_run_begins_where_the_level_does(
    gold: Gold,
    later: list[tuple[str, int, int | None]],
    run: tuple[int, int | None],
) -> None:
    """Whether the level stays, changes, or a revision changes the past."""
    gold.write(*(("c", step, 1) for step in range(3)))
    gold.write(*(("c", step, 2) for step in range(3, 6)))
    renew_current(gold.tables)
    gold.write(*later)

    assert _run_of(gold, "c") == run


def test_row_between_two_known_ones_ends_the_run(gold: Gold) -> None:
    """A late row with another level, in a step that had none."""
    gold.write(("c", 0, 2), ("c", 1, 2), ("c", 5, 2))
    renew_current(gold.tables)
    gold.write(("c", 3, 4))

    assert _run_of(gold, "c") == (5, 2)


def test_run_of_months_is_found_again(gold: Gold) -> None:
    """A revision makes two runs one, of which the older began 40 days before."""
    gold.write(("c", 0, 1), *(("c", step, 2) for step in range(10, 6000, 50)))
    gold.write(("c", 6000, 1), ("c", 6001, 2))
    renew_current(gold.tables)
    assert _run_of(gold, "c") == (6001, 2)
    gold.write(("c", 6000, 2))

    assert _run_of(gold, "c") == (10, 2)


def _lose(tables: Path) -> None:
    shutil.rmtree(tables / "current")


def _tear_file(tables: Path) -> None:
    (file,) = (Path(name) for name in DeltaTable(str(tables / "current")).file_uris())
    file.write_bytes(file.read_bytes()[:-400])


def _delete_file(tables: Path) -> None:
    (file,) = (Path(name) for name in DeltaTable(str(tables / "current")).file_uris())
    file.unlink()


def _damage_log(tables: Path) -> None:
    for commit in (tables / "current" / "_delta_log").glob("*.json"):
        commit.write_text("{broken")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("damage", [_lose, _tear_file, _delete_file, _damage_log])
def test_damaged_table_is_computed_from_gold_and_written_anew(
    gold: Gold, damage: Callable[[Path], None], restarts: bool
) -> None:
    """By the next pass, of the same job or of one that is started again."""
    gold.write(("a", 0, 1), ("b", 0, 3), ("b", 1, 2))
    renew_current(gold.tables)
    damage(gold.tables)
    assert not gold.check().is_stored
    if restarts:
        create_tables(gold.tables, ["current"])
    assert renew_current(gold.tables)

    assert gold.check().is_stored


def test_gold_from_a_backup_replaces_the_table(gold: Gold, tmp_path: Path) -> None:
    """Of an earlier version, and of the same number with other rows."""
    gold.write(("a", 0, 1))
    shutil.copytree(gold.path, tmp_path / "backup")
    gold.write(("a", 1, 4))
    renew_current(gold.tables)
    shutil.rmtree(gold.path)
    shutil.copytree(tmp_path / "backup", gold.path)
    (row,) = read_current(gold.tables).rows.to_pylist()
    assert row["level"] == 1
    append_rows(gold.path, rows_of([("a", 1, 2)]))
    (row,) = read_current(gold.tables).rows.to_pylist()

    assert row["level"] == 2
    assert renew_current(gold.tables)
    assert read_current(gold.tables).is_stored


def test_deleted_rows_are_gone_beside_older_late_ones(gold: Gold) -> None:
    """A row older than the retention that came after the deletion stays until then."""
    gold.write(("silent", 2, 3), ("a", 8, 1))
    renew_current(gold.tables)
    gold.trim(5)
    gold.write(("late", 1, 2))

    assert gold.check().rows["cell"].to_pylist() == ["a", "late"]


def test_rows_deleted_by_hand_are_gone(gold: Gold) -> None:
    """Other deletions than those of the retention are found in all of gold."""
    gold.write(("a", 0, 1), ("b", 0, 3), ("b", 1, 2))
    renew_current(gold.tables)
    delete_rows(gold.path, "level = 2")
    rows = read_current(gold.tables).rows.to_pylist()

    assert [(row["cell"], row["level"]) for row in rows] == [("a", 1), ("b", 3)]


def test_table_is_written_only_for_new_rows(
    gold: Gold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims and compactions change no row; their commits are skipped at times."""
    monkeypatch.setattr("backend_spark.tables.maintenance.MAX_BEHIND", 5)
    gold.write(("a", 0, 1))
    gold.write(("a", 1, 1))
    assert renew_current(gold.tables)
    compact(gold.path)
    JobClaim([gold.path]).open(gold.path)
    assert not renew_current(gold.tables)
    assert gold.check().is_stored
    for _ in range(4):
        commit_files(gold.path, [], None)
    before = DeltaTable(str(gold.tables / "current")).file_uris()
    assert renew_current(gold.tables)

    assert gold.check().stored == gold.check().gold
    assert DeltaTable(str(gold.tables / "current")).file_uris() == before


def test_shortened_log_of_gold_is_no_obstacle(
    gold: Gold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that the table has not followed may be deleted."""
    monkeypatch.setattr("backend_spark.tables.maintenance.KEEP_COMMITS", 1)
    gold.write(("a", 0, 1))
    renew_current(gold.tables)
    gold.write(("a", 1, 2))
    gold.write(("b", 1, 3))
    shorten_log(gold.path)
    gold.write(("a", 2, 2))

    assert gold.check().stored is None


def test_latency_counts_from_the_receipt_to_gold(gold: Gold) -> None:
    """It stays with the row; a table made anew does not know it."""
    now = datetime.now(UTC)
    rows = rows_of([("a", 0, 1)]).to_pylist()
    rows[0] |= {"latest_received": now - timedelta(seconds=40)}
    renew_current(gold.tables)
    append_rows(gold.path, pa.Table.from_pylist(rows, schema=LEVELS))

    def latency_s() -> Any:  # noqa: ANN401 - a number or None
        return read_current(gold.tables).rows["latency_s"][0].as_py()

    first_s = latency_s()
    assert 39 < first_s < 100
    renew_current(gold.tables)
    merge_rows(gold.path, pa.Table.from_pylist(rows, schema=LEVELS), LEVEL_KEY)
    assert latency_s() == first_s
    _lose(gold.tables)
    assert latency_s() is None


def test_reader_gives_the_newest_rows(gold: Gold) -> None:
    """The analysts' call and the exports' agree with gold while the table is behind."""
    gold.write(("a", 0, 1), ("b", 0, 3))
    renew_current(gold.tables)
    gold.write(("a", 4, 2))
    tables = DeltaTables(gold.tables)
    assert tables.newest()["level"].to_pylist() == [2, 3]

    def newest(since: int, until: int) -> list[tuple[str, int]]:
        span = T0 + since * STEP, T0 + until * STEP
        rows = tables.newest_levels(["cell", "at", "level"], *span)
        return [(row["cell"], row["level"]) for row in rows]

    assert newest(0, 4) == [("a", 2), ("b", 3)]
    assert newest(1, 4) == [("a", 2)]
    assert newest(0, 3) == [("a", 1), ("b", 3)]
    assert newest(5, 9) == []
    assert tables.level_begins({"a": 2, "b": 2}, T0 + 4 * STEP) == {"a": T0 + 4 * STEP}
    assert tables.level_begins({"a": 2, "b": 2}, T0 + 3 * STEP) == {}


def test_past_levels_are_those_of_all_rows(gold: Gold) -> None:
    """Of many cells whose last rows are in the hour, the day or the week before."""
    random_ = random.Random(7)
    rows = {
        (f"3551e{number:03x}", step): step % 5 + 1
        for number in range(300)
        for step in (random_.choice((300, 895, 1000)), 1001 + number % 3)
        if number % 7
    }
    gold.write(*((cell, step, level) for (cell, step), level in rows.items()))
    tables = DeltaTables(gold.tables)
    for since, until in ((0, 1000), (890, 1000), (997, 1002), (0, 299), (0, 1003)):
        span = T0 + since * STEP, T0 + until * STEP
        found = tables.newest_levels(["cell", "at", "level", "reasons"], *span)
        within = (key for key in sorted(rows) if since <= key[1] <= until)
        expected = dict(within)  # the last step of a cell stays
        assert [(row["cell"], row["at"]) for row in found] == [
            (cell, T0 + step * STEP) for cell, step in expected.items()
        ]
        for row in found:
            level = rows[row["cell"], expected[row["cell"]]]
            assert (row["level"], row["reasons"]) == (level, [f"{level}"])


def test_past_level_is_read_without_the_days_before_it(gold: Gold) -> None:
    """Their files are not opened where all cells have a row in the hour before."""
    gold.write(("a", 0, 5), ("b", 0, 5))
    (old,) = gold.path.rglob("*.parquet")
    gold.write(("a", 998, 1), ("b", 1000, 2))
    gold.write(("a", 1001, 3), ("b", 1001, 3))
    renew_current(gold.tables)
    old.write_bytes(b"")
    columns, until = ["cell", "at", "level"], T0 + 1000 * STEP
    found = DeltaTables(gold.tables).newest_levels(columns, T0, until)

    assert [(row["cell"], row["level"]) for row in found] == [("a", 1), ("b", 2)]

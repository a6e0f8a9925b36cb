"""The newest level of each cell, read from a real table."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from backend_spark.notice_state import LevelReader, NoticePolicy, NoticeState
from backend_spark.scoring.holds import HELD, JUDGED, UNKNOWN, HoldLimits
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS
from spatial_mqtt.announcements import Notice

NOW_S = 1_800_000_000.0


def moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(NOW_S + at_s, UTC)


def write(folder: Path, *rows: tuple[str, float, int | None], **more: object) -> None:
    empty = dict.fromkeys(LEVELS.names)
    records = [
        {**empty, "cell": cell, "at": moment(at_s), "level": level, **more}
        for cell, at_s, level in rows
    ]
    table = pa.Table.from_pylist(records, LEVELS)
    write_deltalake(str(folder / "levels"), table, mode="append")


def read(reader: LevelReader, at_s: float = 0.0) -> dict[str, tuple[object, ...]]:
    return {
        cell: (found.present.level, found.present.state, found.present.known_until_s)
        for cell, found in reader(NOW_S + at_s).items()
    }


def test_first_reading_holds_what_is_old_and_later_ones_leave_it_out(
    tmp_path: Path,
) -> None:
    """The notices in force carry silent cells after the first reading."""
    write(
        tmp_path,
        ("a", -1200, 5), ("a", -600, 3),
        ("b", -1200, 4), ("b", -600, None),
        ("c", -7200, 4),
        ("d", 300, 2), ("d", 7200, 5),
        ("e", -90_000, 2), ("f", -90_000, 3), ("g", -700_000, 5),
    )  # fmt: skip
    reader = LevelReader(DeltaTables(tmp_path), 3600.0, HoldLimits(6e5))
    current = {
        "a": (3, JUDGED, None),
        "b": (None, UNKNOWN, None),
        "d": (2, JUDGED, None),
    }

    assert read(reader) == current | {
        "c": (4, HELD, NOW_S - 7200),
        "e": (None, UNKNOWN, NOW_S - 90_000),
        "f": (3, HELD, NOW_S - 90_000),
    }
    assert read(reader) == current


def test_late_level_of_a_silent_cell_is_noticed_as_after_a_restart(
    tmp_path: Path,
) -> None:
    """Readings that a cut link kept back; the slope has taken the node with it."""
    write(tmp_path, ("3541f4c", -9000, 1), ("3541f44", -9000, 1))
    reader = LevelReader(DeltaTables(tmp_path), 3600.0)
    state = NoticeState(NoticePolicy(3, 3600.0), tmp_path / "notices.json")
    assert state.update(reader(NOW_S), NOW_S) == {}
    write(tmp_path, ("3541f4c", -7200, 4))
    published = [
        list(state.update(reader(NOW_S + at_s), NOW_S + at_s).values())
        for at_s in (10, 20, 2000)
    ]

    assert read(LevelReader(DeltaTables(tmp_path), 3600.0))["3541f4c"] == (
        *(4, HELD),
        NOW_S - 7200,
    )
    assert published == [
        [
            Notice(
                4, NOW_S + 3610, at_s=NOW_S + 10, state=HELD, known_until_s=NOW_S - 7200
            )
        ],
        [],
        [
            Notice(
                4,
                NOW_S + 5600,
                at_s=NOW_S + 2000,
                state=HELD,
                known_until_s=NOW_S - 7200,
            )
        ],
    ]


def test_state_of_a_row_is_kept(tmp_path: Path) -> None:
    """A held row names the end of the last judged step, however new it is."""
    write(tmp_path, ("a", -600, 4), state=HELD, known_until=moment(-7200))
    reader = LevelReader(DeltaTables(tmp_path), 3600.0)

    assert read(reader) == {"a": (4, HELD, NOW_S - 7200)}
    assert read(LevelReader(DeltaTables(tmp_path), 3600.0), 9000) == {
        "a": (4, HELD, NOW_S - 7200)
    }


def test_doubts_are_those_of_the_reason_of_the_level(tmp_path: Path) -> None:
    """Not those of the lower findings after it."""
    reasons = [
        '["unconfirmed",["wire_cut","n1 wire"]]',
        '["soil_water",160,150,"warning",null,["assumed_criteria"]]',
    ]
    write(tmp_path, ("a", 0, 5), reasons=["x", "y"], reason_codes=reasons)
    write(tmp_path, ("b", 0, 3), reasons=["x"], reason_codes=reasons[1:])
    found = LevelReader(DeltaTables(tmp_path), 3600.0)(NOW_S)

    assert found["a"].doubts == ("unconfirmed",)
    assert found["b"].doubts == ("assumed_criteria",)


def test_missing_table_gives_no_levels(tmp_path: Path) -> None:
    """The job has not run."""
    assert LevelReader(DeltaTables(tmp_path), 3600.0)(NOW_S) == {}

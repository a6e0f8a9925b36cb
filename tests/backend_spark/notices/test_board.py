"""What is told, renewed and taken back, and that times never go back."""

from pathlib import Path

import pytest

from backend_spark.notices.notice_state import NoticePolicy, NoticeState
from spatial_mqtt.announcements import Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, notice_topic

CELL = Cell.at(33.5588, 133.5312, 13)
TOPIC = notice_topic(cell_topic(CELL))
NOW_S = 1_800_000_000.0
TERMS = NoticePolicy(from_level=3, hold_s=3600.0)


def board(folder: Path) -> NoticeState:
    return NoticeState(TERMS, folder / "notices.json")


def told(made: NoticeState, level: int | None, at_s: float) -> Notice | None:
    levels = {} if level is None else {CELL.token: level}
    return made.update(levels, NOW_S + at_s).get(TOPIC)


def test_change_is_told_once_and_renewed_in_half_its_time(tmp_path: Path) -> None:
    """Nodes that lose the link must not hurry for ever, nor stop too soon."""
    made = board(tmp_path)
    said = [told(made, level, at_s) for level, at_s in
            ((1, 0), (2, 1), (4, 2), (4, 1000), (4, 1803), (3, 1900))]  # fmt: skip

    assert said[:2] == [None, None]
    assert said[2] == Notice(4, NOW_S + 3602, at_s=NOW_S + 2)
    assert said[3] is None
    assert said[4] == Notice(4, NOW_S + 5403, at_s=NOW_S + 1803)
    assert said[5] == Notice(3, NOW_S + 5500, at_s=NOW_S + 1900)


def test_level_below_is_taken_back_and_no_judgement_is_not(tmp_path: Path) -> None:
    """What is not known is not safe: the notice ends in its own time."""
    made = board(tmp_path)
    told(made, 5, 0)

    assert told(made, None, 10) is None
    assert told(made, 2, 20) == Notice(at_s=NOW_S + 20, withdrawn=True)
    assert told(made, 2, 30) is None
    assert told(made, 3, 40) == Notice(3, NOW_S + 3640, at_s=NOW_S + 40)


def test_restart_on_a_clock_set_back_is_never_older(tmp_path: Path) -> None:
    """Nodes would refuse it."""
    told(board(tmp_path), 4, 0)
    again = told(board(tmp_path), 5, -500)

    assert again is not None
    assert again.at_s > NOW_S
    assert again.level == 5


def test_damaged_file_and_unknown_cell_stop_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both are told in the log."""
    (tmp_path / "notices.json").write_text("{")
    made = board(tmp_path)
    fresh = made.update({"nonsense": 5, CELL.token: 5}, NOW_S)

    assert list(fresh) == [TOPIC]
    assert "cannot read the notices published before" in caplog.text
    assert "has an invalid cell" in caplog.text


def test_notice_that_is_long_over_is_forgotten(tmp_path: Path) -> None:
    """The file does not grow with every cell that ever had one."""
    made = board(tmp_path)
    told(made, 4, 0)
    told(made, None, 3600 * 4)

    assert made.notices == {}
    assert board(tmp_path).notices == {}


def test_level_that_wavers_switches_nothing_off(tmp_path: Path) -> None:
    """Every ten minutes another: told at its highest until it was lower for an hour."""
    made = NoticeState(
        NoticePolicy(3, 14_400.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    levels = [4, 3, 4, 2, 4, 3, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1]
    said = [told(made, level, 600.0 * at) for at, level in enumerate(levels)]
    news = {at: (n.level, n.withdrawn) for at, n in enumerate(said) if n is not None}

    assert news == {0: (4, False), 11: (3, False), 18: (1, True)}


def test_rise_is_told_at_once_while_a_fall_waits(tmp_path: Path) -> None:
    """Nothing waits for anything on the way up."""
    made = NoticeState(
        NoticePolicy(3, 10_800.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    said = [told(made, level, at) for at, level in enumerate((3, 1, 5))]

    assert [n and n.level for n in said] == [3, None, 5]


def test_held_level_is_renewed(tmp_path: Path) -> None:
    """Its notice must not end before the fall is told."""
    made = NoticeState(
        NoticePolicy(3, 1800.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    said = [told(made, level, at) for level, at in ((4, 0), (1, 600), (1, 1200))]

    assert said[2] == Notice(4, NOW_S + 3000, at_s=NOW_S + 1200)


@pytest.mark.parametrize("at_s", [600.0, -86_400.0])
def test_restart_begins_the_wait_anew(tmp_path: Path, at_s: float) -> None:
    """Since when it was calm is not known; a clock set back makes it no longer."""
    terms, path = NoticePolicy(3, 10_800.0, calm_s=3600.0), tmp_path / "notices.json"
    told(NoticeState(terms, path), 4, 0)
    again = NoticeState(terms, path)

    assert told(again, 1, at_s) is None
    taken_back = told(again, 1, at_s + 3601)
    assert taken_back is not None
    assert taken_back.withdrawn

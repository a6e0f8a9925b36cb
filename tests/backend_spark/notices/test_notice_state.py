"""Notices: when they are published, renewed and withdrawn."""

from pathlib import Path

import pytest

from backend_spark.notices.notice_state import NoticePolicy, NoticeState
from spatial_mqtt.announcements import Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, notice_topic

CELL = Cell.at(33.5588, 133.5312, 13)
TOPIC = notice_topic(cell_topic(CELL))
NOW_S = 1_800_000_000.0
POLICY = NoticePolicy(from_level=3, hold_s=3600.0)


def open_state(folder: Path) -> NoticeState:
    return NoticeState(POLICY, folder / "notices.json")


def update(state: NoticeState, level: int | None, at_s: float) -> Notice | None:
    levels = {} if level is None else {CELL.token: level}
    return state.update(levels, NOW_S + at_s).get(TOPIC)


def test_change_is_published_once_and_renewed_at_half_time(tmp_path: Path) -> None:
    """A node without link leaves its fast mode when the notice ends, not before."""
    state = open_state(tmp_path)
    published = [update(state, level, at_s) for level, at_s in
            ((1, 0), (2, 1), (4, 2), (4, 1000), (4, 1803), (3, 1900))]  # fmt: skip

    assert published[:2] == [None, None]
    assert published[2] == Notice(4, NOW_S + 3602, at_s=NOW_S + 2)
    assert published[3] is None
    assert published[4] == Notice(4, NOW_S + 5403, at_s=NOW_S + 1803)
    assert published[5] == Notice(3, NOW_S + 5500, at_s=NOW_S + 1900)


def test_low_level_withdraws_and_missing_level_does_not(tmp_path: Path) -> None:
    """Without a level the notice runs until it expires."""
    state = open_state(tmp_path)
    update(state, 5, 0)

    assert update(state, None, 10) is None
    assert update(state, 2, 20) == Notice(at_s=NOW_S + 20, withdrawn=True)
    assert update(state, 2, 30) is None
    assert update(state, 3, 40) == Notice(3, NOW_S + 3640, at_s=NOW_S + 40)


def test_notice_time_never_goes_back_after_a_restart(tmp_path: Path) -> None:
    """Nodes reject an older notice, so a clock set back must not produce one."""
    update(open_state(tmp_path), 4, 0)
    again = update(open_state(tmp_path), 5, -500)

    assert again is not None
    assert again.at_s > NOW_S
    assert again.level == 5


def test_damaged_file_and_invalid_cell_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Valid cells are published all the same."""
    (tmp_path / "notices.json").write_text("{")
    state = open_state(tmp_path)
    fresh = state.update({"nonsense": 5, CELL.token: 5}, NOW_S)

    assert list(fresh) == [TOPIC]
    assert "cannot read the notices published before" in caplog.text
    assert "has an invalid cell" in caplog.text


def test_expired_notices_are_removed(tmp_path: Path) -> None:
    """The file must not grow with every cell that ever had a notice."""
    state = open_state(tmp_path)
    update(state, 4, 0)
    update(state, None, 3600 * 4)

    assert state.notices == {}
    assert open_state(tmp_path).notices == {}


def test_changing_level_keeps_the_highest_for_calm_s(tmp_path: Path) -> None:
    """A lower level is published after an hour without a higher one."""
    state = NoticeState(
        NoticePolicy(3, 14_400.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    levels = [4, 3, 4, 2, 4, 3, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1]
    published = [update(state, level, 600.0 * at) for at, level in enumerate(levels)]
    news = {
        at: (n.level, n.withdrawn) for at, n in enumerate(published) if n is not None
    }

    assert news == {0: (4, False), 11: (3, False), 18: (1, True)}


def test_rise_is_published_at_once_and_a_fall_waits(tmp_path: Path) -> None:
    """Only a fall waits for `calm_s`."""
    state = NoticeState(
        NoticePolicy(3, 10_800.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    published = [update(state, level, at) for at, level in enumerate((3, 1, 5))]

    assert [n and n.level for n in published] == [3, None, 5]


def test_notice_is_renewed_while_a_fall_waits(tmp_path: Path) -> None:
    """It must not expire before the lower level is published."""
    state = NoticeState(
        NoticePolicy(3, 1800.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    published = [
        update(state, level, at) for level, at in ((4, 0), (1, 600), (1, 1200))
    ]

    assert published[2] == Notice(4, NOW_S + 3000, at_s=NOW_S + 1200)


@pytest.mark.parametrize("at_s", [600.0, -86_400.0])
def test_restart_starts_the_calm_time_again(tmp_path: Path, at_s: float) -> None:
    """The time of the fall is not stored; a clock set back does not prolong it."""
    policy, path = NoticePolicy(3, 10_800.0, calm_s=3600.0), tmp_path / "notices.json"
    update(NoticeState(policy, path), 4, 0)
    again = NoticeState(policy, path)

    assert update(again, 1, at_s) is None
    withdrawal = update(again, 1, at_s + 3601)
    assert withdrawal is not None
    assert withdrawal.withdrawn

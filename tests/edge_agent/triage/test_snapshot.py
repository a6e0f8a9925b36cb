"""The snapshot of triage: older form, damage, and completeness."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sizes import sizes
from triage_readings import (
    CRACK,
    PORE,
    RAIN,
    SHOCKS,
    SOIL,
    START_S,
    STREAM,
    TILT,
    WIRE,
    Measured,
    flagged,
    rain,
    tilt,
    wire,
)

from edge_agent.triage.engine import SnapshotError, Triage
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from spatial_mqtt.senml import Reading

ALL = [RAIN, TILT, WIRE, CRACK, SHOCKS, SOIL, PORE, STREAM]
OLD_SNAPSHOT = {
    "form": 1,
    "rain": {
        "rain": {
            "tanks": [80.0, 60.0, 40.0],
            "open": 1.5,
            "last": START_S + 120,
            "sum": 371.5,
            "minutes": [[int(START_S // 60), 1.0], [int(START_S // 60) + 1, 0.5]],
        }
    },
    "cut": {"w": True, "gone": False},
    "held": [["rain", 4, "soil water index 190 mm", None], ["wire", 5, "cut", START_S]],
}
"""What the version before rules were data wrote."""

STEP = st.tuples(
    st.integers(1, 7200),
    st.floats(0, 80),
    st.booleans(),
    st.floats(0, 500),
    st.integers(0, 100),
)


def readings(
    mm: float, sum_mm: float, *, is_cut: bool, x: float, n: int
) -> list[Reading]:
    """One reading of each sensor."""
    return [
        rain(mm, sum_mm),
        wire(is_cut=is_cut),
        *tilt(x / 100),
        Reading("crack", "mm", x),
        Reading("shocks", "count", n),
        Reading("soil", "/", x / 1000),
        Reading("pore", "hPa", x - 200),
        Reading("stream", "m", x / 200),
    ]


def test_snapshot_of_form_1_is_read() -> None:
    """An upgrade keeps the soil water and the cut wires."""
    triage = Triage(ALL)
    triage.restore(json.dumps(OLD_SNAPSHOT))
    result = triage.assess([rain(2.0, 373.5)], START_S + 180)
    assert result.level == 5
    assert "wire: w is cut" in (result.why or "")
    assert triage.soil_water_mm()["rain"] == pytest.approx(182.5, abs=1.5)
    assert json.loads(triage.snapshot())["form"] == 2


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("form",), 3),
        (("time", "at"), "noon"),
        (("held",), [["snow", 5, "x", None]]),
        (("held",), [["rain", 9, "x", None]]),
        (("past",), []),
        (("past", "rain", "rain", "sure"), None),
        (("past", "crack"), 3),
        (("past", "displacement", "crack"), [[1.0, 2.0], [0.0, 2.0]]),
        (("past", "vibration", "shocks"), {"past": [-1], "last": None}),
        (("past", "saturation", "soil"), {"hours": {"x": 1}, "counted": 0}),
        (("past", "wire", "w"), "cut"),
    ],
)
def test_damaged_snapshot_is_refused_and_changes_nothing(
    path: tuple[str, ...], value: object
) -> None:
    """A `SnapshotError` with the reason is raised."""
    triage = Triage(ALL)
    for at in range(3):
        batch = readings(9.0, 9.0 * at, is_cut=True, x=5.0 * at, n=3)
        triage.assess(batch, START_S + at * 600)
    before = triage.snapshot()
    state = json.loads(before)
    inner = state
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(SnapshotError, match="triage snapshot must be one of this"):
        triage.restore(json.dumps(state))
    assert triage.snapshot() == before


def test_removed_and_added_sensors_are_accepted() -> None:
    """After a change of sensors the state of the remaining ones is kept."""
    before, after = Triage([RAIN, WIRE]), Triage([RAIN, CRACK])
    before.assess([rain(0.0, 0.0), wire(is_cut=False)], START_S)
    before.assess([rain(20.0, 20.0)], START_S + 600)
    after.restore(before.snapshot())
    assert after.soil_water_mm() == before.soil_water_mm()


EAST, WEST = (Measured(name, "rain", "mm") for name in ("rain-east", "rain-west"))


def in_storm(*depths_mm: float) -> Triage:
    """Triage of `RAIN`, and of `WEST` if it has a depth, after ten hours of rain."""
    gauges = [RAIN, WEST][: len(depths_mm)]
    triage = Triage(gauges)
    for n in range(60):
        triage.assess(
            [
                Reading(each.name, "mm", mm, mm * (n + 1))
                for each, mm in zip(gauges, depths_mm, strict=True)
            ],
            START_S + n * 600,
        )
    return triage


def test_renamed_gauge_keeps_its_soil_water(caplog: pytest.LogCaptureFixture) -> None:
    """Else the level of a storm ends after the hold time. Its counter is another."""
    before, same, renamed = in_storm(2.6), Triage([RAIN]), Triage([EAST])
    same.restore(before.snapshot())
    assert not caplog.text
    renamed.restore(before.snapshot())
    assert "rain-east goes on with the soil water of rain" in caplog.text
    for n in range(60, 66):
        at_s = START_S + n * 600
        one = same.assess([rain(2.6, 2.6 * (n + 1))], at_s)
        two = renamed.assess([Reading("rain-east", "mm", 2.6, 2.6 * (n - 59))], at_s)
        assert one.level == two.level
    (one_mm,), (two_mm,) = (each.soil_water_mm().values() for each in (same, renamed))
    assert one_mm > 100
    assert two_mm == pytest.approx(one_mm)


def test_new_gauge_takes_the_wettest_soil_of_removed_gauges() -> None:
    """A gauge that is still there keeps its own, and gives none."""
    before = in_storm(1.0, 3.0)
    one = before.soil_water_mm()
    replaced, added = Triage([EAST]), Triage([RAIN, EAST, WEST])
    replaced.restore(before.snapshot())
    assert replaced.soil_water_mm() == {"rain-east": pytest.approx(one["rain-west"])}
    added.restore(before.snapshot())
    assert added.soil_water_mm() == {
        "rain": pytest.approx(one["rain"]),
        "rain-east": 0.0,
        "rain-west": pytest.approx(one["rain-west"]),
    }


def test_dropped_state_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A mistake in a name would silently forget a cut wire, or a limit."""
    rules = build_settings(TriageSection, {"limit": [LOWER]})
    before, after = Triage([RAIN, WIRE, STREAM], rules), Triage([RAIN, STREAM])
    batch = [rain(0.0, 0.0), wire(is_cut=True), Reading("stream", "m", 2.2)]
    before.assess(batch, START_S)
    after.restore(before.snapshot())
    assert "state of rule wire of sensor w is dropped" in caplog.text
    assert "state of limit 1 is dropped" in caplog.text
    assert "rain" not in caplog.text


LOWER = {"sensor": "stream", "above": 2.0, "clear_at": 1.5, "level": 3}
UPPER = {"sensor": "stream", "above": 4.0, "clear_at": 1.8, "level": 5, "for_s": 600}


def limited(*limits: dict[str, object]) -> Triage:
    """Triage of a stream with some limits."""
    return Triage([STREAM], build_settings(TriageSection, {"limit": list(limits)}))


def after_restart(
    before: list[dict[str, object]],
    after: list[dict[str, object]],
    heights: tuple[float, float],
    *,
    is_old: bool = False,
) -> list[tuple[int, str | None]]:
    """Levels and reasons of other limits, from the snapshot of an hour with some.

    Args:
        before: Limits of that hour.
        after: Limits after it.
        heights: Of the stream before and after.
        is_old: Whether the snapshot is of a program that did not store the limits.
    """
    first, second, at_s = limited(*before), limited(*after), START_S
    for at_s in range(int(START_S), int(START_S) + 3600, 600):
        first.assess([Reading("stream", "m", heights[0])], at_s)
    state = json.loads(first.snapshot())
    if is_old:
        state.pop("limits", None)
    second.restore(json.dumps(state))
    found = [
        second.assess([Reading("stream", "m", heights[1])], at_s + 600 * (1 + n))
        for n in range(3)
    ]
    return [(each.level, each.why) for each in found]


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([LOWER, UPPER], [UPPER, LOWER]),
        ([LOWER], [UPPER, LOWER]),
        ([LOWER, UPPER], [UPPER]),
        ([LOWER], [{**LOWER, "above": 3.0}]),
        ([LOWER], [{"quantity": "water level", "above": 3, "level": 5}]),
    ],
)
def test_changed_limits_do_not_take_the_state_of_another_one(
    before: list[dict[str, object]], after: list[dict[str, object]], *, is_old: bool
) -> None:
    """Else 2.2 m were level 5, by a limit of 4 m that is cleared below 1.8 m."""
    found = after_restart(before, after, (2.2, 2.2), is_old=is_old)
    expected = 3 if LOWER in after else 1
    assert found[-1][0] == expected
    assert all(why is None or "stream 2.2 >= 2 " in why for _, why in found)


@pytest.mark.parametrize(
    "after",
    [
        [LOWER, UPPER],
        [UPPER, LOWER],
        [LOWER],
        [{**LOWER, "level": 2}, UPPER, LOWER],
        [UPPER, {**LOWER, "for_s": 600}],
    ],
)
def test_limit_keeps_its_state_at_another_position(
    after: list[dict[str, object]],
) -> None:
    """Also between `above` and `clear_at`, where the value alone does not show it."""
    found = after_restart([LOWER, UPPER], after, (2.2, 1.7))
    number = len(after) if after[-1] != UPPER else 1
    expected = f"limit {number}: stream 1.7 >= 2 for {{}} s"
    assert [level for level, _ in found] == [3, 3, 3]
    for n, (_, why) in enumerate(found):
        assert (why or "").split("; ")[0] == expected.format(3600 + 600 * n)


@pytest.mark.parametrize("is_first", [False, True])
def test_limits_of_one_condition_and_level_both_keep_their_state(
    *, is_first: bool
) -> None:
    """Else the one with `for_s` began anew at every restart, and level 4 was 2."""
    alone = {"sensor": "stream", "above": 2.0, "level": 4, "alone_level": 2}
    lasting = {"sensor": "stream", "above": 2.0, "level": 4, "for_s": 3600}
    limits = [lasting, alone] if is_first else [alone, lasting]
    found = after_restart(limits, limits, (2.5, 2.5))
    assert [level for level, _ in found] == [4, 4, 4]


def test_held_and_confirmed_limits_keep_their_state_at_another_position() -> None:
    """The reason of a held one names the present position."""
    alone = {**LOWER, "alone_level": 2, "confirm_s": 600, "hold_s": 7200}
    first, second = limited(alone, UPPER), limited(UPPER, alone)
    for n, height in enumerate((2.2, 1.0)):
        first.assess([Reading("stream", "m", height)], START_S + 600 * n)
    second.restore(first.snapshot())
    result = second.assess([], START_S + 1200)
    assert result.level == 2
    assert result.why == ("limit 2: stream 2.2 >= 2 for 0 s, unconfirmed (a while ago)")
    state = json.loads(first.snapshot())
    state["confirmed"] = [["limit 1", "stream", 0.0, "shocks"]]
    second.restore(json.dumps(state))
    after = json.loads(second.snapshot())
    assert after["confirmed"] == [["limit 2", "stream", 0.0, "shocks"]]


def test_limits_of_an_old_snapshot_count_while_they_are_exceeded() -> None:
    """An upgrade does not begin `for_s` anew."""
    slow = {**LOWER, "for_s": 3600}
    found = after_restart([slow], [slow], (2.2, 2.2), is_old=True)
    assert found[0] == (3, "limit 1: stream 2.2 >= 2 for 3600 s")


def test_limit_of_an_old_snapshot_clears_at_clear_at_again() -> None:
    """Only the first value after the upgrade must be beyond the threshold itself."""
    before, after = limited(LOWER), limited({**LOWER, "hold_s": 0})
    before.assess([Reading("stream", "m", 2.2)], START_S)
    state = json.loads(before.snapshot())
    del state["limits"]
    after.restore(json.dumps(state))
    found = [
        after.assess([Reading("stream", "m", height)], START_S + 600 * n).level
        for n, height in enumerate((2.2, 1.7, 1.7, 1.4), 1)
    ]
    assert found == [3, 3, 3, 1]


@pytest.mark.parametrize("restarts", [False, True])
def test_limit_counts_from_the_first_good_reading_also_after_a_restart(
    *, restarts: bool
) -> None:
    """Doubtful readings before it are no time above the limit."""
    slow = {**LOWER, "for_s": 1200}
    triage, height, found = limited(slow), Reading("stream", "m", 2.2), []
    for n in range(6):
        if restarts:
            before, triage = triage, limited(slow)
            triage.restore(before.snapshot())
        batch = [flagged(height, 3) if n < 3 else height]
        found.append(triage.assess(batch, START_S + n * 600).level)
    assert found == [1, 1, 1, 1, 1, 3]


@pytest.mark.parametrize("hours", sizes(6, 50))
def test_snapshot_of_a_full_node_stays_small(hours: int) -> None:
    """It is stored with every message: at most 4 kB after two days of storm."""
    triage = Triage(ALL)
    for at in range(hours * 60):
        batch = readings(1.0, 1.0 * at, is_cut=False, x=at / 10, n=at % 7)
        triage.assess(batch, START_S + at * 60)
    assert len(triage.snapshot()) < 4096


@given(st.lists(STEP, max_size=15), st.integers(0, 15))
def test_snapshot_of_a_restored_state_is_identical(
    steps: list[tuple[int, float, bool, float, int]], at: int
) -> None:
    """A restored snapshot is written identically and gives the same results."""
    one, now_s, sum_mm = Triage(ALL), START_S, 0.0
    for dt_s, mm, is_cut, x, n in steps[:at]:
        now_s, sum_mm = now_s + dt_s, sum_mm + mm
        one.assess(readings(mm, sum_mm, is_cut=is_cut, x=x, n=n), now_s)
    two = Triage(ALL)
    two.restore(one.snapshot())
    assert json.loads(two.snapshot())["held"] == json.loads(one.snapshot())["held"]
    three = Triage(ALL)
    three.restore(two.snapshot())
    assert three.snapshot() == two.snapshot()


@given(st.lists(STEP, max_size=25))
def test_any_readings_give_a_level_with_a_bounded_reason(
    steps: list[tuple[int, float, bool, float, int]],
) -> None:
    """Each priority above 1 has a rule name, in at most 200 characters."""
    triage, now_s, sum_mm = Triage(ALL), START_S, 0.0
    for dt_s, mm, is_cut, x, n in steps:
        now_s, sum_mm = now_s + dt_s, sum_mm + mm
        batch = readings(mm, sum_mm, is_cut=is_cut, x=x, n=n)
        result = triage.assess(batch, now_s)
        assert result.priority == result.level
        assert 1 <= result.level <= 5
        assert (result.why is None) == (result.level == 1)
        if result.why is not None:
            assert len(result.why) <= 200
            assert result.why.split(":")[0] in {
                "rain", "tilt", "displacement", "wire", "vibration", "saturation",
                "pore", "water_level",
            }  # fmt: skip

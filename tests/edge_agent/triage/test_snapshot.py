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
    rain,
    tilt,
    wire,
)

from edge_agent.triage import SnapshotError, Triage
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

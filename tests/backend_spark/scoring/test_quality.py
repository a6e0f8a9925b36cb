"""Quality flags of readings: single, and compared with neighbours."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scored_levels import score_levels

from backend_spark.scoring.observation import Observation, ReviewMark
from backend_spark.scoring.quality import flag_single, flag_with_neighbours
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from slope_science.levels import Criteria

T0 = 1_700_000_400
CRITERIA = Criteria.assumed_from(150.0)


def series(
    name: str, unit: str, values: list[float], node: str = "n1", every_s: int = 600
) -> list[Observation]:
    """Readings of a sensor, by default every ten minutes."""
    return [
        Observation(T0 + n * every_s, node, name, unit, value, seq=n)
        for n, value in enumerate(values)
    ]


def gauge(depths: list[float], node: str = "n1") -> list[Observation]:
    """Reports of a rain gauge with its counter."""
    total, made = 0.0, []
    for n, depth in enumerate(depths):
        total += depth
        at_s = T0 + n * 600
        made.append(Observation(at_s, node, "rain", "mm", depth, None, total, seq=n))
    return made


def flags(observations: list[Observation]) -> list[int | None]:
    """Flags in time order."""
    return [o.flag for o in flag_with_neighbours(observations)]


@pytest.mark.parametrize(
    ("name", "unit", "value", "flag"),
    [
        ("tilt/x", "deg", 0.5, 1),
        ("tilt/x", "deg", 91.0, 4),
        ("air/temp", "Cel", -41.0, 4),
        ("air/humidity", "%RH", 103.0, 3),
        ("air/pressure", "hPa", 700.0, 4),
        ("pore", "hPa", 700.0, 1),
        ("soil", "/", -0.01, 4),
        ("node/disk-free", "/", 0.9, 2),
        ("wire", None, 1.0, 2),
        ("rain", "mm", -0.5, 4),
        ("tilt/x", "deg", None, 9),
    ],
)
def test_flag_of_a_single_reading(
    name: str, unit: str | None, value: float | None, flag: int
) -> None:
    """Each quantity has its own range; unknown quantities get flag 2."""
    assert flag_single(Observation(T0, "n1", name, unit, value)).flag == flag


def test_flags_of_the_node_and_its_clock_are_used() -> None:
    """The node's own flag and an unsynchronised clock lower the quality."""
    good = Observation(T0, "n1", "tilt/x", "deg", 0.1)

    assert flag_single(replace(good, node_flag=4)).why == "node: failed"
    assert flag_single(replace(good, synchronised=False)).flag == 3


def test_step_and_spike_flag_one_reading_each() -> None:
    """After a step the new angle is the reference; after a spike the old one is."""
    knock = series("tilt/x", "deg", [0.0, 0.1, 2.0, 2.1, 2.0])
    glitch = series("tilt/x", "deg", [0.0, 0.1, 2.0, 0.1, 0.0])

    assert flags(knock) == [1, 1, 3, 1, 1]
    assert flags(glitch) == [1, 1, 3, 1, 1]
    assert "spike: 1.9 there and back > 0.5" in (
        flag_with_neighbours(glitch)[2].why or ""
    )


def test_step_check_uses_neighbours_within_an_hour() -> None:
    """A change over a longer gap is no step."""
    assert flags(series("tilt/x", "deg", [0.0, 2.0], every_s=7200)) == [1, 1]
    assert flags(series("tilt/x", "deg", [0.0, 2.0], every_s=1200)) == [1, 1]
    assert flags(series("tilt/x", "deg", [0.0, 2.1], every_s=1200)) == [1, 3]


def test_constant_tilt_is_flagged_after_a_day() -> None:
    """Exactly equal for 24 h is a fault; zero rain for as long is not."""
    assert flags(series("tilt/x", "deg", [0.123] * 146)) == [1] * 144 + [3, 3]
    assert set(flags(gauge([0.0] * 200))) == {1}


def test_sensor_of_another_unit_under_the_same_name_has_its_own_limits() -> None:
    """A moisture probe is replaced by a piezometer: no reading of it is a step."""
    probe = series("soil", "/", [0.3, 0.31, 0.3, 0.31])
    pore = series("soil", "hPa", [10.0, 14.0, 30.0, 12.0, 11.0])
    pore = [replace(o, at_s=o.at_s + 4 * 600) for o in pore]

    assert flags(probe + pore)[4:] == flags(pore) == [1] * 5


def test_failed_reading_is_not_used_as_reference() -> None:
    """A value out of range does not make the next one a step."""
    assert flags(series("tilt/x", "deg", [0.0, 99.0, 0.1])) == [1, 4, 1]


def test_clogged_gauge_is_found_by_its_neighbour() -> None:
    """Zero rain beside a gauge with 10 mm in up to three hours, which stays good."""
    flagged = flag_with_neighbours([*gauge([0.0] * 30), *gauge([1.0] * 30, node="n2")])
    clogged = [o for o in flagged if o.node == "n1" and o.flag == 3]

    assert clogged[0].at_s == T0 + 10 * 600
    assert clogged[0].why == "clogged: dry for 1.7 h while another saw 10 mm"
    assert (clogged[-1].why or "").startswith("clogged: dry for 3 h")
    assert {o.flag for o in flagged if o.node == "n2"} == {1}


def test_rain_seen_by_one_gauge_counts_as_unconfirmed() -> None:
    """A local storm and a faulty funnel look the same, so the rain counts."""
    storm, drizzle = gauge([8.0] * 30), gauge([0.5] * 30, node="n2")
    flagged = flag_with_neighbours([*storm, *drizzle])
    doubted = [o for o in flagged if o.node == "n1" and o.flag == 3]
    rows = score_cell([*storm, *drizzle], CellRules(CRITERIA)).rows

    assert (doubted[-1].why or "").startswith("alone: 144 mm in 3 h, another saw 9 mm")
    assert {o.flag for o in flagged if o.node == "n2"} == {1}
    assert (rows[-1].level or 0) >= 3
    assert (
        rows[-1].sentences[0].startswith("high, unconfirmed: level 1 without suspect")
    )
    assert [row.level for row in rows] == [
        row.level for row in score_cell(storm, CellRules(CRITERIA)).rows
    ], "nothing is dropped"


def test_frost_is_detected_from_the_air_sensor() -> None:
    """Only an air sensor counts, not the temperature of a chip."""
    cold = series("air/temp", "Cel", [-2.0] * 3)
    humid = series("air/humidity", "%RH", [80.0, 81.0, 82.0])
    chip = series("tilt/temp", "Cel", [-2.0] * 3)
    rain = gauge([0.0] * 3)

    with_air = [o for o in flag_with_neighbours([*rain, *cold, *humid]) if o.is_rain]
    without = [o for o in flag_with_neighbours([*rain, *chip]) if o.is_rain]
    assert {o.why for o in with_air} == {"frost: air at -2 Cel"}
    assert {o.flag for o in without} == {1}


def test_failed_temperature_is_no_frost() -> None:
    """Nor is one that a person marked as bad."""
    humid = series("air/humidity", "%RH", [80.0, 81.0, 82.0])
    mark = ReviewMark("a", "2026-06-01", None)
    marked = [replace(o, review=mark) for o in series("air/temp", "Cel", [-2.0] * 3)]

    for air in (series("air/temp", "Cel", [-60.0] * 3), marked):
        found = flag_with_neighbours([*gauge([0.2] * 3), *air, *humid])
        assert {o.flag for o in found if o.is_rain} == {1}


def test_flags_do_not_depend_on_arrival_order() -> None:
    """Flagging reading by reading ends with the same flags as all at once."""
    whole = series("tilt/x", "deg", [0.0, 0.1, 2.0, 0.1, 0.0, 3.0, 3.1])
    order = [6, 0, 4, 2, 1, 5, 3]
    known: list[Observation] = []
    for index in order:
        found = score_cell(
            [*known, whole[index]], CellRules(CRITERIA), whole[index].at_s
        )
        new = {o.seq: o for o in found.reflagged}
        known = [new.get(o.seq, o) for o in [*known, whole[index]]]

    assert sorted(known, key=lambda o: o.at_s) == flag_with_neighbours(whole)


def test_failed_rain_report_leaves_a_gap() -> None:
    """The step is unknown and is not filled from the counter."""
    good = gauge([1.0] * 8)
    failed = [replace(o, node_flag=4) if o.seq == 4 else o for o in good]
    rows = score_levels(flag_with_neighbours(failed), CRITERIA)

    assert [row.rain.is_known for row in rows][3:6] == [True, False, True]
    assert rows[7].rain.r60_mm == pytest.approx(5.0)
    assert rows[7].rain.is_lower_bound


def test_impossible_number_of_refused_closures_is_not_counted() -> None:
    """It fails, and the reports beside it are judged without it."""
    reports = gauge([1.0] * 4)
    counts = series("rain/refused", "count", [1e300, 5.0, -3.0], every_s=900)
    flagged = flag_with_neighbours([*reports, *counts])

    assert [o.flag for o in flagged if o.name == "rain/refused"] == [4, 1, 4]
    assert [o.flag for o in flagged if o.name == "rain"] == [1, 1, 3, 1]


def test_implausible_cloudburst_counts_as_unconfirmed() -> None:
    """Suspect rain raises the level to 3; reasons name it and the level without it."""
    rows = score_levels(flag_with_neighbours(gauge([0.0] * 8 + [240.0, 5.0])), CRITERIA)

    assert rows[8].level == 3
    assert (
        rows[8]
        .sentences[0]
        .startswith(
            "high, unconfirmed: level 1 without suspect rain (soil water index 0.0 mm)"
        )
    )
    assert rows[8].sentences[-1] == (
        "suspect: n1 rain (range: 240 mm within 10 min > 50 mm)"
    )


def test_failed_tilt_raises_nothing() -> None:
    """A failed sensor gives no level."""
    axis = [0.0, 0.1, 0.2, 0.3, 0.4]
    x = series("tilt/x", "deg", axis)
    y = series("tilt/y", "deg", [0.0] * 5)
    broken = [replace(o, node_flag=4) for o in [*x, *y]]

    assert score_levels(flag_with_neighbours([*x, *y]), CRITERIA)[-1].level == 4
    assert score_levels(flag_with_neighbours(broken), CRITERIA)[-1].level is None


@settings(max_examples=50)
@given(st.lists(st.floats(0, 80), min_size=2, max_size=30), st.data())
def test_heavy_rain_is_never_dropped(depths: list[float], data: st.DataObject) -> None:
    """Up to level 3, which suspect rain may give, the level is monotone in rain."""
    more = [depth + data.draw(st.floats(0, 60)) for depth in depths]
    for less_row, more_row in zip(
        score_levels(flag_with_neighbours(gauge(depths)), CRITERIA),
        score_levels(flag_with_neighbours(gauge(more)), CRITERIA),
        strict=True,
    ):
        assert min(less_row.level or 0, 3) <= (more_row.level or 0)


VALUES = st.sampled_from([0.0, 0.01, 0.01, 0.6, 3.0, 95.0, None])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([60, 600, 600, 4000, 90_000]), VALUES),
        min_size=2,
        max_size=40,
    )
)
@example([(60, 0.0), (60, 95.0), (90_000, 0.0), (60, 0.0), *[(600, 0.0)] * 6])
def test_new_reading_changes_the_flag_of_the_last_usable_one_at_most(
    steps: list[tuple[int, float | None]],
) -> None:
    """Checking only that one gives the flags of checking all of the last hour."""
    at_s, few, all_ = 0.0, list[Observation](), list[Observation]()
    for number, (gap_s, value) in enumerate(steps):
        at_s += gap_s
        o = Observation(at_s, "n1", "tilt/x", "deg", value, seq=number)
        o = replace(o, received_us=round(at_s * 1e6))
        few = flag_with_neighbours([*few, o], at_s, is_checked=True)
        all_ = flag_with_neighbours([*all_, o], at_s)

    assert few == all_


@pytest.mark.parametrize("late_s", [[0.0] * 60, [0.1 * n for n in range(60)], [2.0, 0]])
@pytest.mark.parametrize("every_s", [300, 600, 900])
def test_release_is_found_as_its_dry_hour_is_complete(
    late_s: list[float], every_s: int
) -> None:
    """Also where reports are not at the full ten minutes."""
    readings: list[Observation] = []
    total_mm = 0.0
    for n in range(30):
        depth_mm = 30.0 * (n == 12)
        total_mm += depth_mm
        at_s = T0 + n * every_s + late_s[n % len(late_s)]
        new = Observation(
            at_s, "n1", "rain", "mm", depth_mm, None, total_mm, seq=n,
            received_us=round(at_s * 1e6),
        )  # fmt: skip
        readings = flag_with_neighbours([*readings, new], at_s)

    assert [o.flag for o in readings] == flags(readings)
    assert readings[12].why == flag_with_neighbours(readings)[12].why
    assert "between two dry hours" in (readings[12].why or "")

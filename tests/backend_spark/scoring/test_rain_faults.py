"""Faults of rain gauges, injected into recorded rain, and storms that are no faults."""

import csv
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

import pytest
from measurements import seattle
from msgspec.structs import replace
from scored_levels import score_levels

from backend_spark.scoring.observation import STEP_S, Observation
from backend_spark.scoring.quality import flag_with_neighbours
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import CellScores, score_cell
from backend_spark.scoring.surrounding_rain import (
    NO_NEARBY_RAIN,
    NearbyRain,
    collect_nearby_rain,
    find_nearby_cells,
)
from slope_science.levels import Criteria
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

T0 = 1_750_000_200
HOUR = 6
RULES = CellRules(Criteria.assumed_from(150.0))


def gauge(
    depths_mm: Sequence[float],
    node: str = "n1",
    every_s: float = STEP_S,
    slow_s: float = 0.0,
) -> list[Observation]:
    """A gauge that sends each report after two seconds.

    Args:
        depths_mm: Rain of each interval, after a first dry report.
        node: Its node.
        every_s: Length of an interval.
        slow_s: Time by which its clock is slow.
    """
    total_mm, made = 0.0, []
    for n, depth_mm in enumerate([0.0, *depths_mm]):
        total_mm += depth_mm
        true_s = T0 + n * every_s
        made.append(
            Observation(
                true_s - slow_s, node, "rain", "mm", depth_mm, None, total_mm,
                round((true_s + 2) * 1_000_000), "b", n,
            )
        )  # fmt: skip
    return made


def levels(scores: CellScores) -> list[int]:
    """Level of each step; 0 for none."""
    return [row.level or 0 for row in scores.rows]


def flags(scores: CellScores, node: str = "n1") -> set[str]:
    """Codes of the suspect reports of a gauge."""
    doubted = (o for o in scores.reflagged if o.node == node and o.flag == 3)
    return {str(reason.code) for o in doubted for reason in o.reasons}


def highest_at_arrival(
    readings: Sequence[Observation],
    arrivals: Sequence[Observation],
    nearby: NearbyRain = NO_NEARBY_RAIN,
) -> int:
    """Highest level that a pass writes at the arrival of some of the readings."""
    found = []
    for last in arrivals:
        known = [o for o in readings if o.at_s <= last.at_s]
        found.append(score_cell(known, RULES, nearby=nearby).rows[-1].level or 0)
    return max(found)


def around(*depths_mm: Sequence[float], km: float = 2.0) -> NearbyRain:
    """Gauges in cells at a distance in all directions."""
    here = Cell.at(33.5, 133.5, ANALYSIS_LEVEL).token
    north, east = km / 111.2, km / 92.7
    places = [(north, 0.0), (-north, 0.0), (0.0, east), (0.0, -east), (north, east / 9)]
    cells = [Cell.at(33.5 + n, 133.5 + e, ANALYSIS_LEVEL).token for n, e in places]
    rain = {
        cell: gauge(depths, f"m{n}")
        for n, (cell, depths) in enumerate(zip(cells, depths_mm, strict=False))
    }
    return collect_nearby_rain(rain, find_nearby_cells([here], rain, 5.0))[here]


def bounce(mm: float, every_s: float, hours: int = 2) -> list[float]:
    """Rain that a bouncing switch reports: some millimetres every two minutes."""
    depths = [0.0] * round(hours * 3600 / every_s)
    for at_s in range(0, hours * 3600, 120):
        depths[int(at_s // every_s)] += mm
    return depths


@pytest.mark.parametrize(
    ("depths_mm", "every_s", "before_mm"),
    [
        ([200.0], STEP_S, 2.0),
        ([200.0], 120, 0.0),
        ([95.0] * HOUR, STEP_S, 2.0),
        ([19.0] * 30, 120, 0.0),
        ([49.0] * 6, STEP_S, 2.0),
        ([24.5] * 12, 300, 0.0),
        (bounce(10.0, STEP_S), STEP_S, 2.0),
        (bounce(10.0, 300), 300, 0.0),
        (bounce(7.5, STEP_S), STEP_S, 0.0),
        (bounce(5.0, STEP_S), STEP_S, 0.0),
    ],
)
def test_fault_of_a_lone_gauge_is_suspect_and_at_most_level_3(
    depths_mm: Sequence[float], every_s: int, before_mm: float
) -> None:
    """After every report, on dry soil and after 12 h of rain."""
    per_report = before_mm * every_s / STEP_S
    wet = [per_report] * (12 * 3600 // every_s)
    readings = gauge([*wet, *depths_mm, *[0.0] * 3], every_s=every_s)
    whole = score_cell(readings, RULES)
    assert flags(whole) & {"rain_range", "extreme"}
    assert max(levels(whole)) <= 3
    late = readings[len(wet) + 1 :: max(1, STEP_S // every_s)]
    assert highest_at_arrival(readings, late) <= 3


def test_bouncing_switch_is_told_by_its_refused_closures() -> None:
    """The node reports them beside the rain, however little of it counts."""
    rain = gauge([2.0] * 40)
    refused = [
        Observation(o.at_s, "n1", "rain/refused", "count", 60.0, seq=o.seq)
        for o in rain[5:]
    ]

    assert flags(score_cell(rain, RULES)) == set()
    assert flags(score_cell([*rain, *refused], RULES)) == {"bounce"}


def flapping(readings: Sequence[Observation], first: int) -> list[Observation]:
    """A gauge that flaps from a report on: none of its closures counts as a tip."""
    made, sum_mm = list(readings[:first]), readings[first - 1].sum
    for o in readings[first:]:
        made.append(replace(o, value=0.0, sum=sum_mm))
        made.append(replace(o, name="rain/refused", unit="count", value=9.0, sum=None))
    return made


@pytest.mark.parametrize("mm_beside", [0.0, 0.5])
def test_switch_that_flaps_in_a_storm_is_no_dry_weather(mm_beside: float) -> None:
    """Its level is held, also if a few closures between those refused count."""
    storm = gauge([5.8] * 96)
    broken = [
        replace(o, value=mm_beside, sum=(o.sum or 0.0) + mm_beside * (o.seq - 48))
        if o.name == "rain" and o.seq > 48
        else o
        for o in flapping(storm, 49)
    ]
    scores = score_cell(broken, RULES)

    rows = scores.rows[48:]
    assert {row.level for row in rows} == {3}
    assert {row.state for row in rows[6:]} == {"held"}
    found = {(o.flag, o.name) for o in scores.reflagged if o.at_s > broken[50].at_s}
    assert found == {(3 if mm_beside else 4, "rain"), (1, "rain/refused")}


@pytest.mark.parametrize("where", ["cell", "nearby"])
def test_switch_that_flaps_is_no_witness_against_another_gauge(where: str) -> None:
    """Two that flap beside one in a storm, in its cell or around it."""
    storm = gauge([5.8] * 96)
    others = [flapping(gauge([5.8] * 96, f"m{n}"), 49) for n in range(2)]
    nearby = NO_NEARBY_RAIN
    if where == "nearby":
        here, *cells = (
            Cell.at(33.5 + n / 100, 133.5, ANALYSIS_LEVEL).token for n in range(3)
        )
        scored = (score_cell(each, RULES).reflagged for each in others)
        rain = {
            cell: [o for o in each if o.is_rain]
            for cell, each in zip(cells, scored, strict=True)
        }
        around = find_nearby_cells([here], rain, 5.0)
        nearby = collect_nearby_rain(rain, around)[here]
        others = []
    scores = score_cell(
        [*storm, *(o for each in others for o in each)], RULES, nearby=nearby
    )

    assert flags(scores) == set()
    assert scores.rows[-1].level == 4


def test_second_gauge_of_a_node_is_stored_and_not_judged() -> None:
    """Nodes send it as a secondary value; it is no displacement."""
    rain = gauge([0.0] * 12 + [14.0] * 6)
    second = [replace(o, name="north/rain") for o in rain]
    scores = score_cell([*rain, *second], RULES)

    assert levels(scores) == levels(score_cell(rain, RULES))
    assert set(levels(score_cell(second, RULES))) == {0}


@pytest.mark.parametrize(("rise_m", "highest"), [(1.5, 5), (-1.5, 3), (0.1, 3)])
def test_surge_of_a_stream_confirms_doubtful_rain(rise_m: float, highest: int) -> None:
    """A rise shows much water; a drop, by a dam or a fault, shows none."""
    rain = gauge([0.0] * 12 + [22.0] * 30)
    stream = [
        Observation(
            o.at_s, "n2", "stage", "m", 3.0 + rise_m * (o.seq >= 36),
            received_us=o.received_us, boot="b", seq=o.seq,
        )
        for o in rain
    ]  # fmt: skip
    scores = score_cell([*rain, *stream], RULES)

    assert "extreme" in flags(scores)
    assert max(levels(score_cell(rain, RULES))) == 3
    assert max(levels(scores)) == highest


FIVE_DRY = [[0.0] * 40] * 5


@pytest.mark.parametrize("where", ["cell", "nearby"])
def test_five_dry_gauges_outvote_one_and_stay_good(where: str) -> None:
    """At most level 3, whether they are in its cell or 2 km around it."""
    wet = gauge([0.0] * 4 + [15.0] * 30)
    if where == "nearby":
        scores = score_cell(wet, RULES, nearby=around(*FIVE_DRY))
        assert highest_at_arrival(wet, wet[4:], around(*FIVE_DRY)) == 3
    else:
        others = [gauge(dry[:34], f"m{n}") for n, dry in enumerate(FIVE_DRY)]
        readings = [*wet, *(o for each in others for o in each)]
        scores = score_cell(readings, RULES)
        assert all(flags(scores, f"m{n}") == set() for n in range(5))

    assert "alone" in flags(scores)
    assert max(levels(scores)) == 3
    assert max(levels(score_cell(wet, RULES))) >= 4, "nothing contradicts it"


def test_dry_gauge_is_outvoted_and_its_rain_is_unknown() -> None:
    """A clog is no dry weather, although the gauge reports exact zeros."""
    clogged = gauge([0.0] * 40)
    scores = score_cell(clogged, RULES, nearby=around(*[[5.0] * 40] * 3))

    assert flags(scores) == {"clogged"}
    assert not any(row.rain.is_known for row in scores.rows[6:])


# Storms at or beyond the records of Japan, in steps of ten minutes.
KIKONAI = [2.0, 8.0, 20.0, 55.0, 22.0, 9.0, 4.0, 2.0]
NAGAYO = [3.0, 8.0, *[187 / 6] * 6, *[100 / 6] * 6, 5.0, 5.0]
KATORI = [1.0, 4.0, *[25.5] * 6, *[12.0] * 6, 4.0]
HAKONE = [922.5 / 144] * 144
BEYOND = [10.0, *[60.0] * 8, 30.0, 10.0]
SHORT = [1.0, *[x * 10 for x in (1.0, 3.5, 5.5, 6.5, 5.0, 2.0)], 2.0]
STORMS = [KIKONAI, NAGAYO, KATORI, HAKONE, BEYOND, SHORT]


@pytest.mark.parametrize("storm", STORMS)
@pytest.mark.parametrize("share", [1.0, 0.7, 0.5])
@pytest.mark.parametrize("before_mm", [0.0, 1.5])
@pytest.mark.parametrize("where", ["cell", "nearby"])
def test_true_storm_keeps_its_level_when_a_second_gauge_has_half_of_it(
    storm: list[float], share: float, before_mm: float, where: str
) -> None:
    """No step is lower than without any test; with one gauge none is below 3."""
    depths = [before_mm] * 72 + storm + [0.0] * 12
    other = [mm * share for mm in depths]
    # Flags are used as given here: without any, all rain counts.
    truth = [row.level or 0 for row in score_levels(gauge(depths), RULES.criteria)]
    if where == "cell":
        with_two = score_cell([*gauge(depths), *gauge(other, "n2")], RULES)
    else:
        with_two = score_cell(gauge(depths), RULES, nearby=around(other))
    alone = score_cell(gauge(depths), RULES)

    assert levels(with_two) == truth
    assert levels(alone) == [
        min(level, 3) if got < level else level
        for level, got in zip(truth, levels(alone), strict=True)
    ]


def test_catch_up_after_an_outage_has_the_level_of_the_truth() -> None:
    """Outages of 5 and 14 h in rain of 16 and 8 mm/h; level 4 when put in one step."""
    for hours, mm_per_h in ((5, 16.0), (14, 8.0)):
        before, storm = [1.0] * 72, [mm_per_h / 6] * (hours * HOUR)
        readings = gauge([*before, *storm, *[0.5] * 6])
        first, last = len(before) + 1, len(before) + len(storm)
        kept = [o for o in readings if not first <= o.seq < last]
        truth, rows = levels(score_cell(readings, RULES)), score_cell(kept, RULES).rows
        marked = [row for row in rows if any("one sum" in s for s in row.sentences)]

        assert [row.level or 0 for row in rows] == truth
        assert len(marked) == len(storm)
        assert flags(score_cell(kept, RULES)) == set()
        values = {o.seq: o.value for o in kept} | {last: sum(storm)}
        plain = [replace(o, sum=None, value=values[o.seq]) for o in kept]
        assert levels(score_cell(plain, RULES)) == truth, "without a counter"


@pytest.mark.parametrize("gap_s", [3500, 3700])
@pytest.mark.parametrize("rain_mm", [250.0, 450.0])
def test_doubtful_rain_after_a_gap_is_at_most_level_3(
    gap_s: int, rain_mm: float
) -> None:
    """A counter that restarts with the node, and a report above the limits."""
    before = gauge([0.0] * 30)
    at_s = before[-1].at_s + gap_s
    report = replace(
        before[-1], at_s=at_s, value=rain_mm, sum=rain_mm, boot="c", seq=31,
        received_us=round((at_s + 2) * 1e6),
    )  # fmt: skip
    known = [*(replace(o, sum=500.0) for o in before), report]
    scores = score_cell(known, RULES)

    assert flags(scores) & {"range", "rain_range"}
    assert max(levels(scores)) == 3


def test_newest_report_after_an_outage_with_a_restart_is_no_cloudburst() -> None:
    """It arrives before the backlog of 6 h of 25 mm/h; the counter has 150 mm more."""
    readings = gauge([0.0] * 30 + [25 / 6] * 36)
    kept = [*readings[:31], replace(readings[-1], boot="c")]
    truth = score_cell(readings, RULES).rows[-1]
    first = score_cell(kept, RULES).rows[-1]
    assert first.rain.tanks
    assert truth.rain.tanks

    assert first.level == truth.level == 2
    assert first.rain.r60_mm == pytest.approx(truth.rain.r60_mm, abs=5.0)
    assert first.rain.tanks.index_mm == pytest.approx(
        truth.rain.tanks.index_mm, abs=5.0
    )
    assert first.rain.is_lower_bound


def test_wrong_counter_beside_the_own_depth_has_the_level_of_the_truth() -> None:
    """One counter of 32 set bits, times 0.5 mm: the tanks would be full for weeks."""
    readings = gauge([2.0] * 12 + [0.0] * 24)
    wrong = [replace(o, sum=0xFFFF_FFFF * 0.5) if o.seq == 20 else o for o in readings]
    scores = score_cell(wrong, RULES)

    assert levels(scores) == levels(score_cell(readings, RULES))
    assert flags(scores) == {"rain_range", "counter_back"}


@lru_cache(maxsize=1)
def november() -> dict[str, list[Observation]]:
    """Two weeks of storms at four gauges a few km apart, in reports of 15 minutes.

    M1 clogged in three of them, and released once.
    """
    found: dict[str, list[Observation]] = {}
    with seattle("rain_15min_mukilteo_2015.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if "2015-11-06" < row["time_local"] < "2015-11-19":
                at = datetime.fromisoformat(row["time_local"]).replace(tzinfo=UTC)
                node, mm = row["station"], float(row["rain_mm_15min"])
                found.setdefault(node, []).append(
                    Observation(at.timestamp(), node, "rain", "mm", mm, boot="b")
                )
    return found


def faults_of(
    gauges: dict[str, list[Observation]], node: str = ""
) -> dict[str, list[Observation]]:
    """Suspect reports of each gauge, or one, beside the others at 2 km."""
    cells = {
        name: Cell.at(47.9 + n % 2 * 0.018, -122.3 + n // 2 * 0.027, ANALYSIS_LEVEL)
        for n, name in enumerate(gauges)
    }
    tokens = {name: cell.token for name, cell in cells.items()}
    rain = {tokens[name]: reports for name, reports in gauges.items()}
    near = collect_nearby_rain(rain, find_nearby_cells(rain, rain, 5.0))
    return {
        name: [
            o
            for o in flag_with_neighbours(
                reports, nearby=near[tokens[name]].neighbours()
            )
            if o.flag == 3
        ]
        for name, reports in gauges.items()
        if node in {name, ""}
    }


def codes(reports: Sequence[Observation]) -> set[str]:
    """Codes of reports."""
    return {str(reason.code) for o in reports for reason in o.reasons}


def test_recorded_clog_is_found_and_no_other_gauge_is_suspect() -> None:
    """The real clog and its release, and no false flag."""
    found = faults_of(november())

    assert {node: codes(reports) for node, reports in found.items()} == {
        "M1": {"clogged", "alone"},
        "VH": set(),
        "M2": set(),
        "LS-a": set(),
    }


@pytest.mark.parametrize(
    ("factor", "code"), [(1 / 25.4, "undercatch"), (10.0, "alone"), (0.0, "clogged")]
)
def test_wrong_unit_and_factor_and_clog_in_recorded_rain(
    factor: float, code: str
) -> None:
    """Inches for millimetres, ten times too much, and nothing, in the first storm."""
    gauges = november()
    wrong = [replace(o, value=(o.value or 0.0) * factor) for o in gauges["VH"]]
    found = faults_of(gauges | {"VH": wrong}, "VH")["VH"]
    fallen_mm = sum(o.value or 0.0 for o in gauges["VH"] if o.at_s < found[0].at_s)

    assert code in codes(found)
    assert fallen_mm < 40, "true rain before the first flag"


def test_fault_in_dry_recorded_weather_is_outvoted() -> None:
    """40 mm in two hours while the three others recorded nothing."""
    gauges = november()
    dry_s = next(
        o.at_s
        for o in gauges["VH"]
        if all(
            not each.value
            for reports in gauges.values()
            for each in reports
            if abs(each.at_s - o.at_s) <= 6 * 3600
        )
    )
    wrong = [
        replace(o, value=5.0) if 0 <= o.at_s - dry_s < 7200 else o for o in gauges["VH"]
    ]
    found = faults_of(gauges | {"VH": wrong})

    assert codes(found["VH"]) == {"alone"}
    assert codes([*found["M2"], *found["LS-a"]]) == set()


def sent(
    reports: Sequence[Observation], slow_s: float, wait_s: float = 2.0
) -> list[Observation]:
    """The reports of a clock that is slow, received after a wait."""
    return [
        replace(
            o, at_s=o.at_s - slow_s, received_us=round((o.at_s + wait_s) * 1e6), seq=n
        )
        for n, o in enumerate(reports)
    ]


def test_clock_that_is_slow_is_told_by_the_times_of_receipt() -> None:
    """Nine hours in recorded rain, from the second hour on; no flag for waits."""
    reports = november()["LS-a"][:192]
    late = flag_with_neighbours(sent(reports, 9 * 3600))
    suspect = [o for o in late if o.flag == 3]

    assert codes(suspect) == {"clock_lag"}
    assert len(suspect) >= len(reports) - 8
    assert suspect[0].why == "clock: 9.0 h slow, by the times of receipt"
    for wait_s in (2.0, 3000.0):
        assert codes(flag_with_neighbours(sent(reports, 0.0, wait_s))) == set()


@pytest.mark.parametrize("per_hour", [12, 60])
@pytest.mark.parametrize("is_live", [True, False])
def test_backlog_of_an_outage_is_no_slow_clock(per_hour: int, is_live: bool) -> None:
    """Sent over hours, oldest first, with or without new messages among it."""
    reports = november()["LS-a"][:96]
    back_s = reports[-1].at_s
    backlog = [
        replace(o, received_us=round((back_s + n * 3600 / per_hour) * 1e6), seq=n)
        for n, o in enumerate(reports)
    ]
    live = sent(
        [replace(o, at_s=back_s + n * 900) for n, o in enumerate(reports[:32])], 0.0
    )
    found = flag_with_neighbours([*backlog, *(live if is_live else [])])

    assert "clock_lag" not in codes(found)

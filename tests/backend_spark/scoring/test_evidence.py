"""Wires, shocks and streams of a cell, and how they confirm each other."""

import gc
import json
import random
import weakref

import pytest

from backend_spark.scoring.evidence import CellEvidence
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import LevelRow, score_cell
from slope_science.levels import Criteria, combine_findings

T0 = 1_700_006_400  # a full hour
STEP = 600
RULES = CellRules(Criteria.assumed_from(150.0))
QUIET = [2.0, 3.0, 1.0] * 12


def shocks(
    counts: list[float], every_s: int = STEP, node: str = "n1"
) -> list[Observation]:
    """A vibration sensor's readings."""
    return [
        Observation(T0 + n * every_s, node, "vib", "count", count, seq=n)
        for n, count in enumerate(counts)
    ]


def wire(cuts: dict[int, bool], name: str = "wire") -> list[Observation]:
    """A trip wire's reports by seconds after `T0`."""
    return [
        Observation(T0 + s, "n1", name, None, float(cut), str(cut).lower())
        for s, cut in cuts.items()
    ]


def stream(metres: list[float]) -> list[Observation]:
    """A water level's readings."""
    return [
        Observation(T0 + n * STEP, "n1", "creek", "m", value, seq=n)
        for n, value in enumerate(metres)
    ]


def last(observations: list[Observation]) -> tuple[int | None, tuple[str, ...]]:
    """Level and reasons of the last row, without reasons of rain."""
    row = score_cell(observations, RULES).rows[-1]
    return row.level, tuple(r for r in row.sentences if "rain" not in r)


def test_shocks_above_their_usual_count_are_level_2() -> None:
    """Counts that are usual for the sensor give no level."""
    level, reasons = last(shocks([*QUIET, 40.0]))

    assert level == 2
    assert reasons == ("n1 vib 40 shocks in 10 min >= 10 of its own past, unconfirmed",)
    assert last(shocks([*QUIET, 9.0]))[0] is None
    assert last(shocks([40.0, 60.0, 50.0] * 12))[0] is None


@pytest.mark.parametrize("every_s", [60, 600])
def test_shocks_at_two_nodes_are_an_earthquake(every_s: int) -> None:
    """Each feels it; it is no slide at either."""
    counts = [*QUIET * (STEP // every_s), *[90.0] * 3]
    rows = score_cell(
        [*shocks(counts, every_s), *shocks(counts, every_s, "n2")], RULES
    ).rows

    assert max(row.level or 1 for row in rows) == 2


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("before", [0, 4])
def test_shocks_confirm_no_kick(node: str, before: int) -> None:
    """An earthquake shifts a pole as it shakes it, and so do road works."""
    counts = [*QUIET, *[90.0] * 6]
    kicked = [
        Observation(T0 + n * STEP, node, f"tilt/{axis}", "deg", value)
        for n in range(len(counts))
        for axis, value in (
            ("x", float(n >= len(QUIET) + before)),
            ("y", 0.001 * (n % 2)),
        )
    ]
    rows = score_cell([*shocks(counts), *kicked], RULES).rows

    assert max(row.level or 1 for row in rows) == 2


def test_shocks_need_three_hours_of_data() -> None:
    """A new sensor has no usual count yet."""
    assert last(shocks([*[2.0] * 17, 40.0]))[0] is None
    assert last(shocks([*[2.0] * 18, 40.0]))[0] == 2


def test_count_after_an_outage_is_averaged() -> None:
    """A count that accumulated over an outage is compared by its mean per step."""
    quiet = shocks(QUIET)
    at_s = quiet[-1].at_s + 6 * STEP
    late = Observation(at_s, "n1", "vib", "count", 42.0)
    burst = Observation(at_s, "n1", "vib", "count", 420.0)

    assert last([*quiet, late])[0] is None
    assert last([*quiet, burst])[0] == 2


CUT_S = len(QUIET) * STEP - 30


@pytest.mark.parametrize(
    ("others", "confirmation"),
    [
        ([], "unconfirmed"),
        (shocks([*QUIET, 40.0]), "confirmed by n1 vib"),
        (shocks([*QUIET, 3.0]), "unconfirmed"),
        (stream([*[0.2] * 36, 0.6, 0.6]), "confirmed by n1 creek"),
        (stream([*[0.2] * 36, 0.4, 0.4]), "unconfirmed"),
        (stream([*[0.2] * 36, 0.6]), "unconfirmed"),
        (wire({0: False, CUT_S + 90: True}, "lower"), "confirmed by n1 "),
        (wire({0: False, CUT_S - 300: True}, "lower"), "unconfirmed"),
    ],
)
def test_cut_wire_is_confirmed_by_events_within_two_minutes(
    others: list[Observation], confirmation: str
) -> None:
    """By shocks, a jump of the stream, or another wire; the level is 5 in any case."""
    level, reasons = last([*others, *wire({0: False, CUT_S: True})])
    wire_reasons = [r for r in reasons if r.startswith("n1 wire is cut")]

    assert level == 5
    assert confirmation in wire_reasons[0]


def test_confirmed_cut_stays_confirmed() -> None:
    """Also for notices, independent of the other sensor's later readings."""
    events = [*shocks([*QUIET, 40.0]), *wire({0: False, CUT_S: True})]
    rows = score_cell([*events, *wire({CUT_S + 13 * 3600: True})], RULES).rows

    assert "confirmed by n1 vib" in rows[-1].sentences[0]
    assert (rows[-1].level, rows[-1].more["notice_level"]) == (5, None)


def test_unconfirmed_cut_sounds_sirens_for_half_an_hour() -> None:
    """After that the level stays shown; the notice is of level 3, and says why."""
    rows = score_cell(wire({0: False, 600: True, 72 * 3600: True}), RULES).rows[1:]

    assert {row.level for row in rows} == {5}
    notices = [row.more["notice_level"] for row in rows]
    assert notices.index(3) == 3 + 1
    assert set(notices[4:]) == {3}
    assert rows[-1].sentences[0] == (
        "n1 wire is cut: a flow may have occurred, unconfirmed for 72 h, so notices "
        "are of level 3"
    )


def tilting(from_s: int, to_s: int, deg_per_h: float = 0.3) -> list[Observation]:
    """A tilt meter that stands still, and moves between two times after `T0`."""
    return [
        Observation(
            T0 + s, "n2", f"tilt/{axis}", "deg", share * deg_per_h / 3600 * moved
        )
        for s in range(0, to_s + 1, 120)
        for moved in [max(0, s - from_s)]
        for axis, share in (("x", 1.0), ("y", 0.5))
    ]


def of_wire(row: LevelRow) -> str:
    """The reason of the wire in a row."""
    return next(r for r in row.sentences if "n1 wire is cut" in r)


HOUR = 3600


def test_cut_while_a_tilt_meter_moves_is_confirmed_by_it() -> None:
    """The movement began before the cut and goes on after it."""
    moving = tilting(4 * HOUR, 9 * HOUR)
    cut = wire({0: False, 7 * HOUR + 300: True, 9 * HOUR: True})
    rows = score_cell([*moving, *cut], RULES).rows
    after = [row for row in rows if row.end_s > T0 + 7 * HOUR + 300]

    assert {"confirmed by n2 tilt" in of_wire(row) for row in after} == {True}
    assert not any("unconfirmed" in r for row in after for r in row.sentences)


def test_neither_sensor_is_unconfirmed_beside_the_one_that_it_confirms() -> None:
    """A cut, and a tilt that shows only after the two minutes of the wire."""
    moving = tilting(7 * HOUR, 10 * HOUR, 3.0)
    cut = wire({0: False, 7 * HOUR + 120: True, 10 * HOUR: True})
    rows = score_cell([*moving, *cut], RULES).rows
    tilts = [row for row in rows if any("n2 tilt" in r for r in row.sentences)]

    assert tilts
    for row in tilts:
        assert not any("unconfirmed" in reason for reason in row.sentences)


def test_confirmation_lasts_as_long_as_the_exceedance() -> None:
    """A rate has no time of its own; it is one event until it falls."""
    moving = tilting(4 * HOUR, 12 * HOUR)
    cut = wire({0: False, 6 * HOUR: True, 6 * HOUR + 60: False})
    rows = score_cell([*moving, *cut], RULES).rows
    tilt = [
        reason
        for row in rows
        if row.end_s > T0 + 6 * HOUR
        for reason in row.sentences
        if reason.startswith("n2 tilt")
    ]

    assert len(tilt) > 30
    assert {"confirmed by n1 wire" in reason for reason in tilt} == {True}


def test_shocks_long_before_the_cut_confirm_nothing() -> None:
    """Shocks an hour before the cut are unrelated."""
    observations = [
        *shocks([*QUIET[:-6], 40.0, *QUIET[-5:]]),
        *wire({0: False, CUT_S: True}),
    ]

    assert "unconfirmed" in last(observations)[1][0]


def creeping(spike_at: int, count: int) -> list[Observation]:
    """A rod at 3 mm/h, and a still tilt meter with one reading 3 deg off."""
    noise = random.Random(3)
    found = []
    for n in range(count):
        at_s = T0 + n * STEP
        off, mm = 3.0 * (n == spike_at), noise.gauss(n / 2, 0.05)
        found += [
            Observation(at_s, "n1", "rod", "mm", mm),
            Observation(at_s, "n1", "tilt/x", "deg", noise.gauss(off, 0.002)),
            Observation(at_s, "n1", "tilt/y", "deg", noise.gauss(off, 0.002)),
        ]
    return found


@pytest.mark.parametrize("has_begun", [True, False])
def test_spike_ends_its_level_in_a_pass_from_a_saved_state(has_begun: bool) -> None:
    """A state of an earlier program, without the beginnings, is read; it holds."""
    at = 30
    observations = creeping(at, at + 2)
    ends = [(T0 + n * STEP, 0.0) for n in range(at + 2)]
    spiked_s = ends[at][0]
    first = CellEvidence(observations, ends[: at + 1], due=[spiked_s])
    past = json.loads(json.dumps(first.states[spiked_s]))
    if not has_begun:
        del past["begun"]
    after = CellEvidence(observations, ends[at + 1 :], past=past, past_s=spiked_s)

    assert combine_findings(first.at(spiked_s).findings).level == 4
    level = combine_findings(after.at(ends[-1][0]).findings).level
    assert level == (3 if has_begun else 4)


def test_evidence_is_freed_with_its_last_reference() -> None:
    """Passes run without a search for cycles: one per cell would fill the memory."""
    gc.disable()
    try:
        evidence = CellEvidence(shocks(QUIET), [(T0 + STEP, 0.0)])
        is_there = weakref.ref(evidence)
        del evidence

        assert is_there() is None
    finally:
        gc.enable()

"""The level of a cell, step by step: a pure function of its readings.

Rules: a gap is never zero rain. In a gap the tanks drain, and from then on the
index is marked a lower bound. After more than a day without rain data there is
no judgement, unless a sign of motion speaks for itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from backend_spark.transforms.motion import (
    TiltMeter,
    Wire,
    motion_findings,
    tilt_meters,
    wires,
)
from backend_spark.transforms.observation import TILT_UNIT, Observation, suspects
from backend_spark.transforms.quality import reflagged
from backend_spark.transforms.rain import (
    SPREAD_S,
    RainReading,
    StepRain,
    cell_rain,
    read_gauge,
)
from backend_spark.transforms.steps import STEP_S, step_end_s, step_ends
from slope_science.criteria import Criteria
from slope_science.levels import LOWEST, Finding, Judgement, judge, rain_finding
from slope_science.quality import Flag
from slope_science.soil_water import TEN_MINUTES_H, SoilWater

TRUTHS: Final = {"true": True, "false": False}
STEPS_PER_HOUR: Final = 3600 // STEP_S
NO_JUDGEMENT_AFTER_S: Final = 24 * 3600
DAY_S: Final = 86_400
DOUBT_THE_DEPTH: Final = ("range", "released", "node")
"""Tests whose suspicion says that less may have fallen."""


@dataclass(frozen=True)
class RainState:
    """Rain and soil water at the end of a step.

    Attributes:
        r60_mm: Rain of the last hour; None when no step of it is known.
        tanks: Water in the soil; None before the first rain data.
        is_known: Whether the step's rain is known.
        is_lower_bound: Whether rain was missed since the start.
        gap_s: How long no rain data came.
        history_s: Time since the first rain data.
    """

    r60_mm: float | None = None
    tanks: SoilWater | None = None
    is_known: bool = False
    is_lower_bound: bool = False
    gap_s: int = 0
    history_s: int = 0


@dataclass(frozen=True)
class LevelRow:
    """One row of the levels table, without its cell."""

    end_s: int
    rain: RainState
    tilt_rate_deg_per_h: float | None
    level: int | None
    reasons: tuple[str, ...]
    n_nodes: int
    latest_received_us: int | None


@dataclass(frozen=True)
class Cell:
    """Readings of one cell, sorted by what they tell."""

    ends_s: Sequence[int]
    rain: Sequence[StepRain]
    meters: Sequence[TiltMeter]
    trips: Sequence[Wire]


@dataclass(frozen=True)
class Assessment:
    """All that scoring says of a cell.

    Attributes:
        rows: Rows of levels that new readings can have changed.
        reflagged: Readings whose flag is no longer what silver has.
    """

    rows: list[LevelRow]
    reflagged: list[Observation]


def assess(
    observations: Sequence[Observation],
    criteria: Criteria,
    touched_s: float | None = None,
) -> Assessment:
    """Flag the readings of a cell among their neighbours, then judge it.

    Args:
        observations: As for `score`, with the flags that silver has.
        criteria: What its rain is judged against.
        touched_s: As for `score`.
    """
    from_s = float("-inf") if touched_s is None else touched_s
    known = reflagged(observations, from_s)
    had = {
        (o.node, o.boot, o.seq, o.name, o.at_s): (o.flag, o.why) for o in observations
    }
    changed = [
        o
        for o in known
        if had[o.node, o.boot, o.seq, o.name, o.at_s] != (o.flag, o.why)
    ]
    return Assessment(score(known, criteria, touched_s), changed)


def score(
    observations: Sequence[Observation],
    criteria: Criteria,
    touched_s: float | None = None,
) -> list[LevelRow]:
    """Judge a cell at the end of every step from its first to its last reading.

    Args:
        observations: Everything known of the cell within the horizon, any order.
        criteria: What its rain is judged against.
        touched_s: Unix time of the earliest reading that is new; only rows it can
            change are returned. None returns all.
    """
    if not observations:
        return []
    cell = _sorted_out(observations)
    from_s = changed_from_s(observations, touched_s)
    spoken = _by_step(observations)
    rows = []
    for end_s, rain, sure in zip(
        cell.ends_s, rain_states(cell.rain), _sure_states(cell.rain), strict=True
    ):
        if end_s >= from_s:
            rate, motion = motion_findings(cell.meters, cell.trips, end_s)
            level, reasons = judge_step(rain, motion, criteria, sure)
            heard = spoken.get(end_s, [])
            rows.append(
                LevelRow(
                    end_s,
                    rain,
                    rate,
                    level,
                    reasons + _doubts(heard),
                    len({o.node for o in heard}),
                    max((o.received_us for o in heard), default=None),
                )
            )
    return rows


def changed_from_s(
    observations: Iterable[Observation], touched_s: float | None
) -> float:
    """Unix time from which new readings can change rows.

    Rain is spread back up to an hour, and the steps since the last reading before
    have no rows yet.
    """
    if touched_s is None:
        return float("-inf")
    earlier = [o.at_s for o in observations if o.at_s < touched_s]
    return min(max(earlier, default=touched_s), touched_s - SPREAD_S)


def rain_states(series: Iterable[StepRain]) -> Iterator[RainState]:
    """Run rain through the soil, one state for each step."""
    recent: list[StepRain] = []
    state = RainState()
    for rain in series:
        recent = [*recent[1 - STEPS_PER_HOUR :], rain]
        if state.tanks is None and not rain.is_known:
            yield state  # nothing to say before the first rain data
            continue
        tanks = state.tanks or SoilWater()
        any_known = any(step.is_known for step in recent)
        state = RainState(
            r60_mm=sum(step.depth_mm for step in recent) if any_known else None,
            tanks=tanks.after(rain.depth_mm, TEN_MINUTES_H),
            is_known=rain.is_known,
            is_lower_bound=state.is_lower_bound or not rain.is_known,
            gap_s=0 if rain.is_known else state.gap_s + STEP_S,
            history_s=state.history_s + STEP_S,
        )
        yield state


def _sure_states(series: Sequence[StepRain]) -> Iterator[RainState | None]:
    """The same without rain that only doubtful readings tell; None where it is so."""
    if not any(step.doubted_mm for step in series):
        return iter([None] * len(series))
    sure = (
        StepRain(max(0.0, step.depth_mm - step.doubted_mm), step.is_known)
        for step in series
    )
    return rain_states(sure)


def judge_step(
    rain: RainState,
    motion: Iterable[Finding | None],
    criteria: Criteria,
    sure: RainState | None = None,
) -> tuple[int | None, tuple[str, ...]]:
    """Level and reasons at the end of one step; no level is no judgement.

    Args:
        rain: Rain and soil water, with all that counts.
        motion: What other sensors say.
        criteria: What rain is judged against.
        sure: Rain and soil water without doubtful rain; None when there is none.
    """
    can_judge = rain.tanks is not None and rain.gap_s <= NO_JUDGEMENT_AFTER_S
    signs = list(motion)
    if can_judge:
        judgement = judge([*signs, _rain_finding(rain, criteria)])
        if sure is not None:
            without = judge([*signs, _rain_finding(sure, criteria)])
            judgement = _unconfirmed(judgement, without, sure)
        note = ("soil water index is a lower bound: rain data were missing",)
        return judgement.level, judgement.reasons + note * rain.is_lower_bound
    judgement = judge(signs)
    silence = f"for {rain.gap_s / 3600:.0f} h" if rain.tanks else "yet"
    reasons = (*judgement.reasons, f"no judgement of rain: no rain data {silence}")
    return (judgement.level if judgement.level > LOWEST else None), reasons


def _rain_finding(rain: RainState, criteria: Criteria) -> Finding | None:
    if rain.tanks is None:
        return None
    return rain_finding(rain.r60_mm or 0.0, rain.tanks.index_mm, criteria)


def _unconfirmed(judged: Judgement, without: Judgement, sure: RainState) -> Judgement:
    """Say so when a level rests on rain that only doubtful readings tell."""
    if judged.level == without.level:
        return judged
    index_mm = sure.tanks.index_mm if sure.tanks else 0.0
    note = (
        f"high, unconfirmed: level {without.level} without suspect rain (soil water "
        f"index {index_mm:.1f} mm)"
    )
    return Judgement(judged.level, (note, *judged.reasons))


def _doubts(heard: Iterable[Observation]) -> tuple[str, ...]:
    """Suspect readings that count in a step, gathered by their reason."""
    by_why: dict[str, list[str]] = {}
    for sensor, why in suspects(heard).items():
        by_why.setdefault(why, []).append(sensor)
    return tuple(
        f"suspect: {', '.join(sorted(sensors))} ({why})"
        for why, sensors in sorted(by_why.items())
    )


def _sorted_out(observations: Sequence[Observation]) -> Cell:
    times_s = [o.at_s for o in observations]
    ends_s = step_ends(step_end_s(min(times_s)), step_end_s(max(times_s)))
    gauges: dict[str, list[RainReading]] = {}
    axes = []
    truths = []
    for o in observations:
        sensor, _, axis = o.name.rpartition("/")
        if o.is_rain:
            gauges.setdefault(o.node, []).append(_rain_reading(o))
        elif not o.counts or o.value is None:
            continue
        elif axis in {"x", "y"} and o.unit == TILT_UNIT:
            axes.append((f"{o.node} {sensor}", axis, o.at_s, o.value))
        elif o.text in TRUTHS:
            truths.append((f"{o.node} {o.name}", o.at_s, TRUTHS[o.text]))
    rain = cell_rain([read_gauge(readings) for readings in gauges.values()], ends_s)
    return Cell(ends_s, rain, tilt_meters(axes), wires(truths))


def _rain_reading(o: Observation) -> RainReading:
    is_doubted = o.flag == Flag.SUSPECT and (o.why or "").startswith(DOUBT_THE_DEPTH)
    return RainReading(o.at_s, o.sum, o.value, not o.counts, is_doubted)


def _by_step(observations: Iterable[Observation]) -> dict[int, list[Observation]]:
    """What was heard in each step."""
    spoken: dict[int, list[Observation]] = {}
    for o in observations:
        spoken.setdefault(step_end_s(o.at_s), []).append(o)
    return spoken

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
from backend_spark.transforms.rain import (
    SPREAD_S,
    RainReading,
    StepRain,
    cell_rain,
    read_gauge,
)
from backend_spark.transforms.steps import STEP_S, step_end_s, step_ends
from slope_science.criteria import Criteria
from slope_science.levels import LOWEST, Finding, judge, rain_finding
from slope_science.soil_water import TEN_MINUTES_H, SoilWater

RAIN: Final = "rain"
RAIN_UNIT: Final = "mm"
TILT_UNIT: Final = "deg"
TRUTHS: Final = {"true": True, "false": False}
STEPS_PER_HOUR: Final = 3600 // STEP_S
NO_JUDGEMENT_AFTER_S: Final = 24 * 3600
DAY_S: Final = 86_400


@dataclass(frozen=True)
class Observation:
    """One reading of a cell, as silver holds it.

    Attributes:
        at_s: Unix time of the reading.
        node: Who read it.
        name: What, such as ``rain`` or ``tilt/x``.
        unit: SenML unit.
        value: Number; 1 or 0 for a truth.
        text: ``true`` or ``false`` for a truth.
        sum: Of a counter.
        received_us: Unix time of receipt, in microseconds.
    """

    at_s: float
    node: str
    name: str
    unit: str | None = None
    value: float | None = None
    text: str | None = None
    sum: float | None = None
    received_us: int = 0


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
    audience = _audience(observations)
    rows = []
    for end_s, rain in zip(cell.ends_s, rain_states(cell.rain), strict=True):
        if end_s >= from_s:
            rate, motion = motion_findings(cell.meters, cell.trips, end_s)
            level, reasons = judge_step(rain, motion, criteria)
            nodes, latest_us = audience.get(end_s, (set(), None))
            rows.append(
                LevelRow(end_s, rain, rate, level, reasons, len(nodes), latest_us)
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


def judge_step(
    rain: RainState, motion: Iterable[Finding | None], criteria: Criteria
) -> tuple[int | None, tuple[str, ...]]:
    """Level and reasons at the end of one step; no level is no judgement."""
    can_judge = rain.tanks is not None and rain.gap_s <= NO_JUDGEMENT_AFTER_S
    findings = list(motion)
    if can_judge and rain.tanks is not None:
        index_mm = rain.tanks.index_mm
        findings.append(rain_finding(rain.r60_mm or 0.0, index_mm, criteria))
    judgement = judge(findings)
    if can_judge:
        note = ("soil water index is a lower bound: rain data were missing",)
        return judgement.level, judgement.reasons + note * rain.is_lower_bound
    silence = f"for {rain.gap_s / 3600:.0f} h" if rain.tanks else "yet"
    reasons = (*judgement.reasons, f"no judgement of rain: no rain data {silence}")
    return (judgement.level if judgement.level > LOWEST else None), reasons


def _sorted_out(observations: Sequence[Observation]) -> Cell:
    times_s = [o.at_s for o in observations]
    ends_s = step_ends(step_end_s(min(times_s)), step_end_s(max(times_s)))
    gauges: dict[str, list[RainReading]] = {}
    axes = []
    truths = []
    for o in observations:
        sensor, _, axis = o.name.rpartition("/")
        if o.name == RAIN and o.unit == RAIN_UNIT:
            reading = RainReading(o.at_s, o.sum, o.value)
            gauges.setdefault(o.node, []).append(reading)
        elif axis in {"x", "y"} and o.unit == TILT_UNIT and o.value is not None:
            axes.append((f"{o.node} {sensor}", axis, o.at_s, o.value))
        elif o.text in TRUTHS and o.value is not None:
            truths.append((f"{o.node} {o.name}", o.at_s, TRUTHS[o.text]))
    rain = cell_rain([read_gauge(readings) for readings in gauges.values()], ends_s)
    return Cell(ends_s, rain, tilt_meters(axes), wires(truths))


def _audience(
    observations: Iterable[Observation],
) -> dict[int, tuple[set[str], int]]:
    """Nodes that spoke in each step, and when the last of it was received."""
    audience: dict[int, tuple[set[str], int]] = {}
    for o in observations:
        end_s = step_end_s(o.at_s)
        nodes, latest_us = audience.get(end_s, (set(), 0))
        nodes.add(o.node)
        audience[end_s] = (nodes, max(latest_us, o.received_us))
    return audience

"""Readings of one cell as a pass uses them: rain and soil water by step, and movement.

The newest step is not over at the last report. Its state is that at the report: the
hour up to it, and tanks that are advanced as far as it covers the step. It keeps this
state where the reports end in it, so that the level does not fall with the gauge.
States of the whole step are the ones from which later steps are computed.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Final

from backend_spark.scoring.evidence import NO_STATE, CellEvidence, TiltEstimate
from backend_spark.scoring.observation import (
    RAIN,
    RAIN_UNIT,
    STEP_S,
    Observation,
    step_end_s,
    step_ends,
)
from backend_spark.scoring.quality import FLAG_REACH_S
from backend_spark.scoring.rain import (
    MAX_CATCH_UP_S,
    NO_RAIN_PAST,
    NOT_BEGUN,
    Gauge,
    RainPast,
    RainState,
    StepRain,
    cell_rain,
    fill_missing,
    gap_begins,
    last_hour,
    rain_reading,
    rain_states,
    read_gauge,
    undoubted_states,
    without_doubt,
)
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.saved_states import (
    MIN_STATE_AGE_S,
    ScoringState,
)
from slope_science.evidence.settings import DEFAULT_EVIDENCE, EvidenceSettings
from slope_science.failure_time import (
    FIT_SPAN_H,
    FailureForecast,
    forecast_failure,
)
from slope_science.levels import Finding
from slope_science.movement import Velocity, fit_velocity
from slope_science.quality import NEIGHBOUR_S, Flag, Verdict, worst_verdict
from slope_science.rain_and_soil_water import (
    ANTECEDENT_DAYS,
    LONG_HALF_LIFE_H,
    SHORT_HALF_LIFE_H,
    STEPS_PER_HOUR,
    TEN_MINUTES_H,
    SoilWater,
    antecedent_index,
    effective_rain,
)
from slope_science.reasons import render_english

STEPS_PER_DAY: Final = 86_400 // STEP_S


@dataclass(frozen=True)
class RainSums:
    """Rain sums of a cell at each step.

    Attributes:
        short_mm: Effective rain with a half-life of 1.5 h.
        long_mm: With 72 h.
        totals_mm: Cumulative rain at the end of each step, beginning with saved ones.
        known: Cumulative number of steps with known rain, likewise.
        before: Number of saved steps.
    """

    short_mm: Sequence[float]
    long_mm: Sequence[float]
    totals_mm: Sequence[float]
    known: Sequence[int]
    before: int = 0

    @classmethod
    def from_steps(
        cls, series: Sequence[StepRain], past: RainPast = NO_RAIN_PAST
    ) -> "RainSums":
        """Accumulate the rain of all steps, starting from a saved state."""
        depths = [step.depth_mm for step in series]
        known = [*past.known, *(step.is_known for step in series)]
        return cls(
            effective_rain(depths, TEN_MINUTES_H, SHORT_HALF_LIFE_H, past.short_mm),
            effective_rain(depths, TEN_MINUTES_H, LONG_HALF_LIFE_H, past.long_mm),
            list(accumulate((*past.depths_mm, *depths), initial=0.0)),
            list(accumulate(known, initial=0)),
            len(past.known),
        )

    def antecedent_mm(self, at: int) -> float:
        """Antecedent index at the end of a step; days before the data count as dry."""
        end = self.before + at + 1
        ends = [max(0, end - day * STEPS_PER_DAY) for day in range(ANTECEDENT_DAYS + 1)]
        days = [self.totals_mm[a] - self.totals_mm[b] for a, b in pairwise(ends)]
        return antecedent_index([max(0.0, day) for day in days])

    def rain_mm(self, at: int, hours: float) -> float:
        """Known rain of the hours before the end of a step."""
        end = self.before + at + 1
        before = max(0, end - round(hours * STEPS_PER_HOUR))
        return self.totals_mm[end] - self.totals_mm[before]

    def completeness(self, at: int) -> float:
        """Share of the last 24 hours with known rain."""
        end = self.before + at + 1
        known = self.known[end] - self.known[max(0, end - STEPS_PER_DAY)]
        return known / STEPS_PER_DAY


HOUR_S: Final = 3600.0

DAY_S: Final = 86_400 + STEP_S


@dataclass
class ExtensometerSeries:
    """Readings of one extensometer, in time order.

    Attributes:
        sensor: Node and name.
        times_s: Unix times of the readings.
        moved_mm: Displacement at each.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    moved_mm: list[float] = field(default_factory=list)

    def speed(self, end_s: float) -> Velocity | None:
        """Speed over the hour before a moment; None with too few readings."""
        return fit_velocity(*self._past(end_s, 1.0))

    def displacement_mm(self, end_s: float, hours: float) -> float | None:
        """Displacement over the last hours; None without a reading at their start."""
        last = bisect_right(self.times_s, end_s) - 1
        first = bisect_right(self.times_s, end_s - hours * HOUR_S) - 1
        if first < 0 or self.times_s[first] < end_s - (hours + 1) * HOUR_S:
            return None
        return self.moved_mm[last] - self.moved_mm[first]

    def forecast_failure(self, end_s: float) -> FailureForecast | None:
        """Time of failure in hours after a moment, by Voight's law.

        None unless the speed exceeds its noise.
        """
        now = self.speed(end_s)
        if now is None or not now.exceeds(0.0):
            return None
        return forecast_failure(*self._past(end_s, FIT_SPAN_H))

    def _past(self, end_s: float, hours: float) -> tuple[list[float], list[float]]:
        start = bisect_right(self.times_s, end_s - hours * HOUR_S - 1e-6)
        end = bisect_right(self.times_s, end_s)
        times_h = [(t - end_s) / HOUR_S for t in self.times_s[start:end]]
        return times_h, self.moved_mm[start:end]


def group_extensometers(
    readings: Iterable[tuple[str, float, float]],
) -> list[ExtensometerSeries]:
    """Group (sensor, Unix time, mm) by sensor, in time order."""
    by_sensor: dict[str, ExtensometerSeries] = {}
    for sensor, at_s, moved_mm in sorted(readings):
        rod = by_sensor.setdefault(sensor, ExtensometerSeries(sensor))
        rod.times_s.append(at_s)
        rod.moved_mm.append(moved_mm)
    return list(by_sensor.values())


@dataclass(frozen=True)
class MovementSensors:
    """Movement sensors of one cell.

    Attributes:
        evidence: Evidence of all sensors, step by step.
        extensometers: Readings of the extensometers.
    """

    evidence: CellEvidence
    extensometers: Sequence[ExtensometerSeries] = ()

    def findings(self, end_s: int) -> tuple[float | None, list[Finding | None]]:
        """Fastest tilt at a moment in deg/h, and the findings of all sensors."""
        step = self.evidence.at(end_s)
        rates = [tilt.hour.deg_per_h for tilt in step.tilts.values() if tilt.hour]
        return max(rates, default=None), list(step.findings)


_MICRO: Final = 1_000_000
_HOURS_AHEAD: Final = 400 * 24.0
"""Later failure times are not written; they may lie beyond the year 9999."""


def make_sensor_rows(
    signs: MovementSensors, observations: Iterable[Observation], from_s: float
) -> list[dict[str, Any]]:
    """Rows of tilt meters and extensometers in steps with readings.

    Args:
        signs: Sensors of the cell.
        observations: Readings of the cell with their flags.
        from_s: Only steps that end then or later.

    Returns:
        Rows of schemas.SENSORS without the cell; missing columns are null.
    """
    rods = {rod.sensor: rod for rod in signs.extensometers}
    moving = {*rods, *signs.evidence.tilt_sensors}
    readings: dict[str, dict[int, _StepReadings]] = {sensor: {} for sensor in moving}
    for o in observations:
        if o.at_s > from_s - STEP_S and step_end_s(o.at_s) >= from_s:
            _note(readings, o)
    rows = []
    for sensor, steps in sorted(readings.items()):
        for end_s, seen in sorted(steps.items()):
            tilt = signs.evidence.at(end_s).tilts.get(sensor)
            if tilt is not None:
                columns = _tilt(tilt)
            elif sensor in rods:
                ahead = signs.evidence.at(end_s).failures.get(sensor)
                columns = _moved(rods[sensor], ahead, end_s)
            else:
                continue
            rows.append(_row(sensor, end_s, seen) | dict(columns))
    return rows


@dataclass
class _StepReadings:
    """Readings of one sensor in one step."""

    verdicts: list[Verdict] = field(default_factory=list)
    times_s: dict[str, set[float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of used readings; a tilt needs both axes."""
        x, y = self.times_s.get("x"), self.times_s.get("y")
        whole = self.times_s.get("", set())
        return len(x & y) if x and y else len(whole)


def _row(sensor: str, end_s: int, seen: _StepReadings) -> dict[str, Any]:
    node, _, name = sensor.partition(" ")
    return {
        "node": node,
        "sensor": name,
        "at": end_s * _MICRO,
        "n_readings": seen.count,
        "worst_flag": int(worst_verdict(seen.verdicts).flag),
    }


def _note(readings: dict[str, dict[int, _StepReadings]], o: Observation) -> None:
    """Collect a reading under its sensor and step."""
    sensor, _, part = o.name.rpartition("/")
    steps = readings.get(f"{o.node} {sensor or part}")
    if steps is None:
        return
    seen = steps.setdefault(step_end_s(o.at_s), _StepReadings())
    seen.verdicts.append(Verdict(Flag(o.flag or Flag.NOT_EVALUATED)))
    if o.counts and o.value is not None:
        seen.times_s.setdefault(part if sensor else "", set()).add(o.at_s)


def _tilt(tilt: TiltEstimate) -> Mapping[str, Any]:
    short, long, slope = tilt.hour, tilt.long, tilt.deg_per_k
    return {
        "kind": "tilt",
        "tilt_rate_deg_per_h": short and short.deg_per_h,
        "tilt_noise_deg_per_h": short and short.noise_deg_per_h(),
        "tilt_rate_6h_deg_per_h": long and long.deg_per_h,
        "tilt_noise_6h_deg_per_h": long and long.noise_deg_per_h(),
        "thermal_deg_per_k": slope and (slope[0] ** 2 + slope[1] ** 2) ** 0.5,
    }


def _moved(
    rod: ExtensometerSeries, ahead: FailureForecast | None, end_s: float
) -> Mapping[str, Any]:
    speed = rod.speed(end_s)
    columns: dict[str, Any] = {
        "kind": "displacement",
        "velocity_mm_per_h": speed and speed.mm_per_h,
        "velocity_sigma_mm_per_h": speed and speed.sigma_mm_per_h,
        "moved_24h_mm": rod.displacement_mm(end_s, 24.0),
    }
    if ahead is None:
        return columns
    gate = ahead.failed_gate(0.0)

    def at(ahead_h: float) -> int | None:
        is_near = abs(ahead_h) < _HOURS_AHEAD
        return round((end_s + ahead_h * HOUR_S) * _MICRO) if is_near else None

    return columns | {
        "failure_at": at(ahead.failure_h),
        "failure_earliest_at": at(ahead.earliest_h),
        "failure_latest_at": at(ahead.latest_h),
        "failure_half_width_h": min(ahead.half_width_h, _HOURS_AHEAD),
        "failure_r2": ahead.r2,
        "failure_points": ahead.points,
        "failure_usable": gate is None,
        "failure_gate": None if gate is None else render_english(gate),
    }


@dataclass(frozen=True)
class CellReadings:
    """Readings of one cell by kind.

    Attributes:
        ends_s: Ends of all steps from the first to the last reading.
        rain: Rain of each step.
        gauges: The gauges behind it.
        sensors: Sensors of movement.
        by_step: All readings of the steps to score, by step.
    """

    ends_s: Sequence[int]
    rain: Sequence[StepRain]
    sensors: MovementSensors
    by_step: Mapping[int, Sequence[Observation]]
    gauges: Sequence[Gauge] = ()

    def is_settled(self, at_s: float) -> bool:
        """Whether no catch-up can still change the rain before a moment.

        A gauge that was silent for longer than `MAX_CATCH_UP_S` may return, too: then
        its catch-up is spread over that time.
        """
        is_old = self.ends_s[-1] - at_s > MAX_CATCH_UP_S + MIN_STATE_AGE_S
        return is_old or not any(
            gauge.may_change(at_s, FLAG_REACH_S) for gauge in self.gauges
        )

    @classmethod
    def from_observations(
        cls,
        observations: Sequence[Observation],
        from_s: float = float("-inf"),
        past: ScoringState | None = None,
        settings: EvidenceSettings = DEFAULT_EVIDENCE,
        due: Collection[int] = (),
    ) -> "CellReadings":
        """Group readings.

        Args:
            observations: At least one reading, in any order; all of the cell, or those
                read in addition to a saved state.
            from_s: Start of the steps to score.
            past: Saved state; steps up to its end are left out.
            settings: Rules of movement and water.
            due: Ends of the steps at which the state of the rules is needed.
        """
        ends_s = list_steps(observations, past)
        spoken: dict[int, list[Observation]] = {}
        # The readings of a message have one time.
        by_time: dict[float, list[Observation]] = {}
        since_s = from_s - DAY_S
        for o in observations:
            at_s = o.at_s
            if at_s in by_time:
                by_time[at_s].append(o)
            elif at_s > since_s:
                in_step = spoken.setdefault(step_end_s(at_s), [])
                by_time[at_s] = in_step
                in_step.append(o)
        past_s = past.at_s if past else float("-inf")
        gauges = _reports_since(observations, past_s).values()
        found = [read_gauge(map(rain_reading, reports)) for reports in gauges]
        rain = cell_rain(found, ends_s)
        hours = list(zip(ends_s, _hourly_mm(rain, past), strict=True))
        signs = _signs(observations, hours, past, settings, due)
        return cls(ends_s, rain, signs, spoken, found)


def _reports_since(
    observations: Iterable[Observation], past_s: float
) -> dict[str, list[Observation]]:
    """Reports of each gauge after a moment, and the last one before.

    The rain of the others is in steps up to the moment.
    """
    last: dict[str, Observation] = {}
    later: dict[str, list[Observation]] = {}
    for o in observations:
        if not o.is_rain:
            continue
        if o.at_s > past_s:
            later.setdefault(o.node, []).append(o)
        elif o.node not in last or last[o.node].at_s <= o.at_s:
            last[o.node] = o
    return {
        node: [*([last[node]] if node in last else ()), *later.get(node, ())]
        for node in sorted({*last, *later})
    }


def list_steps(
    observations: Iterable[Observation], past: ScoringState | None
) -> Sequence[int]:
    """Ends of the steps from a saved state or the first reading to the last one."""
    times_s = [o.at_s for o in observations]
    first_s = past.at_s + STEP_S if past else step_end_s(min(times_s))
    return step_ends(first_s, step_end_s(max(times_s)))


def _hourly_mm(rain: Sequence[StepRain], past: ScoringState | None) -> Iterator[float]:
    """Rain of the hour up to each step."""
    before = past.rain.hour if past else ()
    steps = [*before, *rain]
    for at in range(len(before), len(steps)):
        yield sum(step.depth_mm for step in last_hour(steps, at))


def _signs(
    observations: Sequence[Observation],
    steps: Sequence[tuple[int, float]],
    past: ScoringState | None,
    settings: EvidenceSettings,
    due: Collection[int],
) -> MovementSensors:
    moved = [
        (f"{o.node} {o.name}", o.at_s, o.value)
        for o in observations
        if o.unit == RAIN_UNIT and o.name != RAIN and "/" not in o.name
        if o.counts and o.value is not None
    ]
    past_s = past.at_s if past else float("-inf")
    known = past.evidence if past else NO_STATE
    evidence = CellEvidence(
        observations, steps, settings, past=known, past_s=past_s, due=due
    )
    return MovementSensors(evidence, group_extensometers(moved))


def first_touched_s(
    changed: Iterable[Observation], touched_s: float | None
) -> float | None:
    """Unix time of the earliest new reading, or of rain that a catch-up confirms.

    Args:
        changed: Readings with a new flag.
        touched_s: Unix time of the earliest new reading; None for all.
    """
    if touched_s is None:
        return None
    far_s = touched_s - NEIGHBOUR_S  # later ones are in `FLAG_REACH_S`
    return min([touched_s, *(o.at_s for o in changed if o.at_s < far_s)])


def first_changed_s(
    observations: Iterable[Observation], touched_s: float | None
) -> float:
    """Unix time from which new readings can change rows.

    Includes the steps since the last older reading, which have no rows yet, and the
    step before, whose state may be that at its last report until the next one.
    """
    if touched_s is None:
        return float("-inf")
    earlier = [o.at_s for o in observations if o.at_s < touched_s]
    from_s = min(max(earlier, default=touched_s), touched_s - FLAG_REACH_S)
    begins_s = gap_begins(observations, touched_s - NEIGHBOUR_S)
    return min([from_s, *begins_s]) - STEP_S


class PassRain:
    """Rain of a cell in one pass over its steps.

    Args:
        steps: Rain of each step at the gauges of the cell.
        ends_s: End of each step.
        rules: Rules of the cell.
        past: Rain before the first step.

    Attributes:
        states: Rain and soil water at each step.
        sure: The same without doubtful rain; None where there is none.
        sources: Where the rain of a step is from that gives a level, if not the cell's.
        sums: Rain sums at each step.
    """

    def __init__(
        self,
        steps: Sequence[StepRain],
        ends_s: Sequence[int],
        rules: CellRules,
        past: RainPast,
    ) -> None:
        self._gauged, self._ends_s, self._past = steps, ends_s, past
        self._steps, sources = fill_missing(steps, ends_s, rules.substitute)
        self._hours = [*past.hour, *self._steps]
        self._whole = list(rain_states(self._steps, past.state, past.hour))
        self._whole_sure = list(undoubted_states(self._steps, past))
        self.sources = rules.keep_judged(sources, ends_s, self._whole)
        self.states, self.sure = list(self._whole), list(self._whole_sure)
        last, sure_last = past.state, past.sure or past.state
        for at, step in enumerate(self._steps):
            if step.parts and self._whole[at].tanks is not None:
                self.states[at] = self._at_report(at, self._whole[at], last)
            whole_sure = self._whole_sure[at]
            if step.parts and whole_sure is not None and whole_sure.tanks is not None:
                self.sure[at] = self._at_report(
                    at, whole_sure, sure_last, without_doubt
                )
            last, sure_last = self.states[at], self.sure[at] or self.states[at]
        self.sums = RainSums.from_steps(steps, past)

    def _at_report(
        self,
        at: int,
        whole: RainState,
        last: RainState,
        change: Callable[[StepRain], StepRain] = lambda step: step,
    ) -> RainState:
        """State at the last report in a step.

        Args:
            at: Index of the step.
            whole: State at its end.
            last: State before it.
            change: What is done with the rain of each step.
        """
        step = self._steps[at]
        hours = TEN_MINUTES_H * step.share
        tanks = (last.tanks or SoilWater()).step(change(step).depth_mm, hours)
        is_begun = step.share > NOT_BEGUN
        return replace(
            whole if is_begun else replace(last, is_known=False),
            r60_mm=sum(change(each).depth_mm for each in self.last_hour(at)),
            tanks=tanks,
            is_open=step.share < 1 and at >= len(self._steps) - 2,
        )

    def last_hour(self, at: int) -> Sequence[StepRain]:
        """Steps of the hour up to a step, or up to the last report in it."""
        return last_hour(self._hours, at + len(self._past.hour))

    def until_s(self, at: int) -> float:
        """Unix time of the state of a step: its end, or the last report in it."""
        share = self._steps[at].share
        if share > NOT_BEGUN or not at:
            return self._ends_s[at] - (1 - share) * STEP_S
        return self.until_s(at - 1)

    def past_at(self, at: int) -> RainPast:
        """Rain up to the end of a step, to save."""
        sums, past = self.sums, self._past
        end, hour = sums.before + at + 1, len(past.hour) + at + 1
        begin = max(0, end - ANTECEDENT_DAYS * STEPS_PER_DAY)
        steps = self._gauged[: at + 1]
        depths = [*past.depths_mm, *(step.depth_mm for step in steps)]
        known = [*past.known, *(step.is_known for step in steps)]
        return RainPast(
            self._whole[at],
            self._whole_sure[at],
            sums.short_mm[at],
            sums.long_mm[at],
            tuple(depths[begin:]),
            tuple(known[begin:]),
            tuple(self._hours[max(0, hour - STEPS_PER_HOUR) : hour]),
        )

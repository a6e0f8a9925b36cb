"""Evidence of movement and water in a cell: the node's rules over all its sensors.

Each sensor of each node has the rules that a node would run on it; two nodes of a cell
confirm each other. Readings enter in time order, and the rules judge at the end of each
step. Soil moisture and pore pressure are supporting evidence, of their series, by their
percentiles within the sensors' own past.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from backend_spark.scoring.observation import (
    COUNT_UNIT,
    MOISTURE_UNIT,
    PORE_UNIT,
    RAIN_UNIT,
    STEP_S,
    TEMPERATURE_UNIT,
    TILT_UNIT,
    WATER_LEVEL_UNIT,
    Observation,
    step_end_s,
)
from slope_science.evidence.detections import RuleContext, StatefulRule
from slope_science.evidence.displacement import DisplacementRule
from slope_science.evidence.judge import EvidenceJudge, make_family
from slope_science.evidence.samples import TILT_AXES, SensorSample
from slope_science.evidence.settings import DEFAULT_EVIDENCE, EvidenceSettings
from slope_science.evidence.soil_and_water_level import (
    SUCTION_H,
    SoilWetness,
    judge_moisture,
    judge_pore_pressure,
    summarize_wetness,
)
from slope_science.evidence.tilt import TiltRule
from slope_science.failure_time import FailureForecast
from slope_science.levels import Finding
from slope_science.movement import TiltRate
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode

BOOLEAN_TEXTS: Final = {"true": True, "false": False}
TILT_PARTS: Final = {
    "x": TILT_UNIT,
    "y": TILT_UNIT,
    "sigma": TILT_UNIT,
    "temp": TEMPERATURE_UNIT,
}
FAMILY_OF_UNIT: Final = {
    RAIN_UNIT: "displacement",
    COUNT_UNIT: "vibration",
    WATER_LEVEL_UNIT: "water_level",
}
JUDGED_BY_RULES: Final = frozenset({
    ReasonCode.STEP,
    ReasonCode.RATE,
    ReasonCode.CLOCK_NOT_SET,
    ReasonCode.CLOCK_LAG,
})
"""Doubts that do not exclude a reading: the rules test single steps themselves, several
fast readings in a row are movement, and durations need no exact clock."""

JUDGED_OF_TILT: Final = JUDGED_BY_RULES | {ReasonCode.FLAT}
"""A part that stands still is no evidence of movement."""

_USED_OF_TILT: Final = JUDGED_OF_TILT | {ReasonCode.NODE_FLAG}
"""A node marks tilt that jumps or stands still, which the rules test, too. Older nodes
mark each reading of a slide that moves by more than a degree between two."""

_DOUBTFUL: Final = frozenset(map(int, (Flag.SUSPECT, Flag.FAIL, Flag.MISSING)))

EvidenceState = dict[str, Any]
"""State of the rules and of the judge as JSON values."""

NO_STATE: Final[EvidenceState] = {}

HOUR_S: Final = 3600.0
SOIL_UNITS: Final = frozenset({MOISTURE_UNIT, PORE_UNIT})


@dataclass(frozen=True)
class TiltEstimate:
    """Estimates of a tilt sensor at the end of a step.

    Attributes:
        hour: Rate over an hour; None with too few readings.
        long: Rate over six hours.
        deg_per_k: Tilt of x and y per kelvin; None while unknown.
    """

    hour: TiltRate | None
    long: TiltRate | None
    deg_per_k: tuple[float, float] | None


@dataclass
class StepEvidence:
    """Evidence at the end of a step.

    Attributes:
        findings: Findings of all sensors.
        tilts: Estimates by tilt sensor.
        failures: Times of failure, in hours after the step, by extensometer.
    """

    findings: list[Finding]
    tilts: dict[str, TiltEstimate] = field(default_factory=dict)
    failures: dict[str, FailureForecast] = field(default_factory=dict)


class CellEvidence:
    """Findings of movement and water in a cell, step by step.

    Args:
        observations: Readings in any order, with flags.
        steps: Ends of steps, ascending, each with the rain of the hour before.
        settings: Settings of the rules.
        past: State at the end of the step before the first.
        past_s: Unix time of that state.
        due: Ends of the steps at which a state is saved.
    """

    def __init__(
        self,
        observations: Iterable[Observation],
        steps: Sequence[tuple[int, float]],
        settings: EvidenceSettings = DEFAULT_EVIDENCE,
        *,
        past: EvidenceState = NO_STATE,
        past_s: float = float("-inf"),
        due: Collection[int] = (),
    ) -> None:
        self._settings = settings
        # No method of this object: a cycle would keep it until a garbage collection.
        hold_s = partial(_hold_s, settings)
        self._judge = EvidenceJudge(settings.confirm_s, hold_s, names_rule=False)
        self._rules: dict[tuple[str, str], Sequence[StatefulRule]] = {}
        self.states: dict[int, EvidenceState] = {}
        self._steps: dict[int, StepEvidence] = {}
        if past:
            self._restore(past)
        self._run(observations, steps, past_s, due)

    def at(self, end_s: int) -> StepEvidence:
        """The evidence at the end of a step; none outside the given steps."""
        return self._steps.get(end_s) or StepEvidence([])

    @property
    def tilt_sensors(self) -> list[str]:
        """Names of the tilt sensors."""
        return [sensor for family, sensor in self._rules if family == "tilt"]

    def _run(
        self,
        observations: Iterable[Observation],
        steps: Sequence[tuple[int, float]],
        past_s: float,
        due: Collection[int],
    ) -> None:
        samples = _samples(o for o in observations if o.at_s > past_s)
        at = 0
        for end_s, r60_mm in steps:
            while at < len(samples) and samples[at][2].at_s <= end_s:
                family, sensor, sample = samples[at]
                for rule in self._rules_of(family, sensor):
                    rule.on_sample(sample)
                at += 1
            self._steps[end_s] = self._judged(end_s, r60_mm)
            if end_s in due:
                self.states[end_s] = self._to_state()

    def _judged(self, end_s: int, r60_mm: float) -> StepEvidence:
        rules = [rule for each in self._rules.values() for rule in each]
        if not rules:
            return StepEvidence([])
        found = self._judge.judge(rules, RuleContext(end_s, r60_mm=r60_mm))
        return StepEvidence(found, dict(_tilt_estimates(rules)), dict(_failures(rules)))

    def _rules_of(self, family: str, sensor: str) -> Sequence[StatefulRule]:
        key = family, sensor
        if key not in self._rules:
            self._rules[key] = make_family(family, sensor, self._settings)
            # in the order of their names, whichever reading was first
            self._rules = dict(sorted(self._rules.items()))
        return self._rules[key]

    def _to_state(self) -> EvidenceState:
        return {
            "rules": [
                [*key, [rule.to_state() for rule in rules]]
                for key, rules in self._rules.items()
            ],
            "judge": self._judge.to_state(),
            "begun": self._judge.begun.to_state(),
        }

    def _restore(self, past: EvidenceState) -> None:
        for family, sensor, states in past["rules"]:
            for rule, state in zip(
                self._rules_of(family, sensor), states, strict=False
            ):
                rule.restore_state(state)
        self._judge.restore_state(past["judge"])
        self._judge.begun.restore_state(past.get("begun", []))  # older: absent


def _hold_s(settings: EvidenceSettings, rule: str) -> float:
    hold_s: float = getattr(settings.rules, rule).hold_s
    return hold_s


def _tilt_estimates(
    rules: Iterable[StatefulRule],
) -> Iterable[tuple[str, TiltEstimate]]:
    for rule in rules:
        if isinstance(rule, TiltRule):
            hour, long = rule.rates
            yield rule.sensor, TiltEstimate(hour, long, rule.deg_per_k)


def _failures(
    rules: Iterable[StatefulRule],
) -> Iterable[tuple[str, FailureForecast]]:
    for rule in rules:
        if isinstance(rule, DisplacementRule) and rule.forecast is not None:
            yield rule.sensor, rule.forecast


def _samples(
    observations: Iterable[Observation],
) -> list[tuple[str, str, SensorSample]]:
    """Family, sensor and sample of each instant of a sensor, in time order."""
    keyed = []
    targets: dict[tuple[str, str, str | None, bool], tuple[str, str, str] | None] = {}
    for o in observations:
        series = o.node, o.name, o.unit, o.text is None
        if series not in targets:
            targets[series] = _target(o)
        target = targets[series]
        if target is not None and o.counts and o.value is not None:
            keyed.append((o.at_s, target[:2], target[2], o))
    keyed.sort(key=lambda each: each[:3])
    found = []
    for (at_s, (family, sensor)), parts in groupby(keyed, key=lambda each: each[:2]):
        sample = SensorSample(at_s)
        for _, _, part, o in parts:
            _add(sample, part, o)
        found.append((family, sensor, sample))
    return found


def _target(o: Observation) -> tuple[str, str, str] | None:
    """Family, sensor and part of a series; None if no rule reads it."""
    sensor, _, part = o.name.rpartition("/")
    if o.is_rain:
        return None
    if o.text in BOOLEAN_TEXTS:
        return "wire", f"{o.node} {o.name}", ""
    if sensor:
        is_tilt = o.unit is not None and o.unit == TILT_PARTS.get(part)
        return ("tilt", f"{o.node} {sensor}", part) if is_tilt else None
    family = FAMILY_OF_UNIT.get(o.unit or "")
    return None if family is None else (family, f"{o.node} {o.name}", "")


def _add(sample: SensorSample, part: str, o: Observation) -> None:
    is_suspect = _is_suspect(o, _USED_OF_TILT if part else JUDGED_BY_RULES)
    if part in TILT_AXES and is_suspect:
        sample.suspect_axes.add(part)
    else:
        sample.is_suspect |= is_suspect
    if part:
        sample.parts[part] = o.value or 0.0
    else:
        sample.value = BOOLEAN_TEXTS.get(o.text or "", o.value)


def is_evidence(o: Observation) -> bool:
    """Whether readings of a series are evidence of movement or water.

    The temperature and the noise of a tilt meter are none.
    """
    return not o.is_rain and _part(o) in {"", *TILT_AXES}


def is_undoubted(o: Observation) -> bool:
    """Whether a reading of such a series is evidence, or of its absence."""
    if o.flag not in _DOUBTFUL:
        return True
    judged = JUDGED_OF_TILT if _part(o) else JUDGED_BY_RULES
    return o.counts and not _is_suspect(o, judged)


def _part(o: Observation) -> str:
    """Part of a reading: ``x`` of ``tilt/x``; empty for the sensor's own value."""
    return o.name.rpartition("/")[2] if "/" in o.name else ""


def _is_suspect(o: Observation, judged: frozenset[ReasonCode]) -> bool:
    """Whether a reading raises a level only with another sensor's evidence.

    Args:
        o: The reading.
        judged: Doubts that do not exclude it.
    """
    if o.flag != Flag.SUSPECT:
        return False
    codes = {reason.code for reason in o.reasons}
    return not codes or not codes <= judged


@dataclass
class SoilSeries:
    """Readings of one soil sensor, in time order.

    Attributes:
        sensor: Node and name.
        unit: Unit of the readings.
        times_s: Unix times of the readings.
        values: Readings.
    """

    sensor: str
    unit: str
    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def wetness(self, end_s: float, percentile: float | None) -> SoilWetness | None:
        """State at the end of a step; the percentile is that of the step."""
        end = bisect_right(self.times_s, end_s)
        begin = bisect_right(self.times_s, end_s - (SUCTION_H + 1) * HOUR_S)
        hours = [(t - end_s) / HOUR_S for t in self.times_s[begin:end]]
        has_reading = bool(hours) and hours[-1] > -STEP_S / HOUR_S
        share = percentile if has_reading else None
        return summarize_wetness(self.sensor, hours, self.values[begin:end], share)

    def finding(self, now: SoilWetness, rain_mm: float) -> Finding | None:
        """Finding by its quantity."""
        judge = judge_moisture if self.unit == MOISTURE_UNIT else judge_pore_pressure
        return judge(now, rain_mm)


def group_soil(observations: Iterable[Observation]) -> Sequence[SoilSeries]:
    """Moisture and pore pressure sensors, without suspect readings.

    Suspect rain may be the storm and counts; a suspect soil reading is mostly a lost
    contact or a damaged cable. Sensors are in the order of their names, whichever
    reading is the first.
    """
    found: dict[str, SoilSeries] = {}
    ours = (o for o in observations if o.unit in SOIL_UNITS and "/" not in o.name)
    for o in sorted(ours, key=attrgetter("at_s")):
        is_good = o.counts and o.flag != Flag.SUSPECT
        if is_good and o.value is not None:
            sensor = f"{o.node} {o.name}"
            probe = found.setdefault(sensor, SoilSeries(sensor, o.unit or ""))
            probe.times_s.append(o.at_s)
            probe.values.append(o.value)
    return [found[sensor] for sensor in sorted(found)]


def judge_soil(
    known: Iterable[SoilSeries],
    end_s: float,
    percentiles: Mapping[str, float],
    rain_mm: float,
) -> list[Finding | None]:
    """Findings of soil sensors at the end of a step.

    Args:
        known: Soil sensors of the cell.
        end_s: End of the step.
        percentiles: Percentiles by sensor with a reading in the step.
        rain_mm: Rain of the two hours before.
    """
    found: list[Finding | None] = []
    for probe in known:
        now = probe.wetness(end_s, percentiles.get(probe.sensor))
        found.append(probe.finding(now, rain_mm) if now else None)
    return found


MIN_PAST_S: Final = 14 * 86_400
"""Minimum past of a sensor for a percentile."""

PERCENTILE_RESOLUTIONS: Final = {MOISTURE_UNIT: 0.0001, PORE_UNIT: 0.1}
"""Resolution of percentiles, so that a distribution stays small."""


@dataclass(frozen=True)
class ValueDistribution:
    """Distribution of the values of a sensor so far.

    Attributes:
        first_s: Unix time of the first value.
        steps: Distinct values, ascending, in multiples of the resolution.
        counts: Number of each.
    """

    first_s: float
    steps: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, step: int) -> None:
        """Add a value."""
        at = bisect_left(self.steps, step)
        if at == len(self.steps) or self.steps[at] != step:
            self.steps.insert(at, step)
            self.counts.insert(at, 0)
        self.counts[at] += 1

    def percentile(self, step: int) -> float:
        """Share of the values up to this one, in percent."""
        below = sum(self.counts[: bisect_right(self.steps, step)])
        return 100 * below / sum(self.counts)

    def copy(self) -> "ValueDistribution":
        """An independent copy."""
        return ValueDistribution(self.first_s, list(self.steps), list(self.counts))


@dataclass
class SensorPercentiles:
    """Percentiles of readings within the sensors' own past.

    Attributes:
        unit: Unit of the readings.
        pasts: Distributions by node and sensor.
    """

    unit: str
    pasts: dict[str, ValueDistribution]
    _steps: dict[int, dict[str, float]] = field(default_factory=dict)

    def add(self, o: Observation) -> None:
        """Add a reading; calls must be in time order."""
        is_ours = o.unit == self.unit and "/" not in o.name
        if not is_ours or o.value is None or not o.counts:
            return
        sensor = f"{o.node} {o.name}"
        past = self.pasts.setdefault(sensor, ValueDistribution(o.at_s))
        step = round(o.value / PERCENTILE_RESOLUTIONS[self.unit])
        past.add(step)
        if o.at_s - past.first_s >= MIN_PAST_S:
            shares = self._steps.setdefault(step_end_s(o.at_s), {})
            shares[sensor] = past.percentile(step)

    def by_sensor(self, end_s: int) -> Mapping[str, float]:
        """The last percentile, 0 to 100, of each sensor with a reading in a step."""
        return self._steps.get(end_s, {})

    def highest(self, end_s: int) -> float | None:
        """The highest of them; None without any."""
        return max(self.by_sensor(end_s).values(), default=None)


def find_percentiles(
    observations: Iterable[Observation],
    pasts: Mapping[str, ValueDistribution],
    after_s: float,
    due: Iterable[int],
) -> tuple[dict[str, SensorPercentiles], dict[int, dict[str, ValueDistribution]]]:
    """Percentiles of moisture and pore pressure, and the distributions at some times.

    Args:
        observations: Readings in time order.
        pasts: Distributions up to a moment.
        after_s: That moment: only later readings are new.
        due: Later times, ascending.
    """
    ours = {name: past.copy() for name, past in pasts.items()}
    units = {"moisture_percentile": MOISTURE_UNIT, "pore_percentile": PORE_UNIT}
    found = {name: SensorPercentiles(unit, ours) for name, unit in units.items()}
    kept: dict[int, dict[str, ValueDistribution]] = {}
    coming = deque(due)
    for o in observations:
        while coming and o.at_s > coming[0]:
            kept[coming.popleft()] = {n: past.copy() for n, past in ours.items()}
        if o.at_s > after_s and o.unit in PERCENTILE_RESOLUTIONS:
            for each in found.values():
                each.add(o)
    return found, kept

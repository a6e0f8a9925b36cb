"""Triage engine: runs the rules of all sensors and derives the priority with reasons.

Also: which rule a sensor has, hold times of detections that are over, and the criteria
in force (those of a notice, else those of the settings).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from edge_agent import quantities
from edge_agent.triage.detections import (
    Corroboration,
    Detection,
    RuleContext,
    SensorRule,
)
from edge_agent.triage.rules.displacement import DisplacementRule
from edge_agent.triage.rules.limit import LIMIT_RULE, LimitRule
from edge_agent.triage.rules.rain import RainRule
from edge_agent.triage.rules.soil import PoreRule, SaturationRule
from edge_agent.triage.rules.tilt import TiltRule
from edge_agent.triage.rules.trip_wire import WireRule
from edge_agent.triage.rules.vibration import VibrationRule
from edge_agent.triage.rules.water_level import WaterLevelRule
from edge_agent.triage.samples import (
    Instant,
    SensorDescription,
    Timeline,
    group_by_sensor,
)
from edge_agent.triage.settings import RulesSection, TriageSection
from edge_agent.triage.snapshot import (
    Json,
    SnapshotError,
    TriageSnapshot,
    decode_snapshot,
    encode_snapshot,
    optional_time,
)
from service_runtime.decoding import convert
from service_runtime.settings import build_settings
from slope_science.criteria import (
    DEFAULT_CRITERIA,
    NO_LINE,
    NOT_JUDGED_MM,
    Criteria,
)
from slope_science.errors import ScienceError
from slope_science.findings import LOWEST, Finding, combine_findings
from slope_science.rain import SoilWater
from slope_science.reason_codes import ReasonCode
from slope_science.reason_compat import parse_or_text
from slope_science.reason_text import render_english, render_english_list
from slope_science.reasons import Reason, decode_reason
from spatial_mqtt.announcements import CriteriaNotice
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.senml import Reading

RuleFactory = Callable[[str, Any], SensorRule]

RULE_BY_QUANTITY: Mapping[str, str] = {
    quantities.RAIN: "rain",
    quantities.TILT: "tilt",
    quantities.DISPLACEMENT: "displacement",
    quantities.WIRE: "wire",
    quantities.SHOCKS: "vibration",
    quantities.WATER_CONTENT: "saturation",
    quantities.PORE_PRESSURE: "pore",
    quantities.WATER_LEVEL: "water_level",
}
"""Name of the rule, as in ``[triage.rules]``, by quantity."""

_FAMILIES: Mapping[str, RuleFactory] = {
    "tilt": TiltRule,
    "displacement": DisplacementRule,
    "wire": WireRule,
    "vibration": VibrationRule,
    "saturation": SaturationRule,
    "pore": PoreRule,
    "water_level": WaterLevelRule,
}


def make_rules(
    sensors: Sequence[SensorDescription], section: TriageSection, soil: SoilWater
) -> list[SensorRule]:
    """Make the rules of a node's sensors.

    Args:
        sensors: The node's sensors.
        section: Settings of the rules.
        soil: Initial soil water under each gauge.
    """
    found: list[SensorRule] = []
    for sensor in sensors:
        family = _family(sensor, section.rules, soil)
        if family is not None:
            found.append(family)
        found += _limits(sensor, section)
    return found


def find_rule(sensor: SensorDescription) -> str | None:
    """The rule for a sensor's quantity and unit; None when there is none."""
    quantity = quantities.canonical_quantity(sensor.quantity)
    if quantities.unit_factor(quantity, sensor.senml_unit) is None:
        return None
    return RULE_BY_QUANTITY.get(quantity)


def _family(
    sensor: SensorDescription, rules: RulesSection, soil: SoilWater
) -> SensorRule | None:
    rule = find_rule(sensor)
    if rule is None or not getattr(rules, rule).used:
        return None
    if rule == "rain":
        return RainRule(sensor.name, rules.rain, soil)
    return _FAMILIES[rule](sensor.name, getattr(rules, rule))


def _limits(sensor: SensorDescription, section: TriageSection) -> Iterable[SensorRule]:
    quantity = quantities.canonical_quantity(sensor.quantity)
    for number, limit in enumerate(section.limit, 1):
        named = (limit.sensor or "").partition("/")[0]
        wanted = quantities.canonical_quantity(limit.quantity or "")
        if named == sensor.name or (limit.sensor is None and wanted == quantity):
            yield LimitRule(sensor.name, limit, number)


_LEVELS = range(1, 6)


@dataclass
class _Held:
    reason: Reason
    false_since_s: float | None = None


class HoldTimer:
    """Findings by rule and level until their hold time is over.

    Args:
        hold_s: Function from a rule's id to its hold time.
    """

    def __init__(self, hold_s: Callable[[str], float]) -> None:
        self._hold_s = hold_s
        self._held: dict[tuple[str, int], _Held] = {}

    def update(
        self, fired: Sequence[tuple[str, Finding]], now_s: float
    ) -> Iterable[Finding]:
        """Store current findings; yield earlier ones that still count."""
        for rule, finding in fired:
            self._held[rule, finding.level] = _Held(finding.reason)
        true_now = {(rule, finding.level) for rule, finding in fired}
        for (rule, level), held in list(self._held.items()):
            if (rule, level) in true_now:
                continue
            if held.false_since_s is None:
                held.false_since_s = now_s
            if now_s - held.false_since_s >= self._hold_s(rule):
                del self._held[rule, level]
            elif all(level > now for name, now in true_now if name == rule):
                yield Finding(level, Reason(ReasonCode.HELD, because=held.reason))

    def to_snapshot(self) -> list[list[Any]]:
        """For the snapshot: English sentences, because earlier programs read them."""
        return [
            [rule, level, render_english(held.reason), held.false_since_s]
            for (rule, level), held in self._held.items()
        ]

    def restore(self, entries: Iterable[Any]) -> None:
        """Restore from `to_snapshot`.

        Raises:
            LookupError, TypeError, ValueError: The entries have another form.
        """
        held = {}
        for rule, level, reason, since in entries:
            if level not in _LEVELS or not isinstance(rule, str):
                raise ValueError(f"a level must be 1 to 5, got {level!r}")
            try:
                self._hold_s(rule)
            except LookupError:
                continue  # the limit was removed from the settings
            # lists are the form of the next version
            known = decode_reason(reason) if isinstance(reason, list) else None
            known = known or parse_or_text(str(reason))
            held[rule, int(level)] = _Held(known, optional_time(since))
        self._held = held


class ActiveCriteria:
    """Criteria in force: those of the newest notice, else those of the settings.

    Attributes:
        criteria: Criteria in force.

    Args:
        configured: Criteria of the settings.
    """

    def __init__(self, configured: Criteria) -> None:
        self.criteria = self._configured = configured
        self._notice: CriteriaNotice | None = None

    def apply(self, notice: CriteriaNotice, *, accepts_older: bool = False) -> bool:
        """Apply a notice's criteria; False if they are in force already.

        Args:
            notice: The notice.
            accepts_older: Whether an older version is accepted, because the one in
                force was withdrawn.

        Raises:
            NoticeError: They are older than those in force, or invalid.
        """
        now = self._notice
        if notice == now:
            return False
        if now is not None and notice.version < now.version and not accepts_older:
            rule = f"no older than the one in force ({now.version:.0f})"
            remedy = "give it a newer version, or take the other back"
            raise NoticeError("criteria.version", rule, notice.version, remedy)
        self.criteria, self._notice = _criteria(notice), notice
        return True

    def revert(self) -> bool:
        """Return to the settings' criteria; False if they are in force already."""
        was, self._notice = self._notice, None
        self.criteria = self._configured
        return was is not None

    def to_snapshot(self) -> Json:
        """For the snapshot."""
        return None if self._notice is None else msgspec.to_builtins(self._notice)

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`.

        Raises:
            ValueError: The entry has another form.
        """
        try:
            notice: CriteriaNotice | None = convert(entry, CriteriaNotice | None)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        if notice is not None:
            self.apply(notice, accepts_older=True)


def _criteria(notice: CriteriaNotice) -> Criteria:
    try:
        return Criteria(
            _judged_mm(notice.warning_mm),
            _judged_mm(notice.advisory_mm),
            _judged_mm(notice.special_mm),
            assumed=False,
            line=NO_LINE if notice.line is None else notice.line,
        )
    except ScienceError as error:
        field = f"criteria.{error.field}"
        raise NoticeError(field, error.rule, error.value) from error


def _judged_mm(limit_mm: float | None) -> float:
    return NOT_JUDGED_MM if limit_mm is None else limit_mm


MAX_WHY_CHARS = 200


def join_reasons(reasons: Sequence[Reason]) -> tuple[str, tuple[Reason, ...]]:
    """Join as many English sentences as fit in a message; also their reasons."""
    why, count = render_english(reasons[0]), 1
    for reason in reasons[1:]:
        sentence = render_english(reason)
        if len(why) + 2 + len(sentence) > MAX_WHY_CHARS:
            break
        why, count = f"{why}; {sentence}", count + 1
    if len(why) > MAX_WHY_CHARS:
        why = why[: MAX_WHY_CHARS - 1] + "…"
    return why, tuple(reasons[:count])


__all__ = ["MAX_WHY_CHARS", "Triage", "TriageResult"]

DEFAULT_SECTION = build_settings(TriageSection, {})


@dataclass(frozen=True)
class TriageResult:
    """Result of triage for some readings.

    Attributes:
        priority: Priority of their message.
        why: Reasons in English, highest level first; None at level 1.
        level: 1 to 5, as in `slope_science.findings`.
        reasons: The reasons in `why` as codes.
    """

    priority: int
    why: str | None
    level: int
    reasons: tuple[Reason, ...] = ()


class Triage:
    """Judges the slope by the node's readings.

    Attributes:
        active_criteria: Criteria in force.

    Args:
        sensors: The node's sensors.
        section: Settings of the rules.
        criteria: Criteria of the settings.
        soil: Initial soil water under each gauge.
    """

    def __init__(
        self,
        sensors: Sequence[SensorDescription],
        section: TriageSection = DEFAULT_SECTION,
        criteria: Criteria = DEFAULT_CRITERIA,
        soil: SoilWater | None = None,
    ) -> None:
        self._configured = criteria
        self.active_criteria = ActiveCriteria(criteria)
        self._sensors = {sensor.name: sensor for sensor in sensors}
        self._section = section
        self._soil = soil or SoilWater()
        self._watches = make_rules(sensors, section, self._soil)
        self._hold_times_s = _hold_times_s(section)
        self._timeline = Timeline()
        self._hold = HoldTimer(self._hold_s)
        self._signs = Corroboration(section.confirm_s)

    def assess(self, readings: Sequence[Reading], at: Instant | float) -> TriageResult:
        """Judge the slope with new readings.

        Args:
            readings: Readings of any sensors; unknown sensors are ignored.
            at: Time of the readings; a number is Unix time only. Late rain still
                counts.
        """
        instant = at if isinstance(at, Instant) else Instant(at)
        at_s = self._timeline.advance(instant)
        by_sensor = group_by_sensor(readings, self._sensors, at_s)
        for watch in self._watches:
            if watch.sensor in by_sensor:
                watch.on_sample(by_sensor[watch.sensor])
        fired = self._fired()
        held = self._hold.update(fired, self._timeline.now_s)
        verdict = combine_findings([finding for _, finding in fired] + list(held))
        if verdict.level == LOWEST:
            return TriageResult(LOWEST, None, LOWEST)
        why, reasons = join_reasons(verdict.reasons)
        return TriageResult(verdict.level, why, verdict.level, reasons)

    def diagnostics(self) -> dict[str, str]:
        """By sensor: reasons why rules cannot be used as configured."""
        notes: dict[str, list[Reason]] = {}
        for watch in self._watches:
            for note in watch.diagnostics():
                notes.setdefault(watch.sensor, []).append(note)
        return {
            sensor: render_english_list(reasons) for sensor, reasons in notes.items()
        }

    def soil_water_mm(self) -> dict[str, float]:
        """Soil water index by the name of the gauge."""
        return {gauge.sensor: gauge.index_mm for gauge in self._gauges}

    def snapshot(self) -> str:
        """State that must survive a restart, as JSON.

        The hour of tilt readings is not included: it would wear out the card.
        """
        past = {
            (watch.rule, watch.sensor): watch.to_snapshot() for watch in self._watches
        }
        time, held = self._timeline.to_snapshot(), self._hold.to_snapshot()
        criteria, confirmed = (
            self.active_criteria.to_snapshot(),
            self._signs.to_snapshot(),
        )
        return encode_snapshot(TriageSnapshot(time, held, past, criteria, confirmed))

    def restore(self, snapshot: str) -> None:
        """Restore from a snapshot; nothing changes on an error.

        Raises:
            SnapshotError: The snapshot is damaged, or of another version.
        """
        fresh = make_rules(list(self._sensors.values()), self._section, self._soil)
        hold, timeline = HoldTimer(self._hold_s), Timeline()
        in_force, signs = (
            ActiveCriteria(self._configured),
            Corroboration(self._section.confirm_s),
        )
        try:
            remembered = decode_snapshot(snapshot)
            for watch in fresh:
                entry = remembered.past.get((watch.rule, watch.sensor))
                if entry is not None:
                    watch.restore(entry)
            hold.restore(remembered.held)
            timeline.restore(remembered.time)
            in_force.restore(remembered.criteria)
            signs.restore(remembered.confirmed)
        except (
            LookupError, TypeError, AttributeError, ValueError, RecursionError
        ) as error:  # fmt: skip
            raise SnapshotError(f"{type(error).__name__} {error}") from error
        self._watches, self._hold, self._timeline = fresh, hold, timeline
        self.active_criteria, self._signs = in_force, signs

    @property
    def _gauges(self) -> list[RainRule]:
        return [watch for watch in self._watches if isinstance(watch, RainRule)]

    def _fired(self) -> list[tuple[str, Finding]]:
        now_s = self._timeline.now_s
        r60_mm = max((gauge.r60_mm for gauge in self._gauges), default=0.0)
        scene = RuleContext(now_s, self.active_criteria.criteria, r60_mm)
        claims: list[Detection] = list(
            chain.from_iterable(watch.detect(scene) for watch in self._watches)
        )
        self._signs.observe(claims, now_s)
        found = [
            (claim.rule_id, self._signs.to_finding(claim, now_s)) for claim in claims
        ]
        return [(rule, finding) for rule, finding in found if finding]

    def _hold_s(self, rule: str) -> float:
        """Hold time of a rule by its id.

        Raises:
            LookupError: A limit that the settings no longer have.
            ValueError: The rule is unknown.
        """
        name, _, number = rule.partition(" ")
        if rule not in self._hold_times_s and not (
            name == LIMIT_RULE and number.isdigit()
        ):
            raise ValueError(f"a rule must be one of [triage.rules], got {rule!r}")
        return self._hold_times_s[rule]


def _hold_times_s(section: TriageSection) -> dict[str, float]:
    """Hold time of each rule, by `Detection.rule_id`."""
    rules = {
        rule: getattr(section.rules, rule).hold_s for rule in RULE_BY_QUANTITY.values()
    }
    limits = {
        f"{LIMIT_RULE} {number}": limit.hold_s
        for number, limit in enumerate(section.limit, 1)
    }
    return rules | limits

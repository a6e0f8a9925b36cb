"""Triage engine: runs the rules of all sensors and derives the priority with reasons.

Also: which rule a sensor has, hold times of detections that are over, the criteria in
force (those of a notice, else those of the settings), and the stored form of all this.
"""

import json
import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from edge_agent import quantities
from edge_agent.clock import Instant, Timeline
from edge_agent.quantities import SensorDescription, group_by_sensor
from edge_agent.triage.limit_rule import (
    LIMIT_RULE,
    LimitRule,
    LimitSettings,
    conditions,
    find_present_ids,
    limit_id,
)
from edge_agent.triage.rain_rule import RainRule, is_rain
from edge_agent.triage.settings import TriageSection
from service_runtime.decoding import convert
from service_runtime.settings import build_settings
from slope_science import ScienceError
from slope_science.evidence.detections import RuleContext, SensorRule
from slope_science.evidence.judge import EvidenceJudge, make_family
from slope_science.evidence.samples import Json
from slope_science.levels import (
    DEFAULT_CRITERIA,
    LOWEST,
    NO_LINE,
    NOT_JUDGED_MM,
    Criteria,
    Finding,
    combine_findings,
    noticed,
)
from slope_science.rain_and_soil_water import SoilWater
from slope_science.reason_codes import ASSUMPTIONS, ReasonCode
from slope_science.reasons import Reason, find_restrictions, render_english
from spatial_mqtt.announcements import CriteriaNotice
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.senml import Reading

_log = logging.getLogger(__name__)

FORMAT_VERSION = 2
_OLDER = 1


@dataclass(frozen=True)
class TriageSnapshot:
    """Contents of a snapshot; each part is the `to_snapshot` of its class.

    Attributes:
        time: Of `Timeline`.
        held: Of `HoldTimer`.
        past: Of each rule, by rule and sensor.
        criteria: Of `ActiveCriteria`.
        confirmed: Of `Corroboration`.
        limits: `conditions` of the limits, by whose numbers they are stored; None in a
            snapshot of an earlier program.
    """

    time: Mapping[str, float | None]
    held: Sequence[Sequence[Any]]
    past: Mapping[tuple[str, str], Any]
    criteria: Mapping[str, Any] | None = None
    confirmed: Sequence[Sequence[Any]] = ()
    limits: Sequence[Sequence[Any]] | None = None


def encode_snapshot(remembered: TriageSnapshot) -> str:
    """Encode as JSON."""
    past: dict[str, dict[str, Any]] = {}
    for (rule, sensor), entry in remembered.past.items():
        if entry is not None:
            past.setdefault(rule, {})[sensor] = entry
    form = {
        "form": FORMAT_VERSION,
        "time": remembered.time,
        "held": remembered.held,
        "past": past,
        "criteria": remembered.criteria,
        "confirmed": remembered.confirmed,
        "limits": remembered.limits,
    }
    return json.dumps(form, separators=(",", ":"), allow_nan=False)


def decode_snapshot(text: str) -> TriageSnapshot:
    """Decode from JSON; also form 1, which has rain, wires and held findings only.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: The text is damaged, or of a
            later version.
    """
    state = json.loads(text)
    if state["form"] == _OLDER:
        state = _migrated(state)
    if state["form"] != FORMAT_VERSION:
        raise ValueError(f"it has version {state['form']!r}, not {FORMAT_VERSION}")
    past = {
        (rule, sensor): entry
        for rule, entries in state["past"].items()
        for sensor, entry in entries.items()
    }
    criteria, confirmed = state["criteria"], state["confirmed"]
    limits = state.get("limits")
    return TriageSnapshot(
        state["time"], state["held"], past, criteria, confirmed, limits
    )


def _renumbered(
    remembered: TriageSnapshot, limits: Sequence[LimitSettings]
) -> TriageSnapshot:
    """The snapshot with the present numbers of its limits, without removed ones.

    The state of a limit must not pass to the one that is now at its position: that one
    would count as exceeded by a value below its threshold.
    """
    if remembered.limits is None:
        return remembered
    ids = find_present_ids(remembered.limits, limits)
    gone = {limit_id(n) for n in range(1, len(remembered.limits) + 1)} - ids.keys()
    for rule in sorted(
        gone & {rule for rule, *_ in (*remembered.past, *remembered.held)}
    ):
        _log.warning("stored state of %s is dropped", rule)
    held = [
        [ids.get(rule, rule), level, _renamed(reason, rule, ids), *rest]
        for rule, level, reason, *rest in remembered.held
        if rule not in gone
    ]
    past = {
        (ids.get(rule, rule), sensor): entry
        for (rule, sensor), entry in remembered.past.items()
        if rule not in gone
    }
    confirmed = [
        [ids.get(rule, rule), *event]
        for rule, *event in remembered.confirmed
        if rule not in gone
    ]
    return replace(remembered, held=held, past=past, confirmed=confirmed)


def _renamed(reason: Json, rule: str, ids: Mapping[str, str]) -> Json:
    """An English reason, which begins with the id of its rule, with the present one."""
    start = f"{rule}:"
    if rule in ids and isinstance(reason, str) and reason.startswith(start):
        return f"{ids[rule]}:{reason.removeprefix(start)}"
    return reason


def _restore_rules(
    rules: Sequence[SensorRule], remembered: TriageSnapshot, sensors: Container[str]
) -> None:
    """Restore rules from a snapshot; log the entries for which there is none."""
    past = dict(remembered.past)
    new: list[RainRule] = []
    for each in rules:
        entry = past.pop((each.rule, each.sensor), None)
        if entry is not None:
            each.restore(entry)
        elif isinstance(each, RainRule):
            new.append(each)
        if isinstance(each, LimitRule) and remembered.limits is None:
            each.doubt_restored()
    gone = {
        sensor: past.pop((rule, sensor))
        for rule, sensor in list(past)
        if new and rule == RainRule.rule and sensor not in sensors
    }
    for gauge in new if gone else ():
        gauge.take_over(list(gone.values()))
        names = ", ".join(gone)
        _log.warning("%s goes on with the soil water of %s", gauge.sensor, names)
    for rule, sensor in past:
        _log.warning("stored state of rule %s of sensor %s is dropped", rule, sensor)


def _migrated(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert form 1, whose times are Unix times."""
    rain = {
        name: {"sure": entry, "high": None, "sum": entry["sum"]}
        for name, entry in state["rain"].items()
    }
    seen = [e["sure"]["last"] for e in rain.values() if e["sure"]["last"] is not None]
    seen += [since_s for *_, since_s in state["held"] if since_s is not None]
    last_s = max(seen, default=None)
    held = [
        [source, level, f"{source}: {reason}", since_s]
        for source, level, reason, since_s in state["held"]
    ]
    cut = {name: last_s or 0.0 for name, is_cut in state["cut"].items() if is_cut}
    return {
        "form": FORMAT_VERSION,
        "time": {"at": last_s or 0.0, "wall": last_s},
        "held": held,
        "past": {"rain": rain, "wire": cut},
        "criteria": None,
        "confirmed": [],
    }


class SnapshotError(ValueError):
    """A snapshot is damaged, or of another version.

    Attributes:
        reason: The fault.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"triage snapshot must be one of this version: {reason}")


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
        found += _family(sensor, section, soil)
        found += _limits(sensor, section)
    return found


def find_rule(sensor: SensorDescription) -> str | None:
    """The rule for a sensor's quantity and unit; None when there is none."""
    quantity = quantities.judged_quantity(sensor.quantity)
    if quantities.unit_factor(quantity, sensor.senml_unit) is None:
        return None
    return RULE_BY_QUANTITY.get(quantity)


def _family(
    sensor: SensorDescription, section: TriageSection, soil: SoilWater
) -> Sequence[SensorRule]:
    rule = find_rule(sensor)
    if rule is None:
        return ()
    if rule != "rain":
        return make_family(rule, sensor.name, section)
    rain = section.rules.rain
    return [RainRule(sensor.name, rain, soil)] if rain.used else ()


def _limits(sensor: SensorDescription, section: TriageSection) -> Iterable[SensorRule]:
    quantity = quantities.canonical_quantity(sensor.quantity)
    for number, limit in enumerate(section.limit, 1):
        named = (limit.sensor or "").partition("/")[0]
        wanted = quantities.canonical_quantity(limit.quantity or "")
        if named == sensor.name or (limit.sensor is None and wanted == quantity):
            yield LimitRule(sensor.name, limit, number)


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
            remedy = "give it a newer version, or withdraw the other"
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
        level: 1 to 5, as in `slope_science.levels`.
        reasons: The reasons in `why` as codes.
        alarm_level: Level for alarm outputs: movement that only one sensor shows, and
            the rain of one gauge, are limited by ``alone_notice_level``.
        isolated_alarm_level: The same without the limit of rain, for a node whose area
            no backend judges.
    """

    priority: int
    why: str | None
    level: int
    reasons: tuple[Reason, ...] = ()
    alarm_level: int = LOWEST
    isolated_alarm_level: int = LOWEST

    def own_alarm_level(self, *, is_judged: bool) -> int:
        """Level for alarm outputs, where a backend judges the area or none does."""
        return self.alarm_level if is_judged else self.isolated_alarm_level


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
        self._judge = self._new_judge()

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
        for gauge in self._gauges:
            gauge.is_gap_unknown = self._timeline.is_gap_unknown
        for watch in self._watches:
            if watch.sensor in by_sensor:
                watch.on_sample(by_sensor[watch.sensor])
        found = self._findings()
        verdict = combine_findings(found)
        if verdict.level == LOWEST:
            return TriageResult(LOWEST, None, LOWEST)
        why, reasons = join_reasons(list(_stating_levels(found)))
        alarm_level = combine_findings(noticed(found)).level
        isolated = combine_findings(noticed(map(_without_limit_of_rain, found))).level
        return TriageResult(
            verdict.level, why, verdict.level, reasons, alarm_level, isolated
        )

    @property
    def judged_sensors(self) -> frozenset[str]:
        """Names of the sensors that a rule judges."""
        return frozenset(watch.sensor for watch in self._watches)

    def preview(self, at: Instant) -> TriageResult:
        """Judge by what is known already, such as after a restart; change nothing."""
        return deepcopy(self).assess((), at)

    def diagnostics(self) -> dict[str, str]:
        """By sensor: reasons why rules cannot be used as configured."""
        notes: dict[str, list[Reason]] = {}
        for watch in self._watches:
            for note in watch.diagnostics():
                notes.setdefault(watch.sensor, []).append(note)
        return {
            sensor: "; ".join(map(render_english, found))
            for sensor, found in notes.items()
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
        time, held = self._timeline.to_snapshot(), self._judge.held.to_snapshot()
        criteria = self.active_criteria.to_snapshot()
        confirmed = self._judge.signs.to_snapshot()
        limits = conditions(self._section.limit)
        return encode_snapshot(
            TriageSnapshot(time, held, past, criteria, confirmed, limits)
        )

    def restore(self, snapshot: str) -> None:
        """Restore from a snapshot; nothing changes on an error.

        Raises:
            SnapshotError: The snapshot is damaged, or of another version.
        """
        fresh = make_rules(list(self._sensors.values()), self._section, self._soil)
        judge, timeline = self._new_judge(), Timeline()
        in_force = ActiveCriteria(self._configured)
        try:
            remembered = _renumbered(decode_snapshot(snapshot), self._section.limit)
            _restore_rules(fresh, remembered, self._sensors)
            judge.held.restore(remembered.held)
            timeline.restore(remembered.time)
            in_force.restore(remembered.criteria)
            judge.signs.restore(remembered.confirmed)
        except (
            LookupError, TypeError, AttributeError, ValueError, RecursionError
        ) as error:  # fmt: skip
            raise SnapshotError(f"{type(error).__name__} {error}") from error
        self._watches, self._judge, self._timeline = fresh, judge, timeline
        self.active_criteria = in_force

    @property
    def _gauges(self) -> list[RainRule]:
        return [watch for watch in self._watches if isinstance(watch, RainRule)]

    def _new_judge(self) -> EvidenceJudge:
        return EvidenceJudge(self._section.confirm_s, self._hold_s)

    def _findings(self) -> list[Finding]:
        r60_mm = max((gauge.r60_mm for gauge in self._gauges), default=0.0)
        criteria = self.active_criteria.criteria
        scene = RuleContext(self._timeline.now_s, criteria, r60_mm)
        return self._judge.judge(self._watches, scene)

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
        limit_id(number): limit.hold_s for number, limit in enumerate(section.limit, 1)
    }
    return rules | limits


def _stating_levels(found: Sequence[Finding]) -> Iterator[Reason]:
    """Reasons, highest level first; all but the first state their level.

    The first one has the level of the message. The backend may lower it, and then needs
    the levels of the others; without one they are those of an earlier version. Assumed
    criteria are the last of their level, because a message has space for few reasons.
    """
    by_level = sorted(found, key=lambda f: (-f.level, _is_assumed(f.reason)))
    for at, finding in enumerate(by_level):
        yield _with_level(finding) if at else finding.reason


def _is_assumed(reason: Reason) -> bool:
    """Whether it rests on criteria for which the backend may have the official ones."""
    return not ASSUMPTIONS.isdisjoint(find_restrictions([reason]))


def _with_level(finding: Finding) -> Reason:
    def stated(reason: Reason) -> Reason:
        if reason.code == ReasonCode.RULE:
            return reason.changed(level=finding.level)
        because = reason.params.get("because")
        return reason.changed(because=stated(because)) if because else reason

    return stated(finding.reason)


def _without_limit_of_rain(finding: Finding) -> Finding:
    return replace(finding, notice_level=None) if is_rain(finding.reason) else finding

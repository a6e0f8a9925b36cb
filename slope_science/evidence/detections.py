"""Detections of rules, their confirmation by other sensors, and the rule protocol."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from slope_science.evidence.samples import Json, SensorSample, finite_number
from slope_science.levels import DEFAULT_CRITERIA, LOWEST, Criteria, Finding
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason


class EvidenceKind(Enum):
    """Kind of evidence that a sensor gives.

    Evidence confirms only evidence of its kind: wet soil does not confirm movement.
    Noise, readings that alternate, confirms nothing.
    """

    MOVEMENT = "movement"
    WATER = "water"
    NOISE = "noise"


_MOVEMENT = EvidenceKind.MOVEMENT
_YOUNG_S = 3600.0
"""Time within which noise may resemble movement that goes on."""

StepTimes = tuple[tuple[float, float], ...]
"""Times of the readings before and after each single step."""

StepEnds = tuple[tuple[tuple[float, ...], tuple[float, ...], float], ...]
"""Axes before and after each single step, and the error of their differences."""


@dataclass(frozen=True)
class Detection:
    """Result of a rule for one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
        level: Level if confirmed by another sensor, or if it needs no confirmation.
        reason: Numbers and criterion; None at the lowest level.
        unconfirmed_level: Level while unconfirmed; None if it needs no confirmation.
        at_s: Time of the event; None for now.
        evidence: Evidence for other sensors' detections. At the lowest level a
            detection is evidence only.
        needed_evidence: Kind of evidence that confirms it; None for either.
        confirm_s: Maximum time to that evidence; None for the setting's.
        number: Number of the ``[[triage.limit]]``; None for other rules.
        since_s: Time since which the event may have happened; None for `at_s`.
        alone_notice_level: Maximum level of notices and sirens without confirmation;
            None for the detection's own level.
        alone_for_h: Hours that an unconfirmed event has lasted, if that is longer than
            its notices last.
        steps: Beginnings and ends of the single steps on which all of it rests; empty
            for a change that lasts.
        is_count: Whether it is a number of shocks, which a weak supply raises, too.
        ends: Values of the steps; empty where they do not matter.
        from_s: Time of the first reading on which a rate rests; None where noise does
            not matter for longer than `Corroboration` confirms.
        spikes: Times between which a reading that went there and back was the last
            one: what it began in them is over.
    """

    rule: str
    sensor: str
    level: int
    reason: Reason | None
    unconfirmed_level: int | None = None
    at_s: float | None = None
    evidence: tuple[EvidenceKind, ...] = ()
    needed_evidence: EvidenceKind | None = EvidenceKind.MOVEMENT
    confirm_s: float | None = None
    number: int | None = None
    since_s: float | None = None
    alone_notice_level: int | None = None
    alone_for_h: int | None = None
    steps: StepTimes = ()
    is_count: bool = False
    ends: StepEnds = ()
    from_s: float | None = None
    spikes: StepTimes = ()

    @property
    def is_brief(self) -> bool:
        """Whether it has no level without confirmation: one reading, or doubtful."""
        return self.unconfirmed_level == LOWEST

    @property
    def rule_id(self) -> str:
        """Key of the rule in the snapshot: ``rain``, ``limit 2``."""
        return self.rule if self.number is None else f"{self.rule} {self.number}"


def noise_detection(rule: str, sensor: str) -> Detection:
    """Detection of readings that alternate by more than the sensor's noise."""
    return Detection(rule, sensor, LOWEST, None, evidence=(EvidenceKind.NOISE,))


@dataclass(frozen=True)
class _Evidence:
    """Evidence of one kind of a sensor.

    A single step is evidence of its own time, however long a window holds it.
    """

    since_s: float
    until_s: float
    steps: StepTimes = ()
    lasts: bool = False
    is_brief: bool = False
    is_count: bool = False
    ends: StepEnds = ()

    def joined(self, other: "_Evidence") -> "_Evidence":
        """Combine with other evidence of that moment; lasting evidence is no step."""
        both = self.steps and other.steps
        return _Evidence(
            min(self.since_s, other.since_s),
            max(self.until_s, other.until_s),
            tuple(sorted({*self.steps, *other.steps})) if both else (),
            self.lasts or other.lasts,
            self.is_brief and other.is_brief,
            self.is_count and other.is_count,
            self.ends or other.ends,
        )

    def after(self, known: "_Evidence", confirm_s: float) -> "_Evidence":
        """The newer evidence; it begins with the earlier one if that goes on."""
        if known.until_s > self.until_s:
            return known
        goes_on = self.lasts and self.until_s - known.until_s <= confirm_s
        if goes_on or known.until_s == self.until_s:
            return replace(self, since_s=min(self.since_s, known.since_s))
        return self


_Stepped = Detection | _Evidence
"""A detection, or evidence of a sensor: both hold steps and the values around them."""


def _restored(
    since_s: float,
    until_s: float,
    steps: Json = (),
    flags: Json = (),
    ends: Json = (),
) -> _Evidence:
    """Evidence of a state; an earlier program's has times only, or one flag."""
    known = tuple((begin_s, end_s) for begin_s, end_s in steps)
    given = [flags] if isinstance(flags, bool) else flags
    is_brief, is_count, lasts = (*given, False, False, False)[:3]
    values = tuple((tuple(old), tuple(new), error) for old, new, error in ends)
    return _Evidence(since_s, until_s, known, lasts, is_brief, is_count, values)


def _to_parts(seen: _Evidence) -> list[Json]:
    """Convert to the list that `_restored` reads."""
    flags = [seen.is_brief, seen.is_count, seen.lasts]
    return [seen.since_s, seen.until_s, seen.steps, flags, seen.ends]


def _evidence(claim: Detection, now_s: float) -> _Evidence:
    brief, count = claim.is_brief, claim.is_count
    if claim.steps:
        parts = (*claim.steps[-1], claim.steps)
        return _Evidence(*parts, is_brief=brief, is_count=count, ends=claim.ends)
    at_s = now_s if claim.at_s is None else claim.at_s
    since_s = at_s if claim.since_s is None else claim.since_s
    lasts = claim.at_s is None
    return _Evidence(since_s, at_s, lasts=lasts, is_brief=brief, is_count=count)


class Corroboration:
    """Time of the last evidence of each sensor, and confirmed events.

    Sensors of one node share its pole and its supply. A kick, lightning or a weak
    supply moves several of them in the same reading, or makes them noisy. So their
    single steps do not confirm each other in the same reading, nor confirm, or are
    confirmed, before one of both has lasted. While a sensor of a node is noisy,
    movement of less than an hour confirms nothing at that node, and that of the sensor
    itself nothing at any node. Shocks confirm neither shocks nor a single step: an
    earthquake reaches all nodes, and a weak supply causes shocks in many readings.

    A confirmed event stays confirmed, independent of the other sensor's later readings,
    unless one of them gave the confirmation and went there and back: an exceedance
    without a time of its own is one event as long as it lasts. Of two sensors neither
    remains unconfirmed beside the other that it confirms.

    Args:
        confirm_s: Maximum time between two confirming pieces of evidence.
        names_rule: Whether reasons begin with the name of their rule.
    """

    def __init__(self, confirm_s: float, *, names_rule: bool = True) -> None:
        self._confirm_s = confirm_s
        self._names_rule = names_rule
        self._last: dict[tuple[str, EvidenceKind], _Evidence] = {}
        self._confirmed: dict[tuple[str, str, float], str] = {}

    @property
    def confirmed(self) -> Mapping[tuple[str, str, float], str]:
        """Confirmed events: rule, sensor and time, with the sensor that confirms."""
        return self._confirmed

    def withdraw(self, sensor: str, spikes: StepTimes, ended: Container[Json]) -> None:
        """End events that a reading that went there and back confirmed.

        Args:
            sensor: Its sensor, whose evidence of that time is no evidence.
            spikes: Times between which it was the last one.
            ended: The events.
        """
        for event in [each for each in self._confirmed if each in ended]:
            del self._confirmed[event]
        for begin_s, end_s in spikes:
            seen = self._last.get((sensor, _MOVEMENT))
            if seen is None or not begin_s <= seen.until_s < end_s:
                continue
            if seen.steps or seen.since_s >= begin_s:
                del self._last[sensor, _MOVEMENT]
            else:
                self._last[sensor, _MOVEMENT] = replace(seen, until_s=begin_s)

    def observe(self, detections: Sequence[Detection], now_s: float) -> None:
        """Store the evidence of detections; forget events that are over."""
        events = set(map(_event, detections))
        self._confirmed = {
            event: other for event, other in self._confirmed.items() if event in events
        }
        fresh: dict[tuple[str, EvidenceKind], _Evidence] = {}
        for claim in detections:
            for sign in claim.evidence:
                key, seen = (claim.sensor, sign), _evidence(claim, now_s)
                fresh[key] = fresh[key].joined(seen) if key in fresh else seen
        for key, seen in fresh.items():
            known = self._last.get(key)
            self._last[key] = seen.after(known, self._confirm_s) if known else seen
        for claim in detections:
            if claim.level > LOWEST and _needs_confirmation(claim):
                self._confirmation(claim, now_s)

    def find_confirmation(self, detection: Detection, now_s: float) -> str | None:
        """The other sensor with the nearest evidence in time; None if none is close."""
        at_s = now_s if detection.at_s is None else detection.at_s
        begin_s, end_s = detection.steps[-1] if detection.steps else (at_s, at_s)
        near_s = self._confirm_s if detection.confirm_s is None else detection.confirm_s
        others = [
            (max(seen.since_s - end_s, begin_s - seen.until_s, 0.0), sensor)
            for (sensor, sign), seen in self._last.items()
            if sensor != detection.sensor
            and sign is not EvidenceKind.NOISE
            and detection.needed_evidence in {sign, None}
            and not self._is_one_event(detection, sensor, seen)
            and not self._is_noise(detection, sensor, seen, now_s)
            and not self._is_exchange(detection, sensor, seen)
        ]
        gap_s, sensor = min(others, default=(near_s + 1, ""))
        return sensor if gap_s <= near_s else None

    def to_snapshot(self) -> Json:
        """Confirmed events for the snapshot."""
        return [[*event, other] for event, other in self._confirmed.items()]

    def restore(self, entries: Json) -> None:
        """Restore from `to_snapshot`.

        Raises:
            TypeError, ValueError: The entries have another form.
        """
        self._confirmed = {
            (str(rule), str(sensor), finite_number(at_s)): str(other)
            for rule, sensor, at_s, other in entries
        }

    def to_state(self) -> Json:
        """Confirmed events, and the last evidence."""
        last = [
            [s, kind.value, *_to_parts(seen)] for (s, kind), seen in self._last.items()
        ]
        return [self.to_snapshot(), last]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        confirmed, last = state
        self.restore(confirmed)
        self._last = {
            (sensor, EvidenceKind(kind)): _restored(*parts)
            for sensor, kind, *parts in last
        }

    def to_finding(self, detection: Detection, now_s: float) -> Finding | None:
        """Finding of a detection at this moment; None at the lowest level."""
        if detection.level <= LOWEST or detection.reason is None:
            return None
        reason = detection.reason
        if self._names_rule:
            reason = Reason(
                ReasonCode.RULE,
                rule=detection.rule,
                because=reason,
                number=detection.number,
            )
        if not _needs_confirmation(detection):
            return Finding(detection.level, reason)
        other = self._confirmation(detection, now_s)
        if other is not None:
            confirmed = Reason(ReasonCode.CONFIRMED, because=reason, by=other)
            return Finding(detection.level, confirmed)
        return _unconfirmed(detection, reason)

    def _confirmation(self, detection: Detection, now_s: float) -> str | None:
        event = _event(detection)
        other = (
            self._confirmed.get(event)
            or self.find_confirmation(detection, now_s)
            or self._find_confirmed(detection, now_s)
        )
        if other is not None:
            self._confirmed[event] = other
        return other

    def _is_one_event(self, detection: Detection, sensor: str, seen: _Evidence) -> bool:
        """Whether one event may explain a detection and another's evidence.

        Sensors are read one after another, so an event during that is seen by some of
        them a reading later. An earthquake reaches all nodes: its shocks do, and one
        reading of each tilt meter that it shakes. Shocks confirm no single step: a
        kick, or road works, cause both.
        """
        if seen.is_count and (detection.is_count or detection.steps):
            return True
        if detection.is_count and seen.steps:
            return True
        if not (detection.steps or seen.steps):
            return False
        is_one_node = _node(sensor) == _node(detection.sensor)
        if detection.is_brief and (seen.is_brief or seen.is_count):
            return is_one_node or _do_coincide(detection, seen)
        return is_one_node and _do_coincide(detection, seen)

    def _is_noise(
        self, detection: Detection, sensor: str, seen: _Evidence, now_s: float
    ) -> bool:
        """Whether noise may explain a detection and another's evidence.

        Contacts, which have a time of their own, are not analogue. The supply makes any
        sensors of a node noisy, the wind those of several nodes. A rate rests on the
        noise as long as readings of that time are in its window, a step does not.
        """
        node, own = _node(sensor), self._last.get((detection.sensor, _MOVEMENT), seen)
        is_contact = detection.at_s is not None or not (seen.lasts or seen.steps)
        if is_contact:
            return False
        pair, is_one_node = {sensor, detection.sensor}, node == _node(detection.sensor)
        own = replace(own, steps=detection.steps)
        begin_s = now_s
        if detection.from_s is not None and not detection.steps:
            begin_s = detection.from_s
        young_s = max(_YOUNG_S, now_s - begin_s)
        is_young = any(
            not each.is_count and (each.steps or now_s - each.since_s < young_s)
            for each in (own, seen)
        )
        return is_young and any(
            kind is EvidenceKind.NOISE
            and (name in pair or (is_one_node and _node(name) == node))
            and min(now_s - self._confirm_s, begin_s) <= noise.until_s
            for (name, kind), noise in self._last.items()
        )

    def _is_exchange(self, detection: Detection, sensor: str, seen: _Evidence) -> bool:
        """Whether an exchange of sensors may explain a detection or the evidence.

        Cables or ids that are exchanged may belong to several sensors of each node:
        such a step confirms no other sensor either.
        """
        is_own = bool(seen.steps) and self._is_exchanged(detection.sensor, detection)
        return is_own or self._is_exchanged(sensor, seen)

    def _is_exchanged(self, sensor: str, step: _Stepped) -> bool:
        """Whether a sensor steps to the value that another had, or from it.

        One axis may end there by chance, where many sensors step: it does both.
        """
        if not (step.ends and step.steps):
            return False
        others = [
            each
            for (name, kind), each in self._last.items()
            if name != sensor and kind is _MOVEMENT and _do_coincide(step, each)
        ]
        found = _matches_of(step, others)
        return all(found) if len(step.ends[0][0]) == 1 else any(found)

    def _find_confirmed(self, detection: Detection, now_s: float) -> str | None:
        """A sensor whose event this sensor confirms, and whose evidence is of use."""
        sign = detection.needed_evidence
        return next(
            (
                sensor
                for (_, sensor, _), other in self._confirmed.items()
                if other == detection.sensor
                and sensor != detection.sensor
                and any(
                    name == sensor
                    and kind is not EvidenceKind.NOISE
                    and sign in {kind, None}
                    and not self._is_one_event(detection, name, seen)
                    and not self._is_noise(detection, name, seen, now_s)
                    and not self._is_exchange(detection, name, seen)
                    for (name, kind), seen in self._last.items()
                )
            ),
            None,
        )


def _needs_confirmation(detection: Detection) -> bool:
    """Whether its level, or that of its notices, is lower without another sensor."""
    alone, most = detection.unconfirmed_level, detection.alone_notice_level
    return alone is not None or (most is not None and detection.level > most)


def _is_same(one: tuple[float, ...], other: tuple[float, ...], error: float) -> bool:
    return len(one) == len(other) and math.dist(one, other) <= error


def _matches_of(step: _Stepped, others: Iterable[_Stepped]) -> tuple[bool, bool]:
    """Whether a sensor steps to where one of the others was, and from where one is.

    A slide that moves both does not end there within the noise.
    """
    is_to = is_from = False
    for other in others:
        for before, after, error in step.ends:
            for other_before, other_after, other_error in other.ends:
                most = max(error, other_error)
                is_to |= _is_same(after, other_before, most)
                is_from |= _is_same(before, other_after, most)
    return is_to, is_from


def _do_coincide(detection: _Stepped, seen: _Stepped) -> bool:
    """Whether each of the fewer steps coincides with one of the others."""
    fewer, more = sorted((detection.steps, seen.steps), key=len)
    return bool(fewer) and all(
        any(begin_s <= end and begin <= end_s for begin, end in more)
        for begin_s, end_s in fewer
    )


def _node(sensor: str) -> str:
    """Node of a sensor; empty on the node itself."""
    return sensor.rpartition(" ")[0]


def _unconfirmed(detection: Detection, reason: Reason) -> Finding | None:
    """Finding of a detection that no other sensor confirms."""
    level = detection.unconfirmed_level
    level = detection.level if level is None else level
    if level <= LOWEST:
        return None
    most = detection.alone_notice_level
    notice = None if most is None or most >= level else most
    if detection.alone_for_h is not None:
        code, hours = ReasonCode.UNCONFIRMED_LONG, detection.alone_for_h
        long_reason = Reason(code, because=reason, hours=hours, level=notice or level)
        return Finding(level, long_reason, notice)
    return Finding(level, Reason(ReasonCode.UNCONFIRMED, because=reason), notice)


def _event(claim: Detection) -> tuple[str, str, float]:
    return claim.rule_id, claim.sensor, claim.at_s or 0.0


def threshold_reached(
    value: float,
    thresholds: Sequence[tuple[int, float]],
    was_level: int = LOWEST,
    clear_share: float = 1.0,
) -> tuple[int, float] | None:
    """The highest (level, threshold) that a value reaches or has not cleared.

    Args:
        value: The value.
        thresholds: Levels and thresholds, the highest first.
        was_level: Previous level.
        clear_share: Thresholds up to that level are cleared below this share of them.
    """
    for level, limit in thresholds:
        share = clear_share if level <= was_level else 1.0
        if value >= limit * share:
            return level, limit
    return None


@dataclass(frozen=True)
class RuleContext:
    """Inputs of a rule besides its own sensor.

    Attributes:
        now_s: Now, in triage's own time.
        criteria: Criteria of the cell.
        r60_mm: Rain of the last 60 minutes at the gauge with the most.
    """

    now_s: float
    criteria: Criteria = DEFAULT_CRITERIA
    r60_mm: float = 0.0


class SensorRule(Protocol):
    """A rule with its state for one sensor."""

    @property
    def rule(self) -> str:
        """Name of the rule."""

    @property
    def sensor(self) -> str:
        """Name of the sensor."""

    def on_sample(self, sample: SensorSample) -> None:
        """Update the state with readings of the sensor."""

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """Detections at this moment."""

    def diagnostics(self) -> Iterable[Reason]:
        """Reasons why the rule cannot be used as configured."""

    def to_snapshot(self) -> Json:
        """State that must survive a restart, as JSON values; None for none."""

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`.

        Raises:
            LookupError, TypeError, ValueError: The entry has another form.
        """


class StatefulRule(SensorRule, Protocol):
    """A rule whose whole state, with its windows, can be stored."""

    def to_state(self) -> Json:
        """The whole state, as JSON values."""

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""


class PersistenceTimer:
    """Time since which each level has been reached without a break.

    Args:
        persist_s: Time until a level counts.
    """

    TOLERANCE_S = 30.0
    """Jitter of samplings ten minutes apart."""

    def __init__(self, persist_s: float) -> None:
        self._persist_s = persist_s
        self._since_s: dict[int, float] = {}

    def update(self, level: int, levels: Iterable[int], now_s: float) -> int:
        """Update, and return the highest level that has lasted; 1 for none.

        Args:
            level: Level that is reached now.
            levels: All levels of the rule.
            now_s: Now.
        """
        reached = [each for each in levels if each <= level]
        self._since_s = {each: self._since_s.get(each, now_s) for each in reached}
        required_s = self._persist_s - self.TOLERANCE_S
        lasted = [
            each
            for each, since_s in self._since_s.items()
            if now_s - since_s >= required_s
        ]
        return max(lasted, default=1)

    def to_state(self) -> Json:
        """The whole state."""
        return [list(item) for item in self._since_s.items()]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        self._since_s = dict(state)

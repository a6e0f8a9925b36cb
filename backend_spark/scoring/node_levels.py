"""Levels of 3 and above that nodes judged themselves, as findings of their cell.

A message of priority 3 to 5 states the reasons of its node's rules, each with its
level. A reason counts until the next message of the node with a reading of the same
sensor, and at most for the hold time of its rule. The silver table has both for each
reading, so that late and repeated messages are treated as readings are.

The level of a reason is lowered, with a reason, where this backend knows better:
readings of the sensor that failed (to 1) or are suspect (to 3), and assumed criteria
for rain where the prefecture's are known here (to 1). The node's other reasons keep
theirs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from backend_spark.scoring.evidence import JUDGED_BY_RULES
from backend_spark.scoring.observation import STEP_S, Observation
from slope_science.evidence.settings import EvidenceSettings
from slope_science.levels import (
    CRITERIA_LEVELS,
    LOWEST,
    WARNING,
    Criteria,
    Finding,
    iter_chain,
)
from slope_science.quality import Flag
from slope_science.reason_codes import ASSUMPTIONS, ReasonCode
from slope_science.reasons import Reason

DEFAULT_HOLD_S: Final = 3600.0
"""Of rules that only a node has, such as rain by gauge and limits of its settings."""

READING_REACH_S: Final = 3600.0
"""How long before a message the newest reading of its reason's sensor may be.

Each pass reads more than this before the first step that it scores.
"""


@dataclass(frozen=True)
class NodeLevel:
    """Level that a node judged for one reason.

    Attributes:
        node: Id of the node.
        at_s: Unix time of the newest reading of its message.
        until_s: Unix time of the next message about the sensor; infinite without one.
        level: 3 to 5.
        reason: The reason.
        readings: Readings of the sensor in the message, else in the last one before it
            that has any; of all sensors if the reason names none.
    """

    node: str
    at_s: float
    until_s: float
    level: int
    reason: Reason
    readings: Sequence[Observation]

    @property
    def rule(self) -> str:
        """Name of the rule of the reason."""
        found = _within(self.reason, "rule")
        return str(found)

    @property
    def sensor(self) -> str | None:
        """Name of the sensor of the reason, or of a part of it; None without one."""
        found = _within(self.reason, "sensor")
        return None if found is None else str(found)

    def is_valid(self, end_s: float, settings: EvidenceSettings) -> bool:
        """Whether it counts in the step that ends then."""
        rule = getattr(settings.rules, self.rule, None)
        hold_s = DEFAULT_HOLD_S if rule is None else rule.hold_s
        last_s = min(self.until_s, self.at_s + hold_s)
        return self.at_s <= end_s and last_s > end_s - STEP_S

    def finding(self, settings: EvidenceSettings, criteria: Criteria) -> Finding:
        """The finding of the cell, lowered if the backend knows better."""
        to_level, doubts = self._lowered(criteria)
        if to_level < self.level:
            reason = Reason(
                ReasonCode.NODE_LEVEL_LOWERED,
                node=self.node,
                level=self.level,
                to_level=to_level,
                doubts=doubts,
                because=self.reason,
            )
            return Finding(to_level, reason)
        reason = Reason(
            ReasonCode.NODE_LEVEL, node=self.node, level=self.level, because=self.reason
        )
        is_confirmed = ReasonCode.CONFIRMED in _codes(self.reason)
        alone = None if is_confirmed else min(self.level, settings.alone_notice_level)
        return Finding(self.level, reason, alone)

    def _lowered(self, criteria: Criteria) -> tuple[int, tuple[Reason, ...]]:
        """Level after what the backend knows, with the reasons for it."""
        if self.readings and not any(o.counts for o in self.readings):
            return LOWEST, _flag_reasons(self.readings)
        basis = _within(self.reason, "basis")
        if (
            isinstance(basis, Reason)
            and basis.code in ASSUMPTIONS
            and not criteria.assumed
        ):
            return LOWEST, (basis,)
        suspects = [o for o in self.readings if _is_suspect(o)]
        return (WARNING, _flag_reasons(suspects)) if suspects else (self.level, ())


def find_node_levels(observations: Iterable[Observation]) -> list[NodeLevel]:
    """Levels of 3 and above in messages of the nodes of a cell.

    Args:
        observations: Readings in any order, with flags.
    """
    readings = list(observations)
    nodes = {o.node for o in readings if o.priority >= WARNING}
    messages: dict[tuple[str, str, int], list[Observation]] = {}
    for o in readings:
        if o.node in nodes:
            messages.setdefault((o.node, o.boot, o.seq), []).append(o)
    past = _SensorMessages(messages.values())
    return [
        _node_level(group, level, reason, past)
        for group in messages.values()
        if group[0].priority >= WARNING
        for level, reason in _reasons_of_rules(group[0])
        if level >= WARNING
    ]


def make_node_findings(
    levels: Iterable[NodeLevel],
    end_s: int,
    settings: EvidenceSettings,
    criteria: Criteria,
    own: Iterable[Finding | None] = (),
) -> list[Finding]:
    """Findings of a step: the highest level of each node, rule and sensor.

    Args:
        levels: Levels of the cell's nodes.
        end_s: End of the step.
        settings: Settings of the rules.
        criteria: Criteria for rain.
        own: Findings of the cell. Where they confirm what a node could not, the node's
            reason does not remain unconfirmed beside them.
    """
    confirmed = dict(_confirmed(own))
    highest: dict[tuple[str, str, str], tuple[tuple[int, int, float], Finding]] = {}
    for level in levels:
        if level.is_valid(end_s, settings):
            key = level.node, level.rule, level.sensor or ""
            finding = _settled(level, confirmed).finding(settings, criteria)
            rank = finding.level, level.level, level.at_s
            if key not in highest or highest[key][0] < rank:
                highest[key] = rank, finding
    return [highest[key][1] for key in sorted(highest)]


def _confirmed(own: Iterable[Finding | None]) -> Iterator[tuple[str, str]]:
    """Confirmed sensors with the sensor that confirms each."""
    for finding in own:
        for each in iter_chain(finding.reason) if finding else ():
            if each.code == ReasonCode.CONFIRMED:
                yield str(_within(each, "sensor")), each.params["by"]


def _settled(level: NodeLevel, confirmed: Mapping[str, str]) -> NodeLevel:
    by = confirmed.get(f"{level.node} {level.sensor}")
    if by is None:
        return level
    return replace(level, reason=_with_confirmation(level.reason, by))


def _with_confirmation(reason: Reason, by: str) -> Reason:
    """A reason with "confirmed" in place of "unconfirmed"."""
    inner = reason.params.get("because")
    if not isinstance(inner, Reason) or not isinstance(reason.code, ReasonCode):
        return reason
    if reason.code in {ReasonCode.UNCONFIRMED, ReasonCode.UNCONFIRMED_LONG}:
        return Reason(ReasonCode.CONFIRMED, because=inner, by=by)
    return reason.changed(because=_with_confirmation(inner, by))


class _SensorMessages:
    """Messages by node and sensor, each with its newest time and its readings."""

    def __init__(self, messages: Iterable[Sequence[Observation]]) -> None:
        self._groups: dict[tuple[str, str], list[tuple[float, list[Observation]]]] = {}
        for group in messages:
            self._add(group)
        for groups in self._groups.values():
            groups.sort(key=lambda each: (each[0], each[1][0].boot, each[1][0].seq))

    def _add(self, group: Sequence[Observation]) -> None:
        at_s, by_sensor = max(o.at_s for o in group), dict[str, list[Observation]]()
        for o in group:
            by_sensor.setdefault(_sensor(o.name), []).append(o)
        for sensor, readings in by_sensor.items():
            key = group[0].node, sensor
            self._groups.setdefault(key, []).append((at_s, readings))

    def until(self, node: str, sensor: str, at_s: float) -> list[Observation]:
        """The last readings of a sensor up to a moment; empty if they are too old."""
        groups = self._groups.get((node, sensor), [])
        first = bisect_left(groups, at_s - READING_REACH_S, key=_AT)
        last = bisect_right(groups, at_s, key=_AT)
        found = (_measured(readings) for _, readings in reversed(groups[first:last]))
        return next(filter(None, found), [])

    def after(self, node: str, sensor: str, at_s: float) -> float:
        """Time of the next message with a reading; infinite without one."""
        groups = self._groups.get((node, sensor), [])
        place = bisect_right(groups, at_s, key=_AT)
        return groups[place][0] if place < len(groups) else float("inf")


_AT: Final = itemgetter(0)


def _reasons_of_rules(first: Observation) -> Iterator[tuple[int, Reason]]:
    """Reasons of rules in a message with their levels.

    Other messages of these priorities, such as safe mode, have none.
    """
    reasons = (r for r in first.level_reasons if ReasonCode.RULE in _codes(r))
    for at, reason in enumerate(reasons):
        yield (_later_level(first, reason) if at else first.priority), reason


def _later_level(first: Observation, reason: Reason) -> int:
    """Level of a reason that is not the highest of its message.

    Nodes of earlier versions do not state it: that of the criterion for rain, else the
    lowest that a warning can have.
    """
    rules = (each for each in iter_chain(reason) if each.code == ReasonCode.RULE)
    stated = next((each.params["level"] for each in rules), None)
    criterion = CRITERIA_LEVELS.get(str(_within(reason, "criterion")), WARNING)
    return min(first.priority, criterion if stated is None else int(stated))


def _node_level(
    group: Sequence[Observation], level: int, reason: Reason, past: _SensorMessages
) -> NodeLevel:
    """The level of one reason of a message."""
    node, at_s = group[0].node, max(o.at_s for o in group)
    named = _within(reason, "sensor")
    if named is None:
        sensors, readings = {_sensor(o.name) for o in group}, list(group)
    else:
        sensor = _sensor(str(named))
        readings = [o for o in _measured(group) if _sensor(o.name) == sensor]
        readings = readings or past.until(node, sensor, at_s)
        # without any reading of it, such as of a gauge that earlier versions renamed
        sensors = {sensor} if readings else {_sensor(o.name) for o in group}
        # a limit may be one of a secondary value, which has flags of its own
        readings = [o for o in readings if o.name == named] or readings
    until_s = min(past.after(node, each, at_s) for each in sensors)
    return NodeLevel(node, at_s, until_s, level, reason, readings)


def _measured(group: Iterable[Observation]) -> list[Observation]:
    """Readings without those that are a text about a sensor, such as its health."""
    return [o for o in group if o.text is None or o.value is not None]


def _sensor(name: str) -> str:
    """Sensor of a reading: ``tilt/x`` is of ``tilt``."""
    return name.partition("/")[0]


def _codes(reason: Reason) -> set[ReasonCode]:
    return {ReasonCode(each.code) for each in iter_chain(reason)}


def _within(reason: Reason, param: str) -> object:
    """The outermost value of a parameter in a reason; None without one."""
    values = (each.params.get(param) for each in iter_chain(reason))
    return next((value for value in values if value is not None), None)


def _is_suspect(o: Observation) -> bool:
    codes = {reason.code for reason in o.reasons}
    return o.flag == Flag.SUSPECT and not (codes and codes <= JUDGED_BY_RULES)


def _flag_reasons(readings: Iterable[Observation]) -> tuple[Reason, ...]:
    """The reasons of flags, each once."""
    return tuple(dict.fromkeys(reason for o in readings for reason in o.reasons))

"""Levels of 3 and above that nodes judged themselves, as findings of their cell.

A message of priority 3 to 5 states the level and the reasons of its node's rules. It
counts until the next message of the node with a reading of the same sensor, and at most
for the hold time of its rule. The silver table has both for each reading, so that late
and repeated messages are treated as readings are.

The level is lowered, with a reason, where this backend knows better: readings of the
sensor that failed (to 1) or are suspect (to 3), and assumed criteria for rain where the
prefecture's are known here (to 1).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from backend_spark.scoring.evidence import JUDGED_BY_RULES
from backend_spark.scoring.observation import STEP_S, Observation
from slope_science.causes import iter_chain
from slope_science.criteria import Criteria
from slope_science.evidence.settings import EvidenceSettings
from slope_science.findings import LOWEST, WARNING, Finding
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

DEFAULT_HOLD_S: Final = 3600.0
"""Of rules that only a node has, such as rain by gauge and limits of its settings."""

ASSUMED_CODES: Final = frozenset({
    ReasonCode.ASSUMED_CRITERIA,
    ReasonCode.ASSUMED_LINE,
    ReasonCode.ASSUMED_CRITERION,
})


@dataclass(frozen=True)
class NodeLevel:
    """Level that a node judged.

    Attributes:
        node: Id of the node.
        at_s: Unix time of its newest reading.
        until_s: Unix time of the next message about the sensor; infinite without one.
        level: 3 to 5.
        reason: Its first reason, of the highest level.
        readings: Readings of the sensor in the message; of all sensors if the reason
            has none.
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
            and basis.code in ASSUMED_CODES
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
    times_s: dict[tuple[str, str], list[float]] = {}
    for (node, _, _), group in messages.items():
        for sensor in {_sensor(o.name) for o in group}:
            times_s.setdefault((node, sensor), []).append(max(o.at_s for o in group))
    for each in times_s.values():
        each.sort()
    found = (_node_level(group, times_s) for group in messages.values())
    return [level for level in found if level is not None]


def make_node_findings(
    levels: Iterable[NodeLevel],
    end_s: int,
    settings: EvidenceSettings,
    criteria: Criteria,
    own: Iterable[Finding | None] = (),
) -> list[Finding]:
    """Findings of a step: the highest level of each node and rule.

    Args:
        levels: Levels of the cell's nodes.
        end_s: End of the step.
        settings: Settings of the rules.
        criteria: Criteria for rain.
        own: Findings of the cell. Where they confirm what a node could not, the node's
            reason does not remain unconfirmed beside them.
    """
    confirmed = dict(_confirmed(own))
    highest: dict[tuple[str, str], NodeLevel] = {}
    for level in levels:
        if level.is_valid(end_s, settings):
            key = level.node, level.rule
            known = highest.get(key)
            if known is None or (known.level, known.at_s) < (level.level, level.at_s):
                highest[key] = level
    settled = [_settled(highest[key], confirmed) for key in sorted(highest)]
    return [level.finding(settings, criteria) for level in settled]


def _confirmed(own: Iterable[Finding | None]) -> Iterator[tuple[str, str]]:
    """Confirmed sensors with the sensor that confirms each."""
    for finding in own:
        for each in iter_chain(finding.reason) if finding else ():
            if each.code == ReasonCode.CONFIRMED:
                yield str(_within(each, "sensor")), each.params["by"]


def _settled(level: NodeLevel, confirmed: Mapping[str, str]) -> NodeLevel:
    by = confirmed.get(f"{level.node} {_within(level.reason, 'sensor')}")
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
    because = _with_confirmation(inner, by)
    return Reason(reason.code, **{**reason.params, "because": because})


def _node_level(
    group: Sequence[Observation], times_s: dict[tuple[str, str], list[float]]
) -> NodeLevel | None:
    """The level that a message states; None if it states none of 3 or above."""
    first = group[0]
    if first.priority < WARNING:
        return None
    # other messages of these priorities, such as safe mode, have no reason of a rule
    reason = next(
        (r for r in first.level_reasons if ReasonCode.RULE in _codes(r)), None
    )
    if reason is None:
        return None
    at_s, sensor = max(o.at_s for o in group), _within(reason, "sensor")
    own = [o for o in group if sensor is None or _sensor(o.name) == sensor]
    names = {_sensor(o.name) for o in own or group}
    later = [
        times[after]
        for name in names
        if (after := bisect_right(times := times_s[first.node, name], at_s))
        < len(times)
    ]
    until_s = min(later, default=float("inf"))
    return NodeLevel(first.node, at_s, until_s, first.priority, reason, own)


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

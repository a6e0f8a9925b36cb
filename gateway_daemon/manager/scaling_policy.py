"""Scaling policy: which hot area is split and which calm one is rejoined. No I/O.

The input is the load of all areas, the output at most one decision and its reason. An
area is hot when it exceeds a limit for `hold_s`, and calm when it stays below a
fraction of its own peak for `calm_s`. A cooldown between two decisions lets the first
take effect.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.topics import areas_around, covers

MIN_SHARE = 0.05
"""Smallest share of the load that a partition must move and must leave."""


def best_partition(
    cells: Mapping[str, float], area: str, taken: Collection[str]
) -> tuple[str, float] | None:
    """Return the sub-area that divides an area's load most evenly.

    Args:
        cells: Messages per second, by topic.
        area: Area to divide; topics outside it do not count.
        taken: Areas that are already served.

    Returns:
        The sub-area and its share of the load; of equal candidates the one with the
        larger share, then the larger area.
        None when no partition helps: all of the load is in one cell, or there is none.
    """
    inside = {topic: rate for topic, rate in cells.items() if covers(area, topic)}
    total = sum(inside.values())
    if total <= 0.0:
        return None
    shares: dict[str, float] = {}
    for topic, rate in inside.items():
        for sub in areas_around(topic):
            if sub != area and covers(area, sub) and sub not in taken:
                shares[sub] = shares.get(sub, 0.0) + rate / total
    if not shares:
        return None
    best = min(shares, key=lambda sub: _partition_rank(sub, shares[sub]))
    if not MIN_SHARE <= shares[best] <= 1 - MIN_SHARE:
        return None
    return best, shares[best]


def _partition_rank(sub: str, share: float) -> tuple[float, float, int, str]:
    return round(abs(share - 0.5), 3), -round(share, 3), len(sub), sub


ServerKind = Literal["broker", "gateway"]
ScalingAction = Literal["split", "join", "start", "stop", "nothing"]

COOL_RATIO = 0.8
"""Below this fraction of a limit a hot area is no longer hot."""


@dataclass(frozen=True)
class ScalingLimits:
    """Limits and times of the policy; see ``[autoscale]`` in the settings."""

    max_age_s: float = 5.0
    max_per_s: float | None = None
    max_cpu: float = 0.85
    hold_s: float = 30.0
    cooldown_s: float = 60.0
    calm_s: float = 600.0
    calm_ratio: float = 0.3


@dataclass(frozen=True)
class AreaLoad:
    """One area of one broker or gateway, and its load.

    Attributes:
        area: Area that it serves.
        per_s: Messages per second.
        age_s: How long the oldest message has waited at a gateway; brokers only.
        cpu: Busy share of its machine; gateways only.
        cells: Messages per second, by topic.
        is_spare: Whether it came from the standby and may return there.
        is_reachable: Whether the Manager reaches it; brokers only.
    """

    kind: ServerKind
    area: str
    server: BrokerInfo
    per_s: float = 0.0
    age_s: float = 0.0
    cpu: float = 0.0
    cells: Mapping[str, float] = field(default_factory=dict)
    is_spare: bool = False
    is_reachable: bool = True

    @property
    def key(self) -> tuple[str, str, BrokerInfo]:
        """Identifies it across reports."""
        return self.kind, self.area, self.server


@dataclass(frozen=True)
class ScalingSituation:
    """Input of a decision.

    Attributes:
        areas: Every served area.
        free: Standby servers that serve nothing.
        started: Standby servers that our commands started and can stop.
        may_start: Kinds of which our command may start one more now.
        unreachable: Brokers that get no area.
    """

    areas: tuple[AreaLoad, ...]
    free: Mapping[ServerKind, tuple[BrokerInfo, ...]] = field(default_factory=dict)
    started: frozenset[BrokerInfo] = frozenset()
    may_start: frozenset[ServerKind] = frozenset()
    unreachable: frozenset[BrokerInfo] = frozenset()


@dataclass(frozen=True)
class ScalingDecision:
    """One action and its reason.

    Attributes:
        action: ``split``: give the area to the server; ``join``: take it back;
            ``start`` and ``stop``: run the command; ``nothing``: no action is possible.
        area: The area.
        server: The standby server; None for ``start`` and ``nothing``.
        reason: For administrators.
    """

    action: ScalingAction
    kind: ServerKind
    area: str
    server: BrokerInfo | None
    reason: str

    def __str__(self) -> str:
        """Format for the log."""
        to = f" {self.server}" if self.server else ""
        return f"{self.action} {self.kind}{to} {self.area}: {self.reason}"


class ScalingPlanner:
    """Tracks for how long areas have been hot or calm, and decides."""

    def __init__(self, limits: ScalingLimits) -> None:
        self._limits = limits
        self._hot_since_s: dict[object, float] = {}
        self._calm_since_s: dict[object, float] = {}
        self._lost_since_s: dict[object, float] = {}
        self._peaks: dict[object, float] = {}
        self._cooldown_until_s = 0.0
        self._reported: set[tuple[str, str]] = set()

    def decide(
        self, situation: ScalingSituation, now_s: float
    ) -> ScalingDecision | None:
        """Return the next decision; call it at every interval, even in a cooldown."""
        self._watch(situation, now_s)
        if now_s < self._cooldown_until_s:
            return None
        hot = [
            self._relieve(server, situation) for server in self._hot(situation, now_s)
        ]
        decision = (
            self._join_lost(situation, now_s)
            or next((d for d in hot if d.action != "nothing"), None)
            or self._join_or_stop(situation, now_s)
            or next((d for d in hot if (d.kind, d.area) not in self._reported), None)
        )
        if decision is None:
            return None
        if decision.action == "nothing":
            self._reported.add((decision.kind, decision.area))
        else:
            self._cooldown_until_s = now_s + self._limits.cooldown_s
            self._reported.clear()
        return decision

    def peak_per_s(self, server: AreaLoad) -> float:
        """Highest rate since the server serves its area."""
        return self._peaks.get(server.key, server.per_s)

    def restore_peak(self, server: AreaLoad, per_s: float) -> None:
        """Restore a peak from before our start."""
        self._peaks[server.key] = max(per_s, self.peak_per_s(server))

    def heat(self, server: AreaLoad) -> tuple[float, str]:
        """Return the load as a fraction of the nearest limit, and a description."""
        limits = self._limits
        if server.kind == "gateway":
            return server.cpu / limits.max_cpu, f"CPU {server.cpu:.0%} busy"
        heats = [(server.age_s / limits.max_age_s, f"waits {server.age_s:.1f} s")]
        if limits.max_per_s is not None:
            rate = server.per_s / limits.max_per_s
            heats.append((rate, f"takes {server.per_s:.0f} messages/s"))
        return max(heats)

    def _watch(self, situation: ScalingSituation, now_s: float) -> None:
        for server in situation.areas:
            heat, _ = self.heat(server)
            name = server.key
            self._peaks[name] = max(self._peaks.get(name, 0.0), server.per_s)
            if heat > 1.0:
                self._hot_since_s.setdefault(name, now_s)
            elif heat < COOL_RATIO:
                self._hot_since_s.pop(name, None)
                self._reported.discard((server.kind, server.area))
            self._note_calm(name, self._is_calm(server, heat), now_s)
            if server.is_reachable:
                self._lost_since_s.pop(name, None)
            else:
                self._lost_since_s.setdefault(name, now_s)
        idle = {standby for free in situation.free.values() for standby in free}
        for standby in situation.started:
            self._note_calm(standby, standby in idle, now_s)
        names: set[object] = {server.key for server in situation.areas}
        for kept in (
            self._hot_since_s, self._calm_since_s, self._lost_since_s, self._peaks,
        ):  # fmt: skip
            for gone in kept.keys() - names - situation.started:
                del kept[gone]

    def _is_calm(self, server: AreaLoad, heat: float) -> bool:
        ratio = self._limits.calm_ratio
        return heat < ratio and server.per_s <= ratio * self._peaks[server.key]

    def _note_calm(self, name: object, is_calm: bool, now_s: float) -> None:
        if is_calm:
            self._calm_since_s.setdefault(name, now_s)
        else:
            self._calm_since_s.pop(name, None)

    def _join_lost(
        self, situation: ScalingSituation, now_s: float
    ) -> ScalingDecision | None:
        """Take an area back from a spare broker that is out of reach."""
        hold_s = self._limits.hold_s
        for server in situation.areas:
            is_lost = now_s - self._lost_since_s.get(server.key, now_s) >= hold_s
            if not (server.is_spare and is_lost and not server.is_reachable):
                continue
            others = [s for s in situation.areas if s.kind == server.kind]
            successor = _server_around(server, others)
            # If both are out of reach, the Manager may be the one that is cut off.
            if successor is not None and successor.is_reachable:
                why = f"{server.server} is out of reach for {hold_s:.0f} s"
                return ScalingDecision(
                    "join", server.kind, server.area, server.server, why
                )
        return None

    def _hot(self, situation: ScalingSituation, now_s: float) -> list[AreaLoad]:
        """Areas that have been hot for `hold_s`, the hottest first."""
        hot = [
            server
            for server in situation.areas
            if server.key in self._hot_since_s
            and now_s - self._hot_since_s[server.key] >= self._limits.hold_s
        ]
        return sorted(hot, key=lambda s: (self.heat(s)[0], s.per_s), reverse=True)

    def _relieve(self, hot: AreaLoad, situation: ScalingSituation) -> ScalingDecision:
        why = f"{hot.server} {self.heat(hot)[1]} for {self._limits.hold_s:.0f} s"
        taken = {s.area for s in situation.areas if s.kind == hot.kind}
        cut = best_partition(hot.cells, hot.area, taken)
        if cut is None:
            reason = f"{why}, but all of it is in one cell"
            return ScalingDecision("nothing", hot.kind, hot.area, None, reason)
        area, share = cut
        why = f"{why}; {area} is {share:.0%} of {hot.area}"
        free = situation.free.get(hot.kind, ())
        for standby in free:
            if standby not in situation.unreachable:
                return ScalingDecision("split", hot.kind, area, standby, why)
        lack = "no standby is free"
        if free:
            names = ", ".join(map(str, free))
            lack = f"the free standby servers are out of reach: {names}"
        action: ScalingAction = (
            "start" if hot.kind in situation.may_start else "nothing"
        )
        why += f", {'and' if action == 'start' else 'but'} {lack}"
        return ScalingDecision(action, hot.kind, area, None, why)

    def _join_or_stop(
        self, situation: ScalingSituation, now_s: float
    ) -> ScalingDecision | None:
        calm_s = self._limits.calm_s
        for server in sorted(situation.areas, key=lambda s: -len(s.area)):
            if server.is_spare and self._has_calmed(server.key, now_s):
                if not self._fits_back(server, situation.areas):
                    continue
                peak = self._peaks[server.key]
                why = f"{server.per_s:.1f} of {peak:.1f} messages/s for {calm_s:.0f} s"
                return ScalingDecision(
                    "join", server.kind, server.area, server.server, why
                )
        for part, free in situation.free.items():
            for standby in free:
                if standby in situation.started and self._has_calmed(standby, now_s):
                    why = f"serves nothing for {calm_s:.0f} s"
                    return ScalingDecision("stop", part, "", standby, why)
        return None

    def _has_calmed(self, name: object, now_s: float) -> bool:
        since_s = self._calm_since_s.get(name)
        return since_s is not None and now_s - since_s >= self._limits.calm_s

    def _fits_back(self, server: AreaLoad, servers: Iterable[AreaLoad]) -> bool:
        """Whether the server that would take over the area stays below its limit."""
        successor = _server_around(
            server, [s for s in servers if s.kind == server.kind]
        )
        if successor is None or self.heat(successor)[0] >= COOL_RATIO:
            return False
        limit_per_s = self._limits.max_per_s
        if limit_per_s is None or server.kind == "gateway":
            return True
        return successor.per_s + server.per_s < COOL_RATIO * limit_per_s


def _server_around(server: AreaLoad, others: Collection[AreaLoad]) -> AreaLoad | None:
    """Return the server of the closest area around another one."""
    around = [
        s for s in others if s.area != server.area and covers(s.area, server.area)
    ]
    return max(around, key=lambda s: len(s.area), default=None)

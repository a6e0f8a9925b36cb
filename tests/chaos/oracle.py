"""What may be missing, late or out of order, and what may not. Pure.

All times are monotonic seconds of one machine.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

URGENT_FROM, WINDOW_S = 4, 2.0
"""As the settings' page states them; not taken from the code, which is judged."""

SLACK_S = 1.0
"""A commit takes time on a busy disk."""

RECENT_S = 20.0
WITNESS_LATE_S = 10.0
"""Who listens at a broker hears so late, at most, on a busy machine."""


@dataclass(frozen=True)
class Sent:
    """A message that a queue took.

    Attributes:
        id: Its id.
        node: Whose queue.
        priority: On the ladder.
        at_s: When `put` had returned.
    """

    id: str
    node: str
    priority: int
    at_s: float


@dataclass(frozen=True)
class Away:
    """A stretch in which a part did nothing.

    Attributes:
        part: Which one.
        from_s: Since when.
        until_s: Until when.
        killed: Whether it lost its memory, too.
    """

    part: str
    from_s: float
    until_s: float
    killed: bool = False


@dataclass(frozen=True)
class Hop:
    """One store and what it sends on, as its brokers see it.

    Attributes:
        entered: What came, and when it was seen; ``node`` is whoever orders it.
        left: Id and time of what went on, in its order.
        parts: What breaks its order.
    """

    entered: Sequence[Sent]
    left: Sequence[tuple[str, float]]
    parts: frozenset[str]


@dataclass(frozen=True)
class Seen:
    """What happened, as far as it can be known from outside.

    Attributes:
        sent: What the queues took.
        arrivals: Id and time of each arrival in the archive, in its order.
        scored: Ids in the table of messages; None when it was not asked.
        away: Parts that were away.
        path: Parts without which nothing of a node arrives, by node.
        beside: Parts that others can stand in for, by node; what is in their hands
            when they break comes later than what goes round them.
        hops: Each step of the way by itself.
        lost_at_most: What the queues say that they may have lost.
    """

    sent: Sequence[Sent]
    arrivals: Sequence[tuple[str, float]]
    scored: Sequence[str] | None
    away: Sequence[Away]
    path: Mapping[str, frozenset[str]]
    lost_at_most: int
    beside: Mapping[str, frozenset[str]] = field(default_factory=dict)
    hops: Sequence[Hop] = ()


@dataclass
class Judgement:
    """What became of the messages.

    Attributes:
        sent: By priority.
        lost: By priority; those that a kill inside the window explains, too.
        unexcused: Ids that are missing and may not be.
        uncounted: How many more are missing than the queues say.
        twice: Ids that are twice in the archive or the table.
        unscored: Ids in the archive that are not in the table.
        overtaken: Urgent ids that a less urgent one passed on a standing path, and how
            it came.
        judged: Urgent ids of which that could be judged.
        overtaken_at: Those that were passed on one step of the way.
        judged_at: Of how many that could be judged, over all steps.
        waits_s: For each urgent id that came over a standing path how long it took.
        late: Ids that took longer than the bound.
    """

    sent: Counter[int] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)
    unexcused: list[str] = field(default_factory=list)
    uncounted: int = 0
    twice: list[str] = field(default_factory=list)
    unscored: list[str] = field(default_factory=list)
    overtaken: dict[str, str] = field(default_factory=dict)
    judged: int = 0
    overtaken_at: dict[str, str] = field(default_factory=dict)
    judged_at: int = 0
    waits_s: dict[str, float] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """Promises that were not kept, in words."""
        said = {
            "lost": self.unexcused,
            "lost uncounted": [str(self.uncounted)] if self.uncounted else [],
            "twice": self.twice,
            "not scored": self.unscored,
            "overtaken": [*self.overtaken],
            "overtaken on a hop": [*self.overtaken_at],
            "late": self.late,
        }
        return [f"{what}: {len(ids)}, {ids[:3]}" for what, ids in said.items() if ids]


def judge(seen: Seen, bound_s: float) -> Judgement:
    """Compare what was put with what arrived.

    Args:
        seen: What happened.
        bound_s: Longest time of an urgent message on a path that stood throughout,
            or since the path stood again.
    """
    arrived: dict[str, float] = {}
    for id_, at_s in seen.arrivals:
        arrived.setdefault(id_, at_s)
    missing = [each for each in seen.sent if each.id not in arrived]
    broken = {node: _on_any_way(seen, node) for node in seen.path}
    overtaken, judged = _overtaken(seen.sent, arrived, broken)
    at_hops = [_overtaken_at(hop, seen.away) for hop in seen.hops]
    waits_s = {
        each.id: wait_s
        for each in seen.sent
        if each.priority >= URGENT_FROM and each.id in arrived
        for wait_s in [_wait_s(each, arrived[each.id], _on_path(seen, each.node))]
        if wait_s is not None
    }
    return Judgement(
        sent=Counter(each.priority for each in seen.sent),
        lost=Counter(each.priority for each in missing),
        unexcused=[each.id for each in missing if not _is_excused(each, seen.away)],
        uncounted=max(0, len(missing) - seen.lost_at_most),
        twice=_twice(id_ for id_, _ in seen.arrivals) + _twice(seen.scored or ()),
        unscored=[]
        if seen.scored is None
        else sorted(arrived.keys() - set(seen.scored)),
        overtaken=overtaken,
        judged=judged,
        overtaken_at={id_: how for ids, _ in at_hops for id_, how in ids.items()},
        judged_at=sum(count for _, count in at_hops),
        waits_s=waits_s,
        late=[id_ for id_, wait_s in waits_s.items() if wait_s > bound_s],
    )


def _twice(ids: Iterable[str]) -> list[str]:
    return [id_ for id_, count in Counter(ids).items() if count > 1]


def _is_excused(message: Sent, away: Sequence[Away]) -> bool:
    """Whether its node was killed within the window, less what it was stopped."""
    if message.priority >= URGENT_FROM:
        return False
    own = [each for each in away if each.part == message.node]
    return any(
        each.killed
        and -SLACK_S <= _awake_s(message.at_s, each.from_s, own) <= WINDOW_S + SLACK_S
        for each in own
    )


def _awake_s(from_s: float, until_s: float, own: Sequence[Away]) -> float:
    """Time in which a part did something; a stopped one commits nothing."""
    stopped_s = sum(
        max(0.0, min(until_s, each.until_s) - max(from_s, each.from_s)) for each in own
    )
    return until_s - from_s - stopped_s


def _on_path(seen: Seen, node: str) -> list[Away]:
    return [each for each in seen.away if each.part in seen.path[node]]


def _on_any_way(seen: Seen, node: str) -> list[Away]:
    beside = seen.beside.get(node, frozenset())
    return [each for each in seen.away if each.part in seen.path[node] | beside]


def _wait_s(message: Sent, arrived_s: float, away: Sequence[Away]) -> float | None:
    """From when nothing stood in its way any more; None if something still did."""
    before = [each for each in away if each.from_s < arrived_s]
    if any(each.until_s >= arrived_s for each in before):
        return None
    free_s = max([message.at_s] + [each.until_s for each in before])
    return max(0.0, arrived_s - free_s)


def _shortly_before(at_s: float, away: Sequence[Away]) -> list[str]:
    """What may explain it: a break that began too early to excuse it."""
    return [str(each) for each in away if at_s - RECENT_S < each.until_s < at_s + 1]


def _overtaken_at(hop: Hop, away: Sequence[Away]) -> tuple[dict[str, str], int]:
    """See `_overtaken`; who looks from beside sees a break a little late."""
    left: dict[str, float] = {}
    for id_, at_s in hop.left:
        left.setdefault(id_, at_s)
    own = [each for each in away if each.part in hop.parts]
    nodes = {each.node for each in hop.entered}
    return _overtaken(
        hop.entered, left, dict.fromkeys(nodes, own), late_s=WITNESS_LATE_S
    )


def _overtaken(
    sent: Sequence[Sent],
    arrived: Mapping[str, float],
    away: Mapping[str, Sequence[Away]],
    late_s: float = 0.0,
) -> tuple[dict[str, str], int]:
    """Urgent ids that came behind a less urgent one of their node put later.

    One in flight when something breaks is sent again, behind what had more luck:
    only those are judged in whose time from `put` to arrival nothing broke.
    """
    by_id = {each.id: each for each in sent}
    latest: dict[tuple[str, int], Sent] = {}
    overtaken: dict[str, str] = {}
    judged = 0
    for id_, at_s in arrived.items():
        message = by_id.get(id_)
        if message is None:
            continue
        node, priority = message.node, message.priority
        key = (node, priority)
        latest[key] = max(latest.get(key, message), message, key=lambda s: s.at_s)
        if priority < URGENT_FROM or any(
            message.at_s - late_s <= each.from_s <= at_s for each in away[node]
        ):
            continue
        judged += 1
        by = [
            other
            for other in latest.values()
            if other.node == node and other.priority < priority
            if other.at_s > message.at_s
        ]
        if by:
            told = [f"{m} arrived {arrived[m.id]:.2f}" for m in (message, by[0])]
            overtaken[id_] = "; ".join([*told, *_shortly_before(at_s, away[node])])
    return overtaken, judged

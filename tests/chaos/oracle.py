"""Checks which messages may be missing, late or out of order. No I/O.

All times are monotonic seconds of one machine.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

URGENT_FROM, WINDOW_S = 4, 2.0
"""Values documented on the settings page; not imported from the code under test."""

SLACK_S = 1.0
"""A commit takes time on a busy disk."""

RECENT_S = 20.0
WITNESS_LATE_S = 10.0
"""Longest delay of a message to a recorder at a broker, on a busy machine."""


@dataclass(frozen=True)
class Sent:
    """A message that a queue has accepted.

    Attributes:
        id: Its id.
        node: Node that owns the queue.
        priority: 1 to 5.
        at_s: When `put` returned.
    """

    id: str
    node: str
    priority: int
    at_s: float


@dataclass(frozen=True)
class Outage:
    """A period in which a component did nothing.

    Attributes:
        part: Name of the component.
        from_s: Start.
        until_s: End.
        killed: Whether it also lost its memory.
    """

    part: str
    from_s: float
    until_s: float
    killed: bool = False


@dataclass(frozen=True)
class Hop:
    """Input and output of one store, as seen at its brokers.

    Attributes:
        entered: Messages received, and when; ``node`` is the store that orders them.
        left: Id and time of each message sent on, in order.
        parts: Components whose outage may break the order.
    """

    entered: Sequence[Sent]
    left: Sequence[tuple[str, float]]
    parts: frozenset[str]


@dataclass(frozen=True)
class Observations:
    """What was observed from outside the system.

    Attributes:
        sent: Messages accepted by the queues.
        arrivals: Id and time of each arrival in the archive, in order of arrival.
        scored: Ids in the table of messages; None if the table was not read.
        outages: Outages of components.
        path: Components without which no message of a node arrives, by node.
        alternatives: Components that others can replace, by node; messages held by
            one during its outage arrive later than messages that bypass it.
        hops: Each hop by itself.
        lost_at_most: Upper bound of lost messages, as reported by the queues.
    """

    sent: Sequence[Sent]
    arrivals: Sequence[tuple[str, float]]
    scored: Sequence[str] | None
    outages: Sequence[Outage]
    path: Mapping[str, frozenset[str]]
    lost_at_most: int
    alternatives: Mapping[str, frozenset[str]] = field(default_factory=dict)
    hops: Sequence[Hop] = ()


@dataclass
class Judgement:
    """Result of the check.

    Attributes:
        sent: Count by priority.
        lost: Count by priority, including losses that a kill within the window
            explains.
        unexcused: Ids that are missing without an excuse.
        uncounted: Missing messages beyond the number that the queues report.
        twice: Duplicate ids in the archive or the table.
        unscored: Ids in the archive that are not in the table.
        overtaken: Urgent ids that a less urgent message overtook on an intact path,
            with a description.
        judged: Number of urgent ids whose order could be checked.
        overtaken_at: Urgent ids overtaken on a single hop.
        judged_at: Number of urgent ids whose order could be checked, over all hops.
        waits_s: Delay of each urgent id that arrived over an intact path.
        late: Ids whose delay exceeds the bound.
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
        """Descriptions of the promises that were broken."""
        broken = {
            "lost": self.unexcused,
            "lost uncounted": [str(self.uncounted)] if self.uncounted else [],
            "twice": self.twice,
            "not scored": self.unscored,
            "overtaken": [*self.overtaken],
            "overtaken on a hop": [*self.overtaken_at],
            "late": self.late,
        }
        return [f"{what}: {len(ids)}, {ids[:3]}" for what, ids in broken.items() if ids]


def judge(seen: Observations, bound_s: float) -> Judgement:
    """Compare the messages that were put with those that arrived.

    Args:
        seen: Observations.
        bound_s: Longest delay of an urgent message on an intact path, or since the
            path was restored.
    """
    arrived: dict[str, float] = {}
    for id_, at_s in seen.arrivals:
        arrived.setdefault(id_, at_s)
    missing = [each for each in seen.sent if each.id not in arrived]
    broken = {node: _on_any_path(seen, node) for node in seen.path}
    overtaken, judged = _overtaken(seen.sent, arrived, broken)
    at_hops = [_overtaken_at(hop, seen.outages) for hop in seen.hops]
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
        unexcused=[each.id for each in missing if not _is_excused(each, seen.outages)],
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


def _is_excused(message: Sent, outages: Sequence[Outage]) -> bool:
    """Whether its node was killed within the window, not counting stopped time."""
    if message.priority >= URGENT_FROM:
        return False
    own = [each for each in outages if each.part == message.node]
    return any(
        each.killed
        and -SLACK_S <= _awake_s(message.at_s, each.from_s, own) <= WINDOW_S + SLACK_S
        for each in own
    )


def _awake_s(from_s: float, until_s: float, own: Sequence[Outage]) -> float:
    """Time in which a component ran; a stopped one commits nothing."""
    stopped_s = sum(
        max(0.0, min(until_s, each.until_s) - max(from_s, each.from_s)) for each in own
    )
    return until_s - from_s - stopped_s


def _on_path(seen: Observations, node: str) -> list[Outage]:
    return [each for each in seen.outages if each.part in seen.path[node]]


def _on_any_path(seen: Observations, node: str) -> list[Outage]:
    alternatives = seen.alternatives.get(node, frozenset())
    return [
        each for each in seen.outages if each.part in seen.path[node] | alternatives
    ]


def _wait_s(message: Sent, arrived_s: float, outages: Sequence[Outage]) -> float | None:
    """Delay since the last outage ended; None if it arrived during an outage."""
    before = [each for each in outages if each.from_s < arrived_s]
    if any(each.until_s >= arrived_s for each in before):
        return None
    free_s = max([message.at_s] + [each.until_s for each in before])
    return max(0.0, arrived_s - free_s)


def _shortly_before(at_s: float, outages: Sequence[Outage]) -> list[str]:
    """Outages that may explain it, but began too early to excuse it."""
    return [str(each) for each in outages if at_s - RECENT_S < each.until_s < at_s + 1]


def _overtaken_at(hop: Hop, outages: Sequence[Outage]) -> tuple[dict[str, str], int]:
    """See `_overtaken`; a recorder at a broker notices an outage a little late."""
    left: dict[str, float] = {}
    for id_, at_s in hop.left:
        left.setdefault(id_, at_s)
    own = [each for each in outages if each.part in hop.parts]
    nodes = {each.node for each in hop.entered}
    return _overtaken(
        hop.entered, left, dict.fromkeys(nodes, own), late_s=WITNESS_LATE_S
    )


def _overtaken(
    sent: Sequence[Sent],
    arrived: Mapping[str, float],
    outages: Mapping[str, Sequence[Outage]],
    late_s: float = 0.0,
) -> tuple[dict[str, str], int]:
    """Urgent ids that arrived after a less urgent one that the node put later.

    A message in flight during an outage is sent again, behind others. Therefore only
    messages without an outage between `put` and arrival are checked.
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
            message.at_s - late_s <= each.from_s <= at_s for each in outages[node]
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
            pair = [f"{m} arrived {arrived[m.id]:.2f}" for m in (message, by[0])]
            overtaken[id_] = "; ".join([*pair, *_shortly_before(at_s, outages[node])])
    return overtaken, judged

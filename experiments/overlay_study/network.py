"""Network simulation: forwarders with link delays, queues and crashed nodes.

`measure_delays` simulates many topics on shared brokers. Every broker serves one copy
after the other; publications are a Poisson process with equal shares of all priorities.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import fmean
from typing import NamedTuple

from experiments.overlay_study.baselines import SkipGraph
from experiments.overlay_study.methods import TopicPattern
from gateway_daemon.overlay.forwarder import Forwarder
from gateway_daemon.overlay.keys import VECTOR_BITS, OverlayError
from gateway_daemon.overlay.messages import (
    DeliverMessage,
    ForwarderAction,
    ForwarderPacket,
    MessageCopy,
    OverlayMessage,
    PriorityBacklog,
    PublicationDone,
    RankedNode,
)
from gateway_daemon.overlay.partition import (
    DEFAULT_COST,
    TABLE_ENTRIES,
    HopCost,
    RangePart,
    SplitPlan,
    SplitShape,
    assign_range,
    choose_plan,
    head_positions,
    split_range,
    subtree_sizes,
)
from gateway_daemon.overlay.peers import ReplyTimeouts
from spatial_mqtt.priority import LADDER

LEFT_NEIGHBOURS = 4
"""Left neighbours that the ring stores for repair."""

LINK_TIMEOUTS = ReplyTimeouts(
    receipt_timeout_s=0.030, per_copy_s=0.0001, report_timeout_s=0.120, suspect_s=60.0
)
"""For links of 10 ms."""


@dataclass(frozen=True)
class ConvergedNeighbours:
    """Neighbours of a node when the overlay has converged.

    Attributes:
        graph: The topic's Skip Graph.
        rank: The node.
        pattern: The topic; its subscribers store the successors of their range.
    """

    graph: SkipGraph
    rank: int
    pattern: TopicPattern

    def right_neighbours(self) -> Sequence[RankedNode[int]]:
        """Return the links, and for a subscriber its successors."""
        known = set(self.graph.right_neighbours(self.rank))
        if self.rank >= self.pattern.publishers:
            last = min(self.rank + TABLE_ENTRIES, self.pattern.members - 1)
            known.update(range(self.rank + 1, last + 1))
        return [RankedNode(r, r - self.rank - 1) for r in sorted(known)]

    def left_neighbours(self) -> Sequence[int]:
        """Return the links and the predecessors."""
        near = range(max(0, self.rank - LEFT_NEIGHBOURS), self.rank)
        return sorted({*near, *self.graph.left_neighbours(self.rank)})


@dataclass
class _Node:
    forwarder: Forwarder[int]
    backlog: PriorityBacklog[tuple[int, MessageCopy[int]]] = field(
        default_factory=PriorityBacklog
    )
    busy_until_s: float = 0.0
    wakes_s: float | None = None


class SimulatedNetwork:
    """The nodes of one topic and the packets between them.

    Attributes:
        now_s: Simulated time.
        delivered: When each rank received each message, by message id.
        copies: Copies sent so far.
    """

    def __init__(
        self,
        graph: SkipGraph,
        pattern: TopicPattern,
        timeouts: ReplyTimeouts = LINK_TIMEOUTS,
        cost: HopCost = DEFAULT_COST,
    ) -> None:
        self.now_s = 0.0
        self.delivered: dict[str, dict[int, float]] = {}
        self.copies = 0
        self._pattern = pattern
        self._cost = cost
        self._nodes = {
            rank: _Node(
                Forwarder(rank, ConvergedNeighbours(graph, rank, pattern), timeouts)
            )
            for rank in range(pattern.members)
        }
        self._crashed: set[int] = set()
        self._events: list[
            tuple[float, int, int, tuple[int, ForwarderPacket[int]] | None]
        ] = []
        self._order = count()

    def crash(self, ranks: Sequence[int]) -> None:
        """Stop nodes without notice."""
        self._crashed.update(ranks)

    def publish(self, publisher: int, message: OverlayMessage) -> None:
        """Publish to all subscribers."""
        low, high = self._pattern.publishers, self._pattern.members
        forwarder = self._nodes[publisher].forwarder
        self._act(publisher, forwarder.publish(message, low, high, self.now_s))

    def run(self, until_s: float = float("inf")) -> None:
        """Advance the simulated time to the end of all events, or until then."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, rank, what = heappop(self._events)
            if rank in self._crashed:
                continue
            node = self._nodes[rank]
            if what is None:
                self._wake(rank, node)
            elif isinstance(what[1], MessageCopy):
                node.backlog.push(
                    (what[0], what[1]), what[1].message.priority, self.now_s
                )
                self._serve(rank, node)
            else:
                self._act(rank, node.forwarder.receive(*what, self.now_s))

    def delivery_times(self, message_id: str) -> Mapping[int, float]:
        """Return when each subscriber received a message."""
        return self.delivered.get(message_id, {})

    def forwarder(self, rank: int) -> Forwarder[int]:
        """Return the state machine of a node."""
        return self._nodes[rank].forwarder

    def _serve(self, rank: int, node: _Node) -> None:
        """Serve the next copy if the node is idle."""
        if self.now_s < node.busy_until_s or not len(node.backlog):
            return
        sender, copy = node.backlog.pop(self.now_s)
        node.forwarder.queued_copies = len(node.backlog)
        busy_s = self._act(rank, node.forwarder.receive(sender, copy, self.now_s))
        node.busy_until_s = self.now_s + busy_s
        self._at(node.busy_until_s, rank, None)

    def _wake(self, rank: int, node: _Node) -> None:
        """Handle the end of a service, or a timeout."""
        due_s = node.forwarder.next_due_s()
        if due_s is not None and due_s <= self.now_s:
            self._act(rank, node.forwarder.on_timer(self.now_s))
        self._serve(rank, node)

    def _act(self, rank: int, actions: Sequence[ForwarderAction[int]]) -> float:
        """Carry out a forwarder's actions; return how long the node is busy."""
        busy_ms = self._cost.node_ms
        for action in actions:
            if isinstance(action, DeliverMessage):
                self.delivered.setdefault(action.message.id, {})[rank] = self.now_s
                continue
            if isinstance(action, PublicationDone):
                continue
            if isinstance(action.packet, MessageCopy):
                self.copies += 1
                busy_ms += self._cost.child_ms
            at_s = self.now_s + (busy_ms + self._cost.link_ms) / 1000
            self._at(at_s, action.to, (rank, action.packet))
        self._plan(rank)
        return busy_ms / 1000

    def _plan(self, rank: int) -> None:
        node = self._nodes[rank]
        due_s = node.forwarder.next_due_s()
        if due_s is not None and due_s != node.wakes_s:
            node.wakes_s = due_s
            self._at(due_s, rank, None)

    def _at(
        self, at_s: float, rank: int, what: tuple[int, ForwarderPacket[int]] | None
    ) -> None:
        heappush(self._events, (at_s, next(self._order), rank, what))


TREES: Mapping[str, Callable[[int, int], SplitPlan] | None] = {
    "sg": None,
    "direct": lambda _priority, _waiting: SplitPlan(SplitShape.EQUAL, 1 << 30),
    "8-ary": lambda _priority, _waiting: SplitPlan(SplitShape.REGULAR, 8, 8),
    "policy": choose_plan,
}


@dataclass(frozen=True)
class LoadScenario:
    """Parameters of a load simulation.

    Attributes:
        load: Mean busy share of a broker, more than 0, less than 1.
        tree: A key of `TREES`.
        is_fifo: Whether brokers serve in the order of arrival.
        brokers: Number of brokers.
        topics: Number of topics, each with one publisher.
        subscribers: Of each topic.
        span_s: Duration of the publications.
        seed: The same seed gives the same numbers.
    """

    load: float
    tree: str
    is_fifo: bool = False
    brokers: int = 1000
    topics: int = 100
    subscribers: int = 49
    span_s: float = 2.0
    seed: int = 0


@dataclass(frozen=True)
class DelayStatistics:
    """Delay of the messages of one priority.

    Attributes:
        mean_ms: Mean over all deliveries.
        p99_ms: 99th percentile.
    """

    mean_ms: float
    p99_ms: float


class _Job(NamedTuple):
    """A copy at a broker."""

    topic: int
    rank: int
    low: int
    high: int
    priority: int
    published_ms: float


class _Brokers:
    """All brokers, their queues, and the topics on them."""

    def __init__(self, setting: LoadScenario) -> None:
        self.setting = setting
        self.delays_ms: dict[int, list[float]] = {p: [] for p in LADDER.descending}
        chance = Random(setting.seed)
        members = setting.subscribers + 1
        self._hosts = [
            chance.sample(range(setting.brokers), members)
            for _ in range(setting.topics)
        ]
        self._graph = SkipGraph([
            chance.getrandbits(VECTOR_BITS) for _ in range(members)
        ])
        self._backlogs = [PriorityBacklog[_Job]() for _ in range(setting.brokers)]
        self._free_ms = [0.0] * setting.brokers
        self._events: list[tuple[float, int, int, _Job | None]] = []
        self._order = count()
        self._publish(chance)

    def _publish(self, chance: Random) -> None:
        setting = self.setting
        members = setting.subscribers + 1
        work_ms = (
            members * DEFAULT_COST.node_ms + setting.subscribers * DEFAULT_COST.child_ms
        )
        each_ms = work_ms / (setting.load * setting.brokers)
        at_ms = chance.expovariate(1 / each_ms)
        while at_ms < setting.span_s * 1000:
            topic, priority = (
                chance.randrange(setting.topics),
                chance.randint(1, LADDER.top),
            )
            job = _Job(topic, 0, 1, members, priority, at_ms)
            self._at(at_ms, self._hosts[topic][0], job)
            at_ms += chance.expovariate(1 / each_ms)

    def run(self) -> None:
        while self._events:
            now_ms, _, broker, job = heappop(self._events)
            if job is not None:
                # Time runs in milliseconds here, in seconds for the queue.
                priority = 1 if self.setting.is_fifo else job.priority
                self._backlogs[broker].push(job, priority, now_ms / 1000)
            if now_ms >= self._free_ms[broker] and len(self._backlogs[broker]):
                self._serve(broker, self._backlogs[broker].pop(now_ms / 1000), now_ms)

    def _serve(self, broker: int, job: _Job, now_ms: float) -> None:
        if job.rank >= job.low:
            self.delays_ms[job.priority].append(now_ms - job.published_ms)
        waiting = len(self._backlogs[broker])
        parts = sorted(self._parts(job, waiting), key=lambda part: part.low - part.high)
        for number, (to, low, high) in enumerate(parts, 1):
            copy = job._replace(rank=to, low=low, high=high)
            at_ms = now_ms + DEFAULT_COST.child_delay_ms(number)
            self._at(at_ms, self._hosts[job.topic][to], copy)
        self._free_ms[broker] = (
            now_ms + DEFAULT_COST.node_ms + len(parts) * DEFAULT_COST.child_ms
        )
        self._at(self._free_ms[broker], broker, None)

    def _parts(self, job: _Job, waiting: int) -> Sequence[RangePart[int]]:
        plan_of = TREES[self.setting.tree]
        if plan_of is None:
            return split_range(
                job.low, job.high, self._graph.right_neighbours(job.rank)
            )
        first = max(job.low, job.rank + 1)
        plan = plan_of(job.priority, waiting)
        sizes = subtree_sizes(job.high - first, plan, is_root=job.rank == 0)
        return assign_range(
            first, job.high, [first + place for place in head_positions(sizes)]
        )

    def _at(self, at_ms: float, broker: int, job: _Job | None) -> None:
        heappush(self._events, (at_ms, next(self._order), broker, job))


def measure_delays(setting: LoadScenario) -> dict[int, DelayStatistics]:
    """Simulate the load and return delays by priority.

    Raises:
        OverlayError: The load is out of range.
    """
    if not 0 < setting.load < 1:
        raise OverlayError("load", "more than 0 and less than 1", setting.load)
    brokers = _Brokers(setting)
    brokers.run()
    found: dict[int, DelayStatistics] = {}
    for priority, delays_ms in brokers.delays_ms.items():
        delays_ms.sort()
        late = delays_ms[int(0.99 * len(delays_ms))]
        found[priority] = DelayStatistics(fmean(delays_ms), late)
    return found

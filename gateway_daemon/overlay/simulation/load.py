"""Many topics on shared brokers: what waiting does to a message's delay.

Every broker serves one copy after the other. Publications are a Poisson process of
all priorities alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import fmean
from typing import NamedTuple

from gateway_daemon.overlay.backlog import Backlog
from gateway_daemon.overlay.delay import COST
from gateway_daemon.overlay.errors import OverlayError
from gateway_daemon.overlay.membership import BITS
from gateway_daemon.overlay.partition import Plan, Shape, hand_out, heads, shares
from gateway_daemon.overlay.policy import plan_for
from gateway_daemon.overlay.skip_graph import SkipGraph
from gateway_daemon.overlay.split import Part, split
from spatial_mqtt.priority import LADDER

TREES: Mapping[str, Callable[[int, int], Plan] | None] = {
    "sg": None,
    "direct": lambda _priority, _waiting: Plan(Shape.EQUAL, 1 << 30),
    "8-ary": lambda _priority, _waiting: Plan(Shape.REGULAR, 8, 8),
    "policy": plan_for,
}


@dataclass(frozen=True)
class Setting:
    """What to run.

    Attributes:
        load: Mean share of its time that a broker works, more than 0, less than 1.
        tree: A key of `TREES`.
        is_fifo: Whether brokers serve in the order of arrival.
        brokers: Number of brokers.
        topics: Number of topics, each with one publisher.
        subscribers: Of each topic.
        span_s: How long publications go on.
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
class Waits:
    """Delay of the messages of one priority.

    Attributes:
        mean_ms: Mean over all deliveries.
        p99_ms: 99 of 100 are at most so late.
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
    born_ms: float


class _Brokers:
    """All brokers, their queues, and the topics on them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.delays_ms: dict[int, list[float]] = {p: [] for p in LADDER.descending()}
        chance = Random(setting.seed)
        members = setting.subscribers + 1
        self._hosts = [
            chance.sample(range(setting.brokers), members)
            for _ in range(setting.topics)
        ]
        self._graph = SkipGraph([chance.getrandbits(BITS) for _ in range(members)])
        self._backlogs = [Backlog[_Job]() for _ in range(setting.brokers)]
        self._free_ms = [0.0] * setting.brokers
        self._events: list[tuple[float, int, int, _Job | None]] = []
        self._order = count()
        self._publish(chance)

    def _publish(self, chance: Random) -> None:
        setting = self.setting
        members = setting.subscribers + 1
        work_ms = members * COST.node_ms + setting.subscribers * COST.child_ms
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
                self._backlogs[broker].put(job, priority, now_ms / 1000)
            if now_ms >= self._free_ms[broker] and len(self._backlogs[broker]):
                self._serve(broker, self._backlogs[broker].take(now_ms / 1000), now_ms)

    def _serve(self, broker: int, job: _Job, now_ms: float) -> None:
        if job.rank >= job.low:
            self.delays_ms[job.priority].append(now_ms - job.born_ms)
        waiting = len(self._backlogs[broker])
        parts = sorted(self._parts(job, waiting), key=lambda part: part.low - part.high)
        for number, (to, low, high) in enumerate(parts, 1):
            copy = job._replace(rank=to, low=low, high=high)
            at_ms = now_ms + COST.at_child(number)
            self._at(at_ms, self._hosts[job.topic][to], copy)
        self._free_ms[broker] = now_ms + COST.node_ms + len(parts) * COST.child_ms
        self._at(self._free_ms[broker], broker, None)

    def _parts(self, job: _Job, waiting: int) -> Sequence[Part[int]]:
        plan_of = TREES[self.setting.tree]
        if plan_of is None:
            return split(job.low, job.high, self._graph.rights(job.rank))
        first = max(job.low, job.rank + 1)
        plan = plan_of(job.priority, waiting)
        sizes = shares(job.high - first, plan, is_root=job.rank == 0)
        return hand_out(first, job.high, [first + place for place in heads(sizes)])

    def _at(self, at_ms: float, broker: int, job: _Job | None) -> None:
        heappush(self._events, (at_ms, next(self._order), broker, job))


def waits(setting: Setting) -> dict[int, Waits]:
    """Delays by priority, under load.

    Raises:
        OverlayError: The load is none that a broker can bear.
    """
    if not 0 < setting.load < 1:
        raise OverlayError("load", "more than 0 and less than 1", setting.load)
    brokers = _Brokers(setting)
    brokers.run()
    found: dict[int, Waits] = {}
    for priority, delays_ms in brokers.delays_ms.items():
        delays_ms.sort()
        late = delays_ms[int(0.99 * len(delays_ms))]
        found[priority] = Waits(fmean(delays_ms), late)
    return found

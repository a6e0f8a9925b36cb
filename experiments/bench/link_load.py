"""Load on a simulated link: a backlog, and urgent messages put behind it.

The uplink's own `InFlight` decides what is sent. A write is as the uplink makes it:
messages share its segments, and urgent ones share none with others.
"""

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field

from edge_agent.queue.base import QueuedMessage
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits, InFlight
from edge_agent.uplink.link_rate import (
    FRAME_BYTES,
    SEGMENT_BYTES,
    SEGMENT_HEADER_BYTES,
    LinkEstimate,
    wire_bytes,
)
from edge_agent.uplink.uplink import MAX_BURST, MAX_EXCESS_BYTES
from experiments.bench.simulated_link import (
    TCP_TIMEOUT_S,
    LinkPlan,
    SimulatedLink,
)
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

SUBSCRIPTION_BYTES = 80
URGENT_BYTES = 260
PAUSE_S = 3.0
"""Pause of the backlog before the measurement: a bucket fills meanwhile."""

RELEARN_S = 12.0
"""Time after a change of the link in which urgent messages are not judged."""

NEXT_UPLINK_S = 4.0
"""Time after which a second uplink connects to a link that the first one fills."""

OTHER_PERIOD_S = 5.0

MATHIS = 1.22
"""Constant of TCP's throughput with loss (Mathis et al. 1997)."""

LEAST_SHARE = 0.5
"""Least share of the link that each uplink must get, as a part of an equal one."""


@dataclass(frozen=True)
class Load:
    """What is sent over the link.

    Attributes:
        sizes: Sizes of the packets of the backlog; each is drawn from them.
        urgent: Number of times that urgent messages are put.
        urgent_together: Number of urgent messages that are put at each.
        settle_s: Time with a backlog before the measurement.
        measure_s: Length of the measurement.
        known: What an earlier connection has stored.
        uplinks: Number of senders that share the link.
    """

    sizes: tuple[int, ...] = (1000,)
    urgent: int = 12
    urgent_together: int = 1
    settle_s: float = 25.0
    measure_s: float = 60.0
    known: LinkEstimate | None = None
    uplinks: int = 1

    @classmethod
    def for_plan(cls, plan: LinkPlan) -> "Load":
        """A load that lasts longer on a slow link with a large burst."""
        is_fast = plan.rate_bps * max(1.0, plan.rate_factor) >= 2e6  # noqa: PLR2004
        burst_s = 1.5 * plan.burst_bytes / plan.rate
        settle_s = max(15.0 if is_fast else 25.0, burst_s) + PAUSE_S
        return cls(settle_s=settle_s, measure_s=30.0 if is_fast else 60.0)

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest message on the link, at least a frame."""
        return max(FRAME_BYTES, *(wire_bytes(s, is_first=True) for s in self.sizes))


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        over_s: Sorted; by how much each urgent message exceeded a segment's time, the
            delay of the link and 0.5 s; negative when it was faster.
        over_burst_s: The same for the time of the whole burst and 1.0 s.
        goodput: Part of what the link can carry that was acknowledged.
        least_share: What the slowest of several uplinks got, as a part of an equal
            share.
    """

    over_s: list[float]
    over_burst_s: list[float]
    goodput: float
    least_share: float = 1.0

    @property
    def p90_over_s(self) -> float:
        """The value that nine of ten urgent messages do not exceed."""
        return self.over_s[int(0.9 * len(self.over_s))]

    def over_bar_s(self, plan: LinkPlan) -> float:
        """Seconds beyond the bar for urgent messages; negative when they are early."""
        if plan.loss:
            return self.p90_over_s
        if plan.has_small_burst:
            return self.over_s[-1]
        return max(self.p90_over_s, self.over_burst_s[-1])

    def misses(self, plan: LinkPlan) -> list[str]:
        """The bars that the run does not reach."""
        missed = []
        if (over_s := self.over_bar_s(plan)) > 0:
            missed.append(f"urgent {over_s:.2f} s too late")
        least = 0.75 if plan.is_far else 0.9
        if self.goodput < least:
            missed.append(f"goodput {self.goodput:.2f}")
        if self.least_share < LEAST_SHARE:
            missed.append(f"share {self.least_share:.2f}")
        return missed


@dataclass
class _Uplink:
    """One sender: its state, and what it waits for.

    Attributes:
        flight: State of its messages.
        starts_s: When it connects.
        waiting: Times of urgent messages that were not sent, with their numbers among
            those that were put together.
        woken_s: Latest time for which it has asked to be called.
        acked_bytes: Acknowledged during the measurement.
        next_bytes: Size of the next packet of the backlog.
    """

    flight: InFlight
    starts_s: float
    waiting: deque[tuple[float, int]] = field(default_factory=deque)
    woken_s: float = 0.0
    acked_bytes: int = 0
    next_bytes: int = 0


class _Run:
    """One run, as events in the order of their times."""

    def __init__(self, plan: LinkPlan, load: Load, seed: int) -> None:
        self.plan, self.load = plan, load
        self.end_s = load.settle_s + load.measure_s
        middle_s = load.settle_s + load.measure_s / 2
        is_changed = plan.rate_factor != 1.0 or plan.new_one_way_s is not None
        self.change_s = middle_s if is_changed else float("inf")
        self.link = SimulatedLink(plan, self.change_s, seed, load.settle_s, self.end_s)
        limits = FlightLimits(max_awaiting=100_000)
        self.uplinks = [
            _Uplink(InFlight(limits, CustodyMode.PUBACK), n * NEXT_UPLINK_S)
            for n in range(load.uplinks)
        ]
        self.delays: list[tuple[float, int, float]] = []
        self.other_bytes = 0
        self._sizes = random.Random(seed)  # noqa: S311 - a simulation
        self._tokens = itertools.count()
        self._events: list[tuple[float, int, str, _Uplink | None, int, int]] = []
        for each in self.uplinks:
            each.next_bytes = self._sizes.choice(load.sizes)
        self._plan_events(random.Random(seed))  # noqa: S311 - a simulation

    def _plan_events(self, jitter: random.Random) -> None:
        load = self.load
        gap_s = (load.measure_s - 2) / load.urgent
        for number in range(load.urgent):
            at_s = load.settle_s + gap_s * (number + jitter.uniform(0, 0.6))
            self._add(at_s, "urgent", self.uplinks[number % load.uplinks])
        for each in self.uplinks:
            self._add(load.settle_s, "wake", each)
            self._add(each.starts_s, "connect", each)
        if self.plan.other_share:
            self._add(load.settle_s, "other")

    def run(self) -> None:
        """Run to the end of the measurement."""
        while self._events and self._events[0][0] <= self.end_s:
            now_s, _, kind, uplink, token, size = heapq.heappop(self._events)
            if uplink is None:
                self._send_other(now_s)
                continue
            flight = uplink.flight
            if kind == "connect":
                _, up_s = self.link.send(SUBSCRIPTION_BYTES, now_s)
                self._add(up_s, "up", uplink)
            elif kind == "up":
                trip_s = now_s - uplink.starts_s
                flight.on_up(now_s, 100_000, (), trip_s, self.load.known)
            elif kind == "urgent":
                together = range(self.load.urgent_together)
                uplink.waiting.extend((now_s, number) for number in together)
            elif kind == "ack":
                flight.on_published(token, None, now_s)
                flight.take_actions(now_s)
                uplink.acked_bytes += size if now_s >= self.load.settle_s else 0
            if kind != "connect":
                self._send(uplink, now_s)

    def _send_other(self, now_s: float) -> None:
        """Send a frame of other traffic, every other `OTHER_PERIOD_S`."""
        since_s = now_s - self.load.settle_s
        if since_s // OTHER_PERIOD_S % 2:
            self.link.send(FRAME_BYTES, now_s)
            self.other_bytes += FRAME_BYTES
        rate = self.plan.other_share * self.link.rate_at(now_s)
        self._add(now_s + FRAME_BYTES / rate, "other")

    def _send(self, uplink: _Uplink, now_s: float) -> None:
        flight = uplink.flight
        while uplink.waiting:
            free_bytes = flight.sendable_bytes(now_s, LADDER.top)
            count = _fitting([URGENT_BYTES] * len(uplink.waiting), free_bytes)
            if not count:
                break
            arrivals_s = self._write(uplink, [URGENT_BYTES] * count, now_s)
            for arrival_s in arrivals_s:
                put_s, number = uplink.waiting.popleft()
                self.delays.append((put_s, number, arrival_s))
        is_pause = self.load.settle_s - PAUSE_S <= now_s < self.load.settle_s
        while not is_pause and not uplink.waiting:
            free_bytes = flight.sendable_bytes(now_s)
            if not (packets := self._next_packets(uplink, free_bytes)):
                break
            self._write(uplink, packets, now_s)
        wait_s = flight.pace_wait_s(now_s)
        if wait_s is not None and uplink.woken_s <= now_s:
            uplink.woken_s = now_s + max(wait_s, 0.001)
            self._add(uplink.woken_s, "wake", uplink)

    def _next_packets(self, uplink: _Uplink, free_bytes: int) -> list[int]:
        """Sizes of the packets of the backlog that fit a write."""
        packets: list[int] = []
        while _fitting([*packets, uplink.next_bytes], free_bytes) > len(packets):
            packets.append(uplink.next_bytes)
            uplink.next_bytes = self._sizes.choice(self.load.sizes)
        return packets

    def _write(self, uplink: _Uplink, packets: list[int], now_s: float) -> list[float]:
        """Send packets as one write; return when each arrives."""
        left_bytes = sum(packets)
        segments = []
        while left_bytes > 0:
            size = min(SEGMENT_BYTES, left_bytes)
            segments.append(self.link.send(size + SEGMENT_HEADER_BYTES, now_s))
            left_bytes -= size
        sizes = [wire_bytes(size, is_first=not n) for n, size in enumerate(packets)]
        arrivals_s = []
        for end_bytes, size in zip(itertools.accumulate(packets), sizes, strict=True):
            token = next(self._tokens)
            message = QueuedMessage(token, MessageId("n", "b", token), 1, "/t", b"")
            uplink.flight.on_sent(token, (message,), size, now_s, sum(sizes))
            arrival_s, answer_s = segments[(end_bytes - 1) // SEGMENT_BYTES]
            arrivals_s.append(arrival_s)
            self._add(answer_s, "ack", uplink, token, size)
        return arrivals_s

    def _add(
        self,
        at_s: float,
        kind: str,
        uplink: _Uplink | None = None,
        token: int = 0,
        size: int = 0,
    ) -> None:
        number = next(self._tokens)
        heapq.heappush(self._events, (at_s, number, kind, uplink, token, size))


def _fitting(packets: list[int], free_bytes: int) -> int:
    """Number of packets that fit a write, as `Uplink` decides it."""
    if free_bytes <= 0:
        return 0
    for count, size in enumerate(packets[:MAX_BURST]):
        size_bytes = wire_bytes(size, is_first=not count)
        if count and (free_bytes <= 0 or size_bytes > free_bytes + MAX_EXCESS_BYTES):
            return count
        free_bytes -= size_bytes
    return min(len(packets), MAX_BURST)


def simulate(plan: LinkPlan, load: Load, seed: int) -> Result:
    """Run a load over a link."""
    run = _Run(plan, load, seed)
    run.run()
    over_s, over_burst_s = [], []
    for put_s, number, arrival_s in run.delays:
        delay_s = arrival_s - put_s - _outage_s(run, put_s, arrival_s)
        rate = run.link.plan.rate * plan.walk**-0.5
        rate *= plan.rate_factor if put_s >= run.change_s else 1.0
        one_way_s = (
            run.link.one_way_at(put_s)
            if not plan.jitter_s
            else (plan.one_way_s + plan.jitter_s)
        )
        allowed_s = one_way_s + number * wire_bytes(URGENT_BYTES, is_first=True) / rate
        if plan.loss or plan.is_policer:
            allowed_s += 2 * one_way_s + (TCP_TIMEOUT_S if plan.is_policer else 0.1)
        shared = load.uplinks + (plan.other_share > 0)
        bar_s = allowed_s + shared * load.largest_bytes / rate + 0.5
        # What may still be on its way when the link changes is not judged either.
        if put_s < run.change_s + RELEARN_S and put_s + bar_s >= run.change_s:
            continue
        over_s.append(delay_s - bar_s)
        over_burst_s.append(delay_s - allowed_s - plan.burst_bytes / rate - 1.0)
    acked = [each.acked_bytes for each in run.uplinks]
    goodput = sum(acked) / _capacity_bytes(run)
    least_share = min(acked) * len(acked) / max(1, sum(acked))
    return Result(sorted(over_s), sorted(over_burst_s), goodput, least_share)


def _outage_s(run: _Run, put_s: float, arrival_s: float) -> float:
    """Time of outages while a message was under way."""
    outages_s = run.plan.outages_s(run.load.settle_s, run.end_s)
    return sum(
        max(0.0, min(end_s, arrival_s) - max(start_s, put_s))
        for start_s, end_s in outages_s
    )


def _capacity_bytes(run: _Run) -> float:
    """What TCP can carry over the link during the measurement."""
    plan, load = run.plan, run.load
    carried = run.link.capacity_bytes(load.settle_s, run.end_s) - run.other_bytes
    if plan.loss:
        round_trip_s = 2 * plan.one_way_s + 0.03
        mathis = MATHIS * FRAME_BYTES / (round_trip_s * plan.loss**0.5)
        carried = min(carried, mathis * load.measure_s)
    return carried

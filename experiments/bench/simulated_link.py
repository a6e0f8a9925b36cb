"""Deterministic link: token bucket, delays, changes, loss, gathered acknowledgements.

The uplink's own `InFlight` decides what is sent over it. A backlog fills the link, and
now and then an urgent message is added; the result is how long each took to arrive,
and which part of the link's capacity the backlog used.
"""

import heapq
import itertools
import random
from dataclasses import dataclass, field

from edge_agent.queue.base import QueuedMessage
from edge_agent.uplink.congestion import FRAME_BYTES, LinkEstimate
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits, InFlight
from edge_agent.uplink.rate_limit import SEGMENT_HEADER_BYTES
from edge_agent.uplink.uplink import MAX_EXCESS_BYTES
from experiments.bench.net import FRAME_BURST_BYTES
from spatial_mqtt.senml import MessageId

LINE_BYTES_PER_S = 125e6
"""Speed at which a burst passes."""

SUBSCRIPTION_BYTES = 80
URGENT_BYTES = 260 + SEGMENT_HEADER_BYTES
PAUSE_S = 3.0
"""Pause of the backlog before the measurement: a bucket fills meanwhile."""

RELEARN_S = 12.0
"""Time after a change of the link in which urgent messages are not judged."""

MATHIS = 1.22
"""Constant of TCP's throughput with loss (Mathis et al. 1997)."""


@dataclass(frozen=True)
class LinkPlan:
    """Properties of a simulated link.

    Attributes:
        rate_bps: Bits per second.
        burst_bytes: Bytes that pass at line speed after a pause.
        one_way_s: Delay of each direction.
        rate_factor: Factor by which the rate changes, in the middle of the run.
        new_one_way_s: Delay after the middle of the run; None for the same.
        loss: Share of the segments that are lost and sent again by TCP.
        ack_interval_s: Acknowledgements come at multiples of this time.
    """

    rate_bps: float
    burst_bytes: int = FRAME_BURST_BYTES
    one_way_s: float = 0.001
    rate_factor: float = 1.0
    new_one_way_s: float | None = None
    loss: float = 0.0
    ack_interval_s: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second before the change."""
        return self.rate_bps / 8

    @property
    def has_small_burst(self) -> bool:
        """Whether the bar for the worst urgent message leaves the burst out."""
        return self.burst_bytes <= 5000  # noqa: PLR2004 - bytes

    @property
    def is_far(self) -> bool:
        """Whether the bar for the goodput is the lower one."""
        return self.one_way_s >= 0.3  # noqa: PLR2004 - seconds


@dataclass
class SimulatedLink:
    """State of a link.

    Attributes:
        plan: Its properties.
        change_s: Time of the change.
        seed: Seed of the losses.
    """

    plan: LinkPlan
    change_s: float
    seed: int = 0
    _tokens: float = 0.0
    _tokens_s: float = 0.0
    _free_s: float = 0.0
    _last_arrival_s: float = 0.0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Begin with a full bucket."""
        self._tokens = self.plan.burst_bytes
        self._random = random.Random(self.seed)  # noqa: S311 - a simulation

    def rate_at(self, now_s: float) -> float:
        """Bytes per second."""
        changed = self.plan.rate_factor if now_s >= self.change_s else 1.0
        return self.plan.rate * changed

    def one_way_at(self, now_s: float) -> float:
        """Delay of each direction."""
        new_s = self.plan.new_one_way_s
        is_new = new_s is not None and now_s >= self.change_s
        return new_s if is_new and new_s is not None else self.plan.one_way_s

    def send(self, size_bytes: int, now_s: float) -> tuple[float, float]:
        """Send a segment; return when it arrives and when its answer does."""
        sent_s = self._depart(size_bytes, max(now_s, self._free_s))
        one_way_s = self.one_way_at(now_s)
        arrival_s = sent_s + one_way_s
        if self.plan.loss and self._random.random() < self.plan.loss:
            arrival_s += 2 * one_way_s + 0.03 + size_bytes / self.rate_at(sent_s)
        # TCP delivers in order: what follows a lost segment waits for it.
        self._last_arrival_s = arrival_s = max(arrival_s, self._last_arrival_s)
        answer_s = arrival_s + one_way_s
        if interval_s := self.plan.ack_interval_s:
            answer_s += interval_s - arrival_s % interval_s
        return arrival_s, answer_s

    def _depart(self, size_bytes: int, now_s: float) -> float:
        """Take the tokens of a segment; return when it has left."""
        self._fill(now_s)
        while self._tokens < size_bytes:
            missing_s = (size_bytes - self._tokens) / self.rate_at(now_s)
            until_s = now_s + missing_s
            if now_s < self.change_s < until_s:
                until_s = self.change_s
            depth = max(self.plan.burst_bytes, size_bytes)
            gained = self.rate_at(now_s) * (until_s - now_s)
            self._tokens = min(depth, self._tokens + gained + 1e-6)
            now_s = self._tokens_s = until_s
        self._tokens -= size_bytes
        self._free_s = now_s + size_bytes / LINE_BYTES_PER_S
        return self._free_s

    def _fill(self, now_s: float) -> None:
        """Add the tokens of the time since the last ones."""
        start_s, self._tokens_s = self._tokens_s, max(now_s, self._tokens_s)
        old_s = max(0.0, min(self._tokens_s, self.change_s) - start_s)
        new_s = self._tokens_s - start_s - old_s
        gained = self.plan.rate * (old_s + self.plan.rate_factor * new_s)
        self._tokens = min(self._tokens + gained, self.plan.burst_bytes)


@dataclass(frozen=True)
class Load:
    """What is sent over the link.

    Attributes:
        message_bytes: Size of a message of the backlog on the wire.
        urgent: Number of urgent messages.
        settle_s: Time with a backlog before the measurement.
        measure_s: Length of the measurement.
        known: What an earlier connection has stored.
    """

    message_bytes: int = 1066
    urgent: int = 12
    settle_s: float = 25.0
    measure_s: float = 60.0
    known: LinkEstimate | None = None

    @classmethod
    def for_plan(cls, plan: LinkPlan) -> "Load":
        """A load that lasts longer on a slow link with a large burst."""
        is_fast = plan.rate_bps * max(1.0, plan.rate_factor) >= 2e6  # noqa: PLR2004
        burst_s = 1.5 * plan.burst_bytes / plan.rate
        settle_s = max(15.0 if is_fast else 25.0, burst_s) + PAUSE_S
        return cls(settle_s=settle_s, measure_s=30.0 if is_fast else 60.0)


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        over_s: Sorted; by how much each urgent message exceeded a segment's time, the
            delay of the link and 0.5 s; negative when it was faster.
        over_burst_s: The same for the time of the whole burst and 1.0 s.
        goodput: Part of what the link can carry that was acknowledged.
    """

    over_s: list[float]
    over_burst_s: list[float]
    goodput: float

    @property
    def p90_over_s(self) -> float:
        """The value that nine of ten urgent messages do not exceed."""
        return self.over_s[int(0.9 * len(self.over_s))]

    def misses(self, plan: LinkPlan) -> list[str]:
        """The bars that the run does not reach."""
        missed = []
        if plan.has_small_burst and not plan.loss:
            over_s = self.over_s[-1]
        else:
            over_s = max(self.p90_over_s, self.over_burst_s[-1] if not plan.loss else 0)
        if over_s > 0:
            missed.append(f"urgent {over_s:.2f} s too late")
        least = 0.75 if plan.is_far else 0.9
        if self.goodput < least:
            missed.append(f"goodput {self.goodput:.2f}")
        return missed


class _Run:
    """One run, as events in the order of their times."""

    def __init__(self, plan: LinkPlan, load: Load, seed: int) -> None:
        self.plan, self.load = plan, load
        middle_s = load.settle_s + load.measure_s / 2
        is_changed = plan.rate_factor != 1.0 or plan.new_one_way_s is not None
        self.change_s = middle_s if is_changed else float("inf")
        self.link = SimulatedLink(plan, self.change_s, seed)
        self.flight = InFlight(FlightLimits(max_awaiting=100_000), CustodyMode.PUBACK)
        self.delays: list[tuple[float, float]] = []
        self.acked_bytes = 0
        self._tokens = itertools.count()
        self._events: list[tuple[float, int, str, int, int]] = []
        self._waiting: list[float] = []
        self._woken_s = 0.0
        jitter = random.Random(seed)  # noqa: S311 - a simulation
        gap_s = (load.measure_s - 2) / load.urgent
        for number in range(load.urgent):
            at_s = load.settle_s + gap_s * (number + jitter.uniform(0, 0.6))
            self._add(at_s, "urgent")
        self._add(load.settle_s, "wake")

    def run(self) -> None:
        """Run to the end of the measurement."""
        _, up_s = self.link.send(SUBSCRIPTION_BYTES, 0.0)
        self._add(up_s, "up")
        end_s = self.load.settle_s + self.load.measure_s
        while self._events and self._events[0][0] <= end_s:
            now_s, _, kind, token, size = heapq.heappop(self._events)
            if kind == "up":
                self.flight.on_up(now_s, 100_000, (), now_s, self.load.known)
            elif kind == "urgent":
                self._waiting.append(now_s)
            elif kind == "ack":
                self.flight.on_published(token, None, now_s)
                self.flight.take_actions(now_s)
                self.acked_bytes += size if now_s >= self.load.settle_s else 0
            self._send(now_s)

    def _send(self, now_s: float) -> None:
        flight = self.flight
        while self._waiting and flight.sendable_bytes(now_s, is_urgent=True) > 0:
            arrival_s = self._put(URGENT_BYTES, now_s)
            put_s = self._waiting.pop(0)
            self.delays.append((put_s, arrival_s - put_s))
        if self.load.settle_s - PAUSE_S <= now_s < self.load.settle_s:
            return
        size = self.load.message_bytes
        while free := flight.sendable_bytes(now_s):
            if flight.bytes_in_flight and size > free + MAX_EXCESS_BYTES:
                break
            self._put(size, now_s)
        wait_s = flight.pace_wait_s(now_s)
        if wait_s is not None and self._woken_s <= now_s:
            self._woken_s = now_s + max(wait_s, 0.001)
            self._add(self._woken_s, "wake")

    def _put(self, size: int, now_s: float) -> float:
        token = next(self._tokens)
        message = QueuedMessage(token, MessageId("n", "b", token), 1, "/t", b"")
        self.flight.on_sent(token, (message,), size, now_s)
        arrival_s, answer_s = self.link.send(size, now_s)
        self._add(answer_s, "ack", token, size)
        return arrival_s

    def _add(self, at_s: float, kind: str, token: int = 0, size: int = 0) -> None:
        heapq.heappush(self._events, (at_s, next(self._tokens), kind, token, size))


def simulate(plan: LinkPlan, load: Load, seed: int) -> Result:
    """Run a load over a link."""
    run = _Run(plan, load, seed)
    run.run()
    over_s, over_burst_s = [], []
    for put_s, delay_s in run.delays:
        if run.change_s <= put_s < run.change_s + RELEARN_S:
            continue
        rate, one_way_s = run.link.rate_at(put_s), run.link.one_way_at(put_s)
        repeat_s = 2 * one_way_s + 0.1 if plan.loss else 0.0
        largest = max(FRAME_BYTES, load.message_bytes)
        over_s.append(delay_s - (largest / rate + one_way_s + 0.5 + repeat_s))
        over_burst_s.append(delay_s - (plan.burst_bytes / rate + one_way_s + 1.0))
    goodput = run.acked_bytes / _capacity_bytes(plan, load)
    return Result(sorted(over_s), sorted(over_burst_s), goodput)


def _capacity_bytes(plan: LinkPlan, load: Load) -> float:
    """What TCP can carry over the link during the measurement."""
    rate = plan.rate * (1 + plan.rate_factor) / 2
    if plan.loss:
        round_trip_s = 2 * plan.one_way_s + 0.03
        rate = min(rate, MATHIS * FRAME_BYTES / (round_trip_s * plan.loss**0.5))
    return rate * load.measure_s


RATES_BPS = (10e3, 30e3, 64e3, 128e3, 500e3, 2e6, 10e6)
BURSTS = (FRAME_BURST_BYTES, 5000, 16_000, 64_000)
DELAYS_S = (0.001, 0.02, 0.05, 0.3)
KINDS = ("constant", "10 times slower", "10 times faster", "1 % loss")


def grid(kind: str, rates_bps: tuple[float, ...] = RATES_BPS) -> list[LinkPlan]:
    """Links of a kind; before and after a change, 10 kbps to 10 Mbps."""
    factor = {"10 times slower": 0.1, "10 times faster": 10.0}.get(kind, 1.0)
    loss = 0.01 if kind == "1 % loss" else 0.0
    return [
        LinkPlan(rate, burst, one_way_s, factor, None, loss)
        for rate, burst, one_way_s in itertools.product(rates_bps, BURSTS, DELAYS_S)
        if RATES_BPS[0] <= rate * factor <= RATES_BPS[-1]
    ]

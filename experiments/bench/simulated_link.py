"""Deterministic link: token bucket, delays, loss, and everything that may change.

Rates change in steps: once, at random, or to nothing for an outage, during which the
link keeps what it has. Segments and answers arrive in order, whatever their delay.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from edge_agent.uplink.link_rate import FRAME_BYTES
from experiments.bench.net import FRAME_BURST_BYTES

LINE_BYTES_PER_S = 125e6
"""Speed at which a burst passes."""

ANSWER_BYTES = 72
PUBACK_BYTES = 4
"""A PUBACK in a segment of its own, and one that shares the segment of those that
wait (Nagle's algorithm)."""

TCP_TIMEOUT_S = 0.2
"""Least time after which TCP repeats what a policer has dropped, on Linux."""

MOST_TIMEOUT_S = 3.0
WALK_STEP_S = 0.5
JITTER_STEP_S = 0.02
WANDER_PER_S = 0.6
JITTER_PER_S = 1.0
"""Standard deviation of the change in a second, as a part of the range. The delay goes
through its range in about a second, as on cellular links, the rate in two or three."""


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
        jitter_s: Each delay wanders between `one_way_s` and this much more.
        outage_s: Length of the outages, in which nothing arrives.
        walk: Factor between the least and the highest rate of a random walk.
        answer_bps: Rate of the opposite direction; None for one without limit.
        is_policer: Whether it drops what exceeds the rate, so that TCP repeats it.
        other_share: Share of the link that other traffic takes every other 5 s.
    """

    rate_bps: float
    burst_bytes: int = FRAME_BURST_BYTES
    one_way_s: float = 0.001
    rate_factor: float = 1.0
    new_one_way_s: float | None = None
    loss: float = 0.0
    ack_interval_s: float = 0.0
    jitter_s: float = 0.0
    outage_s: float = 0.0
    walk: float = 1.0
    answer_bps: float | None = None
    is_policer: bool = False
    other_share: float = 0.0

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

    def outages_s(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """Start and end of the outages in a time."""
        if not self.outage_s:
            return []
        every_s = max(10.0, 3 * self.outage_s)
        count = int((end_s - start_s) / every_s) + 1
        starts_s = [start_s + 4.0 + n * every_s for n in range(count)]
        return [(s, s + self.outage_s) for s in starts_s if s < end_s]


class RateSchedule:
    """Rate of a link over time.

    Args:
        steps: Times and the rates from then on, in bytes per second.
    """

    def __init__(self, steps: Sequence[tuple[float, float]]) -> None:
        self._steps_s = [start_s for start_s, _ in steps]
        self._rates = [rate for _, rate in steps]
        parts = [
            rate * (end_s - start_s) for (start_s, rate), (end_s, _) in pairwise(steps)
        ]
        self._bytes = list(accumulate(parts, initial=0.0))

    def rate_at(self, at_s: float) -> float:
        """Bytes per second."""
        return self._rates[bisect_right(self._steps_s, at_s) - 1]

    def bytes_until(self, at_s: float) -> float:
        """Bytes that the link can carry from its start up to a time."""
        n = bisect_right(self._steps_s, at_s) - 1
        return self._bytes[n] + self._rates[n] * (at_s - self._steps_s[n])

    def time_of(self, size_bytes: float) -> float:
        """The time when the link can have carried so many bytes."""
        n = bisect_right(self._bytes, size_bytes) - 1
        return self._steps_s[n] + (size_bytes - self._bytes[n]) / self._rates[n]


@dataclass
class SimulatedLink:
    """State of a link.

    Attributes:
        plan: Its properties.
        change_s: Time of the change.
        seed: Seed of all that is random.
        start_s: Outages come after this time.
        end_s: End of the run.
    """

    plan: LinkPlan
    change_s: float
    seed: int = 0
    start_s: float = 0.0
    end_s: float = 120.0
    schedule: RateSchedule = field(init=False)
    _tokens: float = 0.0
    _tokens_s: float = 0.0
    _free_s: float = 0.0
    _answers_free_s: float = 0.0
    _last_arrival_s: float = 0.0
    _last_answer_s: float = 0.0
    _jitter_s: list[float] = field(init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Begin with a full bucket."""
        self._tokens = self.plan.burst_bytes
        self._random = random.Random(self.seed)  # noqa: S311 - a simulation
        self.schedule = RateSchedule(self._rate_steps())
        has_jitter = self.plan.jitter_s > 0
        self._jitter_s = (
            self._wander(JITTER_STEP_S, JITTER_PER_S) if has_jitter else [0.0]
        )

    def _rate_steps(self) -> list[tuple[float, float]]:
        plan = self.plan
        walk = self._wander(WALK_STEP_S, WANDER_PER_S) if plan.walk != 1.0 else [0.5]
        outages_s = plan.outages_s(self.start_s, self.end_s)
        times_s = {n * WALK_STEP_S for n in range(len(walk))}
        times_s |= {s for outage in outages_s for s in outage}
        times_s |= {self.change_s} - {float("inf")}
        steps = []
        for at_s in sorted(times_s):
            rate = plan.rate * (plan.rate_factor if at_s >= self.change_s else 1.0)
            rate *= plan.walk ** (
                walk[min(int(at_s / WALK_STEP_S), len(walk) - 1)] - 0.5
            )
            is_out = any(start_s <= at_s < end_s for start_s, end_s in outages_s)
            steps.append((at_s, 0.0 if is_out else rate))
        return steps

    def _wander(self, step_s: float, per_s: float) -> list[float]:
        """A random walk between 0 and 1, reflected at both."""
        size = per_s * step_s**0.5
        values = [0.5]
        for _ in range(int((self.end_s + 60.0) / step_s)):
            value = abs(values[-1] + self._random.gauss(0, size)) % 2
            values.append(min(value, 2 - value))
        return values

    def rate_at(self, now_s: float) -> float:
        """Bytes per second."""
        return self.schedule.rate_at(now_s)

    def one_way_at(self, now_s: float) -> float:
        """Delay of each direction."""
        new_s = self.plan.new_one_way_s
        is_new = new_s is not None and now_s >= self.change_s
        least_s = new_s if is_new and new_s is not None else self.plan.one_way_s
        step = min(int(now_s / JITTER_STEP_S), len(self._jitter_s) - 1)
        return least_s + self.plan.jitter_s * self._jitter_s[step]

    def send(self, size_bytes: int, now_s: float) -> tuple[float, float]:
        """Send a segment; return when it arrives and when its answer does."""
        sent_s = self._depart(size_bytes, max(now_s, self._free_s))
        one_way_s = self.one_way_at(sent_s)
        arrival_s = sent_s + one_way_s
        if self.plan.loss and self._random.random() < self.plan.loss:
            arrival_s += 2 * one_way_s + 0.03 + size_bytes / self.rate_at(sent_s)
        # TCP delivers in order: what follows a lost segment waits for it.
        self._last_arrival_s = arrival_s = max(arrival_s, self._last_arrival_s)
        return arrival_s, self._answer_s(arrival_s)

    def _answer_s(self, arrival_s: float) -> float:
        """When the answer to what arrives has come back."""
        sent_s = arrival_s
        if self.plan.answer_bps is not None:
            is_waiting = sent_s < self._answers_free_s
            size_bytes = PUBACK_BYTES if is_waiting else ANSWER_BYTES
            sent_s = max(sent_s, self._answers_free_s)
            sent_s += size_bytes * 8 / self.plan.answer_bps
            self._answers_free_s = sent_s
        answer_s = sent_s + self.one_way_at(sent_s)
        if interval_s := self.plan.ack_interval_s:
            answer_s += interval_s - sent_s % interval_s
        self._last_answer_s = max(answer_s, self._last_answer_s)
        return self._last_answer_s

    def _depart(self, size_bytes: int, now_s: float) -> float:
        """Take the tokens of a segment; return when it has left."""
        self._fill(now_s)
        timeout_s = TCP_TIMEOUT_S + 2 * self.plan.one_way_s
        while self._tokens < size_bytes:
            if self.plan.is_policer:
                now_s += timeout_s
                timeout_s = min(2 * timeout_s, MOST_TIMEOUT_S)
                self._fill(now_s)
                continue
            missing_bytes = size_bytes - self._tokens
            carried_bytes = self.schedule.bytes_until(now_s)
            now_s = self._tokens_s = self.schedule.time_of(
                carried_bytes + missing_bytes
            )
            self._tokens = size_bytes
        self._tokens -= size_bytes
        self._free_s = now_s + size_bytes / LINE_BYTES_PER_S
        return self._free_s

    def _fill(self, now_s: float) -> None:
        """Add the tokens of the time since the last ones."""
        start_s, self._tokens_s = self._tokens_s, max(now_s, self._tokens_s)
        gained = self.schedule.bytes_until(self._tokens_s)
        gained -= self.schedule.bytes_until(start_s)
        self._tokens = min(self._tokens + gained, self.plan.burst_bytes)

    def capacity_bytes(self, start_s: float, end_s: float) -> float:
        """Bytes that it can carry in a time, its burst left out; a policer with TCP."""
        if not self.plan.is_policer:
            first, last = (self.schedule.bytes_until(s) for s in (start_s, end_s))
            return last - first
        link = SimulatedLink(self.plan, self.change_s, self.seed, end_s=self.end_s)
        size_bytes, link._free_s = 0, start_s
        while link.send(FRAME_BYTES, start_s)[0] < end_s:
            size_bytes += FRAME_BYTES
        return size_bytes - self.plan.burst_bytes

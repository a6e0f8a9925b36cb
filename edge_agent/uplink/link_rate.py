"""Rate of a link: its limit by the settings, and meters of what it carries.

The limit is a token bucket with a timetable, which urgent messages pass. The meters
measure the rate of the link, the bursts that it passes, and a pace;
`edge_agent.uplink.congestion` decides by them how many bytes may be in flight.
"""

import math
import re
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from service_runtime.errors import FieldError
from spatial_mqtt.priority import LADDER

SEGMENT_BYTES = 1448
"""Payload of a TCP segment on Ethernet."""

SEGMENT_HEADER_BYTES = 66
"""Ethernet 14, IPv4 20, TCP 20 and its time stamps 12."""

MIN_BURST_BYTES = 1500

FRAME_BYTES = 1514
"""A full Ethernet frame, the smallest window. A smaller one would hardly help urgent
messages and would cost a segment's header for each small message."""

MIN_ROUND_S = 0.05
"""Shortest round, and shortest time over which a rate is measured. On a LAN, the round
trip is shorter than the pauses of the programs."""

SAME_TIME_S = 0.001
"""Acknowledgements within this time arrived together."""

MAX_CREDIT_BYTES = 100_000


def wire_bytes(packet_bytes: int, *, is_first: bool) -> int:
    """Size of a publication on the link in bytes, without the headers of TLS.

    Args:
        packet_bytes: Size of the PUBLISH packet.
        is_first: Whether it starts a write; those after it share its segment.
    """
    segments = packet_bytes // SEGMENT_BYTES + is_first
    return packet_bytes + segments * SEGMENT_HEADER_BYTES


@dataclass
class TokenBucket:
    """Token bucket in bytes. A large message may make the balance negative.

    Attributes:
        rate_bytes_per_s: Refill rate; infinite for no limit.
        burst_bytes: Capacity.
    """

    rate_bytes_per_s: float
    burst_bytes: float
    _tokens: float = math.nan
    _at_s: float = 0.0

    @classmethod
    def for_rate(cls, rate_bytes_per_s: float | None) -> "TokenBucket":
        """A bucket for a rate; None for no limit.

        Its capacity is a quarter of a second, but at least one large packet. More
        would only move the backlog into the modem, where nothing can overtake it.
        """
        if rate_bytes_per_s is None:
            return cls(math.inf, 0.0)
        return cls(rate_bytes_per_s, max(MIN_BURST_BYTES, rate_bytes_per_s / 4))

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next message may be sent; 0 for now."""
        if math.isinf(self.rate_bytes_per_s):
            return 0.0
        self._refill(now_s)
        return max(0.0, -self._tokens / self.rate_bytes_per_s)

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Charge a message that was sent."""
        if not math.isinf(self.rate_bytes_per_s):
            self._refill(now_s)
            self._tokens -= size_bytes

    def _refill(self, now_s: float) -> None:
        if math.isnan(self._tokens):
            self._tokens = self.burst_bytes
        else:
            gained = (now_s - self._at_s) * self.rate_bytes_per_s
            self._tokens = min(self.burst_bytes, self._tokens + max(0.0, gained))
        self._at_s = max(self._at_s, now_s)


MINUTES_PER_DAY = 24 * 60

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


def parse_minute(text: str) -> int:
    """Minute of the day of a time such as ``06:30``.

    Raises:
        FieldError: The text is not a time.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise FieldError("time", "HH:MM between 00:00 and 23:59", text)
    return int(found[1]) * 60 + int(found[2])


@dataclass(frozen=True)
class RatePeriod:
    """A part of each day with its own rate.

    Attributes:
        start_minute: First minute of the day.
        end_minute: Minute of the day after the last; if not after ``start``, on the
            next day.
        rate_bytes_per_s: Maximum wire bytes per second; 0 closes the link.
    """

    start_minute: int
    end_minute: int
    rate_bytes_per_s: float

    def contains(self, minute: int) -> bool:
        """Whether a minute of the day is in the period."""
        length = (
            self.end_minute - self.start_minute
        ) % MINUTES_PER_DAY or MINUTES_PER_DAY
        return (minute - self.start_minute) % MINUTES_PER_DAY < length


class RateLimiter:
    """Rate limiter with a timetable, which several uplinks may share.

    Urgent messages are not delayed, but are charged to the bucket.

    Args:
        default_bytes_per_s: Rate outside all periods; None for no limit.
        periods: The timetable; the first matching period applies.
        override_from: Lowest priority that is not limited.
        local_minute: Returns the local minute of the day, or None while the clock is
            not synchronised; the default rate applies then.
    """

    def __init__(
        self,
        default_bytes_per_s: float | None = None,
        periods: Sequence[RatePeriod] = (),
        override_from: int = LADDER.urgent_from,
        local_minute: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._usual = default_bytes_per_s
        self._periods = tuple(periods)
        self._override_from = override_from
        self._minute = local_minute
        self._lock = threading.Lock()
        self._rate: float | None = math.nan
        self._bucket = TokenBucket.for_rate(None)

    def wait_s(self, priority: int, now_s: float) -> float:
        """Seconds until a message of a priority may be sent; infinite while closed."""
        with self._lock:
            self._update_rate(now_s)
            if priority >= self._override_from:
                return 0.0
            return math.inf if self._rate == 0 else self._bucket.wait_s(now_s)

    def lowest_permitted(self, now_s: float) -> int:
        """Lowest priority that may be sent now."""
        lowest = LADDER.routine()[0]
        return self._override_from if self.wait_s(lowest, now_s) > 0 else lowest

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit now; as of the last call of `wait_s`."""
        return self._rate is None

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Charge bytes that were sent."""
        with self._lock:
            self._update_rate(now_s)
            if self._rate:
                self._bucket.spend(size_bytes, now_s)

    def _update_rate(self, now_s: float) -> None:
        rate = self._current_rate()
        if rate != self._rate:
            self._rate = rate
            self._bucket = TokenBucket.for_rate(rate or None)
            self._bucket.spend(0, now_s)

    def _current_rate(self) -> float | None:
        minute = self._minute() if self._periods else None
        if minute is None:
            return self._usual
        return next(
            (p.rate_bytes_per_s for p in self._periods if p.contains(minute)),
            self._usual,
        )


class SendSample(NamedTuple):
    """State at the time a publication was sent.

    Attributes:
        size_bytes: Its size on the wire.
        sent_s: Monotonic time.
        arrives_bytes: Size of what arrives with it: its own, and up to a segment of the
            write that it was part of.
        is_alone: Whether nothing else was in flight.
        is_limited: Whether the window or the pace permitted no more.
        delivered_bytes: Bytes acknowledged before it was sent.
    """

    size_bytes: int
    sent_s: float
    arrives_bytes: int
    is_alone: bool
    is_limited: bool
    delivered_bytes: int


@dataclass
class PacketTrain:
    """Publications that were sent together over an idle link.

    Attributes:
        first: The first of them.
        acked_s: When it was acknowledged.
        size_bytes: Size of all that were acknowledged.
        later_bytes: Size of those that arrived after the first frame.
        last_acked_s: When the last of them was acknowledged.
    """

    first: SendSample
    acked_s: float
    size_bytes: int = 0
    later_bytes: int = 0
    last_acked_s: float = 0.0

    def add(self, sample: SendSample, now_s: float) -> bool:
        """Add a publication; whether it belongs to the train."""
        if sample.sent_s - self.first.sent_s > SAME_TIME_S:
            return False
        self.size_bytes += sample.size_bytes
        if now_s - self.acked_s > SAME_TIME_S:
            self.later_bytes += sample.size_bytes
            self.last_acked_s = now_s
        return True

    @property
    def round_trip_s(self) -> float:
        """Round trip of the first."""
        return self.acked_s - self.first.sent_s

    @property
    def rate(self) -> float | None:
        """Bytes per second after the first frame; None if all arrived at once."""
        if not self.later_bytes:
            return None
        return self.later_bytes / (self.last_acked_s - self.acked_s)


class LinkEstimate(NamedTuple):
    """What is known of a link, to be stored for the next connection.

    Attributes:
        rate: Bytes per second.
        credit_bytes: Burst that it passes beyond that rate.
    """

    rate: float
    credit_bytes: float

    @classmethod
    def parse(cls, stored: object) -> Self:
        """Check a stored estimate.

        Raises:
            ValueError: It is none.
            TypeError: It does not hold two numbers.
        """
        rate, credit_bytes = stored if isinstance(stored, list) else (0, 0)
        if not (0 < rate < math.inf and 0 <= credit_bytes < math.inf):
            raise ValueError(f"a link estimate must be [rate, credit], got {stored!r}")
        return cls(rate, min(credit_bytes, MAX_CREDIT_BYTES))

    def is_like(self, other: "LinkEstimate") -> bool:
        """Whether the rates differ by less than a factor of two."""
        return other.rate / 2 < self.rate < 2 * other.rate


@dataclass
class RateMeter:
    """Rate of a link, from acknowledgements that come while a queue waits at it.

    An unbroken series of such acknowledgements is cut into samples of at least a
    segment and `MIN_ROUND_S`. Those that arrive together belong to one sample, or a
    group of them would look like a fast link. A sample lasts at least as long as its
    bytes took to be sent, since answers that waited on their way back come faster than
    the link carries (draft-cheng-iccrg-delivery-rate-estimation). The rate is the
    median of the samples.

    Attributes:
        rate: Bytes per second; None while it is unknown.
        is_measured: Whether it was measured on this connection, not only remembered.
    """

    rate: float | None = None
    is_measured: bool = False
    _samples: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    _previous_s: float | None = None
    _group_s: float = 0.0
    _start_s: float = 0.0
    _start_sent_s: float = 0.0
    _previous_sent_s: float = 0.0
    _groups: int = 0
    _bytes: int = 0

    def on_ack(
        self, sample: SendSample, now_s: float, base_s: float, least_bytes: int
    ) -> bool:
        """Add an acknowledgement of a queued publication; whether the rate is new.

        Args:
            sample: The publication.
            now_s: Monotonic time.
            base_s: Least round-trip time. What was sent less than this before the
                previous acknowledgement was not yet at the link then.
            least_bytes: Least size of a sample.
        """
        previous_s = self._previous_s
        if previous_s is None or sample.sent_s > previous_s - base_s + SAME_TIME_S:
            self.restart(now_s, sample.sent_s)
            return False
        is_new = False
        if now_s - self._group_s > SAME_TIME_S:
            time_s = previous_s - self._start_s
            is_full = self._groups > 1 and self._bytes >= least_bytes
            # The first one must not be of answers that waited on their way.
            least_s = MIN_ROUND_S if self.rate else max(MIN_ROUND_S, base_s)
            if is_full and time_s >= least_s:
                self._samples.append(self._sample_rate(time_s))
                self.set_rate(statistics.median(self._samples))
                self._start_s, self._start_sent_s = previous_s, self._previous_sent_s
                self._groups, self._bytes = 0, 0
                is_new = True
            self._groups += 1
            self._group_s = now_s
        if now_s - self._start_s > SAME_TIME_S:
            self._bytes += sample.size_bytes
        self._previous_s, self._previous_sent_s = now_s, sample.sent_s
        return is_new

    def _sample_rate(self, time_s: float) -> float:
        """Rate of a sample; the known one where it lies between sending and answers."""
        sending_s = self._previous_sent_s - self._start_sent_s
        answered = self._bytes / time_s
        sent = self._bytes / max(time_s, sending_s)
        return min(max(sent, self.rate or 0.0), answered)

    def set_rate(self, rate: float) -> None:
        """Use a rate that was measured on this connection."""
        self.rate, self.is_measured = rate, True

    def restart(self, now_s: float | None, sent_s: float = 0.0) -> None:
        """Begin a new series, with an acknowledgement that is its first, or none."""
        self._previous_s = now_s
        self._start_s = self._group_s = now_s or 0.0
        self._start_sent_s = self._previous_sent_s = sent_s
        self._groups, self._bytes = 0, 0

    def forget_samples(self) -> None:
        """Let the next sample alone decide, since the link has changed."""
        self._samples.clear()


@dataclass
class BurstMeter:
    """Bytes that pass a link without delay: a burst, or a sign of a faster link.

    Attributes:
        run_bytes: Bytes of the present run, which ends with the first delay.
    """

    run_bytes: int = 0
    _start_s: float = 0.0
    _runs: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=4))
    _known_credit_bytes: float = 0.0

    def on_ack(self, size_bytes: int, now_s: float, *, is_delayed: bool) -> None:
        """Add a publication to the run, or end the run with a delayed one."""
        if not is_delayed:
            if not self.run_bytes:
                self._start_s = now_s
            self.run_bytes += size_bytes
        elif self.run_bytes:
            self._runs.append((self.run_bytes, now_s - self._start_s))
            self.run_bytes = 0

    def forget_run(self) -> None:
        """End the run without a delay, after a pause in sending."""
        self.run_bytes = 0

    def restore(self, credit_bytes: float) -> None:
        """Use the credit of an earlier connection until one is measured."""
        self._known_credit_bytes = credit_bytes

    def excess_bytes(self, rate: float, now_s: float) -> float:
        """Bytes of the run beyond rate x time."""
        return self.run_bytes - rate * (now_s - self._start_s)

    def credit_bytes(self, rate: float) -> float:
        """Burst that the link is known to pass beyond a rate."""
        is_new = len(self._runs) < (self._runs.maxlen or 0)
        known_bytes = self._known_credit_bytes if is_new else 0.0
        seen_bytes = max((size - rate * s for size, s in self._runs), default=0.0)
        return min(MAX_CREDIT_BYTES, max(0.0, known_bytes, seen_bytes))


@dataclass
class Pacer:
    """Bytes that were sent faster than the pace, as a queue that empties at the pace.

    Attributes:
        queued_bytes: Bytes in the queue at the last call.
    """

    queued_bytes: float = 0.0
    _at_s: float = 0.0

    def on_sent(self, size_bytes: int, pace: float | None, now_s: float) -> None:
        """Add what was sent; without a pace, nothing queues."""
        if pace is None:
            self.queued_bytes, self._at_s = 0.0, now_s
        else:
            self.drain(pace, now_s)
            self.queued_bytes += size_bytes

    def drain(self, pace: float, now_s: float) -> float:
        """Empty the queue up to now; return its bytes."""
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        self.queued_bytes = max(0.0, self.queued_bytes - pace * elapsed_s)
        return self.queued_bytes

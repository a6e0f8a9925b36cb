"""Meters of a link: its rate, the bursts that it passes, and a pace; no decisions.

`edge_agent.uplink.congestion` decides by them how many bytes may be in flight.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Self

FRAME_BYTES = 1514
"""A full Ethernet frame, the smallest window. A smaller one would hardly help urgent
messages and would cost a segment's header for each small message."""

MIN_ROUND_S = 0.05
"""Shortest round, and shortest time over which a rate is measured. On a LAN, the round
trip is shorter than the pauses of the programs."""

SAME_TIME_S = 0.001
"""Acknowledgements within this time arrived together."""

MAX_CREDIT_BYTES = 100_000


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

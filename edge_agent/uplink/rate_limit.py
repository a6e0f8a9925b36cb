"""Rate limit of a link: a token bucket with a timetable, which urgent messages pass."""

import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service_runtime.errors import FieldError
from spatial_mqtt.priority import LADDER

SEGMENT_BYTES = 1448
"""Payload of a TCP segment on Ethernet."""

SEGMENT_HEADER_BYTES = 66
"""Ethernet 14, IPv4 20, TCP 20 and its time stamps 12."""

MIN_BURST_BYTES = 1500


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

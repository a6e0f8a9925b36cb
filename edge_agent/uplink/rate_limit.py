"""How much may be sent when: a rate with a timetable, which urgent messages pass.

A token bucket in wire bytes: the link's share that we may use.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service_runtime.errors import FieldError

SEGMENT_BYTES = 1448
"""What a TCP segment on Ethernet carries."""

SEGMENT_HEADER_BYTES = 66
"""Ethernet 14, IPv4 20, TCP 20 and its time stamps 12."""

TLS_RECORD_BYTES = 29
"""TLS 1.2 and AES-GCM: header 5, nonce 8, tag 16; of each packet one record."""

LARGE_PACKET_BYTES = 1500


def wire_bytes(packet_bytes: int, *, is_first: bool, is_tls: bool = False) -> int:
    """Bytes that a publication puts on the link.

    Args:
        packet_bytes: Of the PUBLISH packet.
        is_first: Whether it begins a write; those behind it share its segment.
        is_tls: Whether it is encrypted.
    """
    size_bytes = packet_bytes + (TLS_RECORD_BYTES if is_tls else 0)
    segments = size_bytes // SEGMENT_BYTES + is_first
    return size_bytes + segments * SEGMENT_HEADER_BYTES


@dataclass
class TokenBucket:
    """Bytes that may be sent now. A large message may run into debt once.

    Attributes:
        rate_bytes_per_s: Refill; infinite means no limit.
        burst_bytes: Most that is saved up.
    """

    rate_bytes_per_s: float
    burst_bytes: float
    _tokens: float = math.nan
    _at_s: float = 0.0

    @classmethod
    def of_rate(cls, rate_bytes_per_s: float | None) -> "TokenBucket":
        """A bucket for a link of a rate; None means no limit.

        It saves up a quarter of a second and no less than one large packet: more
        would only move the backlog into the modem, where nothing overtakes it.
        """
        if rate_bytes_per_s is None:
            return cls(math.inf, 0.0)
        return cls(rate_bytes_per_s, max(LARGE_PACKET_BYTES, rate_bytes_per_s / 4))

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next message may go; 0 means now."""
        if math.isinf(self.rate_bytes_per_s):
            return 0.0
        self._refill(now_s)
        return max(0.0, -self._tokens / self.rate_bytes_per_s)

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Account for a message that was sent."""
        if not math.isinf(self.rate_bytes_per_s):
            self._refill(now_s)
            self._tokens -= size_bytes

    def _refill(self, now_s: float) -> None:
        if math.isnan(self._tokens):
            self._tokens = self.burst_bytes
        else:
            gained = (now_s - self._at_s) * self.rate_bytes_per_s
            self._tokens = min(self.burst_bytes, self._tokens + max(0.0, gained))
        self._at_s = now_s


DAY_MIN = 24 * 60

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


def minute_of(text: str) -> int:
    """Minute of the day of a time such as ``06:30``.

    Raises:
        FieldError: It is no time.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise FieldError("time", "HH:MM between 00:00 and 23:59", text)
    return int(found[1]) * 60 + int(found[2])


@dataclass(frozen=True)
class Period:
    """A part of each day with a rate of its own.

    Attributes:
        start: Its first minute of the day.
        end: The minute after its last; before or at ``start`` it ends tomorrow.
        rate_bytes_per_s: Most wire bytes in a second; 0 closes the link.
    """

    start: int
    end: int
    rate_bytes_per_s: float

    def holds(self, minute: int) -> bool:
        """Whether a minute of the day is in it."""
        length = (self.end - self.start) % DAY_MIN or DAY_MIN
        return (minute - self.start) % DAY_MIN < length


class Throttle:
    """Says when the next bytes may go.

    An urgent message passes at any time; what it costs is owed by the others.

    Args:
        usual_bytes_per_s: Rate outside every period; None means no limit.
        periods: The timetable; the first that holds counts.
        override_from: Priorities from this one up pass.
        minute: Local minute of the day, or None while the clock is not to be
            trusted: a closed link would then be a guess, so the usual rate holds.
    """

    def __init__(
        self,
        usual_bytes_per_s: float | None = None,
        periods: Sequence[Period] = (),
        override_from: int = 4,
        minute: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._usual = usual_bytes_per_s
        self._periods = tuple(periods)
        self._override_from = override_from
        self._minute = minute
        self._rate: float | None = math.nan
        self._bucket = TokenBucket.of_rate(None)

    def wait_s(self, priority: int, now_s: float) -> float:
        """Seconds until a message of a priority may go; infinite while closed."""
        self._follow_the_clock(now_s)
        if priority >= self._override_from:
            return 0.0
        return math.inf if self._rate == 0 else self._bucket.wait_s(now_s)

    @property
    def is_open(self) -> bool:
        """Whether there is no limit at all now; ask `wait_s` first."""
        return self._rate is None

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Account for bytes that were sent."""
        self._follow_the_clock(now_s)
        if self._rate:
            self._bucket.spend(size_bytes, now_s)

    def _follow_the_clock(self, now_s: float) -> None:
        rate = self._rate_now()
        if rate != self._rate:
            self._rate = rate
            self._bucket = TokenBucket.of_rate(rate or None)
            self._bucket.spend(0, now_s)

    def _rate_now(self) -> float | None:
        minute = self._minute() if self._periods else None
        if minute is None:
            return self._usual
        return next(
            (p.rate_bytes_per_s for p in self._periods if p.holds(minute)), self._usual
        )

"""How much may be sent when: a rate with a timetable, which urgent messages pass."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_agent.uplink.bucket import TokenBucket
from spatial_mqtt.errors import FieldError

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

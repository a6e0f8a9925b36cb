"""Congestion window: how many bytes may be in flight (bandwidth-delay product).

An urgent message waits behind the bytes in flight, so the window is only as large as
the link needs to stay busy: rate x round-trip time, measured from the broker's
acknowledgements, plus one write. The rate is the recent maximum, since a pause in
sending is no property of the link. The round-trip time is measured by a message sent
when nothing else is in flight, so that our own queueing is not included. A link that is
always busy gives no such sample; when the last one has expired, it is drained for one.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

SAMPLE_LIFETIME_S = 20.0
"""How long a rate or round-trip sample is valid; a mobile link changes."""

MIN_WINDOW_BYTES = 1514
"""Minimum window, a full segment. A smaller one would hardly help urgent messages and
cost a segment's header for each small message."""

MAX_EXTRA_BYTES = 1514
"""Maximum of the write that is added to the bandwidth-delay product: a segment."""

MIN_ROUND_TRIP_S = 0.05
"""Minimum round-trip time to compute with. On a LAN it is shorter than the pauses of
the programs, and a window from it would limit the rate."""

STARTUP_GROWTH = 1.25
"""If the rate grows by less in a round trip, the window does not limit it."""

QUEUEING_FRACTION = 0.5
QUEUEING_S = 0.1
"""A message that takes this much longer than an idle round trip, as a fraction of it
and in seconds, was queued: the link is full, which ends the startup. On a slow link the
rounds below would take ten seconds with twice the needed bytes in flight."""

STARTUP_FLAT_ROUNDS = 3
"""Round trips without growth that end the startup.

Source: BBR's startup (Cardwell et al. 2016)."""


class SendSample(NamedTuple):
    """State at the time a publication was sent.

    Attributes:
        size_bytes: Its size on the wire.
        sent_s: Monotonic time.
        was_alone: Whether nothing else was in flight.
        delivered_bytes: `CongestionWindow.delivered_bytes` at that time.
        write_bytes: Total size of the write that it was part of.
    """

    size_bytes: int
    sent_s: float
    was_alone: bool
    delivered_bytes: int
    write_bytes: int


@dataclass
class CongestionWindow:
    """Limit of the bytes in flight, from measurements of the link.

    Attributes:
        max_bytes: Upper bound.
        delivered_bytes: Acknowledged so far; copy it when a publication is sent.
    """

    max_bytes: int
    delivered_bytes: int = 0
    _rates: deque[tuple[float, float]] = field(default_factory=deque)
    _round_trip_s: float | None = None
    _measured_at_s: float = 0.0
    _largest_bytes: int = 0
    _is_starting: bool = True
    _flat_rounds: int = 0
    _round_ends_at_bytes: int = 0
    _start_rate: float = 0.0

    def limit_bytes(self, now_s: float) -> int:
        """Bytes that may be in flight now; 1 allows a message on an idle link."""
        if (
            self._round_trip_s is None
            or now_s - self._measured_at_s > SAMPLE_LIFETIME_S
        ):
            return 1
        rate = self._rates[0][1] if self._rates else 0.0
        gain = 2.0 if self._is_starting else 1.0
        held = gain * rate * max(self._round_trip_s, MIN_ROUND_TRIP_S)
        wanted = held + self._largest_bytes
        return int(min(self.max_bytes, max(MIN_WINDOW_BYTES, wanted)))

    def on_ack(self, trip: "SendSample", now_s: float) -> None:
        """Update the window after the broker acknowledged a publication.

        The rate is measured over the whole round trip: over a shorter time, several
        acknowledgements that arrive together would look like a much faster link.
        """
        self.delivered_bytes += trip.size_bytes
        largest = min(trip.write_bytes, MAX_EXTRA_BYTES)
        self._largest_bytes = max(largest, self._largest_bytes)
        round_trip_s = max(now_s - trip.sent_s, 1e-4)
        if trip.was_alone:
            self.on_rtt_sample(round_trip_s, now_s)
        elif self._is_full(round_trip_s):
            self._is_starting = False
        delivered = self.delivered_bytes - trip.delivered_bytes
        self._add_rate(delivered / round_trip_s, now_s)
        if self._is_starting and trip.delivered_bytes >= self._round_ends_at_bytes:
            self._end_round()

    def on_rtt_sample(self, round_trip_s: float, now_s: float) -> None:
        """Add a round-trip sample of the idle link."""
        self._round_trip_s = round_trip_s
        self._measured_at_s = now_s

    def reset(self) -> None:
        """Start over with a new link."""
        self._rates.clear()
        self._round_trip_s = None
        self._largest_bytes = 0
        self._is_starting = True
        self._flat_rounds = 0
        self._start_rate = 0.0

    def _is_full(self, round_trip_s: float) -> bool:
        """Whether a message was queued behind others."""
        idle_s = self._round_trip_s or 0.0
        return round_trip_s - idle_s > max(QUEUEING_FRACTION * idle_s, QUEUEING_S)

    def _end_round(self) -> None:
        """Stop doubling the window once the rate does not grow any more.

        A measured rate is limited by the window, so during startup the window is
        twice the bandwidth-delay product.
        """
        self._round_ends_at_bytes = self.delivered_bytes
        rate = self._rates[0][1]
        if rate >= STARTUP_GROWTH * self._start_rate:
            self._start_rate, self._flat_rounds = rate, 0
        else:
            self._flat_rounds += 1
        self._is_starting = self._flat_rounds < STARTUP_FLAT_ROUNDS

    def _add_rate(self, rate: float, now_s: float) -> None:
        """Add to the sliding-window maximum, which is the first element."""
        while self._rates and self._rates[-1][1] <= rate:
            self._rates.pop()
        self._rates.append((now_s, rate))
        while now_s - self._rates[0][0] > SAMPLE_LIFETIME_S:
            self._rates.popleft()

"""How many bytes may be in flight: what the link holds, and one message more.

An urgent message waits for what is in flight, so the window should be no more
than the link needs to stay busy: rate x round trip, both measured from the
broker's acknowledgements, plus one write. The rate is the highest of late, as
a pause in sending says nothing about the link. The round trip is that of a
message sent when nothing else was in flight: behind our own bytes we would only
measure ourselves. A link that is always busy gives no such sample, so from time
to time it is left to run empty for one.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

MEMORY_S = 20.0
"""A mobile link changes: so long a rate counts, and a round trip is believed."""

FLOOR_BYTES = 1514
"""A full segment. Less would save an urgent message next to nothing, and cost the
link a segment's header for each small message."""

LARGEST_BYTES = 1514
"""One write more keeps the link busy; what fills a segment is enough for that."""

PATIENCE_S = 0.05
"""An urgent message may always wait so long. On a LAN the round trip is shorter than
the programs' own pauses, and a window by it would hold the rate down."""

GROWTH = 1.25
"""A rate that grew by less was not held down by the window."""

FULL_TRIPS = 0.5
FULL_S = 0.1
"""A message that took so much longer than an idle round trip waited behind others: the
link is full, and its rate known. On a slow link the rounds below would take ten
seconds, each with twice too much in flight."""

FLAT_ROUNDS = 3
"""After so many round trips without growth the link's rate is known.

Source: BBR's startup (Cardwell et al. 2016)."""


class Trip(NamedTuple):
    """A message on its way.

    Attributes:
        size_bytes: What it costs on the wire.
        sent_s: Monotonic time.
        was_alone: Whether nothing else was in flight when it was sent.
        delivered_bytes: `Window.delivered_bytes` at that time.
        write_bytes: Of all that was written together with it.
    """

    size_bytes: int
    sent_s: float
    was_alone: bool
    delivered_bytes: int
    write_bytes: int


@dataclass
class Window:
    """Measures a link and says how much may be in flight.

    Attributes:
        most_bytes: Never more than this.
        delivered_bytes: Acknowledged so far; note it when a message is sent.
    """

    most_bytes: int
    delivered_bytes: int = 0
    _rates: deque[tuple[float, float]] = field(default_factory=deque)
    _round_trip_s: float | None = None
    _measured_at_s: float = 0.0
    _largest_bytes: int = 0
    _is_starting: bool = True
    _flat_rounds: int = 0
    _round_ends_at_bytes: int = 0
    _start_rate: float = 0.0

    def bytes(self, now_s: float) -> int:
        """Bytes that may be in flight now; 1 allows a message on an idle link."""
        if self._round_trip_s is None or now_s - self._measured_at_s > MEMORY_S:
            return 1
        rate = self._rates[0][1] if self._rates else 0.0
        gain = 2.0 if self._is_starting else 1.0
        held = gain * rate * max(self._round_trip_s, PATIENCE_S)
        wanted = held + self._largest_bytes
        return int(min(self.most_bytes, max(FLOOR_BYTES, wanted)))

    def acknowledged(self, trip: "Trip", now_s: float) -> None:
        """The broker acknowledged a message.

        The rate is what was acknowledged during the message's round trip, over
        that round trip: over less, a bunch of acknowledgements that arrive
        together would look like a link a hundred times as fast.
        """
        self.delivered_bytes += trip.size_bytes
        largest = min(trip.write_bytes, LARGEST_BYTES)
        self._largest_bytes = max(largest, self._largest_bytes)
        round_trip_s = max(now_s - trip.sent_s, 1e-4)
        if trip.was_alone:
            self.believe(round_trip_s, now_s)
        elif self._is_full(round_trip_s):
            self._is_starting = False
        delivered = self.delivered_bytes - trip.delivered_bytes
        self._remember(delivered / round_trip_s, now_s)
        if self._is_starting and trip.delivered_bytes >= self._round_ends_at_bytes:
            self._end_round()

    def believe(self, round_trip_s: float, now_s: float) -> None:
        """Something small went there and back on the idle link."""
        self._round_trip_s = round_trip_s
        self._measured_at_s = now_s

    def forget(self) -> None:
        """The link is another one now."""
        self._rates.clear()
        self._round_trip_s = None
        self._largest_bytes = 0
        self._is_starting = True
        self._flat_rounds = 0
        self._start_rate = 0.0

    def _is_full(self, round_trip_s: float) -> bool:
        """Whether a message waited behind others, more than a program's pause."""
        idle_s = self._round_trip_s or 0.0
        return round_trip_s - idle_s > max(FULL_TRIPS * idle_s, FULL_S)

    def _end_round(self) -> None:
        """Stop doubling the window once that brings no more.

        A measured rate only confirms the window it was measured through, so at
        first the window is twice what the rate asks for.
        """
        self._round_ends_at_bytes = self.delivered_bytes
        rate = self._rates[0][1]
        if rate >= GROWTH * self._start_rate:
            self._start_rate, self._flat_rounds = rate, 0
        else:
            self._flat_rounds += 1
        self._is_starting = self._flat_rounds < FLAT_ROUNDS

    def _remember(self, rate: float, now_s: float) -> None:
        """Keep rates falling from the front, so that the front is the highest."""
        while self._rates and self._rates[-1][1] <= rate:
            self._rates.pop()
        self._rates.append((now_s, rate))
        while now_s - self._rates[0][0] > MEMORY_S:
            self._rates.popleft()

"""How many bytes may be in flight: what the link holds, and one message more.

An urgent message waits for what is in flight, so the window should be no more
than the link needs to stay busy: rate x round trip, both measured from the
broker's acknowledgements, plus one message. The rate is the highest of late, as
a pause in sending says nothing about the link. The round trip is that of a
message sent when nothing else was in flight: behind our own bytes we would only
measure ourselves. A link that is always busy gives no such sample, so from time
to time it is left to run empty for one.
"""

from collections import deque
from dataclasses import dataclass, field

MEMORY_S = 20.0
"""A mobile link changes: so long a rate counts, and a round trip is believed."""

FLOOR_BYTES = 600
"""Two small messages: one on the wire while the other is acknowledged."""

PATIENCE_S = 0.05
"""An urgent message may always wait so long. On a LAN the round trip is shorter than
the programs' own pauses, and a window by it would hold the rate down."""

ACKS_PER_RATE = 8


@dataclass
class Window:
    """Measures a link and says how much may be in flight.

    Attributes:
        most_bytes: Never more than this.
    """

    most_bytes: int
    _rates: deque[tuple[float, float]] = field(default_factory=deque)
    _acked: deque[tuple[float, int]] = field(default_factory=deque)
    _round_trip_s: float | None = None
    _measured_at_s: float = 0.0
    _largest_bytes: int = 0

    def bytes(self, now_s: float) -> int:
        """Bytes that may be in flight now; 1 allows a message on an idle link."""
        if self._round_trip_s is None or now_s - self._measured_at_s > MEMORY_S:
            return 1
        rate = self._rates[0][1] if self._rates else 0.0
        wanted = rate * max(self._round_trip_s, PATIENCE_S) + self._largest_bytes
        return int(min(self.most_bytes, max(FLOOR_BYTES, wanted)))

    def acknowledged(
        self, size_bytes: int, round_trip_s: float, now_s: float, was_alone: bool
    ) -> None:
        """The broker acknowledged a message.

        Args:
            size_bytes: What it cost on the wire.
            round_trip_s: Since it was sent.
            now_s: Monotonic time.
            was_alone: Whether nothing else was in flight when it was sent.
        """
        self._largest_bytes = max(size_bytes, self._largest_bytes)
        if was_alone:
            self._round_trip_s = round_trip_s
            self._measured_at_s = now_s
        self._acked.append((now_s, size_bytes))
        if len(self._acked) > ACKS_PER_RATE:
            self._acked.popleft()
        self._measure_rate(now_s)

    def forget(self) -> None:
        """The link is another one now."""
        self._rates.clear()
        self._acked.clear()
        self._round_trip_s = None
        self._largest_bytes = 0

    def _remember(self, rate: float, now_s: float) -> None:
        """Keep rates falling from the front, so that the front is the highest."""
        while self._rates and self._rates[-1][1] <= rate:
            self._rates.pop()
        self._rates.append((now_s, rate))

    def _measure_rate(self, now_s: float) -> None:
        """Bytes acknowledged over the last few acknowledgements, as a rate."""
        since_s = self._acked[0][0]
        if now_s > since_s:
            # The first acknowledgement only starts the clock.
            delivered = sum(size for at_s, size in self._acked if at_s > since_s)
            self._remember(delivered / (now_s - since_s), now_s)
        while self._rates and now_s - self._rates[0][0] > MEMORY_S:
            self._rates.popleft()

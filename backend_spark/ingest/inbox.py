"""What waits between the network thread and the loop, of bounded size.

A broker's window is no bound: Mosquitto 2.0.11 sends up to a whole window for each
message that is acknowledged (with a window of 10, 50 more for 5). When too much
waits the network thread does, so that TCP holds the broker back.
"""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from spatial_mqtt.link import Incoming

HOLD_S: Final = 0.05
OVERHEAD_BYTES: Final = 600
"""What a message takes in memory beside its payload."""


class Up(NamedTuple):
    """The link came up.

    Attributes:
        window: Messages that the broker keeps in flight towards us.
    """

    window: int


class Came(NamedTuple):
    """A message came in.

    Attributes:
        message: The message.
        received_us: Unix time of receipt, in microseconds.
    """

    message: Incoming
    received_us: int


class Stop:
    """Finish what is in hand and end."""


Event = Up | Came | Stop


class Inbox:
    """Events in their order.

    Args:
        most_bytes: Of messages that wait.
        rest: Waits for so many seconds; whether we are told to stop.
    """

    def __init__(self, most_bytes: int, rest: Callable[[float], bool]) -> None:
        self._most_bytes = most_bytes
        self._rest = rest
        self._events: SimpleQueue[Event] = SimpleQueue()
        # Each is changed by one thread only.
        self._put_bytes = 0
        self._taken_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that wait."""
        return self._put_bytes - self._taken_bytes

    def put(self, event: Up | Stop) -> None:
        """Add what takes no room."""
        self._events.put(event)

    def put_message(self, came: Came, beat: Callable[[], None]) -> None:
        """Add a message when there is room.

        Args:
            came: The message.
            beat: Called while we wait.
        """
        while self.waiting_bytes > self._most_bytes and not self._rest(HOLD_S):
            beat()
        self._put_bytes += len(came.message.payload) + OVERHEAD_BYTES
        self._events.put(came)

    def get(self, timeout_s: float) -> Event | None:
        """The next event; None when none comes in time."""
        try:
            event = self._events.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(event, Came):
            self._taken_bytes += len(event.message.payload) + OVERHEAD_BYTES
        return event

    def empty(self) -> bool:
        """Whether nothing waits."""
        return self._events.empty()

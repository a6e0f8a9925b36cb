"""One message on its way from the broker to the log: what custody must know.

When to flush, and what a flush writes: decisions without a disk or a broker.

What waits between the network thread and the loop, of bounded size.

A broker's window is no bound: Mosquitto 2.0.11 sends up to a whole window for each
message that is acknowledged (with a window of 10, 50 more for 5). When too much
waits the network thread does, so that TCP holds the broker back.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from backend_spark.ingest.deduplication import SeenIds
from backend_spark.ingest.segment_log import LogRow
from spatial_mqtt.custody import Receipt, receipt_topic
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, decode_id
from spatial_mqtt.transport import Incoming

URGENT_FROM = 4


class Arrival(NamedTuple):
    """A message and the row it makes.

    Attributes:
        message: As the broker delivered it.
        row: As it goes to the log or to quarantine.
        id: Its id; None when it is malformed.
    """

    message: Incoming
    row: LogRow
    id: MessageId | None

    @property
    def is_aside(self) -> bool:
        """Whether it goes to quarantine."""
        return self.row.reason is not None

    def put_aside(self, reason: str) -> "Arrival":
        """The same on its way to quarantine; its id is claimed, not believed."""
        row = LogRow(
            self.row.received_us, self.row.topic, self.row.payload, reason=reason
        )
        return self._replace(row=row)

    @property
    def is_urgent(self) -> bool:
        """Whether it must not wait for others."""
        return self.row.pri is not None and self.row.pri >= URGENT_FROM


def classify(message: Incoming, received_us: int) -> Arrival:
    """Read a message's id; one without an id gets the reason instead."""
    try:
        message_id, priority = _named(message)
    except EnvelopeError as error:
        row = LogRow(received_us, message.topic, message.payload, reason=str(error))
        return Arrival(message, row, None)
    # The property is set hop by hop, so a gateway's raise of the priority wins.
    hop = message.priority
    row = LogRow(
        received_us,
        message.topic,
        message.payload,
        message_id.node,
        message_id.boot,
        message_id.seq,
        hop if hop is not None and 1 <= hop <= LADDER.top else priority,
        age_s=message.age_s,
    )
    return Arrival(message, row, message_id)


def _named(message: Incoming) -> tuple[MessageId, int]:
    """The id and priority that a message has by itself or by its last hop."""
    try:
        return decode_id(message.payload)
    except EnvelopeError:
        if message.message_id is None:
            raise
    # A gateway names a foreign payload, so that custody works for it too.
    return MessageId.parse(message.message_id), LADDER.default


MAX_MESSAGES = 5000
MAX_BYTES = 16 * 2**20
RANGES_PER_RECEIPT = 500
"""Keeps a receipt of ids that share nothing under `custody.MAX_RECEIPT_BYTES`."""


@dataclass
class Batch:
    """Messages that wait for one flush.

    Attributes:
        flush_s: Longest wait of a message.
        window: Messages that the broker sends before it waits for us; to wait
            with so many in hand would only idle the link.
        arrivals: In the order of arrival.
        due_s: Monotonic time at which the oldest has waited long enough.
        size_bytes: Of the payloads.
    """

    flush_s: float
    window: int = MAX_MESSAGES
    arrivals: list[Arrival] = field(default_factory=list)
    due_s: float | None = None
    size_bytes: int = 0
    _urgent: bool = False

    @property
    def since_s(self) -> float | None:
        """Monotonic time since which the oldest waits."""
        return None if self.due_s is None else self.due_s - self.flush_s

    def add(self, arrival: Arrival, now_s: float) -> None:
        """Take one message."""
        if self.due_s is None:
            self.due_s = now_s + self.flush_s
        self.arrivals.append(arrival)
        self.size_bytes += len(arrival.row.payload)
        self._urgent = self._urgent or arrival.is_urgent

    def is_due(self, now_s: float, more_waiting: bool) -> bool:
        """Whether to flush now.

        Args:
            now_s: Monotonic time.
            more_waiting: Whether messages wait to be added; an urgent one lets
                them board, so that a burst costs one fsync and not one each.
        """
        if self.due_s is None:
            return False
        if len(self.arrivals) >= MAX_MESSAGES or now_s >= self.due_s:
            return True
        if self.size_bytes >= MAX_BYTES:
            return True
        is_full = len(self.arrivals) >= self.window
        return (self._urgent or is_full) and not more_waiting

    def take(self) -> list[Arrival]:
        """Empty the batch."""
        taken, self.arrivals = self.arrivals, []
        self.due_s = None
        self.size_bytes = 0
        self._urgent = False
        return taken


@dataclass(frozen=True)
class Plan:
    """What to write for a batch.

    Attributes:
        log: Rows that are new.
        new_ids: Their ids.
        quarantine: Rows without an id, or under another's name.
        duplicates: How many messages the log has already.
        impostors: How many messages are under another's name.
    """

    log: list[LogRow]
    new_ids: list[MessageId]
    quarantine: list[LogRow]
    duplicates: int
    impostors: int


def plan(arrivals: Iterable[Arrival], seen: SeenIds) -> Plan:
    """Sort messages into new ones, known ones and those for quarantine."""
    fresh: dict[MessageId, LogRow] = {}
    quarantine = []
    duplicates = impostors = 0
    for arrival in arrivals:
        if arrival.id is None or arrival.is_aside:
            quarantine.append(arrival.row)
            impostors += arrival.id is not None
        elif arrival.id in seen or arrival.id in fresh:
            duplicates += 1
        else:
            fresh[arrival.id] = arrival.row
    return Plan(list(fresh.values()), list(fresh), quarantine, duplicates, impostors)


def receipts(arrivals: Iterable[Arrival]) -> Iterator[tuple[str, bytes]]:
    """Topic and payload of the receipts for a batch, duplicates included.

    Who brought an impostor's message hears that it is kept, too, or would bring it
    for ever; whose name it says hears nothing.
    """
    ids_of: dict[str, list[MessageId]] = {}
    for arrival in arrivals:
        answer = arrival.message.response_topic
        if arrival.id is not None and not (arrival.is_aside and answer is None):
            topic = receipt_topic(arrival.id, answer)
            ids_of.setdefault(topic, []).append(arrival.id)
    for topic, ids in ids_of.items():
        whole = Receipt.of(ids).ranges.items()
        rest = ((key, pair) for key, ranges in whole for pair in ranges)
        while some := list(islice(rest, RANGES_PER_RECEIPT)):
            pairs_of: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {}
            for key, pair in some:
                pairs_of[key] = (*pairs_of.get(key, ()), pair)
            yield topic, Receipt(pairs_of).encode()


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

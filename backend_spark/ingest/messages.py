"""Messages between broker and log: classification, checks, batches, receipts, inbox.

A broker does not forward the publisher's identity, but a message contains its node id
and its topic the cell. The gateway's certificate limits where it may publish; a file
limits each node id to its area, so a compromised gateway cannot publish under the id of
a node elsewhere.

A reading that is dated after its receipt is not scored, because one node's clock may
run ahead. If the clock of the ingester is behind, that concerns every node: all
readings of a town would fail for good. No delay makes a reading newer than its receipt,
so nodes that agree are right.

Leads are kept over the monotonic clock, so that they are right at once when this clock
is set. Otherwise the next times of receipt would be ahead by the old lead, and with
them the readings of nodes without a set clock, whose times are those of their receipt.
"""

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Final, NamedTuple

from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.segment_log import LogRow
from service_runtime.crash_guard import CrashGuard
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import MAX_SHOWN_CHARS
from service_runtime.settings import Problem, SettingsError
from spatial_mqtt.custody import CustodyReceipt, receipt_topic
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, decode_message_id, decode_time
from spatial_mqtt.topics import MAX_TOPIC_CHARS, covers
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)

MAX_MESSAGES: Final = 5000
MAX_BYTES: Final = 16 * 2**20
RANGES_PER_RECEIPT: Final = 500
"""Keeps a receipt of ids without common parts under `custody.MAX_RECEIPT_BYTES`."""

WAIT_S: Final = 0.05
BURST_EVENTS: Final = 64
BURST_BYTES: Final = 256 * 1024
"""Bounds of what the loop processes between two heartbeats."""

OVERHEAD_BYTES: Final = 600
"""Memory of a message besides its payload."""


class ClassifiedMessage(NamedTuple):
    """A received message and its row.

    Attributes:
        message: Message as delivered by the broker.
        row: Row for the log or for quarantine.
        id: Message id; None if malformed.
    """

    message: IncomingMessage
    row: LogRow
    id: MessageId | None

    @property
    def is_quarantined(self) -> bool:
        """Whether the message goes to quarantine."""
        return self.row.reason is not None

    def to_quarantine(self, reason: str) -> "ClassifiedMessage":
        """Copy for quarantine; the row omits the id, which is not trusted."""
        row = LogRow(
            self.row.received_us, self.row.topic, self.row.payload, reason=reason
        )
        return self._replace(row=row)

    @property
    def is_urgent(self) -> bool:
        """Whether its priority is urgent, so that the batch is flushed at once."""
        return self.row.pri is not None and LADDER.is_urgent(self.row.pri)


DEAD_LETTER: Final = "decoding it ended the program twice"
"""Reason of a message that `CrashGuard` puts aside."""


def classify_guarded(
    message: IncomingMessage, received_us: int, guard: CrashGuard
) -> ClassifiedMessage:
    """Read a message; one that ended the program twice goes to quarantine unread."""
    classified = guard.decode(
        message.topic, message.payload, classify_message, message, received_us
    )
    if classified is not None:
        return classified
    row = LogRow(received_us, message.topic, message.payload, reason=DEAD_LETTER)
    return ClassifiedMessage(message, row, None)


def classify_message(message: IncomingMessage, received_us: int) -> ClassifiedMessage:
    """Read the id and priority of a message; without an id the row has a reason."""
    try:
        message_id, priority = _identify(message)
    except EnvelopeError as error:
        row = LogRow(received_us, message.topic, message.payload, reason=str(error))
        return ClassifiedMessage(message, row, None)
    # The user property is set at each hop, so a gateway can raise the priority.
    hop = message.priority
    pri = hop if hop is not None and 1 <= hop <= LADDER.top else priority
    node, boot, seq = message_id.node, message_id.boot, message_id.seq
    topic, payload, age_s = message.topic, message.payload, message.age_s
    row = LogRow(received_us, topic, payload, node, boot, seq, pri, None, age_s)
    return ClassifiedMessage(message, row, message_id)


def _identify(message: IncomingMessage) -> tuple[MessageId, int]:
    """Id and priority from the payload, else from the user property."""
    if len(message.topic) > MAX_TOPIC_CHARS:
        rule = f"at most {MAX_TOPIC_CHARS} characters"
        raise EnvelopeError("topic", rule, message.topic)
    try:
        return decode_message_id(message.payload)
    except EnvelopeError:
        if message.message_id is None:
            raise
    # A gateway assigns an id to a foreign payload, so that it gets receipts as well.
    return MessageId.parse(message.message_id), LADDER.default


@dataclass
class IngestBatch:
    """Messages that wait for the next flush.

    Attributes:
        flush_s: Longest wait of a message.
        window: Messages that the broker sends without an acknowledgement; a full
            batch of this size is flushed, because no more would arrive.
        arrivals: Messages in the order of arrival.
        due_s: Monotonic time at which the oldest has waited for `flush_s`.
        size_bytes: Size of the payloads.
    """

    flush_s: float
    window: int = MAX_MESSAGES
    arrivals: list[ClassifiedMessage] = field(default_factory=list)
    due_s: float | None = None
    size_bytes: int = 0
    _has_urgent: bool = False

    @property
    def oldest_since_s(self) -> float | None:
        """Monotonic time at which the oldest message was added."""
        return None if self.due_s is None else self.due_s - self.flush_s

    def add(self, arrival: ClassifiedMessage, now_s: float) -> None:
        """Add one message."""
        if self.due_s is None:
            self.due_s = now_s + self.flush_s
        self.arrivals.append(arrival)
        self.size_bytes += len(arrival.row.payload)
        self._has_urgent = self._has_urgent or arrival.is_urgent

    def is_due(self, now_s: float, has_more: bool) -> bool:
        """Whether to flush now.

        Args:
            now_s: Monotonic time.
            has_more: Whether the inbox has more messages; an urgent flush waits
                for them, so that a burst costs one fsync instead of one each.
        """
        if self.due_s is None:
            return False
        if len(self.arrivals) >= MAX_MESSAGES or now_s >= self.due_s:
            return True
        if self.size_bytes >= MAX_BYTES:
            return True
        is_full = len(self.arrivals) >= self.window
        return (self._has_urgent or is_full) and not has_more

    def take_all(self) -> list[ClassifiedMessage]:
        """Remove and return all messages."""
        arrivals, self.arrivals = self.arrivals, []
        self.due_s = None
        self.size_bytes = 0
        self._has_urgent = False
        return arrivals


@dataclass(frozen=True)
class FlushPlan:
    """Rows to write for a batch.

    Attributes:
        log: New rows.
        new_ids: Ids of the new rows.
        quarantine: Rows without an id, or with another node's id.
        duplicates: Number of messages that are in the log already.
        impostors: Number of messages with another node's id.
    """

    log: list[LogRow]
    new_ids: list[MessageId]
    quarantine: list[LogRow]
    duplicates: int
    impostors: int


def plan_flush(
    arrivals: Iterable[ClassifiedMessage], logged_ids: MessageIdSet
) -> FlushPlan:
    """Sort messages into new rows, duplicates and quarantine."""
    fresh: dict[MessageId, LogRow] = {}
    quarantine = []
    duplicates = impostors = 0
    for arrival in arrivals:
        if arrival.id is None or arrival.is_quarantined:
            quarantine.append(arrival.row)
            impostors += arrival.id is not None
        elif arrival.id in logged_ids or arrival.id in fresh:
            duplicates += 1
        else:
            fresh[arrival.id] = arrival.row
    return FlushPlan(
        list(fresh.values()), list(fresh), quarantine, duplicates, impostors
    )


def make_receipts(arrivals: Iterable[ClassifiedMessage]) -> Iterator[tuple[str, bytes]]:
    """Topic and payload of the receipts for a batch, duplicates included.

    A message with another node's id is receipted to the gateway that delivered it,
    which would repeat it for ever otherwise, but not to the node of that id.
    """
    ids_of: dict[str, list[MessageId]] = {}
    for (_, response_topic), ids in _ids_by_sender(arrivals).items():
        topic = receipt_topic(ids[0], response_topic)
        ids_of.setdefault(topic, []).extend(ids)
    for topic, ids in ids_of.items():
        ranges_of = CustodyReceipt.from_ids(ids).ranges.items()
        remaining = ((key, pair) for key, ranges in ranges_of for pair in ranges)
        while chunk := list(islice(remaining, RANGES_PER_RECEIPT)):
            pairs_of: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {}
            for key, pair in chunk:
                pairs_of[key] = (*pairs_of.get(key, ()), pair)
            yield topic, CustodyReceipt(pairs_of).encode()


def _ids_by_sender(
    arrivals: Iterable[ClassifiedMessage],
) -> dict[tuple[str, str | None], list[MessageId]]:
    """Ids to receipt by node and response topic: thousands have few topics."""
    found: defaultdict[tuple[str, str | None], list[MessageId]] = defaultdict(list)
    for message, row, message_id in arrivals:
        response_topic = message.response_topic
        if message_id is None or (row.reason is not None and response_topic is None):
            continue
        found[message_id.node, response_topic].append(message_id)
    return found


class ConnectionUp(NamedTuple):
    """Event: the connection is up.

    Attributes:
        window: Messages that the broker sends without an acknowledgement.
    """

    window: int


class MessageArrived(NamedTuple):
    """Event: a message arrived.

    Attributes:
        message: Message as delivered by the broker.
        received_us: Unix time of receipt, in microseconds.
        monotonic_s: Monotonic time of receipt.
    """

    message: IncomingMessage
    received_us: int
    monotonic_s: float


class StopRequested:
    """Event: flush the batch and end."""


InboxEvent = ConnectionUp | MessageArrived | StopRequested


class IngestInbox:
    """Bounded queue of events from the network thread to the ingest loop.

    The MQTT receive maximum is not a bound: Mosquitto 2.0.11 sends up to a whole window
    for each acknowledged message (with a window of 10, 50 more for 5). When the inbox
    is full the network thread waits, so that TCP throttles the broker.

    Args:
        max_bytes: Largest size of the messages that wait.
        wait: Waits for the given seconds; returns whether to stop.
    """

    def __init__(self, max_bytes: int, wait: Callable[[float], bool]) -> None:
        self._max_bytes = max_bytes
        self._wait = wait
        self._events: SimpleQueue[InboxEvent] = SimpleQueue()
        # Each counter is changed by one thread only.
        self._put_bytes = 0
        self._taken_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Size of the messages that wait."""
        return self._put_bytes - self._taken_bytes

    def put(self, event: ConnectionUp | StopRequested) -> None:
        """Add an event that is not a message."""
        self._events.put(event)

    def put_message(self, event: MessageArrived, beat: Callable[[], None]) -> None:
        """Add a message; wait while the inbox is full.

        Args:
            event: The message.
            beat: Heartbeat, called while waiting.
        """
        while self.waiting_bytes > self._max_bytes and not self._wait(WAIT_S):
            beat()
        self._put_bytes += len(event.message.payload) + OVERHEAD_BYTES
        self._events.put(event)

    def take(self, timeout_s: float) -> list[InboxEvent]:
        """Remove and return a burst: the waiting events, at most `BURST_EVENTS`.

        Without any it waits for one; empty after the timeout. A message that makes
        the burst larger than `BURST_BYTES` is its last event.
        """
        burst: list[InboxEvent] = []
        size_bytes = 0
        try:
            burst.append(self._events.get(timeout=timeout_s))
            while True:
                event = burst[-1]
                if isinstance(event, MessageArrived):
                    size_bytes += len(event.message.payload) + OVERHEAD_BYTES
                if len(burst) == BURST_EVENTS or size_bytes > BURST_BYTES:
                    break
                burst.append(self._events.get_nowait())
        except Empty:
            pass
        self._taken_bytes += size_bytes
        return burst

    def is_empty(self) -> bool:
        """Whether no event waits."""
        return self._events.empty()


NodeAreas = dict[str, tuple[str, ...]]
_UNUSABLE = (OSError, *DECODE_ERRORS)
"""Missing, not JSON, not UTF-8, or nested too deeply."""

MIN_NODES: Final = 3
"""Nodes that must have sent a time: fewer do not show which clock is wrong."""

MIN_LEAD_S: Final = 300.0
"""Lead of the nodes' clocks that is corrected; smaller ones harm nothing."""

NODE_EVERY_S: Final = 60.0
FORGET_S: Final = 3600.0
MAX_NODES: Final = 1000
"""The node that was read longest ago is forgotten first."""


class PublisherAreaCheck:
    """Areas of node ids, from the file that ``gateway-daemon ca places`` writes.

    Args:
        path: The file; None allows every node id everywhere.

    Raises:
        SettingsError: The file cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._areas: NodeAreas = {}
        if path is None:
            return
        try:
            self._read(path)
        except _UNUSABLE as error:
            remedy = "write it with gateway-daemon ca places --out"
            rule = f"cannot be used: {error}"
            problem = Problem("ingest.places", rule, remedy=remedy, part=str(path))
            raise SettingsError([problem]) from error

    def reload_if_changed(self) -> None:
        """Read the file if it has changed; an unusable file is logged and ignored."""
        if self._path is None:
            return
        try:
            self._read(self._path)
        except _UNUSABLE as error:
            log.warning("%s is ignored: %s", self._path, error)

    def check(self, arrival: ClassifiedMessage) -> ClassifiedMessage:
        """The message, marked for quarantine if its node id belongs to another area.

        An id that is not in the file is accepted: its certificate may be new.
        """
        if arrival.id is None:
            return arrival
        areas = self._areas.get(arrival.id.node)
        topic = arrival.message.topic
        if areas is None or any(covers(area, topic) for area in areas):
            return arrival
        return arrival.to_quarantine(
            f"topic must be in {', '.join(areas)}, where the certificate of "
            f"{arrival.id.node} lets it publish, got {topic[:MAX_SHOWN_CHARS]!r}"
        )

    def _read(self, path: Path) -> None:
        status = path.stat()
        version = status.st_mtime_ns, status.st_ino
        if version == self._version:
            return
        self._areas = decode_json(path.read_bytes(), NodeAreas)
        self._version = version
        log.info("%s: areas of %d node ids", path, len(self._areas))


@dataclass
class ClockCorrection:
    """Lead of the nodes' clocks over that of the ingester.

    Attributes:
        offset_s: What is added to times of receipt: the median lead, if the clocks of
            more than half of the nodes are ahead by `MIN_LEAD_S`; otherwise 0.
    """

    offset_s: float = 0.0
    _leads: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    _middle_s: float | None = None

    def correct(self, arrival: ClassifiedMessage, now_s: float) -> ClassifiedMessage:
        """Read the time of a message if that is due, and correct its receipt.

        Args:
            arrival: The message.
            now_s: Monotonic time of its receipt.
        """
        row = arrival.row
        if row.node is not None and self._is_due(row.node, now_s):
            self._observe(row.node, row.payload, now_s)
        self._update(row.received_us / 1e6 - now_s)
        if not self.offset_s:
            return arrival
        received_us = row.received_us + round(self.offset_s * 1e6)
        return arrival._replace(row=row._replace(received_us=received_us))

    def _is_due(self, node: str, now_s: float) -> bool:
        at_s, _ = self._leads.get(node, (float("-inf"), 0.0))
        return now_s - at_s >= NODE_EVERY_S

    def _observe(self, node: str, payload: bytes, now_s: float) -> None:
        try:
            time_s = decode_time(payload)
        except EnvelopeError:
            return
        if time_s is None:
            return
        self._leads[node] = now_s, time_s - now_s
        self._leads.move_to_end(node)
        while len(self._leads) > MAX_NODES or self._oldest_s() < now_s - FORGET_S:
            self._leads.popitem(last=False)
        leads = [lead for _, lead in self._leads.values()]
        self._middle_s = median(leads) if len(leads) >= MIN_NODES else None

    def _oldest_s(self) -> float:
        return next(iter(self._leads.values()))[0]

    def _update(self, clock_s: float) -> None:
        """Update the offset by the lead of this machine's clock over the monotonic."""
        middle = 0.0 if self._middle_s is None else self._middle_s - clock_s
        offset_s = middle if middle >= MIN_LEAD_S else 0.0
        if bool(offset_s) != bool(self.offset_s):
            log.error(
                "the clocks of most of %d nodes are %.0f s ahead of this machine's; "
                "times of receipt are %s",
                len(self._leads),
                middle,
                "corrected by that: set this clock" if offset_s else "not corrected",
            )
        self.offset_s = offset_s

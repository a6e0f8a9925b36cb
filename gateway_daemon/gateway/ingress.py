"""Ingress: messages that clients publish on the gateway's own broker.

A batch of publications is stored, then acknowledged to the broker, then receipted to
its senders. After a crash in between, senders send again, and the queue drops messages
whose id it has.
"""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from edge_agent.queue.base import (
    MessageDraft,
    QueueDiskFullError,
    QueueFileError,
    QueueFullError,
    QueueShareError,
    cost_bytes,
)
from gateway_daemon.gateway.egress import Egress
from gateway_daemon.gateway.incoming import (
    CONTENT_TYPES,
    BatchQueue,
    IdentityCheck,
    ParsedMessage,
    ReceivedPublication,
    Sender,
    SenderRateLimit,
    Unpacker,
    parse_publication,
)
from service_runtime.crash_guard import CrashGuard
from service_runtime.lifecycle import LogLimit
from service_runtime.watchdog import Heartbeat
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.errors import TopicError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import FORWARD_FILTER, FROM_FILTER, ForwardTopic, offer_topic
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    ConnectionHandler,
    IncomingMessage,
    Publication,
    RetainHandling,
    Session,
)

log = logging.getLogger(__name__)

RECEIVE_MAXIMUM = 1000
SESSION_EXPIRY_S = 7 * 86_400
IDLE_S = 5.0
"""Longest wait between two heartbeats."""

RETRY_S = 0.5
MAX_WAITING = 500
MAX_WAITING_BYTES = 8 * 2**20
"""Further messages are kept by their senders only."""

MAX_INBOX_BYTES = 32 * 2**20
"""Most memory of publications that are not stored yet, about 60,000 small ones. The
others stay with the broker, where an urgent one cannot overtake them; therefore so
many. Mosquitto ignores the receive maximum with ``max_inflight_messages 0``."""

PUBLICATION_BYTES = 350
"""Memory of a publication beside its payload."""

SPACE_POLL_S = 0.01

REDELIVERY_STATE_KEY = "front/unacknowledged"
"""Key under which a lane stores the state of `RedeliveryFilter`."""

BATCHES_KEY = 0
"""Key of the number of batches in that state; no packet has this id."""

MAX_ACKNOWLEDGED = 10_000
"""Acknowledged messages without an id that are recognised after the next connection."""

GATHER_RECEIPTS_S = 1.0
"""Delay of a receipt for batching; senders ask again much later."""

MAX_GATHERED = 64

Connect = Callable[[Session, ConnectionHandler], Connection]


class UrgentRetries:
    """Urgent messages that could not be stored, to be retried before later messages.

    Their senders keep them, but would send them again only when a receipt is overdue,
    and later messages would overtake them. While the disk is full, less urgent messages
    are therefore not stored: space may become free between two retries.
    """

    def __init__(self) -> None:
        self._held: list[ParsedMessage] = []
        self._held_bytes = 0
        self._is_disk_full = False

    def add(self, message: ParsedMessage, *, is_disk_full: bool = True) -> None:
        """Hold a message that could not be stored, if it is urgent and has an id.

        Of those that do not fit, the sender with the most bytes has one discarded: a
        flood does not push out another's alarm.
        """
        if (
            LADDER.is_urgent(message.draft.priority)
            and message.publication_without_id is None
        ):
            self._held.append(message)
            self._held_bytes += _size_bytes(message)
            self._is_disk_full = is_disk_full
            while len(self._held) > MAX_WAITING or self._held_bytes > MAX_WAITING_BYTES:
                self._discard_one()

    def must_wait(self, message: ParsedMessage) -> bool:
        """Whether a more urgent message must be stored first.

        Never for a message without an id: its sender does not send it again.
        """
        if not self._is_disk_full or message.publication_without_id is not None:
            return False
        return any(each.draft.priority > message.draft.priority for each in self._held)

    def wait_s(self) -> float | None:
        """Seconds until the next retry; None when nothing is held."""
        return RETRY_S if self._held else None

    def retry(
        self, store: Callable[[list[ParsedMessage]], list[ParsedMessage]]
    ) -> list[ParsedMessage]:
        """Retry the most urgent message and, if it is stored, all others.

        Args:
            store: Returns the messages it stored; calls `add` for the others.
        """
        if not self._held:
            return []
        first, *others = sorted(self._held, key=lambda each: -each.draft.priority)
        self._held, self._held_bytes = [], 0
        stored = store([first])
        if not stored:
            self._held += others
            self._held_bytes = sum(map(_size_bytes, self._held))
            return []
        return stored + (store(others) if others else [])

    def _discard_one(self) -> None:
        """Discard the last message of the sender whose messages are largest."""
        sizes: Counter[str | None] = Counter()
        for message in self._held:
            sizes[_sender(message)] += _size_bytes(message)
        sender, _ = sizes.most_common(1)[0]
        last = max(n for n, each in enumerate(self._held) if _sender(each) == sender)
        self._held_bytes -= _size_bytes(self._held.pop(last))


def _sender(message: ParsedMessage) -> str | None:
    return None if message.draft.id is None else message.draft.id.node


def _size_bytes(message: ParsedMessage) -> int:
    return cost_bytes(message.draft.topic, message.incoming.payload)


RedeliveryMark = tuple[int, int]
"""Packet id and checksum of a publication without an id."""


def make_mark(message: IncomingMessage) -> RedeliveryMark:
    """The mark of a publication."""
    return _mid(message), _checksum(message)


class RedeliveryFilter:
    """Publications without an id that are stored but not yet acknowledged.

    Such a message gets its id here, so a second delivery would get another id. After a
    lost connection or a crash the broker delivers it again under the same packet id
    and marks it as a duplicate, so packet id and checksum are stored in the same
    transaction as the message.

    A batch may go to several lanes, each of which stores its own marks of the batch and
    all earlier ones. So after a restart the states of the last batch count. A lane
    without new messages has an older one, whose packet ids are used again by now.

    A broker that ends before it has read, or saved, an acknowledgement delivers the
    message again as well. So the marks of what was acknowledged last are kept, in
    memory only, until the end of the next connection: later the packet id may be that
    of another message with the same content.

    Source: MQTT 5.0 sections 3.3.1.1 and 4.4.
    """

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}
        self._batches = 0
        self._acknowledged: dict[int, int] = {}
        self._acknowledged_before: dict[int, int] = {}

    def load(self, states: Iterable[str]) -> None:
        """Load the state that `to_state` returned before a restart."""
        for text in states:
            pairs = (pair.partition(":") for pair in text.split())
            marks = {int(mid): int(checksum) for mid, _, checksum in pairs}
            batches = marks.pop(BATCHES_KEY, 0)
            if batches > self._batches:
                self._stored.clear()
                self._batches = batches
            if batches == self._batches:
                self._stored.update(marks)

    def clear(self) -> None:
        """Clear the state: the broker lost the session and delivers nothing again."""
        self._stored.clear()
        self._acknowledged, self._acknowledged_before = {}, {}

    def resume(self) -> None:
        """Begin a connection in which the broker delivers again what it must."""
        self._acknowledged, self._acknowledged_before = {}, self._acknowledged

    def is_stored(self, message: IncomingMessage) -> bool:
        """Whether a publication is a redelivery of a stored one."""
        if not message.is_duplicate:
            return False
        marks = self._stored, self._acknowledged_before
        return _checksum(message) in {each.get(_mid(message)) for each in marks}

    def to_state(self, marks: Iterable[RedeliveryMark]) -> str:
        """State to store with a batch of some marks, as pairs with a colon."""
        pairs = self._stored | dict(marks) | {BATCHES_KEY: self._batches + 1}
        return " ".join(f"{mid}:{checksum}" for mid, checksum in pairs.items())

    def mark_stored(self, marks: Iterable[RedeliveryMark]) -> None:
        """Record that a batch with the messages of some marks is stored."""
        self._stored.update(marks)
        self._batches += 1

    def discard(self, messages: Iterable[IncomingMessage]) -> None:
        """Remove acknowledged messages from the state to store."""
        for message in messages:
            mid = _mid(message)
            checksum = self._stored.pop(mid, None)
            if checksum is None and message.is_duplicate:
                checksum = self._acknowledged_before.get(mid)
            self._acknowledged.pop(mid, None)
            if checksum is not None:
                self._acknowledged[mid] = checksum
        while len(self._acknowledged) > MAX_ACKNOWLEDGED:
            del self._acknowledged[next(iter(self._acknowledged))]


def _without_copies(
    publications: Sequence[ReceivedPublication],
) -> list[ReceivedPublication]:
    """Without the redeliveries of others of these, from before a lost connection."""
    found: set[RedeliveryMark] = set()
    new: list[ReceivedPublication] = []
    for each in publications:
        mark = make_mark(each.incoming)
        if not (each.incoming.is_duplicate and mark in found):
            new.append(each)
        found.add(mark)
    return new


def _mid(message: IncomingMessage) -> int:
    return message.delivery[1]


def _checksum(message: IncomingMessage) -> int:
    return crc32(message.payload, crc32(message.topic.encode(errors="replace")))


class ReceiptBatcher:
    """Ids of stored messages, batched by the topic of their receipt.

    Urgent messages are receipted at once, the others within `GATHER_RECEIPTS_S`.

    Attributes:
        sent_count: Number of ids that were receipted.
    """

    def __init__(self) -> None:
        self._ids: dict[str, list[MessageId]] = {}
        self._due_s: dict[str, float] = {}
        self.sent_count = 0

    def add(self, message: ParsedMessage, now_s: float) -> None:
        """Add a message that is on disk."""
        topic, message_id = message.receipt_topic, message.draft.id
        if topic is None or message_id is None:
            return
        ids = self._ids.setdefault(topic, [])
        ids.append(message_id)
        due_s = self._due_s.setdefault(topic, now_s + GATHER_RECEIPTS_S)
        if LADDER.is_urgent(message.draft.priority) or len(ids) >= MAX_GATHERED:
            self._due_s[topic] = min(due_s, now_s)

    def pop_due(self, now_s: float) -> list[tuple[str, CustodyReceipt]]:
        """Remove and return the receipts to publish now, with their topics."""
        topics = [topic for topic, due_s in self._due_s.items() if due_s <= now_s]
        for topic in topics:
            del self._due_s[topic]
        batches = [(topic, self._ids.pop(topic)) for topic in topics]
        self.sent_count += sum(len(ids) for _, ids in batches)
        return [(topic, CustodyReceipt.from_ids(ids)) for topic, ids in batches]

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next receipt is due; None without one."""
        due_s = min(self._due_s.values(), default=math.inf)
        return None if math.isinf(due_s) else max(0.0, due_s - now_s)


@dataclass(frozen=True)
class AdmissionChecks:
    """Checks that every incoming message must pass."""

    rate_limit: SenderRateLimit
    identity_check: IdentityCheck
    crash_guard: CrashGuard


class Ingress(BaseConnectionHandler):
    """Stores what clients publish in the lanes.

    Args:
        gateway_id: Name of the MQTT session and of the custody offer.
        connect: Makes the connection to the gateway's own broker.
        egress: Where messages are stored.
        default_priority: Priority of a publication that carries none.
        clock: Monotonic seconds.

    Attributes:
        checks: Admission checks.
        receipts: Receipts that are due, and the count of those that were sent.
    """

    def __init__(
        self,
        gateway_id: str,
        connect: Connect,
        egress: Egress,
        default_priority: int,
        clock: Callable[[], float],
        *,
        checks: AdmissionChecks,
    ) -> None:
        self._clock = clock
        self._id = gateway_id
        self._lanes = egress
        self._default_priority = default_priority
        self._inbox: BatchQueue[ReceivedPublication] = BatchQueue(
            clock, lambda publication: publication.is_urgent
        )
        self._offer = CustodyOffer(gateway_id, (FORWARD_FILTER,), CONTENT_TYPES)
        self._unpacker = Unpacker(clock)
        self.checks = checks
        self.receipts = ReceiptBatcher()
        self._redeliveries = RedeliveryFilter()
        self._retries = UrgentRetries()
        self._log_limit = LogLimit(clock)
        self._stopping = threading.Event()
        self._received_bytes = self._passed_bytes = 0
        session = Session(
            gateway_id,
            filters=((FORWARD_FILTER, 1), (FROM_FILTER, 1)),
            expiry_s=SESSION_EXPIRY_S,
            manual_ack=True,
            receive_maximum=RECEIVE_MAXIMUM,
            will=self._offer_publication(is_away=True),
            # Without a session, what was retained meanwhile arrives as well; with one,
            # the session has it, and the older ones were forwarded before.
            retain_handling=RetainHandling.IF_NEW,
        )
        self._is_subscribed = False
        self._connection = connect(session, self)

    @property
    def is_up(self) -> bool:
        """Whether clients' messages arrive now."""
        return self._is_subscribed and self._connection.is_up

    def run(self, heartbeat: Heartbeat) -> None:
        """Serve until `stop`."""
        self._redeliveries.load(self._lanes.stored_states(REDELIVERY_STATE_KEY))
        self._connection.start()
        while (batch := self._inbox.next_batch(self._wait_s())) is not None:
            heartbeat()
            self._add_receipts(self._retries.retry(self._store))
            stored = self._process(batch)
            self._acknowledge(self._inbox.passed)
            self._add_receipts(stored)
            self._send_receipts()

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()
        self._connection.publish(self._offer_publication(is_away=True))
        self._connection.stop()
        self._inbox.close()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        if session_present:
            self._redeliveries.resume()
        else:
            self._forget_redeliveries()
        self._connection.publish(self._offer_publication(is_away=False))

    def _forget_redeliveries(self) -> None:
        """Clear the marks on disk too: a new session uses their packet ids again."""
        self._redeliveries.clear()
        try:
            self._lanes.store_state({
                REDELIVERY_STATE_KEY: self._redeliveries.to_state(())
            })
        except QueueFileError as error:
            log.warning("marks of the lost session stay until the next put: %s", error)
        else:
            self._redeliveries.mark_stored(())

    def on_down(self, reason: str) -> None:
        self._is_subscribed = False
        log.warning("gateway's own broker is gone: %s", reason)

    def on_message(self, message: IncomingMessage) -> None:
        """Add a message to the inbox; block the network thread while that is full."""
        self._received_bytes += PUBLICATION_BYTES + len(message.payload)
        self._inbox.put(ReceivedPublication.parse(message))
        while self._received_bytes - self._passed_bytes > MAX_INBOX_BYTES:
            self._connection.send_heartbeat()
            if self._stopping.wait(SPACE_POLL_S):
                return

    def on_subscribed(self) -> None:
        # Not earlier: the broker discards messages that nothing subscribes to.
        self._is_subscribed = True
        log.info("gateway %s is up on %s", self._id, self._connection.endpoint)

    def _offer_publication(self, *, is_away: bool) -> Publication:
        offer = replace(self._offer, is_offline=is_away)
        return Publication(offer_topic(self._id), offer.encode(), retain=True)

    def _wait_s(self) -> float:
        waits_s = (self.receipts.wait_s(self._clock()), self._retries.wait_s(), IDLE_S)
        return min(wait_s for wait_s in waits_s if wait_s is not None)

    def _process(self, batch: Sequence[ReceivedPublication]) -> list[ParsedMessage]:
        """Store a batch; return the messages that are on disk."""
        new = [p for p in batch if not self._redeliveries.is_stored(p.incoming)]
        if any(p.incoming.is_duplicate for p in new):
            new = _without_copies(new)
        parsed = [message for each in new for message in self._admit(each)]
        return self._store(self.checks.identity_check.filter_genuine(parsed))

    def _acknowledge(self, passed: Sequence[ReceivedPublication]) -> None:
        acknowledged = self._connection.acknowledge(*(p.incoming for p in passed))
        self._passed_bytes += sum(
            PUBLICATION_BYTES + len(p.incoming.payload) for p in passed
        )
        self._redeliveries.discard(acknowledged)

    def _admit(self, publication: ReceivedPublication) -> list[ParsedMessage]:
        """The messages in a publication, if its sender is within the rate limit."""
        incoming, topic = publication
        if isinstance(topic, TopicError):
            self._log_refused(str(topic), 1, cause=TopicError)
            return []
        now_s = self._clock()
        sender = Sender.of(topic, is_urgent=publication.is_urgent)
        if not self.checks.rate_limit.allows(sender, now_s):
            return []
        messages = self._unpack(incoming, sender.name)
        self.checks.rate_limit.charge(sender, incoming, messages, now_s)
        parsed = [self._parse(message, topic) for message in messages]
        return [message for message in parsed if message is not None]

    def _unpack(self, incoming: IncomingMessage, sender: str) -> list[IncomingMessage]:
        if incoming.content is None:
            return [incoming]
        messages = self.checks.crash_guard.decode(
            incoming.topic,
            incoming.payload,
            self._unpacker.unpack,
            incoming,
            sender,
        )
        return messages or []

    def _parse(
        self, message: IncomingMessage, topic: ForwardTopic
    ) -> ParsedMessage | None:
        return self.checks.crash_guard.decode(
            message.topic,
            message.payload,
            parse_publication,
            message,
            topic,
            self._default_priority,
        )

    def _add_receipts(self, stored: Sequence[ParsedMessage]) -> None:
        for message in stored:
            self.receipts.add(message, self._clock())

    def _send_receipts(self) -> None:
        """Publish the receipts that are due, at QoS 0.

        A sender asks again for a receipt that is lost, and an acknowledgement of each
        would cost the link as much as the receipt.
        """
        for topic, receipt in self.receipts.pop_due(self._clock()):
            self._connection.publish(Publication(topic, receipt.encode(), qos=0))

    def _store(self, batch: list[ParsedMessage]) -> list[ParsedMessage]:
        """Store a batch, the most urgent first if not all of it fits.

        Returns:
            The stored messages. The others get no receipt and stay with their senders.
        """
        if held := [message for message in batch if self._retries.must_wait(message)]:
            self._log_refused("more urgent ones come first", len(held))
            kept = {id(message) for message in held}
            batch = [message for message in batch if id(message) not in kept]
        if not batch:
            return []
        marks = {
            id(m.draft): make_mark(m.incoming) for m in batch if m.draft.id is None
        }

        def state_of(drafts: Sequence[MessageDraft]) -> dict[str, str]:
            found = [marks[id(d)] for d in drafts if id(d) in marks]
            return {REDELIVERY_STATE_KEY: self._redeliveries.to_state(found)}

        taken: list[MessageDraft] = []
        refusal: QueueFullError | QueueFileError | None = None
        drafts = [message.draft for message in batch]
        try:
            self._lanes.put(drafts, state_of, taken.extend)
        except (QueueFullError, QueueFileError) as error:
            refusal = error
        ids = set(map(id, taken))
        self._redeliveries.mark_stored(m for at, m in marks.items() if at in ids)
        # Without an id a message that is stored again would be another one.
        rest = [message for message in batch if id(message.draft) not in ids]
        stored = [message for message in batch if id(message.draft) in ids]
        if refusal is not None and rest:
            stored += self._store_rest(rest, refusal)
        elif refusal is not None:
            self._log_refused(f"for a second broker, {refusal}", len(stored))
        return stored

    def _store_rest(
        self, batch: list[ParsedMessage], error: QueueFullError | QueueFileError
    ) -> list[ParsedMessage]:
        """Store what fits of the messages that were refused together."""
        if isinstance(error, QueueShareError):
            refused, others = self._split_by_share(batch, error)
            self._log_refused(str(error), len(refused), cause=error.node)
            return self._store(others)
        if len(batch) == 1:
            self._log_refused(str(error), 1, cause=type(error))
            is_disk_full = isinstance(error, QueueDiskFullError)
            self._retries.add(batch[0], is_disk_full=is_disk_full)
            return []
        urgent_first = sorted(batch, key=lambda message: -message.draft.priority)
        return [stored for each in urgent_first for stored in self._store([each])]

    def _split_by_share(
        self, batch: list[ParsedMessage], error: QueueShareError
    ) -> tuple[list[ParsedMessage], list[ParsedMessage]]:
        """Messages above the share of their node, and the others.

        Refused are the message that did not fit and later ones of its node that are no
        more urgent: each attempt is a transaction, and the alarms of others wait.
        """
        drafts = [message.draft for message in batch]
        first = next(n for n, draft in enumerate(drafts) if draft is error.draft)
        refused: list[ParsedMessage] = []
        others = batch[:first]
        for message in batch[first:]:
            node = message.draft.id.node if message.draft.id else self._id
            is_refused = (
                node == error.node and message.draft.priority <= error.draft.priority
            )
            (refused if is_refused else others).append(message)
        return refused, others

    def _log_refused(self, why: str, count: int, cause: object = None) -> None:
        if (total := self._log_limit.count(str(cause), count)) is not None:
            log.error("%d messages not stored: %s", total, why)

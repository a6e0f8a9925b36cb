"""Ingress: messages that clients publish on the gateway's own broker.

A batch of publications is stored, then acknowledged to the broker, then receipted to
its senders. After a crash in between, senders send again, and the queue drops messages
whose id it has.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edge_agent.queue.base import (
    MessageDraft,
    QueueDiskFullError,
    QueueFileError,
    QueueFullError,
    QueueShareError,
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
from gateway_daemon.gateway.unacknowledged import (
    REDELIVERY_STATE_KEY,
    RedeliveryFilter,
    StorageRetries,
    make_mark,
    without_copies,
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

MAX_INBOX_BYTES = 32 * 2**20
"""Most memory of publications that are not stored yet, about 60,000 small ones. The
others stay with the broker, where an urgent one cannot overtake them; therefore so
many. Mosquitto ignores the receive maximum with ``max_inflight_messages 0``."""

PUBLICATION_BYTES = 350
"""Memory of a publication beside its payload."""

SPACE_POLL_S = 0.01

GATHER_RECEIPTS_S = 1.0
"""Delay of a receipt for batching; senders ask again much later."""

MAX_GATHERED = 64

Connect = Callable[[Session, ConnectionHandler], Connection]


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
        self._retries = StorageRetries()
        self._withheld: list[IncomingMessage] = []
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
            self._retry()
            stored = self._process(batch)
            self._acknowledge(self._inbox.passed)
            self._add_receipts(stored)
            self._send_receipts()

    def _retry(self) -> None:
        stored = self._retries.retry(self._store)
        if stored:
            log.info("%d messages that waited for space are stored", len(stored))
        self._add_receipts(stored)

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
            new = without_copies(new)
            new = [p for p in new if not self._retries.adopt(p.incoming)]
        parsed = [message for each in new for message in self._admit(each)]
        return self._store(self.checks.identity_check.filter_genuine(parsed))

    def _acknowledge(self, passed: Sequence[ReceivedPublication]) -> None:
        """Acknowledge all publications but those whose message waits for space."""
        waiting, held = self._withheld, self._retries.deliveries
        waiting += (publication.incoming for publication in passed)
        self._withheld = [each for each in waiting if each.delivery in held]
        ended = (each for each in waiting if each.delivery not in held)
        acknowledged = self._connection.acknowledge(*ended)
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
            The stored messages. The others get no receipt and stay with their senders,
            or wait in `_retries`.
        """
        if held := [message for message in batch if self._retries.must_wait(message)]:
            self._log_refused("more urgent ones come first", len(held))
            for message in held:
                self._retries.add(message)
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

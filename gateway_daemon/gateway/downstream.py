"""The way back: what distributed brokers hold for our clients goes to our broker.

Each broker is listened to with a lasting session. What arrives is stored, which
drops what came before by its id, then acknowledged, then published on our own
broker in priority order by an uplink like any other.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_agent.queue.base import Draft, QueueFileError, QueueFullError
from edge_agent.queue.inspection import depth_words
from gateway_daemon.gateway.egress import Fill, Lane
from gateway_daemon.gateway.ingress_buffers import URGENT_FROM, Inbox
from gateway_daemon.gateway.ingress_messages import delivered
from gateway_daemon.gateway.subscriptions import asked_of
from service_runtime.lifecycle import start_loop
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Beat, Pulse
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import Offer
from spatial_mqtt.directory import BrokerInfo, BrokerTable
from spatial_mqtt.topics import is_of_the_system, offer_topic
from spatial_mqtt.transport import ConnectionHandler, Incoming, Publication, Session

log = logging.getLogger(__name__)

RECEIVE_MAXIMUM = 1000
SESSION_EXPIRY_S = 7 * 86_400
RETRY_S = 2.0
IDLE_S = 5.0
"""Longest wait between two beats."""

SILENCE_S = 60.0

Connect = Callable[[Endpoint, Session, ConnectionHandler], Connection]


@dataclass(frozen=True)
class Came:
    """A message of a distributed broker, and through which ear it came."""

    message: Incoming
    ear: "Ear"


class Ear:
    """Listens to one distributed broker for as long as somebody wants to.

    It retains an offer there that gives no receipts: who publishes must name its
    messages, or what is sent twice would be delivered twice, and their priority.

    Args:
        gateway_id: Names the lasting session and the offer.
        endpoint: The broker.
        connect: Makes connections.
        heard: Takes what arrives; called in the network thread.
        settled: Called when the broker has confirmed what was asked.
    """

    def __init__(
        self,
        gateway_id: str,
        endpoint: Endpoint,
        connect: Connect,
        heard: Callable[[Came], object],
        settled: Callable[[], object],
    ) -> None:
        self._heard = heard
        self._settled = settled
        self._lock = threading.Lock()
        self._filters: frozenset[str] = frozenset()
        self._confirmed: frozenset[str] | None = None
        self._asked: list[frozenset[str]] = []
        offer = Offer(gateway_id, filters=()).encode()
        self._offer = Publication(offer_topic(gateway_id), offer, retain=True)
        session = Session(
            f"{gateway_id}-ear",
            expiry_s=SESSION_EXPIRY_S,
            manual_ack=True,
            receive_maximum=RECEIVE_MAXIMUM,
        )
        self._connection = connect(endpoint, session, self)
        self._connection.start()

    @property
    def is_settled(self) -> bool:
        """Whether the broker has confirmed all that we want."""
        with self._lock:
            return not self._filters or self._confirmed == self._filters

    def want(self, filters: frozenset[str]) -> None:
        """Listen to these from now on, and to nothing else."""
        with self._lock:
            new, gone = filters - self._filters, self._filters - filters
            self._filters = filters
            if new:
                self._asked.append(filters)
            elif gone:
                self._confirmed = filters if self._confirmed is not None else None
        self._connection.subscribe([(each, 1) for each in sorted(new)])
        self._connection.unsubscribe(sorted(gone))

    def acknowledge(self, *messages: Incoming) -> None:
        """Let the broker forget messages."""
        self._connection.acknowledge(*messages)

    def stop(self) -> None:
        """Disconnect; the broker keeps what comes."""
        self._connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """Subscribe to every filter again: the broker may have lost the session."""
        with self._lock:
            filters = self._filters
            self._asked = [filters] if filters else []
        self._connection.publish(self._offer)
        self._connection.subscribe([(each, 1) for each in sorted(filters)])

    def on_down(self, reason: str) -> None:
        with self._lock:
            self._confirmed = None
            self._asked = []

    def on_message(self, message: Incoming) -> None:
        self._heard(Came(message, self))

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        with self._lock:
            if self._asked:
                self._confirmed = self._asked.pop(0)
            told = ", ".join(sorted(self._confirmed or ()))
        log.info("%s is listened to for %s", self._connection.endpoint, told)
        self._settled()


class Deliveries:
    """Moves what our clients listen to from the brokers to our own one.

    Args:
        gateway_id: Names the sessions.
        connect: Makes connections to distributed brokers.
        lane: The queue towards our own broker, and its uplink.
        own: Our own broker: what is there needs no carrying.
        default_priority: Priority of a message that carries none.
        pulse: Listens to our uplink's loop.

    Attributes:
        on_settled: Called when a broker confirmed something, in a network thread.
    """

    def __init__(
        self,
        gateway_id: str,
        connect: Connect,
        lane: Lane,
        own: Endpoint,
        *,
        default_priority: int,
        pulse: Pulse,
    ) -> None:
        self._pulse = pulse
        self._id = gateway_id
        self._connect = connect
        self._lane = lane
        self._own = own
        self._default_priority = default_priority
        self.on_settled: Callable[[], object] = lambda: None
        self._inbox: Inbox[Came] = Inbox(
            pulse.clock, lambda came: (came.message.priority or 0) >= URGENT_FROM
        )
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._ears: dict[BrokerInfo, Ear] = {}
        self._filters: frozenset[str] = frozenset()
        self._tables: tuple[BrokerTable, ...] = ()

    def run(self, beat: Beat) -> None:
        """Serve until `stop`."""
        uplink = self._lane.uplink
        if uplink is not None:
            start_loop(self._pulse, "local", SILENCE_S, uplink.run)
            uplink.use(self._own)
        while (batch := self._inbox.batch(IDLE_S)) is not None:
            beat()
            self._serve(batch, beat)

    def stop(self) -> None:
        """End `run`; brokers keep what comes meanwhile."""
        self._stopping.set()
        with self._lock:
            for ear in self._ears.values():
                ear.stop()
        self._inbox.close()

    def close(self) -> None:
        """Close the store, after `run` ended."""
        if self._lane.uplink is not None:
            self._lane.uplink.stop()
        self._lane.queue.close()

    def take(self, drafts: Sequence[Draft]) -> bool:
        """Store what came another way; whether it is on disk."""
        is_stored = self._is_stored(drafts)
        if is_stored and self._lane.uplink is not None:
            self._lane.uplink.wake()
        return is_stored

    def listen(self, filters: frozenset[str]) -> None:
        """Our clients listen to these."""
        with self._lock:
            self._filters = filters
            self._ask()

    def use(self, *tables: BrokerTable) -> None:
        """Listen by these tables: by the old and the new one until all have the new.

        Make before break: between the two nothing is missed, and what comes twice
        is dropped by its id.
        """
        with self._lock:
            self._tables = tables
            self._ask()

    @property
    def is_settled(self) -> bool:
        """Whether every broker of the newest table confirmed what we listen to."""
        with self._lock:
            newest = self._tables[-1].brokers if self._tables else ()
            ears = (self._ears.get(entry.broker_info) for entry in newest)
            return all(ear is None or ear.is_settled for ear in ears)

    def status(self) -> str:
        """What waits for our own broker, in words."""
        return depth_words(self._lane.queue.stats(), self._lane.queue.oldest_s())

    def fill(self) -> Fill:
        """What waits for our own broker."""
        queue, uplink = self._lane.queue, self._lane.uplink
        is_up = uplink is not None and uplink.down_since_s is None
        return Fill(queue.stats(), queue.ages_s(), is_up)

    def _ask(self) -> None:
        asked: dict[BrokerInfo, frozenset[str]] = {}
        for table in self._tables:
            for broker, filters in asked_of(self._filters, table).items():
                asked[broker] = asked.get(broker, frozenset()) | filters
        for broker in asked.keys() | self._ears.keys():
            wanted = asked.get(broker, frozenset())
            ear = self._ears.get(broker)
            if ear is None and wanted and not self._is_own(broker):
                ear = self._ears[broker] = self._new_ear(broker)
            if ear is not None:
                ear.want(wanted)
        for broker in self._ears.keys() - asked.keys():
            gone = self._ears.pop(broker)
            gone.want(frozenset())
            gone.stop()

    def _new_ear(self, broker: BrokerInfo) -> Ear:
        endpoint = Endpoint(broker.host, broker.port, self._own.tls)
        return Ear(
            self._id,
            endpoint,
            self._connect,
            self._inbox.put,
            lambda: self.on_settled(),  # noqa: PLW0108 - may change
        )

    def _is_own(self, broker: BrokerInfo) -> bool:
        return (broker.host, broker.port) == (self._own.host, self._own.port)

    def _serve(self, batch: Sequence[Came], beat: Beat) -> None:
        drafts = [
            delivered(came.message, self._default_priority)
            for came in batch
            if not is_of_the_system(came.message.topic)
        ]
        while drafts and not self._is_stored(drafts):
            beat()
            if self._stopping.wait(RETRY_S):
                return  # unacknowledged: the broker delivers them again
        for ear in {came.ear for came in batch}:
            ear.acknowledge(*(came.message for came in batch if came.ear is ear))
        if batch and self._lane.uplink is not None:
            self._lane.uplink.wake()

    def _is_stored(self, drafts: Sequence[Draft]) -> bool:
        try:
            self._lane.queue.put(drafts)
        except (QueueFullError, QueueFileError) as error:
            log.error("%d deliveries are not taken: %s", len(drafts), error)  # noqa: TRY400
            return False
        return True

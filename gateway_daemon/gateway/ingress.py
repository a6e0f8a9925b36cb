"""The front of a gateway: its own broker, where clients publish.

A batch of publications is stored, then acknowledged to the broker, then
receipted to its senders. A crash anywhere in between makes senders send again,
and the queue knows the ids.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edge_agent.queue.base import (
    Draft,
    QueueDiskFullError,
    QueueFileError,
    QueueFullError,
)
from gateway_daemon.gateway.admission import Allowance, Impostors
from gateway_daemon.gateway.egress import Lanes
from gateway_daemon.gateway.ingress_buffers import (
    UNACKNOWLEDGED,
    URGENT_FROM,
    Inbox,
    Receipts,
    Redelivered,
    Waiting,
)
from gateway_daemon.gateway.ingress_messages import (
    READS,
    Opener,
    Taken,
    take,
    told_priority,
)
from service_runtime.watchdog import Beat
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import Offer
from spatial_mqtt.topics import FORWARD_FILTER, FROM_FILTER, offer_topic
from spatial_mqtt.transport import ConnectionHandler, Incoming, Publication, Session

log = logging.getLogger(__name__)

RECEIVE_MAXIMUM = 1000
SESSION_EXPIRY_S = 7 * 86_400
IDLE_S = 5.0
"""Longest wait between two beats."""

Connect = Callable[[Session, ConnectionHandler], Connection]


@dataclass(frozen=True)
class Guards:
    """Who stands at the door.

    Attributes:
        allowance: How much each sender may send.
        impostors: Who says another's name.
    """

    allowance: Allowance
    impostors: Impostors


class Front:
    """Takes what clients publish into the lanes.

    Args:
        gateway_id: Names the gateway's session and its offer of receipts.
        connect: Makes the connection to the gateway's own broker.
        lanes: Where messages are stored.
        default_priority: Priority of a publication that carries none.
        clock: Monotonic seconds.
        guards: Who stands at the door.
    """

    def __init__(
        self,
        gateway_id: str,
        connect: Connect,
        lanes: Lanes,
        default_priority: int,
        clock: Callable[[], float],
        *,
        guards: Guards,
    ) -> None:
        self._clock = clock
        self._id = gateway_id
        self._lanes = lanes
        self._default_priority = default_priority
        self._inbox: Inbox[Incoming] = Inbox(
            clock, lambda message: told_priority(message) >= URGENT_FROM
        )
        self._offer = Offer(gateway_id, (FORWARD_FILTER,), READS)
        self._opener = Opener()
        self._allowance = guards.allowance
        self._impostors = guards.impostors
        self._receipts = Receipts()
        self._redelivered = Redelivered()
        self._waiting = Waiting()
        session = Session(
            gateway_id,
            filters=((FORWARD_FILTER, 1), (FROM_FILTER, 1)),
            expiry_s=SESSION_EXPIRY_S,
            manual_ack=True,
            receive_maximum=RECEIVE_MAXIMUM,
            will=self._offering(is_away=True),  # our broker says it when we die
        )
        self._is_subscribed = False
        self._connection = connect(session, self)

    @property
    def is_up(self) -> bool:
        """Whether clients' messages reach us now."""
        return self._is_subscribed and self._connection.is_up

    @property
    def receipted(self) -> int:
        """Messages that were receipted since our start."""
        return self._receipts.given

    @property
    def put_aside(self) -> int:
        """Publications beyond their sender's allowance, since our start."""
        return self._allowance.put_aside

    @property
    def impostors(self) -> int:
        """Messages under another's name, since our start."""
        return self._impostors.count

    def run(self, beat: Beat) -> None:
        """Serve until `stop`."""
        self._redelivered.recall(self._lanes.recall(UNACKNOWLEDGED))
        self._connection.start()
        while (batch := self._inbox.batch(self._wait_s())) is not None:
            beat()
            self._receipt(self._waiting.stored(self._store))
            self._serve(batch)
            self._give_receipts()

    def stop(self) -> None:
        """End `run`."""
        self._connection.publish(self._offering(is_away=True))
        self._connection.stop()
        self._inbox.close()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        if not session_present:
            self._redelivered.forget()
        self._connection.publish(self._offering(is_away=False))

    def _offering(self, *, is_away: bool) -> Publication:
        offer = replace(self._offer, is_away=is_away)
        return Publication(offer_topic(self._id), offer.encode(), retain=True)

    def on_down(self, reason: str) -> None:
        self._is_subscribed = False
        log.warning("gateway's own broker is gone: %s", reason)

    def on_message(self, message: Incoming) -> None:
        self._inbox.put(message)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`: before, a first message would find nobody."""
        self._is_subscribed = True
        log.info("gateway %s is up on %s", self._id, self._connection.endpoint)

    def _wait_s(self) -> float:
        waits_s = (self._receipts.wait_s(self._clock()), self._waiting.wait_s(), IDLE_S)
        return min(wait_s for wait_s in waits_s if wait_s is not None)

    def _serve(self, batch: Sequence[Incoming]) -> None:
        fresh = [m for m in batch if not self._redelivered.is_stored(m)]
        opened = self._open(fresh)
        taken = [take(message, self._default_priority) for message in opened]
        stored = self._store(self._impostors.turn_away(taken))
        self._redelivered.acknowledge(self._connection.acknowledge(*batch))
        self._receipt(stored)

    def _receipt(self, stored: Sequence[Taken]) -> None:
        for each in stored:
            self._receipts.add(each, self._clock())

    def _open(self, fresh: Sequence[Incoming]) -> list[Incoming]:
        """The messages in what the senders' allowances let in."""
        now_s = self._clock()
        opened: list[Incoming] = []
        for message in fresh:
            if self._allowance.lets_in(message, now_s):
                more = self._opener.open([message])
                self._allowance.charge(message, len(more), now_s)
                opened += more
        return opened

    def _give_receipts(self) -> None:
        """Answer the senders, unless it can wait for more to answer.

        At QoS 0: a receipt that is lost with the link is asked for again, and an
        acknowledgement of each would cost the link as much as the receipt.
        """
        for topic, receipt in self._receipts.due(self._clock()):
            self._connection.publish(Publication(topic, receipt.encode(), qos=0))

    def _store(self, batch: list[Taken]) -> list[Taken]:
        """Store a batch; what does not fit stays with its sender, unreceipted.

        The urgent first where there is no room for all.
        """
        if held := [taken for taken in batch if self._waiting.holds_back(taken)]:
            log.error("%d not taken: urgent ones wait for room first", len(held))
            batch = [taken for taken in batch if taken not in held]
        if not batch:
            return []
        nameless = {id(t.draft): t.nameless for t in batch if t.nameless is not None}

        def state_of(drafts: Sequence[Draft]) -> dict[str, str]:
            found = [nameless[id(d)] for d in drafts if id(d) in nameless]
            return {UNACKNOWLEDGED: self._redelivered.text(found)}

        try:
            self._lanes.put([taken.draft for taken in batch], state_of)
        except (QueueFullError, QueueFileError) as error:
            if len(batch) == 1:
                log.error("not taken on %s: %s", batch[0].draft.topic, error)  # noqa: TRY400
                is_disk_full = isinstance(error, QueueDiskFullError)
                self._waiting.add(batch[0], is_disk_full=is_disk_full)
                return []
            urgent_first = sorted(batch, key=lambda taken: -taken.draft.priority)
            return [taken for each in urgent_first for taken in self._store([each])]
        self._redelivered.store(nameless.values())
        return batch

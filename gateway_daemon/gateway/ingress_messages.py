"""From a client's publication to a draft for the queue. No I/O.

A message that carries an envelope keeps the id its node gave it; any other
payload (a plain MQTT client's) gets an id of this gateway and the default
priority, unless its topic names one.

Opens what our own nodes pack: parcels and chunks become the messages in them.

What cannot be opened is no message; it is named in the log and let go, and its
sender, who gets no receipt, is asked for it no more than any silent one.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from edge_agent.queue.base import Draft
from spatial_mqtt.batching import Chunk, Joiner, decode_parcel
from spatial_mqtt.custody import receipt_topic
from spatial_mqtt.errors import EnvelopeError, ParcelError, TopicError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, decode_id
from spatial_mqtt.topics import CHUNK, PARCEL, Forward
from spatial_mqtt.transport import Incoming


@dataclass(frozen=True)
class Taken:
    """A message on its way into the gateway's store.

    Attributes:
        draft: What the queue stores; its topic is the one subscribers see.
        receipt_topic: Where its sender waits for the receipt; None when the
            sender named neither itself nor its message.
        incoming: The publication.
        by: Who published it, by its certificate; None where nobody has one.
    """

    draft: Draft
    receipt_topic: str | None
    incoming: Incoming
    by: str | None = None

    @property
    def nameless(self) -> Incoming | None:
        """The publication, when it has no id but the one it gets here."""
        return self.incoming if self.draft.id is None else None


def take(incoming: Incoming, default_priority: int) -> Taken:
    """Turn a ``/forward`` or ``/from`` publication into a draft.

    Raises:
        TopicError: The topic is under neither.
    """
    forward = Forward.parse(incoming.topic)
    message_id, priority = _named(incoming)
    payload = incoming.payload
    draft = Draft(
        priority=forward.priority or priority or default_priority,
        topic=forward.topic,
        encode=lambda _id: payload,
        id=message_id,
        age_s=incoming.age_s or 0.0,
    )
    if message_id is None:
        return Taken(draft, None, incoming, forward.by)
    where = receipt_topic(message_id, incoming.response_topic)
    return Taken(draft, where, incoming, forward.by)


def delivered(incoming: Incoming, default_priority: int) -> Draft:
    """Turn a distributed broker's message into a draft for our own broker."""
    message_id, priority = _named(incoming)
    payload = incoming.payload
    return Draft(
        priority=_on_the_ladder(incoming.priority) or priority or default_priority,
        topic=incoming.topic,
        encode=lambda _id: payload,
        id=message_id,
        age_s=incoming.age_s or 0.0,
    )


def told_priority(incoming: Incoming) -> int:
    """The priority that topic or properties tell, 0 when neither does: a first look."""
    try:
        forward = Forward.parse(incoming.topic)
    except TopicError:
        return incoming.priority or 0
    return forward.priority or incoming.priority or 0


def _named(incoming: Incoming) -> tuple[MessageId | None, int | None]:
    """Id and priority that the sender gave, in the envelope or as properties."""
    try:
        return decode_id(incoming.payload)
    except EnvelopeError:
        pass
    priority = _on_the_ladder(incoming.priority)
    try:
        return MessageId.parse(incoming.message_id or ""), priority
    except EnvelopeError:
        return None, priority


def _on_the_ladder(priority: int | None) -> int | None:
    """Anybody may publish any number; one that says nothing is as good as none."""
    return priority if priority in LADDER.descending() else None


log = logging.getLogger(__name__)

READS = (PARCEL, CHUNK)
"""Content types that a gateway offers to read."""


class Opener:
    """Remembers the pieces of large messages until they are whole."""

    def __init__(self) -> None:
        self._joiner = Joiner()

    def open(self, batch: Iterable[Incoming]) -> list[Incoming]:
        """The messages in some publications, in their order."""
        return [message for each in batch for message in self._opened(each)]

    def _opened(self, incoming: Incoming) -> list[Incoming]:
        try:
            if incoming.content == PARCEL:
                return [
                    incoming._replace(payload=i.payload, age_s=i.age_s, content=None)
                    for i in decode_parcel(incoming.payload)
                ]
            if incoming.content == CHUNK:
                chunk = Chunk.decode(incoming.payload)
                whole = self._joiner.add(incoming.topic, chunk)
                if whole is None:
                    return []
                return [incoming._replace(payload=whole, content=None)]
        except ParcelError as error:
            log.error("not opened on %s: %s", incoming.topic, error)  # noqa: TRY400
            return []
        return [incoming]

"""Conversion of MQTT publications into drafts for the queue, without I/O.

A message in an envelope keeps the id of its node. Any other payload (from a plain MQTT
client) gets an id of this gateway and the default priority, unless its topic or its
properties give one.
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

log = logging.getLogger(__name__)

READS = (PARCEL, CHUNK)
"""Content types that `Unpacker` reads, as the gateway's offer lists them."""


@dataclass(frozen=True)
class Taken:
    """A message on its way into the gateway's store.

    Attributes:
        draft: What the queue stores; its topic is the one subscribers see.
        receipt_topic: Topic of the receipt; None when the sender gave no id.
        incoming: The publication.
        publisher_id: Certificate name of the publisher; None where clients have none.
    """

    draft: Draft
    receipt_topic: str | None
    incoming: Incoming
    publisher_id: str | None = None

    @property
    def publication_without_id(self) -> Incoming | None:
        """The publication, when the sender gave no id."""
        return self.incoming if self.draft.id is None else None


def take(incoming: Incoming, default_priority: int) -> Taken:
    """Convert a publication under ``/forward`` or ``/from``.

    Raises:
        TopicError: The topic is under neither.
    """
    forward = Forward.parse(incoming.topic)
    draft = _draft(incoming, forward.topic, forward.priority, default_priority)
    where = None
    if draft.id is not None:
        where = receipt_topic(draft.id, incoming.response_topic)
    return Taken(draft, where, incoming, forward.publisher)


def delivered(incoming: Incoming, default_priority: int) -> Draft:
    """Convert a distributed broker's message into a draft for the own broker."""
    priority = _valid_priority(incoming.priority)
    return _draft(incoming, incoming.topic, priority, default_priority)


def told_priority(incoming: Incoming) -> int:
    """Priority in the topic or the properties, 0 without one; not validated."""
    try:
        forward = Forward.parse(incoming.topic)
    except TopicError:
        return incoming.priority or 0
    return forward.priority or incoming.priority or 0


def _draft(
    incoming: Incoming, topic: str, priority: int | None, default_priority: int
) -> Draft:
    message_id, sender_priority = _id_and_priority(incoming)
    payload = incoming.payload
    return Draft(
        priority=priority or sender_priority or default_priority,
        topic=topic,
        encode=lambda _id: payload,
        id=message_id,
        age_s=incoming.age_s or 0.0,
    )


def _id_and_priority(incoming: Incoming) -> tuple[MessageId | None, int | None]:
    """Id and priority that the sender gave, in the envelope or as properties."""
    try:
        return decode_id(incoming.payload)
    except EnvelopeError:
        pass
    priority = _valid_priority(incoming.priority)
    try:
        return MessageId.parse(incoming.message_id or ""), priority
    except EnvelopeError:
        return None, priority


def _valid_priority(priority: int | None) -> int | None:
    """The priority, or None if it is not on the ladder."""
    return priority if priority in LADDER.descending() else None


class Opener:
    """Unpacks batches and joins fragments into the messages they contain.

    A publication that cannot be decoded is logged and dropped. Its sender gets no
    receipt and will send it again.
    """

    def __init__(self) -> None:
        self._joiner = Joiner()

    def unpack(self, batch: Iterable[Incoming]) -> list[Incoming]:
        """Return the messages in some publications, in their order."""
        return [message for each in batch for message in self._unpack(each)]

    def _unpack(self, incoming: Incoming) -> list[Incoming]:
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
            log.error("cannot unpack %s: %s", incoming.topic, error)  # noqa: TRY400
            return []
        return [incoming]

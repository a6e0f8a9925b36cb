"""Conversion of MQTT publications into drafts for the queue, without I/O.

A message in an envelope keeps the id of its node. Any other payload (from a plain MQTT
client) gets an id of this gateway and the default priority, unless its topic or its
properties give one.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from edge_agent.queue.base import MessageDraft
from service_runtime.crash_guard import CrashGuard
from service_runtime.log_limit import LogLimit
from spatial_mqtt.batching import Fragment, FragmentJoiner, decode_batch
from spatial_mqtt.custody import receipt_topic
from spatial_mqtt.errors import BatchError, EnvelopeError, TopicError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, decode_message_id, may_be_pack
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT, ForwardTopic
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)

CONTENT_TYPES = (BATCH_CONTENT, FRAGMENT_CONTENT)
"""Content types that `Unpacker` reads, as the gateway's offer lists them."""


class ReceivedPublication(NamedTuple):
    """A publication as it arrived from a client.

    Attributes:
        incoming: The publication.
        topic: Its topic, or the reason why it is not valid.
    """

    incoming: IncomingMessage
    topic: ForwardTopic | TopicError

    @classmethod
    def parse(cls, incoming: IncomingMessage) -> "ReceivedPublication":
        """Parse the topic."""
        try:
            return cls(incoming, ForwardTopic.parse(incoming.topic))
        except TopicError as error:
            return cls(incoming, error)

    @property
    def is_urgent(self) -> bool:
        """Whether its topic or its properties have an urgent priority."""
        if isinstance(self.topic, TopicError):
            return False
        return LADDER.is_urgent(self.topic.priority or self.incoming.priority or 0)


@dataclass(frozen=True)
class ParsedMessage:
    """A message on its way into the gateway's store.

    Attributes:
        draft: What the queue stores; its topic is the one subscribers see.
        receipt_topic: Topic of the receipt; None when the sender gave no id.
        incoming: The publication.
        publisher_id: Certificate name of the publisher; None where clients have none.
    """

    draft: MessageDraft
    receipt_topic: str | None
    incoming: IncomingMessage
    publisher_id: str | None = None

    @property
    def publication_without_id(self) -> IncomingMessage | None:
        """The publication, when the sender gave no id."""
        return self.incoming if self.draft.id is None else None


def parse_publication(
    incoming: IncomingMessage, topic: ForwardTopic, default_priority: int
) -> ParsedMessage:
    """Convert a publication on a topic under ``/forward`` or ``/from``."""
    draft = _draft(incoming, topic.topic, topic.priority, default_priority)
    where = None
    if draft.id is not None:
        where = receipt_topic(draft.id, incoming.response_topic)
    return ParsedMessage(draft, where, incoming, topic.publisher)


def parse_delivery(incoming: IncomingMessage, default_priority: int) -> MessageDraft:
    """Convert a distributed broker's message into a draft for the own broker."""
    priority = _valid_priority(incoming.priority)
    return _draft(incoming, incoming.topic, priority, default_priority)


@dataclass(frozen=True)
class DeliveryParser:
    """Parses messages of distributed brokers.

    Attributes:
        default_priority: Priority of a message that carries none.
        crash_guard: Puts messages aside that ended the gateway twice.
    """

    default_priority: int
    crash_guard: CrashGuard

    def parse(self, message: IncomingMessage) -> MessageDraft | None:
        """The draft of a message; None if it is put aside."""
        return self.crash_guard.decode(
            message.topic,
            message.payload,
            lambda: parse_delivery(message, self.default_priority),
        )


def _draft(
    incoming: IncomingMessage, topic: str, priority: int | None, default_priority: int
) -> MessageDraft:
    message_id, sender_priority = _id_and_priority(incoming)
    payload = incoming.payload
    return MessageDraft(
        priority=priority or sender_priority or default_priority,
        topic=topic,
        encode=lambda _id: payload,
        id=message_id,
        age_s=incoming.age_s or 0.0,
    )


def _id_and_priority(incoming: IncomingMessage) -> tuple[MessageId | None, int | None]:
    """Id and priority that the sender gave, in the envelope or as properties."""
    if may_be_pack(incoming.payload):
        with suppress(EnvelopeError):
            return decode_message_id(incoming.payload)
    message_id = None
    if incoming.message_id is not None:
        with suppress(EnvelopeError):
            message_id = MessageId.parse(incoming.message_id)
    return message_id, _valid_priority(incoming.priority)


def _valid_priority(priority: int | None) -> int | None:
    """The priority, or None if it is not on the ladder."""
    return priority if priority in LADDER.descending() else None


class Unpacker:
    """Unpacks batches and joins fragments into the messages they contain.

    A publication that cannot be decoded is logged and dropped. Its sender gets no
    receipt and will send it again.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._joiner = FragmentJoiner()
        self._log_limit = LogLimit(clock)

    def unpack(self, incoming: IncomingMessage) -> list[IncomingMessage]:
        """Return the messages that a publication contains or completes, in order."""
        try:
            if incoming.content == BATCH_CONTENT:
                return [
                    incoming._replace(payload=i.payload, age_s=i.age_s, content=None)
                    for i in decode_batch(incoming.payload)
                ]
            if incoming.content == FRAGMENT_CONTENT:
                chunk = Fragment.decode(incoming.payload)
                whole = self._joiner.add(incoming.topic, chunk)
                if whole is None:
                    return []
                return [incoming._replace(payload=whole, content=None)]
        except BatchError as error:
            cause = incoming.topic, incoming.content
            if (count := self._log_limit.count(cause)) is not None:
                log.error(  # noqa: TRY400 - no bug
                    "cannot unpack %s (%d times): %s", incoming.topic, count, error
                )
            return []
        return [incoming]

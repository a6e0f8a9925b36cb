"""One message on its way from the broker to the log: what custody must know."""

from typing import NamedTuple

from backend_spark.ingest.log import LogRow
from spatial_mqtt.envelope import MessageId, decode_id
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.link import Incoming
from spatial_mqtt.priority import LADDER

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

"""Packets between forwarders, and the actions that a forwarder returns."""

from dataclasses import dataclass
from typing import Generic, NamedTuple

from gateway_daemon.overlay.partition import K


class RankedNode(NamedTuple, Generic[K]):
    """A node and its estimated position.

    Attributes:
        key: Its key.
        position: Subscribers between the start of the list and it; an estimate.
    """

    key: K
    position: int


@dataclass(frozen=True)
class OverlayMessage:
    """A published message.

    Attributes:
        id: Unique; a node delivers it once.
        priority: Of the ladder.
        payload: Opaque.
    """

    id: str
    priority: int
    payload: bytes = b""


@dataclass(frozen=True)
class MessageCopy(Generic[K]):
    """A message with the range that the receiver is responsible for.

    Attributes:
        number: The sender's number of this copy, repeated in receipts.
        message: The message.
        low: First key of the range.
        high: First key after it.
        share: Estimated subscribers in it.
        tree: Index among the message's trees, 0 the first.
    """

    number: int
    message: OverlayMessage
    low: K
    high: K
    share: int
    tree: int = 0


@dataclass(frozen=True)
class CopyReceipt:
    """The copy has arrived; the receiver is now responsible for its range."""

    number: int


@dataclass(frozen=True)
class RangeReport(Generic[K]):
    """The range is finished. Serves as a receipt as well.

    Attributes:
        number: Of the copy.
        count: Subscribers that were reached in the range.
        sample: Some of them, evenly spaced, always including the first.
        is_whole: Whether all of these have stored the message, and no part of the range
            was given up.
    """

    number: int
    count: int
    sample: tuple[RankedNode[K], ...]
    is_whole: bool = True


ForwarderPacket = MessageCopy[K] | CopyReceipt | RangeReport[K]


class SendPacket(NamedTuple, Generic[K]):
    """An action: send a packet.

    Attributes:
        to: Receiver.
        packet: The packet.
        reported_id: Message that a `RangeReport` is about; otherwise empty.
    """

    to: K
    packet: ForwarderPacket[K]
    reported_id: str = ""


class DeliverMessage(NamedTuple):
    """An action: deliver the message to the gateway's own subscribers."""

    message: OverlayMessage


class PublicationDone(NamedTuple, Generic[K]):
    """An action: report the end of a publication to the publisher.

    Attributes:
        publication: The copy that was published.
        reached: Subscribers that were reached.
        is_complete: Whether all of them have stored it, and no node was given up.
    """

    publication: MessageCopy[K]
    reached: int
    is_complete: bool


ForwarderAction = SendPacket[K] | DeliverMessage | PublicationDone[K]

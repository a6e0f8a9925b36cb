"""Packets between forwarders, and the actions that a forwarder returns."""

from dataclasses import dataclass
from typing import Generic, NamedTuple

from gateway_daemon.overlay.partition import K


class Placed(NamedTuple, Generic[K]):
    """A node and its estimated position.

    Attributes:
        key: Its key.
        position: Subscribers between the start of the list and it; an estimate.
    """

    key: K
    position: int


@dataclass(frozen=True)
class Message:
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
class Copy(Generic[K]):
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
    message: Message
    low: K
    high: K
    share: int
    tree: int = 0


@dataclass(frozen=True)
class Receipt:
    """The copy has arrived; the receiver is now responsible for its range."""

    number: int


@dataclass(frozen=True)
class Report(Generic[K]):
    """The range is finished. Serves as a receipt as well.

    Attributes:
        number: Of the copy.
        count: Subscribers that were reached in the range.
        sample: Some of them, evenly spaced, always including the first.
        is_whole: Whether no part of the range was given up.
    """

    number: int
    count: int
    sample: tuple[Placed[K], ...]
    is_whole: bool = True


Packet = Copy[K] | Receipt | Report[K]


class Send(NamedTuple, Generic[K]):
    """An action: send a packet."""

    to: K
    packet: Packet[K]


class Deliver(NamedTuple):
    """An action: deliver the message to the gateway's own subscribers."""

    message: Message


class Done(NamedTuple, Generic[K]):
    """An action: report the end of a publication to the publisher.

    Attributes:
        publication: The copy that was published.
        reached: Subscribers that were reached.
        is_complete: Whether no node was given up.
    """

    publication: Copy[K]
    reached: int
    is_complete: bool


Action = Send[K] | Deliver | Done[K]

"""Packets between forwarders, and the actions that a forwarder returns."""

from dataclasses import dataclass
from typing import Generic, NamedTuple

from gateway_daemon.overlay.partition import K


class Placed(NamedTuple, Generic[K]):
    """A node and how many places away it is.

    Attributes:
        key: Its key.
        place: Subscribers between where the list begins and it; an estimate.
    """

    key: K
    place: int


@dataclass(frozen=True)
class Message:
    """What is published.

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
    """A message, with the range that the receiver answers for.

    Attributes:
        number: The sender's own number of this copy; receipts name it.
        message: What.
        low: First key of the range.
        high: First key behind it.
        share: Subscribers that the sender believes to be in it.
        tree: Which of the message's trees, 0 the first.
    """

    number: int
    message: Message
    low: K
    high: K
    share: int
    tree: int = 0


@dataclass(frozen=True)
class Receipt:
    """The copy has arrived; who sends this answers for its range now."""

    number: int


@dataclass(frozen=True)
class Report(Generic[K]):
    """The whole range has the message. It is a receipt as well.

    Attributes:
        number: Of the copy.
        count: Subscribers that were reached in the range.
        sample: Some of them, evenly spaced, the first always among them.
        is_whole: Whether nothing of the range had to be given up.
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
    """An action: hand the message to the gateway's own subscribers."""

    message: Message


class Done(NamedTuple, Generic[K]):
    """An action: tell the publisher that a publication has come to its end.

    Attributes:
        own: What was published.
        reached: Subscribers that were reached.
        is_whole: Whether nobody had to be given up.
    """

    own: Copy[K]
    reached: int
    is_whole: bool


Action = Send[K] | Deliver | Done[K]

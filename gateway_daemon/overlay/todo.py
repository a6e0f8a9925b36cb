"""What goes into a node of the overlay and what comes out of it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gateway_daemon.overlay.errors import OverlayError
from gateway_daemon.overlay.keys import Key
from gateway_daemon.overlay.packets import Message
from gateway_daemon.overlay.wire import Spoken


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A client's message inside one of the overlay.

    Attributes:
        topic: Where subscribers see it.
        payload: What.
        age_s: How late it was when it was published here.
    """

    topic: str
    payload: bytes
    age_s: float = 0.0


class Letter(NamedTuple):
    """A packet to send."""

    to: Key
    sender: Key
    packet: Spoken


class Ended(NamedTuple):
    """A publication has come to its end.

    Attributes:
        id: Of the message.
        reached: Subscriptions that were reached, on all stretches.
        is_whole: Whether nobody had to be given up.
    """

    id: str
    reached: int
    is_whole: bool


@dataclass
class Todo:
    """What a gateway has to do."""

    letters: list[Letter] = field(default_factory=list)
    heard: list[tuple[Message, Carried]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)


def carried_by(message: Message) -> Carried:
    """The client's message inside one of the overlay.

    Raises:
        OverlayError: There is none.
    """
    try:
        return msgspec.msgpack.decode(message.payload, type=Carried)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        rule = f"a client's message ({error})"
        raise OverlayError("message", rule, message.id) from error

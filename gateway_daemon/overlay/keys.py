"""Keys of the overlay: a topic is one stretch, publishers before subscribers.

Source: SG-TBPS, Banno et al., JIP 23(2), 2015 ("strong relay-free": publishers and
subscribers of a topic each form a connected part).
"""

from enum import IntEnum
from typing import NamedTuple


class Role(IntEnum):
    """What a gateway is in a topic."""

    PUBLISHER = 0
    SUBSCRIBER = 1


class Key(NamedTuple):
    """A gateway in a topic; keys have the order of their fields.

    Attributes:
        topic: The topic.
        role: Publisher or subscriber; who is both has two keys.
        gateway: Name of the gateway.
    """

    topic: str
    role: int
    gateway: str


def subscribers_of(topic: str) -> tuple[Key, Key]:
    """The range of a topic's subscribers: its first key, and the first behind it."""
    return Key(topic, Role.SUBSCRIBER, ""), Key(topic, Role.SUBSCRIBER + 1, "")

"""Publisher suspension: publishers send nothing while a topic has no subscriber.

The last publisher of a topic in key order, the rendezvous point, sees at its right link
whether there is a subscriber. This state is passed to the left from publisher to
publisher: P messages when the first subscriber joins or the last one leaves. A packet
may be lost, so a suspended publisher repeats its query. Pure state machine of one
publisher.

Source: SG-TBPS, Banno et al., JIP 23(2), 2015 (the property; the messages are ours).
"""

from typing import NamedTuple

from gateway_daemon.overlay.keys import OverlayKey, TopicRole


class HasSubscribers(NamedTuple):
    """Whether a topic has subscribers; sent to the left."""

    value: bool


class HasSubscribersQuery(NamedTuple):
    """Query whether the topic has subscribers; sent to the right."""


class SuspensionSend(NamedTuple):
    """An action: send this packet to a neighbour."""

    to: OverlayKey
    packet: HasSubscribers | HasSubscribersQuery


class PublisherSuspension:
    """State of one publisher.

    Attributes:
        has_subscribers: Whether the topic has subscribers. True until known otherwise:
            an unnecessary message costs less than a lost warning.
    """

    def __init__(self, key: OverlayKey) -> None:
        self.has_subscribers = True
        self._key = key
        self._left: OverlayKey | None = None
        self._right: OverlayKey | None = None

    def set_neighbours(
        self, left: OverlayKey, right: OverlayKey
    ) -> list[SuspensionSend]:
        """Set the links of level 0, after every change of them."""
        is_new = right != self._right
        self._left, self._right = left, right
        if not is_new:
            return []
        if self._is_before(right):
            return [SuspensionSend(right, HasSubscribersQuery())]
        # Ours is the last publisher's key: we are the rendezvous point.
        is_heard = (right.topic, right.role) == (self._key.topic, TopicRole.SUBSCRIBER)
        return self._now(is_heard)

    def repeat_query(self) -> list[SuspensionSend]:
        """Query again while suspended: that a subscriber came may have been lost."""
        right = self._right
        if self.has_subscribers or right is None or not self._is_before(right):
            return []
        return [SuspensionSend(right, HasSubscribersQuery())]

    def receive(
        self, sender: OverlayKey, packet: HasSubscribers | HasSubscribersQuery
    ) -> list[SuspensionSend]:
        """Process a packet of a neighbour; ignore one of a former neighbour."""
        match packet:
            case HasSubscribersQuery():
                return [SuspensionSend(sender, HasSubscribers(self.has_subscribers))]
            case HasSubscribers(is_heard) if sender == self._right:
                return self._now(is_heard)
        return []

    def _now(self, is_heard: bool) -> list[SuspensionSend]:
        is_change, self.has_subscribers = is_heard != self.has_subscribers, is_heard
        left = self._left
        if not is_change or left is None:
            return []
        is_before = self._is_publisher_of_topic(left) and left < self._key
        return [SuspensionSend(left, HasSubscribers(is_heard))] if is_before else []

    def _is_before(self, right: OverlayKey) -> bool:
        return self._is_publisher_of_topic(right) and self._key < right

    def _is_publisher_of_topic(self, key: OverlayKey) -> bool:
        """Whether a key is a publisher's key of our topic.

        On the ring the right neighbour of the last publisher may be the first one
        again; such a key is smaller than ours.
        """
        return (key.topic, key.role) == (self._key.topic, self._key.role)

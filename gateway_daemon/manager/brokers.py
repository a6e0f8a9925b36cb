"""Broker sessions of a Manager, and the publication of its registry on them.

A session is at the Manager's own broker or at the broker of another Manager.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.replication import Key, Record, Told, View
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import encode
from spatial_mqtt.topics import (
    BROKER_TABLE,
    BROKER_UPDATE,
    COMPLETE,
    ERRORS,
    GATEWAY_INFO,
    MANAGER_LOAD,
    MANAGER_VIEW,
    record_topic,
)
from spatial_mqtt.transport import ConnectionHandler, Incoming, Publication, Session

log = logging.getLogger(__name__)

DIRECTORY_QOS = 2

Connect = Callable[[Session, ConnectionHandler], Connection]


@dataclass(frozen=True)
class Ways:
    """Make connections.

    Attributes:
        own: To the Manager's own broker.
        peers: To the other Managers' brokers.
    """

    own: Connect
    peers: Sequence[Connect] = ()


@dataclass(frozen=True)
class Up:
    """A broker can be spoken to; what it retains is on its way."""

    post: "Post"


@dataclass(frozen=True)
class Down:
    """A broker is gone."""

    post: "Post"


@dataclass(frozen=True)
class Heard:
    """Something was said at a broker."""

    post: "Post"
    message: Incoming


Event = Up | Down | Heard


class Post:
    """One connection of a Manager.

    Args:
        connect: Makes it.
        session: What is asked of the broker.
        tell: Takes events; called in the network thread, must not block.

    Attributes:
        is_up: Whether the broker can be spoken to, as far as events were served.
        is_heard: Whether the broker has confirmed what we want to hear.
        view: What the broker's own Manager said last; None before, and for our own.
        seen: What it saw last, before it went away.
    """

    def __init__(
        self, connect: Connect, session: Session, tell: Callable[[Event], object]
    ) -> None:
        self.is_up = self.is_heard = False
        self.view: View | None = None
        self.seen: View | None = None
        self._tell = tell
        self._connection = connect(session, self)

    def __str__(self) -> str:
        """Where the broker is."""
        return str(self._connection.endpoint)

    @property
    def is_orphan(self) -> bool:
        """Whether the broker lives and its Manager does not."""
        return self.is_up and self.view is not None and self.view.is_away

    def see(self, view: View) -> None:
        """The broker's own Manager spoke."""
        self.view = view
        if not view.is_away:
            self.seen = view

    def start(self) -> None:
        """Begin to connect."""
        self._connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._connection.stop()

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> None:
        """Say something there; nothing is kept while the broker is gone."""
        self._connection.publish(Publication(topic, payload, DIRECTORY_QOS, retain))

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._tell(Up(self))

    def on_down(self, reason: str) -> None:
        self.is_heard = False
        log.warning("the manager's broker %s is gone: %s", self, reason)
        self._tell(Down(self))

    def on_message(self, message: Incoming) -> None:
        self._tell(Heard(self, message))

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        self.is_heard = True
        log.info("the manager is up on %s", self)


class Press:
    """Publishes a registry.

    Args:
        own: Our own broker: records and our view are only there.

    Attributes:
        complaints: How many were told.
        adopted: Brokers of other Managers that we serve; the directory is there too.
    """

    def __init__(self, own: Post) -> None:
        self._own = own
        self._told_view: View | None = None
        self.complaints = 0
        self.adopted: list[Post] = []

    def everything(self, registry: Registry) -> None:
        """Our broker may have forgotten all."""
        for key, record in registry.records.items():
            self._record(key, record)
        self.directory(registry, self._own)
        self._told_view = None

    def directory(self, registry: Registry, post: Post) -> None:
        """Who serves what, on one broker."""
        post.publish(GATEWAY_INFO, encode(registry.gateways))
        post.publish(BROKER_TABLE, encode(registry.table))

    def changes(self, before: Registry, after: Registry) -> None:
        """What is new."""
        for key, record in after.records.items():
            if before.records.get(key) != record:
                self._record(key, record)
        for key in before.records.keys() - after.records.keys():
            self.forget(key)
        for post in self._served:
            if after.gateways != before.gateways:
                post.publish(GATEWAY_INFO, encode(after.gateways))
            if after.table != before.table:
                post.publish(BROKER_TABLE, encode(after.table))

    def forget(self, key: Key) -> None:
        """Our broker need not keep a fact any more."""
        self._own.publish(_topic(key), b"")

    def complain(self, words: str, peers: Sequence[Post] = ()) -> None:
        """Something is refused, or wrong: for the log and for administrators.

        Args:
            words: What.
            peers: Brokers of Managers that do not find it out by themselves.
        """
        log.warning("%s", words)
        self.complaints += 1
        for post in {*self._served, *peers}:
            post.publish(ERRORS, words.encode(), retain=False)

    def complete(self) -> None:
        """Every gateway has the newest table."""
        for post in self._served:
            post.publish(BROKER_UPDATE, COMPLETE, retain=False)

    def view(self, view: View) -> None:
        """What we see, when it is news."""
        if view != self._told_view and self._own.is_up:
            self._own.publish(MANAGER_VIEW, msgspec.json.encode(view))
            self._told_view = view

    def report(self, report: bytes, peers: Sequence[Post]) -> None:
        """Loads and decisions, for administrators of every Manager."""
        for post in (self._own, *peers):
            post.publish(MANAGER_LOAD, report)

    @property
    def _served(self) -> list[Post]:
        return [self._own, *self.adopted]

    def _record(self, key: Key, record: Record) -> None:
        self._own.publish(_topic(key), msgspec.json.encode(Told(key, record)))


def _topic(key: Key) -> str:
    return record_topic(f"{key.kind} {key.name}")

"""What a Manager publishes, and on whose broker."""

import logging
from collections.abc import Sequence

import msgspec

from gateway_daemon.manager.posts import Post
from gateway_daemon.manager.records import Key, Record, Told, View
from gateway_daemon.manager.registry import Registry
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

log = logging.getLogger(__name__)


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

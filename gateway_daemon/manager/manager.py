"""The Manager on its broker: hears notices, keeps the registry, publishes it."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

from gateway_daemon.manager import store
from gateway_daemon.manager.registry import Registry
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    Entry,
    decode_entry,
    decode_notice,
    decode_setting,
    encode,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.link import Handler, Incoming, Publication, Session
from spatial_mqtt.topics import (
    BROKER_ADD,
    BROKER_TABLE,
    BROKER_UPDATE,
    ERRORS,
    GATEWAY_INFO,
    GATEWAY_NOTICE,
    GATEWAY_SET,
)

log = logging.getLogger(__name__)

DIRECTORY_QOS = 2
COMPLETE = b"complete"

Connect = Callable[[Session, Handler], Connection]


class Manager:
    """Runs one registry.

    Args:
        connect: Makes the connection to the Manager's broker.
        path: File that keeps the registry.
        brokers: Distributed brokers of the settings.
    """

    def __init__(self, connect: Connect, path: Path, brokers: Sequence[Entry]) -> None:
        self._path = path
        self._registry = store.load(path).with_brokers(brokers)
        self._inbox: SimpleQueue[Incoming | None] = SimpleQueue()
        filters = ((GATEWAY_NOTICE, 1), (GATEWAY_SET, 1), (BROKER_ADD, 1))
        self._connection = connect(Session("yamamori-manager", filters), self)

    @property
    def registry(self) -> Registry:
        """What the Manager knows now."""
        return self._registry

    def run(self) -> None:
        """Serve until `stop`."""
        store.save(self._path, self._registry)
        self._connection.start()
        while (incoming := self._inbox.get()) is not None:
            self._serve(incoming)

    def stop(self) -> None:
        """End `run`."""
        self._connection.stop()
        self._inbox.put(None)

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""
        log.info("manager is up on %s", self._connection.endpoint)
        self._publish_all()

    def on_down(self, reason: str) -> None:
        """See `Handler`."""
        log.warning("manager's broker is gone: %s", reason)

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        self._inbox.put(message)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""

    def on_subscribed(self) -> None:
        """See `Handler`."""

    def _serve(self, incoming: Incoming) -> None:
        before = self._registry
        try:
            self._registry = self._changed(incoming)
        except DirectoryError as error:
            log.warning("refused on %s: %s", incoming.topic, error)
            self._publish(ERRORS, f"{incoming.topic}: {error}".encode(), retain=False)
            return
        if self._registry != before:
            store.save(self._path, self._registry)
            self._publish_changes(before)

    def _changed(self, incoming: Incoming) -> Registry:
        match incoming.topic:
            case t if t == GATEWAY_NOTICE:
                return self._registry.noticed(decode_notice(incoming.payload))
            case t if t == GATEWAY_SET:
                return self._registry.with_areas(decode_setting(incoming.payload))
            case _:
                return self._registry.with_broker(decode_entry(incoming.payload))

    def _publish_changes(self, before: Registry) -> None:
        if self._registry.gateways != before.gateways:
            self._publish(GATEWAY_INFO, encode(self._registry.gateways))
        if self._registry.table != before.table:
            self._publish(BROKER_TABLE, encode(self._registry.table))
        elif self._registry.is_complete and self._registry.applied != before.applied:
            self._publish(BROKER_UPDATE, COMPLETE, retain=False)

    def _publish_all(self) -> None:
        self._publish(GATEWAY_INFO, encode(self._registry.gateways))
        self._publish(BROKER_TABLE, encode(self._registry.table))

    def _publish(self, topic: str, payload: bytes, retain: bool = True) -> None:
        self._connection.publish(Publication(topic, payload, DIRECTORY_QOS, retain))

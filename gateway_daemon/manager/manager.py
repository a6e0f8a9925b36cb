"""The Manager on its broker: hears notices, keeps the registry, publishes it."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from gateway_daemon.manager import store
from gateway_daemon.manager.probes import Finding, Probes
from gateway_daemon.manager.registry import Registry
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    Entry,
    decode_entry,
    decode_named,
    decode_notice,
    decode_setting,
    encode,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.link import Handler, Incoming, Publication, Session
from spatial_mqtt.pulse import Pulse
from spatial_mqtt.topics import (
    BROKER_ADD,
    BROKER_REMOVE,
    BROKER_TABLE,
    BROKER_UPDATE,
    COMPLETE,
    ERRORS,
    GATEWAY_DOWN,
    GATEWAY_FORGET,
    GATEWAY_HERE,
    GATEWAY_INFO,
    GATEWAY_NOTICE,
    GATEWAY_SET,
)

log = logging.getLogger(__name__)

DIRECTORY_QOS = 2
LOOK_S = 1.0
SILENCE_S = 60.0
COMPLETE_WITHIN_S = 30.0
"""A gateway that lets a new table wait for longer is not waited for."""

HEARS = (
    GATEWAY_NOTICE,
    GATEWAY_HERE,
    GATEWAY_DOWN,
    GATEWAY_SET,
    GATEWAY_FORGET,
    BROKER_ADD,
    BROKER_REMOVE,
)

Connect = Callable[[Session, Handler], Connection]


class Manager:
    """Runs one registry.

    Args:
        connect: Makes the connection to the Manager's broker.
        path: File that keeps the registry.
        brokers: Distributed brokers of the settings.
        clock: Monotonic seconds.
        probes: Looks whether gateways and brokers answer; None looks at nobody.
        pulse: Listens to our loop.
    """

    def __init__(
        self,
        connect: Connect,
        path: Path,
        brokers: Sequence[Entry],
        clock: Callable[[], float],
        probes: Probes | None = None,
        *,
        pulse: Pulse,
    ) -> None:
        self._pulse = pulse
        self._path = path
        self._clock = clock
        self._probes = probes
        self._registry = store.load(path).with_brokers(brokers)
        self._waits_since_s: float | None = None
        self._inbox: SimpleQueue[Incoming | Finding | None] = SimpleQueue()
        filters = tuple((topic, 1) for topic in HEARS)
        self._connection = connect(Session("yamamori-manager", filters), self)

    @property
    def registry(self) -> Registry:
        """What the Manager knows now."""
        return self._registry

    def run(self) -> None:
        """Serve until `stop`."""
        store.save(self._path, self._registry)
        self._connection.start()
        if self._probes is not None:
            self._probes.start(self._inbox.put)
            self._probes.look_at(self._registry)
        with self._pulse.expects("manager", SILENCE_S) as beat:
            while self._goes_on():
                beat()

    def status(self) -> str:
        """One line for a person."""
        is_up, registry = self._connection.is_up, self._registry
        gateways, brokers = len(registry.gateways), len(registry.brokers)
        words = [
            f"{self._connection.endpoint} {'up' if is_up else 'DOWN'}",
            f"{gateways} gateways, {brokers} brokers",
            f"table {registry.version}",
        ]
        waits_for = [] if registry.is_complete else registry.laggards
        if waits_for:
            words[-1] += f" waits for {', '.join(map(str, waits_for))}"
        return "; ".join(words)

    def stop(self) -> None:
        """End `run`."""
        if self._probes is not None:
            self._probes.stop()
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

    def _goes_on(self) -> bool:
        """Serve what came, or see that nothing did; False at the end."""
        try:
            event = self._inbox.get(timeout=LOOK_S)
        except Empty:
            self._go_on_without_laggards()
            return True
        if event is not None:
            self._serve(event)
        return event is not None

    def _serve(self, event: Incoming | Finding) -> None:
        try:
            if isinstance(event, Finding):
                self._change_to(self._found(event))
            else:
                self._change_to(self._changed(event))
        except DirectoryError as error:
            topic = event.topic if isinstance(event, Incoming) else "probe"
            self._complain(f"{topic}: {error}")

    def _change_to(self, registry: Registry) -> None:
        before, self._registry = self._registry, registry
        if registry == before:
            return
        store.save(self._path, registry)
        self._publish_changes(before)
        if self._probes is not None:
            self._probes.look_at(registry)
        if registry.version != before.version:
            self._waits_since_s = self._clock()

    def _changed(self, incoming: Incoming) -> Registry:
        registry = self._registry
        ways: dict[str, Callable[[bytes], Registry]] = {
            GATEWAY_NOTICE: lambda told: registry.noticed(decode_notice(told)),
            GATEWAY_HERE: lambda told: registry.promised(decode_named(told)),
            GATEWAY_DOWN: lambda told: registry.departed(decode_named(told)),
            GATEWAY_SET: lambda told: registry.with_areas(decode_setting(told)),
            GATEWAY_FORGET: lambda told: registry.without_gateway(decode_named(told)),
            BROKER_ADD: lambda told: registry.with_broker(decode_entry(told)),
            BROKER_REMOVE: lambda told: registry.without_broker(decode_entry(told)),
        }
        return ways[incoming.topic](incoming.payload)

    def _found(self, finding: Finding) -> Registry:
        """What follows from a look: a gateway is unlisted, a broker only told of.

        What is meant for a broker that is away waits in the gateways' queues.
        """
        words = "answers again" if finding.is_well else "does not answer"
        if finding.who in self._registry.areas:
            log.warning("gateway %s %s", finding.who, words)
            if finding.is_well:
                return self._registry.returned(finding.who)
            return self._registry.departed(finding.who)
        self._complain(f"broker {finding.who} {words}")
        return self._registry

    def _go_on_without_laggards(self) -> None:
        since_s = self._waits_since_s
        if since_s is None or self._clock() - since_s < COMPLETE_WITHIN_S:
            return
        self._waits_since_s = None
        laggards = self._registry.laggards
        if laggards:
            names = ", ".join(map(str, laggards))
            self._complain(f"table {self._registry.version}: no word of {names}")
            self._change_to(self._registry.without_waiting())

    def _complain(self, words: str) -> None:
        log.warning("%s", words)
        self._publish(ERRORS, words.encode(), retain=False)

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

"""Leases of gateways, and of distributed brokers that announce themselves.

Heartbeats renew a lease; a last will ends it at once. A broker has the areas that it
requests while its heartbeats reach any Manager, and loses them when a lease of three
intervals has ended, or when it announces its end. Brokers of the settings and of
administrators are not leased. Which areas are leased is a record that all Managers
share; which brokers are present is known to each Manager by itself and shared in its
view, as with gateways.

An area is given to the first broker that requests it, and stays an administrator's to
take: a lease that is held does not request it again. It is not held while the table
gives the area to another broker.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace

from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.replication import RecordKey, parse_gateway_key
from gateway_daemon.manager.table_changes import add_broker, remove_broker
from spatial_mqtt.directory import (
    MAX_BEAT_S,
    BrokerEntry,
    BrokerHeartbeat,
    BrokerInfo,
    GatewayHeartbeat,
    decode_broker_heartbeat,
    decode_gateway_reference,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import BROKER_DOWN
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)

LEASE_INTERVALS = 3
"""Length of a lease in heartbeat intervals."""

GRACE_S = float(LEASE_INTERVALS * MAX_BEAT_S)
"""Lease of a broker that no Manager is known to see: after a start of ours, after our
broker was away, or when the Manager that saw it is gone. The interval of its heartbeats
may be the longest."""

Refusals = list[DirectoryError]


class _SessionLeases:
    """Ends of leases, by the session where heartbeats arrive."""

    def __init__(self) -> None:
        self._until_s: dict[BrokerInfo, dict[object, float]] = {}

    def remove_session(self, session: object) -> None:
        """Drop all leases of a session that has ended."""
        for held in self._until_s.values():
            held.pop(session, None)


class GatewayLeases(_SessionLeases):
    """Leases of gateways, by the session where their heartbeats arrive."""

    def renew(self, here: GatewayHeartbeat, session: object, now_s: float) -> None:
        """Renew a lease after a heartbeat."""
        ends_s = now_s + LEASE_INTERVALS * here.every_s if here.every_s else math.inf
        self._until_s.setdefault(here.broker_info, {})[session] = ends_s

    def remove(self, gateway: BrokerInfo, session: object) -> bool:
        """End a lease at one session; return whether it was the last one."""
        held = self._until_s.get(gateway, {})
        held.pop(session, None)
        if not held:
            self._until_s.pop(gateway, None)
        return not held

    def pop_expired(self, now_s: float) -> list[BrokerInfo]:
        """Remove and return the gateways whose leases have all expired."""
        gone = [
            gateway
            for gateway, held in self._until_s.items()
            if all(until_s <= now_s for until_s in held.values())
        ]
        for gateway in gone:
            del self._until_s[gateway]
        return gone


def leased_areas(registry: Registry) -> dict[BrokerInfo, tuple[str, ...]]:
    """Return the areas of each leased broker."""
    return {
        parse_gateway_key(key): record.value
        for key, record in registry.records.items()
        if key.kind == "leased" and isinstance(record.value, tuple)
    }


def lease_areas(
    registry: Registry, here: BrokerHeartbeat, now_ms: int
) -> tuple[Registry, Refusals]:
    """Give a broker the areas that it requests, and take those it no longer requests.

    Args:
        registry: The current state.
        here: A heartbeat of the broker.
        now_ms: Wall clock, for the stamps.

    Returns:
        The registry, and why areas were not given or taken.
    """
    broker = here.broker_info
    registry = replace(registry, brokers_here=registry.brokers_here | {broker})
    # Two Managers may have given one area to two brokers: the table has the later one.
    others = {e.topic for e in registry.brokers if e.broker_info != broker}
    held = [a for a in leased_areas(registry).get(broker, ()) if a not in others]
    registry, kept, refusals = _take(
        registry, broker, [area for area in held if area not in here.topics], now_ms
    )
    given = [area for area in held if area in here.topics] + kept
    for area in dict.fromkeys(here.topics):
        entry = BrokerEntry(area, broker)
        if area in held or entry in registry.brokers:
            continue
        try:
            registry = add_broker(registry, entry, now_ms)
        except DirectoryError as error:
            refusals.append(error)
        else:
            given.append(area)
    return _with_lease(registry, broker, given, now_ms), refusals


def end_lease(
    registry: Registry, broker: BrokerInfo, now_ms: int
) -> tuple[Registry, Refusals]:
    """Take the leased areas of a broker from it.

    Returns:
        The registry, and why areas were not taken: gateways of the original Gamma
        would keep the broker.
    """
    registry = replace(registry, brokers_here=registry.brokers_here - {broker})
    held = leased_areas(registry).get(broker, ())
    registry, kept, refusals = _take(registry, broker, held, now_ms)
    return _with_lease(registry, broker, kept, now_ms), refusals


def forget_server(registry: Registry, server: BrokerInfo, now_ms: int) -> Registry:
    """Remove a gateway permanently, or a leased broker with its certificate's name.

    Raises:
        DirectoryError: It is not registered, or a leased area cannot be taken.
    """
    is_broker = server in leased_areas(registry) or (
        registry.owner_of(server) is not None and server not in registry.areas
    )
    if not is_broker:
        return registry.without_gateway(server, now_ms)
    registry, refusals = end_lease(registry, server, now_ms)
    for error in refusals:
        raise error
    if registry.owner_of(server) is None:
        return registry
    return registry.with_value("owner", str(server), None, now_ms)


class BrokerLeases(_SessionLeases):
    """Leases of distributed brokers, by the session where their heartbeats arrive.

    A broker whose last session has ended, and that no Manager is known to see, has a
    lease of `GRACE_S` from the next check.
    """

    def apply(
        self,
        registry: Registry,
        session: object,
        message: IncomingMessage,
        now: tuple[float, int],
    ) -> tuple[Registry, Refusals]:
        """Return the registry after a broker's message, and what was refused.

        Args:
            registry: The current state.
            session: Where the message arrived.
            message: On `BROKER_HEARTBEAT` or `BROKER_DOWN`.
            now: Monotonic seconds, and milliseconds of the wall clock.

        Raises:
            DirectoryError: The message does not parse.
        """
        now_s, now_ms = now
        if message.topic == BROKER_DOWN:
            broker = decode_gateway_reference(message.payload)
            self._until_s.pop(broker, None)
            return end_lease(registry, broker, now_ms)
        here = decode_broker_heartbeat(message.payload)
        held = self._until_s.setdefault(here.broker_info, {})
        held.pop(None, None)
        held[session] = now_s + LEASE_INTERVALS * here.every_s
        return lease_areas(registry, here, now_ms)

    def extend(self, now_s: float) -> None:
        """Grant time to all brokers: for a while no heartbeat could arrive."""
        for held in self._until_s.values():
            held[None] = now_s + GRACE_S

    def end_expired(
        self, registry: Registry, now: tuple[float, int]
    ) -> tuple[Registry, Refusals]:
        """End the leases that no Manager renews; returns and times as `apply`."""
        now_s, now_ms = now
        ours = self._pop_expired(now_s)
        registry = replace(registry, brokers_here=registry.brokers_here - ours)
        seen = {b for view in registry.views.values() for b in view.brokers}
        refusals = Refusals()
        for broker in leased_areas(registry).keys() - seen:
            if broker in ours:
                registry, refused = end_lease(registry, broker, now_ms)
                refusals += refused
                log.warning("broker %s: heartbeat missing", broker)
            elif not self._until_s.get(broker):
                self._until_s[broker] = {None: now_s + GRACE_S}
        return registry, refusals

    def _pop_expired(self, now_s: float) -> frozenset[BrokerInfo]:
        gone = frozenset(
            broker
            for broker, held in self._until_s.items()
            if held and all(until_s <= now_s for until_s in held.values())
        )
        for broker in gone:
            del self._until_s[broker]
        return gone


def _take(
    registry: Registry, broker: BrokerInfo, areas: Iterable[str], now_ms: int
) -> tuple[Registry, list[str], Refusals]:
    """Take areas from a broker; return those that it keeps, too, and why."""
    kept, refusals = list[str](), Refusals()
    for area in areas:
        entry = BrokerEntry(area, broker)
        if entry not in registry.brokers:
            continue  # an administrator has taken it
        try:
            registry = remove_broker(registry, entry, now_ms)
        except DirectoryError as error:
            kept.append(area)
            refusals.append(error)
    return registry, kept, refusals


def _with_lease(
    registry: Registry, broker: BrokerInfo, areas: list[str], now_ms: int
) -> Registry:
    value = tuple(areas) or None
    record = registry.records.get(RecordKey("leased", str(broker)))
    if value == (record.value if record is not None else None):
        return registry
    return registry.with_value("leased", str(broker), value, now_ms)

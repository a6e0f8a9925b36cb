"""Changes of the registry by messages: of administrators, gateways and brokers.

`apply_message` applies a message on an API topic. Heartbeats renew a lease; a last will
ends it at once. A broker has the areas that it requests while its heartbeats reach any
Manager, and loses them when a lease of three intervals has ended, or when it announces
its end. Brokers of the settings and of administrators are not leased. Which areas are
leased is a record that all Managers share; which brokers are present is known to each
Manager by itself and shared in its view, as with gateways.

An area is given to the first broker that requests it, and stays an administrator's to
take: a lease that is held does not request it again. It is not held while the table
gives the area to another broker.

The gateways of the original Gamma cannot follow every change of the broker table. Such
a gateway takes from a new table one broker that it does not know, and forgets it if the
next table comes before "complete". It never drops a broker, and ends at an address or a
second area of a broker that it does not expect. While one is listed, a Manager
announces one change at a time and refuses what it cannot follow; gateways of this
project follow any change. No I/O.

Source: Gamma (seed 000) section 3.4, and the API table and behaviour of the published
system.
"""

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gateway_daemon.manager.registry import WHOLE_WORLD, Registry
from gateway_daemon.manager.replication import (
    HybridTimestamp,
    RecordKey,
    parse_gateway_key,
)
from spatial_mqtt.directory import (
    MAX_BEAT_S,
    BrokerEntry,
    BrokerHeartbeat,
    BrokerInfo,
    BrokerTable,
    GatewayHeartbeat,
    decode_area_setting,
    decode_broker_entry,
    decode_broker_heartbeat,
    decode_gateway_heartbeat,
    decode_gateway_notice,
    decode_gateway_reference,
    decode_load_report,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import (
    AREA_REQUEST_CONTENT,
    BROKER_ADD,
    BROKER_DOWN,
    BROKER_HEARTBEAT,
    BROKER_MESSAGES,
    BROKER_REMOVE,
    COMMAND_CONTENT,
    GATEWAY_AREA_REQUEST,
    GATEWAY_DOWN,
    GATEWAY_FORGET,
    GATEWAY_HEARTBEAT,
    GATEWAY_LOAD,
    GATEWAY_MESSAGES,
    GATEWAY_NOTICE,
    GATEWAY_SET,
    covers,
)
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)

API_TOPICS: Final = (
    GATEWAY_MESSAGES,
    GATEWAY_NOTICE,
    GATEWAY_HEARTBEAT,
    GATEWAY_DOWN,
    GATEWAY_LOAD,
    GATEWAY_SET,
    GATEWAY_AREA_REQUEST,
    GATEWAY_FORGET,
    BROKER_ADD,
    BROKER_REMOVE,
    BROKER_MESSAGES,
    BROKER_HEARTBEAT,
    BROKER_DOWN,
)

LEASE_INTERVALS = 3
"""Length of a lease in heartbeat intervals."""

GRACE_S = float(LEASE_INTERVALS * MAX_BEAT_S)
"""Lease of a broker that no Manager is known to see: after a start of ours, after our
broker was away, or when the Manager that saw it is gone. The interval of its heartbeats
may be the longest."""

Refusals = list[DirectoryError]

REMEDY: Final = (
    "or stop the gateways of the original Gamma first and remove them with "
    "gateway-daemon admin forget"
)

_HOST: Final = re.compile(
    r"localhost|(\d{1,3}\.){3}\d{1,3}"
    r"|([a-zA-Z0-9][a-zA-Z0-9-]{1,61}[a-zA-Z0-9]\.)+[a-zA-Z-]{2,}"
)


def apply_message(
    registry: Registry, incoming: IncomingMessage, now_ms: int
) -> Registry:
    """Return the registry after a message.

    Args:
        registry: The current state.
        incoming: On a topic that changes records or versions, not presence, without
            the name of a gateway.
        now_ms: Wall clock, for the stamp.

    Raises:
        DirectoryError: The message does not parse, or the change is not possible.
        KeyError: The topic is not one of these.
    """
    payload = incoming.payload
    changes: dict[str, Callable[[], Registry]] = {
        GATEWAY_NOTICE: lambda: registry.with_notice(
            decode_gateway_notice(payload), now_ms
        ),
        GATEWAY_SET: lambda: _set(registry, incoming, now_ms),
        GATEWAY_AREA_REQUEST: lambda: _set(registry, incoming, now_ms),
        GATEWAY_FORGET: lambda: forget_server(
            registry, decode_gateway_reference(payload), now_ms
        ),
        BROKER_ADD: lambda: _add(registry, incoming, now_ms),
        BROKER_REMOVE: lambda: remove_broker(
            registry, decode_broker_entry(payload), now_ms
        ),
    }
    return changes[incoming.topic]()


def find_subject(topic: str, incoming: IncomingMessage) -> BrokerInfo | None:
    """Return the server that its own message is about; None for a command.

    Args:
        topic: Topic without the name of a certificate.
        incoming: The message.

    Raises:
        DirectoryError: It does not parse.
    """
    find = None if is_command(topic, incoming) else _SUBJECTS.get(topic)
    return None if find is None else find(incoming.payload)


def is_command(topic: str, incoming: IncomingMessage) -> bool:
    """Whether a message is a command of an administrator.

    Brokers of the original add themselves, again and again, as an administrator does,
    but without a content type.
    """
    if topic == BROKER_ADD:
        return incoming.content == COMMAND_CONTENT
    return topic in _COMMANDS and incoming.content != AREA_REQUEST_CONTENT


_COMMANDS: Final = frozenset({GATEWAY_SET, GATEWAY_FORGET, BROKER_REMOVE})


_SUBJECTS: Final[Mapping[str, Callable[[bytes], BrokerInfo]]] = {
    GATEWAY_NOTICE: lambda payload: decode_gateway_notice(payload).broker_info,
    GATEWAY_HEARTBEAT: lambda payload: decode_gateway_heartbeat(payload).broker_info,
    GATEWAY_DOWN: decode_gateway_reference,
    GATEWAY_LOAD: lambda payload: decode_load_report(payload).gateway,
    GATEWAY_AREA_REQUEST: lambda payload: decode_area_setting(payload).broker_info,
    GATEWAY_SET: lambda payload: decode_area_setting(payload).broker_info,
    BROKER_HEARTBEAT: lambda payload: decode_broker_heartbeat(payload).broker_info,
    BROKER_DOWN: decode_gateway_reference,
}


def _set(registry: Registry, incoming: IncomingMessage, now_ms: int) -> Registry:
    setting = decode_area_setting(incoming.payload)
    is_wish = incoming.topic == GATEWAY_AREA_REQUEST
    if is_wish and not setting.topics:
        # Only an administrator may add a single area.
        raise DirectoryError("wish", "areas in topics", setting.topic)
    if (is_wish or incoming.content == AREA_REQUEST_CONTENT) and setting.topics:
        return registry.with_requested_areas(setting, now_ms)
    return registry.with_areas(setting, now_ms)


def _add(registry: Registry, incoming: IncomingMessage, now_ms: int) -> Registry:
    entry = decode_broker_entry(incoming.payload)
    if incoming.content == AREA_REQUEST_CONTENT:
        return registry  # for a Manager of the original; its heartbeats are for us
    return add_broker(registry, entry, now_ms)


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


def next_table(registry: Registry, *, was_ready: bool = False) -> BrokerTable:
    """Return the table to announce now.

    Managers with the same records announce the same tables: changes are ordered by
    their stamps, and the last one brings the version of the records.

    Args:
        registry: Its `table` was announced before.
        was_ready: Whether all gateways had applied that table. One that has started
            since then begins with the newest table, and is not waited for again.
    """
    announced, newest = registry.table, registry.newest_table
    if not registry.original_gateways or not announced.brokers:
        return newest

    def order(area: str) -> tuple[HybridTimestamp, int, str]:
        record = registry.records.get(RecordKey("broker", area))
        return record.stamp if record else HybridTimestamp(), len(area), area

    changed = set(announced.brokers) ^ set(newest.brokers)
    areas = sorted({entry.topic for entry in changed}, key=order)
    if not areas or not (was_ready or registry.is_complete):
        return announced
    brokers = [e for e in announced.brokers if e.topic != areas[0]]
    brokers += [e for e in newest.brokers if e.topic == areas[0]]
    brokers.sort(key=lambda entry: (len(entry.topic), entry.topic))
    version = max(announced.version + 1, newest.version - len(areas) + 1)
    return BrokerTable(version, tuple(brokers))


def add_broker(registry: Registry, entry: BrokerEntry, now_ms: int) -> Registry:
    """Return the registry with a distributed broker added.

    Raises:
        DirectoryError: The area already has a broker, a gateway of the original Gamma
            cannot follow, or the host cannot be one.
    """
    if not entry.broker_info.has_valid_host:
        raise DirectoryError(
            "broker_info.host", "a name or an address", entry.broker_info.host
        )
    changed = registry.with_broker(entry, now_ms)
    if changed is not registry:
        for error in _obstacles(registry.original_gateways, registry.brokers, entry):
            raise error
    return changed


def remove_broker(registry: Registry, entry: BrokerEntry, now_ms: int) -> Registry:
    """Return the registry without a distributed broker.

    Raises:
        DirectoryError: It is not in the table, or a gateway of the original Gamma would
            keep it.
    """
    changed = registry.without_broker(entry, now_ms)
    if registry.original_gateways and entry in registry.table.brokers:
        rule = f"one that stays in the table {_while(registry.original_gateways)}"
        value = f"{entry.topic} -> {entry.broker_info}"
        raise DirectoryError("broker", rule, value, REMEDY.removeprefix("or "))
    return changed


def find_obstacles(registry: Registry) -> Iterator[str]:
    """Yield why gateways of the original Gamma cannot follow the table, as sentences.

    A table may be older than such a gateway, or merged from another Manager.
    """
    gateways, brokers = registry.original_gateways, registry.newest_table.brokers
    for at, entry in enumerate(brokers):
        yield from map(str, _obstacles(gateways, brokers[:at], entry))


def _obstacles(
    gateways: Sequence[BrokerInfo], known: Sequence[BrokerEntry], entry: BrokerEntry
) -> Iterator[DirectoryError]:
    """Yield what such gateways cannot follow in an addition to known brokers."""
    if not gateways:
        return
    broker, area = entry.broker_info, entry.topic

    def error(field: str, rule: str, value: str, remedy: str) -> DirectoryError:
        rule = f"{rule} {_while(gateways)}"
        return DirectoryError(field, rule, value, f"{remedy}, {REMEDY}")

    if not _HOST.fullmatch(broker.host):
        rule = "localhost, an IPv4 address or a name with a dot"
        yield error("broker_info.host", rule, broker.host, "use its IPv4 address")
    if any(other.broker_info == broker for other in known):
        remedy = "use a broker of its own for each area"
        rule = "a broker without another area"
        yield error("broker_info", rule, f"{area} -> {broker}", remedy)
    below = [o.topic for o in known if covers(area, o.topic)]
    if below:
        remedy = "add a large area before the small ones in it"
        yield error("topic", f"an area that does not contain {below[0]}", area, remedy)
    parent = area.rpartition("/")[0] or WHOLE_WORLD
    if known and area != WHOLE_WORLD and all(o.topic != parent for o in known):
        rule = "an area one level below that of a broker"
        yield error("topic", rule, area, f"add a broker for {parent} first")


def _while(gateways: Sequence[BrokerInfo]) -> str:
    names = ", ".join(map(str, gateways))
    return f"while gateways of the original Gamma are listed ({names})"

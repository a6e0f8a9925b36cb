"""Changes of the broker table that the gateways of the original Gamma can follow.

Such a gateway takes from a new table one broker that it does not know, and forgets it
if the next table comes before "complete". It never drops a broker, and ends at an
address or a second area of a broker that it does not expect. While one is listed, a
Manager announces one change at a time and refuses what it cannot follow; gateways of
this project follow any change. No I/O.

Source: Gamma (seed 000) section 3.4; behaviour of the published programs.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from gateway_daemon.manager.registry import WHOLE_WORLD, Registry
from gateway_daemon.manager.replication import HybridTimestamp, RecordKey
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import covers

REMEDY: Final = (
    "or stop the gateways of the original Gamma first and remove them with "
    "gateway-daemon admin forget"
)

_HOST: Final = re.compile(
    r"localhost|(\d{1,3}\.){3}\d{1,3}"
    r"|([a-zA-Z0-9][a-zA-Z0-9-]{1,61}[a-zA-Z0-9]\.)+[a-zA-Z-]{2,}"
)


def next_table(registry: Registry) -> BrokerTable:
    """Return the table to announce now.

    Managers with the same records announce the same tables: changes are ordered by
    their stamps, and the last one brings the version of the records.

    Args:
        registry: Its `table` was announced before.
    """
    announced, newest = registry.table, registry.newest_table
    if not registry.original_gateways or not announced.brokers:
        return newest

    def order(area: str) -> tuple[HybridTimestamp, int, str]:
        record = registry.records.get(RecordKey("broker", area))
        return record.stamp if record else HybridTimestamp(), len(area), area

    changed = set(announced.brokers) ^ set(newest.brokers)
    areas = sorted({entry.topic for entry in changed}, key=order)
    if not areas or not registry.is_complete:
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

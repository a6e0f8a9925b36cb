"""Replicated records: last-writer-wins registers that all Managers merge. No I/O.

A record is one fact: the areas of a gateway, or the broker of an area. The version with
the later stamp of a hybrid logical clock wins: wall time, but never behind any stamp
that its Manager has seen. The number of edits per Manager travels with the record. It
distinguishes a later edit from a concurrent one, which is a conflict.

Merging is commutative, associative and idempotent, so records may arrive repeatedly, in
any order and by any route.

Source: Kulkarni et al., "Logical Physical Clocks" (2014); Shapiro et al.,
"Conflict-free Replicated Data Types" (2011), last-writer-wins register.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from spatial_mqtt.directory import BrokerInfo, decode_directory_message
from spatial_mqtt.topics import check_area, check_node_id

RecordKind = Literal["areas", "wish", "broker", "spare", "owner", "leased"]
"""areas: set by an administrator; wish: areas from the gateway's own settings;
broker: of an area; spare: server that the autoscaler started; owner: name of the
gateway or broker with an address, from its certificate; leased: areas that a broker has
by its heartbeats."""

RecordValue = tuple[str, ...] | BrokerInfo | None

SETTINGS_WRITER = ""
"""Writer of values from the settings, shared by all Managers: equal settings give equal
records."""


class HybridTimestamp(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Hybrid logical timestamp of an edit; unique across Managers.

    Attributes:
        ms: Wall clock in milliseconds, or later when a later one was seen.
        count: Distinguishes stamps of the same millisecond.
        manager: Id of the Manager that received the edit.
    """

    ms: int = 0
    count: int = 0
    manager: str = SETTINGS_WRITER

    def next(self, now_ms: int, manager: str) -> "HybridTimestamp":
        """Return a stamp for an edit made now by a Manager that has seen this one."""
        if now_ms > self.ms:
            return HybridTimestamp(now_ms, 0, manager)
        return HybridTimestamp(self.ms, self.count + 1, manager)


class RecordKey(msgspec.Struct, frozen=True, order=True):
    """Key of a record: ``name`` is a gateway's ``host:port``, an area, or a server."""

    kind: RecordKind
    name: str

    @property
    def is_areas(self) -> bool:
        """Whether the name is a server and the value its areas."""
        return self.is_gateway_areas or self.kind == "leased"

    @property
    def is_gateway_areas(self) -> bool:
        """Whether the name is a gateway and the value its areas."""
        return self.kind in {"areas", "wish"}


class Record(msgspec.Struct, frozen=True):
    """One fact and its edits.

    Attributes:
        value: Areas, or a broker; None for a tombstone.
        stamp: When the value was set.
        edits: Number of edits by each Manager.
    """

    value: RecordValue
    stamp: HybridTimestamp = HybridTimestamp()
    edits: Mapping[str, int] = msgspec.field(
        default_factory=lambda: {SETTINGS_WRITER: 1}
    )

    def with_value(self, value: RecordValue, stamp: HybridTimestamp) -> "Record":
        """Return this record with a new value."""
        count = self.edits.get(stamp.manager, 0) + 1
        return Record(value, stamp, {**self.edits, stamp.manager: count})


class KeyedRecord(msgspec.Struct, frozen=True):
    """A record with its key, as on the wire and on disk."""

    key: RecordKey
    record: Record

    def __post_init__(self) -> None:
        """Reject a value of the wrong kind, and invalid names."""
        value = self.record.value
        is_owner = self.key.kind == "owner"
        is_of_server = is_owner or self.key.is_areas
        is_right = not isinstance(value, BrokerInfo if is_of_server else tuple)
        if is_of_server:
            parse_gateway_key(self.key)
        elif self.key.kind == "broker":
            check_area(self.key.name)
        if not is_right:
            raise ValueError(f"value must be one of {self.key.kind}, got {value!r}")
        for each in value if isinstance(value, tuple) else ():
            (check_node_id if is_owner else check_area)(each)


def parse_gateway_key(key: RecordKey) -> BrokerInfo:
    """Parse the gateway or broker from a key of areas.

    Raises:
        ValueError: The name is not ``host:port``.
    """
    host, _, port = key.name.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"gateway must be host:port, got {key.name!r}")
    return BrokerInfo(host, int(port))


class TombstoneHorizon(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Time up to which tombstones have been dropped.

    Attributes:
        ms: Stamps up to this one.
        retired: How many changes of the broker table were dropped.
    """

    ms: int = 0
    retired: int = 0


NO_HORIZON = TombstoneHorizon()


class ManagerView(msgspec.Struct, frozen=True):
    """State as seen by one Manager, which is its only writer.

    Attributes:
        manager: Its id.
        here: Gateways that are present.
        applied: Newest table version that each gateway reported to it.
        is_away: Whether its process has ended, as its broker reports.
        day: Since 1970, by its clock; 0 if unknown.
        horizon: Up to when it has dropped tombstones.
        without_heartbeat: Those of ``here`` that send it no heartbeats.
        brokers: Distributed brokers that send it heartbeats.
    """

    manager: str
    here: tuple[BrokerInfo, ...] = ()
    applied: tuple[tuple[BrokerInfo, int], ...] = ()
    is_away: bool = False
    day: int = 0
    horizon: TombstoneHorizon = NO_HORIZON
    without_heartbeat: tuple[BrokerInfo, ...] = ()
    brokers: tuple[BrokerInfo, ...] = ()


def merge_records(one: Record, other: Record) -> Record:
    """Merge two versions: the later value, and the larger edit counts."""
    latest = max(one, other, key=_rank)
    edits = {
        manager: max(one.edits.get(manager, 0), other.edits.get(manager, 0))
        for manager in sorted(one.edits.keys() | other.edits.keys())
    }
    return Record(latest.value, latest.stamp, edits)


def is_conflict(one: Record, other: Record) -> bool:
    """Whether the two differ and were edited concurrently."""
    return one.value != other.value and _includes(one, other) == _includes(other, one)


def decode_record(payload: bytes) -> KeyedRecord:
    """Decode a record of another Manager.

    Raises:
        DirectoryError: It does not parse.
    """
    return decode_directory_message(payload, KeyedRecord, "record of a Manager")


def decode_view(payload: bytes) -> ManagerView:
    """Decode a view of another Manager.

    Raises:
        DirectoryError: It does not parse.
    """
    return decode_directory_message(payload, ManagerView, "view of a Manager")


def _rank(record: Record) -> tuple[HybridTimestamp, bytes]:
    """Equal stamps with different values come from settings that differ."""
    return record.stamp, msgspec.json.encode(record.value)


def _includes(one: Record, other: Record) -> bool:
    return all(one.edits.get(manager, 0) >= n for manager, n in other.edits.items())

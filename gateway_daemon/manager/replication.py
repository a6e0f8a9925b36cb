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
from typing import Literal, TypeVar

import msgspec

from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import check_area

T = TypeVar("T")

Kind = Literal["areas", "wish", "broker", "spare"]
"""Areas that an administrator gave a gateway; areas that the gateway asks for in its
own settings; the broker of an area; a server that the autoscaler started."""

Value = tuple[str, ...] | BrokerInfo | None

SETTINGS = ""
"""Who wrote what no administrator said. All Managers share this writer, so that the
same settings on each are the same word."""


class Stamp(msgspec.Struct, frozen=True, order=True, array_like=True):
    """When something was said; no two Managers make the same one.

    Attributes:
        ms: Wall clock in milliseconds, or later when a later one was seen.
        count: Tells stamps of the same millisecond apart.
        manager: Id of who heard it.
    """

    ms: int = 0
    count: int = 0
    manager: str = SETTINGS

    def next(self, now_ms: int, manager: str) -> "Stamp":
        """A stamp for something said now by one who has seen this stamp."""
        if now_ms > self.ms:
            return Stamp(now_ms, 0, manager)
        return Stamp(self.ms, self.count + 1, manager)


class Key(msgspec.Struct, frozen=True, order=True):
    """Which fact: ``name`` is a gateway's ``host:port``, an area, or a spare's."""

    kind: Kind
    name: str

    @property
    def is_gateways(self) -> bool:
        """Whether the name is a gateway's and the value its areas."""
        return self.kind in {"areas", "wish"}


class Record(msgspec.Struct, frozen=True):
    """What is known of one fact.

    Attributes:
        value: Areas, or a broker; None when it was taken back.
        stamp: When that was said.
        edits: How often each Manager said something of this fact.
    """

    value: Value
    stamp: Stamp = Stamp()
    edits: Mapping[str, int] = msgspec.field(default_factory=lambda: {SETTINGS: 1})

    def edited(self, value: Value, stamp: Stamp) -> "Record":
        """This fact with a new value."""
        count = self.edits.get(stamp.manager, 0) + 1
        return Record(value, stamp, {**self.edits, stamp.manager: count})


class Told(msgspec.Struct, frozen=True):
    """A record on the wire and on the disk."""

    key: Key
    record: Record

    def __post_init__(self) -> None:
        """Refuse a value of the other kind, and names that name nothing."""
        value = self.record.value
        is_right = not isinstance(value, BrokerInfo if self.key.is_gateways else tuple)
        if self.key.is_gateways:
            gateway_of(self.key)
        elif self.key.kind == "broker":
            check_area(self.key.name)
        if not is_right:
            raise ValueError(f"value must be one of {self.key.kind}, got {value!r}")
        for area in value if isinstance(value, tuple) else ():
            check_area(area)


def gateway_of(key: Key) -> BrokerInfo:
    """The gateway that a key of areas names.

    Raises:
        ValueError: Its name is not ``host:port``.
    """
    host, _, port = key.name.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"gateway must be host:port, got {key.name!r}")
    return BrokerInfo(host, int(port))


class Horizon(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Up to when is forgotten what was taken back.

    Attributes:
        ms: Stamps up to this one.
        retired: How many changes of the broker table that was.
    """

    ms: int = 0
    retired: int = 0


NOTHING_FORGOTTEN = Horizon()


class View(msgspec.Struct, frozen=True):
    """What one Manager sees by itself; it alone writes it.

    Attributes:
        manager: Its id.
        here: Gateways that it hears.
        applied: Newest table version that each gateway reported to it.
        is_away: Its program has ended; its broker says so.
        day: Since 1970, by its clock; 0 if it does not say.
        horizon: What it has forgotten.
    """

    manager: str
    here: tuple[BrokerInfo, ...] = ()
    applied: tuple[tuple[BrokerInfo, int], ...] = ()
    is_away: bool = False
    day: int = 0
    horizon: Horizon = NOTHING_FORGOTTEN


def merge(one: Record, other: Record) -> Record:
    """The later word, and all that was counted."""
    latest = max(one, other, key=_rank)
    edits = {
        manager: max(one.edits.get(manager, 0), other.edits.get(manager, 0))
        for manager in sorted(one.edits.keys() | other.edits.keys())
    }
    return Record(latest.value, latest.stamp, edits)


def is_conflict(one: Record, other: Record) -> bool:
    """Whether the two differ, and neither was said with knowledge of the other."""
    return one.value != other.value and _knows(one, other) == _knows(other, one)


def decode_told(payload: bytes) -> Told:
    """Decode a record of another Manager.

    Raises:
        DirectoryError: It does not parse.
    """
    return _decode(payload, Told)


def decode_view(payload: bytes) -> View:
    """Decode a view of another Manager.

    Raises:
        DirectoryError: It does not parse.
    """
    return _decode(payload, View)


def _rank(record: Record) -> tuple[Stamp, bytes]:
    """Equal stamps with other values come from settings that differ."""
    return record.stamp, msgspec.json.encode(record.value)


def _knows(one: Record, other: Record) -> bool:
    return all(one.edits.get(who, 0) >= n for who, n in other.edits.items())


def _decode(payload: bytes, form: type[T]) -> T:
    try:
        return msgspec.json.decode(payload, type=form)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        rule = f"JSON of its form ({error})"
        raise DirectoryError("a manager's word", rule, payload) from error

"""The registry on disk: a restarted Manager forgets nothing."""

import os
from pathlib import Path

import msgspec

from gateway_daemon.manager.registry import Registry
from spatial_mqtt.directory import BrokerInfo, Entry


class Snapshot(msgspec.Struct, frozen=True):
    """The registry as JSON, whose keys cannot be structures."""

    version: int
    brokers: tuple[Entry, ...]
    gateways: tuple[tuple[BrokerInfo, tuple[str, ...]], ...]
    away: tuple[BrokerInfo, ...] = ()
    faithful: tuple[BrokerInfo, ...] = ()


def save(path: Path, registry: Registry) -> None:
    """Replace the file; after a crash it holds the old state or the new one."""
    snapshot = Snapshot(
        registry.version,
        registry.brokers,
        tuple(registry.areas.items()),
        tuple(sorted(registry.away)),
        tuple(sorted(registry.faithful)),
    )
    fresh = path.with_suffix(".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(snapshot))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def load(path: Path) -> Registry:
    """The saved registry, or an empty one when there is no file.

    Raises:
        msgspec.MsgspecError: The file is damaged; an operator must look at it.
    """
    if not path.exists():
        return Registry()
    snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    return Registry(
        areas=dict(snapshot.gateways),
        brokers=snapshot.brokers,
        version=snapshot.version,
        away=frozenset(snapshot.away),
        faithful=frozenset(snapshot.faithful),
    )

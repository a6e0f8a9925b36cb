"""Registry file: persists the registry across restarts of the Manager."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.replication import NO_HORIZON, KeyedRecord, TombstoneHorizon
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.files import write_best_effort
from spatial_mqtt.directory import BrokerInfo, BrokerTable

REGISTRY_FILE: Final = "registry.json"
"""In the Manager's data folder."""


class RegistryFileError(Exception):
    """The registry file is damaged; an operator must repair or remove it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} must be a registry, but {reason}; restore it from a backup, or "
            "move it away: other Managers, gateways and the settings fill a new one"
        )


class RegistrySnapshot(msgspec.Struct, frozen=True):
    """The part of the registry that is persisted."""

    records: tuple[KeyedRecord, ...]
    heard: tuple[BrokerInfo, ...] = ()
    away: tuple[BrokerInfo, ...] = ()
    faithful: tuple[BrokerInfo, ...] = ()
    since_ms: int = 0
    horizon: TombstoneHorizon = NO_HORIZON
    announced: BrokerTable | None = None
    applied: tuple[tuple[BrokerInfo, int], ...] = ()
    configured: Mapping[str, BrokerInfo] | None = None

    @classmethod
    def from_registry(cls, registry: Registry) -> "RegistrySnapshot":
        """Return the snapshot of a registry."""
        records = tuple(
            KeyedRecord(key, record) for key, record in registry.records.items()
        )
        return cls(
            records,
            tuple(sorted(registry.seen)),
            tuple(sorted(registry.away)),
            tuple(sorted(registry.heartbeating)),
            registry.created_ms,
            registry.horizon,
            registry.announced,
            tuple(sorted(registry.applied_versions.items())),
            registry.configured,
        )


def save_registry(path: Path, snapshot: RegistrySnapshot) -> bool:
    """Replace the file; after a crash it holds the old state or the new one.

    Returns:
        Whether it was written. A full disk must not end the Manager: without it no
        gateway is registered or replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_best_effort(path, msgspec.json.encode(snapshot))


def load_registry(path: Path, manager_id: str = "", now_ms: int = 0) -> Registry:
    """Load the saved registry, or return an empty one if there is no file.

    Args:
        path: The file.
        manager_id: Id of the Manager.
        now_ms: Wall clock: the creation time of a new registry.

    Raises:
        RegistryFileError: The file is damaged, or no file.
        OSError: It cannot be read now.
    """
    if not path.exists():
        return Registry(manager_id, created_ms=now_ms)
    try:
        snapshot = decode_json(path.read_bytes(), RegistrySnapshot)
    except (IsADirectoryError, *DECODE_ERRORS) as error:
        raise RegistryFileError(path, str(error)) from error
    return Registry(
        manager_id,
        {keyed.key: keyed.record for keyed in snapshot.records},
        applied_versions=dict(snapshot.applied),
        seen=frozenset(snapshot.heard),
        away=frozenset(snapshot.away),
        heartbeating=frozenset(snapshot.faithful),
        created_ms=snapshot.since_ms,
        horizon=snapshot.horizon,
        announced=snapshot.announced,
        configured=snapshot.configured,
    )

"""When what was taken back may be forgotten.

A fact that was taken back is kept as a record without a value, a tombstone: without
it a Manager that was away would bring the fact back to life. It may go when nobody
can be left who does not know it, so when it is older than any partition that is
promised to end well, by every Manager's clock, and all Managers are reached.

Counts of what is forgotten go on counting in the version of the broker table.

Source: the age bound of Cassandra's ``gc_grace_seconds``; that the clock furthest
behind decides is ours.
"""

from collections.abc import Iterable
from dataclasses import replace

from gateway_daemon.manager.records import SETTINGS, Horizon, Key, Record
from gateway_daemon.manager.registry import Registry

DAY_MS = 86_400_000

PROMISED_DAYS = 30
"""A Manager may be parted from the others for so long, or its file be so old."""

KEPT_DAYS = 90
"""Tombstones are kept three times as long: clocks are wrong, and operators late."""


def horizon_ms(days: Iterable[int]) -> int:
    """Up to when tombstones may be forgotten.

    Args:
        days: Days since 1970 by the clock of every Manager; 0 if it does not say.
    """
    return max(0, min(days) - KEPT_DAYS) * DAY_MS


def is_collectable(key: Key, record: Record, until_ms: int) -> bool:
    """Whether a record may be forgotten.

    What settings name is kept: the next start would say it anew.
    """
    is_named = key.kind == "broker" and SETTINGS in record.edits
    is_gone = record.value is None and not is_named
    return is_gone and 0 < record.stamp.ms <= until_ms


def on_day(registry: Registry, day: int, managers: int) -> Registry:
    """Today, forget what was taken back before everybody's horizon.

    Args:
        registry: What we know.
        day: Since 1970, by our clock.
        managers: How many others there are; one that is not reached may still bring
            something back, so nothing is forgotten then.
    """
    today = registry if day == registry.day else replace(registry, day=day)
    if len(registry.views) < managers:
        return today
    days = [day, *(view.day for view in registry.views.values())]
    return forgetting(today, Horizon(horizon_ms(days)))


def forgetting(registry: Registry, horizon: Horizon) -> Registry:
    """Forget up to a horizon, ours or another Manager's, if it is news.

    The version of the broker table does not fall.
    """
    own, records = registry.horizon, registry.records
    if horizon.ms < own.ms or horizon <= own:
        return registry
    gone = [k for k, r in records.items() if is_collectable(k, r, horizon.ms)]
    kept = {key: record for key, record in records.items() if key not in gone}
    changes = sum(sum(records[k].edits.values()) for k in gone if k.kind == "broker")
    retired = max(horizon.retired, own.retired + changes)
    return replace(registry, records=kept, horizon=Horizon(horizon.ms, retired))


def is_past(registry: Registry, key: Key, record: Record) -> bool:
    """Whether somebody tells what we have forgotten on purpose.

    So does a Manager that was away for longer than is promised, or whose file comes
    from an old backup. A registry that was begun later than a word must learn it.
    """
    if key in registry.records:
        return False
    is_old = registry.since_ms < record.stamp.ms <= registry.horizon.ms
    return is_old or is_collectable(key, record, registry.horizon.ms)

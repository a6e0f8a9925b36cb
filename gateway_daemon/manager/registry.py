"""Registry: areas of gateways and table of brokers, as an immutable state. No I/O.

Areas and brokers are records that all Managers share and merge (see `replication`).
Which gateways are present is known to each Manager by itself and shared as a view. A
gateway is present while it has a lease: a last will reports a loss at once, but only to
a Manager that is subscribed at that moment, while a lease also ends if no Manager
received the will.

A deleted record stays as a tombstone, a record without a value. Otherwise a Manager
that was offline would restore it. A tombstone is dropped when it is older than the
longest supported partition by the clock of every Manager, and all Managers are
reachable. The version of the broker table still counts the dropped changes.

Source: Gamma (seed 000) and the API table of the published system; the age limit
follows Cassandra's ``gc_grace_seconds``; using the slowest clock is ours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gateway_daemon.manager.replication import (
    NO_HORIZON,
    SETTINGS_WRITER,
    HybridTimestamp,
    ManagerView,
    Record,
    RecordKey,
    RecordKind,
    RecordValue,
    TombstoneHorizon,
    is_conflict,
    merge_records,
    parse_gateway_key,
)
from spatial_mqtt.directory import (
    AreaSetting,
    BrokerEntry,
    BrokerInfo,
    BrokerTable,
    GatewayNotice,
)
from spatial_mqtt.errors import DirectoryError

WHOLE_WORLD = "/"
MOVE_INTERVAL_MS = 3_600_000
"""Shortest interval between two addresses of one gateway."""


@dataclass(frozen=True)
class Registry:
    """State of a Manager.

    Attributes:
        manager_id: Id of the Manager.
        records: Areas and brokers, as published to any Manager.
        applied_versions: Newest table version that each gateway reported to us.
        seen: Gateways that have sent us a message.
        away: Gateways that are down or that we cannot reach. They keep their areas.
        heartbeating: Gateways with a last will and heartbeats; they need no probes.
        brokers_here: Distributed brokers that send us heartbeats.
        views: Views of the other Managers that are reachable.
        day: Today, in days since 1970; 0 before it is set.
        created_ms: When this registry was created; older records are always accepted.
        horizon: Up to when tombstones have been dropped.
        announced: The broker table that was announced last; None: the newest one.
        configured: Broker of each area in our settings at the last start, not shared;
            None if unknown.
    """

    manager_id: str = ""
    records: Mapping[RecordKey, Record] = field(default_factory=dict)
    applied_versions: Mapping[BrokerInfo, int] = field(default_factory=dict)
    seen: frozenset[BrokerInfo] = frozenset()
    away: frozenset[BrokerInfo] = frozenset()
    heartbeating: frozenset[BrokerInfo] = frozenset()
    brokers_here: frozenset[BrokerInfo] = frozenset()
    views: Mapping[str, ManagerView] = field(default_factory=dict)
    day: int = 0
    created_ms: int = 0
    horizon: TombstoneHorizon = NO_HORIZON
    announced: BrokerTable | None = None
    configured: Mapping[str, BrokerInfo] | None = None

    @cached_property
    def areas(self) -> dict[BrokerInfo, tuple[str, ...]]:
        """Areas of each gateway, in the order they were set; none: it is unlisted."""
        gateways = {
            parse_gateway_key(key) for key in self.records if key.is_gateway_areas
        }
        areas_of = {gateway: self._areas_of(gateway) for gateway in sorted(gateways)}
        return {g: areas for g, areas in areas_of.items() if areas is not None}

    @cached_property
    def brokers(self) -> tuple[BrokerEntry, ...]:
        """The distributed brokers, shortest area first."""
        entries = [
            BrokerEntry(key.name, record.value)
            for key, record in self.records.items()
            if key.kind == "broker" and isinstance(record.value, BrokerInfo)
        ]
        return tuple(sorted(entries, key=lambda e: (len(e.topic), e.topic)))

    @cached_property
    def version(self) -> int:
        """Version of the broker table: the number of its changes at all Managers.

        Managers with the same records have the same version, and each change adds one.
        It never falls: merging takes the larger count of each Manager.
        """
        return self.horizon.retired + sum(
            sum(record.edits.values())
            for key, record in self.records.items()
            if key.kind == "broker"
        )

    @cached_property
    def newest_table(self) -> BrokerTable:
        """The broker table of the records."""
        return BrokerTable(self.version, self.brokers)

    @property
    def table(self) -> BrokerTable:
        """The broker table to publish: the newest one, or one on the way to it."""
        return self.announced or self.newest_table

    @cached_property
    def gateways(self) -> tuple[BrokerEntry, ...]:
        """The gateway list to publish: one entry for each present gateway and area."""
        here = (g for g in self.areas if g not in self.away or g in self.seen_by_others)
        return tuple(BrokerEntry(area, g) for g in here for area in self.areas[g])

    @property
    def here(self) -> frozenset[BrokerInfo]:
        """Gateways that we see."""
        return self.seen - self.away

    @cached_property
    def seen_by_others(self) -> frozenset[BrokerInfo]:
        """Gateways that another Manager sees."""
        return frozenset(g for view in self.views.values() for g in view.here)

    @cached_property
    def reported_versions(self) -> Mapping[BrokerInfo, int]:
        """Newest table version that each gateway reported to any Manager."""
        found = dict(self.applied_versions)
        for view in self.views.values():
            for gateway, version in view.applied:
                found[gateway] = max(version, found.get(gateway, version))
        return found

    @cached_property
    def original_gateways(self) -> tuple[BrokerInfo, ...]:
        """Present gateways without heartbeats: those of the published Gamma."""
        silent = {g for view in self.views.values() for g in view.without_heartbeat}
        mine = self.here | silent
        return tuple(g for g in self.areas if g in mine - self.heartbeating)

    @cached_property
    def laggards(self) -> tuple[BrokerInfo, ...]:
        """Present gateways that have not applied the table; none for an empty one."""
        here = self.here | self.seen_by_others
        version = self.table.version
        return tuple(
            g
            for g in (self.areas if self.table.brokers else ())
            if g in here and self._reported(g) < version
        )

    @property
    def is_complete(self) -> bool:
        """Whether every present gateway has applied the table."""
        return not self.laggards

    @property
    def own_view(self) -> ManagerView:
        """Our view, for the other Managers."""
        return ManagerView(
            self.manager_id,
            tuple(sorted(self.here)),
            tuple(sorted(self.applied_versions.items())),
            day=self.day,
            horizon=self.horizon,
            without_heartbeat=tuple(sorted(self.here - self.heartbeating)),
            brokers=tuple(sorted(self.brokers_here)),
        )

    def owner_of(self, gateway: BrokerInfo) -> str | None:
        """Name of the gateway with an address; None if no certificate has it."""
        record = self.records.get(RecordKey("owner", str(gateway)))
        return record.value[0] if record and isinstance(record.value, tuple) else None

    def with_owner(
        self, gateway: BrokerInfo, name: str | None, now_ms: int = 0
    ) -> "Registry":
        """With an address bound to the certificate that announces it.

        The first certificate keeps an address until an administrator removes the
        gateway. It has one address: at a new one it keeps its areas. It may move once
        an hour, because each move leaves tombstones. An address with a stamp of the
        future, from a clock that was ahead, does not hold it back.

        Args:
            gateway: The address.
            name: Name of the certificate; None on a link without certificates.
            now_ms: Wall clock, for the stamp.

        Raises:
            DirectoryError: The address is bound to another name, or the name has moved
                within the hour.
        """
        owner = self.owner_of(gateway)
        if owner != name and owner is not None:
            rule = f"an address that is not yet {owner}'s"
            remedy = (
                "revoke the wrong one's certificate, or gateway-daemon admin forget"
            )
            raise DirectoryError("broker_info", rule, f"{gateway} from {name}", remedy)
        if owner == name:
            return self
        earlier = {
            parse_gateway_key(key): record.stamp.ms
            for key, record in self.records.items()
            if key.kind == "owner" and record.value == (name,)
        }
        ages_ms = [abs(now_ms - since_ms) for since_ms in earlier.values()]
        if any(age_ms < MOVE_INTERVAL_MS for age_ms in ages_ms):
            known = ", ".join(map(str, earlier))
            rule = f"the address of {name}, {known}, for an hour after a change"
            raise DirectoryError("broker_info", rule, str(gateway))
        registry = self.with_value("owner", str(gateway), (name or "",), now_ms)
        for former in earlier:
            registry = registry.with_moved(former, gateway, now_ms)
        return registry

    def with_moved(
        self, former: BrokerInfo, gateway: BrokerInfo, now_ms: int
    ) -> "Registry":
        """With a gateway at a new address, with its areas."""
        registry = self
        if former in self.areas and gateway not in self.areas:
            areas = self.areas[former]
            registry = registry.with_value("areas", str(gateway), areas, now_ms)
        if former in self.areas:
            return registry.without_gateway(former, now_ms)
        return registry.with_value("owner", str(former), None, now_ms)

    def with_notice(self, notice: GatewayNotice, now_ms: int = 0) -> "Registry":
        """With a gateway that started, or applied a table.

        A new gateway serves the whole world until its areas are set. One that starts
        has no table. The original's gateways send "up" once, when no Manager may be
        subscribed, so "complete" registers them too.
        """
        gateway = notice.broker_info
        applied = {**self.applied_versions, gateway: notice.version}
        updated = replace(self, seen=self.seen | {gateway}, applied_versions=applied)
        return updated.with_returned(gateway).with_gateway(gateway, now_ms)

    def with_gateway(self, gateway: BrokerInfo, now_ms: int) -> "Registry":
        """With a gateway in the list; a new one serves the whole world."""
        if gateway in self.areas:
            return self
        key = RecordKey("areas", str(gateway))
        if key in self.records:
            return self.with_value("areas", key.name, (WHOLE_WORLD,), now_ms)
        records = {**self.records, key: Record((WHOLE_WORLD,))}
        return replace(self, records=records)

    def with_departed(self, gateway: BrokerInfo) -> "Registry":
        """With a gateway marked as away."""
        if gateway not in self.areas:
            return self
        return replace(self, away=self.away | {gateway})

    def with_heartbeat(self, gateway: BrokerInfo) -> "Registry":
        """With a gateway that sends heartbeats and leaves a last will."""
        here = self.with_returned(gateway)
        return replace(
            here,
            heartbeating=self.heartbeating | {gateway},
            seen=self.seen | {gateway},
        )

    def with_returned(self, gateway: BrokerInfo) -> "Registry":
        """With a gateway no longer marked as away."""
        return replace(self, away=self.away - {gateway})

    def without_gateway(self, gateway: BrokerInfo, now_ms: int = 0) -> "Registry":
        """Without a gateway that an administrator removed.

        Raises:
            DirectoryError: It is not registered.
        """
        self._check_known(gateway)
        registry = self.with_value("areas", str(gateway), None, now_ms)
        kinds: tuple[RecordKind, ...] = ("wish", "owner")
        for kind in kinds:
            if RecordKey(kind, str(gateway)) in self.records:
                registry = registry.with_value(kind, str(gateway), None, now_ms)
        alone = frozenset({gateway})
        return replace(
            registry,
            applied_versions={
                g: v for g, v in self.applied_versions.items() if g != gateway
            },
            seen=self.seen - alone,
            away=self.away - alone,
            heartbeating=self.heartbeating - alone,
        )

    def without_laggards(self) -> "Registry":
        """With the newest table counted as applied by the laggards.

        They still receive by the old route, as both are in use during a change.
        """
        applied = dict.fromkeys(self.laggards, self.table.version)
        return replace(self, applied_versions={**self.applied_versions, **applied})

    def with_areas(self, setting: AreaSetting, now_ms: int = 0) -> "Registry":
        """With the areas of a gateway replaced (``topics``) or one added (``topic``).

        Without areas the gateway is unlisted: no new client chooses it.

        Raises:
            DirectoryError: The gateway is not registered.
        """
        gateway = setting.broker_info
        self._check_known(gateway)
        if setting.topics is not None:
            areas = tuple(dict.fromkeys(setting.topics))
        else:
            added = (*self.areas[gateway], setting.topic or WHOLE_WORLD)
            small = dict.fromkeys(a for a in added if a != WHOLE_WORLD)
            areas = tuple(small) or (WHOLE_WORLD,)
        if areas == self.areas[gateway]:
            return self
        return self.with_value("areas", str(gateway), areas, now_ms)

    def with_requested_areas(self, setting: AreaSetting, now_ms: int = 0) -> "Registry":
        """With the areas from a gateway's own settings.

        A gateway sends them at every start. Only a change counts, so that an
        administrator's setting stays in force until then.

        Raises:
            DirectoryError: The gateway is not registered.
        """
        gateway = setting.broker_info
        self._check_known(gateway)
        key = RecordKey("wish", str(gateway))
        known = self.records.get(key)
        if known is None:
            records = {**self.records, key: Record(setting.topics)}
            return replace(self, records=records)
        if known.value == setting.topics:
            return self
        return self.with_value("wish", str(gateway), setting.topics, now_ms)

    def with_broker(self, entry: BrokerEntry, now_ms: int = 0) -> "Registry":
        """With a distributed broker added; the table's version grows by one.

        Raises:
            DirectoryError: The area already has a broker.
        """
        if entry in self.brokers:
            return self
        holders = [e.broker_info for e in self.brokers if e.topic == entry.topic]
        if holders:
            rule = "an area without a broker"
            remedy = f"remove its broker {holders[0]} first"
            raise DirectoryError("topic", rule, _format_entry(entry), remedy)
        return self.with_value("broker", entry.topic, entry.broker_info, now_ms)

    def without_broker(self, entry: BrokerEntry, now_ms: int = 0) -> "Registry":
        """Without a distributed broker; the table's version grows by one.

        Raises:
            DirectoryError: It is not in the table.
        """
        if entry not in self.brokers:
            known = ", ".join(map(_format_entry, self.brokers)) or "none"
            rule = f"one of the table: {known}"
            raise DirectoryError("broker", rule, _format_entry(entry))
        return self.with_value("broker", entry.topic, None, now_ms)

    def with_configured_brokers(
        self, entries: Iterable[BrokerEntry], now_ms: int = 0
    ) -> "Registry":
        """With the brokers of the settings that were edited since the last start.

        So a restart alone does not undo a later change by an administrator or another
        Manager. If the last start is unknown, in a new registry or one of an earlier
        version, they replace only values of the settings.
        """
        before = self.configured
        named = {entry.topic: entry.broker_info for entry in entries}
        registry = replace(self, configured=named)
        for area, broker in named.items():
            known = registry.records.get(key := RecordKey("broker", area))
            if before is not None and before.get(area) == broker:
                continue
            if known is None:
                records = {**registry.records, key: Record(broker)}
                registry = replace(registry, records=records)
            elif known.value != broker and (
                before is not None or known.edits.keys() == {SETTINGS_WRITER}
            ):
                registry = registry.with_value("broker", area, broker, now_ms)
        return registry

    def with_value(
        self, kind: RecordKind, name: str, value: RecordValue, now_ms: int
    ) -> "Registry":
        """With a new value of a record, stamped now."""
        key = RecordKey(kind, name)
        latest = max(
            (r.stamp for r in self.records.values()), default=HybridTimestamp()
        )
        known = self.records.get(key) or Record(None, edits={})
        record = known.with_value(value, latest.next(now_ms, self.manager_id))
        return replace(self, records={**self.records, key: record})

    def with_record(self, key: RecordKey, record: Record) -> "Registry":
        """With a record of another Manager merged."""
        known = self.records.get(key)
        both = record if known is None else merge_records(known, record)
        if both == known:
            return self
        return replace(self, records={**self.records, key: both})

    def describe_conflict(self, key: RecordKey, record: Record) -> str | None:
        """Describe the concurrent edit that a merge will overrule; None without one."""
        known = self.records.get(key)
        if known is None or not is_conflict(known, record):
            return None
        wins = merge_records(known, record)
        loses = known if wins.value == record.value else record
        return (
            f"conflict: {key.kind} {key.name} is {_text(wins)}, set at manager "
            f"{_author(wins)}; overruled is {_text(loses)}, set at {_author(loses)}"
        )

    def with_view(self, view: ManagerView) -> "Registry":
        """With the view of another Manager, or without it when that one is away."""
        if view.is_away:
            return self.without_view(view.manager)
        return replace(self, views={**self.views, view.manager: view})

    def without_view(self, manager: str) -> "Registry":
        """Without the view of a Manager that cannot be reached."""
        views = {name: v for name, v in self.views.items() if name != manager}
        return replace(self, views=views)

    def with_inherited_view(self, view: ManagerView) -> "Registry":
        """With the gateways of another Manager's view, which we take over."""
        theirs = dict(view.applied)
        applied = {
            gateway: max(
                theirs.get(gateway, -1), self.applied_versions.get(gateway, -1)
            )
            for gateway in theirs.keys() | self.applied_versions.keys()
        }
        return replace(
            self, seen=self.seen | frozenset(view.here), applied_versions=applied
        )

    def _areas_of(self, gateway: BrokerInfo) -> tuple[str, ...] | None:
        """Areas by the later of request and administrator; None after deletion."""
        both = [self.records.get(RecordKey(k, str(gateway))) for k in ("wish", "areas")]
        latest = max((r for r in both if r), key=lambda r: r.stamp)
        return latest.value if isinstance(latest.value, tuple) else None

    def _reported(self, gateway: BrokerInfo) -> int:
        return self.reported_versions.get(gateway, -1)

    def _check_known(self, gateway: BrokerInfo) -> None:
        if gateway not in self.areas:
            rule = "a gateway that sent a notice"
            raise DirectoryError("broker_info", rule, str(gateway))


def _format_entry(entry: BrokerEntry) -> str:
    return f"{entry.topic} -> {entry.broker_info}"


def _text(record: Record) -> str:
    value = record.value
    return ", ".join(value) if isinstance(value, tuple) else str(value or "nothing")


def _author(record: Record) -> str:
    return record.stamp.manager or "its settings"


DAY_MS = 86_400_000

MAX_PARTITION_DAYS = 30
"""Longest supported partition, and greatest age of a restored registry file."""

TOMBSTONE_DAYS = 90
"""Age limit of tombstones: three times as long, for wrong clocks and late operators."""


def horizon_ms(days: Iterable[int]) -> int:
    """Return the time up to which tombstones may be dropped.

    Args:
        days: Days since 1970 by the clock of every Manager; 0 if unknown.
    """
    return _limit_ms(min(days))


def _limit_ms(day: int) -> int:
    return max(0, day - TOMBSTONE_DAYS) * DAY_MS


def is_collectable(key: RecordKey, record: Record, until_ms: int) -> bool:
    """Whether a record may be dropped.

    A tombstone of a broker from the settings is kept: the next start would add it
    again.
    """
    is_named = key.kind == "broker" and SETTINGS_WRITER in record.edits
    is_gone = record.value is None and not is_named
    return is_gone and 0 < record.stamp.ms <= until_ms


def advance_day(registry: Registry, day: int, peer_count: int) -> Registry:
    """Set the day, and drop tombstones before the common horizon.

    Args:
        registry: Current state.
        day: Since 1970, by our clock.
        peer_count: Number of other Managers. If one is unreachable nothing is dropped,
            since it may still hold the old value.
    """
    today = registry if day == registry.day else replace(registry, day=day)
    if (own := _without_future(today, today.horizon)) != today.horizon:
        today = replace(today, horizon=own)
    if len(registry.views) < peer_count:
        return today
    days = [day, *(view.day for view in registry.views.values())]
    return collect_tombstones(today, TombstoneHorizon(horizon_ms(days)))


def collect_tombstones(registry: Registry, horizon: TombstoneHorizon) -> Registry:
    """Drop tombstones up to a horizon, ours or another Manager's, if it is newer.

    The version of the broker table does not fall.
    """
    own, records = registry.horizon, registry.records
    horizon = _without_future(registry, horizon)
    if horizon.ms < own.ms or horizon <= own:
        return registry
    gone = [k for k, r in records.items() if is_collectable(k, r, horizon.ms)]
    kept = {key: record for key, record in records.items() if key not in gone}
    changes = sum(sum(records[k].edits.values()) for k in gone if k.kind == "broker")
    retired = max(horizon.retired, own.retired + changes)
    return replace(
        registry, records=kept, horizon=TombstoneHorizon(horizon.ms, retired)
    )


def _without_future(registry: Registry, horizon: TombstoneHorizon) -> TombstoneHorizon:
    """Limit a horizon to what the fastest clock of the Managers allows now.

    A later one is from a time when all clocks were ahead, as that of a single Manager.
    All that is new would count as forgotten, for as long as the clock was ahead.
    """
    days = [registry.day, *(view.day for view in registry.views.values())]
    if not registry.day:
        return horizon
    return TombstoneHorizon(min(horizon.ms, _limit_ms(max(days))), horizon.retired)


def is_forgotten(registry: Registry, key: RecordKey, record: Record) -> bool:
    """Whether a record is one that was dropped before.

    A Manager sends such a record after a longer absence than supported, or from an old
    backup. A registry created after the record's stamp accepts it.
    """
    if key in registry.records:
        return False
    is_old = registry.created_ms < record.stamp.ms <= registry.horizon.ms
    return is_old or is_collectable(key, record, registry.horizon.ms)

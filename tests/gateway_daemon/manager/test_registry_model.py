"""Model test of the registry: any sequence of events."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from gateway_daemon.manager import storage
from gateway_daemon.manager.registry import Registry
from spatial_mqtt.directory import AreaSetting, BrokerEntry, BrokerInfo, GatewayNotice
from spatial_mqtt.errors import DirectoryError

GATEWAYS = st.sampled_from([BrokerInfo("g", n) for n in (1, 2, 3)])
AREAS = st.sampled_from(["/", "/1", "/1/2", "/3"])
BROKERS = st.sampled_from([BrokerInfo("b", n) for n in (1, 2, 3)])
SETTINGS = BrokerEntry("/", BrokerInfo("b", 1))


class RegistryMachine(RuleBasedStateMachine):
    """One Manager; the model holds the areas and brokers that should result."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "registry.json"
        self.settings = SETTINGS
        self.registry = Registry("m").with_configured_brokers([SETTINGS])
        self.areas: dict[BrokerInfo, tuple[str, ...]] = {}
        self.away: set[BrokerInfo] = set()
        self.applied: dict[BrokerInfo, int] = {}
        self.brokers = {"/": BrokerInfo("b", 1)}
        self.changes = 1

    def teardown(self) -> None:
        self.folder.cleanup()

    def try_change(self, change: str, *args: object) -> bool:
        """Return whether the registry accepted it; a refusal changes nothing."""
        before = self.registry
        try:
            self.registry = getattr(self.registry, change)(*args)
        except DirectoryError:
            assert self.registry is before
            return False
        return True

    @rule(gateway=GATEWAYS)
    def gateway_connects(self, gateway: BrokerInfo) -> None:
        assert self.try_change("with_notice", GatewayNotice(gateway, "up"))
        self.areas.setdefault(gateway, ("/",))
        self.away.discard(gateway)
        self.applied[gateway] = -1

    @rule(gateway=GATEWAYS)
    def gateway_departs(self, gateway: BrokerInfo) -> None:
        assert self.try_change("with_departed", gateway)
        if gateway in self.areas:
            self.away.add(gateway)

    @rule(gateway=GATEWAYS)
    def gateway_sends_heartbeat(self, gateway: BrokerInfo) -> None:
        assert self.try_change("with_heartbeat", gateway)
        self.away.discard(gateway)

    @rule(gateway=GATEWAYS, areas=st.lists(AREAS, max_size=3))
    def areas_are_set(self, gateway: BrokerInfo, areas: list[str]) -> None:
        setting = AreaSetting(gateway, topics=tuple(areas))
        if self.try_change("with_areas", setting):
            self.areas[gateway] = tuple(dict.fromkeys(areas))
        else:
            assert gateway not in self.areas

    @rule(gateway=GATEWAYS, area=AREAS)
    def area_is_added(self, gateway: BrokerInfo, area: str) -> None:
        """The older form, which adds; "/" cannot be combined with other areas."""
        if self.try_change("with_areas", AreaSetting(gateway, topic=area)):
            added = dict.fromkeys((*self.areas[gateway], area))
            small = tuple(each for each in added if each != "/")
            self.areas[gateway] = small or ("/",)

    @rule(gateway=GATEWAYS)
    def gateway_is_removed(self, gateway: BrokerInfo) -> None:
        assert self.try_change("without_gateway", gateway) == (gateway in self.areas)
        self.areas.pop(gateway, None)
        self.away.discard(gateway)
        self.applied.pop(gateway, None)

    @rule(area=AREAS, broker=BROKERS)
    def broker_is_added(self, area: str, broker: BrokerInfo) -> None:
        known = self.brokers.get(area)
        is_accepted = self.try_change("with_broker", BrokerEntry(area, broker))
        assert is_accepted == (known in {None, broker})
        if known is None:
            self.brokers[area] = broker
            self.changes += 1

    @rule(area=AREAS, broker=BROKERS)
    def broker_is_removed(self, area: str, broker: BrokerInfo) -> None:
        is_known = self.brokers.get(area) == broker
        assert self.try_change("without_broker", BrokerEntry(area, broker)) == is_known
        if is_known:
            del self.brokers[area]
            self.changes += 1

    @rule(gateway=GATEWAYS, behind=st.integers(0, 1))
    def table_is_applied(self, gateway: BrokerInfo, behind: int) -> None:
        version = self.registry.version - behind
        notice = GatewayNotice(gateway, "complete", version)
        assert self.try_change("with_notice", notice)
        self.applied[gateway] = version
        self.areas.setdefault(gateway, ("/",))
        self.away.discard(gateway)

    @rule()
    def laggards_are_dropped(self) -> None:
        laggards = self.registry.laggards
        self.registry = self.registry.without_laggards()
        assert self.registry.is_complete
        self.applied |= dict.fromkeys(laggards, self.registry.version)

    @rule()
    def manager_restarts(self) -> None:
        """The original's gateways do not report again what they applied."""
        storage.save_registry(
            self.path, storage.RegistrySnapshot.from_registry(self.registry)
        )
        self.registry = storage.load_registry(self.path, "m").with_configured_brokers([
            self.settings
        ])

    @rule(broker=BROKERS)
    def settings_are_edited(self, broker: BrokerInfo) -> None:
        is_edit = broker != self.settings.broker_info
        self.settings = BrokerEntry("/", broker)
        self.manager_restarts()
        if is_edit and self.brokers.get("/") != broker:
            self.brokers["/"] = broker
            self.changes += 1

    @invariant()
    def directory_matches_the_model(self) -> None:
        listed = {(entry.broker_info, entry.topic) for entry in self.registry.gateways}
        assert listed == {
            (gateway, area)
            for gateway, areas in self.areas.items()
            for area in areas
            if gateway not in self.away
        }
        table = self.registry.table
        assert {e.topic: e.broker_info for e in table.brokers} == self.brokers
        assert table.version == self.changes
        lengths = [len(entry.topic) for entry in table.brokers]
        assert lengths == sorted(lengths)

    @invariant()
    def laggards_match_the_model(self) -> None:
        waits = {
            g
            for g in self.areas.keys() - self.away
            if self.brokers and self.applied.get(g, -1) < self.changes
        }
        assert set(self.registry.laggards) == waits & set(self.registry.seen)
        assert waits <= set(self.registry.seen)


TestMachine = RegistryMachine.TestCase

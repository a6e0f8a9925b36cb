"""The registry beside a model of it, through any sequence of what can happen."""

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
SETTINGS = (BrokerEntry("/", BrokerInfo("b", 1)),)


class Machine(RuleBasedStateMachine):
    """One Manager; the model is what an administrator would write on paper."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "registry.json"
        self.registry = Registry("m").with_configured_brokers(SETTINGS)
        self.areas: dict[BrokerInfo, tuple[str, ...]] = {}
        self.away: set[BrokerInfo] = set()
        self.applied: dict[BrokerInfo, int] = {}
        self.brokers = {"/": BrokerInfo("b", 1)}
        self.changes = 1

    def teardown(self) -> None:
        self.folder.cleanup()

    def try_(self, change: str, *args: object) -> bool:
        """Whether the registry took it; a refusal changes nothing."""
        before = self.registry
        try:
            self.registry = getattr(self.registry, change)(*args)
        except DirectoryError:
            assert self.registry is before
            return False
        return True

    @rule(gateway=GATEWAYS)
    def comes_up(self, gateway: BrokerInfo) -> None:
        assert self.try_("with_notice", GatewayNotice(gateway, "up"))
        self.areas.setdefault(gateway, ("/",))
        self.away.discard(gateway)

    @rule(gateway=GATEWAYS)
    def is_gone(self, gateway: BrokerInfo) -> None:
        assert self.try_("with_departed", gateway)
        if gateway in self.areas:
            self.away.add(gateway)

    @rule(gateway=GATEWAYS)
    def promises(self, gateway: BrokerInfo) -> None:
        assert self.try_("with_heartbeat", gateway)
        self.away.discard(gateway)

    @rule(gateway=GATEWAYS, areas=st.lists(AREAS, min_size=1, max_size=3))
    def areas_are_set(self, gateway: BrokerInfo, areas: list[str]) -> None:
        setting = AreaSetting(gateway, topics=tuple(areas))
        if self.try_("with_areas", setting):
            self.areas[gateway] = tuple(dict.fromkeys(areas))
        else:
            assert gateway not in self.areas

    @rule(gateway=GATEWAYS, area=AREAS)
    def area_is_added(self, gateway: BrokerInfo, area: str) -> None:
        """The older form; the whole world is no area beside others."""
        if self.try_("with_areas", AreaSetting(gateway, topic=area)):
            added = dict.fromkeys((*self.areas[gateway], area))
            small = tuple(each for each in added if each != "/")
            self.areas[gateway] = small or ("/",)

    @rule(gateway=GATEWAYS)
    def is_forgotten(self, gateway: BrokerInfo) -> None:
        assert self.try_("without_gateway", gateway) == (gateway in self.areas)
        self.areas.pop(gateway, None)
        self.away.discard(gateway)
        self.applied.pop(gateway, None)

    @rule(area=AREAS, broker=BROKERS)
    def broker_is_added(self, area: str, broker: BrokerInfo) -> None:
        known = self.brokers.get(area)
        is_taken = self.try_("with_broker", BrokerEntry(area, broker))
        assert is_taken == (known in {None, broker})
        if known is None:
            self.brokers[area] = broker
            self.changes += 1

    @rule(area=AREAS, broker=BROKERS)
    def broker_is_removed(self, area: str, broker: BrokerInfo) -> None:
        is_known = self.brokers.get(area) == broker
        assert self.try_("without_broker", BrokerEntry(area, broker)) == is_known
        if is_known:
            del self.brokers[area]
            self.changes += 1

    @rule(gateway=GATEWAYS, behind=st.integers(0, 1))
    def table_is_applied(self, gateway: BrokerInfo, behind: int) -> None:
        version = self.registry.version - behind
        notice = GatewayNotice(gateway, "complete", version)
        if self.try_("with_notice", notice):
            self.applied[gateway] = version
        else:
            assert gateway not in self.areas

    @rule()
    def nobody_is_waited_for(self) -> None:
        laggards = self.registry.laggards
        self.registry = self.registry.without_laggards()
        assert self.registry.is_complete
        self.applied |= dict.fromkeys(laggards, self.registry.version)

    @rule()
    def restarts(self) -> None:
        """What gateways reported is not kept: they report again."""
        storage.save_registry(
            self.path, storage.RegistrySnapshot.from_registry(self.registry)
        )
        self.registry = storage.load_registry(self.path, "m").with_configured_brokers(
            SETTINGS
        )
        self.applied.clear()

    @invariant()
    def publishes_what_is_so(self) -> None:
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
    def waits_for_whom_it_must(self) -> None:
        waits = {
            g
            for g in self.areas.keys() - self.away
            if self.applied.get(g, -1) < self.changes
        }
        assert set(self.registry.laggards) == waits & set(self.registry.seen)
        assert waits <= set(self.registry.seen)


TestMachine = Machine.TestCase

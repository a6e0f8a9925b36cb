"""The Manager's registry as a pure state machine: a message in, a new state out.

Source: Gamma (seed 000) and the API table of the published system.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from spatial_mqtt.directory import (
    AreaSetting,
    BrokerInfo,
    BrokerTable,
    Entry,
    GatewayNotice,
)
from spatial_mqtt.errors import DirectoryError

WHOLE_WORLD = "/"


@dataclass(frozen=True)
class Registry:
    """What a Manager knows.

    Attributes:
        areas: Areas of each gateway, in the order they were set.
        applied: Newest table version that each gateway reported.
        brokers: The distributed brokers, shortest area first.
        version: Version of the broker table.
        away: Gateways that are known but do not answer now. They are not listed, and
            nobody waits for them; their areas are theirs when they come back.
        faithful: Gateways that say goodbye, so that nobody need look after them.
    """

    areas: dict[BrokerInfo, tuple[str, ...]] = field(default_factory=dict)
    applied: dict[BrokerInfo, int] = field(default_factory=dict)
    brokers: tuple[Entry, ...] = ()
    version: int = 0
    away: frozenset[BrokerInfo] = frozenset()
    faithful: frozenset[BrokerInfo] = frozenset()

    @property
    def gateways(self) -> tuple[Entry, ...]:
        """The gateway list to publish: one entry for each gateway and area."""
        return tuple(
            Entry(area, gateway)
            for gateway, areas in self.areas.items()
            if gateway not in self.away
            for area in areas
        )

    @property
    def table(self) -> BrokerTable:
        """The broker table to publish."""
        return BrokerTable(self.version, self.brokers)

    @property
    def is_complete(self) -> bool:
        """Whether every gateway that is there applied the newest table."""
        return not self.laggards

    @property
    def laggards(self) -> tuple[BrokerInfo, ...]:
        """Gateways that are there and have not applied the newest table."""
        here = [gateway for gateway in self.areas if gateway not in self.away]
        return tuple(g for g in here if self.applied.get(g, -1) < self.version)

    def noticed(self, notice: GatewayNotice) -> "Registry":
        """A gateway came up, or applied a table.

        A new gateway serves the whole world until its areas are set.

        Raises:
            DirectoryError: A gateway that is not registered says "complete".
        """
        gateway = notice.broker_info
        if notice.status == "up":
            areas = self.areas.get(gateway, (WHOLE_WORLD,))
            away = self.away - {gateway}
            return replace(self, areas={**self.areas, gateway: areas}, away=away)
        self._check_known(gateway)
        return replace(self, applied={**self.applied, gateway: notice.version})

    def departed(self, gateway: BrokerInfo) -> "Registry":
        """A gateway said goodbye, or its broker did, or it does not answer."""
        if gateway not in self.areas:
            return self
        return replace(self, away=self.away | {gateway})

    def promised(self, gateway: BrokerInfo) -> "Registry":
        """A gateway says that it will say goodbye; it is here."""
        here = self.returned(gateway)
        return replace(here, faithful=self.faithful | {gateway})

    def returned(self, gateway: BrokerInfo) -> "Registry":
        """A gateway answers again."""
        return replace(self, away=self.away - {gateway})

    def without_gateway(self, gateway: BrokerInfo) -> "Registry":
        """An administrator took a gateway out for good.

        Raises:
            DirectoryError: It is not registered.
        """
        self._check_known(gateway)
        areas = {g: a for g, a in self.areas.items() if g != gateway}
        applied = {g: v for g, v in self.applied.items() if g != gateway}
        return replace(self, areas=areas, applied=applied, away=self.away - {gateway})

    def without_waiting(self) -> "Registry":
        """Go on without the gateways that let a table wait: they listen by both."""
        applied = dict.fromkeys(self.laggards, self.version)
        return replace(self, applied={**self.applied, **applied})

    def with_areas(self, setting: AreaSetting) -> "Registry":
        """Areas of a gateway were set (``topics``) or one was added (``topic``).

        Raises:
            DirectoryError: The gateway is not registered.
        """
        gateway = setting.broker_info
        self._check_known(gateway)
        if setting.topics is not None:
            areas = tuple(dict.fromkeys(setting.topics)) or (WHOLE_WORLD,)
        else:
            added = (*self.areas[gateway], setting.topic or WHOLE_WORLD)
            areas = tuple(dict.fromkeys(a for a in added if a != WHOLE_WORLD))
        return replace(self, areas={**self.areas, gateway: areas})

    def with_broker(self, entry: Entry) -> "Registry":
        """A distributed broker was added; the table's version grows by one.

        Raises:
            DirectoryError: That area has a broker already.
        """
        if entry in self.brokers:
            return self
        if any(known.topic == entry.topic for known in self.brokers):
            raise DirectoryError(
                "topic",
                "an area without a broker",
                entry.topic,
                "remove its broker first",
            )
        brokers = tuple(
            sorted((*self.brokers, entry), key=lambda e: (len(e.topic), e.topic))
        )
        return replace(self, brokers=brokers, version=self.version + 1)

    def without_broker(self, entry: Entry) -> "Registry":
        """A distributed broker was taken out; the table's version grows by one.

        Raises:
            DirectoryError: It is not in the table.
        """
        if entry not in self.brokers:
            rule = f"one of the table: {', '.join(map(_words, self.brokers)) or 'none'}"
            raise DirectoryError("broker", rule, _words(entry))
        brokers = tuple(known for known in self.brokers if known != entry)
        return replace(self, brokers=brokers, version=self.version + 1)

    def with_brokers(self, entries: Iterable[Entry]) -> "Registry":
        """The brokers of the settings, added to a registry that may know them."""
        registry = self
        for entry in entries:
            registry = registry.with_broker(entry)
        return registry

    def _check_known(self, gateway: BrokerInfo) -> None:
        if gateway not in self.areas:
            rule = "a gateway that sent its 'up' notice"
            raise DirectoryError("broker_info", rule, str(gateway))


def _words(entry: Entry) -> str:
    return f"{entry.topic} -> {entry.broker_info}"

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
    """

    areas: dict[BrokerInfo, tuple[str, ...]] = field(default_factory=dict)
    applied: dict[BrokerInfo, int] = field(default_factory=dict)
    brokers: tuple[Entry, ...] = ()
    version: int = 0

    @property
    def gateways(self) -> tuple[Entry, ...]:
        """The gateway list to publish: one entry for each gateway and area."""
        return tuple(
            Entry(area, gateway)
            for gateway, areas in self.areas.items()
            for area in areas
        )

    @property
    def table(self) -> BrokerTable:
        """The broker table to publish."""
        return BrokerTable(self.version, self.brokers)

    @property
    def is_complete(self) -> bool:
        """Whether every gateway applied the newest table."""
        return all(self.applied.get(g, -1) >= self.version for g in self.areas)

    def noticed(self, notice: GatewayNotice) -> "Registry":
        """A gateway came up, or applied a table.

        A new gateway serves the whole world until its areas are set.

        Raises:
            DirectoryError: A gateway that is not registered says "complete".
        """
        gateway = notice.broker_info
        if notice.status == "up":
            areas = self.areas.get(gateway, (WHOLE_WORLD,))
            return replace(self, areas={**self.areas, gateway: areas})
        self._check_known(gateway)
        return replace(self, applied={**self.applied, gateway: notice.version})

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

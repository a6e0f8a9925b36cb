"""Gateways: whom the Managers list, and what nodes tell of the one they use."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from backend_spark.console.nodes import SILENT_AFTER_S, Node
from spatial_mqtt import self_report
from spatial_mqtt.cells import Cell
from spatial_mqtt.directory import Entry, decode_gateways, decode_place
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.errors import BrokerError, DirectoryError, PositionError, TopicError
from spatial_mqtt.topics import GATEWAY_INFO, cell_of

log = logging.getLogger(__name__)

ORDER: Final = ("gone", "silent", "well")
EVERY_S: Final = 15.0
OLD_S: Final = 60.0
"""An older list says nothing of now."""

LEAST_LEVEL: Final = 5
"""The centre of a larger area, some 300 km wide, is no place."""

Fetch = Callable[[Endpoint], dict[str, bytes]]
"""What a Manager's broker retains, by topic; the list is always there."""


@dataclass
class Gateways:
    """What the Managers told last.

    Attributes:
        areas: Areas of each gateway that was ever listed, by ``host:port``.
        listed: Those of the newest list.
        told_s: Unix time of it; None: no Manager ever answered.
        problem: Why the last question was not answered.
        places: Latitude and longitude of those that said where they stand.
    """

    areas: dict[str, tuple[str, ...]] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    told_s: float | None = None
    problem: str | None = None
    places: dict[str, tuple[float, float]] = field(default_factory=dict)

    def ask(self, managers: Iterable[Endpoint], fetch: Fetch, now_s: float) -> None:
        """Take the list of the first Manager that answers.

        Args:
            managers: Where to ask.
            fetch: Gives what the broker of one retains.
            now_s: Unix time.
        """
        problems = []
        for manager in managers:
            try:
                told = fetch(manager)
                self._take_places(told)
                return self.take(decode_gateways(told[GATEWAY_INFO]), now_s)
            except (BrokerError, DirectoryError) as error:
                problems.append(f"{manager}: {error}")
        self.problem = "; ".join(problems) or None
        if problems:
            log.warning("no list of gateways: %s", self.problem)
        return None

    def take(self, entries: Sequence[Entry], now_s: float) -> None:
        """Take a list."""
        areas: dict[str, tuple[str, ...]] = {}
        for entry in entries:
            name = str(Endpoint(entry.broker_info.host, entry.broker_info.port))
            areas[name] = (*areas.get(name, ()), entry.topic)
        self.areas = self.areas | areas
        self.listed, self.told_s, self.problem = frozenset(areas), now_s, None

    def _take_places(self, told: dict[str, bytes]) -> None:
        self.places = {}
        for topic, payload in told.items():
            try:
                place = None if topic == GATEWAY_INFO else decode_place(payload)
            except DirectoryError as error:
                log.warning("%s: %s", topic, error)
                continue
            if place is not None:
                name = str(Endpoint(place.broker_info.host, place.broker_info.port))
                self.places[name] = (place.latitude, place.longitude)

    def rows(self, nodes: Iterable[Node], now_s: float) -> list[dict[str, Any]]:
        """One row for each gateway that is or was, worst first."""
        served: dict[str, list[Node]] = {name: [] for name in self.areas}
        for node in nodes:
            said = node.readings.get(self_report.GATEWAY)
            if said is not None and said.text not in {None, self_report.NOTHING}:
                served.setdefault(str(said.text), []).append(node)
        rows = [self._row(name, its, now_s) for name, its in served.items()]
        return sorted(rows, key=lambda row: (ORDER.index(row["state"]), row["id"]))

    def _row(self, name: str, nodes: Sequence[Node], now_s: float) -> dict[str, Any]:
        heard_s = max((node.at_s for node in nodes), default=None)
        areas = self.areas.get(name, ())
        return {
            "id": name,
            "state": self._state(name, heard_s, now_s),
            "areas": areas,
            "place": self.places.get(name) or place_of(areas),
            "exact": name in self.places,
            "nodes": len(nodes),
            "heard_s": heard_s,
        }

    def _state(self, name: str, heard_s: float | None, now_s: float) -> str:
        """In one word: ``gone`` from the list, ``silent`` or ``well``.

        Where no list is to be had, only its nodes can tell.
        """
        if self.told_s is not None and now_s - self.told_s <= OLD_S:
            return "well" if name in self.listed else "gone"
        is_heard = heard_s is not None and now_s - heard_s <= SILENT_AFTER_S
        return "well" if is_heard else "silent"


def place_of(areas: Iterable[str]) -> tuple[float, float] | None:
    """Centre of the smallest area, in degrees; None where all are large."""
    cells = [cell for area in areas if (cell := _cell(area)) is not None]
    smallest = max(cells, key=lambda cell: cell.level, default=None)
    if smallest is None or smallest.level < LEAST_LEVEL:
        return None
    return smallest.center()


def _cell(area: str) -> Cell | None:
    try:
        return cell_of(area)
    except (TopicError, PositionError):
        return None

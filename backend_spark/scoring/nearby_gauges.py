"""Rain of the gauges in other cells, for comparison and in place of a missing gauge.

Scoring treats each cell by itself, but one gauge per cell cannot be tested alone. A
cell therefore gets the rain of the nearest gauges around it: at most `MAX_GAUGES`,
so that the cost per cell does not grow with the density of the network.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Final

import numpy as np

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.quality import make_rain_record
from backend_spark.scoring.rain import (
    Gauge,
    SubstituteRain,
    rain_reading,
    read_gauge,
)
from slope_science.rain_quality import NeighbourGauge, RainRecord
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason
from spatial_mqtt.cells import Cell, distance_km

_BY_RECEIPT: Final = attrgetter("at_s", "seq")

MAX_GAUGES: Final = 8
"""Largest number of gauges in other cells that a cell is compared with."""


class GaugeReports:
    """Reports of one gauge, in the two forms in which neighbours use them.

    Args:
        observations: Its readings in any order, with silver's flags.
        past: Rain up to a report that is among them; None without.
    """

    def __init__(
        self, observations: Iterable[Observation], past: RainRecord | None = None
    ) -> None:
        self._observations = sorted(observations, key=_BY_RECEIPT)
        self._past = past

    @cached_property
    def record(self) -> RainRecord:
        """Rain between the reports, for comparison."""
        return make_rain_record(self._observations, self._past, has_flags=True)

    @cached_property
    def steps(self) -> Gauge:
        """Rain by step."""
        return read_gauge(map(rain_reading, self._observations))


@dataclass(frozen=True)
class NearbyGauge:
    """A gauge in another cell.

    Attributes:
        node: Id of its node.
        distance_km: Distance of its cell.
        reports: Its reports.
    """

    node: str
    distance_km: float
    reports: GaugeReports


@dataclass(frozen=True)
class NearestRain:
    """Rain of a step at the nearest gauge that knows it.

    Attributes:
        depth_mm: Depth of the step.
        distance_km: Distance of the gauge's cell.
        node: Id of its node.
    """

    depth_mm: float
    distance_km: float
    node: str


@dataclass(frozen=True)
class NearbyRain:
    """Rain around a cell.

    Attributes:
        gauges: Gauges in other cells, the nearest first.
    """

    gauges: tuple[NearbyGauge, ...] = ()

    def nearest(self, end_s: int) -> NearestRain | None:
        """Rain of a step at the nearest gauge that knows it without doubt.

        Args:
            end_s: End of the step, Unix seconds.

        Returns:
            None where no gauge knows it. The step counts as past: a gauge that
            covered less than half of it does not know it.
        """
        for gauge in self.gauges:
            steps = gauge.reports.steps
            if steps.is_known(end_s, False) and not steps.doubted_mm.get(end_s):
                depth_mm = steps.depth_mm.get(end_s, 0.0)
                return NearestRain(depth_mm, gauge.distance_km, gauge.node)
        return None

    def substitute(self, end_s: int) -> SubstituteRain | None:
        """Rain of `nearest` in place of a cell's missing rain."""
        near = self.nearest(end_s)
        if near is None:
            return None
        reason = Reason(ReasonCode.RAIN_FROM_GAUGE, node=near.node, km=near.distance_km)
        return SubstituteRain(near.depth_mm, reason)

    def neighbours(self) -> list[NeighbourGauge]:
        """The gauges for `slope_science.rain_quality`."""
        return [NeighbourGauge(g.distance_km, g.reports.record) for g in self.gauges]


NO_NEARBY_RAIN: Final = NearbyRain()

CellDistances = Sequence[tuple[float, str]]
"""Distance in km and token of other cells, the nearest first."""


def find_nearby_cells(
    cells: Iterable[str], others: Iterable[str], radius_km: float
) -> dict[str, CellDistances]:
    """Cells with gauges around each of some cells.

    Args:
        cells: Tokens of the cells.
        others: Tokens of all cells that may have a gauge.
        radius_km: Largest distance between the centres.

    Returns:
        At most `MAX_GAUGES` other cells of each; a cell itself is not among them.
    """
    places = CellPlaces(others)
    return {cell: places.nearest(cell, radius_km) for cell in cells}


class CellPlaces:
    """Centres of cells, to find those near others.

    Args:
        tokens: Tokens of the cells.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        centers = sorted((_center(token), token) for token in set(tokens))
        self._tokens = [token for _, token in centers]
        self._degrees = np.array([place for place, _ in centers]).reshape(-1, 2)

    def nearest(self, cell: str, radius_km: float) -> CellDistances:
        """Result of `find_nearby_cells` of one cell."""
        here = _center(cell)
        found = (
            (distance_km(here, _center(other)), other)
            for at in self._within(*here, *here, radius_km)
            if (other := self._tokens[at]) != cell
        )
        return sorted(each for each in found if each[0] <= radius_km)[:MAX_GAUGES]

    def around(self, cells: Iterable[str], radius_km: float) -> list[str]:
        """Cells in the rectangle around some cells, with a margin."""
        degrees = np.array([_center(cell) for cell in cells])
        (south, west), (north, east) = degrees.min(axis=0), degrees.max(axis=0)
        found = self._within(south, west, north, east, radius_km)
        return [self._tokens[at] for at in found]

    def _within(
        self, south: float, west: float, north: float, east: float, margin_km: float
    ) -> Iterator[int]:
        """Places of the cells in a rectangle with a margin, which may be wider."""
        # A degree of latitude is 111 km: most cells need no distance on the sphere.
        reach = margin_km / 111.0
        lats, lngs = self._degrees[:, 0], self._degrees[:, 1]
        first, last = np.searchsorted(lats, (south - reach, north + reach))
        cosine = math.cos(math.radians(min(89.0, max(abs(south), abs(north)) + reach)))
        far = reach / cosine * 1.01
        # Beyond the date line a distance in degrees is of no use.
        is_near = (lngs[first:last] >= west - far) & (lngs[first:last] <= east + far)
        is_edge = west - far < -180.0 or east + far > 180.0  # noqa: PLR2004 - degrees
        yield from (
            first + (np.arange(last - first) if is_edge else np.nonzero(is_near)[0])
        ).tolist()


@lru_cache(maxsize=1_048_576)
def _center(token: str) -> tuple[float, float]:
    return Cell.from_token(token).center()


def collect_nearby_rain(
    rain: Mapping[str, Sequence[Observation]],
    around: Mapping[str, CellDistances],
    past: Mapping[str, Mapping[str, RainRecord]] = {},
) -> dict[str, NearbyRain]:
    """Rain around each of some cells.

    Args:
        rain: Reports of rain gauges by cell, of the cells and those around them.
        around: Result of `find_nearby_cells`.
        past: Rain of gauges up to one of those reports, by cell and node.
    """
    gauges = {cell: _by_node(each, past.get(cell, {})) for cell, each in rain.items()}
    return {
        cell: NearbyRain(
            tuple(
                NearbyGauge(node, km, reports)
                for km, other in others
                for node, reports in gauges.get(other, {}).items()
            )[:MAX_GAUGES]
        )
        for cell, others in around.items()
    }


def _by_node(
    observations: Iterable[Observation], past: Mapping[str, RainRecord]
) -> dict[str, GaugeReports]:
    nodes: dict[str, list[Observation]] = {}
    for o in observations:
        if o.is_rain:
            nodes.setdefault(o.node, []).append(o)
    return {node: GaugeReports(nodes[node], past.get(node)) for node in sorted(nodes)}

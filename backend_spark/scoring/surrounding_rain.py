"""Rain around a cell: gauges in other cells, and JMA's analyses.

Both are compared with the cell's gauges, and take the place of a missing one.

Scoring treats each cell by itself, but one gauge per cell cannot be tested alone. A
cell therefore gets the rain of the nearest gauges around it: at most `MAX_GAUGES`,
so that the cost per cell does not grow with the density of the network.

An analysis of an hour is known some ten minutes later; the readings of that hour are
flagged again then, like those that a later reading changes.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Final, Protocol

import numpy as np
from msgspec.structs import replace

from backend_spark.scoring.observation import STEP_S, Observation
from backend_spark.scoring.quality import (
    find_rain_records,
    make_rain_record,
    with_new_flags,
)
from backend_spark.scoring.rain import (
    SPREAD_S,
    Gauge,
    SubstituteRain,
    rain_reading,
    read_gauge,
    report_depth_mm,
)
from backend_spark.scoring.reviews import reviewed_verdict
from slope_science.levels import Criteria, Finding
from slope_science.official_rain import (
    LEAST_MM,
    AnalysedRain,
    AnalysedState,
    check_beside_analysis,
    judge_analysis,
)
from slope_science.quality import (
    NEIGHBOUR_S,
    Flag,
    Verdict,
)
from slope_science.rain_quality import CONFIRM_SHARE, NeighbourGauge, RainRecord
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


HOUR_S: Final = 3600
DAY_HOURS: Final = 24

HOLD_S: Final = 6 * 3600.0
"""Longest time for which the last analysis holds a level; our proposal."""

Span = tuple[float, float]
"""Lowest and highest rain of a cell's meshes, in mm."""


Suspect = tuple[float, float, Verdict]
"""Begin and end of an interval in which a gauge differs strongly, and the verdict."""


class CellAnalyses(Protocol):
    """Analyses of one cell; `known_s` is the Unix time up to which they were known."""

    def state(self, at_s: float, max_age_s: float | None = None) -> AnalysedState:
        """The newest analyses known at a moment, by default of the settings' age."""

    def hours(self, from_s: float, to_s: float, known_s: float) -> Mapping[int, Span]:
        """Rain of each analysed hour that ends in an interval, by its end."""

    def step_rain(self, end_s: int, known_s: float = math.inf) -> AnalysedRain | None:
        """Rain of one step; None if no analysis is known."""


def find_analysed(
    analyses: CellAnalyses | None,
    at_s: float,
    criteria: Criteria,
    index_mm: float | None,
    r60_mm: float | None,
) -> Finding | None:
    """Finding of the analyses known at a moment; the last ones hold their level.

    Where the newest index or rain is too old, what takes its place may raise the level
    of the last ones, and does not lower it.

    Args:
        analyses: Of the cell; None without.
        at_s: Unix time of the end of a step.
        criteria: Of the cell.
        index_mm: Soil water index by the gauges, for one that is not analysed.
        r60_mm: 60-minute rain by the gauges, likewise.
    """
    if analyses is None:
        return None
    state = analyses.state(at_s)
    found = judge_analysis(state, criteria, index_mm, r60_mm)
    if state.index_mm is not None and state.r60_mm is not None:
        return found
    last = judge_analysis(analyses.state(at_s, HOLD_S), criteria)
    if last is None or (found is not None and found.level >= last.level):
        return found
    return Finding(last.level, Reason(ReasonCode.HELD, because=last.reason))


def substitute_analysed(
    analyses: CellAnalyses | None, end_s: int
) -> SubstituteRain | None:
    """Analysed rain of a step in place of a cell's missing rain; None if unknown."""
    found = None if analyses is None else analyses.step_rain(end_s)
    if found is None:
        return None
    reason = Reason(ReasonCode.RAIN_FROM_GRID, source=found.source)
    return SubstituteRain(found.depth_mm, reason)


def flag_beside_analysis(
    observations: Sequence[Observation],
    analyses: CellAnalyses | None,
    from_s: float,
    nearby: Sequence[NeighbourGauge],
    before: Sequence[Observation],
) -> list[Observation]:
    """Flag the readings of gauges that differ strongly from the analysed rain.

    Args:
        observations: All of a cell in time order, flagged already.
        analyses: Of the cell; None without.
        from_s: Unix time of the earliest new reading.
        nearby: Gauges in other cells.
        before: The observations before they were flagged.
    """
    if analyses is None or not observations:
        return list(observations)
    # A catch-up lets reports of hours ago be flagged anew, without the analyses.
    again_s = (o.at_s for o in with_new_flags(observations, before) if o.is_rain)
    since_s = max(min([from_s - NEIGHBOUR_S, *again_s]), observations[0].at_s)
    known_s = max(o.received_us for o in observations) / 1_000_000
    until_s = observations[-1].at_s + HOUR_S
    begin_s = since_s - DAY_HOURS * HOUR_S
    hours = analyses.hours(begin_s, until_s, known_s)
    if not hours:
        return list(observations)
    gauges: dict[str, list[Observation]] = {}
    for o in observations:
        if o.is_rain:
            gauges.setdefault(o.node, []).append(o)
    found = {n: list(_suspects(g, hours, since_s)) for n, g in gauges.items()}
    suspects = _without_confirmed(found, observations, nearby)
    return [
        _flagged(o, suspects[o.node]) if o.is_rain and o.at_s >= since_s else o
        for o in observations
    ]


def _without_confirmed(
    suspects: Mapping[str, Sequence[Suspect]],
    observations: Sequence[Observation],
    nearby: Sequence[NeighbourGauge],
) -> dict[str, Sequence[Suspect]]:
    """Suspects by node, without rain above the analysis that another gauge had, too.

    An analysis may be too low, as where a radar fails: it must not doubt a storm that
    two gauges report.
    """
    if not any(_is_excess(each) for found in suspects.values() for each in found):
        return dict(suspects)
    own = find_rain_records(observations)
    around = [gauge.record for gauge in nearby]
    return {
        node: [
            each
            for each in found
            if not _is_excess(each)
            or not _is_confirmed(
                each, [*(r for n, r in own.items() if n != node), *around]
            )
        ]
        for node, found in suspects.items()
    }


def _is_excess(suspect: Suspect) -> bool:
    return suspect[2].reasons[0].code is ReasonCode.GRID_EXCESS


def _is_confirmed(suspect: Suspect, others: Iterable[RainRecord]) -> bool:
    """Whether another gauge had a part of the rain in the hour or day."""
    _, end_s, verdict = suspect
    compared = verdict.reasons[0].params
    hours = 1 if compared["hours"] == 1 else DAY_HOURS
    least_mm = CONFIRM_SHARE * compared["rain_mm"]
    return any(
        each.rain_mm(end_s - hours * HOUR_S, end_s) >= least_mm for each in others
    )


def _suspects(
    gauge: Iterable[Observation], hours: Mapping[int, Span], since_s: float
) -> Iterator[Suspect]:
    """Intervals in which a gauge differs strongly, with the verdict."""
    depths = _GaugeDepths(gauge)
    for end_s, (low_mm, high_mm) in hours.items():
        own_mm = depths.hour_mm(end_s)
        if own_mm is None or end_s < since_s:
            continue
        verdict = check_beside_analysis(own_mm, low_mm, high_mm, 1, end_s)
        if verdict.flag is Flag.SUSPECT:
            yield end_s - HOUR_S, end_s, verdict
        elif end_s % HOUR_S == 0:
            suspect = end_s - HOUR_S, end_s, _check_day(depths, hours, end_s)
            # A dry hour on which both agree is known, whatever the day lacks.
            has_part = low_mm > own_mm + LEAST_MM
            if suspect[2].flag is Flag.SUSPECT and (has_part or _is_excess(suspect)):
                yield suspect


def _check_day(
    depths: "_GaugeDepths", hours: Mapping[int, Span], end_s: int
) -> Verdict:
    ends_s = [end_s - n * HOUR_S for n in range(DAY_HOURS)]
    both = [
        (own_mm, *hours[each])
        for each in ends_s
        if each in hours and (own_mm := depths.hour_mm(each)) is not None
    ]
    own, low, high = (sum(part) for part in zip(*both, strict=True))
    # One hour alone is no day: it has been compared.
    return check_beside_analysis(own, low, high, max(2, len(both)), end_s)


class _GaugeDepths:
    """Rain of one gauge between its reports, each with a known depth.

    Args:
        readings: Its reports in time order.
    """

    def __init__(self, readings: Iterable[Observation]) -> None:
        self._pieces: list[tuple[float, float, float]] = []
        for before, o in pairwise(readings):
            length_s = o.at_s - before.at_s
            depth_mm = report_depth_mm(before.sum, o.sum, o.value, length_s)
            if o.counts and depth_mm is not None and 0 < length_s <= SPREAD_S:
                self._pieces.append((before.at_s, o.at_s, depth_mm))
        self._ends_s = [piece[1] for piece in self._pieces]

    def hour_mm(self, end_s: float) -> float | None:
        """Rain of the hour before; None unless reports cover all but one step of it."""
        start_s, depth_mm, covered_s = end_s - HOUR_S, 0.0, 0.0
        for from_s, to_s, piece_mm in self._pieces[
            bisect_right(self._ends_s, start_s) :
        ]:
            if from_s >= end_s:
                break
            share_s = min(to_s, end_s) - max(from_s, start_s)
            depth_mm += piece_mm * share_s / (to_s - from_s)
            covered_s += share_s
        return depth_mm if covered_s >= HOUR_S - STEP_S else None


def _flagged(o: Observation, suspects: Sequence[Suspect]) -> Observation:
    first = bisect_left(suspects, o.at_s, key=lambda each: each[1])
    for from_s, to_s, verdict in suspects[first:]:
        if from_s < o.at_s <= to_s and o.counts:
            had = Verdict(Flag(o.flag or Flag.NOT_EVALUATED), o.reasons)
            worst = reviewed_verdict(o, [had, verdict])
            return replace(o, flag=int(worst.flag), why=worst.why or None)
    return o

"""Disaster scenarios: valleys with one shared link each.

Gateways are in valleys, S2 cells of a prefecture. A copy inside a valley is cheap; all
copies that leave it share one narrow uplink, those that enter it one downlink. When a
valley's backbone link is cut, only a slow radio to the nearest valley remains.

Source: the thesis names both as future work (chapter 7).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from experiments.overlay_study.baselines import SkipGraph
from experiments.overlay_study.methods import ForwardRange
from gateway_daemon.overlay import partition
from gateway_daemon.overlay.keys import VECTOR_BITS
from gateway_daemon.overlay.partition import (
    DEFAULT_COST,
    VALLEY_LINK_MS,
    RangePart,
    SplitPlan,
    SplitShape,
    assign_range,
    head_positions,
    split_range,
    subtree_sizes,
)
from spatial_mqtt.cells import Cell, distance_km

KOCHI_BOUNDS = ((32.75, 33.85), (132.5, 134.3))
"""Latitudes and longitudes of a prefecture, in degrees."""

VALLEY_LEVEL = 11
"""S2 cells of about 5 km."""

LOCAL_MS = 2.0
"""Delay between gateways of one valley."""

BURST_MS = 100.0
"""Time span in which the messages of a disaster are published."""

RADIO_MS = 24.0
"""Time that one copy occupies the radio to the next valley: 100 kbit/s."""


@dataclass(frozen=True)
class Terrain:
    """Locations of gateways.

    Attributes:
        valleys: Cells, in S2's order along the Hilbert curve.
        homes: Index of the valley of each gateway, in the order of their keys.
        disconnected: Valleys whose backbone link is cut.
    """

    valleys: tuple[Cell, ...]
    homes: tuple[int, ...]
    disconnected: frozenset[int] = frozenset()

    def nearest_connected(self, valley: int) -> int:
        """Return the nearest valley whose link works."""
        here = self.valleys[valley].center()
        valleys = range(len(self.valleys))
        connected = [v for v in valleys if v not in self.disconnected]
        return min(connected, key=lambda v: distance_km(here, self.valleys[v].center()))

    def route(self, start: int, end: int) -> list[tuple[tuple[str, int], float, float]]:
        """Return the links between two valleys: name, ms occupied, ms of latency."""
        up: list[tuple[tuple[str, int], float, float]] = []
        down: list[tuple[tuple[str, int], float, float]] = []
        if start in self.disconnected:
            up.append((("radio up", start), RADIO_MS, LOCAL_MS))
            start = self.nearest_connected(start)
        if end in self.disconnected:
            down.append((("radio down", end), RADIO_MS, LOCAL_MS))
            end = self.nearest_connected(end)
        if start != end:
            up.append((("up", start), VALLEY_LINK_MS, DEFAULT_COST.link_ms))
            up.append((("down", end), VALLEY_LINK_MS, 0.0))
        return [*up, *down]


def make_terrain(number: int, gateways: int, seed: int) -> Terrain:
    """Make valleys at random locations; their gateways are adjacent in key order."""
    chance = Random(seed)
    cells: set[Cell] = set()
    while len(cells) < number:
        latitude_deg, longitude_deg = (chance.uniform(*side) for side in KOCHI_BOUNDS)
        cells.add(Cell.at(latitude_deg, longitude_deg, VALLEY_LEVEL))
    ordered = sorted(cells, key=lambda cell: (cell.face, cell.digits))
    homes = [*range(number), *chance.choices(range(number), k=gateways - number)]
    return Terrain(tuple(ordered), tuple(sorted(homes)))


@dataclass(frozen=True)
class PublicationSite:
    """Conditions under which one message is published.

    Attributes:
        homes: Valley of each gateway in key order, the publisher's first.
        vectors: Membership vectors of the gateways in that order.
        is_uplink_narrow: Whether a valley's uplink is cut, or busy for longer than a
            hop.
    """

    homes: Sequence[int]
    vectors: Sequence[int]
    is_uplink_narrow: Callable[[int], bool]


def forward_by_links(site: PublicationSite) -> ForwardRange:
    """SG: Skip Graph links."""
    graph = SkipGraph(site.vectors)
    return lambda own, low, high: split_range(low, high, graph.right_neighbours(own))


def forward_by_ranges(_site: PublicationSite) -> ForwardRange:
    """V6 with the thesis' cost of 0.1 ms for every copy."""
    plan = SplitPlan(SplitShape.POSTAL, 110)

    def forward(own: int, low: int, high: int) -> list[RangePart[int]]:
        first = max(low, own + 1)
        sizes = subtree_sizes(high - first, plan, is_root=own == 0)
        return assign_range(
            first, high, [first + place for place in head_positions(sizes)]
        )

    return forward


def forward_by_valleys(site: PublicationSite) -> ForwardRange:
    """V6 among valleys at the real cost of a link, then directly inside each."""
    homes = site.homes

    def forward(own: int, low: int, high: int) -> list[RangePart[int]]:
        first = max(low, own + 1)
        known = [str(home) for home in homes[first:high]]
        is_narrow = site.is_uplink_narrow(homes[own])
        chosen = partition.choose_valley_heads(
            str(homes[own]), known, is_uplink_narrow=is_narrow
        )
        return assign_range(first, high, [first + head.head_index for head in chosen])

    return forward


MakeForward = Callable[[PublicationSite], ForwardRange]


@dataclass(frozen=True)
class ScenarioResult:
    """Result of a scenario.

    Attributes:
        reached: Share of the gateways that received the messages.
        mean_ms: Mean delay.
        p99_ms: 99th percentile of the delay.
        crossings: Copies that left a valley, per message.
    """

    reached: float
    mean_ms: float
    p99_ms: float
    crossings: float


class _Copy(NamedTuple):
    message: int
    to: int
    low: int
    high: int
    links: tuple[tuple[tuple[str, int], float, float], ...]


class _Run:
    """One scenario: messages in transit on shared links."""

    def __init__(
        self,
        terrain: Terrain,
        make_forward: MakeForward,
        is_in_key_order: bool,
        seed: int,
    ) -> None:
        self.terrain, self.chance = terrain, Random(seed)
        self.make_forward, self.is_in_key_order = make_forward, is_in_key_order
        self.delays_ms: list[float] = []
        self.crossings = 0
        self._now_ms = 0.0
        self._messages: list[tuple[Sequence[int], ForwardRange, float]] = []
        self._free_ms: dict[tuple[str, int], float] = {}
        self._events: list[tuple[float, int, _Copy]] = []
        self._order = count()

    def publish(self, publisher: int) -> None:
        """Publish within the first `BURST_MS`, to all other gateways."""
        others = [g for g in range(len(self.terrain.homes)) if g != publisher]
        if not self.is_in_key_order:
            self.chance.shuffle(others)
        else:  # the key order wraps around: the publisher's neighbours come first
            others = others[publisher:] + others[:publisher]
        order = [publisher, *others]
        homes = [self.terrain.homes[gateway] for gateway in order]
        vectors = [self.chance.getrandbits(VECTOR_BITS) for _ in order]
        site = PublicationSite(homes, vectors, self._is_narrow)
        published_ms = self.chance.uniform(0.0, BURST_MS)
        self._messages.append((homes, self.make_forward(site), published_ms))
        self._at(published_ms, _Copy(len(self._messages) - 1, 0, 1, len(order), ()))

    def _is_narrow(self, valley: int) -> bool:
        busy_ms = self._free_ms.get(("up", valley), 0.0) - self._now_ms
        return valley in self.terrain.disconnected or busy_ms > DEFAULT_COST.hop_ms

    def run(self) -> None:
        """Process all events."""
        while self._events:
            now_ms, _, copy = heappop(self._events)
            self._now_ms = now_ms
            if copy.links:
                (link, busy_ms, latency_ms), *rest = copy.links
                self._free_ms[link] = (
                    max(now_ms, self._free_ms.get(link, 0.0)) + busy_ms
                )
                at_ms = self._free_ms[link] + latency_ms
                self._at(at_ms, copy._replace(links=tuple(rest)))
            else:
                self._arrive(copy, now_ms)

    def _arrive(self, copy: _Copy, now_ms: float) -> None:
        homes, forward, published_ms = self._messages[copy.message]
        if copy.to:
            self.delays_ms.append(now_ms - published_ms)
        parts = sorted(
            forward(copy.to, copy.low, copy.high), key=lambda p: p.low - p.high
        )
        for number, (to, low, high) in enumerate(parts, 1):
            start, end = homes[copy.to], homes[to]
            links = self.terrain.route(start, end) if start != end else []
            self.crossings += bool(links)
            at_ms = now_ms + DEFAULT_COST.node_ms + number * DEFAULT_COST.child_ms
            at_ms += 0.0 if links else LOCAL_MS
            self._at(at_ms, _Copy(copy.message, to, low, high, tuple(links)))

    def _at(self, at_ms: float, copy: _Copy) -> None:
        heappush(self._events, (at_ms, next(self._order), copy))


SCENARIOS: Mapping[str, str] = MappingProxyType({
    "quiet": "one message",
    "one valley": "every gateway of the largest valley at once",
    "prefecture": "one gateway of every valley at once",
    "cut": "as one valley, its backbone link cut",
})

SCENARIO_METHODS: Mapping[str, tuple[MakeForward, bool]] = MappingProxyType({
    "sg, hashed names": (forward_by_links, False),
    "sg, named by cell": (forward_by_links, True),
    "v6, hashed names": (forward_by_ranges, False),
    "v6, named by cell": (forward_by_ranges, True),
    "v6 by valleys": (forward_by_valleys, True),
})


def run_scenario(
    scenario: str, method: str, terrain: Terrain, seed: int
) -> ScenarioResult:
    """Run a disaster scenario.

    Args:
        scenario: A key of `SCENARIOS`.
        method: A key of `SCENARIO_METHODS`.
        terrain: Locations of gateways.
        seed: The same seed gives the same numbers.
    """
    largest = max(set(terrain.homes), key=terrain.homes.count)
    publishers = {
        "quiet": [terrain.homes.index(largest)],
        "prefecture": [terrain.homes.index(v) for v in range(len(terrain.valleys))],
    }.get(scenario, [g for g, home in enumerate(terrain.homes) if home == largest])
    if scenario == "cut":
        terrain = Terrain(terrain.valleys, terrain.homes, frozenset({largest}))
    run = _Run(terrain, *SCENARIO_METHODS[method], seed)
    for publisher in publishers:
        run.publish(publisher)
    run.run()
    delays_ms = sorted(run.delays_ms)
    wanted = len(publishers) * (len(terrain.homes) - 1)
    return ScenarioResult(
        len(delays_ms) / wanted,
        sum(delays_ms) / len(delays_ms),
        delays_ms[int(0.99 * len(delays_ms))],
        run.crossings / len(publishers),
    )

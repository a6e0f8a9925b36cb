"""Held-out series: faults, true events and both at once, for rules that exist already.

Cadence, jitter, losses, sizes and times are drawn from a seed. The rules were written
without a look at the results of `SEED`; another seed gives series for development.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from experiments.evidence import faults
from experiments.evidence.series import (
    SLOPE,
    Course,
    IrregularSeries,
    Series,
    creep,
    dry,
    extensometer,
    gauge,
    shocks,
    storm,
    temperature,
    tilt_meter,
)

SEED: Final = 87_000
HOURS: Final = 11.0
CADENCES_S: Final = (60, 120, 300, 600, 600, 900, 1200, 1800, 2700, 3600)
OTHER: Final = "n2"
THIRD: Final = "n3"
ALLOWED_H: Final = 0.75
"""Longest time to level 4 after the third reading of an event."""

WARNING: Final = 3
DANGER: Final = 4
SCALES: Final = {"tilt_x": 1.0, "tilt_y": -0.7, "displacement": 20.0, "shocks": 40.0}
"""Error of each quantity of a node, relative to that of its tilt in degrees."""

Draw = random.Random  # noqa: S311 - no secret
Error = Callable[[str, float], float]
"""Error of a quantity at a time, in units of `SCALES`."""


@dataclass(frozen=True)
class HeldOut:
    """A series with what must be true of it.

    Attributes:
        kind: Name of the kind.
        number: Number within the kind.
        series: The readings.
        most: Highest level of node, backend and notice that is not false.
        most_notice: The same of notices and of the node's alarm outputs.
        event_h: Begin of the true event; infinity without one.
        due_h: Time at which the event is late.
        held_h: Time up to which level 4 must stay once it is reached.
        notice: Lowest notice that the event must have when it is due.
        unflagged: Nodes none of whose readings may be flagged.
        node_sees: Whether the slope's node itself has the readings of the event.
    """

    kind: str
    number: int
    series: Series
    most: int = WARNING
    most_notice: int = WARNING
    event_h: float = math.inf
    due_h: float = math.inf
    held_h: float = -math.inf
    notice: int = 0
    unflagged: tuple[str, ...] = ()
    node_sees: bool = True


def _whole(series: Series, tilt: Course = dry, rod: Course = dry) -> Series:
    """A node with a gauge, a tilt meter, an extensometer and a vibration sensor."""
    series = tilt_meter(gauge(series, dry), tilt)
    return shocks(extensometer(series, rod))


def _on(node: str, place: int, series: Series, course: Course = dry) -> Series:
    """A tilt meter and a dry gauge on another node, mounted at other angles."""
    own = replace(series, samples=(), seed=series.seed + place + 7, places={})
    own = tilt_meter(gauge(own, dry), course)
    moved = (replace(s, node=node) for s in own.samples)
    return replace(series.with_samples(moved), places={**series.places, node: place})


def _mounted(series: Series, node: str, deg: float) -> Series:
    return faults.add(
        series, "tilt", lambda _: deg, quantity="tilt_x", node=node, begin_h=-1
    )


def _with(series: Series, error: Error, *quantities: str) -> Series:
    for quantity in quantities or SCALES:
        name = {"displacement": "crack", "shocks": "shocks"}.get(quantity, "tilt")
        course = partial(_scaled, error, quantity)
        series = faults.add(series, name, course, quantity=quantity, begin_h=-1)
    return series


def _scaled(error: Error, quantity: str, at_h: float) -> float:
    value = SCALES[quantity] * error(quantity, at_h)
    return float(abs(round(value))) if quantity == "shocks" else value


def _noise(series: Series, size: float, name: str = "noise") -> Error:
    return lambda q, h: series.rng(f"{name} {q} {h}").gauss(0.0, size)


def _between(error: Error, begin_h: float, end_h: float) -> Error:
    return lambda q, h: error(q, h) if begin_h <= h < end_h else 0.0


def _due_h(series: Series, event_h: float) -> float:
    after = [at_h for at_h in series.times_h if at_h > event_h]
    return after[2] + ALLOWED_H


def _event(
    kind: str, number: int, series: Series, event_h: float, known_h: float = 0.0
) -> HeldOut:
    """A true event that can be seen from a time on."""
    due_h = _due_h(series, max(event_h, known_h))
    return HeldOut(
        kind, number, series, most=5, most_notice=5, event_h=event_h, due_h=due_h
    )


Kind = Callable[[str, int, Draw, Series], HeldOut]
KINDS: dict[str, tuple[int, Kind]] = {}


def _kind(name: str, count: int) -> Callable[[Kind], Kind]:
    def register(make: Kind) -> Kind:
        KINDS[name] = count, make
        return make

    return register


# Faults of all sensors of a node.


@_kind("weak supply: noise", 5)
def _supply_noise(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    begin_h, size = draw.uniform(4.5, 6), draw.uniform(0.08, 0.6)
    error = _between(_noise(series, size), begin_h, begin_h + draw.uniform(0.5, 2))
    return HeldOut(kind, number, _with(_whole(series), error))


@_kind("weak supply: noise of tilt and rod grows", 3)
def _growing_noise(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    begin_h, noise = draw.uniform(4.5, 6), _noise(series, draw.uniform(0.1, 0.4))

    def error(quantity: str, at_h: float) -> float:
        return noise(quantity, at_h) * min(1.0, max(0.0, (at_h - begin_h) / 3))

    quantities = ("tilt_x", "tilt_y", "displacement")
    return HeldOut(kind, number, _with(_whole(series), error, *quantities))


@_kind("weak supply: one wave on all sensors", 3)
def _common_wave(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    begin_h, size = draw.uniform(4.5, 6), draw.uniform(0.1, 0.5)
    end_h = begin_h + draw.uniform(1, 2)

    def error(_: str, at_h: float) -> float:
        return series.rng(f"wave {at_h}").gauss(0.0, size)

    return HeldOut(kind, number, _with(_whole(series), _between(error, begin_h, end_h)))


@_kind("pump: noise for ten minutes of each half hour", 3)
def _pump(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    begin_h, noise = draw.uniform(4.5, 5.5), _noise(series, draw.uniform(0.1, 0.4))

    def error(quantity: str, at_h: float) -> float:
        return noise(quantity, at_h) if (at_h - begin_h) % 0.5 < 1 / 6 else 0.0

    whole = _with(_whole(series), _between(error, begin_h, begin_h + 3))
    return HeldOut(kind, number, whole)


@_kind("brown-outs: all sensors read low in single readings", 3)
def _brown_outs(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    size, share = -draw.uniform(0.5, 2), draw.uniform(0.1, 0.3)

    def error(quantity: str, at_h: float) -> float:
        is_low = series.rng(f"low {at_h}").random() < share
        return size if is_low and quantity != "shocks" else 0.0

    return HeldOut(kind, number, _with(_whole(series), _between(error, 4.5, 8.0)))


# Faults of one sensor.


@_kind("tilt meter alone is noisy", 3)
def _tilt_noise(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    begin_h, noise = draw.uniform(4.5, 6), _noise(series, draw.uniform(0.05, 0.5))
    error = _between(noise, begin_h, begin_h + draw.uniform(1, 3))
    return HeldOut(kind, number, _with(_whole(series), error, "tilt_x", "tilt_y"))


@_kind("birds on the rod", 3)
def _birds(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    share, size = draw.uniform(0.2, 0.5), draw.uniform(0.2, 1.5)

    def error(_: str, at_h: float) -> float:
        rng = series.rng(f"bird {at_h}")
        return size * rng.random() if rng.random() < share else 0.0

    whole = _with(_whole(series), _between(error, 5.0, 7.5), "displacement")
    return HeldOut(kind, number, whole)


@_kind("rod in inches, read as 25.4 times its millimetres", 2)
def _rod_inches(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    warm = draw.uniform(0.05, 0.1)
    whole = _whole(series, rod=lambda h: warm * (temperature(h) - temperature(0)))
    return HeldOut(kind, number, faults.scale(whole, "crack", 25.4, begin_h=-1))


@_kind("tilt in degrees, read as radians", 2)
def _radians(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    series = shocks(extensometer(gauge(series, dry)))
    series = tilt_meter(series, deg_per_k=draw.uniform(0.001, 0.003))
    series = faults.change(
        series,
        lambda s: replace(s, value=math.degrees(s.value or 0.0)),
        sensor="tilt",
        begin_h=-1,
    )
    return HeldOut(kind, number, series)


@_kind("flipped bits of tilt", 3)
def _bits(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    share = draw.uniform(0.1, 0.3)

    def error(quantity: str, at_h: float) -> float:
        rng = series.rng(f"bit {quantity} {at_h}")
        return 0.005 * 2.0 ** rng.randint(0, 8) if rng.random() < share else 0.0

    whole = _with(_whole(series), _between(error, 4.5, 9.0), "tilt_x", "tilt_y")
    return HeldOut(kind, number, whole)


# Faults of a gauge.


def _false_rain(series: Series, mm_per_h: float, end_h: float) -> Series:
    """False tips from 5 h on, each report with its own random number of them."""
    begin_h = 5.0
    tips: dict[float, float] = {}
    before_h = 0.0
    for at_h in series.times_h:
        expected = 2 * mm_per_h * (at_h - before_h)
        most = series.rng(f"tips {at_h}").uniform(0.7, 1.3)
        tips[at_h] = round(expected * most) / 2 if begin_h < at_h <= end_h else 0.0
        before_h = at_h
    return faults.add_rain(series, lambda h: tips.get(h, 0.0))


@_kind("switch bounces, gauge alone", 2)
def _bounce(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    return HeldOut(
        kind, number, _false_rain(gauge(series, dry), draw.uniform(60, 110), 7.5)
    )


@_kind("switch bounces beside one dry gauge", 2)
def _bounce_one(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    series = gauge(gauge(series, dry), dry, OTHER, place=1)
    return HeldOut(kind, number, _false_rain(series, draw.uniform(60, 110), 7.5))


@_kind("switch bounces beside two dry gauges", 2)
def _bounce_two(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    series = gauge(gauge(series, dry), dry, OTHER, place=1)
    series = gauge(series, dry, THIRD, place=2)
    false = _false_rain(series, draw.uniform(40, 110), 7.5)
    return HeldOut(kind, number, false, unflagged=(OTHER, THIRD))


def _once(series: Series, depth_mm: float, at_h: float) -> Series:
    first_h = next(h for h in series.times_h if h >= at_h)
    return faults.add_rain(series, lambda h: depth_mm if h == first_h else 0.0)


@_kind("impossible depth in one report beside one dry gauge", 4)
def _impossible(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    series = gauge(gauge(series, dry), dry, OTHER, place=draw.choice((0, 1)))
    false = _once(series, draw.uniform(210, 900), draw.uniform(4, 6))
    return HeldOut(kind, number, false, unflagged=(OTHER,))


@_kind("clog released in one report beside one dry gauge", 3)
def _released(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    series = replace(series, every_s=min(series.every_s, 1200.0))
    series = gauge(gauge(series, dry), dry, OTHER, place=draw.choice((0, 1)))
    false = _once(series, draw.uniform(12, 38), draw.uniform(4, 6))
    return HeldOut(kind, number, false, unflagged=(OTHER,))


@_kind("rain read as inches, gauge alone", 3)
def _rain_inches(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    size = draw.uniform(2, 5)
    rain = _shower(series, size, 3.0)
    false = faults.scale(gauge(series, rain), "rain", 25.4, begin_h=-1)
    return HeldOut(kind, number, false)


@_kind("ten times the rain of a tip, gauge alone", 2)
def _factor(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    rain = _shower(series, draw.uniform(4, 9), 3.0)
    return HeldOut(
        kind, number, faults.scale(gauge(series, rain), "rain", 10.0, begin_h=-1)
    )


def _shower(series: Series, mm_per_h: float, begin_h: float) -> Course:
    """Rain whose rate changes every ten minutes."""

    @cache
    def rate(number: int) -> float:
        return mm_per_h * series.rng(f"shower {number}").expovariate(1.0)

    return lambda h: rate(math.floor(h * 6)) if begin_h < h <= begin_h + 6 else 0.0


# Faults of two or three nodes.


def _exchanged(series: Series, nodes: tuple[str, ...], begin_h: float) -> Series:
    """The readings of tilt meters arrive under the next node's id."""
    after = dict(zip(nodes, (*nodes[1:], nodes[0]), strict=True))

    def move(node: str, at_h: float, sensor: str) -> str:
        is_moved = sensor == "tilt" and at_h >= begin_h and node in after
        return after[node] if is_moved else node

    moved = (replace(s, node=move(s.node, s.at_h, s.sensor)) for s in series.samples)
    return replace(series, samples=tuple(moved))


def _two_nodes(
    series: Series, draw: Draw, course: Course = dry, place: int | None = None
) -> Series:
    place = draw.choice((0, 0, 1)) if place is None else place
    series = _on(OTHER, place, tilt_meter(gauge(series, dry), course))
    series = _mounted(series, SLOPE, draw.uniform(0.5, 3))
    return _mounted(series, OTHER, -draw.uniform(0.5, 3))


@_kind("cables of two nodes are exchanged", 3)
def _cables(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    series = _two_nodes(series, draw)
    at_h = draw.uniform(4.5, 6)
    return HeldOut(kind, number, _exchanged(series, (SLOPE, OTHER), at_h))


@_kind("cables of two nodes are exchanged, and back", 2)
def _cables_back(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    series, at_h = _two_nodes(series, draw), draw.uniform(4.5, 5.5)
    once = _exchanged(series, (SLOPE, OTHER), at_h)
    back = _exchanged(once, (SLOPE, OTHER), at_h + draw.uniform(1, 2.5))
    return HeldOut(kind, number, back)


@_kind("cables of three nodes are exchanged", 2)
def _cables_three(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    series = _mounted(_on(THIRD, 0, _two_nodes(series, draw)), THIRD, 4.2)
    at_h = draw.uniform(4.5, 6)
    return HeldOut(kind, number, _exchanged(series, (SLOPE, OTHER, THIRD), at_h))


# True events.


@_kind("creep", 8)
def _creep(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    at_h, rate = draw.uniform(4.5, 6), draw.uniform(0.2, 1.2)
    series = tilt_meter(gauge(series, dry), creep(rate, at_h))
    return _event(kind, number, series, at_h)


@_kind("creep that accelerates", 4)
def _accelerating(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    at_h, rate = draw.uniform(4.5, 6), draw.uniform(0.2, 0.6)
    fails_h = at_h + draw.uniform(5.5, 8)

    def course(h: float) -> float:
        left = min(h, fails_h - 0.2) - at_h
        return -rate * 4 * math.log(1 - left / (fails_h - at_h)) if h > at_h else 0.0

    return _event(kind, number, tilt_meter(gauge(series, dry), course), at_h)


@_kind("rod and tilt move", 5)
def _both_move(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    at_h, rate = draw.uniform(4.5, 6), draw.uniform(0.2, 0.8)
    series = _whole(series, creep(rate, at_h), creep(draw.uniform(6, 15), at_h))
    return replace(_event(kind, number, series, at_h), notice=DANGER)


@_kind("rod moves", 3)
def _rod_moves(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    at_h = draw.uniform(4.5, 6)
    series = extensometer(gauge(series, dry), creep(draw.uniform(6, 15), at_h))
    return _event(kind, number, series, at_h)


@_kind("storm, gauge alone", 3)
def _true_storm(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    """Rain of 35 to 55 mm/h for eight hours: level 4 or 5 before its end."""
    series = gauge(series, storm(draw.uniform(35, 55), 2.0, 10.0))
    found = HeldOut(kind, number, series, most=5, most_notice=5)
    return replace(found, event_h=2.0, due_h=HOURS, notice=DANGER)


# Both.


@_kind("rod and tilt move, noise of the supply afterwards", 4)
def _noise_after(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    at_h, rate = 4.5, draw.uniform(0.3, 0.8)
    series = _whole(series, creep(rate, at_h), creep(draw.uniform(8, 15), at_h))
    found = replace(_event(kind, number, series, at_h), notice=DANGER)
    begin_h = found.due_h + 0.2
    error = _between(_noise(series, draw.uniform(0.1, 0.4)), begin_h, begin_h + 0.75)
    return replace(found, series=_with(series, error), held_h=begin_h + 0.75)


@_kind("noise of the supply, tilt and rod begin to move in it", 4)
def _noise_before(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    begin_h, at_h, end_h = 4.0, draw.uniform(4.2, 4.9), 5.0
    rate = draw.uniform(0.3, 0.8)
    series = _whole(series, creep(rate, at_h), creep(draw.uniform(8, 15), at_h))
    error = _between(_noise(series, draw.uniform(0.1, 0.4)), begin_h, end_h)
    return _event(kind, number, _with(series, error), at_h, end_h + 1)


@_kind("cables exchanged, one of both creeps", 3)
def _cables_creep(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    at_h = draw.uniform(4.5, 5.5)
    course = creep(draw.uniform(0.3, 0.8), at_h)
    series = _two_nodes(series, draw, course, place=0)
    swap_h = at_h + draw.choice((-1.5, 0.25))
    series = _exchanged(series, (SLOPE, OTHER), swap_h)
    return replace(_event(kind, number, series, at_h, swap_h), node_sees=False)


@_kind("kick that pulls the rod, both go on", 3)
def _kick_goes_on(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    at_h, size = draw.uniform(4.5, 6), draw.uniform(0.3, 1.0)
    rate = draw.uniform(0.3, 0.8)

    def moved(step: float, per_h: float) -> Course:
        return lambda h: step + per_h * (h - at_h) if h >= at_h else 0.0

    series = _whole(series, moved(size, rate), moved(15 * size, 12 * rate))
    return _event(kind, number, series, at_h)


@_kind("storm at two gauges, one is clogged", 3)
def _clogged(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    rain = storm(draw.uniform(35, 55), 2.0, 10.0)
    series = gauge(gauge(series, rain), dry, OTHER, place=1)
    found = HeldOut(kind, number, series, most=5, most_notice=5)
    return replace(found, event_h=2.0, due_h=HOURS, notice=DANGER)


@_kind("storm, an impossible depth in it", 2)
def _storm_jump(kind: str, number: int, draw: Draw, series: Series) -> HeldOut:
    rain = storm(draw.uniform(40, 55), 2.0, 10.0)
    series = gauge(gauge(series, rain), rain, OTHER, place=1)
    series = _once(series, draw.uniform(300, 900), 3.0)
    found = HeldOut(kind, number, series, most=5, most_notice=5, unflagged=(OTHER,))
    return replace(found, event_h=2.0, due_h=HOURS, notice=DANGER)


def all_series(seed: int = SEED, only: str = "") -> Iterator[HeldOut]:
    """All series of a seed.

    Args:
        seed: Of all random numbers.
        only: Part of the names of the kinds.
    """
    for kind, (count, make) in KINDS.items():
        for number in range(count if only in kind else 0):
            draw = random.Random(f"{seed} {kind} {number}")  # noqa: S311 - no secret
            series = IrregularSeries(
                hours=HOURS,
                every_s=float(draw.choice(CADENCES_S)),
                seed=draw.randrange(1 << 30),
                jitter=draw.choice((0.0, 0.1, 0.2, 0.35)),
                lost=draw.choice((0.0, 0.0, 0.1, 0.2)),
            )
            yield make(kind, number, draw, series)

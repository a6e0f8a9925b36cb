"""Clean series of readings: calm weather, storms, recorded rain, true creep.

All times are in hours since the start. A clean series is what good sensors would have
sent; faults (`experiments.evidence.faults`) change it.
"""

import csv
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from spatial_mqtt.reading_table import OPTIONAL, REQUIRED

START_S: Final = 1_767_193_200.0
"""A full hour."""

TIP_MM: Final = 0.5
SLOPE: Final = "n1"
PLACE: Final = (33.5588, 133.5312)
NEIGHBOUR_DEG: Final = 0.004
"""Between neighbours: about 400 m, so that some share a cell and some do not."""

TILT_NOISE_DEG: Final = 0.002
RECORDED: Final = (
    Path(__file__).parents[3] / "shared" / "data" / "usgs_mukilteo_seattle"
)

Course = Callable[[float], float]
"""A quantity by hours since the start."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading.

    Attributes:
        at_h: Time by the node's clock.
        node: Id of the node.
        sensor: Name of the sensor.
        quantity: As in a table of readings.
        value: Number; None for a missing value.
        unit: Its unit.
        received_h: Time of receipt; None: at once.
        flags: Column ``flags``.
    """

    at_h: float
    node: str
    sensor: str
    quantity: str
    value: float | None
    unit: str
    received_h: float | None = None
    flags: str = ""

    @property
    def receipt_h(self) -> float:
        """Time of receipt."""
        return self.at_h if self.received_h is None else self.received_h


@dataclass(frozen=True)
class Series:
    """Readings of one slope and its neighbours.

    Attributes:
        samples: In any order.
        hours: Length.
        every_s: Interval of the readings.
        seed: Of all random numbers.
        places: Number of the place of each node; the slope is 0.
    """

    samples: tuple[Sample, ...] = ()
    hours: float = 24.0
    every_s: float = 600.0
    seed: int = 1
    places: dict[str, int] = field(default_factory=dict)

    @property
    def times_h(self) -> list[float]:
        """Times of the readings."""
        count = round(self.hours * 3600 / self.every_s)
        return [at * self.every_s / 3600 for at in range(count + 1)]

    @property
    def sensor_hours(self) -> float:
        """Sensors times hours."""
        return self.hours * len({(s.node, s.sensor) for s in self.samples})

    def rng(self, name: str) -> random.Random:
        """Random numbers for one purpose."""
        return random.Random(f"{self.seed} {name}")  # noqa: S311 - noise

    def with_samples(self, more: Iterable[Sample]) -> "Series":
        """The series with more readings."""
        return replace(self, samples=(*self.samples, *more))

    def table(self) -> str:
        """The table of readings, in the order of receipt."""
        lines = [",".join((*REQUIRED, *OPTIONAL[:2]))]
        ordered = sorted(self.samples, key=lambda s: (s.receipt_h, s.node, s.at_h))
        for s in ordered:
            latitude = PLACE[0] + NEIGHBOUR_DEG * self.places.get(s.node, 0)
            value = "" if s.value is None else f"{s.value:.6g}"
            lines.append(
                f"{_iso(s.at_h)},{s.node},{s.sensor},{s.quantity},{value},{s.unit},"
                f"{latitude:.4f},{PLACE[1]},{_iso(s.receipt_h)},{s.flags}"
            )
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class IrregularSeries(Series):
    """A series whose readings are neither evenly spaced nor complete.

    Attributes:
        jitter: Largest deviation of a reading's time, as a share of the interval.
        lost: Share of the readings that are missing.
    """

    jitter: float = 0.0
    lost: float = 0.0

    @property
    def times_h(self) -> list[float]:
        """Times of the readings."""
        rng, every_h = self.rng("times"), self.every_s / 3600
        first, *even = super().times_h
        moved = [(at_h, rng.uniform(-1, 1), rng.random()) for at_h in even]
        kept = [
            round(at_h + off * self.jitter * every_h, 5)
            for at_h, off, chance in moved
            if chance >= self.lost
        ]
        return [first, *kept]


def _iso(at_h: float) -> str:
    return datetime.fromtimestamp(round(START_S + at_h * 3600, 3), UTC).isoformat()


def gauge(series: Series, rain: Course, node: str = SLOPE, *, place: int = 0) -> Series:
    """Add a tipping bucket: the depth since the last report, and the counter.

    Args:
        series: The series.
        rain: Intensity in mm/h.
        node: Its node.
        place: Place of the node; 0 is the slope.
    """
    fallen = tips = before_h = 0.0
    samples = []
    for at_h in series.times_h:
        every_h, before_h = at_h - before_h, at_h
        if at_h:
            steps = max(1, round(every_h * 60))
            part_h = every_h / steps
            fallen += sum(
                rain(at_h - every_h + (n + 0.5) * part_h) * part_h for n in range(steps)
            )
        depth = math.floor(fallen / TIP_MM + 1e-9) * TIP_MM - tips
        tips += depth
        samples += [
            Sample(at_h, node, "rain", "rain", depth, "mm"),
            Sample(at_h, node, "rain", "rain_total", tips, "mm"),
        ]
    places = {**series.places, node: place}
    return replace(series.with_samples(samples), places=places)


def tilt_meter(
    series: Series,
    tilt_deg: Course = lambda _: 0.0,
    *,
    noise_deg: float = TILT_NOISE_DEG,
    resolution_deg: float = 1e-4,
    deg_per_k: float = 0.0,
    has_temperature: bool = True,
) -> Series:
    """Add a tilt meter on the slope, in the weather of `temperature`."""
    rng, samples = series.rng("tilt"), []
    for at_h in series.times_h:
        warm_k = temperature(at_h) - temperature(0.0)
        for axis, moved in (("x", tilt_deg(at_h)), ("y", 0.3 * tilt_deg(at_h))):
            value = moved + deg_per_k * warm_k + rng.gauss(0.0, noise_deg)
            value = round(value / resolution_deg) * resolution_deg
            samples.append(Sample(at_h, SLOPE, "tilt", f"tilt_{axis}", value, "deg"))
        if has_temperature:
            cel = temperature(at_h) + rng.gauss(0.0, 0.05)
            samples.append(Sample(at_h, SLOPE, "tilt", "temperature", cel, "Cel"))
    return series.with_samples(samples)


def temperature(at_h: float) -> float:
    """Temperature of a sunny day, in degrees Celsius."""
    return 15.0 + 8.0 * math.sin(2 * math.pi * (at_h - 9.0) / 24.0)


def sensor(
    series: Series, name: str, quantity: str, course: Course, unit: str
) -> Series:
    """Add any other sensor of the slope."""
    return series.with_samples(
        Sample(at_h, SLOPE, name, quantity, course(at_h), unit)
        for at_h in series.times_h
    )


def extensometer(series: Series, course: Course = lambda _: 0.0) -> Series:
    """Add an extensometer with 0.05 mm of noise."""
    rng = series.rng("crack")
    return sensor(
        series, "crack", "displacement", lambda h: course(h) + rng.gauss(0, 0.05), "mm"
    )


def wire(series: Series, course: Course = lambda _: 0.0) -> Series:
    """Add a trip wire: 1 while it is cut."""
    return sensor(series, "wire", "wire", course, "")


def shocks(series: Series, course: Course = lambda _: 0.0) -> Series:
    """Add a vibration sensor, over a background of 0 to 2 shocks."""
    rng = series.rng("shocks")
    return sensor(
        series, "shocks", "shocks", lambda h: rng.randint(0, 2) + course(h), "count"
    )


def dry(_at_h: float) -> float:
    """No rain."""
    return 0.0


def step(size: float, at_h: float) -> Course:
    """A lasting step."""
    return lambda h: size if h >= at_h else 0.0


def pulse(size: float, begin_h: float, end_h: float) -> Course:
    """A value for a time, both ends included."""
    return lambda h: size if begin_h <= h <= end_h else 0.0


def spike(size: float, at_h: float) -> Course:
    """A value in one reading."""
    return pulse(size, at_h - 1e-6, at_h + 1e-6)


def storm(mm_per_h: float, begin_h: float, end_h: float) -> Course:
    """Rain of one intensity."""
    return lambda at_h: mm_per_h if begin_h < at_h <= end_h else 0.0


def recorded_storm(scale: float = 1.0) -> Course:
    """Hours of recorded rain around the wettest day of a season near Seattle.

    Args:
        scale: Factor of the depths, so that a dry climate reaches Japanese criteria.

    Raises:
        FileNotFoundError: The measurements are not beside the project.
    """
    path = RECORDED / "nws_hourly_rain_2010_2011.csv"
    depths = [float(row["KSEA_mm"] or 0) for row in _rows(path)]
    sums = [sum(depths[at : at + 24]) for at in range(len(depths) - 24)]
    first = max(0, sums.index(max(sums)) - 12)
    return lambda at_h: scale * depths[first + max(0, math.ceil(at_h) - 1)]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def creep(deg_per_h: float, begin_h: float) -> Course:
    """Tilt at a constant rate from a moment on, in degrees."""
    return lambda at_h: deg_per_h * max(0.0, at_h - begin_h)

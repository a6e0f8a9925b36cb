"""``python -m experiments.failure_time``: coverage and false forecasts, over a grid.

Two tables for `slope_science.failure_time`:

* coverage: share of the usable forecasts whose interval contains the true failure, of
  creep with exponents of 1.5 to 2.2 that fails at 48 h (speed 0.42 mm/h at 0 h, as the
  worked example of Fukuzono), 12 h to 1 h before it; with white noise, lost readings,
  a daily cycle, a step, a random walk, outliers, a change of cadence, a late start of
  the acceleration, and coarse resolution. Where few forecasts are usable the share of
  all bounded intervals is beside it;
* false forecasts: share of usable ones of motion without a failure, hourly over three
  days: constant creep, S-curves, primary creep, cycles, stop-and-go and others, with
  random sizes and time constants.

The bars are 90 % and 0.1 % of each row, where it has 100 usable forecasts or more.
"""

import bisect
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import click

from experiments.bench.table import table
from slope_science.failure_time import FIT_SPAN_H, forecast_failure
from slope_science.movement import fukuzono_displacement_mm, fukuzono_speed_mm_per_h

FAILURE_H, FIRST_MM_PER_H = 48.0, 0.4167
EXPONENTS: Final = (1.5, 1.6, 1.75, 1.9, 2.0, 2.1, 2.2)
NOWS_H: Final = (36, 38, 40, 42, 44, 46, 47)
SAMPLINGS: Final = ((1.0, 0.1), (1.0, 0.5), (1 / 6, 0.02), (1 / 6, 0.1), (1 / 60, 0.5))
"""Hours between readings, and the standard deviation of one in mm."""

COVERAGE_BAR, FALSE_BAR, MIN_FORECASTS = 0.9, 0.001, 100
ONSET_H = 30.0
LOST_SHARE, OUTLIER_SHARE = 0.5, 0.02

Series = tuple[list[float], list[float]]
Motion = Callable[[float], float]


def sample(motion: Motion, cadence_h: float, begin_h: float, end_h: float) -> Series:
    """Times and displacements of a motion, the last at the end."""
    count = round((end_h - begin_h) / cadence_h)
    times_h = [end_h - n * cadence_h for n in range(count, -1, -1)]
    return times_h, [motion(at_h) for at_h in times_h]


def tertiary_creep(exponent: float) -> Motion:
    """Displacement in mm of creep by Voight's law, since 0 h."""
    a = FIRST_MM_PER_H ** (1 - exponent) / ((exponent - 1) * FAILURE_H)
    return lambda t_h: fukuzono_displacement_mm(t_h, FAILURE_H, a, exponent)


def late_creep(exponent: float) -> Motion:
    """The same, steady up to `ONSET_H`."""
    motion = tertiary_creep(exponent)
    a = FIRST_MM_PER_H ** (1 - exponent) / ((exponent - 1) * FAILURE_H)
    speed = fukuzono_speed_mm_per_h(FAILURE_H - ONSET_H, a, exponent)
    return lambda t_h: (
        motion(ONSET_H) + speed * (t_h - ONSET_H) if t_h < ONSET_H else motion(t_h)
    )


def _as_is(_rng: random.Random, series: Series) -> Series:
    return series


def _lost(rng: random.Random, series: Series) -> Series:
    """Half of the readings, and all of four hours."""
    end_h = series[0][-1]
    kept = [
        (t, mm)
        for t, mm in zip(*series, strict=True)
        if rng.random() < LOST_SHARE and not end_h - 9 < t < end_h - 5
    ]
    return [t for t, _ in kept], [mm for _, mm in kept]


def _daily_cycle(rng: random.Random, series: Series) -> Series:
    phase = rng.uniform(0, 2 * math.pi)
    return series[0], [
        mm + 0.3 * math.sin(math.pi * t / 12 + phase)
        for t, mm in zip(*series, strict=True)
    ]


def _step(rng: random.Random, series: Series) -> Series:
    at_h = series[0][-1] - rng.uniform(0, 24)
    size = rng.choice((-5, -1, 1, 5))
    return series[0], [mm + size * (t > at_h) for t, mm in zip(*series, strict=True)]


def _random_walk(rng: random.Random, series: Series) -> Series:
    times_h, moved_mm, drift_mm = series[0], [], 0.0
    share = math.sqrt(times_h[1] - times_h[0])
    for mm in series[1]:
        drift_mm += rng.gauss(0, 0.1 * share)
        moved_mm.append(mm + drift_mm)
    return times_h, moved_mm


def _outliers(rng: random.Random, series: Series) -> Series:
    return series[0], [
        mm + (rng.choice((-3, 3)) if rng.random() < OUTLIER_SHARE else 0)
        for mm in series[1]
    ]


def _quickened(_rng: random.Random, series: Series) -> Series:
    """Every sixth reading up to three hours before the end, then all."""
    end_h = series[0][-1]
    kept = [
        (t, mm)
        for n, (t, mm) in enumerate(zip(*series, strict=True))
        if t > end_h - 3 or n % 6 == 0
    ]
    return [t for t, _ in kept], [mm for _, mm in kept]


def _coarse(_rng: random.Random, series: Series) -> Series:
    return series[0], [round(mm * 2) / 2 for mm in series[1]]


CONDITIONS: Final[dict[str, Callable[[random.Random, Series], Series]]] = {
    "white noise": _as_is,
    "half lost, 4 h gap": _lost,
    "daily cycle 0.3 mm": _daily_cycle,
    "step of 1 or 5 mm": _step,
    "walk 0.1 mm/sqrt(h)": _random_walk,
    "2 % off by 3 mm": _outliers,
    "cadence quickens": _quickened,
    "steady up to 30 h": _as_is,
    "resolution 0.5 mm": _coarse,
}


@dataclass(frozen=True)
class CoverageCell:
    """One cell of the first grid: condition, sampling and exponent."""

    condition: str
    cadence_h: float
    sigma_mm: float
    exponent: float
    seeds: int
    nows_h: Sequence[float] = NOWS_H


@dataclass(frozen=True)
class Coverage:
    """Forecasts of one cell.

    Attributes:
        made: Number of series.
        bounded: Number of forecasts with a bounded interval.
        bounded_hits: Of these, with the failure in it.
        usable: Number of usable forecasts.
        hits: Of these, with the failure in the interval.
        half_widths_h: Of the usable ones, ascending.
    """

    made: int
    bounded: int
    bounded_hits: int
    usable: int
    hits: int
    half_widths_h: list[float]


def measure_coverage(cell: CoverageCell) -> Coverage:
    """Forecasts of a cell, with seeds of its own for each time."""
    motion = (late_creep if "steady" in cell.condition else tertiary_creep)(
        cell.exponent
    )
    change = CONDITIONS[cell.condition]
    found = []
    for now_h in cell.nows_h:
        for seed in range(cell.seeds):
            rng = random.Random(f"{cell}{now_h}{seed}")
            times_h, moved_mm = sample(
                motion, cell.cadence_h, max(now_h - FIT_SPAN_H, 0.0), now_h
            )
            noisy = [mm + rng.gauss(0, cell.sigma_mm) for mm in moved_mm]
            forecast = forecast_failure(*change(rng, (times_h, noisy)))
            found.append((now_h, forecast))
    known = [(now_h, f) for now_h, f in found if f is not None]
    bounded = [f for _, f in known if f.latest_h < math.inf]
    usable = [f for now_h, f in known if f.is_usable(now_h)]
    return Coverage(
        len(found),
        len(bounded),
        sum(f.earliest_h <= FAILURE_H <= f.latest_h for f in bounded),
        len(usable),
        sum(f.earliest_h <= FAILURE_H <= f.latest_h for f in usable),
        sorted(f.half_width_h for f in usable),
    )


END_H = 96.0


def _constant(rng: random.Random) -> Motion:
    speed = rng.choice((0.05, 0.2, 0.5, 1, 2, 5))
    return lambda t: speed * t


def _background(rng: random.Random) -> float:
    return rng.choice((0, 0, 0.1, 0.5, 2))


def _s_curve(rng: random.Random, rise: Motion) -> Motion:
    """An S-curve of a form from 0 to 1, with a steady background."""
    speed, size = _background(rng), rng.choice((5, 20, 60, 200))
    middle_h, width_h = rng.uniform(24, 60), rng.choice((0.3, 0.7, 1.5, 3, 6, 10))
    return lambda t: speed * t + size * rise((t - middle_h) / width_h)


def _logistic(rng: random.Random) -> Motion:
    return _s_curve(rng, lambda u: 0.5 + 0.5 * math.tanh(u / 2))


def _error_function(rng: random.Random) -> Motion:
    return _s_curve(rng, lambda u: 0.5 + 0.5 * math.erf(u))


def _gompertz(rng: random.Random) -> Motion:
    return _s_curve(rng, lambda u: math.exp(-math.exp(min(-u, 50))))


def _smooth_step(rng: random.Random) -> Motion:
    return _s_curve(rng, lambda u: (v := min(max(u / 4, 0), 1)) * v * (3 - 2 * v))


def _weibull(rng: random.Random) -> Motion:
    shape = rng.choice((1.5, 2, 3, 4, 6))
    return _s_curve(rng, lambda u: 1 - math.exp(-(max(u / 4 + 1, 0) ** shape)))


def _even_acceleration(rng: random.Random) -> Motion:
    a, start_h = rng.choice((0.01, 0.05, 0.2, 1)), rng.uniform(0, 50)
    speed = _background(rng)
    return lambda t: speed * t + a / 2 * max(t - start_h, 0) ** 2


def _exponential(rng: random.Random) -> Motion:
    growth_h, last = rng.choice((4, 8, 15, 30)), rng.choice((1, 5, 20))
    speed = _background(rng)
    return lambda t: speed * t + last * growth_h * math.exp((t - END_H) / growth_h)


def _primary(rng: random.Random) -> Motion:
    size, scale_h = rng.choice((1, 5, 20)), rng.choice((0.5, 2, 10))
    start_h, speed = rng.uniform(0, 60), _background(rng)
    return lambda t: speed * t + size * math.log1p(max(t - start_h, 0) / scale_h)


def _cycles(rng: random.Random) -> Motion:
    period_h, speed = rng.choice((6, 12, 12.4, 24, 36, 48, 72)), rng.choice((0.2, 1, 3))
    share, phase = rng.uniform(0.3, 1.0), rng.uniform(0, 6.3)
    size = share * speed * period_h / 2 / math.pi
    return lambda t: speed * t + size * math.sin(2 * math.pi * t / period_h + phase)


def _daily_warmth(rng: random.Random) -> Motion:
    speed, size = rng.choice((0.05, 0.2, 0.5, 1)), rng.choice((0.1, 0.3, 1))
    phase, at = rng.uniform(0, 6.3), math.pi / 12
    return lambda t: (
        speed * t
        + size * math.sin(at * t + phase)
        + 0.3 * size * math.sin(2 * at * t + 1.7 * phase)
    )


def _stop_and_go(rng: random.Random) -> Motion:
    knots_h, moved_mm, speeds = [0.0], [0.0], []
    while knots_h[-1] < END_H:
        lasts_h = rng.expovariate(1 / rng.choice((2, 5, 10)))
        speeds.append(rng.choice((0, 0.2, 1, 3, 5)))
        knots_h.append(knots_h[-1] + lasts_h)
        moved_mm.append(moved_mm[-1] + speeds[-1] * lasts_h)

    def moved(t_h: float) -> float:
        at = bisect.bisect_right(knots_h, t_h) - 1
        return moved_mm[at] + speeds[min(at, len(speeds) - 1)] * (t_h - knots_h[at])

    return moved


def _steps(rng: random.Random) -> Motion:
    speed = rng.choice((0.1, 0.5, 2))
    steps = [(rng.uniform(0, END_H), rng.choice((0.5, 2, 10, 40))) for _ in range(3)]
    return lambda t: speed * t + sum(mm for at_h, mm in steps if t >= at_h)


def _surges(rng: random.Random) -> Motion:
    """Movement after three storms, which comes to rest again."""
    speed, surges = rng.choice((0.1, 0.5)), []
    for _ in range(3):
        surge = (rng.uniform(0, 80), rng.choice((2, 5, 12)), rng.choice((1, 5, 20)))
        surges.append(surge)

    def moved(t: float) -> float:
        ages = [(max(t - at_h, 0) / scale_h, mm) for at_h, scale_h, mm in surges]
        return speed * t + sum(mm * (1 - (1 + u) * math.exp(-u)) for u, mm in ages)

    return moved


def _wandering(rng: random.Random) -> Motion:
    speed, size = rng.choice((0.05, 0.2, 1)), rng.choice((0.05, 0.2))
    at_mm = [0.0]
    for _ in range(round(END_H * 60) + 2):
        at_mm.append(at_mm[-1] + rng.gauss(0, size / math.sqrt(60)))
    return lambda t: speed * t + at_mm[round(t * 60)]


HARMLESS: Final[dict[str, Callable[[random.Random], Motion]]] = {
    "constant creep": _constant,
    "S-curve, logistic": _logistic,
    "S-curve, error function": _error_function,
    "S-curve, Gompertz": _gompertz,
    "S-curve, smooth step": _smooth_step,
    "S-curve, Weibull": _weibull,
    "even acceleration": _even_acceleration,
    "exponential growth": _exponential,
    "primary creep": _primary,
    "cycles of 6 to 72 h": _cycles,
    "daily warmth": _daily_warmth,
    "stop-and-go": _stop_and_go,
    "steps": _steps,
    "surges": _surges,
    "random walk": _wandering,
}


@dataclass(frozen=True)
class FalseCell:
    """One cell of the second grid: kind of motion and sampling."""

    motion: str
    cadence_h: float
    sigma_mm: float
    seeds: int
    every_h: float = 1.0


def count_false(cell: FalseCell) -> tuple[int, int]:
    """Usable forecasts, and all calls."""
    usable = calls = 0
    for seed in range(cell.seeds):
        rng = random.Random(f"{cell.motion}{cell.cadence_h}{cell.sigma_mm}{seed}")
        motion = HARMLESS[cell.motion](rng)
        times_h, moved_mm = sample(motion, cell.cadence_h, 0.0, END_H)
        noisy = [mm + rng.gauss(0, cell.sigma_mm) for mm in moved_mm]
        now_h = 24.0
        while now_h <= END_H:
            end = bisect.bisect_right(times_h, now_h + 1e-9)
            begin = bisect.bisect_left(times_h, now_h - FIT_SPAN_H - 1e-9)
            found = forecast_failure(times_h[begin:end], noisy[begin:end])
            usable += found is not None and found.is_usable(now_h)
            calls += 1
            now_h += cell.every_h
    return usable, calls


def _print_coverage(
    pool: ProcessPoolExecutor, seeds: int, only: str
) -> tuple[str, float]:
    cells = [
        CoverageCell(condition, cadence_h, sigma_mm, exponent, seeds)
        for condition in CONDITIONS
        if only in condition
        for cadence_h, sigma_mm in SAMPLINGS
        for exponent in EXPONENTS
    ]
    results = list(pool.map(measure_coverage, cells))
    rows, worst, step = [], 1.0, len(EXPONENTS)
    for at in range(0, len(cells), step):
        cell, group = cells[at], results[at : at + step]
        many = [r for r in group if r.usable >= MIN_FORECASTS * seeds / 100]
        covers = [r.hits / r.usable for r in many]
        worst = min([worst, *covers])
        usable, widths = sum(r.usable for r in group), [r.half_widths_h for r in group]
        rows.append([
            cell.condition,
            f"{cell.cadence_h * 60:.0f} min",
            f"{cell.sigma_mm:g} mm",
            f"{100 * usable / sum(r.made for r in group):.0f} %",
            f"{100 * sum(r.hits for r in group) / max(usable, 1):.1f} %",
            f"{100 * min(covers):.1f} %" if covers else "-",
            f"{100 * min(r.bounded_hits / max(r.bounded, 1) for r in group):.1f} %",
            f"{median([width for each in widths for width in each]):.1f} h"
            if usable
            else "-",
        ])
    head = ["condition", "cadence", "noise", "usable", "coverage", "worst exponent"]
    return table([*head, "all bounded, worst", "half width, median"], rows), worst


def _print_false(pool: ProcessPoolExecutor, seeds: int) -> tuple[str, float]:
    cells = [
        FalseCell(motion, cadence_h, sigma_mm, seeds)
        for motion in HARMLESS
        for cadence_h, sigma_mm in SAMPLINGS
    ]
    rows, worst = [], 0.0
    for cell, (usable, calls) in zip(cells, pool.map(count_false, cells), strict=True):
        worst = max(worst, usable / calls)
        rows.append([
            cell.motion,
            f"{cell.cadence_h * 60:.0f} min",
            f"{cell.sigma_mm:g} mm",
            f"{usable} of {calls}",
        ])
    return table(["motion", "cadence", "noise", "usable forecasts"], rows), worst


def _cpu_ms() -> tuple[float, float]:
    """CPU of a call with an accelerating slope, and with a steady one."""
    found = []
    for motion in (tertiary_creep(1.8), _constant(random.Random(1))):
        rng = random.Random(1)
        times_h, moved_mm = sample(motion, 0.25, 18.0, 42.0)
        noisy = [mm + rng.gauss(0, 0.1) for mm in moved_mm]
        begin = time.process_time()
        for _ in range(50):
            forecast_failure(times_h, noisy)
        found.append((time.process_time() - begin) * 20)
    return found[0], found[1]


@click.command()
@click.option("--seeds", default=40, show_default=True, help="Series of each cell.")
@click.option("--only", default="", help="Only coverage, of conditions with this.")
@click.option("--workers", default=2, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path), help="File for the tables.")
def main(seeds: int, only: str, workers: int, out: Path | None) -> None:
    """Print both tables, the worst cells, and the CPU of a call."""
    with ProcessPoolExecutor(workers) as pool:
        covered, coverage = _print_coverage(pool, seeds, only)
        parts = [covered, f"Worst coverage: {100 * coverage:.1f} %."]
        if not only:
            false, rate = _print_false(pool, seeds)
            moving_ms, steady_ms = _cpu_ms()
            parts += [
                false,
                f"Worst rate of false forecasts: {100 * rate:.3f} %.",
                f"CPU: {moving_ms:.1f} ms accelerating, {steady_ms:.1f} ms steady.",
            ]
    text = "\n\n".join(parts)
    click.echo(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Cases: faults with what must be.

Each case builds a series for a cadence and a seed, and has checks on the outcome of the
whole path. Levels are those of assumed criteria (150 mm).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from experiments.evidence import faults
from experiments.evidence.checks import (
    Check,
    as_true,
    backend_at_most,
    calm,
    flagged,
    never_below,
    node_at_least,
    node_at_most,
    node_reaches,
    not_judged,
    notice_at_most,
    notice_at_most_from,
    notice_in_force,
    reaches,
    siren_at_most,
    unflagged,
)
from experiments.evidence.path import Outcome
from experiments.evidence.series import (
    Sample,
    Series,
    creep,
    dry,
    extensometer,
    gauge,
    pulse,
    recorded_storm,
    sensor,
    shocks,
    spike,
    step,
    storm,
    tilt_meter,
    wire,
)


@dataclass(frozen=True)
class Case:
    """A fault with what must be.

    Attributes:
        name: Name of the fault.
        build: Makes the series with the fault.
        checks: All must hold.
        hours: Length of the series.
        clean: Makes the same series without the fault; None: the truth is level 1.
        after_h: How long the clock runs on.
        row: Number of the row in the issue's table; 0 for others.
        coarse: Whether the result does not depend on passes between hours.
    """

    name: str
    build: Callable[[Series], Series]
    checks: Sequence[Check]
    hours: float = 12.0
    clean: Callable[[Series], Series] | None = None
    after_h: float = 0.0
    row: int = 0
    coarse: bool = False

    def problems(self, outcome: Outcome, truth: Outcome | None) -> list[str]:
        """What is wrong."""
        found = (check(outcome, truth) for check in self.checks)
        return [problem for problem in found if problem]


LONGEST_ALONE_MIN: Final = 150
"""Siren of a wire alone: half an hour by `alone_level`, and its hold and calm times."""

WIRE_ALONE_UNTIL_H: Final = 8.0
"""Notices of a wire that is cut at 6 h follow `alone_level` for half an hour, and go on
for their calm time of an hour."""

STORM_BEGIN_H: Final = 2.0
NEIGHBOURS: Final = {"n2": 0, "n3": 0, "n4": 1, "n5": 2, "n6": 3}
"""Five neighbours: two in the slope's cell, three within two kilometres."""

GOOD: Final = tuple(NEIGHBOURS)


def _storm(series: Series, mm_per_h: float = 30.0, end_h: float = 99.0) -> Series:
    return gauge(series, storm(mm_per_h, STORM_BEGIN_H, end_h))


def _with_neighbours(series: Series, rain: Callable[[float], float]) -> Series:
    series = gauge(series, rain)
    for node, place in NEIGHBOURS.items():
        series = gauge(series, rain, node, place=place)
    return series


def _still(series: Series) -> Series:
    """A gauge and a tilt meter without rain or movement."""
    return tilt_meter(gauge(series, dry))


def _kick(series: Series, deg: float, at_h: float = 6.0) -> Series:
    return faults.add(
        _still(series), "tilt", lambda _: deg, quantity="tilt_x", begin_h=at_h
    )


def _per_hour(
    mm_per_h: float, begin_h: float, end_h: float
) -> Callable[[Series], Callable[[float], float]]:
    def make(series: Series) -> Callable[[float], float]:
        per_report = mm_per_h * series.every_s / 3600
        return lambda h: per_report if begin_h < h <= end_h else 0.0

    return make


def _false_rain(
    series: Series, rain: Callable[[Series], Callable[[float], float]]
) -> Series:
    return faults.add_rain(gauge(series, dry), rain(series))


def _once(mm: float, at_h: float = 6.0) -> Callable[[Series], Callable[[float], float]]:
    return lambda series: (
        lambda h: mm if abs(h - at_h) * 3600 < series.every_s / 2 else 0.0
    )


def _six(mm: float) -> Callable[[float], float]:
    return lambda h: mm if any(spike(1, 6 + n / 6)(h) for n in range(6)) else 0.0


def _slope_fails(series: Series) -> Series:
    """Creep of 0.2 deg/h, then shocks and the cut wire within a minute."""
    series = tilt_meter(gauge(series, dry), creep(0.2, 6.0))
    series = wire(series, step(1.0, 9.0))
    return shocks(series, pulse(200.0, 8.95, 9.2))


ISSUE: Final = (
    Case(
        "gauge dies in the storm, 8 h",
        lambda s: faults.die(_storm(s), "rain", 8.0),
        (never_below(8.0, 22.0), not_judged(10.0, 22.0), notice_in_force(9.0, 22.0, 2)),
        hours=22.0,
        clean=_storm,
        row=1,
        after_h=0.0,
    ),
    Case(
        "gauge dies beside a live tilt meter, 11 h",
        lambda s: faults.die(tilt_meter(_storm(s)), "rain", 11.0),
        (
            never_below(11.0, 24.0),
            not_judged(13.0, 24.0),
            notice_in_force(11.0, 24.0, 3),
        ),
        hours=24.0,
        clean=_storm,
        row=1,
    ),
    Case(
        "whole node dies in the storm, 11 h",
        lambda s: faults.fall_silent(_storm(s), 11.0),
        (
            never_below(11.0, 24.0),
            not_judged(13.0, 24.0),
            notice_in_force(11.0, 24.0, 3),
        ),
        hours=24.0,
        clean=_storm,
        row=1,
    ),
    Case(
        "outage of 14 h, then catch-up",
        lambda s: faults.delay_network(_storm(s, 20.0, 12.0), 3.0, 17.0),
        (as_true(),),
        hours=20.0,
        clean=lambda s: _storm(s, 20.0, 12.0),
        row=2,
    ),
    Case(
        "5 h at 16 mm/h in one report, on wet soil",
        lambda s: faults.report_once(_storm(s, 16.0, 13.0), 8.0, 13.0),
        (as_true(less=5),),
        hours=16.0,
        clean=lambda s: _storm(s, 16.0, 13.0),
        row=2,
    ),
    *(
        Case(f"kick of {deg:g} deg", lambda s, d=deg: _kick(s, d), calm(), row=3)
        for deg in (0.2, 1.0, 5.0)
    ),
    Case(
        "reed bouncing for 5 s every 2 min",
        lambda s: _false_rain(s, _per_hour(300.0, 4.0, 8.0)),
        (backend_at_most(3), notice_at_most(3), flagged(), siren_at_most(0)),
        row=4,
    ),
    Case(
        "one report of 200 mm",
        lambda s: _false_rain(s, _once(200.0)),
        (backend_at_most(3), notice_at_most(3), flagged(), siren_at_most(0)),
        row=4,
    ),
    Case(
        "9.5 mm/min for an hour",
        lambda s: _false_rain(s, _per_hour(570.0, 6.0, 7.0)),
        (backend_at_most(3), notice_at_most(3), flagged(), siren_at_most(0)),
        row=4,
    ),
    Case(
        "49 mm six times",
        lambda s: _false_rain(s, lambda _: _six(49.0)),
        (backend_at_most(3), notice_at_most(3), flagged(), siren_at_most(0)),
        row=4,
    ),
    Case(
        "gauge against five dry neighbours",
        lambda s: faults.add_rain(
            _with_neighbours(s, dry), _per_hour(40.0, 3.0, 11.0)(s)
        ),
        (
            backend_at_most(3),
            notice_at_most(3),
            siren_at_most(0),
            flagged(),
            unflagged(*GOOD),
        ),
        row=5,
    ),
    Case(
        "rain in inches, neighbours in mm",
        lambda s: faults.scale(
            _with_neighbours(s, storm(20.0, 2, 99)), "rain", 1 / 25.4
        ),
        (flagged(), unflagged(*GOOD), as_true()),
        clean=lambda s: _with_neighbours(s, storm(20.0, 2, 99)),
        row=6,
    ),
    Case(
        "rain x10, neighbours good",
        lambda s: faults.scale(_with_neighbours(s, storm(6.0, 2, 99)), "rain", 10.0),
        (
            flagged(),
            unflagged(*GOOD),
            backend_at_most(3),
            notice_at_most(3),
            siren_at_most(0),
        ),
        row=6,
    ),
    Case(
        "clock 9 h slow but synchronised",
        lambda s: faults.shift_clock(_storm(s), -9.0),
        (flagged(),),
        row=6,
    ),
    Case(
        "coarse MEMS of 0.05 deg, 14 days",
        lambda s: tilt_meter(gauge(s, dry), noise_deg=0.03, resolution_deg=0.05),
        calm(),
        hours=14 * 24.0,
        row=7,
        coarse=True,
    ),
    Case(
        "thermal tilt without a temperature, 14 days",
        lambda s: tilt_meter(gauge(s, dry), deg_per_k=0.02, has_temperature=False),
        calm(),
        hours=14 * 24.0,
        row=7,
        coarse=True,
    ),
    Case(
        "wire touched for 10 min",
        lambda s: wire(_still(s), pulse(1.0, 6.0, 6.17)),
        (node_at_least(5), siren_at_most(LONGEST_ALONE_MIN)),
        row=8,
    ),
    Case(
        "wire cut for 72 h",
        lambda s: wire(_still(s), step(1.0, 6.0)),
        (
            node_at_least(5),
            # coarse: passes are an hour apart
            notice_at_most_from(WIRE_ALONE_UNTIL_H + 0.5, 3),
            siren_at_most(LONGEST_ALONE_MIN),
        ),
        hours=78.0,
        row=8,
        coarse=True,
    ),
    Case(
        "extensometer step of 40 mm",
        lambda s: extensometer(gauge(s, dry), step(40.0, 6.0)),
        (
            node_at_most(3),
            backend_at_most(3),
            notice_at_most(3),
            siren_at_most(0),
            node_reaches(3, 6.0, 60),
            reaches(3, 6.0, 60),
        ),
        row=9,
    ),
    Case(
        "true creep of 0.2 deg/h",
        lambda s: tilt_meter(gauge(s, dry), creep(0.2, 6.0)),
        (reaches(4, 6.0, 45), node_reaches(4, 6.0, 45)),
        row=10,
    ),
)


def _clogged(series: Series) -> Series:
    series = _with_neighbours(series, storm(25.0, 2.0, 99.0))
    series = faults.stick(series, "rain", 0.0, quantity="rain", begin_h=4.0)
    return faults.stick(series, "rain", 50.0, quantity="rain_total", begin_h=4.0)


def _counter_only(series: Series, by: Callable[[Sample], Sample]) -> Series:
    series = faults.only(_storm(series), ["rain_total"])
    return faults.change(series, by, quantity="rain_total", begin_h=5.0)


def _half_lost(series: Series) -> Series:
    return faults.lose(_storm(series, 25.0), 0.5)


def _without(series: Series, nodes: Sequence[str]) -> Series:
    for node in nodes:
        series = faults.fall_silent(series, 6.0, node=node)
    return series


def _at_once(series: Series, end_h: float = math.inf, **jumps: float) -> Series:
    """All sensors of the node jump in the same reading at 6 h, until a time."""
    series = shocks(extensometer(_still(series)))
    for name, size in jumps.items():
        course = pulse(size, 6.0, end_h)
        quantity = "tilt_x" if name == "tilt" else None
        series = faults.add(series, name, course, quantity=quantity)
    return series


def _six_kicks(series: Series) -> Series:
    """Kicks in both directions within four hours."""
    sizes = (0.5, -0.7, 0.3, 0.6, -0.2, 0.4)
    kicks = [step(size, 5.0 + 0.7 * at) for at, size in enumerate(sizes)]
    return faults.add(
        _still(series), "tilt", lambda h: sum(k(h) for k in kicks), quantity="tilt_x"
    )


def _stuck_axis(series: Series) -> Series:
    """Creep of 0.3 deg/h along y from 14 h on, and an axis that never moves."""
    series = tilt_meter(gauge(series, dry), creep(1.0, 14.0))
    return faults.stick(series, "tilt", 0.25, quantity="tilt_x", begin_h=-1.0)


MORE: Final = (
    Case(
        "kick that pulls the rod, too",
        lambda s: _at_once(s, tilt=1.2, crack=14.0),
        calm(3),
    ),
    Case(
        "lightning: all sensors of a node jump at once",
        lambda s: faults.add(
            _at_once(s, tilt=0.9, crack=22.0), "shocks", spike(60.0, 6.0)
        ),
        calm(3),
    ),
    Case(
        "lightning: all sensors of a node spike at once",
        lambda s: _at_once(s, 6.0 + 1e-6, tilt=3.0, crack=80.0, shocks=200.0),
        calm(3),
    ),
    Case(
        "six kicks in both directions",
        _six_kicks,
        (notice_at_most(3), siren_at_most(0)),
    ),
    Case(
        "stuck axis, true creep along the other",
        _stuck_axis,
        (reaches(4, 14.0, 45), node_reaches(4, 14.0, 45)),
        hours=18.0,
    ),
    Case(
        "clock an hour ahead, true creep",
        lambda s: faults.shift_clock(tilt_meter(gauge(s, dry), creep(0.25, 6.0)), 1.0),
        (reaches(4, 6.0, 45), flagged()),
    ),
    Case(
        "tilt spike of 3 deg",
        lambda s: faults.add(_still(s), "tilt", spike(3.0, 6.0), quantity="tilt_x"),
        calm(),
    ),
    Case(
        "kick and kick back after 30 min",
        lambda s: faults.add(
            _still(s), "tilt", lambda _: 1.0, quantity="tilt_x", begin_h=6.0, end_h=6.5
        ),
        calm(),
    ),
    Case(
        "two kicks an hour apart",
        lambda s: faults.add(
            _kick(s, 0.5), "tilt", lambda _: 0.5, quantity="tilt_x", begin_h=7.0
        ),
        calm(),
    ),
    Case(
        "kicks of 0.3 deg every 20 min for 3 h",
        lambda s: faults.add(
            _still(s),
            "tilt",
            lambda h: sum(step(0.3, 6 + n / 3)(h) for n in range(9)),
            quantity="tilt_x",
        ),
        (notice_at_most(3), siren_at_most(0)),
    ),
    Case("meter turned by 90 deg at a service", lambda s: _kick(s, 90.0), calm()),
    Case(
        "tilt noise ten times as large",
        lambda s: tilt_meter(gauge(s, dry), noise_deg=0.02),
        calm(),
    ),
    Case(
        "tilt noise grows in the middle",
        lambda s: faults.add(
            _still(s),
            "tilt",
            lambda h: s.rng(f"{h}").gauss(0, 0.1),
            quantity="tilt_x",
            begin_h=6.0,
        ),
        calm(),
    ),
    Case(
        "tilt stuck for 30 h",
        lambda s: faults.stick(_still(s), "tilt", 0.5, quantity="tilt_x", begin_h=2.0),
        (*calm(), flagged()),
        hours=36.0,
        coarse=True,
    ),
    Case(
        "thermal tilt with temperature, 7 days",
        lambda s: tilt_meter(gauge(s, dry), deg_per_k=0.02),
        calm(3),
        hours=7 * 24.0,
        coarse=True,
    ),
    Case(
        "half of the messages lost, and a kick",
        lambda s: faults.lose(_kick(s, 1.0), 0.5),
        calm(),
    ),
    Case(
        "temperature of the meter jumps to 85",
        lambda s: faults.stick(
            _still(s), "tilt", 85.0, quantity="temperature", begin_h=6.0, end_h=7.0
        ),
        calm(),
    ),
    Case(
        "angle register wraps to -90",
        lambda s: faults.stick(
            _still(s), "tilt", -90.0, quantity="tilt_x", begin_h=6.0, end_h=8.0
        ),
        calm(),
    ),
    Case(
        "gauge clogged in a storm",
        _clogged,
        (flagged(), unflagged(*GOOD), as_true()),
        clean=lambda s: _with_neighbours(s, storm(25.0, 2.0, 99.0)),
    ),
    Case(
        "counter restarts at 0 in a storm",
        lambda s: faults.add(
            _storm(s),
            "rain",
            lambda _: -120.0,
            quantity="rain_total",
            begin_h=6.0,
        ),
        (as_true(),),
        clean=_storm,
    ),
    Case(
        "counter alone, restarts at 0",
        lambda s: _counter_only(s, lambda x: replace(x, value=(x.value or 0.0) - 90.0)),
        (as_true(),),
        clean=_storm,
    ),
    Case(
        "counter falls and rises by 20 mm",
        lambda s: faults.add_counter_error(
            faults.only(gauge(s, dry), ["rain_total"]), 100.0, 20.0
        ),
        (
            node_at_most(3),
            backend_at_most(3),
            notice_at_most(3),
            flagged(),
            siren_at_most(0),
        ),
    ),
    Case(
        "counter jumps by 1,000 mm",
        lambda s: faults.add(
            gauge(s, dry), "rain", lambda _: 1000.0, quantity="rain_total", begin_h=6.0
        ),
        (backend_at_most(3), notice_at_most(3), flagged(), siren_at_most(0)),
    ),
    Case(
        "9,999 mm in one report",
        lambda s: _false_rain(s, _once(9999.0)),
        (backend_at_most(3), notice_at_most(3), flagged(), siren_at_most(0)),
    ),
    Case(
        "negative depths",
        lambda s: faults.stick(
            _storm(s), "rain", -1.0, quantity="rain", begin_h=6.0, end_h=7.0
        ),
        (flagged(), as_true(less=1)),
        clean=_storm,
    ),
    Case("bucket tipped by hand, 20 mm", lambda s: _false_rain(s, _once(20.0)), calm()),
    Case(
        "leaking pipe above a gauge, 25 mm/h for 10 h",
        lambda s: faults.add_rain(
            _with_neighbours(s, dry), _per_hour(25.0, 1.0, 11.0)(s)
        ),
        (
            backend_at_most(3),
            notice_at_most(3),
            flagged(),
            unflagged(*GOOD),
            siren_at_most(0),
        ),
    ),
    Case(
        "neighbours die in a storm",
        lambda s: _without(_with_neighbours(s, storm(25.0, 2.0, 99.0)), GOOD),
        (as_true(),),
        clean=lambda s: gauge(s, storm(25.0, 2.0, 99.0)),
    ),
    Case(
        "clock a year ahead",
        lambda s: faults.shift_clock(_storm(s), 8760.0, 9.0),
        (flagged(), never_below(9.0, 14.0)),
        hours=14.0,
    ),
    Case(
        "clock unset, in 1970",
        lambda s: faults.shift_clock(_still(s), -491_000.0, -1.0, "unsynchronised"),
        (*calm(), flagged()),
    ),
    Case(
        "messages of an hour in reverse order",
        lambda s: faults.change(
            _storm(s),
            lambda x: replace(x, received_h=7.0 + (7.0 - x.at_h) / 100),
            begin_h=6.0,
            end_h=7.0,
        ),
        (as_true(),),
        clean=_storm,
    ),
    Case(
        "half of the messages lost in a storm",
        _half_lost,
        (as_true(less=1),),
        clean=lambda s: _storm(s, 25.0),
    ),
    Case(
        "wire contact flaps every report",
        lambda s: wire(
            _still(s), lambda h: step(round(h * 3600 / s.every_s) % 2, 6.0)(h)
        ),
        (notice_at_most_from(WIRE_ALONE_UNTIL_H, 3), siren_at_most(60)),
    ),
    Case(
        "lorry: 500 shocks in 10 min",
        lambda s: shocks(_still(s), pulse(500.0, 6.01, 6.17)),
        calm(),
    ),
    Case(
        "moisture probe pulled out, then in water",
        lambda s: sensor(
            _storm(s, 5.0),
            "soil",
            "moisture",
            lambda h: 0.3 - step(0.3, 6.0)(h) + step(0.6, 7.0)(h),
            "/",
        ),
        calm(),
    ),
    Case(
        "pore pressure jumps by 50 kPa",
        lambda s: sensor(
            _storm(s, 5.0),
            "pore",
            "pore_pressure",
            lambda h: -5.0 + step(50.0, 6.0)(h),
            "kPa",
        ),
        calm(),
    ),
    Case(
        "extensometer touched once, +10 mm",
        lambda s: extensometer(gauge(s, dry), spike(10.0, 6.0)),
        calm(),
    ),
    Case(
        "extensometer drifts with the sun, 0.5 mm",
        lambda s: extensometer(
            gauge(s, dry),
            lambda h: 0.25 * math.sin(2 * math.pi * h / 24),
        ),
        calm(),
        hours=96.0,
        coarse=True,
    ),
    Case(
        "recorded storm x4, gauge dies on the peak",
        lambda s: faults.die(gauge(s, recorded_storm(4.0)), "rain", 34.0),
        (never_below(34.0, 48.0), not_judged(36.0, 48.0)),
        hours=48.0,
        clean=lambda s: gauge(s, recorded_storm(4.0)),
    ),
    Case(
        "slope fails: creep, shocks, wire",
        _slope_fails,
        (reaches(4, 6.0, 45), node_reaches(5, 9.0, 15), reaches(5, 9.0, 25)),
    ),
    Case(
        "backend down for 12 h",
        lambda s: faults.delay_network(_storm(s, 25.0), 4.0, 16.0),
        (as_true(),),
        hours=18.0,
        clean=lambda s: _storm(s, 25.0),
    ),
)

ALL: Final = (*ISSUE, *MORE)

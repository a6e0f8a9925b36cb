"""Faults of a node's sensors over a grid of cadences and seeds, by the node's triage.

No fault of one sensor, and none of all sensors of a node in the same reading, reaches
level 4 at an alarm output; true creep beside a fault is found in time.
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from itertools import product

import pytest

from experiments.evidence import faults
from experiments.evidence.path import run_node
from experiments.evidence.series import (
    Series,
    creep,
    dry,
    extensometer,
    gauge,
    shocks,
    tilt_meter,
)

pytestmark = pytest.mark.long

HOURS = 12.0
CADENCES_S = (60.0, 300.0, 900.0, 1200.0, 1800.0, 3600.0)
SEEDS = (11, 12)
LATEST_MIN = {900.0: 60, 1200.0: 80, 1800.0: 120, 3600.0: 300}
"""Creep counts within 45 minutes at ten minutes between readings, and later beyond."""

Error = Callable[[Series, str, float], float]
"""Error of a quantity at a time in hours."""

QUANTITIES = ("tilt_x", "tilt_y", "displacement", "shocks")
SHARES = {"tilt_x": 1.0, "tilt_y": -0.6, "displacement": 20.0, "shocks": 60.0}
"""Error of each quantity in its unit beside that of the first."""


def _begin(series: Series) -> float:
    return 5.0 + 2.0 * series.rng("begin").random()


def _noise(series: Series, quantity: str, at_h: float) -> float:
    return series.rng(f"{quantity} {at_h}").gauss(0.0, 0.3)


def _is_first(series: Series, at_h: float) -> bool:
    return _begin(series) <= at_h < _begin(series) + series.every_s / 3600


def _lightning(series: Series, quantity: str, at_h: float) -> float:
    stays = quantity != "shocks" or _is_first(series, at_h)
    return float(at_h >= _begin(series) and stays)


def _is_other(series: Series, at_h: float) -> bool:
    """Whether a contact is at the other of two values, for half an hour on average."""
    rng, next_h, count = series.rng("contact"), _begin(series), 0
    while next_h <= at_h:
        next_h, count = next_h + rng.expovariate(2.0), count + 1
    return count % 2 == 1


COMMON: dict[str, Error] = {
    "lightning": _lightning,
    "spike": lambda s, _, h: 3.0 * _is_first(s, h),
    "weak supply": lambda s, q, h: (
        _noise(s, q, h) if q != "shocks" and 0 <= h - _begin(s) < 1 else 0.0
    ),
    "reference": lambda s, q, h: (
        0.0 if q == "shocks" else 0.4 * ((h > _begin(s)) + (h > _begin(s) + 0.7))
    ),
}
"""Of all sensors of a node."""

KICKS = (0.5, -0.7, 0.3, 0.6, -0.2, 0.4)

OF_TILT: dict[str, Error] = {
    "kick": lambda s, _, h: 1.5 * (h >= _begin(s)),
    "kicks": lambda s, _, h: sum(
        size * (h >= _begin(s) + 0.7 * at) for at, size in enumerate(KICKS)
    ),
    "noise": lambda s, q, h: _noise(s, q, h) if h >= _begin(s) else 0.0,
    "loose contact": lambda s, _, h: 0.3 * (h >= _begin(s)) * _is_other(s, h),
    "frost": lambda _, __, h: 0.1 * math.sin(math.pi * h / 12.0) ** 2,
    "spikes": lambda s, q, h: (
        4.0 * (s.rng(f"{q} spike {h}").random() < 0.15) if h >= _begin(s) else 0.0
    ),
}


LIKE_CREEP = {"kicks", "noise"}
"""Kicks of unlike sizes in one hour, and noise once in thousands of windows, are level
4, unconfirmed."""


def with_errors(series: Series, error: Error, *quantities: str) -> Series:
    """The series with an error of some quantities."""
    return reduce(partial(_with_error, error), quantities, series)


def _with_error(error: Error, series: Series, quantity: str) -> Series:
    name = {"displacement": "crack", "shocks": "shocks"}.get(quantity, "tilt")
    share = SHARES[quantity]
    return faults.add(
        series, name, lambda h: share * error(series, quantity, h), quantity=quantity
    )


def _kick_at(kick_h: float, _series: Series, _quantity: str, at_h: float) -> float:
    return float(at_h >= kick_h)


def _worst(series: Series) -> tuple[int, int]:
    found = run_node(series)
    return max(n.level for n in found), max(n.alarm_level for n in found)


@pytest.mark.parametrize("name", COMMON)
def test_event_at_a_node_confirms_nothing(name: str) -> None:
    for every_s, seed in product(CADENCES_S, SEEDS):
        base = Series(hours=HOURS, every_s=every_s, seed=seed)
        base = shocks(extensometer(tilt_meter(gauge(base, dry))))
        _, alarm = _worst(with_errors(base, COMMON[name], *QUANTITIES))
        assert alarm <= 3, (every_s, seed)


@pytest.mark.parametrize("name", OF_TILT)
def test_fault_of_a_tilt_meter_is_no_creep(name: str) -> None:
    for every_s, seed in product(CADENCES_S, SEEDS):
        base = tilt_meter(gauge(Series((), HOURS, every_s, seed), dry))
        level, alarm = _worst(with_errors(base, OF_TILT[name], "tilt_x", "tilt_y"))
        assert (alarm if name in LIKE_CREEP else level) <= 3, (every_s, seed)


@pytest.mark.parametrize("name", ["clean", "stuck axis", "kick before", "hot"])
def test_creep_beside_a_fault_is_found_in_time(name: str) -> None:
    for every_s, seed in product(CADENCES_S, SEEDS):
        base = Series((), HOURS, every_s, seed)
        begin_h = _begin(base)
        base = tilt_meter(gauge(base, dry), creep(0.9, begin_h))
        if name == "stuck axis":
            base = faults.stick(base, "tilt", 0.25, quantity="tilt_x", begin_h=-1)
        if name == "kick before":
            kick = partial(_kick_at, begin_h - 0.5)
            base = with_errors(base, kick, "tilt_x")
        if name == "hot":
            base = faults.stick(base, "tilt", 85.0, quantity="temperature")
        found = run_node(base)
        first_h = min((n.at_h for n in found if n.level >= 4), default=math.inf)
        late_min = (first_h - begin_h) * 60
        assert late_min <= LATEST_MIN.get(every_s, 45), (every_s, seed)

"""The same evidence on a node and in the backend, over a grid of faults and movements.

Each series runs through the node's triage and through the scoring of a cell: faults of
one sensor stay at level 2 or 3, and true movement is found in time.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import pytest

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from edge_agent.triage.engine import Triage
from slope_science.levels import Criteria
from spatial_mqtt.senml import Reading

T0 = 1_750_032_000  # a midnight in UTC
HOUR_S = 3600.0
RULES = CellRules(Criteria.assumed_from(150.0))
QUIET_H = 36.0
"""A day and a half, after which the daily range of a sensor is known."""

Movement = Callable[[float], float]
"""Tilt in deg or displacement in mm at a time in hours."""


@dataclass(frozen=True)
class Measured:
    """The attributes of a sensor that triage uses."""

    name: str
    quantity: str
    senml_unit: str


@dataclass(frozen=True)
class Judged:
    """Level and level for notices at a time in hours."""

    at_h: float
    level: int
    notice: int


Rows = list[tuple[float, float, float]]


def tilt_series(
    hours: float,
    every_s: float,
    x: Movement,
    noise: float,
    seed: int,
    *,
    quantum: float = 0.0,
) -> Rows:
    """Times, x and y of a tilt sensor with noise and a resolution."""
    rng, rows = random.Random(seed), []
    for at in range(int(hours * HOUR_S / every_s)):
        t_s = at * every_s
        values = [x(t_s / HOUR_S) + rng.gauss(0, noise), 2 + rng.gauss(0, noise)]
        if quantum:
            values = [round(value / quantum) * quantum for value in values]
        rows.append((t_s, values[0], values[1]))
    return rows


def on_the_node(rows: Rows) -> list[Judged]:
    """Levels of the node's triage."""
    triage, found = Triage([Measured("tilt", "tilt", "deg")]), []
    for t_s, x, y in rows:
        readings = [Reading("tilt/x", "deg", x), Reading("tilt/y", "deg", y)]
        result = triage.assess(readings, T0 + t_s)
        found.append(Judged(t_s / HOUR_S, result.level, result.alarm_level))
    return found


def in_the_backend(series: dict[str, Rows]) -> list[Judged]:
    """Levels of a cell with one node or several."""
    observations = [
        Observation(T0 + t_s, node, f"tilt/{axis}", "deg", value)
        for node, rows in series.items()
        for t_s, *values in rows
        for axis, value in zip("xy", values, strict=True)
    ]
    return list(_judged(observations))


def _judged(observations: list[Observation]) -> Iterator[Judged]:
    for row in score_cell(observations, RULES).rows:
        level, notice = row.level or 1, row.more["notice_level"]
        at_h = (row.end_s - T0) / HOUR_S
        yield Judged(at_h, level, level if notice is None else notice)


def both(rows: Rows) -> list[list[Judged]]:
    """Levels on the node and in the backend."""
    return [on_the_node(rows), in_the_backend({"n1": rows})]


def delay_min(found: list[Judged], level: int, onset_h: float) -> float:
    """Minutes from the onset to a level; infinite if it is not reached."""
    times_h = (j.at_h for j in found if j.level >= level and j.at_h >= onset_h)
    return (next(times_h, math.inf) - onset_h) * 60


def kick(size: float, every_s: float, parts: int) -> Movement:
    """A kick against the pile at noon, read whole or in two parts."""

    def x(at_h: float) -> float:
        is_first = parts == 2 and 12 < at_h <= 12 + every_s / HOUR_S
        return size * (0.6 if is_first else 1.0) * (at_h > 12)

    return x


KICKS = list(
    product((0.2, 1.0, 5.0), (300.0, 600.0, 3600.0), (0.0, 0.002, 0.01), (1, 2))
)


@pytest.mark.parametrize(
    ("size", "every_s", "noise", "parts"),
    [
        pytest.param(
            *each,
            marks=[] if each in KICKS[::7] else [pytest.mark.long],
        )
        for each in KICKS
    ],
)
def test_kick_stays_at_level_two(
    size: float, every_s: float, noise: float, parts: int
) -> None:
    """Also with noise, and when the reading falls into the kick."""
    hours = 16 if every_s < HOUR_S else 40
    rows = tilt_series(hours, every_s, kick(size, every_s, parts), noise, seed=1)
    assert [max(j.level for j in found) <= 2 for found in both(rows)] == [True, True]


@pytest.mark.parametrize(
    ("size", "every_s", "noise"),
    [
        (1.0, 600.0, 0.01),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in product(
                (0.5, 3.0), (120.0, 420.0, 900.0, 1800.0), (0.005, 0.02)
            )
        ),
    ],
)
def test_kick_stays_at_level_two_for_any_noise(
    size: float, every_s: float, noise: float
) -> None:
    """On the node, for several seeds; a reading falls into each kick."""
    for seed in range(10, 16):
        rows = tilt_series(18, every_s, kick(size, every_s, 2), noise, seed)
        assert max(j.level for j in on_the_node(rows)) <= 2, seed


@pytest.mark.parametrize(
    "every_s", [pytest.param(300.0, marks=pytest.mark.long), 600.0]
)
def test_creep_after_a_kick_is_level_four_within_an_hour(every_s: float) -> None:
    """A jolt at the beginning of a slide does not hide it."""

    def x(at_h: float) -> float:
        return (0.5 + 0.2 * (at_h - QUIET_H)) * (at_h > QUIET_H)

    for found in both(tilt_series(QUIET_H + 3, every_s, x, 0.002, seed=4)):
        assert delay_min(found, 4, QUIET_H) <= 60


@pytest.mark.parametrize(
    ("noise", "swing_deg", "days"),
    [
        (0.01, 0.05, 4),
        *(
            pytest.param(*each, 14, marks=pytest.mark.long)
            for each in product((0.002, 0.01, 0.03), (0.0, 0.02, 0.05))
        ),
    ],
)
def test_coarse_sensor_stays_at_level_two(
    noise: float, swing_deg: float, days: int
) -> None:
    """Resolution of 0.05 deg, with noise and the warmth of the day."""

    def x(at_h: float) -> float:
        return 1.013 + swing_deg * math.sin(at_h * math.pi / 12)

    rows = tilt_series(days * 24, 600.0, x, noise, seed=2, quantum=0.05)
    assert [max(j.level for j in found) <= 2 for found in both(rows)] == [True, True]


@pytest.mark.parametrize(
    ("swing_deg", "share", "days"),
    [
        (0.16, 0.0, 4),
        *(
            pytest.param(*each, 14, marks=pytest.mark.long)
            for each in product((0.03, 0.07, 0.16), (0.0, 0.5))
        ),
    ],
)
def test_warmth_without_a_temperature_stays_at_level_two(
    swing_deg: float, share: float, days: int
) -> None:
    """From the first day on; a share of the swing differs from day to day."""
    rng = random.Random(5)
    swings = [swing_deg * (1 - share * rng.random()) for _ in range(15)]

    def x(at_h: float) -> float:
        return 1 + swings[int(at_h // 24)] * math.sin(at_h * math.pi / 12)

    rows = tilt_series(days * 24, 600.0, x, 0.002, seed=3)
    found = both(rows)
    assert [max(j.level for j in each) <= 2 for each in found] == [True, True]


@pytest.mark.parametrize(
    ("deg_per_h", "noise"),
    [
        (0.2, 0.002),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in product((0.2, 0.5, 1.0, 5.0), (0.0, 0.0005, 0.002, 0.005))
        ),
    ],
)
@pytest.mark.parametrize("every_s", [pytest.param(60.0, marks=pytest.mark.long), 600.0])
def test_creep_is_level_four_within_45_minutes(
    deg_per_h: float, noise: float, every_s: float
) -> None:
    """By one sensor: level 4 unconfirmed, and the notice is of level 3."""

    def x(at_h: float) -> float:
        return 1 + deg_per_h * max(0.0, at_h - QUIET_H)

    rows = tilt_series(QUIET_H + 4, every_s, x, noise, seed=4)
    for found in both(rows):
        assert delay_min(found, 4, QUIET_H) <= 45
        assert max(j.notice for j in found) == 3


@pytest.mark.parametrize(
    ("deg_per_h", "every_s"), [(90.0, 60.0), (8.0, 600.0), (1.5, 3600.0)]
)
def test_slide_whose_readings_a_node_calls_jumps_is_level_four(
    deg_per_h: float, every_s: float
) -> None:
    """Older nodes flag each reading that is more than a degree from the last one."""

    def x(at_h: float) -> float:
        return -60 + deg_per_h * max(0.0, at_h - QUIET_H)

    rows = tilt_series(QUIET_H + max(1, 6 * every_s / HOUR_S), every_s, x, 0.002, 4)
    last_x = [row[1] for row in rows]
    observations = [
        Observation(
            T0 + t_s, "n1", f"tilt/{axis}", "deg", value,
            node_flag=3 if axis == "x" and abs(value - before) > 1.0 else None,
        )
        for (t_s, *values), before in zip(rows, [last_x[0], *last_x], strict=False)
        for axis, value in zip("xy", values, strict=True)
    ]  # fmt: skip
    found = list(_judged(observations))
    assert max(j.level for j in found if j.at_h <= QUIET_H) == 1
    assert delay_min(found, 4, QUIET_H) <= max(30.0, 3 * every_s / 60)


@pytest.mark.parametrize("deg_per_h", [0.02, 0.05])
def test_slow_creep_is_level_three_within_hours(deg_per_h: float) -> None:
    """When it has left the range of the sensor's last days."""

    def x(at_h: float) -> float:
        return 1 + deg_per_h * max(0.0, at_h - QUIET_H)

    for found in both(tilt_series(QUIET_H + 6, 600.0, x, 0.002, seed=4)):
        assert max(j.level for j in found if j.at_h < QUIET_H) == 1
        assert delay_min(found, 3, QUIET_H) <= 240


def test_two_nodes_confirm_each_other_in_the_backend() -> None:
    """Each of them alone causes no notice of level 4."""

    def x(at_h: float) -> float:
        return 1 + 0.3 * max(0.0, at_h - 6)

    one, two = (tilt_series(9, 600.0, x, 0.001, seed) for seed in (1, 2))
    alone, together = in_the_backend({"a": one}), in_the_backend({"a": one, "b": two})
    assert (max(j.level for j in alone), max(j.notice for j in alone)) == (4, 3)
    assert (max(j.level for j in together), max(j.notice for j in together)) == (4, 4)


def test_steps_of_a_sliding_block_are_level_four() -> None:
    """A tenth of a degree every 20 minutes is no single step."""

    def x(at_h: float) -> float:
        return 1 + 0.1 * math.floor(max(0.0, at_h - QUIET_H) * 3)

    for found in both(tilt_series(QUIET_H + 5, 600.0, x, 0.002, seed=4)):
        assert delay_min(found, 4, QUIET_H) <= 90


@pytest.mark.parametrize("step_mm", [12.0, 40.0])
@pytest.mark.parametrize("every_s", [600.0, 3600.0])
def test_step_of_an_extensometer_is_level_three(step_mm: float, every_s: float) -> None:
    """On the node and in the backend."""
    on_node, in_backend = rod(lambda at_h: 20 + step_mm * (at_h > 12), every_s)
    assert max(j.level for j in on_node) == 3
    assert max(j.level for j in in_backend) == 3


@pytest.mark.parametrize("every_s", [60.0, 600.0, 1800.0, 3600.0, 7200.0])
def test_speed_of_an_extensometer_is_found_at_any_cadence(every_s: float) -> None:
    """5 mm/h is level 4 with the fourth reading after its beginning, or the fifth."""
    for found in rod(lambda at_h: 20 + 5 * max(0.0, at_h - 12), every_s):
        assert max(j.level for j in found if j.at_h < 12) == 1
        assert delay_min(found, 4, 12.0) <= max(60.0, 5 * every_s / 60)
        assert max(j.notice for j in found) == 3


def rod(mm: Movement, every_s: float) -> list[list[Judged]]:
    """Levels of an extensometer on the node and in the backend."""
    rng, triage = random.Random(6), Triage([Measured("rod", "displacement", "mm")])
    observations, on_node = [], []
    for at in range(int(30 * HOUR_S / every_s)):
        t_s = at * every_s
        value = mm(t_s / HOUR_S) + rng.gauss(0, 0.1)
        observations.append(Observation(T0 + t_s, "n1", "rod", "mm", value))
        found = triage.assess([Reading("rod", "mm", value)], T0 + t_s)
        on_node.append(Judged(t_s / HOUR_S, found.level, found.alarm_level))
    return [on_node, list(_judged(observations))]


@pytest.mark.parametrize(("is_exchanged", "level"), [(True, 3), (False, 5)])
def test_sensors_exchanged_with_another_node_confirm_nothing(
    is_exchanged: bool, level: int
) -> None:
    """Ids of two nodes, each with a tilt meter and a rod, change places.

    Steps of the same sizes that do not end where the other's began are a slide.
    """
    rng = random.Random(5)
    steps = {"a": (0.9, 32.0), "b": (-0.9, -32.0)}
    begins = {"a": (1.0, 60.0), "b": (1.9, 92.0) if is_exchanged else (4.0, 150.0)}
    observations = []
    for at, node in product(range(60), steps):
        (tilt, rod_mm), t_s = begins[node], T0 + at * 600.0
        if at >= 36:
            tilt, rod_mm = tilt + steps[node][0], rod_mm + steps[node][1]
        for name, unit, value, noise in (
            ("tilt/x", "deg", tilt, 0.002),
            ("tilt/y", "deg", 0.5, 0.002),
            ("crack", "mm", rod_mm, 0.05),
        ):
            read = value + rng.gauss(0, noise)
            observations.append(Observation(t_s, node, name, unit, read))

    found = list(_judged(observations))

    assert max(j.level for j in found) == max(j.notice for j in found) == level

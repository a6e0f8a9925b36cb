"""A slope with rain, a displacement that accelerates, and an impossible reading."""

from collections.abc import Iterator
from typing import Final

from console_tables import MICRO, STEP_S, Slope, storm
from console_workspace import NOW_S

from backend_spark.scoring.observation import Observation
from slope_science.movement import fukuzono_displacement_mm

CREEP: Final = Slope("creep-1", 33.70, 133.60, storm(30, 18))


def creep_readings() -> Iterator[Observation]:
    """Readings of 18 hours; one water content is 5, which cannot be."""
    yield from CREEP.observations(NOW_S)
    steps = len(CREEP.rain_mm)
    for step in range(1, steps + 1):
        at_s = NOW_S - (steps - step) * STEP_S
        moved_mm = fukuzono_displacement_mm(step / 6, 20.0, 0.05)
        wet = 5.0 if step == steps - 6 else 0.3
        for name, unit, value in (("rod", "mm", moved_mm), ("soil", "/", wet)):
            yield Observation(
                at_s, CREEP.node, name, unit, value, received_us=round(at_s * MICRO)
            )

"""A slope with doubtful readings for the console's tests: a cloudburst at one gauge."""

from pathlib import Path

from console_tables import Slope, write_scored
from console_workspace import NOW_S

DRY_STEPS = 132
WET_STEPS = 12
STEP_S = 600

DOUBTFUL = Slope(
    "kita-1",
    33.80,
    133.80,
    [0.0] * DRY_STEPS + [22.0] * WET_STEPS,
    [0.0] * 100 + [3.0] + [0.0] * 43,
)
"""Two hours of 132 mm/h, which no gauge around confirms, and a spike of the tilt."""


def write_doubtful(data: Path) -> None:
    """Append the slope to the tables of a data folder, with flags and levels."""
    write_scored(data, DOUBTFUL, list(DOUBTFUL.observations(NOW_S)))

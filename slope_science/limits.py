"""What readings of a quantity can be, and what is plausible.

Source: defaults of a Japanese prefecture's telemetry for rain; the rest are
proposals of ours, for parts whose own limits the reader does not know.
"""

from dataclasses import dataclass

from slope_science.quality import Span

STEP_S = 600.0
"""The steps below are changes in so long a time, or less."""

NEAR_S = 3600.0
"""Readings further apart are no neighbours: a change between them is no step."""

FLAT_S = 24 * 3600.0
SPIKE_SHARE = 0.5
"""A spike leaves and comes back by this share of the plausible step."""


@dataclass(frozen=True)
class Limits:
    """Limits of one quantity, in its unit.

    Attributes:
        fail: Beyond it the part is broken.
        suspect: Beyond it a reading is not plausible; None is the same as `fail`.
        step: Largest plausible change in `STEP_S`; None for any.
        flat: Least range of a living part over `FLAT_S`; None where equal
            readings are weather.
    """

    fail: Span
    suspect: Span | None = None
    step: float | None = None
    flat: float | None = None


TEMPERATURE_CEL = Limits(Span(-40, 60), step=3.0)
HUMIDITY_PERCENT = Limits(Span(0, 105), Span(0, 100), flat=1e-6)
AIR_PRESSURE_HPA = Limits(Span(800, 1080), step=5.0)
TILT_DEG = Limits(Span(-90, 90), step=1.0, flat=1e-9)
WATER_CONTENT = Limits(Span(0, 0.7), step=0.15)
PORE_PRESSURE_HPA = Limits(Span(-1000, 10_000), step=100.0)
"""From the suction that a tensiometer stands to 100 m of water."""

DISPLACEMENT_MM = Limits(Span(-100_000, 100_000))
COUNT = Limits(Span(0, 1e9))
RAIN_MM = Limits(Span(0, 990))
"""Of one report; the record of a day is 922.5 mm."""

RAIN_WITHIN = (
    (60.0, 10.0),
    (600.0, 50.0),
    (1800.0, 150.0),
    (3600.0, 200.0),
    (3 * 3600.0, 600.0),
    (24 * 3600.0, 990.0),
    (48 * 3600.0, 2000.0),
)
"""Rain in mm that is plausible within seconds. Beyond is suspect and not failed: the
national record of ten minutes, 55.0 mm, is beyond."""

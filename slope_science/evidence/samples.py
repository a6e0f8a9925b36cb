"""Sample: the readings of one sensor at one instant, as rules read them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

TILT_AXES: Final = ("x", "y")


@dataclass
class SensorSample:
    """Readings of one sensor at one instant.

    Attributes:
        at_s: Time, in triage's own time.
        value: Value of the sensor itself, in the unit of its quantity's rules; None if
            absent or failed.
        sum: Cumulative value in the same unit.
        raw: Value as sent.
        parts: Secondary values as sent, such as ``x`` or ``sigma``; no failed ones.
        is_suspect: Whether any of its values is suspect, except an axis of tilt.
        suspect_axes: Suspect axes of tilt.
        is_failed: Whether the sensor's own value failed or is missing.
    """

    at_s: float
    value: float | bool | None = None
    sum: float | None = None
    raw: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    is_suspect: bool = False
    is_failed: bool = False
    suspect_axes: set[str] = field(default_factory=set)

    def is_value_doubtful(self, value: float, before: float | None) -> bool:
        """Whether a value of the sensor is doubtful.

        One that stands still is suspect, but says nothing new: it was good before.

        Args:
            value: The value.
            before: The last good one; None without one.
        """
        return self.is_suspect and value != before

    def is_doubtful(self, before: Sequence[float]) -> bool:
        """Whether a tilt is doubtful.

        An axis that stands still is no evidence of movement, so that a stuck one, which
        is suspect, does not hide the movement of the other.

        Args:
            before: The axes in the last good reading; empty without one.
        """
        return self.is_suspect or any(
            axis in self.suspect_axes and self.parts.get(axis) != value
            for axis, value in zip(TILT_AXES, before, strict=False)
        )

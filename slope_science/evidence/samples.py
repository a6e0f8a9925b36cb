"""Sample: the readings of one sensor at one instant, as rules read them."""

from dataclasses import dataclass, field


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
        is_suspect: Whether any of its values is suspect.
        is_failed: Whether the sensor's own value failed or is missing.
    """

    at_s: float
    value: float | bool | None = None
    sum: float | None = None
    raw: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    is_suspect: bool = False
    is_failed: bool = False

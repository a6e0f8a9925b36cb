"""How often sensors are read: by danger, by notice, by what the battery has."""

from dataclasses import dataclass

FAST_FROM_LEVEL = 3


@dataclass(frozen=True)
class Pace:
    """A way of sampling.

    Attributes:
        is_fast: Somebody sees danger here: we do, or an analyst.
        is_saving: The battery is low, and nobody sees danger.
    """

    is_fast: bool = False
    is_saving: bool = False

    def interval_s(self, usual_s: float, habits: "Habits") -> float:
        """Time between two readings of a sensor with a usual interval."""
        if self.is_fast:
            return min(usual_s, habits.fast_interval_s)
        return usual_s * habits.stretch if self.is_saving else usual_s

    def __str__(self) -> str:
        """For the log."""
        return "fast" if self.is_fast else "sparing" if self.is_saving else "as set"


@dataclass(frozen=True)
class Habits:
    """How a node samples.

    Attributes:
        fast_interval_s: Longest interval while there is danger.
        battery: Name of the sensor of the battery's voltage; None without battery.
        low_v: Below it we save power.
        well_v: From here on we no longer do.
        stretch: How many times longer the intervals are meanwhile.
    """

    fast_interval_s: float
    battery: str | None = None
    low_v: float = 0.0
    well_v: float = 0.0
    stretch: float = 1.0

    def pace(self, level: int, battery_v: float | None, before: Pace) -> Pace:
        """The pace that follows from danger and battery.

        A battery recovers a little as soon as it is spared, so saving ends only
        at a higher voltage than it began.
        """
        limit_v = self.well_v if before.is_saving else self.low_v
        is_low = battery_v is not None and battery_v < limit_v
        is_fast = level >= FAST_FROM_LEVEL
        return Pace(is_fast, is_low and not is_fast)

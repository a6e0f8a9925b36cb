"""The tilt that follows a sensor's temperature, learnt from its own days.

An accelerometer's zero moves with its temperature, by up to 0.15 mg/K (0.0086 deg/K)
for a good one: a sunny morning then looks like 0.01 deg/h. Changes from hour to
hour are compared, so neither the mounting nor a steady creep is mistaken for it.
"""

import math
from dataclasses import dataclass

MEMORY_H = 14 * 24.0
"""Mean age of what is learnt."""

FEWEST_H = 72.0
LEAST_K2 = 30.0
"""Sum of the squared changes of temperature; buried sensors never have it."""

MOST_DEG_PER_K = 0.02
"""No accelerometer drifts more; what seems to is something else."""

MOST_STEP_DEG = 0.05
"""More in an hour is movement, and teaches nothing of temperature."""


@dataclass(frozen=True)
class Thermal:
    """A regression through zero, of changes in tilt on changes in temperature.

    Attributes:
        hours: How many changes count, older ones less.
        tt_k2: Sum of squared changes of temperature.
        tx_k_deg: Sum of changes of temperature and x, multiplied.
        ty_k_deg: The same with y.
    """

    hours: float = 0.0
    tt_k2: float = 0.0
    tx_k_deg: float = 0.0
    ty_k_deg: float = 0.0

    def after(self, change_k: float, x_deg: float, y_deg: float) -> "Thermal":
        """What is known after one more hour.

        Args:
            change_k: How the temperature changed in that hour.
            x_deg: How x did.
            y_deg: How y did.
        """
        told = (change_k, x_deg, y_deg)
        if (
            not all(map(math.isfinite, told))
            or math.hypot(x_deg, y_deg) > MOST_STEP_DEG
        ):
            return self
        kept = 1 - 1 / MEMORY_H
        return Thermal(
            self.hours * kept + 1,
            self.tt_k2 * kept + change_k * change_k,
            self.tx_k_deg * kept + change_k * x_deg,
            self.ty_k_deg * kept + change_k * y_deg,
        )

    @property
    def deg_per_k(self) -> tuple[float, float] | None:
        """Tilt of x and y for each kelvin; None while it is not known."""
        if self.hours < FEWEST_H or self.tt_k2 < LEAST_K2:
            return None
        x, y = self.tx_k_deg / self.tt_k2, self.ty_k_deg / self.tt_k2
        return (x, y) if math.hypot(x, y) <= MOST_DEG_PER_K else None

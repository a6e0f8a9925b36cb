"""Local criteria of a cell: what its soil water index is judged against.

The index has no meaning without them: in Kinki the warning criterion spans 108
to 369 mm. The prefecture's tables replace the defaults here before operation;
until then every judgement says that its criteria are assumed.
"""

import math
from dataclasses import dataclass

from slope_science.errors import ScienceError


@dataclass(frozen=True)
class Criteria:
    """Criteria of one cell, as soil water index in mm.

    Attributes:
        warning_mm: Warning (level 3) criterion.
        advisory_mm: Advisory (level 2) criterion.
        special_mm: Special warning (level 5) criterion.
        assumed: Whether these are defaults and not the prefecture's table.
    """

    warning_mm: float = 150.0
    advisory_mm: float = 112.5
    special_mm: float = 277.125
    assumed: bool = True

    def __post_init__(self) -> None:
        """Refuse criteria out of order."""
        if not 0 < self.advisory_mm <= self.warning_mm <= self.special_mm:
            raise ScienceError(
                "criteria",
                "0 < advisory <= warning <= special",
                (self.advisory_mm, self.warning_mm, self.special_mm),
            )

    @classmethod
    def assumed_from(cls, warning_mm: float) -> "Criteria":
        """Planning defaults when only the warning criterion is known.

        Advisory is 0.75 of it (median ratio of Kinki's 26,045 cells); the special
        criterion is 1.25 of the critical line without rain.
        """
        return cls(warning_mm, 0.75 * warning_mm, 1.25 * 1.478 * warning_mm)

    def critical_line_mm(self, r60_mm: float) -> float:
        """Soil water index of the critical line (level 4) at a 60-minute rain.

        Source:
            Logistic fit to the median of 16,099 Kinki cells (rmse 0.010 of the
            warning criterion for 0 to 120 mm); a planning default.
        """
        if not (math.isfinite(r60_mm) and r60_mm >= 0):
            raise ScienceError("r60_mm", "zero or more", r60_mm)
        # Far beyond the fit the line is flat, and exp() would overflow.
        steepness = min((r60_mm - 52.1) / 7.6, 100.0)
        shape = 0.955 + (1.478 - 0.955) / (1 + math.exp(steepness))
        return self.warning_mm * shape


DEFAULT_CRITERIA = Criteria.assumed_from(150.0)

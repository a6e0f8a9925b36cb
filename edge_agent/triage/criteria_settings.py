"""``[criteria]``: what the soil water index of the node's cell is judged against."""

from dataclasses import dataclass

from slope_science.criteria import DEFAULT_CRITERIA, Criteria
from slope_science.errors import ScienceError
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key


@dataclass(frozen=True)
class CriteriaSection:
    """``[criteria]`` of the node's cell."""

    warning_mm: float | None = key(
        Rule(
            "Soil water index of the warning (level 3); "
            "absent uses the assumed default.",
            "mm",
            low=10,
            high=1000,
        ),
        None,
    )
    advisory_mm: float | None = key(
        Rule(
            "Of the advisory (level 2); absent is 0.75 of the warning's.",
            "mm",
            low=1,
            high=1000,
        ),
        None,
    )
    special_mm: float | None = key(
        Rule(
            "Of the special warning (level 5); absent is 1.25 of the planned line "
            "without rain [P].",
            "mm",
            low=10,
            high=2000,
        ),
        None,
    )

    line: tuple[tuple[float, ...], ...] = key(
        Rule(
            "Critical line (level 4) of the prefecture's table: points [60-minute "
            "rain, soil water index]; absent is the planning default.",
            "mm",
        ),
        (),
    )

    def __post_init__(self) -> None:
        """Refuse criteria out of order."""
        try:
            self.criteria()
        except ScienceError as error:
            raise FieldError(error.field, error.rule, error.value) from error

    def criteria(self) -> Criteria:
        """What the soil is judged against; assumed unless all three are given."""
        whole = self.warning_mm or DEFAULT_CRITERIA.warning_mm
        planned = Criteria.assumed_from(whole)
        given = (self.advisory_mm, self.warning_mm, self.special_mm)
        return Criteria(
            whole,
            self.advisory_mm or planned.advisory_mm,
            self.special_mm or planned.special_mm,
            assumed=None in given,
            line=self.line,
        )

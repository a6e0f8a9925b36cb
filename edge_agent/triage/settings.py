"""Settings ``[triage]`` and ``[criteria]``, with unit, bounds and source of each key.

Marks of the sources: [V] verified in the named source, [M] from memory, [P] our
proposal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from edge_agent.quantities import SensorDescription
from edge_agent.triage.limit_rule import LimitSettings, find_limit_problems
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, Problem, key
from slope_science import ScienceError
from slope_science.evidence.settings import (
    EvidenceRules,
    EvidenceSettings,
    alone_level_key,
    clear_share_key,
    hold_key,
    used_key,
)
from slope_science.levels import (
    ADVISORY,
    DANGER,
    DEFAULT_CRITERIA,
    EMERGENCY,
    JUDGED_LEVELS,
    NO_LINE,
    NOT_JUDGED_MM,
    WARNING,
    Criteria,
)


@dataclass(frozen=True)
class RainRuleSettings:
    """``[triage.rules.rain]``: soil water index and critical line."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    clear_share: float = clear_share_key(0.97)
    alone_level: int = alone_level_key("Highest level of rain of doubtful quality", 3)
    alone_notice_level: int = key(
        KeyRule(
            "Highest level at which the rain of one gauge switches the node's own "
            "alarm outputs while no other sensor shows water or movement and a "
            "backend, which compares with other gauges, judges the area; its notices "
            "switch them at any level [P].",
            low=1,
            high=5,
        ),
        3,
    )
    most_mm_10min: float = key(
        KeyRule(
            "More rain in 10 minutes is doubtful; the record of Japan is 55.0 mm [V].",
            "mm",
            low=10,
            high=100,
        ),
        50.0,
    )
    most_mm_60min: float = key(
        KeyRule("More in an hour is doubtful [V].", "mm", low=50, high=400), 200.0
    )
    confirm_mm: float = key(
        KeyRule(
            "Rain in 60 minutes at one gauge that confirms another gauge [P].",
            "mm",
            low=1,
            high=200,
        ),
        20.0,
    )


@dataclass(frozen=True)
class RulesSection(EvidenceRules):
    """``[triage.rules]``: one table for each family of rules."""

    rain: RainRuleSettings = RainRuleSettings()


@dataclass(frozen=True)
class TriageSection(EvidenceSettings):
    """``[triage]``: the node's own rules."""

    rules: RulesSection = RulesSection()
    limit: tuple[LimitSettings, ...] = key(KeyRule("User-defined limits."), ())

    def find_problems(self, sensors: Sequence[SensorDescription]) -> list[Problem]:
        """One problem for each limit that does not fit these sensors."""
        return find_limit_problems(self.limit, sensors)


@dataclass(frozen=True)
class CriteriaSection:
    """``[criteria]`` of the node's cell."""

    warning_mm: float | None = key(
        KeyRule(
            "Soil water index of the warning (level 3); "
            "absent uses the assumed default.",
            "mm",
            low=10,
            high=1000,
        ),
        None,
    )
    advisory_mm: float | None = key(
        KeyRule(
            "Of the advisory (level 2); absent is 0.75 of the warning's.",
            "mm",
            low=1,
            high=1000,
        ),
        None,
    )
    special_mm: float | None = key(
        KeyRule(
            "Of the special warning (level 5); absent is 1.25 of the planned line "
            "without rain [P].",
            "mm",
            low=10,
            high=2000,
        ),
        None,
    )

    line: tuple[tuple[float, ...], ...] = key(
        KeyRule(
            "Critical line (level 4) of the prefecture's table: points [60-minute "
            "rain, soil water index]; absent is the planning default.",
            "mm",
        ),
        (),
    )
    not_judged: tuple[int, ...] = key(
        KeyRule(
            "Levels from 2 to 5 that the prefecture does not judge here (999 or － in "
            "its table): rain never gives them, and no default replaces them."
        ),
        (),
    )

    def __post_init__(self) -> None:
        """Reject criteria out of order, and levels both given and not judged."""
        limits = (self.advisory_mm, self.warning_mm, self.line or None, self.special_mm)
        for level in self.not_judged:
            if level not in JUDGED_LEVELS or limits[level - JUDGED_LEVELS[0]]:
                rule = "levels from 2 to 5 without a criterion beside it"
                raise FieldError("not_judged", rule, list(self.not_judged))
        try:
            self.criteria()
        except ScienceError as error:
            raise FieldError(error.field, error.rule, error.value) from error

    def criteria(self) -> Criteria:
        """The criteria; assumed unless all three are given or not judged."""
        whole = self.warning_mm or DEFAULT_CRITERIA.warning_mm
        planned = Criteria.assumed_from(whole)
        given = {
            ADVISORY: self.advisory_mm,
            WARNING: self.warning_mm,
            EMERGENCY: self.special_mm,
        } | dict.fromkeys(self.not_judged, NOT_JUDGED_MM)
        is_line_judged = DANGER not in self.not_judged
        return Criteria(
            given[WARNING] or whole,
            given[ADVISORY] or planned.advisory_mm,
            given[EMERGENCY] or planned.special_mm,
            assumed=None in given.values(),
            line=self.line if is_line_judged else NO_LINE,
        )

"""Settings ``[triage]`` and ``[criteria]``, with unit, bounds and source of each key.

Marks of the sources: [V] verified in the named source, [M] from memory, [P] our
proposal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from edge_agent.triage.rules.limit import LimitSettings, find_limit_problems
from edge_agent.triage.samples import SensorDescription
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, Problem, key
from slope_science.criteria import (
    ADVISORY_LEVEL,
    DEFAULT_CRITERIA,
    JUDGED_LEVELS,
    LINE_LEVEL,
    NO_LINE,
    NOT_JUDGED_MM,
    SPECIAL_LEVEL,
    WARNING_LEVEL,
    Criteria,
)
from slope_science.errors import ScienceError

LEVELS = range(2, 6)


def used_key() -> bool:
    """Key `used`: whether a rule is used."""
    used: bool = key(KeyRule("False switches the rule off."), True)
    return used


def hold_key(default_s: float) -> float:
    """Key `hold_s`: time that a detection counts after it is over."""
    doc = "Time that a detection counts after it is over [P]."
    hold_s: float = key(KeyRule(doc, "s", low=0, high=604_800), default_s)
    return hold_s


def clear_share_key(default: float) -> float:
    """Key `clear_share`: hysteresis of a rule."""
    doc = "A reached threshold is cleared below this share of it [P]."
    share: float = key(KeyRule(doc, low=0.1, high=1), default)
    return share


def alone_level_key(what: str, default: int) -> int:
    """Key `alone_level`: maximum level without confirmation."""
    doc = f"{what} while no second sensor confirms it [P]."
    level: int = key(KeyRule(doc, low=1, high=5), default)
    return level


def persist_key(what: str, default_s: float) -> float:
    """Key `persist_s`: required duration without confirmation."""
    doc = (
        f"How long {what} must be exceeded: two windows, 10 minutes apart; not when "
        "another sensor confirms it [P]."
    )
    persist_s: float = key(KeyRule(doc, "s", low=0, high=7200), default_s)
    return persist_s


def read_thresholds(settings: object, unit: str) -> tuple[tuple[int, float], ...]:
    """Levels and thresholds of a table's keys ``level_<n>_<unit>``, highest first."""
    rungs = [
        (level, getattr(settings, f"level_{level}_{unit}", None)) for level in LEVELS
    ]
    return tuple(
        (level, limit) for level, limit in reversed(rungs) if limit is not None
    )


def check_threshold_order(settings: object, unit: str) -> None:
    """Reject a level whose threshold is no higher than a lower level's.

    Raises:
        FieldError: Names the higher one.
    """
    rungs = read_thresholds(settings, unit)
    for (level, limit), (lower, below) in pairwise(rungs):
        if limit <= below:
            rule = f"more than level_{lower}_{unit} ({below:g})"
            remedy = "raise it, or lower the other"
            raise FieldError(f"level_{level}_{unit}", rule, limit, remedy)


LevelThresholds = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class RainRuleSettings:
    """``[triage.rules.rain]``: soil water index and critical line."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    clear_share: float = clear_share_key(0.97)
    alone_level: int = alone_level_key("Highest level of rain of doubtful quality", 3)
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
class TiltRuleSettings:
    """``[triage.rules.tilt]``: the rate over an hour, and over six."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    clear_share: float = clear_share_key(0.8)
    alone_level: int = alone_level_key(
        "Highest level of a rate that is one single step", 2
    )
    persist_s: float = persist_key("a rate", 600.0)
    level_2_deg_per_h: float | None = key(
        KeyRule("Rate of level 2; absent is none.", "deg/h", low=0.001, high=90), None
    )
    level_3_deg_per_h: float | None = key(
        KeyRule("Precaution; Uchimura et al. 2015 [V].", "deg/h", low=0.001, high=90),
        0.01,
    )
    level_4_deg_per_h: float | None = key(
        KeyRule("Warning; Uchimura et al. 2015 [V].", "deg/h", low=0.001, high=90), 0.1
    )
    level_5_deg_per_h: float | None = key(
        KeyRule("Rate of level 5; absent is none.", "deg/h", low=0.001, high=90), None
    )
    without_warmth: bool = key(
        KeyRule(
            "Whether to remove the part that follows the sensor's temperature, learnt "
            "from its last 14 days, after 3 days [P]."
        ),
        True,
    )
    six_hours: bool = key(
        KeyRule(
            "Whether the rate over six hours counts too, for creep that the noise of "
            "one hour hides [P]."
        ),
        True,
    )
    false_share: float = key(
        KeyRule(
            "Share of windows in which noise alone may pass, by the F test [P].",
            low=1e-6,
            high=0.05,
        ),
        1e-3,
    )

    def __post_init__(self) -> None:
        """Reject rates out of order."""
        check_threshold_order(self, "deg_per_h")

    @property
    def thresholds(self) -> LevelThresholds:
        """Levels and rates, the fastest first."""
        return read_thresholds(self, "deg_per_h")


@dataclass(frozen=True)
class DisplacementRuleSettings:
    """``[triage.rules.displacement]``: speed, steps and time of failure."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    clear_share: float = clear_share_key(0.8)
    alone_level: int = alone_level_key(
        "Highest level of a speed that is one single step", 3
    )
    persist_s: float = persist_key("a speed", 600.0)
    level_2_mm_per_h: float | None = key(
        KeyRule("Speed of level 2: 注意体制 [V].", "mm/h", low=0.1, high=1000), 2.0
    )
    level_3_after_h: float = key(
        KeyRule(
            "Duration of level 2's speed for level 3; from 2 h on entry is banned "
            "(道路土工 2009) and 警戒 begins [V].",
            "h",
            low=0.2,
            high=48,
        ),
        2.0,
    )
    level_4_mm_per_h: float | None = key(
        KeyRule(
            "Of level 4: 警戒 ends, 避難 is 2 to 10 [V].", "mm/h", low=0.1, high=1000
        ),
        4.0,
    )
    level_5_mm_per_h: float | None = key(
        KeyRule(
            "Of level 5, while another sensor confirms movement; else it is 4. End of "
            "避難 [V].",
            "mm/h",
            low=0.1,
            high=1000,
        ),
        10.0,
    )
    step_mm: float = key(
        KeyRule(
            "A change within an hour, in two readings before and two after, is a step: "
            "its level is that of as many mm/h, unconfirmed alone_level [P].",
            "mm",
            low=0.5,
            high=1000,
        ),
        10.0,
    )
    level_2_mm_per_day: float = key(
        KeyRule(
            "Level 2: movement on each of two days, active (道路土工 2009) [V].",
            "mm/day",
            low=0.1,
            high=1000,
        ),
        10.0,
    )
    level_3_ahead_h: float = key(
        KeyRule(
            "Level 3 when inverse velocity gives failure within this time; gates of "
            "Voight's law [P]; 0 is never.",
            "h",
            low=0,
            high=36,
        ),
        24.0,
    )
    level_4_ahead_h: float = key(
        KeyRule("Level 4 within this time [P]; 0 is never.", "h", low=0, high=36), 6.0
    )

    def __post_init__(self) -> None:
        """Reject speeds out of order."""
        check_threshold_order(self, "mm_per_h")

    @property
    def thresholds(self) -> LevelThresholds:
        """Levels and speeds, the fastest first."""
        return read_thresholds(self, "mm_per_h")


@dataclass(frozen=True)
class WireRuleSettings:
    """``[triage.rules.wire]``: a trip wire."""

    used: bool = used_key()
    hold_s: float = hold_key(1800.0)
    alone_level: int = alone_level_key("Level of a cut ('occurred, unconfirmed')", 5)
    confirm_s: float = key(
        KeyRule(
            "Maximum time to the evidence of a second sensor [P].",
            "s",
            low=1,
            high=3600,
        ),
        120.0,
    )
    flaps_per_h: int = key(
        KeyRule(
            "More cuts in an hour are reported as a flapping contact [P].",
            low=2,
            high=60,
        ),
        6,
    )


@dataclass(frozen=True)
class VibrationRuleSettings:
    """``[triage.rules.vibration]``: shocks in 10 minutes against their own past."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    clear_share: float = clear_share_key(0.5)
    level: int = key(
        KeyRule("Level when another sensor confirms it [P].", low=1, high=5), 4
    )
    alone_level: int = alone_level_key("Level", 2)
    mads: float = key(
        KeyRule(
            "Median absolute deviations over the median of the last 12 h [P].",
            low=2,
            high=50,
        ),
        8.0,
    )
    least_count: int = key(
        KeyRule("Minimum shocks in 10 minutes that count [P].", low=2, high=10_000), 10
    )


@dataclass(frozen=True)
class SaturationRuleSettings:
    """``[triage.rules.saturation]``: wet soil that gets wetter in the rain."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    level: int = key(KeyRule("Its level: a contribution [P].", low=1, high=3), 2)
    high_vwc: float | None = key(
        KeyRule(
            "Water content that is high; absent is the 95th percentile of the "
            "sensor's own past, after 14 days [P].",
            "m3/m3",
            low=0.05,
            high=0.7,
        ),
        None,
    )
    rise_vwc: float = key(
        KeyRule("Rise in an hour that counts [P].", "m3/m3", low=0.001, high=0.2), 0.005
    )
    rain_mm: float = key(
        KeyRule(
            "Rain of 60 minutes during which it counts [P].", "mm", low=0, high=100
        ),
        1.0,
    )


@dataclass(frozen=True)
class PoreRuleSettings:
    """``[triage.rules.pore]``: pore pressure that passed from suction to positive."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    level: int = key(KeyRule("Its level: a contribution [P].", low=1, high=3), 2)
    rise_kpa: float = key(
        KeyRule("Rise in an hour that counts [P].", "kPa", low=0.01, high=50), 0.2
    )
    suction_days: float = key(
        KeyRule("Maximum time since suction [P].", "d", low=0.1, high=365), 30.0
    )


@dataclass(frozen=True)
class WaterLevelRuleSettings:
    """``[triage.rules.water_level]``: a sudden step; heights are limits."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    step_m: float = key(
        KeyRule("Change within 10 minutes that counts [P].", "m", low=0.05, high=5), 0.3
    )
    level: int = key(
        KeyRule("Level when another sensor confirms it [P].", low=1, high=5), 4
    )
    alone_level: int = alone_level_key("Level of a rise", 2)
    drop_alone_level: int = alone_level_key(
        "Level of a drop in the rain, a dam of debris upstream [M],", 3
    )


@dataclass(frozen=True)
class RulesSection:
    """``[triage.rules]``: one table for each family of rules."""

    rain: RainRuleSettings
    tilt: TiltRuleSettings
    displacement: DisplacementRuleSettings
    wire: WireRuleSettings
    vibration: VibrationRuleSettings
    saturation: SaturationRuleSettings
    pore: PoreRuleSettings
    water_level: WaterLevelRuleSettings


@dataclass(frozen=True)
class TriageSection:
    """``[triage]``: the node's own rules."""

    rules: RulesSection
    confirm_s: float = key(
        KeyRule(
            "Evidence of two sensors within this time confirms each other [P].",
            "s",
            low=1,
            high=3600,
        ),
        600.0,
    )
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
            ADVISORY_LEVEL: self.advisory_mm,
            WARNING_LEVEL: self.warning_mm,
            SPECIAL_LEVEL: self.special_mm,
        } | dict.fromkeys(self.not_judged, NOT_JUDGED_MM)
        is_line_judged = LINE_LEVEL not in self.not_judged
        return Criteria(
            given[WARNING_LEVEL] or whole,
            given[ADVISORY_LEVEL] or planned.advisory_mm,
            given[SPECIAL_LEVEL] or planned.special_mm,
            assumed=None in given.values(),
            line=self.line if is_line_judged else NO_LINE,
        )

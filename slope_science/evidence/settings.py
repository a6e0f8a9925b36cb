"""Settings of the rules of movement and water: unit, bounds and source of each key.

The node reads them from ``[triage.rules]``, the backend from ``[evidence]``.

Marks of the sources: [V] verified in the named source, [M] from memory, [P] our
proposal.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from slope_science import ScienceError


@dataclass(frozen=True)
class RuleKey:
    """Documentation and bounds of a key, in the form of `service_runtime.settings`.

    Attributes:
        doc: One sentence for the reference.
        unit: Unit of the number.
        low: Least value allowed.
        high: Greatest value allowed.
        choices: The allowed values; empty for any.
        check: Raises an error for values that bounds cannot exclude.
    """

    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[object, ...] = ()
    check: Callable[[Any], object] | None = None


def key(rule: RuleKey, default: object) -> Any:  # noqa: ANN401 - as dataclasses.field
    """A field with its default and its rule."""
    return dataclasses.field(default=default, metadata={"rule": rule}, kw_only=True)


LEVELS = range(2, 6)


def used_key() -> bool:
    """Key `used`: whether a rule is used."""
    used: bool = key(RuleKey("False switches the rule off."), True)
    return used


def hold_key(default_s: float) -> float:
    """Key `hold_s`: time that a detection counts after it is over."""
    doc = "Time that a detection counts after it is over [P]."
    hold_s: float = key(RuleKey(doc, "s", low=0, high=604_800), default_s)
    return hold_s


def clear_share_key(default: float) -> float:
    """Key `clear_share`: hysteresis of a rule."""
    doc = "A reached threshold is cleared below this share of it [P]."
    share: float = key(RuleKey(doc, low=0.1, high=1), default)
    return share


def alone_level_key(what: str, default: int) -> int:
    """Key `alone_level`: maximum level without confirmation."""
    doc = f"{what} while no second sensor confirms it [P]."
    level: int = key(RuleKey(doc, low=1, high=5), default)
    return level


def persist_key(what: str, default_s: float) -> float:
    """Key `persist_s`: required duration without confirmation."""
    doc = (
        f"How long {what} must be exceeded: two windows, 10 minutes apart; not when "
        "another sensor confirms it [P]."
    )
    persist_s: float = key(RuleKey(doc, "s", low=0, high=7200), default_s)
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
        ScienceError: Names the higher one.
    """
    rungs = read_thresholds(settings, unit)
    for (level, limit), (lower, below) in pairwise(rungs):
        if limit <= below:
            rule = f"more than level_{lower}_{unit} ({below:g})"
            remedy = "raise it, or lower the other"
            raise ScienceError(f"level_{level}_{unit}", rule, limit, remedy)


LevelThresholds = tuple[tuple[int, float], ...]


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
        RuleKey("Rate of level 2; absent is none.", "deg/h", low=0.001, high=90), None
    )
    level_3_deg_per_h: float | None = key(
        RuleKey("Precaution; Uchimura et al. 2015 [V].", "deg/h", low=0.001, high=90),
        0.01,
    )
    level_4_deg_per_h: float | None = key(
        RuleKey("Warning; Uchimura et al. 2015 [V].", "deg/h", low=0.001, high=90), 0.1
    )
    level_5_deg_per_h: float | None = key(
        RuleKey("Rate of level 5; absent is none.", "deg/h", low=0.001, high=90), None
    )
    without_warmth: bool = key(
        RuleKey(
            "Whether to remove the part that follows the sensor's temperature, learnt "
            "from its last 14 days, after 3 days [P]."
        ),
        True,
    )
    daily_range: bool = key(
        RuleKey(
            "Whether a rate below 0.1 deg/h of a sensor whose thermal part is unknown "
            "counts only outside the range of its last 7 days [P]."
        ),
        True,
    )
    six_hours: bool = key(
        RuleKey(
            "Whether the rate over six hours counts too, for creep that the noise of "
            "one hour hides [P]."
        ),
        True,
    )
    false_share: float = key(
        RuleKey(
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
        RuleKey("Speed of level 2: 注意体制 [V].", "mm/h", low=0.1, high=1000), 2.0
    )
    level_3_after_h: float = key(
        RuleKey(
            "Duration of level 2's speed for level 3; from 2 h on entry is banned "
            "(道路土工 2009) and 警戒 begins [V].",
            "h",
            low=0.2,
            high=48,
        ),
        2.0,
    )
    level_4_mm_per_h: float | None = key(
        RuleKey(
            "Of level 4: 警戒 ends, 避難 is 2 to 10 [V].", "mm/h", low=0.1, high=1000
        ),
        4.0,
    )
    level_5_mm_per_h: float | None = key(
        RuleKey(
            "Of level 5, while another sensor confirms movement; else it is 4. End of "
            "避難 [V].",
            "mm/h",
            low=0.1,
            high=1000,
        ),
        10.0,
    )
    step_mm: float = key(
        RuleKey(
            "A change within an hour, in two readings before and two after, is a step: "
            "its level is that of as many mm/h, unconfirmed alone_level [P].",
            "mm",
            low=0.5,
            high=1000,
        ),
        10.0,
    )
    level_2_mm_per_day: float = key(
        RuleKey(
            "Level 2: movement on each of two days, active (道路土工 2009) [V].",
            "mm/day",
            low=0.1,
            high=1000,
        ),
        10.0,
    )
    level_3_ahead_h: float = key(
        RuleKey(
            "Level 3 when inverse velocity gives failure within this time; gates of "
            "Voight's law [P]; 0 is never.",
            "h",
            low=0,
            high=36,
        ),
        24.0,
    )
    level_4_ahead_h: float = key(
        RuleKey("Level 4 within this time [P]; 0 is never.", "h", low=0, high=36), 6.0
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
        RuleKey(
            "Maximum time to the evidence of a second sensor [P].",
            "s",
            low=1,
            high=3600,
        ),
        120.0,
    )
    alone_for_s: float = key(
        RuleKey(
            "Longest time for which an unconfirmed cut causes notices and sirens of "
            "alone_level; then those of alone_notice_level, until the wire has been "
            "whole for a day [P].",
            "s",
            low=60,
            high=604_800,
        ),
        1800.0,
    )
    flaps_per_h: int = key(
        RuleKey(
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
        RuleKey("Level when another sensor confirms it [P].", low=1, high=5), 4
    )
    alone_level: int = alone_level_key("Level", 2)
    mads: float = key(
        RuleKey(
            "Median absolute deviations over the median of the last 12 h [P].",
            low=2,
            high=50,
        ),
        8.0,
    )
    least_count: int = key(
        RuleKey("Minimum shocks in 10 minutes that count [P].", low=2, high=10_000), 10
    )


@dataclass(frozen=True)
class SaturationRuleSettings:
    """``[triage.rules.saturation]``: wet soil that gets wetter in the rain."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    level: int = key(RuleKey("Its level: a contribution [P].", low=1, high=3), 2)
    high_vwc: float | None = key(
        RuleKey(
            "Water content that is high; absent is the 95th percentile of the "
            "sensor's own past, after 14 days [P].",
            "m3/m3",
            low=0.05,
            high=0.7,
        ),
        None,
    )
    rise_vwc: float = key(
        RuleKey("Rise in an hour that counts [P].", "m3/m3", low=0.001, high=0.2), 0.005
    )
    rain_mm: float = key(
        RuleKey(
            "Rain of 60 minutes during which it counts [P].", "mm", low=0, high=100
        ),
        1.0,
    )


@dataclass(frozen=True)
class PoreRuleSettings:
    """``[triage.rules.pore]``: pore pressure that passed from suction to positive."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    level: int = key(RuleKey("Its level: a contribution [P].", low=1, high=3), 2)
    rise_kpa: float = key(
        RuleKey("Rise in an hour that counts [P].", "kPa", low=0.01, high=50), 0.2
    )
    suction_days: float = key(
        RuleKey("Maximum time since suction [P].", "d", low=0.1, high=365), 30.0
    )


@dataclass(frozen=True)
class WaterLevelRuleSettings:
    """``[triage.rules.water_level]``: a sudden step; heights are limits."""

    used: bool = used_key()
    hold_s: float = hold_key(3600.0)
    step_m: float = key(
        RuleKey("Change within 10 minutes that counts [P].", "m", low=0.05, high=5), 0.3
    )
    level: int = key(
        RuleKey("Level when another sensor confirms it [P].", low=1, high=5), 4
    )
    alone_level: int = alone_level_key("Level of a rise", 2)
    drop_alone_level: int = alone_level_key(
        "Level of a drop in the rain, a dam of debris upstream [M],", 3
    )


@dataclass(frozen=True)
class EvidenceRules:
    """One table for each family of rules."""

    tilt: TiltRuleSettings = TiltRuleSettings()
    displacement: DisplacementRuleSettings = DisplacementRuleSettings()
    wire: WireRuleSettings = WireRuleSettings()
    vibration: VibrationRuleSettings = VibrationRuleSettings()
    saturation: SaturationRuleSettings = SaturationRuleSettings()
    pore: PoreRuleSettings = PoreRuleSettings()
    water_level: WaterLevelRuleSettings = WaterLevelRuleSettings()


@dataclass(frozen=True)
class EvidenceSettings:
    """Rules of movement and water, and how sensors confirm each other."""

    rules: EvidenceRules = EvidenceRules()
    confirm_s: float = key(
        RuleKey(
            "Evidence of two sensors within this time confirms each other [P].",
            "s",
            low=1,
            high=3600,
        ),
        600.0,
    )
    alone_notice_level: int = key(
        RuleKey(
            "Highest level of notices and sirens caused by movement that only one "
            "sensor shows; a cut wire has its own alone_level [P].",
            low=1,
            high=5,
        ),
        3,
    )

    @cached_property
    def text(self) -> str:
        """All settings as text, to compare them with earlier ones."""
        return repr(self)


DEFAULT_EVIDENCE = EvidenceSettings()


def with_tilt_rates(
    settings: EvidenceSettings, level_3_deg_per_h: float, level_4_deg_per_h: float
) -> EvidenceSettings:
    """Settings with other rates of tilt for levels 3 and 4.

    Raises:
        ScienceError: They are out of order among themselves or with the other levels.
    """
    tilt = dataclasses.replace(
        settings.rules.tilt,
        level_3_deg_per_h=level_3_deg_per_h,
        level_4_deg_per_h=level_4_deg_per_h,
    )
    rules = dataclasses.replace(settings.rules, tilt=tilt)
    return dataclasses.replace(settings, rules=rules)

"""The code of each reason, with the types of its parameters.

Rules for changes, so that programs of different versions understand each other:

* A code and its existing parameters never change their meaning.
* A new parameter is optional and comes last.
* A new choice, another unit or another number of digits is a new code.

A parameter keeps no more digits than its sentence shows. A sentence therefore
identifies its reason, and noise in the last bits of a sum does not make two
judgements of the same data differ.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple


class ReasonCode(StrEnum):
    """What a reason states; the value is stored and sent."""

    # measurements that reach a criterion, at the node or in the backend
    SOIL_WATER = "soil_water"
    TILT = "tilt"
    SPEED = "speed"
    DISPLACEMENT_STEP = "displacement_step"
    DISPLACEMENT_DAYS = "displacement_days"
    FAILURE_TIME = "failure_time"
    SHOCKS = "shocks"
    WIRE_CUT = "wire_cut"
    SOIL_WET = "soil_wet"
    PORE_TURNED = "pore_turned"
    PORE_POSITIVE = "pore_positive"
    PORE_HIGH = "pore_high"
    WATER_LEVEL_STEP = "water_level_step"
    LIMIT = "limit"

    # what is known of another reason, which they contain
    HELD = "held"
    CONFIRMED = "confirmed"
    UNCONFIRMED = "unconfirmed"
    UNCONFIRMED_LONG = "unconfirmed_long"
    MAYBE_WARMTH = "maybe_warmth"
    LONG_AGO = "long_ago"
    RULE = "rule"
    AHEAD_SAME_RAIN = "ahead_same_rain"
    AHEAD_FORECAST = "ahead_forecast"
    DOUBTFUL_RAIN = "doubtful_rain"
    NODE_LEVEL = "node_level"
    NODE_LEVEL_LOWERED = "node_level_lowered"
    GRID_SOIL_WATER = "grid_soil_water"

    # where the criterion of a reason comes from
    ASSUMED_CRITERIA = "assumed_criteria"
    ASSUMED_LINE = "assumed_line"
    ASSUMED_CRITERION = "assumed_criterion"
    SET_BY = "set_by"
    NOT_JUDGED = "not_judged"

    # what restricts a judgement
    NO_RAIN_DATA = "no_rain_data"
    LEVEL_HELD = "level_held"
    HOLD_ENDED = "hold_ended"
    RAIN_FROM_GAUGE = "rain_from_gauge"
    RAIN_FROM_FORECAST = "rain_from_forecast"
    RAIN_FROM_GRID = "rain_from_grid"
    LOWER_BOUND = "lower_bound"
    SUSPECT_RAIN = "suspect_rain"
    SUSPECT = "suspect"
    COUNTED_AFTER_REVIEW = "counted_after_review"

    # quality of a reading
    RANGE = "range"
    RAIN_RANGE = "rain_range"
    SPIKE = "spike"
    STEP = "step"
    RATE = "rate"
    FLAT = "flat"
    CLOCK_NOT_SET = "clock_not_set"
    CLOCK_IMPLAUSIBLE = "clock_implausible"
    NODE_FLAG = "node_flag"
    NODE_FLAG_UNKNOWN = "node_flag_unknown"
    NO_NUMBER = "no_number"
    COUNTER_BACK = "counter_back"
    COUNTER_REGAINED = "counter_regained"
    RELEASED = "released"
    CLOGGED = "clogged"
    ALONE = "alone"
    EXTREME = "extreme"
    UNDERCATCH = "undercatch"
    BURSTS = "bursts"
    BOUNCE = "bounce"
    CLOCK_LAG = "clock_lag"
    CATCH_UP = "catch_up"
    FROST = "frost"
    GRID_EXCESS = "grid_excess"
    GRID_DEFICIT = "grid_deficit"
    SOURCE_FLAG = "source_flag"
    MARKED_BAD = "marked_bad"
    DOUBT_REJECTED = "doubt_rejected"

    # why a forecast of rain is not used
    FORECAST_STALE = "forecast_stale"
    FORECAST_SHORT = "forecast_short"
    FORECAST_FAILED = "forecast_failed"

    # what a judgement assumes
    DEFAULT_CRITERIA = "default_criteria"
    DEFAULT_LINE = "default_line"
    DEFAULT_SPECIAL = "default_special"
    DRY_START = "dry_start"
    NO_FORECAST = "no_forecast"

    # why a time of failure is not used
    FEW_SPEEDS = "few_speeds"
    SPEED_IN_NOISE = "speed_in_noise"
    LOW_R2 = "low_r2"
    FAILURE_PASSED = "failure_passed"
    FAILURE_FAR = "failure_far"
    NO_TERTIARY_CREEP = "no_tertiary_creep"

    # why a row was revised
    LATE_READINGS = "late_readings"
    READINGS = "readings"
    READINGS_REVIEWED = "readings_reviewed"

    # states of a node
    RULE_NEEDS_PAST = "rule_needs_past"
    SOIL_NEEDS_PAST = "soil_needs_past"
    RULE_IN_NOISE = "rule_in_noise"
    RAIN_NOT_COUNTED = "rain_not_counted"
    SAFE_MODE = "safe_mode"
    DISK_FAILED = "disk_failed"
    QUEUE_MISPLACED = "queue_misplaced"

    # a sentence of a person, or of a program without codes
    TEXT = "text"


class ParamKind(Enum):
    """Type of a parameter."""

    TEXT = "text"
    NUMBER = "a number"
    WHOLE = "a whole number"
    MINUTE = "a Unix time of 0 to 253402300799 s"
    CHOICE = "a choice"
    REASON = "a reason"
    TEXTS = "a list of texts"
    REASONS = "a list of reasons"


class ReasonParam(NamedTuple):
    """One parameter of a code.

    Attributes:
        name: Its name; ends in the unit, where there is one.
        kind: Its type.
        form: How a number is shown, as in a format string.
        choices: The values of a choice.
        is_optional: Whether it may be absent.
        default: Its value then.
    """

    name: str
    kind: ParamKind
    form: str = ""
    choices: tuple[str, ...] = ()
    is_optional: bool = False
    default: Any = None


def _text(name: str) -> ReasonParam:
    return ReasonParam(name, ParamKind.TEXT)


def _fixed(name: str, decimals: int) -> ReasonParam:
    return ReasonParam(name, ParamKind.NUMBER, f".{decimals}f")


def _signed(name: str, decimals: int) -> ReasonParam:
    return ReasonParam(name, ParamKind.NUMBER, f"+.{decimals}f")


def _general(name: str) -> ReasonParam:
    return ReasonParam(name, ParamKind.NUMBER, "g")


def _whole(name: str) -> ReasonParam:
    return ReasonParam(name, ParamKind.WHOLE)


def _minute(name: str) -> ReasonParam:
    return ReasonParam(name, ParamKind.MINUTE)


def _choice(name: str, *choices: str) -> ReasonParam:
    return ReasonParam(name, ParamKind.CHOICE, choices=choices)


def _optional(param: ReasonParam, default: object = None) -> ReasonParam:
    return param._replace(is_optional=True, default=default)


_SENSOR: Final = _text("sensor")
_NODE: Final = _text("node")
_BECAUSE: Final = ReasonParam("because", ParamKind.REASON)
_REACHED: Final = _optional(_choice("how", "reached", "near"), "reached")
_RULES: Final = _choice(
    "rule",
    *("rain", "tilt", "displacement", "wire", "vibration"),
    *("saturation", "pore", "water_level", "limit"),
)
_BESIDE_GRID: Final = (
    _fixed("rain_mm", 1),
    _whole("hours"),
    _fixed("grid_mm", 1),
    _fixed("factor", 1),
    _minute("at_s"),
)

REASON_PARAMS: Final[Mapping[ReasonCode, tuple[ReasonParam, ...]]] = {
    ReasonCode.SOIL_WATER: (
        _fixed("index_mm", 1),
        _fixed("limit_mm", 1),
        _choice("criterion", "special", "line", "warning", "advisory"),
        _optional(_fixed("r60_mm", 1)),  # of the critical line only
        _optional(ReasonParam("basis", ParamKind.REASON)),
        _REACHED,
        _optional(_SENSOR),  # the gauge, where a node judges each alone
    ),
    ReasonCode.TILT: (
        _SENSOR,
        _fixed("deg_per_h", 3),
        _general("limit_deg_per_h"),
        _optional(_fixed("sigma_deg_per_h", 3)),
        _optional(_whole("points")),
        _REACHED,
        _optional(_whole("window_h")),
    ),
    ReasonCode.SPEED: (
        _SENSOR,
        _fixed("mm_per_h", 2),
        _general("limit_mm_per_h"),
        _optional(_fixed("sigma_mm_per_h", 2)),
        _REACHED,
        _optional(_general("lasted_h")),
    ),
    ReasonCode.DISPLACEMENT_STEP: (
        _SENSOR,
        _signed("step_mm", 1),
        _general("limit_mm"),
    ),
    ReasonCode.DISPLACEMENT_DAYS: (
        _SENSOR,
        _fixed("before_mm", 1),
        _fixed("today_mm", 1),
        _general("limit_mm"),
    ),
    ReasonCode.FAILURE_TIME: (
        _SENSOR,
        _fixed("left_h", 1),
        _fixed("half_width_h", 1),
        _fixed("r2", 2),
        _optional(_fixed("mm_per_h", 2)),
        _optional(_fixed("earliest_h", 1)),
        _optional(_fixed("latest_h", 1)),
    ),
    ReasonCode.SHOCKS: (_SENSOR, _whole("count"), _whole("limit")),
    ReasonCode.WIRE_CUT: (_SENSOR, _optional(_whole("cuts_per_h"))),
    ReasonCode.SOIL_WET: (
        _SENSOR,
        _fixed("water_content", 3),
        _fixed("rise", 3),
        _fixed("rain_mm", 1),
        _optional(_whole("percentile")),
        _optional(_fixed("high", 3)),
    ),
    ReasonCode.PORE_TURNED: (
        _SENSOR,
        _fixed("pressure_hpa", 1),
        _fixed("rise_hpa", 1),
    ),
    ReasonCode.PORE_POSITIVE: (
        _SENSOR,
        _fixed("pressure_kpa", 2),
        _fixed("rise_kpa", 2),
    ),
    ReasonCode.PORE_HIGH: (
        _SENSOR,
        _fixed("pressure_hpa", 1),
        _whole("percentile"),
        _fixed("rise_hpa", 1),
        _fixed("rain_mm", 1),
    ),
    ReasonCode.WATER_LEVEL_STEP: (
        _SENSOR,
        _signed("step_m", 2),
        _general("limit_m"),
        _optional(_whole("minutes"), 10),
    ),
    ReasonCode.LIMIT: (
        _SENSOR,
        _general("value"),
        _choice("side", "above", "below"),
        _general("limit"),
        _whole("lasted_s"),
    ),
    ReasonCode.HELD: (_BECAUSE,),
    ReasonCode.CONFIRMED: (_BECAUSE, _text("by")),
    ReasonCode.UNCONFIRMED: (_BECAUSE,),
    ReasonCode.UNCONFIRMED_LONG: (_BECAUSE, _whole("hours"), _whole("level")),
    ReasonCode.MAYBE_WARMTH: (_BECAUSE, _general("range_deg")),
    ReasonCode.LONG_AGO: (_BECAUSE,),
    ReasonCode.RULE: (
        _RULES,
        _BECAUSE,
        _optional(_whole("number")),
        _optional(_whole("level")),  # of all but the first of a message
    ),
    ReasonCode.AHEAD_SAME_RAIN: (_whole("minutes"), _BECAUSE),
    ReasonCode.AHEAD_FORECAST: (
        _whole("minutes"),
        _BECAUSE,
        _text("source"),
        _minute("issued_s"),
    ),
    ReasonCode.DOUBTFUL_RAIN: (_BECAUSE,),
    ReasonCode.NODE_LEVEL: (_NODE, _whole("level"), _BECAUSE),
    ReasonCode.NODE_LEVEL_LOWERED: (
        _NODE,
        _whole("level"),
        _whole("to_level"),
        ReasonParam("doubts", ParamKind.REASONS),
        _BECAUSE,
    ),
    ReasonCode.GRID_SOIL_WATER: (_BECAUSE, _text("source"), _minute("at_s")),
    ReasonCode.ASSUMED_CRITERIA: (),
    ReasonCode.ASSUMED_LINE: (),
    ReasonCode.ASSUMED_CRITERION: (),
    ReasonCode.SET_BY: (_text("person"), _text("day")),
    ReasonCode.NOT_JUDGED: (_text("levels"),),
    ReasonCode.NO_RAIN_DATA: (_optional(_whole("hours")),),
    ReasonCode.LEVEL_HELD: (
        _whole("level"),
        _minute("known_until_s"),
        _optional(_SENSOR),  # the silent one; absent for rain
        _optional(_BECAUSE),
    ),
    ReasonCode.HOLD_ENDED: (_whole("level"), _minute("known_until_s")),
    ReasonCode.RAIN_FROM_GAUGE: (_NODE, _fixed("km", 1)),
    ReasonCode.RAIN_FROM_FORECAST: (_text("source"), _minute("issued_s")),
    ReasonCode.RAIN_FROM_GRID: (_text("source"),),
    ReasonCode.LOWER_BOUND: (),
    ReasonCode.SUSPECT_RAIN: (_whole("level"), _fixed("index_mm", 1)),
    ReasonCode.SUSPECT: (
        ReasonParam("sensors", ParamKind.TEXTS),
        _optional(ReasonParam("because", ParamKind.REASONS), ()),
    ),
    ReasonCode.COUNTED_AFTER_REVIEW: (ReasonParam("sensors", ParamKind.TEXTS),),
    ReasonCode.RANGE: (_general("value"), _general("low"), _general("high")),
    ReasonCode.RAIN_RANGE: (
        _general("rain_mm"),
        _general("minutes"),
        _general("limit_mm"),
    ),
    ReasonCode.SPIKE: (_general("size"), _general("limit")),
    ReasonCode.STEP: (_general("size"), _general("limit")),
    ReasonCode.RATE: (_general("per_h"), _general("limit")),
    ReasonCode.FLAT: (_general("value"), _general("hours")),
    ReasonCode.CLOCK_NOT_SET: (),
    ReasonCode.CLOCK_IMPLAUSIBLE: (),
    ReasonCode.NODE_FLAG: (_choice("flag", "suspect", "failed", "missing"),),
    ReasonCode.NODE_FLAG_UNKNOWN: (_whole("flag"),),
    ReasonCode.NO_NUMBER: (),
    ReasonCode.COUNTER_BACK: (_general("before_mm"), _general("after_mm")),
    ReasonCode.COUNTER_REGAINED: (_general("before_mm"), _general("after_mm")),
    ReasonCode.RELEASED: (_general("rain_mm"),),
    ReasonCode.CLOGGED: (_general("hours"), _general("other_mm")),
    ReasonCode.ALONE: (_general("rain_mm"), _general("hours"), _general("other_mm")),
    ReasonCode.EXTREME: (_general("rain_mm"), _general("minutes")),
    ReasonCode.UNDERCATCH: (
        _general("rain_mm"),
        _general("hours"),
        _general("other_mm"),
    ),
    ReasonCode.BURSTS: (_whole("count"),),
    ReasonCode.BOUNCE: (_whole("count"),),
    ReasonCode.CLOCK_LAG: (_fixed("lag_h", 1),),
    ReasonCode.CATCH_UP: (_fixed("hours", 1),),
    ReasonCode.FROST: (_general("air_cel"),),
    ReasonCode.GRID_EXCESS: _BESIDE_GRID,
    ReasonCode.GRID_DEFICIT: _BESIDE_GRID,
    ReasonCode.SOURCE_FLAG: (_text("flag"),),
    ReasonCode.MARKED_BAD: (_text("person"), _text("day")),
    ReasonCode.DOUBT_REJECTED: (_text("person"), _text("day")),
    ReasonCode.FORECAST_STALE: (_fixed("age_h", 1), _general("max_h")),
    ReasonCode.FORECAST_SHORT: (_whole("minutes"), _whole("of_minutes")),
    ReasonCode.FORECAST_FAILED: (),
    ReasonCode.DEFAULT_CRITERIA: (),
    ReasonCode.DEFAULT_LINE: (),
    ReasonCode.DEFAULT_SPECIAL: (),
    ReasonCode.DRY_START: (_whole("days"),),
    ReasonCode.NO_FORECAST: (),
    ReasonCode.FEW_SPEEDS: (_whole("points"),),
    ReasonCode.SPEED_IN_NOISE: (),
    ReasonCode.LOW_R2: (_fixed("r2", 2),),
    ReasonCode.FAILURE_PASSED: (),
    ReasonCode.FAILURE_FAR: (_whole("left_h"), _general("max_h")),
    ReasonCode.NO_TERTIARY_CREEP: (),
    ReasonCode.LATE_READINGS: (
        _NODE,
        _whole("count"),
        _minute("first_s"),
        _minute("last_s"),
        _fixed("age_h", 1),
    ),
    ReasonCode.READINGS: (_NODE,),
    ReasonCode.READINGS_REVIEWED: (_text("person"),),
    ReasonCode.RULE_NEEDS_PAST: (_RULES, _general("hours")),
    ReasonCode.SOIL_NEEDS_PAST: (),
    ReasonCode.RULE_IN_NOISE: (_RULES, _whole("level"), _general("limit_deg_per_h")),
    ReasonCode.RAIN_NOT_COUNTED: (_general("rain_mm"),),
    ReasonCode.SAFE_MODE: (_whole("mistakes"),),
    ReasonCode.DISK_FAILED: (_whole("count"),),
    ReasonCode.QUEUE_MISPLACED: (_whole("count"),),
    ReasonCode.TEXT: (_text("text"),),
}
"""Parameters of each code, in the order in which they are encoded."""

ASSUMPTIONS: Final = frozenset({
    ReasonCode.ASSUMED_CRITERIA,
    ReasonCode.ASSUMED_LINE,
    ReasonCode.ASSUMED_CRITERION,
})
"""Codes of criteria for rain that are not those of JMA and the prefecture."""

RESTRICTIONS: Final = ASSUMPTIONS | frozenset({
    ReasonCode.UNCONFIRMED,
    ReasonCode.DOUBTFUL_RAIN,
    ReasonCode.SUSPECT_RAIN,
    ReasonCode.LEVEL_HELD,
    ReasonCode.RAIN_FROM_GAUGE,
    ReasonCode.RAIN_FROM_FORECAST,
    ReasonCode.RAIN_FROM_GRID,
    ReasonCode.AHEAD_SAME_RAIN,
    ReasonCode.AHEAD_FORECAST,
})
"""Codes that keep a level from being an observed fact, alone or within a reason."""

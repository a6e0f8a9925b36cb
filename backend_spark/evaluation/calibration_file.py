"""File of a calibration, and what it says about a day.

The file is JSON that people can read and check: the period, the predictors, the classes
of days with their counts, and the Brier skill score with each year left out. Reading
it needs neither scikit-learn nor numpy.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from backend_spark.errors import CalibrationError
from backend_spark.evaluation.skill import PREDICTORS
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.files import write_atomic

FORM: Final = "yamamori landslide days 1"
MAX_CONSOLE_STEP_H: Final = 1.0
"""Daily totals have a lower index than the ten-minute rain of the console."""


NAMES: Final = {
    "swi": ("soil water index", "土壌雨量指数"),
    "effective72": ("72-hour effective rain", "実効雨量（72時間）"),
    "effective1.5": ("1.5-hour effective rain", "実効雨量（1.5時間）"),
    "antecedent": ("antecedent rain index", "先行降雨指数"),
}
"""Predictors that gold has, in English and Japanese."""

BEYOND: Final = {
    "en": "It is higher now than on any of these days.",
    "ja": "現在の値は、これらの日のどれよりも大きい値です。",
}
UNPROVEN: Final = {
    "en": "With each year left out, the counts were no better than the mean of "
    "{mean:.1f} of 100 days: they are a record, not a forecast.",
    "ja": "各年を除いた検証では平均（100日中{mean:.1f}日）より良い結果ではありません。"
    "実績であり、予測ではありません。",
}


class DayClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Days of one class.

    Attributes:
        from_score: Lowest score of the class.
        to_score: Lowest score of the next class; None: no upper end.
        days: Number of days.
        days_with_landslide: Those with a landslide.
        of_100: Days with a landslide, of 100 such days.
        low_of_100: Lower end of the 95 % interval.
        high_of_100: Its upper end.
    """

    from_score: float
    to_score: float | None
    days: int
    days_with_landslide: int
    of_100: float
    low_of_100: float
    high_of_100: float


class LogOdds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Score of several predictors: intercept + sum of coefficient x ln(1 + value).

    Attributes:
        intercept: Of the sum.
        coefficients: By predictor.
    """

    intercept: float
    coefficients: dict[str, float]


class YearLeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One year, judged by classes of the other years.

    Attributes:
        year: The year.
        days: Number of days.
        days_with_landslide: Those with a landslide.
        brier_score: Mean squared error of the stated shares.
        brier_score_of_mean: The same if each day is given the other years' mean share.
    """

    year: int
    days: int
    days_with_landslide: int
    brier_score: float
    brier_score_of_mean: float


class ReliabilityBin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Days with similar statements: a point of the reliability diagram.

    Attributes:
        stated_of_100: Mean of the statements, each made without the day's year.
        days: Number of days.
        days_with_landslide: Those with a landslide.
        low_of_100: Lower end of the exact 95 % interval of the observed share.
        high_of_100: Its upper end.
    """

    stated_of_100: float
    days: int
    days_with_landslide: int
    low_of_100: float
    high_of_100: float


class YearlySkill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Skill of the statements with each year left out.

    Attributes:
        skill_score: Brier skill score: 1 is perfect, 0 no better than the mean share.
        low: Lower end of its 95 % interval; None with too few days.
        high: Its upper end.
        skill_score_same_days: Of the classes on the days that made them: too good.
        years: Each year.
        reliability: Points of the diagram.
    """

    skill_score: float
    low: float | None
    high: float | None
    skill_score_same_days: float
    years: tuple[YearLeftOut, ...]
    reliability: tuple[ReliabilityBin, ...]


class Calibration(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Landslide days by class of predictor.

    Attributes:
        form: Name and version of the form of the file.
        place: Where the landslides were counted; empty if not given.
        first_day: First day, ISO 8601.
        last_day: Last day.
        step_h: Length of a step of the rain.
        days: Number of days with rain data.
        days_with_landslide: Those with a landslide.
        days_without_data: Days that are not counted.
        predictors: Names.
        log_odds: How several predictors make one score; None for one, whose value in
            mm is the score.
        highest_score: Of the days; what lies beyond has no example.
        classes: In ascending order.
        each_year_left_out: Skill.
    """

    form: str = FORM
    place: str
    first_day: str
    last_day: str
    step_h: float
    days: int
    days_with_landslide: int
    days_without_data: int
    predictors: tuple[str, ...]
    log_odds: LogOdds | None
    highest_score: float
    classes: tuple[DayClass, ...]
    each_year_left_out: YearlySkill

    def score(self, values: Mapping[str, float]) -> float:
        """Score of the values of all predictors."""
        if self.log_odds is None:
            return values[self.predictors[0]]
        return log_odds_score(self.log_odds, values)

    def class_of(self, score: float) -> DayClass:
        """Class of a score; one below all scores is in the first class."""
        found = [each for each in self.classes if each.from_score <= score]
        return found[-1] if found else self.classes[0]

    def statement(self, row: Mapping[str, Any]) -> tuple[DayClass, float] | None:
        """Class and score of a row of gold.

        None where the level is not judged, or a predictor is unknown or a lower bound:
        missing is never zero.
        """
        values = {
            name: float(value)
            for name in self.predictors
            if (value := row.get(PREDICTORS[name].column or "")) is not None
        }
        is_judged = row.get("state") in {None, "judged"}
        is_known = row.get("lower_bound") is False and is_judged
        if not is_known or len(values) < len(self.predictors):
            return None
        score = self.score(values)
        return self.class_of(score), score

    def sentences(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        """What the calibration says about a row of gold, in English and Japanese."""
        found = self.statement(row)
        if found is None:
            return []
        each, score = found
        sentences = [_count_sentence(self, each)]
        if score > self.highest_score:
            sentences.append(BEYOND)
        if self.each_year_left_out.skill_score <= 0:
            mean = 100 * self.days_with_landslide / self.days
            sentences.append({
                language: text.format(mean=mean) for language, text in UNPROVEN.items()
            })
        return sentences

    def write(self, path: Path) -> None:
        """Write the file; a crash leaves the old one."""
        text = json.dumps(msgspec.to_builtins(self), indent=2, ensure_ascii=False)
        write_atomic(path, f"{text}\n".encode())


def log_odds_score(odds: LogOdds, values: Mapping[str, float]) -> float:
    """Sum of the predictors' parts; a negative value counts as zero."""
    parts = (
        slope * math.log1p(max(0.0, values[name]))
        for name, slope in odds.coefficients.items()
    )
    return odds.intercept + math.fsum(parts)


def _count_sentence(found: Calibration, each: DayClass) -> dict[str, str]:
    """Number of days with landslides of 100 days of a class, in both languages."""
    names = [NAMES[name] for name in found.predictors]
    counts = f"{each.of_100:g}", f"{each.low_of_100:g}", f"{each.high_of_100:g}"
    here = f"in {found.place}" if found.place else "here"
    return {
        "en": f"Of 100 days with {_range_en(found, each, [en for en, _ in names])}, "
        f"{counts[0]} had landslides {here} (95 %: {counts[1]} to {counts[2]}; "
        f"{each.days_with_landslide} of {each.days} days, {found.first_day} to "
        f"{found.last_day}).",
        "ja": f"{_range_ja(found, each, [ja for _, ja in names])}100日のうち、"
        f"{found.place and found.place + 'で'}土砂災害があったのは{counts[0]}日"
        f"（95 %の範囲 {counts[1]}～{counts[2]}日。{found.first_day}～"
        f"{found.last_day}の{each.days}日中{each.days_with_landslide}日）。",
    }


def _range_en(found: Calibration, each: DayClass, names: list[str]) -> str:
    """The class in English; of several predictors only their names have a meaning."""
    if found.log_odds is not None:
        return f"{' and '.join(names)} like now"
    top = "mm or more" if each.to_score is None else f"to {each.to_score:g} mm"
    return f"a highest {names[0]} of {each.from_score:g} {top}"


def _range_ja(found: Calibration, each: DayClass, names: list[str]) -> str:
    """The class in Japanese."""
    if found.log_odds is not None:
        return f"{'と'.join(names)}が現在と同じ程度の日"
    if each.to_score is None:
        return f"{names[0]}の最高が{each.from_score:g} mm以上の日"
    return f"{names[0]}の最高が{each.from_score:g}～{each.to_score:g} mmの日"


def read_calibration(path: Path) -> Calibration:
    """Read the file of a calibration for the console.

    Raises:
        CalibrationError: It cannot be read, or the console lacks its predictors.
    """
    remedy = "write it anew with backend-spark evaluate --calibrate"
    try:
        found = decode_json(path.read_bytes(), Calibration)
    except OSError as error:
        raise CalibrationError(
            str(path), "a readable file", error.strerror, remedy
        ) from error
    except DECODE_ERRORS as error:
        raise CalibrationError(
            str(path), "the JSON of a calibration", error, remedy
        ) from error
    if found.form != FORM:
        raise CalibrationError(str(path), f"of form {FORM!r}", found.form, remedy)
    if not found.classes or not found.predictors:
        rule = "a calibration with predictors and classes"
        raise CalibrationError(str(path), rule, "none", remedy)
    usable = [name for name, each in PREDICTORS.items() if each.column]
    for name in found.predictors:
        if name not in usable:
            rule = f"made with {', '.join(usable)}, which gold has"
            raise CalibrationError(str(path), rule, name, "choose with --predictor")
    if found.step_h > MAX_CONSOLE_STEP_H:
        rule = "made with rain in steps of an hour or less, as an index from daily "
        rule += "totals is lower than the console's"
        raise CalibrationError(str(path), rule, f"{found.step_h:g} h", remedy)
    return found

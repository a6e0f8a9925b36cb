"""Report of an evaluation as text or JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from backend_spark.evaluation.calibration_file import Calibration, DayClass
from backend_spark.evaluation.inputs import EvaluationRain, LandslideTable
from backend_spark.evaluation.skill import (
    DayCases,
    Interval,
    LevelSkill,
    PredictorSkill,
)
from slope_science.levels import LOWEST
from slope_science.skill import EVENT_CLASSES, SCORES, LeadTime, Slide

_FEW_EVENTS = 20
_WARM_UP_DAYS = 60
_MAX_NAMED = 8


@dataclass(frozen=True)
class SeasonEvaluation:
    """Result of an evaluation.

    Attributes:
        days: The cases.
        landslides: As the table lists them.
        rain: The series.
        skills: Of each predictor.
        left_out: Predictors that have no meaning here, with the reason.
        levels: Of the rain's levels; None at steps longer than an hour.
        warning_mm: Criterion that the levels were judged with.
        criteria_name: Where the criteria come from.
        calibration: Made on the same days; None if not asked for.
    """

    days: DayCases
    landslides: LandslideTable
    rain: EvaluationRain
    skills: list[PredictorSkill]
    left_out: dict[str, str]
    levels: LevelSkill | None
    warning_mm: float
    criteria_name: str
    calibration: Calibration | None = None

    def format_lines(self) -> Iterator[str]:
        """For people."""
        yield from self._case_lines()
        yield ""
        yield from self._skill_lines()
        yield ""
        yield from self._level_lines()
        if self.calibration is not None:
            yield ""
            yield from calibration_lines(self.calibration)

    def _case_lines(self) -> Iterator[str]:
        cases, events = self.days, sum(self.days.events)
        first, last = cases.days[0], cases.days[-1]
        yield f"{len(cases.days)} days, {first} to {last}; {events} with a landslide"
        yield self._step_line()
        if cases.incomplete:
            yield (
                f"{cases.incomplete} days have hours without rain data: their "
                "numbers are lower bounds"
            )
        if cases.empty:
            kept = "kept as lower bounds" if cases.are_empty_kept else "excluded"
            yield (
                f"{len(cases.empty)} days have no rain data at all and are {kept}: "
                + _list(cases.empty)
            )
        yield from self._landslide_lines()
        if cases.dry_start_days < _WARM_UP_DAYS:
            yield (
                f"rain begins {cases.dry_start_days} days before the first day: the "
                f"indices began dry, and need some {_WARM_UP_DAYS} days"
            )
        if events < _FEW_EVENTS:
            yield f"{events} events are few: see how wide the 95 % intervals are"

    def _step_line(self) -> str:
        """How steps become days, with the first row as the example."""
        rain = self.rain
        start = rain.ends[0] - rain.step
        return (
            f"rain in steps of {_length(rain.step)}: the row of {start:%Y-%m-%d %H:%M} "
            f"to {rain.ends[0]:%Y-%m-%d %H:%M} counts on {rain.days[0]}"
        )

    def _landslide_lines(self) -> Iterator[str]:
        """Lines of the landslides' table that do not count as they stand."""
        table = self.landslides
        if self.days.outside:
            yield (
                f"{len(self.days.outside)} lines of {table.source} are outside the "
                f"days: {_list([self._named(line) for line in self.days.outside])}"
            )
        if self.days.on_empty:
            yield (
                f"{len(self.days.on_empty)} lines are on days without rain data: "
                f"{_list([self._named(line) for line in self.days.on_empty])}"
            )
        if table.repeats:
            pairs = [f"line {line} as line {first}" for line, first in table.repeats]
            yield (
                f"{len(pairs)} lines repeat a time and count as further landslides of "
                f"it: {_list(pairs)}"
            )
        if table.unusable:
            named = [f"line {line}, {reason}" for line, reason in table.unusable]
            yield f"{len(named)} lines are not counted: {_list(named)}"

    def _named(self, line: int) -> str:
        slide = self.landslides.slides[list(self.landslides.lines).index(line)]
        return f"line {line}, {_when(slide)}"

    def _skill_lines(self) -> Iterator[str]:
        yield (
            f"{'predictor':13}{'AUC':>7} {'95 %':^13}{'at mm':>9}{'TP':>5}{'FP':>6}"
            f"{'FN':>5}{'TN':>7}{'POD':>7}{'FAR':>7}{'TSS':>7} {'95 %':^13}"
            f"{'CSI':>7}{'HSS':>7}{'no miss at':>12}"
        )
        for each in self.skills:
            cases = each.cases
            row = f"{each.name:13}{_number(each.auc):>7} {_interval(each.auc_interval)}"
            if cases is not None:
                mark = "*" if each.is_fitted else " "
                row += f"{_number(each.threshold_mm, 1) + mark:>9}{cases.hits:>5}"
                row += f"{cases.false_alarms:>6}{cases.misses:>5}{cases.quiet:>7}"
                row += f"{_number(cases.pod):>7}{_number(cases.far):>7}"
                row += f"{_number(cases.tss):>7} {_interval(each.tss_interval)}"
                row += f"{_number(cases.csi):>7}{_number(cases.hss):>7}"
                row += f"{_number(each.safe_mm, 1):>12}"
            yield row
        for name, reason in self.left_out.items():
            yield f"{name:13} left out: {reason}"
        if any(each.is_fitted for each in self.skills):
            yield (
                "* fitted to these very days: the greatest TSS; expect less of it on "
                "others, or give --threshold NAME=MM"
            )

    def _level_lines(self) -> Iterator[str]:
        if self.levels is None:
            yield (
                "no levels: the 60-minute rain of their criteria is unknown in steps "
                f"of {_length(self.rain.step)}"
            )
            return
        yield (
            f"levels of the rain with a warning criterion of {self.warning_mm:g} mm "
            f"({self.criteria_name}), hours by class of event"
        )
        yield f"{'level':7}" + "".join(f"{name:>14}" for name in EVENT_CLASSES)
        for at, row in enumerate(self.levels.hours):
            yield f"{LOWEST + at:<7}" + "".join(f"{hours:>14.1f}" for hours in row)
        yield ""
        yield "lead time of each level before each event, in hours"
        levels = range(LOWEST + 1, LOWEST + len(self.levels.hours))
        yield f"{'event':26}{'slides':>7}" + "".join(
            f"{f'level {n}':>16}" for n in levels
        )
        for event, leads in self.levels.leads:
            cells = "".join(f"{_lead(each):>16}" for each in leads)
            yield f"{_when(event):26}{event.count:>7}{cells}"

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        cases, levels = self.days, self.levels
        return {
            "days": len(cases.days),
            "event_days": sum(cases.events),
            "incomplete_days": cases.incomplete,
            "days_without_data": [day.isoformat() for day in cases.empty],
            "days_without_data_kept": cases.are_empty_kept,
            "step_s": self.rain.step.total_seconds(),
            "lines_outside": list(cases.outside),
            "lines_on_days_without_data": list(cases.on_empty),
            "lines_that_repeat": [list(pair) for pair in self.landslides.repeats],
            "lines_not_counted": [list(pair) for pair in self.landslides.unusable],
            "predictors": [_skill_json(each) for each in self.skills],
            "left_out": self.left_out,
            "warning_mm": self.warning_mm,
            "criteria": self.criteria_name,
            "classes": EVENT_CLASSES,
            "hours_by_level_and_class": levels and levels.hours,
            "lead_times": levels
            and [
                {
                    "event": asdict(event),
                    "leads": [each and asdict(each) for each in leads],
                }
                for event, leads in levels.leads
            ],
            "calibration": self.calibration and msgspec.to_builtins(self.calibration),
        }


def calibration_lines(found: Calibration) -> Iterator[str]:
    """Classes, reliability and skill of a calibration, for people."""
    score = "mm" if found.log_odds is None else "log odds"
    yield f"landslide days by class of {', '.join(found.predictors)} ({score})"
    for each in found.classes:
        yield f"  {describe_class(each)}"
    skill = found.each_year_left_out
    ends = "-" if skill.low is None else f"{skill.low:.3f} to {skill.high:.3f}"
    yield (
        f"Brier skill score with each year left out: {skill.skill_score:.3f} (95 % "
        f"{ends}); on the days that made it: {skill.skill_score_same_days:.3f}"
    )
    if skill.skill_score <= 0:
        yield (
            "in years left out the classes were no better than the mean share of all "
            "days: take the counts as a record, not as a forecast"
        )
    yield f"{'year':>6}{'days':>7}{'struck':>8}{'Brier':>9}{'of mean':>9}"
    for year in skill.years:
        yield (
            f"{year.year:>6}{year.days:>7}{year.days_with_landslide:>8}"
            f"{year.brier_score:>9.5f}{year.brier_score_of_mean:>9.5f}"
        )
    yield "reliability, each day stated without its year"
    yield f"{'stated':>8}{'days':>7}{'struck':>8}{'of 100':>9}  95 %"
    for bin_ in skill.reliability:
        share = 100 * bin_.days_with_landslide / bin_.days
        yield (
            f"{bin_.stated_of_100:>8.2f}{bin_.days:>7}{bin_.days_with_landslide:>8}"
            f"{share:>9.1f}  {bin_.low_of_100:.1f} to {bin_.high_of_100:.1f}"
        )


def describe_class(each: DayClass) -> str:
    """Statement about the days of a class."""
    upper = "or more" if each.to_score is None else f"to {each.to_score:.1f}"
    return (
        f"{each.from_score:.1f} {upper}: of 100 such days, {each.of_100:g} had "
        f"landslides here (95 %: {each.low_of_100:g} to {each.high_of_100:g}; "
        f"{each.days_with_landslide} of {each.days} days)"
    )


def _length(step: timedelta) -> str:
    minutes = step / timedelta(minutes=1)
    return f"{minutes:g} min" if minutes < 60 else f"{minutes / 60:g} h"  # noqa: PLR2004


def _list(items: Sequence[str | date]) -> str:
    more = len(items) - _MAX_NAMED
    named = "; ".join(str(item) for item in items[:_MAX_NAMED])
    return f"{named}; and {more} more" if more > 0 else named


def _skill_json(each: PredictorSkill) -> dict[str, Any]:
    scores = {
        name: None if each.cases is None else getattr(each.cases, name)
        for name in SCORES
    }
    return asdict(each) | {"scores": scores}


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(ends: Interval) -> str:
    return f"{'-':^13}" if ends is None else f"{ends[0]:6.3f}-{ends[1]:.3f} "


def _lead(lead: LeadTime | None) -> str:
    if lead is None:
        return "-"
    least_h, most_h = lead.least_s / 3600, lead.most_s / 3600
    if least_h == most_h:
        return f"{least_h:.1f}"
    return f"{least_h:.1f} to {most_h:.1f}"


def _when(event: Slide) -> str:
    low, high = (datetime.fromtimestamp(s, UTC) for s in (event.from_s, event.to_s))
    if low == high:
        return f"{low:%Y-%m-%d %H:%M}"
    last = datetime.fromtimestamp(event.to_s - 1, UTC)
    return f"{low:%Y-%m-%d}" + (
        "" if last.date() == low.date() else f" to {last:%m-%d}"
    )

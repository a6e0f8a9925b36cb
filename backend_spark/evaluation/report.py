"""Report of an evaluation as text or JSON."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from backend_spark.evaluation.skill import (
    DayCases,
    Interval,
    LevelSkill,
    PredictorSkill,
)
from slope_science.findings import LOWEST
from slope_science.skill import EVENT_CLASSES, LeadTime, Slide

_SCORES = ("pod", "far", "pofd", "tss", "csi", "hss")
_FEW_EVENTS = 20


@dataclass(frozen=True)
class SeasonEvaluation:
    """Result of an evaluation.

    Attributes:
        days: The cases.
        skills: Of each predictor.
        levels: Of the rain's levels.
        warning_mm: Criterion that the levels were judged with.
    """

    days: DayCases
    skills: list[PredictorSkill]
    levels: LevelSkill
    warning_mm: float

    def format_lines(self) -> Iterator[str]:
        """For people."""
        days, events = len(self.days.days), sum(self.days.events)
        first, last = (self.days.days[0], self.days.days[-1]) if days else ("-", "-")
        yield f"{days} days, {first} to {last}; {events} with a landslide"
        if self.days.incomplete:
            yield (
                f"{self.days.incomplete} days have hours without rain data: their "
                "numbers are lower bounds"
            )
        if events < _FEW_EVENTS:
            yield f"{events} events are few: see how wide the 95 % intervals are"
        yield ""
        yield from self._skill_lines()
        yield ""
        yield from self._level_lines()

    def _skill_lines(self) -> Iterator[str]:
        yield (
            f"{'predictor':13}{'AUC':>7} {'95 %':^13}{'at mm':>9}{'TP':>5}{'FP':>5}"
            f"{'FN':>5}{'TN':>6}{'POD':>7}{'FAR':>7}{'TSS':>7} {'95 %':^13}"
            f"{'CSI':>7}{'HSS':>7}{'no miss at':>12}"
        )
        for each in self.skills:
            cases = each.cases
            row = f"{each.name:13}{_number(each.auc):>7} {_interval(each.auc_interval)}"
            if cases is not None:
                mark = "*" if each.is_fitted else " "
                row += f"{_number(each.threshold_mm, 1) + mark:>9}{cases.hits:>5}"
                row += f"{cases.false_alarms:>5}{cases.misses:>5}{cases.quiet:>6}"
                row += f"{_number(cases.pod):>7}{_number(cases.far):>7}"
                row += f"{_number(cases.tss):>7} {_interval(each.tss_interval)}"
                row += f"{_number(cases.csi):>7}{_number(cases.hss):>7}"
                row += f"{_number(each.safe_mm, 1):>12}"
            yield row
        if any(each.is_fitted for each in self.skills):
            yield (
                "* fitted to these very days: the greatest TSS; expect less of it on "
                "others, or give --threshold NAME=MM"
            )

    def _level_lines(self) -> Iterator[str]:
        yield (
            f"levels of the rain with a warning criterion of {self.warning_mm:g} mm "
            "(assumed line), hours by class of event"
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
        return {
            "days": len(self.days.days),
            "event_days": sum(self.days.events),
            "incomplete_days": self.days.incomplete,
            "predictors": [_told(each) for each in self.skills],
            "warning_mm": self.warning_mm,
            "classes": EVENT_CLASSES,
            "hours_by_level_and_class": self.levels.hours,
            "lead_times": [
                {
                    "event": asdict(event),
                    "leads": [each and asdict(each) for each in leads],
                }
                for event, leads in self.levels.leads
            ],
        }


def _told(each: PredictorSkill) -> dict[str, Any]:
    scores = {
        name: None if each.cases is None else getattr(each.cases, name)
        for name in _SCORES
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

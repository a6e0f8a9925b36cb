"""Reliability diagram of a calibration: stated against observed landslide days.

Points on the diagonal are reliable statements. Each day was stated by classes made
without its year; the bars are exact 95 % intervals of independent days.

Source: Wilks, Statistical Methods in the Atmospheric Sciences, ch. 9.
"""

from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from backend_spark.evaluation.calibration_file import Calibration, ReliabilityBin

POINT, DIAGONAL, MEAN = "#1565c0", "#9e9e9e", "#e02400"
MIN_AXIS_OF_100: Final = 10.0


def draw_reliability(calibration: Calibration) -> Figure:
    """Draw the diagram.

    Args:
        calibration: Its points, and the mean share of landslide days.
    """
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    points = calibration.each_year_left_out.reliability
    limit = max(MIN_AXIS_OF_100, *(point.high_of_100 for point in points))
    axes.plot([0, limit], [0, limit], color=DIAGONAL, label="reliable")
    mean = 100 * calibration.days_with_landslide / calibration.days
    axes.axhline(mean, color=MEAN, linestyle=":", label=f"mean {mean:.1f} of 100")
    for point in points:
        _draw_point(axes, point)
    axes.set_xlabel("stated landslide days, of 100 (without the day's year)")
    axes.set_ylabel("observed landslide days, of 100")
    axes.set_xlim(-limit / 40, limit)
    axes.set_ylim(-limit / 40, limit)
    axes.legend(loc="upper left")
    figure.suptitle(_title(calibration))
    return figure


def _draw_point(axes: Axes, point: ReliabilityBin) -> None:
    """A point with its interval, and the counts behind it."""
    share = 100 * point.days_with_landslide / point.days
    bars = [[share - point.low_of_100], [point.high_of_100 - share]]
    axes.errorbar([point.stated_of_100], [share], yerr=bars, fmt="o", color=POINT)
    text = f" {point.days_with_landslide}/{point.days}"
    axes.annotate(text, (point.stated_of_100, share))


def _title(calibration: Calibration) -> str:
    skill = calibration.each_year_left_out
    ends = "-" if skill.low is None else f"{skill.low:.2f} to {skill.high:.2f}"
    place = f"{calibration.place}, " if calibration.place else ""
    return (
        f"{place}{calibration.first_day} to {calibration.last_day}\n"
        f"Brier skill score {skill.skill_score:.2f} (95 %: {ends}), each year left out"
    )

"""What all charts share: size, colours of the levels, times in Japan."""

from collections.abc import Sequence
from datetime import timedelta, timezone
from typing import Final

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from slope_science.criteria import Criteria

JST: Final = timezone(timedelta(hours=9), "JST")
LEVEL_COLOURS: Final = {
    1: "#ffffff",
    2: "#f2e700",
    3: "#ff2800",
    4: "#aa00aa",
    5: "#0c000c",
}
"""As JMA shows them."""

ADVISORY, WARNING, CRITICAL, SPECIAL = "#8f8700", "#e02400", "#aa00aa", "#0c000c"
WATER, PAST, MISSING = "#1565c0", "#1565c0", "#9e9e9e"


def new_figure(title: str, heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels one above another, under one time axis.

    Args:
        title: Of the whole.
        heights: Of the panels, relative to each other.
    """
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(
        len(heights), 1, squeeze=False, sharex=True, height_ratios=list(heights)
    )
    figure.suptitle(title)
    return figure, list(panels[:, 0])


def time_axis(axes: Axes) -> None:
    """Let an axis show times in Japan."""
    locator = AutoDateLocator(tz=JST, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, tz=JST)  # type: ignore[no-untyped-call]
    )
    axes.set_xlabel("time (JST)")


def beside(axes: Axes, *names: str) -> None:
    """A legend beside a panel, where it hides nothing.

    Args:
        axes: The panel.
        names: Of what was drawn, in that order; without any the labels given then.
    """
    told = {"labels": names} if names else {}
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", **told)


def note_of(criteria: Criteria) -> str:
    """What is assumed, for a title; empty where nothing is."""
    if criteria.assumed:
        return " (criteria assumed)"
    return "" if criteria.line else " (critical line assumed)"

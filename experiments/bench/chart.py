"""Charts of results, if matplotlib is installed; only this module imports it."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

WIDTH_INCH, HEIGHT_INCH, DPI = 8.0, 4.5, 120
COLOURS = 10
"""Colours before they repeat; the lines after that are dashed."""

MOST_MARKED = 20
"""Points of a line up to which each is marked."""


def bars(
    path: Path,
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
) -> bool:
    """Draw a group of bars for each label, with one bar of each series.

    Args:
        path: Path of the PNG.
        title: Title of the chart.
        labels: Labels of the groups.
        series: Heights by name of the series, one per label; None leaves a gap.
        unit: Unit of the heights.

    Returns:
        Whether the file was written: False without matplotlib.
    """
    plot = load_pyplot()
    if plot is None:
        return False
    figure, axes = plot.subplots(figsize=(WIDTH_INCH, HEIGHT_INCH))
    width = 0.8 / max(len(series), 1)
    for number, (name, heights) in enumerate(series.items()):
        positions = [at - 0.4 + width * (number + 0.5) for at in range(len(labels))]
        drawn = axes.bar(positions, [h or 0.0 for h in heights], width, label=name)
        axes.bar_label(drawn, ["" if h is None else f"{h:.2g}" for h in heights])
    axes.set_xticks(range(len(labels)), labels, rotation=20, ha="right")
    return _save(path, plot, figure, axes, (title, "", unit))


def lines(  # noqa: PLR0917 - one for each label
    path: Path,
    title: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    xlabel: str,
    ylabel: str,
) -> bool:
    """Draw a line for each series.

    Args:
        path: Path of the PNG.
        title: Title of the chart.
        x: x values of the points.
        series: y values by name of the series, one per x value; None leaves a gap.
        xlabel: Quantity and unit of the x values.
        ylabel: Quantity and unit of the y values.

    Returns:
        Whether the file was written: False without matplotlib.
    """
    plot = load_pyplot()
    if plot is None:
        return False
    figure, axes = plot.subplots(figsize=(WIDTH_INCH, HEIGHT_INCH))
    marker = "o" if len(x) <= MOST_MARKED else None
    for number, (name, heights) in enumerate(series.items()):
        points = [float("nan") if h is None else h for h in heights]
        style = "-" if number < COLOURS else "--"
        axes.plot(x, points, style, marker=marker, label=name)
    return _save(path, plot, figure, axes, (title, xlabel, ylabel))


def load_pyplot() -> Any | None:  # noqa: ANN401 - imported by name, so without types
    """Module matplotlib.pyplot for files; None without matplotlib."""
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError:
        return None


def _save(
    path: Path,
    plot: Any,  # noqa: ANN401
    figure: Any,  # noqa: ANN401
    axes: Any,  # noqa: ANN401
    labels: tuple[str, str, str],
) -> bool:
    title, xlabel, ylabel = labels
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plot.close(figure)
    return True

"""One chart by the settings of a backend, written to a file."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
from matplotlib.figure import Figure

from backend_spark.config import Settings
from backend_spark.criteria.judging import Judging
from backend_spark.errors import PlotError
from backend_spark.plots.rain import rain_and_levels
from backend_spark.plots.snake import snake_line
from backend_spark.plots.velocity import inverse_velocity
from backend_spark.tables import open_tables


@dataclass(frozen=True)
class Subject:
    """What is drawn.

    Attributes:
        cell: For ``snake`` and ``rain``: its token.
        node: For ``velocity``: the node.
        sensor: The name of its extensometer.
        until: The last moment; None is the newest.
        hours: How much of the past.
    """

    cell: str
    node: str
    sensor: str
    until: datetime | None
    hours: float


def draw(settings: Settings, kind: str, of: Subject) -> Figure:
    """Draw a chart.

    Args:
        settings: Where the tables are, and the criteria.
        kind: ``snake``, ``rain`` or ``velocity``.
        of: What.

    Raises:
        PlotError: The tables have nothing of it.
    """
    tables = open_tables(Path(settings.backend.data))
    if kind == "velocity":
        rows = tables.sensor(of.node, of.sensor, None, of.until)
    else:
        rows = tables.cell(of.cell, None, of.until)
    if not rows.num_rows:
        named = of.cell or f"{of.node} {of.sensor}"
        raise PlotError(kind, "of something that the tables have", named)
    since = rows["at"][-1].as_py() - timedelta(hours=of.hours)
    rows = rows.filter(pc.greater_equal(rows["at"], since))
    if kind == "velocity":
        return inverse_velocity(rows)
    criteria = Judging.by(settings.criteria).table.of(of.cell)
    return (snake_line if kind == "snake" else rain_and_levels)(rows, criteria)

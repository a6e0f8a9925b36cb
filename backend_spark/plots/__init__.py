"""Charts for reports and notebooks: rain and levels, snake line, inverse velocity.

Each function takes rows of the tables and returns a matplotlib figure, without pyplot
and without a display.
"""

from importlib import import_module
from typing import Any, Final

_CHARTS: Final = ("inverse_velocity", "rain_and_levels", "snake_line")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has
    """Import a chart on first use: the command line starts without matplotlib."""
    if name in _CHARTS:
        return getattr(import_module("backend_spark.plots.charts"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Charts for reports and notebooks: rain and levels, snake line, inverse velocity.

Each function takes rows of the tables and gives a matplotlib figure; nothing is drawn
on a screen, and no state of pyplot is touched.
"""

from importlib import import_module
from typing import Any, Final

_WHERE: Final = {
    "inverse_velocity": "velocity",
    "rain_and_levels": "rain",
    "snake_line": "snake",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has
    """A chart, when it is asked for: the command line starts without matplotlib."""
    if name in _WHERE:
        return getattr(import_module(f"backend_spark.plots.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

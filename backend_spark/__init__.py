"""The backend: what arrives is on disk before it is acknowledged, then scored.

    MQTT -> ingest (no Spark) -> segment log -> Spark source
         -> bronze (as received) -> silver (one row a reading) -> gold (levels, ids)

`ingest` and `score` are separate processes that share one folder. Analysts read
the tables without Spark: `backend_spark.open_tables(folder)`, and draw them with
`backend_spark.plots`.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has
    """`open_tables`, when it is asked for: the command line starts without Arrow."""
    if name == "open_tables":
        return import_module("backend_spark.tables.reader").open_tables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

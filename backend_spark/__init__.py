"""Backend: stores messages before it acknowledges them, then scores them.

    MQTT -> ingest (no Spark) -> segment log -> Spark source
         -> bronze (as received) -> silver (one row per reading) -> gold (levels, ids)

`ingest` and `score` are separate processes that share one data folder. Analysts read
the tables without Spark by `backend_spark.open_tables(folder)`, and plot them with
`backend_spark.plots`.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - signature of PEP 562
    """Import `open_tables` on first use, so that the CLI starts without Arrow."""
    if name == "open_tables":
        return import_module("backend_spark.tables.reader").open_tables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

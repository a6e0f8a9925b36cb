"""Backend: stores messages before it acknowledges them, then scores them.

    MQTT -> ingest (no Spark) -> segment log -> Spark source
         -> bronze (as received) -> silver (one row per reading) -> gold (levels, ids)

`ingest` and `score` are separate processes that share one data folder. Analysts read
the tables without Spark by `backend_spark.open_tables(folder)`, by SQL with
`backend_spark.open_sql(folder)`, and plot them with `backend_spark.plots`.
"""

from importlib import import_module
from typing import Any

_OPENERS = {
    "open_sql": "backend_spark.exports.sql",
    "open_tables": "backend_spark.tables.reader",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - signature of PEP 562
    """Import the openers on first use, so that the CLI starts without Arrow."""
    if name in _OPENERS:
        return getattr(import_module(_OPENERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

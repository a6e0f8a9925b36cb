"""Composition of ``backend-spark forecast``."""

import time
from pathlib import Path

from backend_spark.config import TABLES_FOLDER, Settings
from backend_spark.forecast.load import Loader


def loader(settings: Settings, *, as_issued: bool) -> Loader:
    """A loader for the tables of the settings, by this machine's clock."""
    tables = Path(settings.backend.data) / TABLES_FOLDER
    return Loader(tables, settings.keep, time.time(), as_issued)

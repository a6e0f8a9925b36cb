"""Retention by age: rows older than the settings allow go out of their tables."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from backend_spark.keeping import KeepSettings
from backend_spark.sinks.commits import delete_rows, time_literal

log = logging.getLogger(__name__)

EVERY_S: Final = 6 * 3600.0
"""Time between two trims of a running process."""

DAY_US: Final = 86_400 * 1_000_000

GOLD: Final = frozenset({"levels", "sensors", "revisions", "sensor_revisions"})
"""Tables by the time of a step; the others go by receipt."""


def trim(
    tables: Path, names: Iterable[str], keep: KeepSettings, now_s: float
) -> dict[str, int]:
    """Delete what is too old; the rows that went, by table.

    Files go with `vacuum`, a day later: until then an older version can be read.

    Args:
        tables: Folder of the tables.
        names: Those that the caller alone writes.
        keep: For how long.
        now_s: Unix time.
    """
    gone = {}
    for name in names:
        days = keep.days(name)
        if days:
            column = "at" if name in GOLD else "received_at"
            before_us = round(now_s * 1_000_000) - days * DAY_US
            predicate = f"{column} < {time_literal(before_us)}"
            gone[name] = delete_rows(tables / name, predicate)
            log.info("%s: %d rows older than %d days", name, gone[name], days)
    return gone

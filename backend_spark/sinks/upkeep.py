"""Keeping tables quick to read: many small files into few, old files away.

A batch a second makes 86,400 files a day in each table; reading a cell's history
opens every file that may hold it.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from backend_spark.sinks.commits import sync_version

log = logging.getLogger(__name__)

COMPACT_EVERY: Final = 200
"""Batches between two compactions."""

VACUUM_EVERY: Final = 5000
KEEP_H: Final = 7 * 24
"""Files out of use stay so long, for readers of an older version."""


def keep_up(paths: Iterable[Path], batch_id: int) -> None:
    """Do what is due after a batch; most batches have nothing due."""
    for path in paths:
        if batch_id % COMPACT_EVERY == COMPACT_EVERY - 1:
            compact(path)
        if batch_id % VACUUM_EVERY == VACUUM_EVERY - 1:
            gone = DeltaTable(str(path)).vacuum(KEEP_H, dry_run=False)
            log.info("%s: removed %d old files", path.name, len(gone))


def compact(path: Path) -> None:
    """Put the small files of a table together; readers notice nothing."""
    table = DeltaTable(str(path))
    before = table.version()
    table.optimize.compact()
    after = DeltaTable(str(path)).version()
    if after != before:
        sync_version(path, after)

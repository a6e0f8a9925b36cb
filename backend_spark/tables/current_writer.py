"""Writer of the table ``current``: stores what `current.read_current` computes.

The rows and the version of gold that they rest on are one commit, which replaces the
file before. After a crash between a commit of gold and this one the table is older than
gold, and the next call adds the difference; so does every reader meanwhile.
"""

from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from backend_spark.tables.current import GOLD_COMMITTED, GOLD_VERSION, read_current
from backend_spark.tables.delta_writer import commit_files, create_tables, write_file
from backend_spark.tables.schemas import CURRENT
from backend_spark.tables.store import Folder, file_names, open_table

TABLE: Final = "current"
MAX_BEHIND: Final = 100
"""Versions of gold without new rows after which the version is stored anyway, so that
readers need not read their commits."""


def renew_current(tables: Folder) -> bool:
    """Bring the table up to the newest version of gold; idempotent.

    Only the writer of gold may call it.

    Args:
        tables: Folder of the tables.

    Returns:
        Whether the table was written.
    """
    table = _open_table(tables)
    found = read_current(tables)
    gold, stored = found.gold, found.stored
    if gold is None or stored == gold:
        return False
    is_near = stored is not None and gold.number - stored.number < MAX_BEHIND
    if found.is_stored and is_near:
        return False
    path = tables / TABLE
    versions = ((GOLD_VERSION, gold.number), (GOLD_COMMITTED, gold.committed_ms))
    properties = CommitProperties(
        app_transactions=[Transaction(app, number) for app, number in versions]
    )
    if found.is_stored:
        commit_files(path, [], properties, read=table)
        return True
    removed = file_names(table)
    files = [write_file(path, found.rows, CURRENT)] if found.rows.num_rows else []
    commit_files(path, files, properties, removed, table)
    return True


def _open_table(tables: Folder) -> DeltaTable:
    """Open the table; a new one if there is none, or its log is damaged."""
    path = tables / TABLE
    try:
        return open_table(path)
    except (DeltaError, OSError):
        create_tables(tables, [TABLE])
        return open_table(path)

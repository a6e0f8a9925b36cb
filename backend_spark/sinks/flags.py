"""Changing the flags of readings that are in silver already."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from backend_spark.sinks.commits import Once, sync_version

KEY = ("cell", "at", "node", "boot", "seq", "name")


def reflag(path: Path, flags: pa.Table, once: Once) -> None:
    """Give readings of silver other flags, once per batch.

    Args:
        path: Folder of silver.
        flags: schemas.FLAGS, one row a reading.
        once: The batch; silver knows its readings under it already, so that the
            flags go by a name of their own.
    """
    table = DeltaTable(str(path))
    once = replace(once, app_id=f"{once.app_id}-flags")
    if not flags.num_rows or once.is_done(table):
        return
    table.merge(
        flags,
        predicate=" AND ".join(f"target.{key} = source.{key}" for key in KEY),
        source_alias="source",
        target_alias="target",
        streamed_exec=False,
        commit_properties=once.properties(),
    ).when_matched_update({
        "flag": "source.flag",
        "flag_why": "source.flag_why",
    }).execute()
    sync_version(path, DeltaTable(str(path)).version())

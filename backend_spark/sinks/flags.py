"""Changing the flags of readings that are in silver already."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from backend_spark.sinks.commits import sync_version

KEY = ("cell", "at", "node", "boot", "seq", "name")


def reflag(path: Path, flags: pa.Table) -> None:
    """Give readings of silver other flags: the same again changes none.

    Args:
        path: Folder of silver.
        flags: schemas.FLAGS, one row a reading.
    """
    if not flags.num_rows:
        return
    DeltaTable(str(path)).merge(
        flags,
        predicate=" AND ".join(f"target.{key} = source.{key}" for key in KEY),
        source_alias="source",
        target_alias="target",
        streamed_exec=False,
    ).when_matched_update({
        "flag": "source.flag",
        "flag_why": "source.flag_why",
    }).execute()
    sync_version(path, DeltaTable(str(path)).version())

"""Changing the flags of readings that are in silver already."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from backend_spark.schemas import SILVER, conform
from backend_spark.sinks.commits import commit_files
from backend_spark.sinks.parts import write_groups


def reflag(path: Path, flags: pa.Table) -> None:
    """Give readings of silver other flags, each file that holds one written anew.

    A merge would look for the readings by their names, in every file again for each
    lot of cells; whoever read them knows where they are.

    Args:
        path: Folder of silver.
        flags: schemas.FLAGS, one row a reading of the table's newest version.
    """
    if not flags.num_rows:
        return
    parts, gone = [], []
    for file in pc.unique(flags["file"]).to_pylist():
        ours = flags.filter(pc.equal(flags["file"], file)).sort_by("row")
        parts.append(write_groups(path, _reflagged(path / file, ours), SILVER))
        gone.append(file)
    commit_files(DeltaTable(str(path)), path, parts, gone=gone)


def _reflagged(file: Path, flags: pa.Table) -> Iterator[pa.Table]:
    places = flags["row"].to_numpy()
    first = 0
    with pq.ParquetFile(file) as parquet:
        for number in range(parquet.num_row_groups):
            rows = conform(parquet.read_row_group(number), SILVER)
            begin, end = np.searchsorted(places, (first, first + rows.num_rows))
            if begin < end:
                ours = flags.slice(begin, end - begin)
                rows = _changed(rows, ours, places[begin:end] - first)
            yield rows
            first += rows.num_rows


def _changed(rows: pa.Table, flags: pa.Table, places: "np.ndarray") -> pa.Table:
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[places] = True
    for name in ("flag", "flag_why"):
        old, new = rows[name].combine_chunks(), flags[name].combine_chunks()
        changed = pc.replace_with_mask(old, pa.array(mask), new)
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), changed)
    return rows

"""A Delta table as a pyarrow dataset in which every filter finds its rows.

delta-rs's own ``to_pyarrow_dataset`` (1.6.6) says of a column without statistics that
it is at least and at most null, so that Arrow passes over the whole file for any
filter on that column: no row of a node, no level of 4 or more. Here a file says only
what its statistics say.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs

KNOWN: Final = ("cell", "at", "received_at", "batch_id")
"""Columns by which a file can be ruled out. Longer texts may be cut in statistics."""

TOLD: Final = {"path"} | {
    f"{what}.{name}" for what in ("min", "max", "null_count") for name in KNOWN
}
"""Of what the log says of a file."""

ROUNDED: Final = timedelta(milliseconds=1)
"""Statistics tell times in milliseconds."""


def dataset_of(table: DeltaTable, folder: str) -> ds.FileSystemDataset:
    """Rows of a table at the version that was opened.

    Args:
        table: Opened.
        folder: Where its files are, as an absolute path.
    """
    # The default file system runs in Python, under threads of Arrow that outlive
    # the interpreter: one reader in four ended with "Aborted" after its work.
    here = fs.SubTreeFileSystem(folder, fs.LocalFileSystem())
    parquet = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
    )
    schema = pa.schema(table.schema().to_arrow(as_large_types=False))
    actions = pa.table(table.get_add_actions(flatten=True))
    wanted = [name for name in actions.column_names if name in TOLD]
    fragments = [
        parquet.make_fragment(file["path"], here, partition_expression=_says(file))
        for file in actions.select(wanted).to_pylist()
    ]
    return ds.FileSystemDataset(fragments, schema, parquet, here)


def _says(file: dict[str, Any]) -> pc.Expression:
    """What holds for every row of a file."""
    whole = pc.scalar(True)
    for part in _ranges(file):
        whole &= part
    return whole


def _ranges(file: dict[str, Any]) -> Iterator[pc.Expression]:
    for name in KNOWN:
        low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
        # A row without a value is in no range.
        if low is None or high is None or file.get(f"null_count.{name}") != 0:
            continue
        if isinstance(high, str | int):
            yield (pc.field(name) >= low) & (pc.field(name) <= high)
        else:
            yield (pc.field(name) >= _moment(low)) & (
                pc.field(name) <= _moment(high + ROUNDED)
            )


def _moment(value: Any) -> pa.Scalar:  # noqa: ANN401 - of pyarrow's own
    return pa.scalar(value, pa.timestamp("us", tz="UTC"))

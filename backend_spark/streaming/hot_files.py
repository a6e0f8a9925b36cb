"""Files of hot states: a cache beside the tables, which a job starts without.

Executors write a file for each share of cells, and read it in the next pass. The job
knows the file of each cell; a file that no cell needs is deleted.
"""

import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from backend_spark.scoring.hot_state import HotState, decode_hot
from service_runtime.files import make_folder

_SCHEMA = pa.schema([pa.field("cell", pa.string()), pa.field("body", pa.binary())])


def write_hot_states(folder: Path, bodies: Mapping[str, bytes]) -> str:
    """Write encoded hot states by cell; returns the name of the file."""
    file = folder / f"{uuid.uuid4()}.arrow"
    rows = pa.table([list(bodies), list(bodies.values())], schema=_SCHEMA)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_file(sink, _SCHEMA, options=options) as writer,
    ):
        writer.write_table(rows)
    return file.name


def read_hot_states(folder: Path, files: Mapping[str, str]) -> dict[str, HotState]:
    """Read the hot states of some cells.

    Args:
        folder: Folder of the files.
        files: File of each cell.
    """
    found: dict[str, HotState] = {}
    for name in sorted(set(files.values())):
        with pa.OSFile(str(folder / name)) as source:
            rows = pa.ipc.open_file(source).read_all()
        for place, cell in enumerate(rows["cell"].to_pylist()):
            if files.get(cell) == name:
                found[cell] = decode_hot(rows["body"][place].as_buffer())
    return found


class HotFiles:
    """File of the newest hot state of each cell.

    Changes count from the end of a pass: a pass that ends early is repeated from the
    states before it.

    Args:
        folder: Folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, str] = {}
        self._changes: dict[str, str | None] = {}

    def clear(self) -> None:
        """Delete the files of an earlier job."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._files, self._changes = {}, {}

    def begin(self) -> None:
        """Begin a pass; the changes of one that ended early are discarded."""
        make_folder(self.folder)
        self._changes = {}

    def of_cells(self, cells: Iterable[str]) -> dict[str, str]:
        """Files of those cells that have a hot state."""
        return {cell: self._files[cell] for cell in cells if cell in self._files}

    def __contains__(self, cell: str) -> bool:
        """Whether a cell has a hot state."""
        return cell in self._files

    def change(self, cells: Iterable[str], file: str | None) -> None:
        """Note the file of some cells from the end of the pass; None for no state."""
        self._changes.update(dict.fromkeys(cells, file))

    def end(self) -> None:
        """End a pass, and delete the files that no cell needs."""
        for cell, file in self._changes.items():
            if file is None:
                self._files.pop(cell, None)
            else:
                self._files[cell] = file
        self._changes = {}
        needed = set(self._files.values())
        for path in self.folder.iterdir():
            if path.name not in needed:
                path.unlink()

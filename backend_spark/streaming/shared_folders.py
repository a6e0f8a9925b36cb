"""Check that executors see the folders of the job, and not others at the same paths.

An executor on a machine without the shared folder would write files of tables to its
own disk, and the job would commit their names. A copy of the folder would pass a check
of what is in it, so each job writes a mark that no copy has.
"""

import socket
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import SparkSession

from backend_spark.errors import UnsharedFolderError
from backend_spark.tables.store import Folder, has_file, open_files, write_text

MARK: Final = ".job-"
"""Beginning of the name of a mark, an empty file."""


@dataclass(frozen=True)
class SharedFolders:
    """Folders that all executors must see as the job does.

    Attributes:
        places: The folders.
        mark: Name of a file in each of them.
    """

    places: tuple[Folder, ...]
    mark: str

    @classmethod
    def create(cls, places: Iterable[Folder]) -> "SharedFolders":
        """Mark folders."""
        shared = cls(tuple(places), f"{MARK}{uuid.uuid4()}")
        for place in shared.places:
            write_text(place, shared.mark, "")
        return shared

    def delete_other_marks(self) -> None:
        """Delete the marks of earlier jobs."""
        for place in self.places:
            files = open_files(place)
            for info in files.get_file_info(fs.FileSelector("")):
                if info.base_name.startswith(MARK) and info.base_name != self.mark:
                    files.delete_file(info.path)

    def require(self) -> None:
        """Check that this process sees them; once in each process.

        Raises:
            UnsharedFolderError: It does not see the mark.
        """
        _require(self)

    def require_on_executors(self, session: SparkSession) -> None:
        """Check the executors that Spark has now; later ones check in their tasks.

        Raises:
            UnsharedFolderError: An executor does not see the mark.
        """

        def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                try:
                    self.require()
                except UnsharedFolderError as error:
                    found = pa.array([[error.place, error.machine, error.cause]])
                    yield pa.RecordBatch.from_arrays([found], ["problem"])

        tasks = session.sparkContext.defaultParallelism
        ids = session.range(0, tasks, 1, tasks)
        problems = ids.mapInArrow(check, "problem array<string>").toArrow()["problem"]
        for problem in problems.to_pylist():
            raise UnsharedFolderError(*problem)


@cache
def _require(shared: SharedFolders) -> None:
    for place in shared.places:
        try:
            cause = "" if has_file(place, shared.mark) else f"{shared.mark} is missing"
        except OSError as error:
            cause = f"{type(error).__name__}: {error}"
        if cause:
            raise UnsharedFolderError(str(place), socket.gethostname(), cause)

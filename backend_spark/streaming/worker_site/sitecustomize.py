"""Start of Spark's Python processes: imports pyspark from where it is installed.

Spark puts archives of pyspark and py4j first on the path of each Python process. Python
compiles the modules of an archive at each start: 1.5 s of CPU time instead of 0.5
before a data source answers, for which Spark waits ten seconds. `streaming.session`
puts this folder on the path, and Python imports this file at its start.
"""
# ruff: noqa: INP001 - a folder on the path, not a package

import sys
from pathlib import Path

LIBRARY = "pyspark/python/lib"
"""Folder of the archives in an installed pyspark."""


def _is_installed_too(path: str) -> bool:
    """Whether a path is an archive of a pyspark whose own folder is on the path."""
    folder, _, name = path.rpartition("/")
    is_archive = name.endswith(".zip") and folder.endswith(LIBRARY)
    return is_archive and str(Path(path).parents[3]) in sys.path


sys.path[:] = [path for path in sys.path if not _is_installed_too(path)]

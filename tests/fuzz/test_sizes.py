"""A file that is too large is refused by its size, before it is read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.file_readers import ASSUMED, NOW_S, amedas

from backend_spark.console import auth
from backend_spark.criteria import jma, tables
from backend_spark.forecast import files


@pytest.mark.parametrize(
    ("read", "most_bytes"),
    [
        (lambda path: tables.read_criteria(path, ASSUMED), tables.MAX_BYTES),
        (amedas, jma.MAX_STATIONS_BYTES),
        (lambda path: files.read_forecast(path, NOW_S), files.MAX_BYTES),
        (auth.read_accounts, auth.MAX_FILE_BYTES),
    ],
)
def test_file_that_is_too_large_is_refused_by_its_size(
    read: Callable[[Path], object], most_bytes: int, tmp_path: Path
) -> None:
    """A film on the wrong path must not fill the memory; this one has no blocks."""
    path = tmp_path / "film.csv"
    with path.open("wb") as film:
        film.truncate(most_bytes + 1)
    with pytest.raises(ValueError, match=f"at most {most_bytes} bytes"):
        read(path)

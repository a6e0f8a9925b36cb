"""Files that are too large are refused by their size, before they are read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.file_readers import ASSUMED, NOW_S, amedas

from backend_spark import forecast, rain_table
from backend_spark.console import accounts
from backend_spark.criteria import published, tables


@pytest.mark.parametrize(
    ("read", "max_bytes"),
    [
        (lambda path: tables.read_criteria(path, ASSUMED), published.MAX_BYTES),
        (amedas, rain_table.MAX_STATIONS_BYTES),
        (lambda path: forecast.read_forecast(path, NOW_S), forecast.MAX_BYTES),
        (accounts.read_accounts, accounts.MAX_FILE_BYTES),
    ],
)
def test_file_that_is_too_large_is_refused_by_its_size(
    read: Callable[[Path], object], max_bytes: int, tmp_path: Path
) -> None:
    """A video file at the path must not fill the memory; the test file is sparse."""
    path = tmp_path / "large.csv"
    with path.open("wb") as large:
        large.truncate(max_bytes + 1)
    with pytest.raises(ValueError, match=f"at most {max_bytes} bytes"):
        read(path)

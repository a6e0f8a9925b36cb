"""Real measurements, where they lie beside the project; never copied into it."""

from pathlib import Path

import pytest

SEATTLE = Path(__file__).parents[2] / "shared" / "data" / "usgs_mukilteo_seattle"


def seattle(name: str) -> Path:
    """A file of the Mukilteo and Seattle data; the test is skipped without it."""
    path = SEATTLE / name
    if not path.exists():
        pytest.skip(f"the measurements are not beside the project: {path.name}")
    return path

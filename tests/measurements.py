"""Real measurements, stored outside the repository."""

from pathlib import Path

import pytest

SEATTLE = Path(__file__).parents[2] / "shared" / "data" / "usgs_mukilteo_seattle"


def seattle(name: str) -> Path:
    """A file of the Mukilteo and Seattle data; skips the test if it is missing."""
    path = SEATTLE / name
    if not path.exists():
        pytest.skip(f"the measurements are not beside the project: {path.name}")
    return path

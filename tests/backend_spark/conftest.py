"""Fixtures of the backend's tests: a data folder and a Spark session."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backend_spark.config import BackendSettings, read_settings


@dataclass(frozen=True)
class Data:
    """A data folder and its settings.

    Attributes:
        folder: ``backend.data``.
        config: The settings file.
        settings: The parsed settings.
    """

    folder: Path
    config: Path
    settings: BackendSettings


@pytest.fixture
def make_data(tmp_path: Path) -> Callable[[str], Data]:
    """Function that makes an empty data folder with extra lines of settings."""

    def make(more: str = "") -> Data:
        config = tmp_path / "backend.toml"
        folder = tmp_path / "data"
        config.write_text(
            f'[backend]\ndata = "{folder}"\n[score]\nmaster = "local[2]"\n'
            f"max_segments_per_batch = 3\n{more}\n",
            encoding="utf-8",
        )
        return Data(folder, config, read_settings(config))

    return make


@pytest.fixture(scope="session")
def spark(quick_java: None) -> Iterator[Any]:
    """One Spark session for all tests that need one."""
    from backend_spark.streaming.session import open_session  # noqa: PLC0415 - slow to import

    session = open_session("local[2]")
    yield session
    session.stop()

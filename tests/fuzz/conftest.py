"""Fuzz tests run without log: pytest keeps each record, 800 MB for a million cases."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _without_log() -> Iterator[None]:
    """Readers log what they refuse."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)

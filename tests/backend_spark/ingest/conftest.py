"""Fixtures of the ingester's tests."""

from collections.abc import Iterator

import pytest
from conftest import Broker
from ingesting import Sender


@pytest.fixture
def sender(broker: Broker) -> Iterator[Sender]:
    """A node on the same broker."""
    sender = Sender(broker)
    yield sender
    sender.connection.stop()

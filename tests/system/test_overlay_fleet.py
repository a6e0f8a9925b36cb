"""Gateways as processes on several brokers; one is killed during publication."""

from pathlib import Path

import pytest

from experiments.bench.fleet import Fleet
from experiments.overlay_live import gather, kill_in_the_middle

pytestmark = [pytest.mark.broker, pytest.mark.long]


def test_every_live_gateway_receives_every_emergency_once_despite_a_kill(
    tmp_path: Path,
) -> None:
    """The ring repairs itself; the publisher has no information about the kill."""
    with Fleet(8, 3, tmp_path) as fleet:
        gather(fleet)
        result = kill_in_the_middle(fleet, seconds=8.0)

    assert (result.killed, result.missing, result.doubled) == (1, 0, 0)
    assert result.messages > 1

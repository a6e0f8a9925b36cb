"""Gateways as processes on several brokers, some of them killed in the middle."""

from pathlib import Path

import pytest

from experiments.bench.fleet import Fleet
from experiments.overlay_live import gather, kill_in_the_middle

pytestmark = [pytest.mark.broker, pytest.mark.long]


def test_every_live_gateway_hears_every_emergency_once_over_a_kill(
    tmp_path: Path,
) -> None:
    """The ring heals, and nobody is missed although the publisher knew nothing."""
    with Fleet(8, 3, tmp_path) as fleet:
        gather(fleet)
        told = kill_in_the_middle(fleet, seconds=8.0)

    assert (told.killed, told.missing, told.doubled) == (1, 0, 0)
    assert told.messages > 1

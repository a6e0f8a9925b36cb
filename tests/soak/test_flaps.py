"""A link that is cut repeatedly, also in the middle of a packet."""

import random
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import wait_until
from soak.conftest import Scale
from soak.relay import Relay
from soak.rig import FED, Rig
from soak.witness import Witness

pytestmark = [pytest.mark.system, pytest.mark.broker]

BACK_WITHIN_S = 60.0
MAX_BYTES_TO_CUT = 3000


@pytest.fixture
def relay(rig: Rig) -> Iterator[Relay]:
    """The link between the node and the gateway's broker."""
    made = Relay(rig.local.port)
    rig.gateway_url = f"mqtt://127.0.0.1:{made.port}"
    yield made
    made.close()


def flap(relay: Relay, chance: random.Random) -> float:
    """Cut and restore the link; returns the seconds until the node reconnected."""
    time.sleep(chance.uniform(0.0, 0.5))
    if chance.random() < 0.5:
        relay.cut_after(chance.randint(1, MAX_BYTES_TO_CUT), timeout_s=5.0)
    else:
        relay.cut()
    time.sleep(chance.uniform(0.0, 0.3))
    before, restored_s = relay.connections, time.monotonic()
    relay.restore()
    wait_until(lambda: relay.connections > before, BACK_WITHIN_S)
    return time.monotonic() - restored_s


def test_flapping_link_loses_and_doubles_nothing(
    rig: Rig,
    relay: Relay,
    chance: random.Random,
    scale: Scale,
    report: Callable[..., None],
) -> None:
    """Wherever a packet is cut, each message is in the archive once."""
    rig.write_fed()
    rig.start_backbone()
    rig.start_nodes(FED)
    witness = Witness(rig)

    away_s = [flap(relay, chance) for _ in range(scale.flaps)]
    verdict = witness.drain(120)

    report(flaps=scale.flaps, longest_away_s=max(away_s), verdict=verdict)
    assert (verdict.lost, verdict.doubled, verdict.reused) == ({}, [], [])
    assert verdict.gateway_took == verdict.gateway_ids == verdict.arrived
    assert verdict.put > 5 * scale.flaps

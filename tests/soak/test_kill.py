"""Kill -9 at random moments: the promises hold for every message."""

import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from soak.conftest import Scale
from soak.rig import AGENT, DISTRIBUTED, FED, GATEWAY, LOCAL, NODES, Rig
from soak.witness import WINDOW_S, Verdict, Witness

pytestmark = [pytest.mark.system, pytest.mark.broker]

VICTIMS = (AGENT, FED, GATEWAY, LOCAL, DISTRIBUTED)
CATCH_UP_EVERY = 25
CATCH_UP_S = 180.0
ROUND_S = 2.5
TWO_SHARE = 0.2


def crash(rig: Rig, chance: random.Random, rounds: int, witness: Witness) -> None:
    """Kill and restart at random moments; every victim equally often.

    One round of five kills two programs at once.
    """
    deck: list[str] = []
    for number in range(1, rounds + 1):
        deck = deck or chance.sample(VICTIMS, len(VICTIMS))
        victims = {deck.pop()} | set(
            chance.sample(VICTIMS, chance.random() < TWO_SHARE)
        )
        time.sleep(chance.uniform(0.1, 2.0))
        for victim in victims:
            rig.kill(victim)
        time.sleep(chance.choice((0.0, chance.uniform(0.0, 1.0))))
        for victim in victims:
            rig.start(victim)
        if number % CATCH_UP_EVERY == 0:
            witness.catch_up(CATCH_UP_S)


def cut_off_and_kill(rig: Rig, chance: random.Random) -> None:
    """Kill a node while its gateway is unreachable and its queue is growing."""
    rig.kill(LOCAL)
    time.sleep(WINDOW_S * chance.uniform(0.7, 1.3))
    rig.kill(FED)
    rig.start(FED)
    rig.start(LOCAL)


def kill_broker_with_undelivered_messages(rig: Rig) -> None:
    """Kill a broker that has acknowledged messages its gateway did not receive."""
    rig.kill(GATEWAY)
    time.sleep(1.0)
    rig.kill(LOCAL)
    rig.start(LOCAL)
    rig.start(GATEWAY)


def assert_promises(verdict: Verdict) -> None:
    assert verdict.unexcused == []
    assert sum(verdict.lost.values()) <= verdict.lost_at_most
    assert (verdict.doubled, verdict.reused) == ([], [])
    assert verdict.gateway_took == verdict.gateway_ids == verdict.arrived


def test_kills_lose_and_double_nothing_that_was_promised(
    rig: Rig, chance: random.Random, scale: Scale, report: Callable[..., None]
) -> None:
    """Kills of agents, gateway and brokers lose only what the commit window allows.

    Of priority 4 and 5 every message whose `put` returned is in the archive. Of 1 to 3
    only those put within the window before a kill of their node may be missing, and
    no more than the nodes' queues report. No id is in the archive twice or with the
    content of another, and the gateway's queue accepted each id once.
    """
    rig.write_storm(scale.rounds * ROUND_S + 10)
    rig.write_fed()
    rig.start_backbone()
    rig.start_nodes(*NODES)
    witness = Witness(rig)

    kill_broker_with_undelivered_messages(rig)
    cut_off_and_kill(rig, chance)
    crash(rig, chance, scale.rounds, witness)
    verdict = witness.drain(CATCH_UP_S)

    kills = Counter(kill.victim for kill in rig.kills)
    report(rounds=scale.rounds, kills=kills, verdict=verdict)
    assert_promises(verdict)
    assert verdict.put > 10 * scale.rounds

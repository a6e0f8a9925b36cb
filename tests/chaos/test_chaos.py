"""Everything breaks by a plan of chance, and an oracle looks what became of it.

``CHAOS_SECONDS`` is how long faults happen, ``CHAOS_SEED`` repeats them, and
``CHAOS_BOUND_S`` is the longest that an urgent message may take with a path.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos.house import MANAGER, PATH, SCORE, House
from chaos.oracle import Judgement, Seen, Sent, judge
from chaos.report import table
from chaos.schedule import plan
from conftest import Broker
from soak.disk import mounted
from soak.rig import AGENT, FED, GATEWAY, NODES
from soak.witness import Witness

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.spark]

SHORT_S = 40.0
SPARK_FROM_S = 300.0
"""In a shorter run Spark reads the log once, at the end."""

BOUND_S = 120.0
"""A receiver that lost its broker again and again waits for up to a minute, and a
program needs its time to start on a busy machine."""

DRAIN_S = 240.0


@pytest.fixture
def seed() -> int:
    """Of the plan; printed, so that it can be set."""
    made = int(os.environ.get("CHAOS_SEED") or time.time_ns() % 1_000_000)
    sys.stdout.write(f"CHAOS_SEED={made}\n")
    return made


@pytest.fixture
def lasts_s() -> float:
    """How long faults happen."""
    return float(os.environ.get("CHAOS_SECONDS") or SHORT_S)


@pytest.fixture
def house(
    tmp_path: Path,
    make_broker: Callable[[], Broker],
    lasts_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    """The whole system, running."""
    monkeypatch.setenv("GPIOZERO_PIN_FACTORY", "mock")
    with mounted(tmp_path / "disk", "8m") as disk:
        made = House(
            tmp_path,
            make_broker(),
            make_broker(),
            directory=make_broker(),
            disk=disk,
            has_spark=lasts_s >= SPARK_FROM_S,
        )
        try:
            made.write_nodes(lasts_s)
            made.start(MANAGER)
            made.start_backbone()
            if made.has_spark:
                made.start(SCORE)
            made.start_nodes(*NODES)
            yield made
        finally:
            made.close()


def look(house: House, witness: Witness, scored: list[str] | None) -> Judgement:
    """Ask the oracle about what is known now."""
    sent = [
        Sent(note.id, name, note.priority, note.at_s)
        for name, ledger in witness.ledgers.items()
        for note in ledger.notes.values()
    ]
    lost = sum(house.lost_at_most(name) for name in NODES) if scored is not None else 0
    arrivals = witness.archive.on_disk_s
    seen = Seen(sent, arrivals, scored, house.away, PATH, lost)
    return judge(seen, float(os.environ.get("CHAOS_BOUND_S") or BOUND_S))


def drain(house: House, witness: Witness) -> None:
    """Let everything arrive that will, then end the nodes and the gateway."""
    house.rest()
    until_s = time.monotonic() + DRAIN_S
    while time.monotonic() < until_s:
        house.bring_back()
        witness.missing()
        if not look(house, witness, None).unexcused and not house.held(AGENT):
            break
        time.sleep(0.5)
    house.stop(*NODES)
    while house.held(GATEWAY) and time.monotonic() < until_s:
        time.sleep(0.2)
    house.stop()
    witness.missing()
    witness.close()


def test_chaos_breaks_no_promise(house: House, seed: int, lasts_s: float) -> None:
    """Kills, stops, cuts, a partition, jumping clocks and a full disk together.

    Of priority 4 and 5 nothing is lost, of 1 to 3 what the commit window allows and
    no more than the queues say; nothing is twice in the archive or in the table of
    messages; nothing urgent is overtaken or late while it had a path.
    """
    witness = Witness(house)
    acts = plan(seed, lasts_s, house.faults)

    house.play(acts, witness.archive.follow)
    drain(house, witness)
    found = look(house, witness, house.score())

    more = {
        "came back by themselves": house.returned or "none",
        "refused on a full disk": dict(witness.ledgers[FED].refused),
        "altered": witness.altered(),
    }
    sys.stdout.write(table(seed, acts, found, more))
    assert found.broken == []
    assert witness.altered() == []
    assert found.judged > 0
    assert found.sent.keys() == {1, 2, 3, 4, 5}

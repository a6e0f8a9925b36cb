"""Everything breaks by a plan of chance, and an oracle looks what became of it.

``CHAOS_SECONDS`` is how long faults happen, ``CHAOS_SEED`` repeats them, and
``CHAOS_BOUND_S`` is the longest that an urgent message may take with a path.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from chaos.house import (
    BESIDE,
    GATEWAY_2,
    MANAGER,
    MANAGER_2,
    PATH,
    SCORE,
    House,
)
from chaos.oracle import Away, Hop, Judgement, Seen, Sent, judge
from chaos.report import table
from chaos.schedule import plan
from chaos.taps import Taps
from chaos.trouble import Trouble
from chaos.words import Words
from conftest import Broker
from sizes import sizes
from soak.disk import mounted
from soak.rig import AGENT, FED, GATEWAY, INGEST, NODES
from soak.witness import Witness

from spatial_mqtt.directory import BrokerInfo

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.spark]

SHORT_S = 25.0
"""The first fault is a long one, of up to 20 s: less time would have none."""
LONG_S = 150.0
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


@pytest.fixture(params=sizes(SHORT_S, LONG_S))
def lasts_s(request: pytest.FixtureRequest) -> float:
    """How long faults happen."""
    return float(os.environ.get("CHAOS_SECONDS") or request.param)


@pytest.fixture
def disks(tmp_path: Path, lasts_s: float) -> Iterator[dict[str, Path]]:
    """Small disks for a node, a gateway and the ingester; none without the right."""
    sizes = {"disk": 8, GATEWAY: 48, "backend": int(128 + lasts_s / 3)}
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(mounted(tmp_path / folder, f"{megabytes}m"))
            for folder, megabytes in sizes.items()
        ]
        found = zip((FED, GATEWAY, INGEST), made, strict=True)
        yield {part: disk for part, disk in found if disk is not None}


@pytest.fixture
def house(
    tmp_path: Path,
    make_broker: Callable[[], Broker],
    disks: dict[str, Path],
    lasts_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    """The whole system, running."""
    monkeypatch.setenv("GPIOZERO_PIN_FACTORY", "mock")
    made = House(
        tmp_path,
        make_broker(),
        make_broker(),
        local_2=make_broker(),
        directory=make_broker(),
        directory_2=make_broker(),
        disks=disks,
        has_spark=lasts_s >= SPARK_FROM_S,
    )
    try:
        made.write_nodes(lasts_s)
        for name in (MANAGER, MANAGER_2, GATEWAY_2):
            made.start(name)
        made.start_backbone()
        if made.has_spark:
            made.start(SCORE)
        made.start_nodes(*NODES)
        yield made
    finally:
        made.close()


@pytest.fixture
def words(house: House) -> Iterator[Words]:
    """What administrators say to either Manager."""
    managers = {
        house.folder / MANAGER / "registry.json": house.directory.endpoint,
        house.folder / MANAGER_2 / "registry.json": house.directory_2.endpoint,
    }
    broker = house.distributed.endpoint
    made = Words(managers, BrokerInfo(broker.host, broker.port))
    yield made
    made.close()


@pytest.fixture
def taps(house: House) -> Iterator[Taps]:
    """Who listens at the brokers."""
    made = Taps(house)
    yield made
    made.close()


def look(
    house: House,
    away: Sequence[Away],
    witness: Witness,
    scored: list[str] | None = None,
    hops: Sequence[Hop] = (),
) -> Judgement:
    """Ask the oracle about what is known now."""
    sent = [
        Sent(note.id, name, note.priority, note.at_s)
        for name, ledger in witness.ledgers.items()
        for note in ledger.notes.values()
    ]
    lost = sum(house.lost_at_most(name) for name in NODES) if scored is not None else 0
    arrivals = witness.archive.on_disk_s
    seen = Seen(sent, arrivals, scored, away, PATH, lost, BESIDE, hops)
    return judge(seen, float(os.environ.get("CHAOS_BOUND_S") or BOUND_S))


def drain(house: House, away: Sequence[Away], witness: Witness) -> None:
    """Let everything arrive that will, then end the nodes and the gateways."""
    house.rest()
    until_s = time.monotonic() + DRAIN_S
    while time.monotonic() < until_s:
        house.bring_back()
        witness.missing()
        found = look(house, away, witness)
        if not found.unexcused and not house.exclusive(AGENT):
            break
        time.sleep(0.5)
    house.stop(*NODES)
    while house.held_by_gateways() and time.monotonic() < until_s:
        time.sleep(0.2)


def test_chaos_breaks_no_promise(
    house: House, words: Words, taps: Taps, seed: int, lasts_s: float
) -> None:
    """Everything that can break does, by a plan of chance, and much of it together.

    Of priority 4 and 5 nothing is lost, of 1 to 3 what the commit window allows and
    no more than the queues say; nothing is twice in the archive or in the table of
    messages; nothing urgent is overtaken, on no step of the way, or late while it had
    a path; what was said to Managers that were parted is known to both; and no
    program but Spark's ends by itself.
    """
    witness = Witness(house)
    trouble = Trouble(house, words)
    acts = plan(seed, lasts_s, house.faults)

    trouble.play(acts, witness.archive.follow)
    drain(house, trouble.away, witness)
    contradictions = words.contradictions()
    house.stop()
    witness.missing()
    witness.close()
    hops = taps.hops(witness)
    found = look(house, trouble.away, witness, house.score(), hops)

    more = {
        "came back by themselves": house.returned or "none",
        "refused on a full disk": dict(witness.ledgers[FED].refused),
        "words of administrators": f"{len(words.added)} and {len(words.removed)} back",
        "contradictions": contradictions,
        "altered": witness.altered(),
    }
    sys.stdout.write(table(seed, acts, found, more))
    assert found.broken == []
    assert contradictions == []
    assert witness.altered() == []
    assert {*house.returned} <= {SCORE}
    assert found.judged > 0
    assert found.judged_at > 0
    assert found.sent.keys() == {1, 2, 3, 4, 5}

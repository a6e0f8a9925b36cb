"""Injects random faults everywhere and checks the promises with an oracle.

``CHAOS_SECONDS`` sets how long faults are injected, ``CHAOS_SEED`` repeats them, and
``CHAOS_BOUND_S`` is the longest delay of an urgent message on an intact path.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from chaos.admin_changes import AdminChanges
from chaos.broker_recorders import BrokerRecorders
from chaos.fault_injector import FaultInjector
from chaos.oracle import Hop, Judgement, Observations, Outage, Sent, judge
from chaos.report import table
from chaos.schedule import plan
from chaos.whole_system import (
    ALTERNATIVES,
    GATEWAY_2,
    MANAGER,
    MANAGER_2,
    PATH,
    SCORE,
    WholeSystem,
)
from conftest import Broker
from soak.disk import mounted
from soak.rig import AGENT, FED, GATEWAY, INGEST, NODES
from soak.witness import Witness

from spatial_mqtt.directory import BrokerInfo

pytestmark = [
    pytest.mark.system,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.long,
]

LASTS_S = 150.0
"""The first fault lasts up to 20 s; a run of less than 25 s would have no fault."""
SPARK_FROM_S = 300.0
"""Minimum length of a run with Spark; in a shorter run it reads the log at the end."""

BOUND_S = 120.0
"""A receiver that lost its broker several times backs off for up to a minute, and a
program starts slowly on a busy machine."""

DRAIN_S = 240.0


@pytest.fixture
def seed() -> int:
    """Seed of the plan; printed, so that a run can be repeated."""
    made = int(os.environ.get("CHAOS_SEED") or time.time_ns() % 1_000_000)
    sys.stdout.write(f"CHAOS_SEED={made}\n")
    return made


@pytest.fixture
def lasts_s() -> float:
    """How long faults are injected."""
    return float(os.environ.get("CHAOS_SECONDS") or LASTS_S)


@pytest.fixture
def disks(tmp_path: Path, lasts_s: float) -> Iterator[dict[str, Path]]:
    """Small disks for a node, a gateway and the ingester; empty unless root."""
    sizes = {"disk": 8, GATEWAY: 48, "backend": int(128 + lasts_s / 3)}
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(mounted(tmp_path / folder, f"{megabytes}m"))
            for folder, megabytes in sizes.items()
        ]
        found = zip((FED, GATEWAY, INGEST), made, strict=True)
        yield {part: disk for part, disk in found if disk is not None}


@pytest.fixture
def system(
    tmp_path: Path,
    make_broker: Callable[[], Broker],
    disks: dict[str, Path],
    lasts_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[WholeSystem]:
    """The whole system, running."""
    monkeypatch.setenv("GPIOZERO_PIN_FACTORY", "mock")
    made = WholeSystem(
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
def changes(system: WholeSystem) -> Iterator[AdminChanges]:
    """Changes that administrators make at either Manager."""
    managers = {
        system.folder / MANAGER / "registry.json": system.directory.endpoint,
        system.folder / MANAGER_2 / "registry.json": system.directory_2.endpoint,
    }
    broker = system.distributed.endpoint
    made = AdminChanges(managers, BrokerInfo(broker.host, broker.port))
    yield made
    made.close()


@pytest.fixture
def recorders(system: WholeSystem) -> Iterator[BrokerRecorders]:
    """Recorders at the brokers."""
    made = BrokerRecorders(system)
    yield made
    made.close()


def assess(
    system: WholeSystem,
    outages: Sequence[Outage],
    witness: Witness,
    scored: list[str] | None = None,
    hops: Sequence[Hop] = (),
) -> Judgement:
    """Check what has been observed so far."""
    sent = [
        Sent(note.id, name, note.priority, note.at_s)
        for name, ledger in witness.ledgers.items()
        for note in ledger.notes.values()
    ]
    lost = sum(system.lost_at_most(name) for name in NODES) if scored is not None else 0
    arrivals = witness.archive.on_disk_s
    seen = Observations(sent, arrivals, scored, outages, PATH, lost, ALTERNATIVES, hops)
    return judge(seen, float(os.environ.get("CHAOS_BOUND_S") or BOUND_S))


def drain(system: WholeSystem, outages: Sequence[Outage], witness: Witness) -> None:
    """Wait until the messages have arrived, then stop the nodes and the gateways."""
    system.pause_nodes()
    until_s = time.monotonic() + DRAIN_S
    while time.monotonic() < until_s:
        system.bring_back()
        witness.missing()
        found = assess(system, outages, witness)
        if not found.unexcused and not system.count_queued(AGENT):
            break
        time.sleep(0.5)
    system.stop(*NODES)
    while system.count_in_gateways() and time.monotonic() < until_s:
        time.sleep(0.2)


def test_chaos_breaks_no_promise(
    system: WholeSystem,
    changes: AdminChanges,
    recorders: BrokerRecorders,
    seed: int,
    lasts_s: float,
) -> None:
    """Every kind of fault, at random times and overlapping.

    No message of priority 4 or 5 is lost; of 1 to 3 at most what the commit window
    allows, and no more than the queues report. The archive and the table of messages
    have no duplicates. No urgent message is overtaken on any hop, or late on an intact
    path. Changes made at partitioned Managers are known to both. Only the Spark job
    may exit by itself.
    """
    witness = Witness(system)
    injector = FaultInjector(system, changes)
    events = plan(seed, lasts_s, system.faults)

    injector.play(events, witness.archive.follow)
    drain(system, injector.outages, witness)
    contradictions = changes.contradictions()
    system.stop()
    witness.missing()
    witness.close()
    hops = recorders.hops(witness)
    found = assess(system, injector.outages, witness, system.score(), hops)

    more = {
        "restarted after an exit": system.returned or "none",
        "refused on a full disk": dict(witness.ledgers[FED].refused),
        "areas added, removed": f"{len(changes.added)}, {len(changes.removed)}",
        "contradictions": contradictions,
        "altered": witness.altered(),
    }
    sys.stdout.write(table(seed, events, found, more))
    assert found.broken == []
    assert contradictions == []
    assert witness.altered() == []
    assert {*system.returned} <= {SCORE}
    assert found.judged > 0
    assert found.judged_at > 0
    assert found.sent.keys() == {1, 2, 3, 4, 5}

"""A node with a full disk continues sending, accepts alarms, logs it and recovers."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from soak.disk import fill, mounted
from soak.rig import FED, LOCAL, Rig
from soak.witness import Note, Witness

from edge_agent.queue.base import Durability, MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue

pytestmark = [pytest.mark.system, pytest.mark.broker]

WITHIN_S = 30.0
TOP = 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes; needs root."""
    with mounted(tmp_path / "disk", "4m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        yield disk


def draft(priority: int) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: os.urandom(250))


class Watcher:
    """Follows the messages that the node puts and that arrive."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.witness = Witness(rig)
        self.ledger = self.witness.ledgers[FED]

    def wait_for_put(self, count: int, priority: int | None = None) -> list[Note]:
        """Wait until `count` more were put, of one priority or of any."""
        before = set(self._of(priority))
        wait_until(lambda: len(self._of(priority)) >= len(before) + count, WITHIN_S)
        return [n for i, n in self._of(priority).items() if i not in before]

    def wait_for_refusals(self, count: int) -> None:
        wait_until(lambda: self.ledger.refused.total() >= count, WITHIN_S)

    def _of(self, priority: int | None) -> dict[str, Note]:
        notes = dict(self.ledger.notes)
        return {i: n for i, n in notes.items() if priority in {None, n.priority}}


def test_full_disk_stops_neither_alarms_nor_the_uplink(
    small_disk: Path, rig: Rig, report: Callable[..., None]
) -> None:
    """No accepted message is lost; refusals are reported to the caller."""
    rig.write_fed(queue=small_disk / "q.db")
    rig.start_backbone()
    rig.start_nodes(FED)
    watcher = Watcher(rig)
    watcher.wait_for_put(10)

    filler = fill(small_disk)
    watcher.wait_for_refusals(8)
    alarms = watcher.wait_for_put(4, TOP)
    watcher.witness.wait_for(alarms, WITHIN_S)
    rig.kill(LOCAL)
    waiting = watcher.wait_for_put(8, TOP)
    rig.start(LOCAL)
    watcher.witness.wait_for(waiting, WITHIN_S)
    filler.unlink()
    freed_s = time.monotonic()
    fresh = watcher.wait_for_put(16)
    watcher.witness.wait_for(fresh, WITHIN_S)
    recovered_s = time.monotonic() - freed_s
    verdict = watcher.witness.drain(60)

    report(
        refused=dict(watcher.ledger.refused), recovered_s=recovered_s, verdict=verdict
    )
    assert watcher.ledger.refused[TOP] < len(alarms + waiting)
    assert {n.priority for n in fresh} == {1, 2, 3, 4, 5}
    assert "disk is full" in rig.log(FED)
    assert (verdict.lost, verdict.doubled, verdict.reused) == ({}, [], [])


def test_alarms_are_accepted_on_a_full_disk_while_others_are_acked(
    small_disk: Path,
) -> None:
    """SQLite's log must not use up the reserve: 500 alarms, one by one."""
    durability = Durability(window_s=0.2)
    queue = SqliteQueue(small_disk / "q.db", "n1", "b", 10**8, durability=durability)
    for priority in (1, 2, 3, 4) * 20:
        queue.put([draft(priority)])
    fill(small_disk)
    for _ in range(500):
        queue.put([draft(TOP)])
        queue.ack([queue.lease()[0].seq])
    queue.close()

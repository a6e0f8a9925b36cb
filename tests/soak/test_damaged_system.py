"""Queue files of a node and a gateway damaged while down: both continue."""

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from conftest import wait_until
from soak.conftest import Scale
from soak.damage import (
    Damage,
    Files,
    cut_file,
    flip_payloads,
    move_log_into_file,
    whole_bytes,
)
from soak.rig import DISTRIBUTED, FED, GATEWAY, LOCAL, Rig
from soak.witness import Note, Witness

pytestmark = [pytest.mark.system, pytest.mark.broker]

SHORT = ((FED, cut_file), (GATEWAY, cut_file), (FED, flip_payloads))
LONG = (
    tuple((p, damage) for damage in (cut_file, flip_payloads) for p in (FED, GATEWAY))
    * 8
)
BACKLOG = 16
AWAY_S = 5.0
"""Longer than a new link waits for an offer of receipts."""

WITHIN_S = 60.0


class Damager:
    """Damages queue files, and records the messages that cannot have survived."""

    def __init__(self, rig: Rig, witness: Witness, chance: random.Random) -> None:
        self.rig = rig
        self.witness = witness
        self.chance = chance
        self.destroyed: set[str] = set()

    def damage_queue(self, program: str, damage: Damage) -> None:
        """Disconnect the program, build up a backlog, kill it, damage, and restart."""
        path, next_broker = {
            FED: (self.rig.queue(FED), LOCAL),
            GATEWAY: (self.rig.lane, DISTRIBUTED),
        }[program]
        self.rig.kill(next_broker)
        self._wait_for_notes(BACKLOG)
        self.rig.kill(program)
        move_log_into_file(path)
        self._damage(path, damage)
        # A program that lost the state of receipts must get the offer before it sends.
        self.rig.start_broker(next_broker)
        self.rig.start(program)
        before = set(self.notes)
        self._wait_for_notes(BACKLOG)
        fresh = [note for id_, note in self.notes.items() if id_ not in before]
        self.witness.wait_for(fresh, WITHIN_S)

    def _damage(self, path: Path, damage: Damage) -> None:
        payloads = stored_payloads(path)
        before = Files.read(path)
        after = before.copy()
        marks = [n.mark.encode() for n in self.notes.values() if n.mark]
        damage(after, self.chance, [m for m in marks if m in before.main])
        after.write(path)
        raw, whole = bytes(before.main + before.log), whole_bytes(before, after)
        # Only messages in these files can be lost, and only where they are damaged.
        # SQLite leaves old copies of moved rows, so all copies must be intact.
        self.destroyed |= {
            id_
            for id_, payload in payloads.items()
            if raw.count(payload) > whole.count(payload)
        }

    @property
    def notes(self) -> dict[str, Note]:
        ledger = self.witness.ledgers[FED]
        ledger.follow()
        return dict(ledger.notes)

    def _wait_for_notes(self, count: int) -> None:
        before = len(self.notes)
        wait_until(lambda: len(self.notes) >= before + count, WITHIN_S)


def stored_payloads(path: Path) -> dict[str, bytes]:
    """Payloads of a queue file by message id; those of sensors have no mark."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT node, boot, origin_seq, payload FROM message")
        return {f"{node}:{boot}:{seq}": raw for node, boot, seq, raw in rows}


def test_damaged_queues_stop_neither_node_nor_gateway(
    rig: Rig, chance: random.Random, scale: Scale, report: Callable[..., None]
) -> None:
    """Messages that survived the damage arrive once and unchanged."""
    rig.write_fed()
    rig.start_backbone()
    rig.start_nodes(FED)
    witness = Witness(rig)
    damager = Damager(rig, witness, chance)

    for program, damage in LONG if scale.is_long else SHORT:
        damager.damage_queue(program, damage)
    rig.pause_nodes()
    wait_until(lambda: rig.count_queued(FED, GATEWAY) == 0, WITHIN_S)
    rig.stop()
    witness.close()

    # A sensor may have put a message after the queues were empty.
    queued = stored_payloads(rig.queue(FED)) | stored_payloads(rig.lane)
    missing = {n.id for n in witness.unexcused(witness.missing())}
    left = missing - queued.keys()
    doubled = [i for i, count in witness.archive.arrived.items() if count > 1]
    notes = witness.ledgers[FED].notes
    report(put=len(notes), destroyed=len(damager.destroyed), lost=len(left))
    assert left <= damager.destroyed
    assert doubled == []
    assert witness.altered() == []
    assert "is set aside" in rig.log(FED) + rig.log(GATEWAY)


def test_node_with_a_damaged_queue_waits_for_its_store(rig: Rig) -> None:
    """It keeps its messages until the gateway that gives receipts is back."""
    rig.write_fed()
    rig.start_backbone()
    rig.start_nodes(FED)
    witness = Witness(rig)
    damager = Damager(rig, witness, random.Random(1))
    rig.kill(LOCAL)
    rig.kill(GATEWAY)
    rig.kill(FED)
    move_log_into_file(rig.queue(FED))
    files = Files.read(rig.queue(FED))
    files.main[:100] = b"\xff" * 100
    files.write(rig.queue(FED))

    rig.start(LOCAL)
    before = set(damager.notes)
    rig.start(FED)
    time.sleep(AWAY_S)
    rig.start(GATEWAY)
    fresh = [note for id_, note in damager.notes.items() if id_ not in before]
    witness.wait_for(fresh, WITHIN_S)
    witness.close()

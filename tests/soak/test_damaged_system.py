"""A node's and a gateway's queue file damaged while they are down: both go on."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import wait_until
from soak.conftest import Scale
from soak.damage import (
    Files,
    Harm,
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
    tuple((p, harm) for harm in (cut_file, flip_payloads) for p in (FED, GATEWAY)) * 8
)
BACKLOG = 16
AWAY_S = 5.0
"""Longer than a fresh link waits for an offer of receipts."""

WITHIN_S = 60.0


class Wrecker:
    """Damages what a killed program left, and notes what cannot have survived."""

    def __init__(self, rig: Rig, witness: Witness, chance: random.Random) -> None:
        self.rig = rig
        self.witness = witness
        self.chance = chance
        self.gone: set[str] = set()

    def wreck(self, program: str, harm: Harm) -> None:
        """Cut the program off, let a backlog grow, kill it, damage, and restart."""
        path, beyond = {
            FED: (self.rig.queue(FED), LOCAL),
            GATEWAY: (self.rig.lane, DISTRIBUTED),
        }[program]
        self.rig.kill(beyond)
        self._wait_for_notes(BACKLOG)
        self.rig.kill(program)
        move_log_into_file(path)
        self._damage(path, harm)
        # Whoever forgot that there are receipts must be told before it sends.
        self.rig.start_broker(beyond)
        self.rig.start(program)
        before = set(self.notes)
        self._wait_for_notes(BACKLOG)
        fresh = [note for id_, note in self.notes.items() if id_ not in before]
        self.witness.wait_for(fresh, WITHIN_S)

    def _damage(self, path: Path, harm: Harm) -> None:
        before = Files.read(path)
        after = before.copy()
        marks = [n.mark.encode() for n in self.notes.values() if n.mark]
        harm(after, self.chance, [m for m in marks if m in before.main])
        after.write(path)
        raw, whole = bytes(before.main + before.log), whole_bytes(before, after)
        # Only what stood here can be gone, and only where the damage touched it; SQLite
        # leaves old copies of moved rows behind, so each of them must be whole.
        self.gone |= {
            id_
            for id_, note in self.notes.items()
            if note.mark
            and raw.count(note.mark.encode()) > whole.count(note.mark.encode())
        }

    @property
    def notes(self) -> dict[str, Note]:
        ledger = self.witness.ledgers[FED]
        ledger.follow()
        return dict(ledger.notes)

    def _wait_for_notes(self, count: int) -> None:
        before = len(self.notes)
        wait_until(lambda: len(self.notes) >= before + count, WITHIN_S)


def test_damaged_queues_of_node_and_gateway_stop_nobody(
    rig: Rig, chance: random.Random, scale: Scale, report: Callable[..., None]
) -> None:
    """What survived the damage arrives once; nothing arrives as something else."""
    rig.write_fed()
    rig.start_backbone()
    rig.start_nodes(FED)
    witness = Witness(rig)
    wrecker = Wrecker(rig, witness, chance)

    for program, harm in LONG if scale.is_long else SHORT:
        wrecker.wreck(program, harm)
    rig.rest()
    wait_until(lambda: rig.exclusive(FED, GATEWAY) == 0, WITHIN_S)
    rig.stop()
    witness.close()

    left = [n.id for n in witness.unexcused(witness.missing())]
    doubled = [i for i, count in witness.archive.arrived.items() if count > 1]
    notes = witness.ledgers[FED].notes
    report(put=len(notes), destroyed=len(wrecker.gone), lost=len(left))
    assert set(left) <= wrecker.gone
    assert doubled == []
    assert witness.altered() == []
    assert "is set aside" in rig.log(FED) + rig.log(GATEWAY)


def test_a_store_that_is_away_is_not_taken_for_none(rig: Rig) -> None:
    """A node whose file was damaged keeps its messages until the gateway is back."""
    rig.write_fed()
    rig.start_backbone()
    rig.start_nodes(FED)
    witness = Witness(rig)
    wrecker = Wrecker(rig, witness, random.Random(1))
    rig.kill(LOCAL)
    rig.kill(GATEWAY)
    rig.kill(FED)
    move_log_into_file(rig.queue(FED))
    files = Files.read(rig.queue(FED))
    files.main[:100] = b"\xff" * 100
    files.write(rig.queue(FED))

    rig.start(LOCAL)
    before = set(wrecker.notes)
    rig.start(FED)
    time.sleep(AWAY_S)
    rig.start(GATEWAY)
    fresh = [note for id_, note in wrecker.notes.items() if id_ not in before]
    witness.wait_for(fresh, WITHIN_S)
    witness.close()

"""A wall clock that jumps ten years: no message is lost, doubled or out of order."""

import time
from collections.abc import Callable

import pytest
from conftest import wait_until
from soak.rig import FED, GATEWAY, GAUGE, INGEST, LOCAL, Rig
from soak.witness import Note, Verdict, Witness

pytestmark = [pytest.mark.system, pytest.mark.broker]

TEN_YEARS_S = 10 * 365.25 * 86_400
WITHIN_S = 45.0
PROGRAMS = (FED, GATEWAY, INGEST)
TTL = "ttl_s = [600, 600, 600, 600, 600]\n"


@pytest.fixture
def shifted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A system with shifted clocks; its node has real sensors, not the simulator."""
    monkeypatch.setenv("GPIOZERO_PIN_FACTORY", "mock")
    for name in PROGRAMS:
        rig.shifts[name] = rig.folder / f"{name}.shift"
        rig.shifts[name].write_text("0")
    rig.can_pause_all = False
    rig.write_node(FED, TTL + GAUGE.format(interval_s=1))
    gateway = rig.folder / f"{GATEWAY}.toml"
    gateway.write_text(f"{gateway.read_text()}[queue]\n{TTL}")
    return rig


class Jumper:
    """Sets clocks and checks that the system continues."""

    def __init__(self, rig: Rig, witness: Witness) -> None:
        self.rig = rig
        self.witness = witness
        self.away_s: list[float] = []

    def set(self, *names: str, to_s: float) -> None:
        for name in names:
            self.rig.shifts[name].write_text(str(to_s))

    def check_delivery(self) -> None:
        """Wait for messages that are put from now on."""
        began_s, before = time.monotonic(), self._noted()
        wait_until(lambda: len(self._noted()) >= len(before) + 16, WITHIN_S)
        fresh = [n for i, n in self._noted().items() if i not in before]
        self.witness.wait_for(fresh, WITHIN_S)
        self.away_s.append(time.monotonic() - began_s)

    def samples(self, to_s: float, within_s: float = WITHIN_S) -> None:
        """Wait for a sensor's reading with the new time."""
        wait_until(lambda: self._has_reading(to_s), within_s)

    def _noted(self) -> dict[str, Note]:
        return dict(self.witness.ledgers[FED].notes)

    def _has_reading(self, to_s: float) -> bool:
        """Whether a sensor's message of the last seconds, by that clock, arrived."""
        time.sleep(0.1)
        archive = self.witness.archive
        archive.follow()
        now_s = time.time() + to_s
        return any(
            abs(now_s - at_s) < 2 * WITHIN_S
            for id_, at_s in archive.times.items()
            if id_ not in archive.marks
        )


def jump_while_all_runs(jumper: Jumper, to_s: float) -> None:
    """Set the node's clock first, then the others; urgent messages stay in order."""
    archive = jumper.witness.archive
    start = len(archive.order)
    jumper.set(FED, to_s=to_s)
    jumper.check_delivery()
    jumper.set(GATEWAY, INGEST, to_s=to_s)
    jumper.check_delivery()
    for priority in (4, 5):
        seqs = archive.seqs(FED, priority, after=start)
        assert seqs == sorted(seqs)


def jump_while_messages_wait(jumper: Jumper, to_s: float) -> None:
    """Messages that are queued during the jump do not expire."""
    rig, notes = jumper.rig, jumper.witness.ledgers[FED].notes
    rig.kill(LOCAL)
    before = len(notes)
    wait_until(lambda: len(notes) > before + 16)
    jumper.set(*PROGRAMS, to_s=to_s)
    rig.start(LOCAL)
    jumper.check_delivery()


def restart_with_another_clock(jumper: Jumper, to_s: float) -> None:
    """A node without a battery clock, and an ingester whose clock was set wrong."""
    for name in (FED, INGEST):
        jumper.rig.kill(name)
        jumper.set(name, to_s=to_s)
        jumper.rig.start(name)
    jumper.check_delivery()


def assert_promises(verdict: Verdict) -> None:
    assert verdict.unexcused == []
    assert (verdict.doubled, verdict.reused) == ([], [])
    assert verdict.gateway_took == verdict.gateway_ids == verdict.arrived


def test_clock_jumps_of_ten_years_change_only_time_stamps(
    shifted: Rig, report: Callable[..., None]
) -> None:
    """Order, delivery, ids and ages are unaffected; messages arrive within seconds."""
    shifted.start_backbone()
    shifted.start_nodes(FED)
    witness = Witness(shifted)
    jumper = Jumper(shifted, witness)

    jump_while_all_runs(jumper, TEN_YEARS_S)
    jumper.samples(TEN_YEARS_S)
    jump_while_all_runs(jumper, -TEN_YEARS_S)
    jump_while_messages_wait(jumper, TEN_YEARS_S)
    jump_while_messages_wait(jumper, 0.0)
    restart_with_another_clock(jumper, -TEN_YEARS_S)
    jumper.samples(-TEN_YEARS_S)
    verdict = witness.drain(60)

    report(longest_away_s=max(jumper.away_s), verdict=verdict)
    assert_promises(verdict)


def test_sampling_continues_after_a_clock_is_set_back(shifted: Rig) -> None:
    """A sensor is read within seconds of the step."""
    shifted.start_backbone()
    shifted.start_nodes(FED)
    witness = Witness(shifted)
    jumper = Jumper(shifted, witness)
    jumper.samples(0.0)

    jumper.set(FED, to_s=-TEN_YEARS_S)
    jumper.samples(-TEN_YEARS_S, within_s=8.0)
    witness.close()

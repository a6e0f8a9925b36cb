"""`SystemClock`: whether a time server has set the clock."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_agent import clock
from edge_agent.clock import SystemClock
from service_runtime.machine_check import TIME_ERROR


class Machine:
    """A machine with the answer of the kernel, and the file of timesyncd.

    Attributes:
        answer: Result of adjtimex; -1 where a sandbox forbids it.
        file: What timesyncd makes when it has set the clock.
    """

    def __init__(self, folder: Path) -> None:
        self.answer = TIME_ERROR
        self.file = folder / "synchronized"

    def adjtimex(self, _state: object) -> int:
        return self.answer


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose clock is not set."""
    made = Machine(tmp_path)
    monkeypatch.setattr(clock, "SYNCHRONISED", made.file)
    monkeypatch.setattr(
        ctypes, "CDLL", lambda _name: SimpleNamespace(adjtimex=made.adjtimex)
    )
    return made


@pytest.mark.parametrize("answer", [TIME_ERROR, -1])
def test_clock_that_nothing_has_set_is_not_synchronised(
    machine: Machine, answer: int
) -> None:
    """Until timesyncd has set it, as its file says."""
    machine.answer = answer
    system = SystemClock()
    before = system.is_synchronised()
    machine.file.touch()

    assert (before, system.is_synchronised()) == (False, True)


def test_clock_that_chrony_has_set_stays_synchronised(machine: Machine) -> None:
    """Chrony makes no file; the kernel takes it back when no server answers."""
    system = SystemClock()
    before = system.is_synchronised()
    machine.answer = 0
    between = system.is_synchronised()
    machine.answer = TIME_ERROR

    assert (before, between, system.is_synchronised()) == (False, True, True)

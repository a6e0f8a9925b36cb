"""Our units under a real systemd, in a container."""

import pytest
from conftest import wait_until
from machine import UNITS, Machine

pytestmark = pytest.mark.container

TWO = "two-loops"
FOLDER = "/run/two-loops"


@pytest.fixture
def two_loops(machine: Machine) -> Machine:
    machine.run("systemctl", "start", TWO)
    return machine


def restarted(machine: Machine, unit: str, pid: str) -> None:
    wait_until(
        lambda: (
            machine.show(unit, "MainPID") not in {"0", pid}
            and machine.show(unit, "ActiveState") == "active"
        )
    )


def test_verify_prints_nothing(machine: Machine) -> None:
    """It exits with 0 on unknown keys, so that its words are what counts."""
    for unit in UNITS:
        path = f"/etc/systemd/system/{unit}.service"
        assert machine.run("sh", "-c", f"systemd-analyze verify {path} 2>&1") == ""


def test_broker_runs_confined_and_without_root(machine: Machine) -> None:
    """Debian's unit starts as root; with our drop-in nothing of it does."""
    machine.run("systemctl", "start", "mosquitto")
    words = machine.run("systemd-analyze", "security", "mosquitto").splitlines()[-1]

    assert machine.show("mosquitto", "User") == "mosquitto"
    assert float(words.partition(":")[2].split()[0]) <= 2.0


def test_one_hung_loop_ends_the_process(two_loops: Machine) -> None:
    """The log names the loop, the stacks are in the journal, and it starts again."""
    pid = two_loops.show(TWO, "MainPID")
    wait_until(lambda: two_loops.show(TWO, "StatusText") == f"life of {pid}")
    two_loops.run("touch", f"{FOLDER}/hang")
    restarted(two_loops, TWO, pid)
    said = two_loops.journal(TWO)

    assert "the bad loop is silent for" in said
    assert "the good loop" not in said.partition("watchdog is not fed")[0]
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said
    assert "_bad" in said


def test_line_is_heard_of_while_nobody_lives(two_loops: Machine) -> None:
    """A descriptor in systemd's store outlives SIGKILL, with what waits in it."""
    pid = two_loops.show(TWO, "MainPID")
    wait_until(lambda: two_loops.show(TWO, "NFileDescriptorStore") == "1")
    two_loops.run("systemctl", "kill", "--signal=KILL", TWO)
    wait_until(lambda: two_loops.show(TWO, "MainPID") == "0")
    two_loops.run("sh", "-c", f"printf 'tip tip tip' > {FOLDER}/line")
    restarted(two_loops, TWO, pid)

    assert two_loops.run("cat", f"{FOLDER}/heard") == "tip tip tip"

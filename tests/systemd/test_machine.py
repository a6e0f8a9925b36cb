"""Our units under a real systemd, in a container."""

from pathlib import Path

import pytest
from conftest import wait_until
from machine import UNITS, Machine

from edge_agent.sensors.buses import EDGE_EVENT

pytestmark = pytest.mark.container

HERE = Path(__file__).parent
CARD = "/boot/firmware/yamamori"
TWO = "two-loops"
FOLDER = "/run/two-loops"


@pytest.fixture
def two_loops(machine: Machine) -> Machine:
    machine.run("systemctl", "start", TWO)
    return machine


def wait_for_restart(machine: Machine, unit: str, pid: str) -> None:
    wait_until(
        lambda: (
            machine.show(unit, "MainPID") not in {"0", pid}
            and machine.show(unit, "ActiveState") == "active"
        )
    )


def test_verify_prints_nothing(machine: Machine) -> None:
    """It exits with 0 on unknown keys, so the output is checked."""
    for unit in UNITS:
        path = f"/etc/systemd/system/{unit}.service"
        assert machine.run("sh", "-c", f"systemd-analyze verify {path} 2>&1") == ""


def test_broker_is_sandboxed_and_runs_without_root(machine: Machine) -> None:
    """Debian's unit starts as root; with our drop-in it does not."""
    machine.run("systemctl", "start", "mosquitto")
    line = machine.run("systemd-analyze", "security", "mosquitto").splitlines()[-1]

    assert machine.show("mosquitto", "User") == "mosquitto"
    assert float(line.partition(":")[2].split()[0]) <= 2.0


def test_one_hung_loop_ends_the_process(two_loops: Machine) -> None:
    """The log names the loop, the journal has the stacks, and the unit restarts."""
    pid = two_loops.show(TWO, "MainPID")
    wait_until(lambda: two_loops.show(TWO, "StatusText") == f"life of {pid}")
    two_loops.run("touch", f"{FOLDER}/hang")
    wait_for_restart(two_loops, TWO, pid)
    journal = two_loops.journal(TWO)

    assert "the bad loop is silent for" in journal
    assert "the good loop" not in journal.partition("watchdog is not fed")[0]
    assert "Watchdog timeout" in journal
    assert "Fatal Python error: Aborted" in journal
    assert "_bad" in journal


def write_tips(machine: Machine, *numbers: int) -> None:
    """Write edge events to the line, numbered as by the kernel."""
    raw = b"".join(EDGE_EVENT.pack(n * 10**9, 2, 17, n, n) for n in numbers)
    machine.inside(f"{FOLDER}/line").write_bytes(raw)


def test_tips_between_two_runs_are_counted(two_loops: Machine) -> None:
    """The line survives SIGKILL and restart; overflowed events count by number."""
    wait_until(lambda: two_loops.show(TWO, "NFileDescriptorStore") == "1")
    pid = two_loops.show(TWO, "MainPID")
    two_loops.run("systemctl", "kill", "--signal=KILL", TWO)
    wait_until(lambda: two_loops.show(TWO, "MainPID") == "0")
    write_tips(two_loops, 1, 2, 3)
    wait_for_restart(two_loops, TWO, pid)
    write_tips(two_loops, 4, 5, 8)
    two_loops.run("systemctl", "restart", TWO)

    tips = two_loops.inside(f"{FOLDER}/tips").read_text().split()
    assert tips[-2:] == ["3+0", "3+2"]
    assert two_loops.show(TWO, "NFileDescriptorStore") == "1"


def test_first_boot_imports_settings_and_key_from_the_card(machine: Machine) -> None:
    """The agent's user may read the key, and it is removed from the card."""
    settings = (HERE / "settings/node.toml").read_text()
    credentials = "/run/credentials/edge-agent.service"
    machine.put(f"{CARD}/node.toml", settings.replace(credentials, "/etc/yamamori"))
    machine.put(f"{CARD}/key.pem", "-----BEGIN PRIVATE KEY-----\nsecret\n")
    machine.run("systemctl", "start", "edge-agent-first-boot")

    rights = machine.run("stat", "-c", "%G %a", "/etc/yamamori/key.pem")
    read = ("runuser", "-u", "yamamori", "--", "head", "-1", "/etc/yamamori/key.pem")
    assert rights == "yamamori 640"
    assert machine.run(*read) == "-----BEGIN PRIVATE KEY-----"
    assert not machine.inside(f"{CARD}/key.pem").exists()
    assert "RESULT: TAKEN" in machine.inside(f"{CARD}/node-report.txt").read_text()

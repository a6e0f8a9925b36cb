"""Every daemon of ours as a unit of a real systemd, from the sensor to the log."""

import time
from pathlib import Path

import pytest
from conftest import wait_until
from machine import ROOT, Machine

from backend_spark.ingest.segment_log import read_segments
from spatial_mqtt.senml import MessageId

pytestmark = pytest.mark.container

SETTINGS = Path(__file__).parent / "settings"
AGENT, INGEST = "edge-agent", "backend-ingest"
UNITS = ("gateway-manager", "gateway-daemon", INGEST, AGENT)
DROP_IN = f"/etc/systemd/system/{AGENT}.service.d"
KILLS = 3


class Slope:
    """A node, its gateway and the log behind, each a unit."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        text = (SETTINGS / "mosquitto.conf").read_text()
        machine.put("/etc/mosquitto/conf.d/gateway.conf", text)
        for path in SETTINGS.glob("*.toml"):
            machine.put(f"/etc/yamamori/{path.name}", path.read_text())
        text = (SETTINGS / "agent.conf").read_text()
        machine.put(f"{DROP_IN}/test.conf", text)
        text = (ROOT / "systemd/examples/credentials.conf").read_text()
        machine.put(f"{DROP_IN}/credentials.conf", text)
        machine.run("sh", "-c", (SETTINGS / "certificates.sh").read_text())
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", "mosquitto")
        for port in (1883, 1885):
            machine.run("systemd-run", "mosquitto", "--port", str(port))
        machine.run("systemctl", "start", *UNITS)

    def status(self, unit: str) -> str:
        return self.machine.show(unit, "StatusText")

    def new_life(self, signal: str) -> None:
        """End the agent by a signal, and wait for the next one."""
        before = self.machine.show(AGENT, "MainPID")
        self.machine.run("systemctl", "kill", f"--signal={signal}", AGENT)
        wait_until(
            lambda: (
                self.machine.show(AGENT, "MainPID") not in {"0", before}
                and self.machine.show(AGENT, "ActiveState") == "active"
            )
        )

    def rest(self) -> None:
        """Let the node sample no more, and deliver all that it has."""
        self.machine.run("systemctl", "stop", AGENT)
        text = (SETTINGS / "node.toml").read_text()
        self.machine.put("/etc/yamamori/node.toml", text.replace("= 1000.0", "= 0.0"))
        self.machine.run("systemctl", "start", AGENT)
        wait_until(lambda: "is up; 0 queued" in self.status(AGENT))

    def noted(self) -> list[str]:
        path = self.machine.root / "var/lib/yamamori/ledger"
        return [line.split()[0] for line in path.read_text().splitlines()]

    def logged(self) -> list[str]:
        log = self.machine.root / "var/lib/yamamori/backend/log"
        rows = [
            row
            for _, table in read_segments(log, ("node", "boot", "seq"))
            for row in table.to_pylist()
        ]
        return [str(MessageId(row["node"], row["boot"], row["seq"])) for row in rows]


@pytest.fixture(scope="module")
def slope(machine: Machine) -> Slope:
    return Slope(machine)


def test_status_of_each_unit_says_what_it_does(slope: Slope) -> None:
    """`systemctl status` tells the truth."""
    wait_until(slope.logged)
    for unit, words in (
        ("gateway-manager", "1 gateways, 1 brokers"),
        ("gateway-daemon", "own broker up; 1 of 1 managers reached"),
        (INGEST, "127.0.0.1:1885 up; "),
        (AGENT, "127.0.0.1:8883 is up; "),
        (AGENT, "2 sensors, none is known to fail"),
    ):
        wait_until(lambda unit=unit, words=words: words in slope.status(unit))
    assert slope.machine.run("edge-agent", "status").startswith("level ")


def test_key_is_for_systemd_and_the_service_alone(slope: Slope) -> None:
    """The agent speaks TLS with a key that its user cannot read in /etc."""
    key = "/etc/yamamori/tls/key.pem"
    handed = f"/run/credentials/{AGENT}.service/key.pem"
    machine = slope.machine
    reads = [
        machine.run("runuser", "-u", "yamamori", "--", "cat", path, check=False)
        for path in (key, handed)
    ]

    assert machine.run("stat", "-c", "%U %a", key) == "root 600"
    assert reads[0] == ""
    assert "PRIVATE KEY" in reads[1]


def test_nothing_is_lost_however_the_agent_dies(slope: Slope) -> None:
    """SIGKILL, and a process that hangs until its watchdog: all is logged, once."""
    for _ in range(KILLS):
        before = len(slope.noted())
        wait_until(lambda at=before: len(slope.noted()) > at + 10)
        slope.new_life("KILL")
    slope.new_life("STOP")
    before = len(slope.noted())
    wait_until(lambda: len(slope.noted()) > before + 10)
    restarts = slope.machine.show(AGENT, "NRestarts")
    slope.rest()

    wait_until(lambda: set(slope.noted()) <= set(slope.logged()))
    logged = slope.logged()
    assert len(logged) == len(set(logged))
    assert "Watchdog timeout" in slope.machine.journal(AGENT)
    assert restarts == str(KILLS + 1)


def test_bad_config_is_not_started_again_and_harms_no_queue(slope: Slope) -> None:
    """Exit 78 is for a person; the queue's file is not touched."""
    machine = slope.machine
    machine.run("systemctl", "stop", AGENT)
    files = machine.run("sh", "-c", "sha256sum /var/lib/yamamori/queue.db*")
    path = machine.root / "etc/yamamori/node.toml"
    good = path.read_text()
    path.write_text(good.replace('id = "n1"', 'id = "n 1"'))
    machine.run("systemctl", "start", AGENT, check=False)
    time.sleep(1)  # three times what a restart would wait
    path.write_text(good)

    assert machine.show(AGENT, "ExecMainStatus") == "78"
    assert machine.show(AGENT, "ActiveState") == "failed"
    assert machine.show(AGENT, "NRestarts") == "0"
    assert "'n 1'" in machine.journal(AGENT)
    assert machine.run("sh", "-c", "sha256sum /var/lib/yamamori/queue.db*") == files

"""All our daemons as units of a real systemd, from the sensor to the log."""

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


class Services:
    """A node, its gateway, the Manager and the ingester, each as a unit."""

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

    def restart_by_signal(self, signal: str) -> None:
        """Send the agent a signal, and wait until systemd has restarted it."""
        before = self.machine.show(AGENT, "MainPID")
        self.machine.run("systemctl", "kill", f"--signal={signal}", AGENT)
        wait_until(
            lambda: (
                self.machine.show(AGENT, "MainPID") not in {"0", before}
                and self.machine.show(AGENT, "ActiveState") == "active"
            )
        )

    def stop_sampling(self) -> None:
        """Stop sampling, and wait until the node has delivered all messages."""
        self.machine.run("systemctl", "stop", AGENT)
        text = (SETTINGS / "node.toml").read_text()
        self.machine.put("/etc/yamamori/node.toml", text.replace("= 1000.0", "= 0.0"))
        self.machine.run("systemctl", "start", AGENT)
        wait_until(lambda: "is up; 0 queued" in self.status(AGENT))

    def recorded(self) -> list[str]:
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
def services(machine: Machine) -> Services:
    return Services(machine)


def test_systemctl_status_shows_the_state_of_each_unit(services: Services) -> None:
    """The status line that each program sends."""
    wait_until(services.logged)
    for unit, text in (
        ("gateway-manager", "1 gateways, 1 brokers"),
        ("gateway-daemon", "own broker up; 1 of 1 managers reached"),
        (INGEST, "127.0.0.1:1885 up; "),
        (AGENT, "127.0.0.1:8883 is up; "),
        (AGENT, "2 sensors, none is known to fail"),
    ):
        wait_until(lambda unit=unit, text=text: text in services.status(unit))
    assert services.machine.run("edge-agent", "status").startswith("level ")


def test_only_systemd_and_the_service_can_read_the_key(services: Services) -> None:
    """The agent uses TLS with a key that its user cannot read in /etc."""
    key = "/etc/yamamori/tls/key.pem"
    handed = f"/run/credentials/{AGENT}.service/key.pem"
    machine = services.machine
    reads = [
        machine.run("runuser", "-u", "yamamori", "--", "cat", path, check=False)
        for path in (key, handed)
    ]

    assert machine.run("stat", "-c", "%U %a", key) == "root 600"
    assert reads[0] == ""
    assert "PRIVATE KEY" in reads[1]


def test_agent_killed_or_hung_loses_and_doubles_nothing(services: Services) -> None:
    """SIGKILL, and SIGSTOP until the watchdog ends the process."""
    for _ in range(KILLS):
        before = len(services.recorded())
        wait_until(lambda at=before: len(services.recorded()) > at + 10)
        services.restart_by_signal("KILL")
    services.restart_by_signal("STOP")
    before = len(services.recorded())
    wait_until(lambda: len(services.recorded()) > before + 10)
    restarts = services.machine.show(AGENT, "NRestarts")
    services.stop_sampling()

    wait_until(lambda: set(services.recorded()) <= set(services.logged()))
    logged = services.logged()
    assert len(logged) == len(set(logged))
    # On a busy machine the watchdog may also end an agent that is starting.
    timeouts = services.machine.journal(AGENT).count("Watchdog timeout")
    assert timeouts
    assert restarts == str(KILLS + timeouts)


def test_invalid_settings_prevent_restarts_and_leave_the_queue(
    services: Services,
) -> None:
    """Exit status 78 needs an operator; the queue's files are unchanged."""
    machine = services.machine
    machine.run("systemctl", "stop", AGENT)
    files = machine.run("sh", "-c", "sha256sum /var/lib/yamamori/queue.db*")
    path = machine.root / "etc/yamamori/node.toml"
    good = path.read_text()
    # Of another node, so that the settings of the last run are of no use.
    other = good.replace('id = "n1"', 'id = "n2"')
    path.write_text(other.replace("latitude =", "latitud ="))
    machine.run("systemctl", "start", AGENT, check=False)
    time.sleep(1)  # three times the delay of a restart
    path.write_text(good)

    assert machine.show(AGENT, "ExecMainStatus") == "78"
    assert machine.show(AGENT, "ActiveState") == "failed"
    assert machine.show(AGENT, "NRestarts") == "0"
    assert "node.latitud" in machine.journal(AGENT)
    assert machine.run("sh", "-c", "sha256sum /var/lib/yamamori/queue.db*") == files


def test_unusable_settings_are_replaced_by_those_of_the_last_run(
    services: Services,
) -> None:
    """The status line says so, until the file is corrected."""
    machine = services.machine
    path = machine.root / "etc/yamamori/node.toml"
    good = path.read_text()
    path.write_text(good.replace("[uplink]", "[uplink"))
    machine.run("systemctl", "restart", AGENT)
    wait_until(lambda: "safe mode: " in services.status(AGENT))
    path.write_text(good)
    machine.run("systemctl", "restart", AGENT)

    wait_until(lambda: "is up; " in services.status(AGENT))
    assert "safe mode: " not in services.status(AGENT)
    assert "the settings of the last run are used" in machine.journal(AGENT)

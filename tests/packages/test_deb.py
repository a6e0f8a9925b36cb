"""The Debian packages in a booted Debian: install, upgrade, go back, remove, purge.

`make deb-test` builds two versions and runs this; DEB_TEST names their folder.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from machine import DebianMachine

FOLDER = Path(os.environ.get("DEB_TEST", ""))
OLD, NEW = "0.1~dev1", "0.1~dev2"
AGENT, GATEWAY = "edge-agent", "gateway-daemon"
MAX_NODE_BYTES = 40_000_000
NEWER_FORMAT = 0x02020202
QUEUE = "/var/lib/yamamori/queue.db"
SETTINGS = {
    "/etc/mosquitto/conf.d/gateway.conf": """listener 1884 127.0.0.1
allow_anonymous true
log_dest topic
log_type notice
log_type subscribe
log_type unsubscribe
""",
    "/etc/yamamori/manager.toml": """[manager]
broker = "mqtt://127.0.0.1:1883"
[[broker]]
topic = "/"
url = "mqtt://127.0.0.1:1885"
""",
    "/etc/yamamori/gateway.toml": """[gateway]
id = "gw"
broker = "mqtt://127.0.0.1:1884"
managers = ["mqtt://127.0.0.1:1883"]
areas = ["/3"]
""",
    "/etc/yamamori/node.toml": """[node]
id = "n1"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtt://127.0.0.1:1883"]
gather_s = 0
[simulation]
start = "2026-07-01T00:00:00+09:00"
speedup = 10.0
ledger = "/var/lib/yamamori/ledger"
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
mm_per_tip = 0.5
interval_s = 2
""",
}
pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(not FOLDER.name, reason="needs packages: run make deb-test"),
]


class Operator:
    """A machine, and what an operator does on it."""

    def __init__(self, machine: DebianMachine) -> None:
        self.machine = machine

    def apt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run apt-get without a network; the packages are in /opt/debs."""
        done = self.machine.run(
            "sh",
            "-c",
            "cd /opt/debs; DEBIAN_FRONTEND=noninteractive apt-get -y "
            f"-o Acquire::Languages=none {' '.join(words)} > /tmp/out 2>&1; echo $?",
        )
        output = self.machine.run("cat", "/tmp/out")  # noqa: S108 - the container's
        return subprocess.CompletedProcess(words, int(done), output)

    def install(self, version: str, *roles: str) -> subprocess.CompletedProcess[str]:
        """`apt install ./...deb` of the common package and some roles."""
        names = [f"./yamamori-{role}_{version}_*.deb" for role in ("common", *roles)]
        return self.apt(
            "install", "--no-install-recommends", "--allow-downgrades", *names
        )

    def version(self, package: str) -> str:
        query = ("dpkg-query", "-W", "-f", "${Version} ${db:Status-Status}", package)
        return self.machine.run(*query, check=False)

    def received(self) -> str:
        return self.machine.journal("listener")

    def put_ids(self) -> list[str]:
        """Messages that the node has put so far."""
        path = self.machine.inside("/var/lib/yamamori/ledger")
        return [line.split()[0] for line in path.read_text().splitlines()]

    def has_received(self, ids: list[str]) -> bool:
        """Whether the subscriber has each of these messages."""
        text = self.received()
        return bool(ids) and all(f"  {each}  " in text for each in ids)

    def queued(self) -> int:
        """Messages in the node's queue, by its status line."""
        words = self.machine.show(AGENT, "StatusText").partition(" queued")[0].split()
        return int(words[-1]) if words and words[-1].isdigit() else 0

    def set_format(self, number: int) -> None:
        """Write the queue's header as its own user."""
        program = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); "
            f"db.execute('PRAGMA user_version = {number}'); "
            "db.execute('PRAGMA wal_checkpoint(TRUNCATE)'); db.close()"
        )
        self.machine.run(*(
            "runuser",
            "-u",
            "yamamori",
            "--",
            "python3",
            "-c",
            program,
            QUEUE,
        ))


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A booted Debian with the older packages, as after the manual's three lines."""
    machine = DebianMachine(tmp_path_factory.mktemp("deb"))
    shutil.copytree(FOLDER, machine.root / "opt/debs")
    machine.boot()
    made = Operator(machine)
    done = made.install(OLD, "node", "gateway")
    assert done.returncode == 0, done.stdout
    yield made
    machine.power_off()


def test_install_starts_nothing_and_settings_are_asked_for(operator: Operator) -> None:
    """No daemon runs before its settings are written; conffiles name what is needed."""
    machine = operator.machine
    for unit in (AGENT, GATEWAY, "gateway-manager"):
        assert machine.show(unit, "ActiveState") == "inactive"
        assert machine.show(unit, "UnitFileState") == "disabled"
    command = f"{AGENT} check --config /etc/yamamori/node.toml 2>&1; echo $?"
    output = machine.run("sh", "-c", command)
    files = machine.run("dpkg-query", "-W", "-f", "${Conffiles}", "yamamori-node")

    assert "node.id must be given" in output
    assert output.endswith("78")
    assert "/etc/yamamori/node.toml" in files
    assert (
        machine.run("stat", "-c", "%U:%G %a", "/etc/yamamori") == "root:yamamori 2750"
    )


def test_installed_node_is_small(operator: Operator) -> None:
    """With the compiled files that the installation makes."""
    used = operator.machine.run("du", "-sb", "/usr/lib/yamamori/node").split()[0]

    assert int(used) <= MAX_NODE_BYTES


def test_message_goes_from_the_node_to_a_subscriber(operator: Operator) -> None:
    """After `systemctl enable --now`, over two brokers and a gateway."""
    machine = operator.machine
    for path, text in SETTINGS.items():
        machine.put(path, text)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "mosquitto")
    for port in (1883, 1885):
        machine.run("systemd-run", "mosquitto", "--port", str(port))
    machine.run("systemctl", "enable", "--now", "gateway-manager", GATEWAY)
    wait_until(lambda: "1 of 1 managers" in machine.show(GATEWAY, "StatusText"))
    machine.run(
        *("systemd-run", "--unit=listener", "-E", "PYTHONUNBUFFERED=1"),
        *("spatial-mqtt", "sub", "--manager", "mqtt://127.0.0.1:1883"),
        *("--id", "listener", "--around", "33.5588,133.5312"),
    )
    wait_until(lambda: "listening on" in operator.received())
    machine.run("systemctl", "enable", "--now", AGENT)

    ledger = machine.inside("/var/lib/yamamori/ledger")
    wait_until(ledger.exists)
    wait_until(lambda: operator.has_received(operator.put_ids()[:10]))


def test_upgrade_keeps_a_full_queue_and_restarts_what_ran(operator: Operator) -> None:
    """Messages that wait for a gateway are delivered by the new version."""
    machine = operator.machine
    machine.run("systemctl", "stop", GATEWAY)
    wait_until(lambda: operator.queued() > 20)
    before, pid = operator.queued(), machine.show(AGENT, "MainPID")
    done = operator.install(NEW, "node", "gateway")
    assert done.returncode == 0, done.stdout
    wait_until(lambda: operator.queued() >= before)

    assert operator.version("yamamori-node") == f"{NEW} installed"
    assert machine.show(AGENT, "MainPID") != pid
    assert machine.show(AGENT, "UnitFileState") == "enabled"
    assert machine.show(GATEWAY, "ActiveState") == "inactive", "it was stopped"
    ids = operator.put_ids()
    machine.run("systemctl", "start", GATEWAY)
    wait_until(lambda: operator.has_received(ids), timeout_s=300)
    machine.run("systemctl", "stop", AGENT)


def test_downgrade_behind_the_format_of_the_queue_is_refused(
    operator: Operator,
) -> None:
    """With words, and nothing is changed; without a newer format it is allowed."""
    operator.set_format(NEWER_FORMAT)
    refused = operator.install(OLD, "node", "gateway")
    for package in ("common", "node", "gateway"):
        assert operator.version(f"yamamori-{package}") == f"{NEW} installed"
    operator.set_format(0x01010101)
    allowed = operator.install(OLD, "node", "gateway")

    assert refused.returncode != 0
    assert f"has written {QUEUE} in format 2, and {OLD} reads up to 1" in refused.stdout
    assert allowed.returncode == 0, allowed.stdout
    assert operator.version("yamamori-node") == f"{OLD} installed"


def test_removal_keeps_data_and_purge_removes_it(operator: Operator) -> None:
    """Queue, settings and keys remain until the purge; another role's remain then."""
    machine = operator.machine
    machine.run("systemctl", "start", AGENT)
    machine.put("/etc/yamamori/tls/key.pem", "secret")
    assert operator.apt("remove", "yamamori-node").returncode == 0
    assert machine.show(AGENT, "ActiveState") in {"inactive", "failed"}
    for path in (QUEUE, "/etc/yamamori/node.toml"):
        assert machine.inside(path).exists()
    assert not machine.inside("/usr/lib/yamamori/node").exists()
    assert operator.apt("purge", "yamamori-node").returncode == 0
    assert not machine.inside(QUEUE).exists()
    assert not machine.inside("/etc/yamamori/node.toml").exists()
    assert machine.inside("/var/lib/yamamori/gateway").exists()
    assert machine.show(GATEWAY, "ActiveState") == "active"
    done = operator.apt("purge", "yamamori-gateway", "yamamori-common")

    assert done.returncode == 0, done.stdout
    assert not machine.inside("/var/lib/yamamori").exists()
    assert not machine.inside("/etc/yamamori").exists()

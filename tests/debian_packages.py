"""The packages that `make deb-test` builds, and an operator who installs them."""

import os
import subprocess
from pathlib import Path

from conftest import wait_until
from machine import PACKAGES_INSIDE, DebianMachine

FOLDER = Path(os.environ.get("DEB_TEST", ""))
"""Packages of two versions."""
OLD, NEW = "0.1~dev1", "0.1~dev2"
AGENT, GATEWAY = "edge-agent", "gateway-daemon"
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


class Operator:
    """A machine, and what an operator does on it."""

    def __init__(self, machine: DebianMachine) -> None:
        self.machine = machine

    def apt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run apt-get without a network, in the folder of the packages."""
        done = self.machine.run(
            "sh",
            "-c",
            f"cd {PACKAGES_INSIDE}; DEBIAN_FRONTEND=noninteractive apt-get -y "
            f"-o Acquire::Languages=none {' '.join(words)} > /tmp/out 2>&1; echo $?",
        )
        output = self.machine.run("cat", "/tmp/out")  # noqa: S108 - the container's
        return subprocess.CompletedProcess(words, int(done), output)

    def try_install(
        self, version: str, *roles: str
    ) -> subprocess.CompletedProcess[str]:
        """`apt install ./...deb` of the common package and some roles."""
        names = [f"./yamamori-{role}_{version}_*.deb" for role in ("common", *roles)]
        return self.apt(
            "install", "--no-install-recommends", "--allow-downgrades", *names
        )

    def install(self, version: str, *roles: str) -> None:
        """The same, where it must succeed."""
        done = self.try_install(version, *roles)
        assert done.returncode == 0, done.stdout

    def start_gateway(self) -> None:
        """Write the settings, and start brokers, Manager and gateway."""
        for path, text in SETTINGS.items():
            self.machine.put(path, text)
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("systemctl", "restart", "mosquitto")
        for port in (1883, 1885):
            self.machine.run("systemd-run", "mosquitto", "--port", str(port))
        self.machine.run("systemctl", "enable", "--now", "gateway-manager", GATEWAY)
        wait_until(
            lambda: "1 of 1 managers" in self.machine.show(GATEWAY, "StatusText")
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
        as_user = ("runuser", "-u", "yamamori", "--")
        self.machine.run(*as_user, "python3", "-c", program, QUEUE)

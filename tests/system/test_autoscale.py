"""Autoscaling: a busy area gets a standby broker and returns it automatically."""

import json
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client, Programs

from spatial_mqtt.client import fetch_retained
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

HOT, COLD = "/3/1/0", "/3/2/0"
AREA = "/3/1"
QUICK = (
    "most_per_s = 20.0\nmost_age_s = 60.0\nmost_cpu = 1.0\n"
    "hold_s = 1.0\nrest_s = 2.0\ncalm_s = 3.0\n"
)


class Deployment:
    """A Manager with autoscaling, a gateway and a broker."""

    def __init__(
        self,
        programs: Programs,
        make_broker: Callable[..., Broker],
        folder: Path,
        autoscale: str,
    ) -> None:
        self.folder, self.programs, self.make_broker = folder, programs, make_broker
        self.manager, self.first = make_broker(), make_broker("sys_interval 1")
        self.local = make_broker()
        self._settings = (
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{self.first.url}"\n'
            f"[autoscale]\n{QUICK}{autoscale}\n"
        )
        self.start_manager()
        programs.start(
            "gateway",
            "run",
            f'[gateway]\nid = "g"\nbroker = "{self.local.url}"\nbeat_s = 0.5\n'
            f'managers = ["{self.manager.url}"]\ndata = "{folder}/gateway"\n',
        )
        fetch_retained(self.local.endpoint, offer_topic("g"), "probe", 60)
        self.watcher = Client(self.manager.endpoint, "watcher", "/api/#")
        self.node = Client(self.local.endpoint, "node")
        self._stop = threading.Event()
        self.interval_s = 0.02
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def start_manager(self) -> None:
        self.programs.start("manager", "manager", self._settings)

    def _publish(self) -> None:
        while not self._stop.wait(self.interval_s):
            for topic in (HOT, HOT, COLD):
                self.node.publish(f"/forward{topic}/pri2", b"x", qos=0)

    def brokers(self) -> dict[str, int]:
        payloads = self.watcher.on("/api/brokertable/all/info")
        entries = json.loads(payloads[-1])["brokers"] if payloads else []
        return {entry["topic"]: entry["broker_info"]["port"] for entry in entries}

    def report(self) -> dict[str, list[dict[str, object]]]:
        payloads = self.watcher.on("/api/manager/load")
        return json.loads(payloads[-1]) if payloads else {"areas": [], "decisions": []}

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for client in (self.watcher, self.node):
            client.connection.stop()


@pytest.fixture
def make_deployment(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> Iterator[Callable[[str], Deployment]]:
    programs = Programs(tmp_path)
    deployments: list[Deployment] = []

    def make(autoscale: str) -> Deployment:
        deployments.append(Deployment(programs, make_broker, tmp_path, autoscale))
        return deployments[-1]

    yield make
    for deployment in deployments:
        deployment.close()
    programs.kill_all()


def admin(deployment: Deployment, *command: str) -> subprocess.CompletedProcess[str]:
    """Run an admin command; the first Manager is unreachable, so the next is used."""
    managers = ["--manager", "mqtt://127.0.0.1:1", "--manager", deployment.manager.url]
    return subprocess.run(
        [sys.executable, "-m", "gateway_daemon", "admin", *managers, *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


@pytest.mark.long
def test_busy_area_moves_to_a_standby_and_back(
    make_deployment: Callable[[str], Deployment], make_broker: Callable[..., Broker]
) -> None:
    """Messages of the area arrive at the standby; each decision has a reason."""
    standby = make_broker()
    analyst = Client(standby.endpoint, "analyst", "/3/#")
    deployment = make_deployment(f'mode = "on"\nbrokers = ["{standby.url}"]')
    wait_until(
        lambda: (
            deployment.brokers() == {"/": deployment.first.port, AREA: standby.port}
        ),
        30,
    )
    wait_until(lambda: analyst.on(HOT))
    assert f"autoscale: split broker 127.0.0.1:{standby.port} {AREA}" in deployment.log(
        "manager"
    )

    wait_until(lambda: deployment.report()["decisions"])
    lines = admin(deployment, "load").stdout.splitlines()
    assert lines[0].split()[:4] == ["part", "area", "server", "msgs/s"]
    spare = f"broker (spare)  {AREA}  127.0.0.1:{standby.port}"
    assert any(line.startswith(spare) for line in lines)
    assert "autoscale is on, decided by manager manager" in lines
    assert "autoscale: split broker" in admin(deployment, "why", HOT).stdout
    assert "autoscale: split broker" not in admin(deployment, "why", COLD).stdout

    deployment.interval_s = 1.0
    wait_until(lambda: deployment.brokers() == {"/": deployment.first.port})
    wait_until(
        lambda: any("join" in d["text"] for d in deployment.report()["decisions"])
    )
    all_texts = [d["text"] for d in deployment.report()["decisions"]]
    texts = [text for text in all_texts if not text.startswith("nothing")]
    assert [text.split()[0] for text in texts[:2]] == ["split", "join"]
    assert "messages/s for 1 s; /3/1 is " in texts[0]
    analyst.connection.stop()


def test_dry_run_logs_decisions_without_acting(
    make_deployment: Callable[[str], Deployment], make_broker: Callable[..., Broker]
) -> None:
    """An operator can review them before switching autoscaling on."""
    deployment = make_deployment(f'mode = "dry-run"\nbrokers = ["{make_broker().url}"]')
    wait_until(lambda: "autoscale would split broker" in deployment.log("manager"))
    wait_until(lambda: deployment.report()["decisions"])

    assert deployment.report()["decisions"][0]["is_dry_run"]
    assert deployment.brokers() == {"/": deployment.first.port}


def test_command_starts_and_stops_a_standby_across_a_restart(
    make_deployment: Callable[[str], Deployment],
    make_broker: Callable[..., Broker],
    tmp_path: Path,
) -> None:
    """With no standby left, a command starts one; a restarted Manager stops it."""
    extra = make_broker()
    command = tmp_path / "standby.sh"
    command.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\necho starting\necho {extra.url}\n'
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    deployment = make_deployment(
        f'mode = "on"\nstart_command = ["{command}", "start"]\n'
        f'stop_command = ["{command}", "stop"]'
    )
    wait_until(lambda: deployment.brokers().get(AREA) == extra.port)
    deployment.programs.kill("manager")
    deployment.start_manager()

    deployment.interval_s = 1.0
    ran = tmp_path / "ran"
    wait_until(lambda: "stop broker" in ran.read_text())
    assert ran.read_text() == f"start broker {AREA}\nstop broker {extra.url}\n"
    assert deployment.brokers() == {"/": deployment.first.port}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/nowhere/start"], "No such file"),
        ([shutil.which("false") or "/bin/false"], "status 1"),
        ([sys.executable, "-c", "print('hello')"], "mqtt://host:port"),
    ],
)
def test_failing_command_is_reported_and_changes_nothing(
    make_deployment: Callable[[str], Deployment], command: list[str], reason: str
) -> None:
    """The reason is published on `/api/errors`, and the Manager keeps running."""
    deployment = make_deployment(f'mode = "on"\nstart_command = {json.dumps(command)}')

    def errors() -> list[str]:
        return [e.decode() for e in deployment.watcher.on("/api/errors")]

    wait_until(lambda: any(reason in error for error in errors()))
    assert deployment.brokers() == {"/": deployment.first.port}

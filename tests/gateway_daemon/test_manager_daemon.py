"""A Manager as a process, spoken to as Gamma's gateways and tools do."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client, Programs

from gateway_daemon.manager.manager import APPLY_TIMEOUT_S

pytestmark = pytest.mark.broker

NOTICE, ERRORS = "/api/notice/gatewaybroker", "/api/errors"
TABLE, STATUS = "/api/brokertable/all/info", "/api/brokertable/update/status"
ADD, SET = "/api/tool/distributedbroker/add", "/api/tool/gatewaybroker/set"


class Office:
    """One Manager, its broker, and somebody who hears everything there."""

    def __init__(self, programs: Programs, broker: Broker, folder: Path) -> None:
        self.broker, self._programs, self._folder = broker, programs, folder
        self.start()
        self.client = Client(broker.endpoint, "watcher", "/api/#")
        wait_until(lambda: self.client.on(TABLE))

    def start(self) -> None:
        self._programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.broker.url}"\ndata = "{self._folder}/data"\n',
        )

    def say(self, topic: str, told: object) -> None:
        payload = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.client.publish(topic, payload)

    def gateway(self, broker: Broker, status: str, version: int = -1) -> None:
        info = {"host": "127.0.0.1", "port": broker.port}
        self.say(NOTICE, {"broker_info": info, "status": status, "version": version})

    def add_broker(self, area: str) -> None:
        self.say(ADD, {"topic": area, "broker_info": {"host": "b", "port": 1}})

    def version(self) -> int:
        return int(json.loads(self.client.on(TABLE)[-1])["version"])

    def listed(self) -> list[tuple[int, str]]:
        told = json.loads(self.client.on("/api/gateway/info/all")[-1])
        return [(e["broker_info"]["port"], e["topic"]) for e in told]

    def completions(self) -> int:
        return self.client.on(STATUS).count(b"complete")

    def errors(self) -> list[str]:
        return [error.decode() for error in self.client.on(ERRORS)]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    made.kill_all()


@pytest.fixture
def office(programs: Programs, broker: Broker, tmp_path: Path) -> Iterator[Office]:
    made = Office(programs, broker, tmp_path)
    yield made
    made.client.connection.stop()


HOSTILE = (
    b"",
    b"\xff\x00",
    b"null",
    b"[]",
    b"{}",
    b'{"broker_info":null}',
    b'{"broker_info":{"host":"","port":1},"status":"up"}',
    b'{"broker_info":{"host":"h","port":-1},"status":"up","topic":"/","topics":["/"]}',
    b'{"broker_info":{"host":"h","port":1},"status":"asleep","topics":[],"every_s":-1}',
    b"[" * 100_000,
)


@pytest.mark.parametrize(
    "topic",
    [
        NOTICE,
        f"{NOTICE}/here",
        f"{NOTICE}/down",
        f"{NOTICE}/load",
        SET,
        "/api/tool/gatewaybroker/forget",
        ADD,
        "/api/tool/distributedbroker/remove",
        "/api/manager/record/x",
        "/api/manager/load",
    ],
)
def test_bad_payload_is_refused_with_a_reason_and_harms_nobody(
    office: Office, topic: str
) -> None:
    """Gamma's Manager ends at the first one."""
    for payload in HOSTILE:
        office.say(topic, payload)
    office.add_broker("/1")
    wait_until(lambda: office.version() == 1)

    refusals = [e for e in office.errors() if e.startswith(f"{topic}: ")]
    assert len(refusals) >= 5
    assert all("must be" in error for error in refusals)


def test_duplicates_and_unknown_gateways_change_nothing(
    office: Office, make_broker: Callable[[], Broker]
) -> None:
    """Each refusal is told; what is said twice is said once."""
    known, unknown = make_broker(), make_broker()
    for _ in range(3):
        office.gateway(known, "up")
        office.add_broker("/1")
    office.gateway(unknown, "complete", 1)
    wait_until(lambda: any(str(unknown.port) in error for error in office.errors()))

    assert office.listed() == [(known.port, "/")]
    assert office.version() == 1


def test_gateway_that_dies_in_the_middle_of_an_update_holds_it_up_no_longer(
    office: Office, make_broker: Callable[[], Broker]
) -> None:
    """The others go on as soon as it is known to be gone."""
    first, second = make_broker(), make_broker()
    office.gateway(first, "up")
    office.gateway(second, "up")
    wait_until(lambda: len(office.listed()) == 2)
    before = office.completions()
    office.add_broker("/1")
    wait_until(lambda: office.version() == 1)
    office.gateway(first, "complete", 1)
    here = {"broker_info": {"host": "127.0.0.1", "port": second.port}}
    office.say(f"{NOTICE}/down", here)

    wait_until(lambda: office.completions() > before)
    assert office.listed() == [(first.port, "/")]


def test_gateway_that_says_nothing_is_waited_for_only_so_long(
    office: Office, make_broker: Callable[[], Broker]
) -> None:
    """It listens by both tables, so going on loses nothing; its name is told."""
    slow = make_broker()
    office.gateway(slow, "up")
    wait_until(lambda: office.listed() == [(slow.port, "/")])
    before = office.completions()
    office.add_broker("/1")

    wait_until(lambda: office.completions() > before, APPLY_TIMEOUT_S + 20)
    assert f"table 1: no word of 127.0.0.1:{slow.port}" in office.errors()


def test_lease_ends_when_nobody_heard_the_last_will(
    office: Office, make_broker: Callable[[], Broker], programs: Programs
) -> None:
    """A will reaches only a Manager that listens in that moment."""
    gone = make_broker()
    office.gateway(gone, "up")
    info = {"broker_info": {"host": "127.0.0.1", "port": gone.port}, "every_s": 0.5}
    office.say(f"{NOTICE}/here", info)
    wait_until(lambda: office.listed() == [(gone.port, "/")])

    wait_until(lambda: office.listed() == [])
    office.say(f"{NOTICE}/here", info)
    wait_until(lambda: office.listed() == [(gone.port, "/")])


def test_gateway_that_died_while_its_manager_was_down_is_found_out(
    office: Office, make_broker: Callable[[], Broker], programs: Programs
) -> None:
    """It was there when the Manager last looked, and never says so again."""
    gone = make_broker()
    office.gateway(gone, "up")
    info = {"broker_info": {"host": "127.0.0.1", "port": gone.port}, "every_s": 60}
    office.say(f"{NOTICE}/here", info)
    wait_until(lambda: office.listed() == [(gone.port, "/")])
    programs.kill("manager")
    office.start()

    wait_until(lambda: office.listed() == [], 60)


def test_damaged_registry_is_refused_with_a_remedy(
    office: Office, programs: Programs, tmp_path: Path
) -> None:
    """Starting empty would take areas and brokers from a running system."""
    programs.kill("manager", signal.SIGTERM)
    path = tmp_path / "data/registry.json"
    path.write_bytes(path.read_bytes()[:-5])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gateway_daemon", "manager"),
            *("--config", str(tmp_path / "manager.toml")),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )

    assert done.returncode == 78
    assert "move it away: other Managers, gateways and the settings fill" in done.stderr

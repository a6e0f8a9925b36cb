"""A Manager as a process, driven as by Gamma's gateways and tools."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from conftest import Broker, wait_until
from programs import Client, Programs
from soak.disk import fill, mounted
from soak.relay import Relay

from gateway_daemon.cli.admin import admin_commands
from gateway_daemon.manager import storage
from gateway_daemon.manager.manager import APPLY_TIMEOUT_S
from gateway_daemon.manager.replication import KeyedRecord, Record, RecordKey
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.topics import record_topic

pytestmark = pytest.mark.broker

NOTICE, ERRORS = "/api/notice/gatewaybroker", "/api/errors"
INFO, VIEW = "/api/gateway/info/all", "/api/manager/view"
TABLE, READY = "/api/brokertable/all/info", "/api/brokertable/update/ready"
ADD, SET = "/api/tool/distributedbroker/add", "/api/tool/gatewaybroker/set"
REMOVE = "/api/tool/distributedbroker/remove"


class ManagerProcess:
    """One Manager, its broker, and a client subscribed to `/api/#`."""

    def __init__(self, programs: Programs, broker: Broker, folder: Path) -> None:
        self.broker, self._programs, self._folder = broker, programs, folder
        self.start()
        self.client = Client(broker.endpoint, "watcher", "/api/#")
        wait_until(lambda: self.client.on(INFO))

    def start(self) -> None:
        self._programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.broker.url}"\ndata = "{self._folder}/data"\n',
        )

    def publish(self, topic: str, message: object) -> None:
        payload = (
            message if isinstance(message, bytes) else json.dumps(message).encode()
        )
        self.client.publish(topic, payload)

    def gateway(self, broker: Broker, status: str, version: int = -1) -> None:
        info = {"host": "127.0.0.1", "port": broker.port}
        self.publish(
            NOTICE, {"broker_info": info, "status": status, "version": version}
        )

    def add_broker(self, area: str) -> None:
        info = {"host": "localhost", "port": 1}
        self.publish(ADD, {"topic": area, "broker_info": info})

    def version(self) -> int:
        tables = self.client.on(TABLE)
        return int(json.loads(tables[-1])["version"]) if tables else 0

    def listed_gateways(self) -> list[tuple[int, str]]:
        entries = json.loads(self.client.on(INFO)[-1])
        return [(e["broker_info"]["port"], e["topic"]) for e in entries]

    def is_complete(self, version: int) -> bool:
        ready = self.client.on(READY)
        return bool(ready) and int(ready[-1]) == version

    def errors(self) -> list[str]:
        return [error.decode() for error in self.client.on(ERRORS)]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    created = Programs(tmp_path)
    yield created
    created.kill_all()


@pytest.fixture
def manager(
    programs: Programs, broker: Broker, tmp_path: Path
) -> Iterator[ManagerProcess]:
    created = ManagerProcess(programs, broker, tmp_path)
    yield created
    created.client.connection.stop()


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
        REMOVE,
        "/api/manager/record/x",
        "/api/manager/load",
    ],
)
def test_bad_payload_is_refused_with_a_reason(
    manager: ManagerProcess, topic: str
) -> None:
    """Gamma's Manager crashes at the first one."""
    for payload in HOSTILE:
        manager.publish(topic, payload)
    manager.add_broker("/1")
    wait_until(lambda: manager.version() == 1)

    def refusals() -> list[str]:
        return [e for e in manager.errors() if e.startswith(f"{topic}: ")]

    # The Manager has another connection for its answers than for its table.
    wait_until(lambda: len(refusals()) >= 5)
    assert all("must be" in error for error in refusals())


def test_duplicates_and_unknown_gateways_change_nothing(
    manager: ManagerProcess, make_broker: Callable[[], Broker]
) -> None:
    """Each refusal is published; a repeated notice has no effect."""
    known, unknown = make_broker(), make_broker()
    for _ in range(3):
        manager.gateway(known, "up")
        manager.add_broker("/1")
    setting = {"host": "127.0.0.1", "port": unknown.port}
    manager.publish(SET, {"topics": ["/1"], "broker_info": setting})
    wait_until(lambda: any(str(unknown.port) in error for error in manager.errors()))

    wait_until(lambda: manager.listed_gateways() == [(known.port, "/")])
    wait_until(lambda: manager.version() == 1)


def test_gateway_that_dies_during_an_update_does_not_block_it(
    manager: ManagerProcess, make_broker: Callable[[], Broker]
) -> None:
    """The update completes as soon as the gateway's departure is known."""
    first, second = make_broker(), make_broker()
    manager.gateway(first, "up")
    manager.gateway(second, "up")
    wait_until(lambda: len(manager.listed_gateways()) == 2)
    manager.add_broker("/1")
    wait_until(lambda: manager.version() == 1)
    manager.gateway(first, "complete", 1)
    here = {"broker_info": {"host": "127.0.0.1", "port": second.port}}
    manager.publish(f"{NOTICE}/down", here)

    wait_until(lambda: manager.is_complete(1))
    assert manager.listed_gateways() == [(first.port, "/")]


def test_full_disk_stops_no_registration(
    programs: Programs,
    broker: Broker,
    tmp_path: Path,
    make_broker: Callable[[], Broker],
) -> None:
    """The registry is written when there is space again."""
    with mounted(tmp_path / "data", "1m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        manager = ManagerProcess(programs, broker, tmp_path)
        wait_until((disk / "registry.json").exists)
        filler = fill(disk)
        gateway = make_broker()
        manager.gateway(gateway, "up")
        wait_until(lambda: manager.listed_gateways() == [(gateway.port, "/")])
        assert not storage.load_registry(disk / "registry.json").gateways
        filler.unlink()
        wait_until(lambda: storage.load_registry(disk / "registry.json").gateways)

        assert "cannot write" in (tmp_path / "manager.log").read_text()
        manager.client.connection.stop()
        assert programs.kill("manager", signal.SIGTERM) == 0


def test_gateways_that_miss_messages_at_a_new_broker_are_named(
    manager: ManagerProcess, make_broker: Callable[[], Broker]
) -> None:
    """An absent gateway has a session only at the brokers of the table so far."""
    gateway, second = make_broker(), make_broker()
    info = {"broker_info": {"host": "127.0.0.1", "port": gateway.port}, "every_s": 60}
    manager.publish(f"{NOTICE}/here", info)
    manager.gateway(gateway, "up")
    manager.add_broker("/1")
    wait_until(lambda: manager.version() == 1)
    manager.publish(f"{NOTICE}/down", info)
    wait_until(lambda: manager.listed_gateways() == [])
    manager.add_broker("/2")
    wait_until(lambda: manager.version() == 2)
    assert not any("away" in error for error in manager.errors())

    server = {"host": "127.0.0.1", "port": second.port}
    manager.publish(ADD, {"topic": "/3", "broker_info": server})
    named = f"table 3: 127.0.0.1:{second.port} new while 127.0.0.1:{gateway.port} away"
    wait_until(lambda: any(named in error for error in manager.errors()))


@contextmanager
def repeated_notices(
    manager: ManagerProcess, gateway: Broker, *statuses: str, pause_s: float
) -> Iterator[None]:
    """A gateway sends these notices in turn, again and again."""
    info = {"host": "127.0.0.1", "port": gateway.port}
    notices = [
        json.dumps({
            "broker_info": info,
            "status": s,
            "version": -1 if s == "up" else 9,
        })
        for s in statuses
    ]
    is_over, rogue = threading.Event(), Client(manager.broker.endpoint, "rogue")

    def send() -> None:
        for notice in cycle(notices):
            if is_over.wait(pause_s):
                return
            rogue.publish(
                f"/api/from/rogue{NOTICE.removeprefix('/api')}", notice.encode()
            )

    thread = threading.Thread(target=send)
    thread.start()
    try:
        wait_until(lambda: manager.listed_gateways() == [(gateway.port, "/")])
        yield
    finally:
        is_over.set()
        thread.join()
        rogue.connection.stop()


def test_flood_of_notices_delays_no_change_of_the_table(
    manager: ManagerProcess, make_broker: Callable[[], Broker]
) -> None:
    """Changes waited behind all notices, and for a moment without one."""
    rogue = make_broker()
    info = {"broker_info": {"host": "127.0.0.1", "port": rogue.port}, "every_s": 60}
    manager.publish(f"/api/from/rogue{NOTICE.removeprefix('/api')}/here", info)
    with repeated_notices(manager, rogue, "up", "complete", pause_s=0.0002):
        time.sleep(5)  # a backlog
        for version, area in enumerate(("/1", "/2"), start=1):
            manager.add_broker(area)
            wait_until(lambda version=version: manager.version() == version)
            wait_until(lambda version=version: manager.is_complete(version))


@pytest.mark.parametrize(
    "statuses",
    [("complete",), ("complete", "up"), pytest.param(("up",), marks=pytest.mark.long)],
    ids="+".join,
)
def test_repeated_notices_of_an_original_put_off_no_change(
    manager: ManagerProcess,
    make_broker: Callable[[], Broker],
    statuses: tuple[str, ...],
) -> None:
    """Each one began the time before "complete" again, and a change waits for that."""
    with repeated_notices(manager, make_broker(), *statuses, pause_s=0.2):
        for version, area in enumerate(("/", "/1", "/2"), start=1):
            port = make_broker().port
            entry = {"topic": area, "broker_info": {"host": "127.0.0.1", "port": port}}
            manager.publish(ADD, entry)
            wait_until(lambda version=version: manager.version() == version, 120)


@pytest.mark.long
def test_view_with_a_new_gateway_comes_before_the_list(
    manager: ManagerProcess, make_broker: Callable[..., Broker]
) -> None:
    """A Manager that takes over after a crash in between still waits for it."""
    gateway = make_broker()
    manager.gateway(gateway, "up")
    wait_until(lambda: (gateway.port, "/") in manager.listed_gateways())
    address = f'"port":{gateway.port}'.encode()
    topics = [m.topic for m in manager.client.got if address in m.payload]
    assert topics.index(VIEW) < topics.index(INFO)


@pytest.mark.long
def test_silent_gateway_blocks_an_update_for_a_limited_time(
    manager: ManagerProcess, make_broker: Callable[[], Broker]
) -> None:
    """It subscribes by both tables, so no message is lost; its name is published."""
    slow = make_broker()
    manager.gateway(slow, "up")
    wait_until(lambda: manager.listed_gateways() == [(slow.port, "/")])
    manager.add_broker("/1")

    wait_until(lambda: manager.is_complete(1), APPLY_TIMEOUT_S + 20)
    assert f"table 1: not applied by 127.0.0.1:{slow.port}" in manager.errors()


@pytest.mark.long
def test_commands_in_a_row_wait_for_a_silent_gateway(
    manager: ManagerProcess, make_broker: Callable[[], Broker]
) -> None:
    """The second change waits until the first is applied, or its gateway is skipped."""
    slow = make_broker()
    manager.gateway(slow, "up")
    wait_until(lambda: manager.listed_gateways() == [(slow.port, "/")])
    command = [sys.executable, "-m", "gateway_daemon", "admin", "--manager"]
    for area, url in (("/1", "mqtt://localhost:1"), ("/1/2", "mqtt://localhost:2")):
        words = [*command, manager.broker.url, "add-broker", area, url]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_lease_ends_when_the_last_will_was_missed(
    manager: ManagerProcess, make_broker: Callable[[], Broker], programs: Programs
) -> None:
    """A will reaches only a Manager that is connected at that moment."""
    gone = make_broker()
    manager.gateway(gone, "up")
    info = {"broker_info": {"host": "127.0.0.1", "port": gone.port}, "every_s": 0.5}
    manager.publish(f"{NOTICE}/here", info)
    wait_until(lambda: manager.listed_gateways() == [(gone.port, "/")])

    wait_until(lambda: manager.listed_gateways() == [])
    manager.publish(f"{NOTICE}/here", info)
    wait_until(lambda: manager.listed_gateways() == [(gone.port, "/")])


@pytest.mark.long
def test_gateway_that_died_while_the_manager_was_down_is_unlisted(
    manager: ManagerProcess, make_broker: Callable[[], Broker], programs: Programs
) -> None:
    """It is in the stored registry and sends no heartbeat."""
    gone = make_broker()
    manager.gateway(gone, "up")
    info = {"broker_info": {"host": "127.0.0.1", "port": gone.port}, "every_s": 60}
    manager.publish(f"{NOTICE}/here", info)
    # A heartbeat that is delivered again after the restart would renew the lease.
    manager.add_broker("/1")
    wait_until(lambda: manager.version() == 1)
    programs.kill("manager")
    manager.start()

    wait_until(lambda: manager.listed_gateways() == [], 120)


class HoldingRelay(Relay):
    """Holds back the session for notices until `is_released` is set."""

    def __init__(self, target_port: int) -> None:
        self.is_released = threading.Event()
        super().__init__(target_port)

    def on_chunk(self, chunk: bytes, *, is_sent: bool) -> None:
        if b"yamamori-manager-notices" in chunk:
            self.is_released.wait()


def test_list_is_published_when_the_session_for_notices_is_subscribed(
    programs: Programs, broker: Broker, tmp_path: Path
) -> None:
    """A gateway of the original that finds a list sends a notice, and sends it once."""
    relay = HoldingRelay(broker.port)
    watcher = Client(broker.endpoint, "watcher", "/api/#")
    programs.start(
        "manager",
        "manager",
        f'[manager]\nbroker = "mqtt://127.0.0.1:{relay.port}"\n'
        f'data = "{tmp_path}/data"\n[[broker]]\ntopic = "/"\nurl = "{broker.url}"\n',
    )
    wait_until(lambda: watcher.on(VIEW))
    before = watcher.on(INFO) + watcher.on(TABLE)
    relay.is_released.set()
    wait_until(lambda: watcher.on(INFO) and watcher.on(TABLE))
    watcher.connection.stop()
    relay.close()

    assert before == []


def test_each_edit_of_the_configured_broker_changes_the_table(
    programs: Programs, broker: Broker, tmp_path: Path
) -> None:
    """The log names what the settings changed, and what is not in the table."""
    watcher, log = Client(broker.endpoint, "watcher", TABLE), tmp_path / "manager.log"

    def start(host: str) -> None:
        config = (
            f'[manager]\nbroker = "{broker.url}"\ndata = "{tmp_path}/data"\n'
            f'[[broker]]\ntopic = "/"\nurl = "mqtt://{host}"\n'
            "[tls]\nallow_plain_mqtt = true\n"
        )
        programs.start("manager", "manager", config)

    def newest() -> tuple[int, list[str]]:
        table = json.loads((watcher.on(TABLE) or [b'{"version":0,"brokers":[]}'])[-1])
        return table["version"], [e["broker_info"]["host"] for e in table["brokers"]]

    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    for version, host in enumerate(hosts, start=1):
        start(host)
        wait_until(lambda expected=(version, [host]): newest() == expected)
        assert f"[[broker]] / -> {host}:1883 is now in the table" in log.read_text()
        if host != hosts[-1]:
            assert programs.kill("manager", signal.SIGTERM) == 0

    entry = {"topic": "/", "broker_info": {"host": hosts[-1], "port": 1883}}
    watcher.publish(REMOVE, json.dumps(entry).encode())
    wait_until(lambda: newest() == (4, []))
    assert programs.kill("manager", signal.SIGTERM) == 0
    start(hosts[-1])
    refused = f"[[broker]] / -> {hosts[-1]}:1883 is not in the table"
    wait_until(lambda: refused in log.read_text())
    watcher.connection.stop()


def test_manager_without_its_registry_publishes_nothing_older(
    programs: Programs, broker: Broker, tmp_path: Path
) -> None:
    """Its broker retains the records, which come one by one."""
    areas = [f"/{n % 6}/{'/'.join(str(n // 6 >> s & 3) for s in range(0, 8, 2))}"
             for n in range(1000)]  # fmt: skip
    server = BrokerInfo("localhost", 1)
    records = [KeyedRecord(RecordKey("broker", a), Record(server)) for a in areas]
    records.append(KeyedRecord(RecordKey("areas", "localhost:2"), Record(("/",))))
    watcher = Client(broker.endpoint, "watcher", INFO, TABLE)
    for each in records:
        topic = record_topic(f"{each.key.kind} {each.key.name}")
        watcher.publish(topic, msgspec.json.encode(each), retain=True)
    config = f'[manager]\nbroker = "{broker.url}"\ndata = "{tmp_path}/data"\n'
    programs.start("manager", "manager", config)
    wait_until(lambda: any(b'"version":1000,' in t for t in watcher.on(TABLE)))
    wait_until(lambda: watcher.on(INFO))
    watcher.connection.stop()

    assert {json.loads(table)["version"] for table in watcher.on(TABLE)} == {1000}
    assert all(json.loads(listed) for listed in watcher.on(INFO))


def test_damaged_registry_is_refused_with_a_remedy(
    manager: ManagerProcess, programs: Programs, tmp_path: Path
) -> None:
    """Starting empty would remove areas and brokers from a running system."""
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


def test_help_of_an_admin_command_needs_no_manager() -> None:
    """An operator reads which arguments a command takes before naming a Manager."""
    shown = CliRunner().invoke(admin_commands, ["add-broker", "--help"])
    assert shown.exit_code == 0
    assert "add-broker [OPTIONS]" in shown.output
    refused = CliRunner().invoke(admin_commands, ["brokers"])
    assert refused.exit_code == 2
    assert "Missing option '--manager'" in refused.output

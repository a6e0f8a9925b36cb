"""Runs the commands of the page on backups against running programs."""

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from conftest import Broker, free_port, wait_until
from console_workspace import Workspace, log_in
from ingesting import Sender
from object_stores import run_store
from page_shell import ROOT, Machine, sections

from backend_spark.console.audit_log import read_journal
from backend_spark.tables.reader import open_tables

PAGE = sections(ROOT / "docs/how-to/backup.md")
pytestmark = pytest.mark.broker


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """An empty machine."""
    made = Machine(tmp_path, **{"-R yamamori:": '-R "$(id -un):"'})
    yield made
    made.stop()


def test_manager_is_restored_as_it_was_backed_up(
    machine: Machine, broker: Broker
) -> None:
    """With the areas assigned before the backup, and without those assigned later."""
    backup, restore = PAGE["The Manager"]
    config = machine.folder / "manager.toml"
    config.write_text(
        f'[manager]\nbroker = "{broker.url}"\n'
        f'data = "{machine.folder}/var/manager"\n'
        '[[broker]]\ntopic = "/"\nurl = "mqtt://127.0.0.1:1"\n'
    )
    machine.unit("gateway-manager", f"gateway-daemon manager --config {config}")
    admin = f"gateway-daemon admin --manager {broker.url}"
    wait_until((machine.folder / "var/manager/registry.json").exists)
    machine.run(f"{admin} add-broker /3/1 mqtt://127.0.0.1:2")
    machine.run(backup)
    machine.run(f"{admin} add-broker /3/2 mqtt://127.0.0.1:3")
    shutil.rmtree(machine.folder / "var/manager")
    machine.run("systemctl stop gateway-manager")
    broker.kill()  # the retained messages are lost with the machine
    broker.start()
    machine.run("systemctl start gateway-manager")
    machine.run(restore)
    outputs = [""]
    wait_until(
        lambda: outputs.append(machine.run(f"{admin} brokers")) or "/3/1" in outputs[-1]
    )

    assert "/3/2 " not in outputs[-1]


class SendingNode:
    """A node that sends numbered messages."""

    def __init__(self, broker: Broker) -> None:
        self._sender = Sender(broker)
        self.count = 0
        wait_until(lambda: bool(self._sender.offers))

    def send(self, count: int) -> None:
        """Send `count` more messages, and wait for their receipts."""
        first, self.count = self.count, self.count + count
        self._send_all(range(first, self.count))

    def send_all_again(self) -> None:
        """Send all messages again, as after lost receipts."""
        self._sender.receipts.clear()
        self._send_all(range(self.count))

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send one message after another in a thread."""
        ended = threading.Event()

        def send_continuously() -> None:
            while not ended.wait(0.01):
                self.send(1)

        traffic = threading.Thread(target=send_continuously)
        traffic.start()
        yield
        ended.set()
        traffic.join()

    def close(self) -> None:
        """Disconnect."""
        self._sender.connection.stop()

    def _send_all(self, seqs: range) -> None:
        for seq in seqs:
            self._sender.send(seq, priority=5)
        wait_until(lambda: all(self._sender.has_receipt(seq) for seq in seqs))


@pytest.fixture(params=["The backend", "To an object store"])
def section(request: pytest.FixtureRequest, machine: Machine) -> Iterator[list[str]]:
    """Commands of a section of the page; a store has a bucket for them."""
    (machine.folder / "etc").mkdir()
    if request.param == "The backend":
        yield PAGE[request.param]
        return
    with run_store("s3", machine.folder / "store.log") as store:
        variables = (f"{name}={value}\n" for name, value in store.environment.items())
        (machine.folder / "etc/backup.env").write_text("".join(variables))
        machine.names["s3://city-backups"] = store.make_place()
        yield PAGE[request.param]


def test_console_goes_on_in_the_restored_folder(machine: Machine) -> None:
    """It runs before the restore; what is written after it is not in the old folder."""
    house = Workspace(machine.folder / "etc", free_port())
    house.folder.mkdir()
    data, config = machine.folder / "var/backend", house.folder / "backend.toml"
    (data / "log").mkdir(parents=True)  # as by ingest's first start
    settings = f"port = {house.port}\n{house.with_accounts()}\n"
    config.write_text(f'[backend]\ndata = "{data}"\n[console]\n{settings}')
    machine.unit("backend-console", f"backend-spark console --config {config}")
    backup, restore = PAGE["The backend"]
    with httpx.Client(base_url=f"http://127.0.0.1:{house.port}") as client:
        wait_until(lambda: is_answering(client))
        log_in(client, "a-analyst")
        machine.run(backup)
        machine.run(restore)
        wait_until(lambda: is_answering(client))
        log_in(client, "a-chief")

    journal = read_journal(data / "console/journal.sqlite", "login", limit=9)
    assert [entry.who for entry in journal] == ["a-chief", "a-analyst"]


def is_answering(client: httpx.Client) -> bool:
    """Whether the console serves its page."""
    try:
        return client.get("/").is_success
    except httpx.TransportError:
        return False


@pytest.mark.spark
@pytest.mark.long
def test_restored_backend_has_every_id_once(
    machine: Machine, broker: Broker, section: list[str]
) -> None:
    """Backed up while messages arrive; after the restore all are sent again."""
    backup, restore = section
    data, config = machine.folder / "var/backend", machine.folder / "etc/backend.toml"
    config.write_text(
        f'[backend]\ndata = "{data}"\n[ingest]\nbroker = "{broker.url}"\n'
        '[score]\nmaster = "local[1]"\n'
    )
    score = f"backend-spark score --once --config {config}"
    machine.unit("backend-ingest", f"backend-spark ingest --config {config}")
    machine.unit("backend-alerts", f"backend-spark alerts --config {config}")
    node = SendingNode(broker)
    node.send(20)
    machine.run(score)
    node.send(10)
    before = node.count
    with node.sending():
        machine.run(backup)
    machine.run(restore)
    shutil.rmtree(machine.folder / "var/backend.lost")
    node.send_all_again()
    machine.run(score)
    node.close()

    assert node.count > before
    wanted = dict.fromkeys(range(node.count), 1)
    tables = open_tables(data)
    wait_until(lambda: tables.read("alerts").num_rows == node.count)
    for name in ("messages", "bronze", "alerts"):
        assert Counter(tables.read(name)["seq"].to_pylist()) == wanted, name

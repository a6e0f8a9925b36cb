"""The commands of the page on backups, against running programs."""

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from ingesting import Sender
from page_shell import ROOT, Machine, sections

from backend_spark.tables.reader import open_tables

PAGE = sections(ROOT / "docs/how-to/backup.md")
pytestmark = pytest.mark.broker


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine without anything on it."""
    made = Machine(tmp_path)
    yield made
    made.stop()


def test_a_manager_is_back_as_it_was(machine: Machine, broker: Broker) -> None:
    """With the areas that an administrator gave; those given later are not there."""
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
    broker.kill()  # the machine is lost, and what its broker retained
    broker.start()
    machine.run("systemctl start gateway-manager")
    machine.run(restore)
    told = [""]
    wait_until(
        lambda: told.append(machine.run(f"{admin} brokers")) or "/3/1" in told[-1]
    )

    assert "/3/2 " not in told[-1]


class Slope:
    """A node that sends all the while, and remembers how far it is."""

    def __init__(self, broker: Broker) -> None:
        self._sender = Sender(broker)
        self.count = 0
        wait_until(lambda: bool(self._sender.offers))

    def send(self, count: int) -> None:
        """Send so many more, and wait for their receipts."""
        first, self.count = self.count, self.count + count
        self._bring(range(first, self.count))

    def send_all_again(self) -> None:
        """As after receipts that were lost."""
        self._sender.receipts.clear()
        self._bring(range(self.count))

    @contextmanager
    def sending(self) -> Iterator[None]:
        """One message after another meanwhile."""
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(0.01):
                self.send(1)

        traffic = threading.Thread(target=go_on)
        traffic.start()
        yield
        ended.set()
        traffic.join()

    def end(self) -> None:
        """Leave the broker."""
        self._sender.connection.stop()

    def _bring(self, seqs: range) -> None:
        for seq in seqs:
            self._sender.send(seq, priority=5)
        wait_until(lambda: all(self._sender.has_receipt(seq) for seq in seqs))


@pytest.mark.spark
def test_a_backend_is_back_with_every_id_once(machine: Machine, broker: Broker) -> None:
    """Copied while messages come in; then all of them come a second time."""
    backup, restore = PAGE["The backend"]
    data, config = machine.folder / "var/backend", machine.folder / "backend.toml"
    config.write_text(
        f'[backend]\ndata = "{data}"\n[ingest]\nbroker = "{broker.url}"\n'
        '[score]\nmaster = "local[1]"\n'
    )
    score = f"backend-spark score --once --config {config}"
    machine.unit("backend-ingest", f"backend-spark ingest --config {config}")
    machine.unit("backend-alerts", f"backend-spark alerts --config {config}")
    slope = Slope(broker)
    slope.send(20)
    machine.run(score)
    slope.send(10)
    before = slope.count
    with slope.sending():
        machine.run(backup)
    machine.run(restore)
    shutil.rmtree(machine.folder / "var/backend.lost")
    slope.send_all_again()
    machine.run(score)
    slope.end()

    assert slope.count > before
    assert "stop backend-alerts\n" in (machine.units / "done").read_text()
    wanted = dict.fromkeys(range(slope.count), 1)
    tables = open_tables(data)
    wait_until(lambda: tables.read("alerts").num_rows == slope.count)
    for name in ("messages", "bronze", "alerts"):
        assert Counter(tables.read(name)["seq"].to_pylist()) == wanted, name

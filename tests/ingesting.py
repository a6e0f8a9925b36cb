"""A node and the ingester process under test, on a real broker."""

import re
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from pathlib import Path

from conftest import Broker

from backend_spark.ingest.segment_log import read_segments
from spatial_mqtt.cells import Cell
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import OFFER_FILTER, cell_topic, custody_topic
from spatial_mqtt.transport import IncomingMessage, Publication, Session

TOPIC = cell_topic(Cell.at(33.56, 133.53))


def scrape(port: int) -> str:
    """The metrics page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        return page.read().decode()


def value(port: int, name: str) -> float:
    """Value of a metric without labels."""
    found = re.search(rf"^yamamori_{name} (\S+)$", scrape(port), re.MULTILINE)
    assert found is not None
    return float(found[1])


class Sender:
    """A node: publishes packs, and records receipts and offers."""

    def __init__(self, broker: Broker) -> None:
        self.receipts: list[CustodyReceipt] = []
        self.offers: list[CustodyOffer] = []
        self.is_ready = threading.Event()
        filters = [(custody_topic("node-1"), 1), (OFFER_FILTER, 1)]
        session = Session("node-1", filters)
        self.connection = Connection(broker.endpoint, session, self)
        self.connection.start()
        assert self.is_ready.wait(60)

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: IncomingMessage) -> None:
        """Record receipts and offers."""
        if message.topic == custody_topic("node-1"):
            self.receipts.append(CustodyReceipt.decode(message.payload))
        else:
            self.offers.append(CustodyOffer.decode(message.payload))

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        """Mark the sender as ready."""
        self.is_ready.set()

    def send(self, seq: int, priority: int = 1, topic: str = TOPIC) -> None:
        """Publish one pack."""
        readings = (Reading("rain", "mm", 0.5, 0.5 * seq),)
        pack = Pack(MessageId("node-1", "b", seq), priority, 1.8e9, readings)
        assert self.connection.publish(Publication(topic, encode_cbor(pack)))

    def has_receipt(self, seq: int) -> bool:
        """Whether a receipt contains a message."""
        message_id = MessageId("node-1", "b", seq)
        return any(message_id in receipt for receipt in self.receipts)


class IngestBench:
    """A data folder, and the ingester processes that run in it."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.config = config
        self.log = folder / "log"
        self.quarantine = folder / "quarantine"
        self.processes: list[subprocess.Popen[str]] = []
        self.module = ["-m", "backend_spark"]

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start another ingester process."""
        command = [sys.executable, *self.module, "ingest", "--config"]
        process = subprocess.Popen(
            [*command, str(self.config), *more], stderr=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    def logged(self) -> Counter[int]:
        """How often each sequence number is in the log."""
        tables = [table for _, table in read_segments(self.log)]
        return Counter(seq for table in tables for seq in table["seq"].to_pylist())

    def end_all(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
            process.communicate()

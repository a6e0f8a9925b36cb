"""The system under test: brokers, a gateway, an ingester and nodes, as processes."""

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from conftest import Broker, wait_until

from demo.processes import Processes
from edge_agent.queue.file_lifecycle import read_counters
from edge_agent.queue.sqlite_queue import SqliteQueue
from service_runtime.tls import Endpoint
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.directory import (
    BrokerEntry,
    BrokerInfo,
    BrokerTable,
    encode_directory_message,
)
from spatial_mqtt.topics import offer_topic

HERE = Path(__file__).parent
AGENT, FED, GATEWAY, INGEST = "agent", "fed", "gateway", "ingest"
LOCAL, DISTRIBUTED = "local broker", "distributed broker"
NODES = (AGENT, FED)
START_TIMEOUT_S = 300.0
BACK_TIMEOUT_S = 300.0
"""A receiver that lost its broker several times backs off for up to a minute."""

FED_PER_S = 30

NODE_TOML = """
[node]
id = "{id}"
latitude = 33.5588
longitude = 133.5312
[uplink]
gather_s = 0
gateway = "{gateway}"
[queue]
path = "{queue}"
"""
GAUGE = """
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
interval_s = {interval_s}
"""
WIRE = """
[[sensor]]
kind = "wire"
name = "wire"
pin = 27
interval_s = {interval_s}
"""
STORM = """
[simulation]
start = "2026-07-01T00:00:00+09:00"
epoch_unix_s = {now}
speedup = {speedup}
duration_h = {hours}
total_mm = {total_mm}
wire_break_after_h = {break_h}
ledger = "{ledger}"
"""
SPEEDUP = 240
GATEWAY_TOML = """
[gateway]
id = "gw-1"
broker = "{local}"
managers = []
data = "{folder}/gateway"
"""
INGEST_TOML = """
[backend]
data = "{folder}/backend"
[ingest]
id = "ingest-0"
broker = "{distributed}"
"""


@dataclass(frozen=True)
class Kill:
    """A kill -9.

    Attributes:
        victim: Killed program or broker.
        at_s: Monotonic time.
    """

    victim: str
    at_s: float


@dataclass
class Rig:
    """Starts and kills the parts of one system.

    Attributes:
        folder: Folder of all files.
        local: The gateway's own broker.
        distributed: The broker behind the gateway.
        gateway_url: Address at which nodes reach the gateway; None: its broker.
        fed_per_s: Messages per second that the fed node puts.
        can_pause_all: Whether `pause_nodes` also pauses the sensors of every node.
        shifts: Files with the wall clock's offset, by program.
        kills: Kills so far.
    """

    folder: Path
    local: Broker
    distributed: Broker
    gateway_url: str | None = None
    fed_per_s: int = FED_PER_S
    can_pause_all: bool = True
    shifts: dict[str, Path] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the settings that do not depend on the test."""
        self.processes = Processes(self.folder)
        self._queues: dict[str, Path] = {}
        self.pause_file = self.folder / "fed.notes.pause"
        urls = {"local": self.local.url, "distributed": self.distributed.url}
        for name, text in ((GATEWAY, GATEWAY_TOML), (INGEST, INGEST_TOML)):
            self._config(name).write_text(text.format(folder=self.folder, **urls))
        endpoint = self.distributed.endpoint
        entry = BrokerEntry("/", BrokerInfo(endpoint.host, endpoint.port))
        table = self.folder / "gateway" / "broker-table.json"
        table.parent.mkdir(exist_ok=True)
        table.write_bytes(encode_directory_message(BrokerTable(1, (entry,))))

    def write_node(self, name: str, more: str, queue: Path | None = None) -> None:
        """Write a node's settings: its position, and `more` from the test."""
        head = NODE_TOML.format(
            id=f"kochi-{name}",
            gateway=self.gateway_url or self.local.url,
            queue=queue or self.queue(name),
        )
        self._config(name).write_text(head + more)
        self._queues[name] = queue or self.queue(name)

    def write_storm(self, lasts_s: float) -> None:
        """Write the agent's settings: a storm of that length with all priorities."""
        hours = round(max(0.5, lasts_s * SPEEDUP / 3600), 3)
        storm = STORM.format(
            now=time.time(), speedup=SPEEDUP, hours=hours, break_h=0.7 * hours,
            total_mm=min(3000, 150 + 20 * hours), ledger=self.ledger(AGENT),
        )  # fmt: skip
        sensors = GAUGE.format(interval_s=60) + WIRE.format(interval_s=240)
        self.write_node(AGENT, storm + sensors)

    def write_fed(self, queue: Path | None = None, interval_s: float = 5) -> None:
        """Write the fed node's settings: a slope without rain."""
        quiet = STORM.format(
            now=time.time(), speedup=1, hours=1000, break_h=5000, total_mm=0,
            ledger=self.ledger(FED),
        )  # fmt: skip
        self.write_node(FED, quiet + GAUGE.format(interval_s=interval_s), queue)

    def start_backbone(self) -> None:
        """Start the gateway and the ingester, and wait until both give receipts."""
        self.start(INGEST)
        self.start(GATEWAY)
        for broker, receiver in ((self.local, "gw-1"), (self.distributed, "ingest-0")):
            topic = offer_topic(receiver)
            fetch_retained(broker.endpoint, topic, "probe", START_TIMEOUT_S)

    def start_broker(self, name: str) -> None:
        """Restart a broker, and wait until the store behind it has reconnected."""
        self.start(name)
        receiver = "gw-1" if name == LOCAL else "ingest-0"
        endpoint = self.brokers[name].endpoint
        fetch_retained(endpoint, offer_topic(receiver), "probe", BACK_TIMEOUT_S)

    def start_nodes(self, *names: str) -> None:
        """Start nodes, and wait until they log that the gateway gives receipts."""
        for name in names:
            self.start(name)
        wait_until(
            lambda: all("gives receipts" in self.log(name) for name in names),
            START_TIMEOUT_S,
        )

    def start(self, name: str) -> None:
        """Start or restart a program or a broker."""
        if name in self.brokers:
            self.brokers[name].start()
            return
        config = str(self._config(name))
        command = {
            AGENT: ("-m", "edge_agent", "run", "--config", config),
            FED: (str(HERE / "fed_node.py"), config, str(self.notes), self._rate),
            GATEWAY: ("-m", "gateway_daemon", "run", "--config", config),
            INGEST: ("-m", "backend_spark", "ingest", "--config", config),
        }[name]
        if name in self.shifts:
            command = (str(HERE / "shifted.py"), str(self.shifts[name]), *command)
        self.processes.start(name, sys.executable, *command)

    def kill(self, name: str) -> None:
        """Kill -9."""
        if name in self.brokers:
            self.brokers[name].kill()
        else:
            self.processes.kill(name)
        self.kills.append(Kill(name, time.monotonic()))

    def stop(self, *names: str) -> None:
        """Stop programs as systemd would; without names, all of them."""
        self.processes.stop(*names)

    def pause_nodes(self) -> None:
        """Stop putting messages at all nodes; their uplinks continue."""
        self.pause_file.touch()
        if AGENT in self.nodes:
            self.stop(AGENT)
            quiet = (
                self
                ._config(AGENT)
                .read_text()
                .replace("[simulation]", "[simulation]\nstop_after_h = 0")
            )
            self._config(AGENT).write_text(quiet)
            self.start(AGENT)

    def count_queued(self, *names: str) -> int:
        """Number of messages in the queue files of some nodes, or of the gateway."""
        time.sleep(0.1)  # callers poll in a loop
        paths = [self.lane if name == GATEWAY else self.queue(name) for name in names]
        return sum(
            row["rows"]
            for path in paths
            if path.exists()
            for row in read_counters(path).values()
        )

    def lost_at_most(self, name: str) -> int:
        """Upper bound of lost messages that a stopped node's queue reports."""
        queue = SqliteQueue(self.queue(name), f"kochi-{name}", "looks", 10**9)
        stats = queue.stats()
        queue.close()
        return stats.max_lost

    def raw_duplicates(self) -> int:
        """Duplicate deliveries that the stopped ingester logged."""
        counts = re.findall(r"stops: .* (\d+) duplicates", self.log(INGEST))
        return sum(map(int, counts))

    def queue(self, name: str) -> Path:
        """A node's queue file."""
        return self._queues.get(name, self.folder / f"{name}.db")

    @property
    def brokers(self) -> dict[str, Broker]:
        """Brokers by name."""
        return {LOCAL: self.local, DISTRIBUTED: self.distributed}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of this test."""
        return tuple(self._queues)

    def ledger(self, name: str) -> Path:
        """File in which the simulated node records its messages."""
        return self.folder / f"{name}.ledger"

    @property
    def notes(self) -> Path:
        """File in which the fed node records its messages."""
        return self.folder / "fed.notes"

    @property
    def archive(self) -> Path:
        """The ingester's log: the last store of the path."""
        return self.folder / "backend" / "log"

    @property
    def lane(self) -> Path:
        """The gateway's queue for the distributed broker."""
        endpoint: Endpoint = self.distributed.endpoint
        name = f"{endpoint.host}-{endpoint.port}.db"
        return self.folder / "gateway" / "lanes" / name

    def log(self, name: str) -> str:
        """A program's log."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _rate(self) -> str:
        return str(self.fed_per_s)

    def _config(self, name: str) -> Path:
        return self.folder / f"{name}.toml"

"""The complete system of the demo as processes, and the faults of the storm."""

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from backend_spark.console.places import read_place_file, write_places
from backend_spark.tables.reader import open_tables
from demo import console, scenario
from demo.console import Console
from demo.processes import Processes, free_port
from demo.scenario import Storm
from demo.terrain import write_terrain
from demo.witness import Put, ToReal, Verdict, judge, read_ledgers
from edge_agent.queue.base import QueueFileError
from edge_agent.queue.file_lifecycle import read_counters

CHUNK_BYTES = 1024


class Link:
    """TCP relay of one port to another, with a limited rate, that can be cut.

    Args:
        target_port: Port of the target on this machine.
        bytes_per_s: Rate of each direction.
    """

    def __init__(self, target_port: int, bytes_per_s: float) -> None:
        self._target_port = target_port
        self._bytes_per_s = bytes_per_s
        self._open: set[socket.socket] = set()
        self._is_up = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Small buffers, so that messages wait in the sender's queue, not here.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._is_up = False
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Accept connections again."""
        self._is_up = True

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if not self._is_up:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(
                    target=self._pump, args=(source, sink), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        self._open.add(source)
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                sink.sendall(chunk)
                time.sleep(len(chunk) / self._bytes_per_s)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()


START_LEAD_S = 8.0
"""Real seconds between starting the nodes and the first drop of rain."""

WARM_UP_S = 90.0
PLACES = Path(__file__).parent / "places.csv"


@dataclass(frozen=True)
class Ports:
    """TCP ports of the brokers."""

    manager: int
    distributed: int
    gateways: dict[str, int]


class System:
    """Starts all processes in a folder, injects faults, and ends the processes."""

    def __init__(self, folder: Path, storm: Storm) -> None:
        self.folder = folder
        self.storm = storm
        self.processes = Processes(folder)
        self.backend = folder / "backend"
        self._ports = Ports(
            free_port(),
            free_port(),
            {valley.name: free_port() for valley in scenario.VALLEYS},
        )
        self.console = Console.made(folder, free_port())
        self._link: Link | None = None
        self.epoch_s = 0.0

    def start_backbone(self) -> None:
        """Start brokers, Manager, gateways, ingest and scoring."""
        ports = self._ports
        self.processes.mosquitto("broker-manager", ports.manager)
        self.processes.mosquitto("broker-distributed", ports.distributed)
        for name, port in ports.gateways.items():
            self.processes.mosquitto(f"broker-{name}", port)
        config = self._write("backend.toml", self._backend_toml())
        self.processes.python(
            "score", "backend_spark", "score", "--config", config, nice=5
        )
        for name in ("ingest", "alerts"):
            self.processes.python(name, "backend_spark", name, "--config", config)
        manager = self._write("manager.toml", self._manager_toml())
        self.processes.python(
            "manager", "gateway_daemon", "manager", "--config", manager
        )
        for valley in scenario.VALLEYS:
            config = self._write(f"{valley.name}.toml", self._gateway_toml(valley))
            self.processes.python(
                valley.name, "gateway_daemon", "run", "--config", config
            )

    def start_console(self) -> None:
        """Start the console, with the names of the slopes."""
        write_places(self.backend, read_place_file(PLACES).places)
        # Another program may have taken the port chosen minutes ago.
        self.console = replace(self.console, port=free_port())
        write_terrain(self.folder)
        config = self._write("console.toml", self._backend_toml())
        self.processes.python(
            "console", "backend_spark", "console", "--config", config, nice=5
        )

    def start_nodes(self) -> None:
        """Start all nodes; the storm begins for all of them at the same time."""
        self.epoch_s = time.time() + START_LEAD_S
        self._link = Link(self._ports.gateways["gw-otani"], scenario.LINK_BYTES_PER_S)
        for valley, plan in scenario.nodes():
            uplink = f'managers = ["{_url(self._ports.manager)}"]'
            if plan.id == scenario.CUT:
                uplink = f'gateway = "{_url(self._link.port)}"'
            where = {"uplink": uplink, "folder": str(self.folder)}
            text = scenario.node_toml(plan, valley, self.storm, where, self.epoch_s)
            self._write(f"{plan.id}.toml", text)
            self.start_node(plan.id)

    def start_node(self, node: str) -> None:
        """Start or restart one node."""
        config = str(self.folder / f"{node}.toml")
        self.processes.python(node, "edge_agent", "run", "--config", config)

    def cut_link(self) -> None:
        """Cut the link of one node."""
        assert self._link is not None
        self._link.cut()

    def mend_link(self) -> None:
        """Restore the link, at 50 kbps."""
        assert self._link is not None
        self._link.mend()

    def stop(self) -> None:
        """End all processes, the nodes first."""
        self.processes.stop()

    @property
    def elapsed(self) -> float:
        """Share of the storm that is over; negative before it."""
        return (time.time() - self.epoch_s) / self.storm.real_duration_s

    def put(self) -> Put:
        """Return all messages put on a queue, from the ledgers."""
        return read_ledgers(self.folder.glob("*.ledger"))

    def waiting(self) -> int:
        """Return the number of messages in the nodes' queues."""
        return sum(
            self._rows(self.folder / f"{plan.id}.db") for _, plan in scenario.nodes()
        )

    def verdict(self) -> Verdict:
        """Compare the messages that were put with the log and the gold table."""
        to_real = ToReal(self.storm.start.timestamp(), self.epoch_s, self.storm.speedup)
        return judge(self.put(), self.backend / "log", self.scored(), to_real)

    def scored(self) -> list[str]:
        """Return the ids in gold, including duplicates."""
        rows = open_tables(self.backend).messages().to_pylist()
        return [f"{row['node']}:{row['boot']}:{row['seq']}" for row in rows]

    def is_ready(self) -> bool:
        """Whether the gateways and the ingest are up and Spark is scoring."""
        logs = ["ingest", *(valley.name for valley in scenario.VALLEYS)]
        return all(
            "is up" in self._log(name) for name in logs
        ) and "scoring" in self._log("score")

    def is_console_up(self) -> bool:
        """Whether the console serves its pages."""
        return console.READY in self._log("console")

    def _log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _rows(self, path: Path) -> int:
        try:
            return sum(row["rows"] for row in read_counters(path).values())
        except QueueFileError:
            return 0

    def _write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def _manager_toml(self) -> str:
        return (
            f'[manager]\nbroker = "{_url(self._ports.manager)}"\n'
            f'data = "{self.folder}/manager"\n\n'
            f'[[broker]]\ntopic = "/"\nurl = "{_url(self._ports.distributed)}"\n'
        )

    def _gateway_toml(self, valley: scenario.Valley) -> str:
        areas = ", ".join(f'"{area}"' for area in valley.areas)
        return (
            f'[gateway]\nid = "{valley.name}"\n'
            f'broker = "{_url(self._ports.gateways[valley.name])}"\n'
            f'managers = ["{_url(self._ports.manager)}"]\nareas = [{areas}]\n'
            f'data = "{self.folder}/{valley.name}"\n'
        )

    def _backend_toml(self) -> str:
        return (
            f'[backend]\ndata = "{self.backend}"\n\n'
            f'[ingest]\nid = "ingest-0"\nbroker = "{_url(self._ports.distributed)}"\n\n'
            '[score]\nmaster = "local[2]"\ntrigger_s = 1.0\n'
            f"{self.console.toml()}"
        )


def _url(port: int) -> str:
    return f"mqtt://127.0.0.1:{port}"

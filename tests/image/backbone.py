"""Receivers for nodes and gateways, on this machine: brokers, Manager and ingester."""

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from conftest import Broker, free_port
from programs import Client

from backend_spark.ingest.segment_log import read_segments
from demo.processes import Processes
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.senml import Pack, decode_pack
from spatial_mqtt.topics import offer_topic

HOST = "10.0.2.2"
"""Address of this machine in QEMU's network."""

LOOPBACK = "127.0.0.1"

CONFIGS = {
    "manager": """
[manager]
broker = "{manager}"
data = "{folder}/manager"
[[broker]]
topic = "/"
url = "{distributed}"
[tls]
allow_plain_mqtt = true
""",
    "gateway": """
[gateway]
id = "gw-1"
broker = "{local}"
managers = ["{manager}"]
areas = ["/1/2/2"]
data = "{folder}/gateway"
[tls]
allow_plain_mqtt = true
""",
    "ingest": """
[backend]
data = "{folder}/backend"
[ingest]
id = "ingest-0"
broker = "{distributed}"
[tls]
allow_plain_mqtt = true
""",
}
PROGRAMS = {
    "manager": ("gateway_daemon", "manager"),
    "gateway": ("gateway_daemon", "run"),
    "ingest": ("backend_spark", "ingest"),
}


def own_address() -> str:
    """An address of this machine that QEMU's network also reaches, else 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: nothing is sent
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


class Backbone:
    """A Manager and the ingester, as processes with real brokers."""

    def __init__(self, folder: Path, make_broker: Callable[..., Broker]) -> None:
        self.folder = folder
        at = f"{free_port()} {own_address()}"
        self.brokers = {n: make_broker() for n in ("manager", "local")}
        self.brokers["distributed"] = make_broker(f"listener {at}")
        self.processes = Processes(folder)
        urls = {name: broker.url for name, broker in self.brokers.items()}
        urls["distributed"] = "mqtt://{1}:{0}".format(*at.split())
        for name, text in CONFIGS.items():
            (folder / f"{name}.toml").write_text(text.format(**urls, folder=folder))
        self.start("manager")
        self.start("ingest")
        self._analyst = Client(self.brokers["distributed"].endpoint, "analyst", "/1/#")

    def open_gateway(self) -> None:
        """Start a gateway on this machine, and wait until it accepts messages."""
        self.start("gateway")
        local = self.brokers["local"].endpoint
        fetch_retained(local, offer_topic("gw-1"), "probe", 60)

    def start(self, name: str) -> None:
        module, command = PROGRAMS[name]
        config = str(self.folder / f"{name}.toml")
        self.processes.python(name, module, command, "--config", config)

    @property
    def node_url(self) -> str:
        """URL of the gateway for the node in QEMU."""
        return f"mqtt://{HOST}:{self.brokers['local'].port}"

    def archived(self) -> dict[int, int]:
        """Priority of each message in the log, by its sequence number."""
        return {row["seq"]: row["pri"] for row in self._rows()}

    def packs(self) -> list[Pack]:
        """Packs that the analyst has received, in the order of arrival."""
        return [decode_pack(message.payload) for message in list(self._analyst.got)]

    def count(self) -> float:
        """Highest tip counter received; 0 before the first."""
        sums = [r.sum for p in self.packs() for r in p.readings if r.sum is not None]
        return max(sums, default=0.0)

    def names(self) -> set[str]:
        """Names of all readings received."""
        return {r.name for p in self.packs() for r in p.readings}

    def duplicates(self) -> int:
        """Number of duplicate messages in the log."""
        return len(self._rows()) - len(self.archived())

    def close(self) -> None:
        """Stop everything except the brokers."""
        self._analyst.connection.stop()
        self.processes.stop()

    def _rows(self) -> list[dict[str, int]]:
        log = self.folder / "backend/log"
        if not log.is_dir():
            return []
        columns = ("node", "boot", "seq", "pri")
        return [
            row for _, table in read_segments(log, columns) for row in table.to_pylist()
        ]


class TimeServer(threading.Thread):
    """Answers SNTP (RFC 5905) with this machine's time, on the usual port."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._server = socketserver.UDPServer(("127.0.0.1", 123), _Answer)

    def run(self) -> None:
        self._server.serve_forever()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        packet, sock = self.request
        now = int((time.time() + 2208988800) * 2**32)
        head = struct.pack(">BBbbII4sQ", 0x24, 1, 6, -20, 0, 0, b"TEST", now)
        answer = head + packet[40:48] + struct.pack(">QQ", now, now)
        sock.sendto(answer, self.client_address)

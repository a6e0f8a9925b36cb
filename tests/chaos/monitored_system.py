"""A system whose daemons report their status and serve Prometheus metrics."""

import os
import re
import socket
import threading
import urllib.request
from dataclasses import dataclass, field

from chaos.whole_system import MANAGER, WholeSystem
from conftest import free_port
from soak.rig import FED, GATEWAY, INGEST

PROGRAM_NAMES = {
    "node": FED,
    "gateway": GATEWAY,
    "Manager": MANAGER,
    "ingester": INGEST,
}
"""Programs by their name on the runbooks page."""


@dataclass
class MonitoredSystem(WholeSystem):
    """A system that is monitored as by systemd and Prometheus.

    Attributes:
        statuses: Last status line of each program.
    """

    statuses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add the metrics address to each program's settings."""
        super().__post_init__()
        self._ports = {name: free_port() for name in (GATEWAY, MANAGER, INGEST)}
        self._since: dict[str, int] = {}
        for name, port in self._ports.items():
            config = self._config(name)
            listen = f'[metrics]\nlisten = "127.0.0.1:{port}"\n'
            config.write_text(config.read_text() + listen)

    def start(self, name: str) -> None:
        """Start a program with a notify socket and a watchdog."""
        if name not in self.brokers:
            path = self.folder / f"{name}.notify"
            if not path.exists():
                notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                notify.bind(str(path))
                threading.Thread(
                    target=self._receive, args=(name, notify), daemon=True
                ).start()
            os.environ["NOTIFY_SOCKET"] = str(path)
            os.environ["WATCHDOG_USEC"] = "2000000"
        super().start(name)

    def mark_journals(self) -> None:
        """Ignore what the journals contain so far."""
        self._since = {name: len(self.log(name)) for name in PROGRAM_NAMES.values()}

    def shows(self, where: str, program: str, text: str, value: str = "") -> bool:
        """Whether a symptom is visible now.

        Args:
            where: ``status``, ``journal`` or ``metrics``.
            program: Name of the program on the runbooks page.
            text: Text of a status or the journal, or a metric's name.
            value: A metric's value: ``0``, or ``above 0``.
        """
        name = PROGRAM_NAMES[program]
        match where:
            case "status":
                return text in self.statuses.get(name, "")
            case "journal":
                return text in self.log(name)[self._since.get(name, 0) :]
            case _:
                above, _, bound = value.rpartition(" ")
                found = self._metric(name, text)
                return any(
                    v > float(bound) if above else v == float(bound) for v in found
                )

    def _metric(self, name: str, metric: str) -> list[float]:
        address = f"http://127.0.0.1:{self._ports[name]}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(
            rf"^{re.escape(metric)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE
        )
        return [float(value) for value in found]

    def _receive(self, name: str, notify: socket.socket) -> None:
        while True:
            for line in notify.recv(65_536).decode().splitlines():
                if line.startswith("STATUS="):
                    self.statuses[name] = line.removeprefix("STATUS=")

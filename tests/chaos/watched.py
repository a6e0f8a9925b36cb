"""A house whose daemons tell their status, and answer Prometheus."""

import os
import re
import socket
import threading
import urllib.request
from dataclasses import dataclass, field

from chaos.house import MANAGER, House
from conftest import free_port
from soak.rig import FED, GATEWAY, INGEST

WHO = {"node": FED, "gateway": GATEWAY, "Manager": MANAGER, "ingester": INGEST}
"""Programs, as a page for operators calls them."""


@dataclass
class Watched(House):
    """A house as systemd and Prometheus see it.

    Attributes:
        told: The last status of each program.
    """

    told: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Write where each program answers."""
        super().__post_init__()
        self._ports = {name: free_port() for name in (GATEWAY, MANAGER, INGEST)}
        self._since: dict[str, int] = {}
        for name, port in self._ports.items():
            config = self._config(name)
            listen = f'[metrics]\nlisten = "127.0.0.1:{port}"\n'
            config.write_text(config.read_text() + listen)

    def start(self, name: str) -> None:
        """Start a program that finds a service manager."""
        if name not in self.brokers:
            path = self.folder / f"{name}.notify"
            if not path.exists():
                heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                heard.bind(str(path))
                threading.Thread(
                    target=self._hear, args=(name, heard), daemon=True
                ).start()
            os.environ["NOTIFY_SOCKET"] = str(path)
            os.environ["WATCHDOG_USEC"] = "2000000"
        super().start(name)

    def forget(self) -> None:
        """What was written into the journals so far is old."""
        self._since = {name: len(self.log(name)) for name in WHO.values()}

    def shows(self, where: str, who: str, words: str, than: str = "") -> bool:
        """Whether a symptom can be seen now.

        Args:
            where: ``status``, ``journal`` or ``metrics``.
            who: As the page calls the program.
            words: Text of a status or the journal, or a metric's name.
            than: A metric's value: ``0``, or ``above 0``.
        """
        name = WHO[who]
        match where:
            case "status":
                return words in self.told.get(name, "")
            case "journal":
                return words in self.log(name)[self._since.get(name, 0) :]
            case _:
                above, _, value = than.rpartition(" ")
                found = self._metric(name, words)
                return any(
                    v > float(value) if above else v == float(value) for v in found
                )

    def _metric(self, name: str, metric: str) -> list[float]:
        address = f"http://127.0.0.1:{self._ports[name]}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(
            rf"^{re.escape(metric)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE
        )
        return [float(value) for value in found]

    def _hear(self, name: str, heard: socket.socket) -> None:
        while True:
            for line in heard.recv(65_536).decode().splitlines():
                if line.startswith("STATUS="):
                    self.told[name] = line.removeprefix("STATUS=")

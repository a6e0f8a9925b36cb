"""Both ends of the path of notices: a table of levels, and an agent with a lamp."""

import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pyarrow as pa
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deltalake import write_deltalake

from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import LEVELS
from edge_agent.status import load_status
from spatial_mqtt.cells import Cell

CELL = Cell.at(33.5588, 133.5312, 13)


class Agent:
    """`edge-agent run` on gpiozero's mock pins, with a notify socket and a watchdog."""

    def __init__(self, folder: Path, text: str) -> None:
        self._folder = folder
        path = folder / "node.toml"
        path.write_text(text)
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(folder / "notify"))
        threading.Thread(target=_drain, args=(notify,), daemon=True).start()
        env = {
            **os.environ,
            "GPIOZERO_PIN_FACTORY": "mock",
            "NOTIFY_SOCKET": str(folder / "notify"),
            "RUNTIME_DIRECTORY": str(folder),
            "WATCHDOG_USEC": "3000000",
        }
        command = [sys.executable, "-m", "edge_agent", "run", "--config", str(path)]
        with (folder / "node.log").open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env=env)

    def status(self) -> dict[str, object]:
        """The agent's last status; empty before the first."""
        try:
            return load_status(self._folder)
        except FileNotFoundError:
            return {}

    def shown(self) -> str:
        """Output of `edge-agent status`."""
        command = [sys.executable, "-m", "edge_agent", "status", "--run"]
        done = subprocess.run(
            [*command, str(self._folder)], capture_output=True, text=True, check=False
        )
        return done.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # its stacks go to the log
            self.process.wait()
            log = (self._folder / "node.log").read_text()
            raise AssertionError(f"the node does not stop:\n{log}") from None


def _drain(notify: socket.socket) -> None:
    while notify.recv(4096):
        pass


def write_level(data: Path, level: int) -> None:
    """Append a row to the levels table, as the scoring job does."""
    row = {
        **dict.fromkeys(LEVELS.names), "cell": CELL.token, "at": datetime.now(UTC),
        "lower_bound": False, "rain_known": True, "level": level,
    }  # fmt: skip
    table = pa.Table.from_pylist([row], LEVELS)
    path = open_tables(data).path("levels")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_deltalake(str(path), table, mode="append")


def write_keys(folder: Path) -> None:
    key = Ed25519PrivateKey.generate()
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "office").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
    )
    (folder / "office.pub").write_bytes(
        key.public_key().public_bytes(
            pem, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )

"""Programs under test as processes, and a plain MQTT client."""

import os
import signal
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

from click.testing import CliRunner

from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import IncomingMessage, Publication, Session


def run_command(
    program: str, *words: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command of a node or a gateway in this process, and wait for its end.

    A process of its own takes ten times as long, nearly all for imports; the pages'
    commands, which tests/docs runs, have one.

    Args:
        program: ``edge_agent`` or ``gateway_daemon``.
        words: The command and its arguments.
        given: Its standard input.
    """
    cli = import_module(f"{program}.cli").cli
    done = CliRunner().invoke(cli, words, given, catch_exceptions=False)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


class Client:
    """A plain client that records received messages and can publish."""

    def __init__(self, endpoint: Endpoint, name: str, *filters: str) -> None:
        self.got: list[IncomingMessage] = []
        self.is_ready = threading.Event()
        self._filters = filters
        session = Session(name, [(f, 2) for f in filters])
        self.connection = Connection(endpoint, session, self)
        self.connection.start()
        assert self.is_ready.wait(60)

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        if not self._filters:
            self.is_ready.set()

    def on_down(self, reason: str) -> None:
        pass

    def on_message(self, message: IncomingMessage) -> None:
        self.got.append(message)

    def on_published(self, token: int, refused: str | None) -> None:
        pass

    def on_subscribed(self) -> None:
        self.is_ready.set()

    def publish(self, topic: str, payload: bytes, **more: object) -> None:
        assert self.connection.publish(Publication(topic, payload, **more)) is not None

    def on(self, topic: str) -> list[bytes]:
        return [m.payload for m in self.got if m.topic == topic]


class Programs:
    """The programs under test, as processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: str, config: str) -> None:
        path = self._folder / f"{name}.toml"
        path.write_text(config)
        log = (self._folder / f"{name}.log").open("ab")
        arguments = [
            sys.executable,
            "-m",
            "gateway_daemon",
            command,
            "--config",
            str(path),
        ]
        self._running[name] = subprocess.Popen(arguments, stderr=log)

    def kill(self, name: str, how: int = signal.SIGKILL) -> int:
        process = self._running.pop(name)
        os.kill(process.pid, how)
        return process.wait()

    def kill_all(self) -> None:
        """Kill them; pytest shows the ends of their logs if the test has failed."""
        for name in list(self._running):
            self.kill(name)
        for log in sorted(self._folder.glob("*.log")):
            tail = log.read_text(errors="replace")[-3000:]
            sys.stdout.write(f"--- {log.name}\n{tail}\n")

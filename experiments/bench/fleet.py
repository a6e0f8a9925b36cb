"""Gateways of the overlay as processes, on several real brokers."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
VALLEY_TOPICS = ("/3/1/2/0/0", "/3/1/2/0/1", "/3/1/2/0/2", "/3/1/2/0/3", "/3/1/2/1/0",
           "/3/1/2/1/1", "/3/1/2/1/2", "/3/1/2/1/3")  # fmt: skip
CELL_SUFFIX = "/0/0/0/0/0/0/0"
"""Completes a valley's topic to a cell; a valley is a cell of level 11."""


ANSWER_TIMEOUT_S = 120.0
"""Long, because processes start slowly on a busy machine."""


class Member:
    """One gateway process.

    Attributes:
        received: Times at which each message was delivered to its clients.
        results: Results of its publications: nodes reached, and whether complete.
        links: Its keys with their neighbours, from the last query.
    """

    def __init__(self, number: int, broker: int, peer: int, more: list[str]) -> None:
        self.id = f"g{number}"
        place = VALLEY_TOPICS[number % len(VALLEY_TOPICS)] + CELL_SUFFIX
        command = [sys.executable, "-m", "experiments.bench.overlay_node"]
        command += ["--id", self.id, "--place", place, "--broker", str(broker)]
        self.process = subprocess.Popen(
            [*command, "--peer", str(peer), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.received: dict[str, list[float]] = defaultdict(list)
        self.results: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        self.links: list[list[list[object]]] | None = None
        threading.Thread(target=self._read_output, daemon=True).start()

    def send_command(self, *command: object) -> None:
        """Send a command to the process."""
        assert self.process.stdin is not None  # noqa: S101 - we opened it
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _read_output(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - we opened it
        for line in self.process.stdout:
            match json.loads(line):
                case ["received", id_, at_s]:
                    self.received[id_].append(at_s)
                case ["result", id_, reached, is_complete]:
                    self.results[id_].append((reached, is_complete))
                case ["links", links]:
                    self.links = links


class Fleet:
    """Gateways and brokers; a context manager.

    Args:
        gateways: Number of gateways.
        brokers: Number of Mosquittos that they share.
        folder: Folder for the brokers' configurations.
        more: Options of every gateway.

    Attributes:
        alive: Gateways that have not been killed.
    """

    def __init__(self, gateways: int, brokers: int, folder: Path, *more: str) -> None:
        self._ports = [_free_port() for _ in range(brokers)]
        self._brokers: list[subprocess.Popen[bytes]] = []
        self._gateways, self._folder, self._more = gateways, folder, list(more)
        self.alive: list[Member] = []

    def __enter__(self) -> Self:
        """Start all processes; they join one overlay afterwards."""
        mosquitto = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        for port in self._ports:
            config = self._folder / f"mosquitto-{port}.conf"
            config.write_text(
                f"listener {port} 127.0.0.1\nallow_anonymous true\n"
                "max_queued_messages 0\nmax_inflight_messages 0\nset_tcp_nodelay true\n"
            )
            self._brokers.append(
                subprocess.Popen(
                    [mosquitto, "-c", str(config)], stderr=subprocess.DEVNULL
                )
            )
        ports = self._ports
        for number in range(self._gateways):
            port = ports[number % len(ports)]
            self.alive.append(Member(number, port, ports[0], self._more))
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        for member in self.alive:
            member.kill()
        for broker in self._brokers:
            broker.kill()
            broker.wait()

    def is_ring(self) -> bool:
        """Whether level 0 of the live gateways is one sorted and complete ring."""
        for member in self.alive:
            member.links = None
            member.send_command("links")
        wait_until(
            lambda: all(m.links is not None for m in self.alive), ANSWER_TIMEOUT_S
        )
        rows = [row for m in self.alive for row in m.links or []]
        keys = {_key(row[0]): (_key(row[1]), _key(row[2])) for row in rows}
        ring = sorted(keys)
        subscribers = sum(role == 1 for _, role, _ in ring)
        home_keys = sum(not topic for topic, _, _ in ring)
        after = [*ring[1:], *ring[:1]]
        is_linked = all(
            keys[key][1] == right and keys[right][0] == key
            for key, right in zip(ring, after, strict=True)
        )
        return is_linked and subscribers == home_keys == len(self.alive)

    def kill(self, members: list[Member]) -> None:
        """End some gateways with SIGKILL."""
        for member in members:
            member.kill()
            self.alive.remove(member)


def wait_until(is_true: Callable[[], object], timeout_s: float) -> float:
    """Wait until a condition holds; return how long it took, in seconds.

    Raises:
        TimeoutError: It did not hold in time.
    """
    start_s = time.monotonic()
    while not is_true():
        if time.monotonic() - start_s > timeout_s:
            raise TimeoutError(f"not within {timeout_s:g} s")
        time.sleep(0.02)
    return time.monotonic() - start_s


def _key(fields: list[object]) -> tuple[str, int, str]:
    topic, role, gateway = fields
    return str(topic), int(str(role)), str(gateway)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])

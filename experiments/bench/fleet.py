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
VALLEYS = ("/3/1/2/0/0", "/3/1/2/0/1", "/3/1/2/0/2", "/3/1/2/0/3", "/3/1/2/1/0",
           "/3/1/2/1/1", "/3/1/2/1/2", "/3/1/2/1/3")  # fmt: skip
BELOW = "/0/0/0/0/0/0/0"
"""A valley is a cell of level 11: these lie in eight different ones."""


ANSWER_S = 120.0
"""On a busy machine a process takes its time to start."""


class Member:
    """One gateway process.

    Attributes:
        heard: When each message was handed to its clients, all times.
        ended: What it was told of its publications.
        links: Its keys with their neighbours, when last asked.
    """

    def __init__(self, number: int, broker: int, peer: int, more: list[str]) -> None:
        self.id = f"g{number}"
        place = VALLEYS[number % len(VALLEYS)] + BELOW
        command = [sys.executable, "-m", "experiments.bench.overlay_node"]
        command += ["--id", self.id, "--place", place, "--broker", str(broker)]
        self.process = subprocess.Popen(
            [*command, "--peer", str(peer), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.heard: dict[str, list[float]] = defaultdict(list)
        self.ended: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        self.links: list[list[list[object]]] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, *what: object) -> None:
        """Ask something of it."""
        assert self.process.stdin is not None  # noqa: S101 - we opened it
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _listen(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - we opened it
        for line in self.process.stdout:
            match json.loads(line):
                case ["heard", id_, at_s]:
                    self.heard[id_].append(at_s)
                case ["ended", id_, reached, is_whole]:
                    self.ended[id_].append((reached, is_whole))
                case ["links", links]:
                    self.links = links


class Fleet:
    """Gateways and brokers; a context manager.

    Args:
        gateways: How many.
        brokers: Mosquittos that they share.
        folder: For the brokers' configurations.
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
        """Start them all, and wait until all are in one overlay."""
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
        """Kill what we started."""
        for member in self.alive:
            member.kill()
        for broker in self._brokers:
            broker.kill()
            broker.wait()

    def is_ring(self) -> bool:
        """Whether level 0 of those alive is one sorted and complete ring now."""
        for member in self.alive:
            member.links = None
            member.say("links")
        wait_until(lambda: all(m.links is not None for m in self.alive), ANSWER_S)
        rows = [row for m in self.alive for row in m.links or []]
        keys = {_key(row[0]): (_key(row[1]), _key(row[2])) for row in rows}
        ring = sorted(keys)
        subscribers = sum(role == 1 for _, role, _ in ring)
        homes = sum(not topic for topic, _, _ in ring)
        after = [*ring[1:], *ring[:1]]
        is_whole = all(
            keys[key][1] == right and keys[right][0] == key
            for key, right in zip(ring, after, strict=True)
        )
        return is_whole and subscribers == homes == len(self.alive)

    def kill(self, members: list[Member]) -> None:
        """Kill -9 some."""
        for member in members:
            member.kill()
            self.alive.remove(member)


def wait_until(is_true: Callable[[], object], timeout_s: float) -> float:
    """Seconds until it held.

    Raises:
        TimeoutError: It never did.
    """
    start_s = time.monotonic()
    while not is_true():
        if time.monotonic() - start_s > timeout_s:
            raise TimeoutError(f"not within {timeout_s:g} s")
        time.sleep(0.02)
    return time.monotonic() - start_s


def _key(told: list[object]) -> tuple[str, int, str]:
    topic, role, gateway = told
    return str(topic), int(str(role)), str(gateway)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])

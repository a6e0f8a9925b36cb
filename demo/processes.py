"""Processes of the demo, each with a log file."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
GRACE_S = 10.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A shell's background command ignores the first, `kill` and systemd send the second,
and a terminal that is closed the third. No process may remain after any of them."""


PORTS = range(5000, 10000)
"""Below those that Linux uses for outgoing connections: some programs start minutes
after their port was chosen, and a connection could have it by then."""

_chosen: set[int] = set()


def free_port() -> int:
    """Return an unused TCP port, each time another one.

    Raises:
        OSError: No port of `PORTS` is free.
    """
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            if port not in _chosen:
                _chosen.add(port)
                return port
    raise OSError(f"no TCP port from {PORTS.start} to {PORTS.stop - 1} is free")


class Processes:
    """Starts programs in a folder and ends them in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, nice: int = 0) -> None:
        """Start a program; its output goes to ``<name>.log``."""
        log = (self.folder / f"{name}.log").open("ab")
        with _deferred_signals():
            self._running[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                # Its own process group: Ctrl-C reaches only us, and we end them in
                # order.
                start_new_session=True,
                preexec_fn=(lambda: os.nice(nice)) if nice else None,  # noqa: PLW1509
            )

    def python(self, name: str, module: str, *arguments: str, nice: int = 0) -> None:
        """Start one of our programs."""
        self.start(name, sys.executable, "-m", module, *arguments, nice=nice)

    def mosquitto(self, name: str, port: int) -> None:
        """Start a broker and wait until it listens."""
        config = self.folder / f"{name}.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\n"
            "max_queued_messages 0\nmax_inflight_messages 0\n"
        )
        self.start(name, MOSQUITTO, "-c", str(config))
        wait_for_port(port)

    def kill(self, name: str) -> None:
        """End a program with SIGKILL, as a power cut would."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a program and its children."""
        os.killpg(self._running[name].pid, number)

    def pid(self, name: str) -> int:
        """Return the process id of a program, which leads its own session."""
        return self._running[name].pid

    def dead(self) -> list[str]:
        """Return the programs that ended by themselves."""
        return [
            name
            for name, process in self._running.items()
            if process.poll() is not None
        ]

    def stop(self, *names: str) -> None:
        """End programs in order, with SIGKILL after `GRACE_S`."""
        for name in names or tuple(reversed(self._running)):
            process = self._running.pop(name)
            if process.poll() is None:
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            # Ends remaining children too (Spark's Python workers).
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Handle signals after the block: one within `Popen` leaves its process unknown.

    In other threads than the main one no signal interrupts anything.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _frame: caught.append(number))
        for number in STOP_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for each in caught:
        signal.raise_signal(each)


def wait_for_port(port: int, timeout_s: float = 10.0) -> None:
    """Wait until a port accepts connections.

    Raises:
        TimeoutError: It does not in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port} after {timeout_s:g} s")

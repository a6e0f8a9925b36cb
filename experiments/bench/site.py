"""Process runner: starts the programs of one run and ends them in any case."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

ROOT = Path(__file__).resolve().parents[2]
MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
GRACE_S = 5.0
READY_S = 120.0

NetT = TypeVar("NetT")


class Site(Generic[NetT]):
    """Starts programs in a temporary folder; a context manager that cleans up.

    Args:
        net: The network namespaces, for callers that need them.
    """

    def __init__(self, net: NetT) -> None:
        self.net = net
        self.folder = Path(tempfile.mkdtemp(prefix="yamamori-bench-"))
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every program and remove the folder."""
        for name in reversed(list(self._running)):
            self.stop(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str, namespace: str | None, *command: str) -> None:
        """Start a program, in a namespace if given; it logs to ``<name>.log``."""
        log = (self.folder / f"{name}.log").open("ab")
        # If this process is killed, the kernel ends the program too.
        inside = ["setpriv", "--pdeathsig", "KILL"]
        inside += ["ip", "netns", "exec", namespace] if namespace else []
        self._running[name] = subprocess.Popen(
            [*inside, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            start_new_session=True,
        )
        log.close()

    def python(
        self, name: str, namespace: str | None, module: str, *args: object
    ) -> None:
        """Start a Python module."""
        self.start(name, namespace, sys.executable, "-m", module, *map(str, args))

    def mosquitto(
        self, name: str, namespace: str | None, port: int, *more: str
    ) -> None:
        """Start a broker and wait until it runs."""
        config = self.folder / f"{name}.conf"
        lines = (f"listener {port}", "allow_anonymous true", "user root", *more)
        config.write_text("\n".join(lines) + "\n")
        self.start(name, namespace, MOSQUITTO, "-c", str(config))
        self.wait_for_words(name, " running")

    def wait_for_words(self, name: str, words: str, timeout_s: float = READY_S) -> None:
        """Wait until a program's output contains a text.

        Raises:
            TimeoutError: It does not in time, or the program ended.
        """
        log = self.folder / f"{name}.log"
        deadline_s = time.monotonic() + timeout_s
        while words not in log.read_text(errors="replace"):
            is_dead = self._running[name].poll() is not None
            if is_dead or time.monotonic() > deadline_s:
                tail = log.read_text(errors="replace")[-2000:]
                raise TimeoutError(f"{name} did not print {words!r}:\n{tail}")
            time.sleep(0.02)

    def wait_for_end(self, name: str, timeout_s: float) -> bool:
        """Wait until a program ends by itself; return whether it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._running[name].wait(timeout_s)
        return self._running[name].poll() is not None

    def result(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """Return the content of a program's ``<name>.json``.

        Raises:
            FileNotFoundError: There is none; the message contains all logs' ends.
        """
        if not self.path(name).exists():
            raise FileNotFoundError(f"{name} has no result:\n{self.last_words()}")
        return json.loads((self.folder / f"{name}.json").read_text())

    def path(self, name: str) -> Path:
        """Return the path of a program's result."""
        return self.folder / f"{name}.json"

    def last_words(self) -> str:
        """Return the end of every program's output."""
        logs = sorted(self.folder.glob("*.log"))
        tails = (log.read_text(errors="replace")[-1500:] for log in logs)
        return "\n".join(
            f"--- {log.stem}\n{tail}" for log, tail in zip(logs, tails, strict=True)
        )

    def pid(self, name: str) -> int:
        """Return the process id of a program."""
        return self._running[name].pid

    def kill(self, name: str) -> None:
        """End a program with SIGKILL, as a power cut would."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """End a program with SIGTERM, or with SIGKILL if it does not end in time."""
        process = self._running.pop(name)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)


def interrupt_on_sigterm() -> None:
    """Raise KeyboardInterrupt on SIGTERM, so that it cleans up like Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)

"""The programs of one run, each in its namespace, ended whatever happens."""

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

Ground = TypeVar("Ground")


class Site(Generic[Ground]):
    """Starts programs in a folder; a context manager that ends them and clears it.

    Args:
        net: The namespaces, for who needs them.
    """

    def __init__(self, net: Ground) -> None:
        self.net = net
        self.folder = Path(tempfile.mkdtemp(prefix="yamamori-bench-"))
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every program."""
        for name in reversed(list(self._running)):
            self.stop(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str, namespace: str | None, *command: str) -> None:
        """Start a program in a namespace or ours; its output goes to ``<name>.log``."""
        log = (self.folder / f"{name}.log").open("ab")
        # Should we be killed, the kernel ends the program too.
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
        """Start one of our modules."""
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
        """Return when a program's output holds some words.

        Raises:
            TimeoutError: It does not in time, or the program ended.
        """
        log = self.folder / f"{name}.log"
        deadline_s = time.monotonic() + timeout_s
        while words not in log.read_text(errors="replace"):
            is_dead = self._running[name].poll() is not None
            if is_dead or time.monotonic() > deadline_s:
                tail = log.read_text(errors="replace")[-2000:]
                raise TimeoutError(f"{name} did not say {words!r}:\n{tail}")
            time.sleep(0.02)

    def wait_for_end(self, name: str, timeout_s: float) -> bool:
        """Wait until a program ends by itself; whether it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._running[name].wait(timeout_s)
        return self._running[name].poll() is not None

    def result(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """What a program wrote to ``<name>.json``.

        Raises:
            FileNotFoundError: Nothing; the message has every program's last words.
        """
        if not self.path(name).exists():
            raise FileNotFoundError(f"{name} has no result:\n{self.last_words()}")
        return json.loads((self.folder / f"{name}.json").read_text())

    def path(self, name: str) -> Path:
        """Where a program shall write its result."""
        return self.folder / f"{name}.json"

    def last_words(self) -> str:
        """The end of every program's output, for people."""
        logs = sorted(self.folder.glob("*.log"))
        tails = (log.read_text(errors="replace")[-1500:] for log in logs)
        return "\n".join(
            f"--- {log.stem}\n{tail}" for log, tail in zip(logs, tails, strict=True)
        )

    def pid(self, name: str) -> int:
        """The process of a program."""
        return self._running[name].pid

    def kill(self, name: str) -> None:
        """End a program with kill -9, as a power cut would."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """End a program, with kill -9 when it does not listen."""
        process = self._running.pop(name)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)


def interrupt_on_sigterm() -> None:
    """Let SIGTERM clean up as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)

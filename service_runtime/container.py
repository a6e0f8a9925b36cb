"""Service manager of a container: starts one program and supervises it.

A container without systemd has nothing that reads the notifications of a program or
kills it when it hangs. This process does both, as the first one of the container: it
passes signals on, collects orphans, aborts a program whose watchdog is not fed, and
ends with the status of the program, so that the engine starts the container again.

Usage:
    python -m service_runtime.container PROGRAM ARGUMENT...
    python -m service_runtime.container --health

With ``--health`` it prints the status line of the running program; the exit status is 0
while that is ready and feeds its watchdog, else 1.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from service_runtime.files import write_atomic
from service_runtime.watchdog import read_watchdog_timeout_s

FOLDER: Final = Path("/tmp/yamamori")  # noqa: S108 - no other user is in a container
STATUS_FILE: Final = "status"
"""Status line of a program that is ready; its time is that of the last feeding."""

ABORT_S: Final = 10.0
"""Time for the stacks of threads between SIGABRT and SIGKILL (`TimeoutAbortSec`)."""

POLL_S: Final = 0.5
DATAGRAM_BYTES: Final = 65536
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EXIT_SIGNALLED: Final = 128
EXIT_NOT_FOUND: Final = 127
"""As of a shell."""


class ContainerManager:
    """Runs a program until it ends.

    Args:
        folder: Where the notification socket and the status file are, on a tmpfs.
        timeout_s: Watchdog time-out; None never aborts.
    """

    def __init__(self, folder: Path, timeout_s: float | None) -> None:
        self._file = folder / STATUS_FILE
        self._address = folder / "notify"
        self._timeout_s = timeout_s
        self._line = ""
        self._fed_s: float | None = None
        self._aborted_s: float | None = None

    def run(self, command: Sequence[str], environ: dict[str, str]) -> int:
        """Start a program; returns its exit status, or 128 and its signal.

        Raises:
            OSError: The program cannot be started.
        """
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        for path in (self._file, self._address):  # of a container that was restarted
            path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
            notifications.bind(str(self._address))
            notifications.setblocking(False)
            pid = _start(command, environ | {"NOTIFY_SOCKET": str(self._address)})
            while (status := _reap(pid)) is None:
                self._read(notifications)
                self._check(pid)
        self._file.unlink(missing_ok=True)
        return status

    def _read(self, notifications: socket.socket) -> None:
        """Wait for a notification for `POLL_S`."""
        if select.select([notifications], [], [], POLL_S)[0]:
            for line in notifications.recv(DATAGRAM_BYTES).splitlines():
                self._take(line.decode(errors="replace"))

    def _take(self, line: str) -> None:
        name, _, value = line.partition("=")
        if name == "STATUS":
            self._line = value
        elif line == "STOPPING=1":  # a program that stops is not watched
            self._fed_s = None
            self._file.unlink(missing_ok=True)
        elif line == "READY=1" or (line == "WATCHDOG=1" and self._fed_s is not None):
            self._fed_s = time.monotonic()
            write_atomic(self._file, f"{self._fed_s} {self._line}".encode())

    def _check(self, pid: int) -> None:
        """Abort a program that hangs; kill it when that does not end it."""
        now_s = time.monotonic()
        if self._aborted_s is not None:
            if now_s - self._aborted_s > ABORT_S:
                _kill(pid, signal.SIGKILL)
        elif self._fed_s is not None:
            problem = _find_silence(now_s - self._fed_s, self._timeout_s)
            if problem is not None:
                _print_error(f"{problem}: {self._line}")
                self._aborted_s = now_s
                _kill(pid, signal.SIGABRT)


def _start(command: Sequence[str], environ: dict[str, str]) -> int:
    """Start the program, and pass signals on to it."""
    # A signal in between waits: as the first process of a container, this one would
    # ignore it.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    ignored_by_python = (signal.SIGPIPE, signal.SIGXFSZ)
    pid = os.posix_spawnp(
        command[0], list(command), environ, setsigmask=(), setsigdef=ignored_by_python
    )
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: _kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    return pid


def check_health(folder: Path, timeout_s: float | None) -> tuple[bool, str]:
    """Whether the program is ready and not hung, and its status or the problem."""
    try:
        words = (folder / STATUS_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return False, "the program is not ready, or stops"
    fed_s, _, line = words.partition(" ")
    silence_s = time.monotonic() - float(fed_s)
    problem = _find_silence(silence_s, timeout_s)
    return problem is None, line if problem is None else f"{problem}: {line}"


def _find_silence(silence_s: float, timeout_s: float | None) -> str | None:
    if timeout_s is None or silence_s <= timeout_s:
        return None
    return f"watchdog not fed for {silence_s:.0f} s"


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap(pid: int) -> int | None:
    """Collect ended processes; returns the status when the program is among them."""
    while (ended := os.waitpid(-1, os.WNOHANG))[0]:
        if ended[0] == pid:
            code = os.waitstatus_to_exitcode(ended[1])
            return code if code >= 0 else EXIT_SIGNALLED - code
    return None


def _print_error(text: str) -> None:
    print(f"container: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the log


def main() -> None:
    """Run the program of the command line, or report on the one that runs."""
    arguments = sys.argv[1:]
    environ = dict(os.environ)
    timeout_s = read_watchdog_timeout_s(environ, os.getpid())
    if arguments == ["--health"]:
        is_healthy, line = check_health(FOLDER, timeout_s)
        print(line)  # noqa: T201 - output of a command
        raise SystemExit(0 if is_healthy else 1)
    if not arguments:
        raise SystemExit(__doc__)
    try:
        status = ContainerManager(FOLDER, timeout_s).run(arguments, environ)
    except OSError as error:
        _print_error(f"cannot start {arguments[0]}: {error}")
        status = EXIT_NOT_FOUND
    raise SystemExit(status)


if __name__ == "__main__":
    main()

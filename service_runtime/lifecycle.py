"""Lifecycle of a daemon: logging, signals, exit codes, and supervision by systemd.

The watchdog of systemd is fed only while every loop sends its heartbeats. A hung loop
is named in the log; systemd then kills the process, which leaves the stacks of its
threads in the journal, and restarts it. A file that rights or a mount forbid ends a
daemon with the file's name, its owner and what to do. What a sender can repeat must not
fill the journal: `LogLimit` decides which repetitions are logged.
"""

import contextlib
import ctypes
import errno
import faulthandler
import gc
import logging
import os
import pwd
import signal
import stat
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Final, NoReturn, Protocol

from service_runtime.settings import SettingsError
from service_runtime.watchdog import (
    Heartbeat,
    LoopWatchdog,
    SystemdNotifier,
    read_watchdog_timeout_s,
)

log = logging.getLogger(__name__)

MAX_THREAD_NAME_CHARS = 15
"""Limit of the kernel for the name of a thread."""

M_ARENA_MAX = -8
"""Parameter of mallopt(3): number of heaps."""

EXIT_USAGE_DATA = 65
EXIT_CRASH = 70
EXIT_BUSY = 75
EXIT_DENIED = 77
EXIT_CONFIG = 78
"""Exit codes of sysexits.h; the units do not restart after `EXIT_CONFIG`."""


def log_to_stderr(verbose: bool = False) -> None:
    """Log to standard error without time stamps, which the journal adds.

    When systemd kills the process for a hung loop (SIGABRT), the stacks of all
    threads are printed, too.
    """
    faulthandler.enable()
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(levelname)s %(name)s: %(message)s"
    )
    # APScheduler logs every job; log lines wear out a memory card.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)


def exit_on_thread_error(
    known: Mapping[type[Exception], int] = MappingProxyType({}),
) -> None:
    """Exit when any thread raises an exception that it does not handle.

    The service manager restarts the process, and every store is durable. A process
    that continued without one of its loops would only look healthy.

    Args:
        known: Exit status by class of errors whose message says what to do; they are
            logged without a traceback.
    """

    def hook(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "a thread"
        for kind, status in known.items():
            if isinstance(args.exc_value, kind):
                log.critical("%s", args.exc_value)
                logging.shutdown()
                os._exit(status)
        end_after(args.exc_value, f"unknown error in {name}")

    threading.excepthook = hook


def end_after(error: BaseException | None, subject: str) -> NoReturn:
    """Log an error that nothing handles, and end the process at once."""
    if (denied := explain_denied(error)) is not None:
        log.critical("%s", denied)
    else:
        log.critical("%s: ending, to be started again", subject, exc_info=error)
    logging.shutdown()
    os._exit(EXIT_CRASH if denied is None else EXIT_DENIED)


LOG_EVERY_S: Final = 60.0
MAX_CAUSES: Final = 1000
"""The cause that was not seen for the longest time is forgotten first."""

MAX_LINES: Final = 60
"""Lines of all causes together in `LOG_EVERY_S`; a sender may invent causes."""


@dataclass
class _Cause:
    logged_s: float
    unlogged: int = 0


class LogLimit:
    """Decides which repetitions of a cause are logged: one a minute.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._causes: OrderedDict[Hashable, _Cause] = OrderedDict()
        self._lines = 0
        self._since_s = clock()

    def count(self, cause: Hashable, times: int = 1) -> int | None:
        """Count a cause.

        Args:
            cause: What the repetitions have in common, such as sender and kind.
            times: How often it happened now.

        Returns:
            How often it happened since its last line, for the line to write now; None:
            write none.
        """
        now_s = self._clock()
        if now_s - self._since_s >= LOG_EVERY_S:
            self._since_s, self._lines = now_s, 0
        known = self._causes.get(cause)
        is_due = known is None or now_s - known.logged_s >= LOG_EVERY_S
        if known is None:
            known = self._causes[cause] = _Cause(now_s)
            if len(self._causes) > MAX_CAUSES:
                self._causes.popitem(last=False)
        self._causes.move_to_end(cause)
        known.unlogged += times
        if not is_due or self._lines >= MAX_LINES:
            return None
        self._lines += 1
        total, known.unlogged, known.logged_s = known.unlogged, 0, now_s
        return total


def start_watched_loop(
    watchdog: LoopWatchdog,
    name: str,
    max_silence_s: float,
    run: Callable[[Heartbeat], None],
) -> threading.Thread:
    """Run a loop in a new daemon thread, and watch its heartbeats until it ends.

    Args:
        watchdog: The watchdog of the process.
        name: Name of the thread; the log names a hung loop by it.
        max_silence_s: Longest time between two heartbeats.
        run: The loop; calls its argument as a heartbeat.
    """

    def watched() -> None:
        _set_kernel_name(name)
        with watchdog.watch_loop(name, max_silence_s) as heartbeat:
            run(heartbeat)

    thread = threading.Thread(target=watched, name=name, daemon=True)
    thread.start()
    return thread


def _set_kernel_name(name: str) -> None:
    """Set the name that `top -H` shows; Python does this from 3.14 on."""
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    with contextlib.suppress(OSError):
        comm.write_text(name[:MAX_THREAD_NAME_CHARS])


def call_on_stop_signals(stop: Callable[[], None]) -> None:
    """Call `stop` in a new thread on SIGTERM and SIGINT."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        threading.Thread(target=stop, name="stop").start()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


@contextmanager
def explaining_denied(program: str) -> Iterator[None]:
    """End with one line, instead of a traceback, if rights forbid a file."""
    try:
        yield
    except Exception as error:
        denied = explain_denied(error)
        if denied is None:
            raise
        print(f"{program}: {denied}", file=sys.stderr)  # noqa: T201 - a command's output
        sys.exit(EXIT_DENIED)


def report_settings_error(program: str, error: SettingsError | OSError) -> int:
    """Print each mistake on its own line; return the exit status."""
    cause = error if isinstance(error, OSError) else error.__cause__
    unreadable = explain_denied(cause) or _explain_missing(cause)
    lines = (unreadable,) if unreadable else getattr(error, "problems", (str(error),))
    for line in lines:
        print(f"{program}: {line}", file=sys.stderr)  # noqa: T201 - output of a command
    return EXIT_CONFIG


STATUS_INTERVAL_S: Final = 10.0
STATUS_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 5.0
READY_TIMEOUT_S: Final = 30.0
"""READY=1 is sent after this time even without a connection: a daemon that works
without its broker must not be restarted, nor delay the units that start after it."""

READY_POLL_S: Final = 0.05
FEEDS_PER_TIMEOUT: Final = 4
"""Times that the watchdog is fed within its time-out."""


class Program(Protocol):
    """A program that `run_service` runs."""

    def run(self) -> None:
        """Run until `stop`."""

    def stop(self) -> None:
        """End `run`. Called in another thread."""


class SystemdSupervisor:
    """Reports readiness, liveness and status of the process to systemd.

    Args:
        notifier: Connection to systemd.
        watchdog: The watchdog of the process.
        status: Returns the line that `systemctl status` shows.
        interval_s: Time between two checks.
        is_serving: Returns whether the program can receive messages; None if it always
            can.
    """

    def __init__(
        self,
        notifier: SystemdNotifier,
        watchdog: LoopWatchdog,
        status: Callable[[], str],
        interval_s: float = STATUS_INTERVAL_S,
        *,
        is_serving: Callable[[], bool] | None = None,
    ) -> None:
        self._notifier = notifier
        self._watchdog = watchdog
        self._status = status
        self._every_s = interval_s
        self._serves = is_serving
        self._is_late = False
        self._is_status_broken = False
        self._status_lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str],
        pid: int,
        watchdog: LoopWatchdog,
        status: Callable[[], str],
        *,
        is_serving: Callable[[], bool] | None = None,
    ) -> "SystemdSupervisor":
        """Read the notify socket and the watchdog time-out from the environment."""
        limit_s = read_watchdog_timeout_s(environ, pid)
        every_s = STATUS_INTERVAL_S if limit_s is None else limit_s / FEEDS_PER_TIMEOUT
        notifier = SystemdNotifier(environ.get("NOTIFY_SOCKET", ""))
        every_s = min(every_s, STATUS_INTERVAL_S)
        return cls(notifier, watchdog, status, every_s, is_serving=is_serving)

    def report_ready(self) -> None:
        """Begin supervision: settings are valid and stores are open.

        READY=1 is sent once the program is serving, or after `READY_TIMEOUT_S`.
        """
        if self._serves is None:
            self._send_ready()
        else:
            self._start("ready", self._wait_deadline_serving)
        self._start("supervision", self._watch)
        # Also without systemd: the node stores its status line for `edge-agent status`.
        self._start("status line", self._send_status_lines)

    def report_stopping(self) -> None:
        """Report that the program stops; late loops no longer count.

        When this returns, no call of `status` is in progress or will be made.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._notifier.send("STOPPING=1", "STATUS=stopping")
        if self._status_lock.acquire(timeout=STOP_TIMEOUT_S):
            self._status_lock.release()

    def close(self) -> None:
        """End supervision."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def check_loops(self) -> None:
        """Check every loop once; feed the watchdog of systemd if none is late."""
        late = () if self._stopping.is_set() else self._watchdog.find_late_loops()
        if late:
            names = ", ".join(late)
            log.error("%s: the watchdog is not fed", names)
            self._notifier.send_status(f"HANGS: {names}")
        else:
            self._notifier.send("WATCHDOG=1")
        if self._is_late and not late:
            log.warning("all loops are alive again")
        self._is_late = bool(late)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _send_ready(self) -> None:
        self._notifier.send("READY=1")
        self._notifier.send_status(self._read_status())

    def _wait_deadline_serving(self) -> None:
        deadline_s = self._watchdog.clock() + READY_TIMEOUT_S
        while self._serves is not None and not self._serves():
            if self._watchdog.clock() >= deadline_s:
                log.warning("not served within %.0f s; going on", READY_TIMEOUT_S)
                break
            if self._closed.wait(READY_POLL_S):
                return
        self._send_ready()

    def _watch(self) -> None:
        while not self._closed.wait(self._every_s):
            self.check_loops()

    def _read_status(self) -> str:
        try:
            return self._status()
        except Exception:
            # A text for people must not end a program that works.
            if not self._is_status_broken:
                log.exception("there is no status line")
            self._is_status_broken = True
            return "no status line: see the log"

    def _send_status_lines(self) -> None:
        # In a thread of its own: `status` may wait for a lock that a hung loop holds.
        with self._watchdog.watch_loop("status line", STATUS_TIMEOUT_S) as heartbeat:
            while not self._closed.wait(self._every_s):
                heartbeat()
                self._send_status_line()

    def _send_status_line(self) -> None:
        with self._status_lock:
            if self._stopping.is_set():
                return
            line = self._read_status()
            if not self._is_late and not self._stopping.is_set():
                self._notifier.send_status(line)


def run_service(program: Program, supervisor: SystemdSupervisor) -> None:
    """Run a program under supervision until a signal stops it."""

    def stop() -> None:
        supervisor.report_stopping()
        program.stop()

    call_on_stop_signals(stop)
    gc.freeze()  # collections need not go through the objects of imported modules
    _trim_heap()
    supervisor.report_ready()
    program.run()
    supervisor.report_stopping()
    supervisor.close()


def _trim_heap() -> None:
    """Keep the heap small; glibc only.

    Imports have freed 3 MiB of a gateway, which is returned to the system. Threads
    share one heap: they take turns in Python, and what is freed in one is then of use
    to all.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_ARENA_MAX, 1)
        libc.malloc_trim(0)


class LoopService:
    """A program with one loop, watched until it ends.

    Args:
        watchdog: Watchdog of the loop.
        name: Name of the loop, for the log and the metrics.
        max_silence_s: Longest time between two heartbeats.
        run: The loop; calls its argument as a heartbeat.
        stop: Ends the loop; called in another thread.
    """

    def __init__(
        self,
        watchdog: LoopWatchdog,
        name: str,
        max_silence_s: float,
        run: Callable[[Heartbeat], object],
        stop: Callable[[], object],
    ) -> None:
        self._watchdog = watchdog
        self._name = name
        self._silence_s = max_silence_s
        self._run = run
        self._stop = stop

    def run(self) -> None:
        """Run the loop until `stop`."""
        with self._watchdog.watch_loop(self._name, self._silence_s) as heartbeat:
            self._run(heartbeat)

    def stop(self) -> None:
        """End the loop."""
        self._stop()


PERIODIC_TIMEOUT_S = 660.0
"""Far longer than the calls take, also on a slow disk."""


class PeriodicCaller:
    """Calls functions at a fixed interval in a thread.

    Args:
        calls: Functions to call in turn; they must not block for long.
        interval_s: Time between two rounds.
        watchdog: The watchdog of the process.
    """

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        interval_s: float,
        watchdog: LoopWatchdog,
    ) -> None:
        self._calls = tuple(calls)
        self._every_s = interval_s
        self._watchdog = watchdog
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = start_watched_loop(
            self._watchdog, "repeat", PERIODIC_TIMEOUT_S, self._run
        )

    def stop(self) -> None:
        """Stop after the call in progress."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, heartbeat: Heartbeat) -> None:
        while not self._stop.wait(self._every_s):
            heartbeat()
            for call in self._calls:
                call()


class Service(Protocol):
    """A part of a program that runs beside its main loop."""

    def start(self) -> None:
        """Start."""

    def stop(self) -> None:
        """Stop."""


MAX_SYSTEM_PARTS: Final = 3
"""``/var/lib`` has three parts. So short a path may be a folder of the system, and
`chown -R` would take that from it."""


def explain_denied(error: BaseException | None) -> str | None:
    """What to do about a file that rights or a mount forbid; None for other errors."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return None
    if error.errno in {errno.EACCES, errno.EPERM}:
        try:
            return _explain_rights(_find_denied(Path(error.filename)), error)
        except OSError:  # it is gone meanwhile
            return None
    if error.errno == errno.EROFS:
        return (
            f"{error.filename} must be writable, got: {error.strerror}; in a unit, "
            "name its folder in ReadWritePaths=; else check the disk by dmesg, and "
            "mount it read-write"
        )
    return None


def _explain_missing(error: BaseException | None) -> str | None:
    """What to do about a path at which there is no file; None for other errors."""
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        rule = f"{error.filename} must be a file, got: {error.strerror}"
        return f"{rule}; check its path and name" if error.filename else None
    return None


def _find_denied(path: Path) -> Path:
    """The first folder on the way that cannot be used, else the path or its folder."""
    path = path.absolute()
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK):
            return folder
    return path if path.exists() else path.parent


def _explain_rights(path: Path, error: OSError) -> str:
    user, status = _user_name(os.geteuid()), path.stat()
    owner, mode = _user_name(status.st_uid), stat.filemode(status.st_mode)
    if len(path.parts) > MAX_SYSTEM_PARTS:
        remedy = f"give it to {user}: chown -R {user} {path}"
    else:
        remedy = f"make a folder for {user} alone, and name that in the settings"
    return (
        f"{path} must be accessible for the user {user}, got: {error.strerror} "
        f"({mode}, owner {owner}); run this as {owner}, or {remedy}"
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

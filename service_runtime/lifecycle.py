"""What every daemon of ours does alike: how it starts, ends and dies.

A daemon under systemd: ready, alive, stopping, and a status line that is true.

The watchdog is fed only while every loop is alive. A hung loop is named in the
log; systemd then kills the process, which leaves the stacks of its threads in the
journal, and starts it again.
"""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from service_runtime.settings import SettingsError
from service_runtime.systemd import Notifier, watchdog_s
from service_runtime.watchdog import Beat, Pulse

log = logging.getLogger(__name__)

MOST_OF_A_NAME = 15
"""Characters of a thread's name that the kernel keeps."""

EXIT_USAGE_DATA = 65
EXIT_CRASH = 70
EXIT_CONFIG = 78
"""sysexits.h: systemd is told not to restart on it."""


def log_to_stderr(verbose: bool = False) -> None:
    """Log lines for the journal, which adds time and unit by itself.

    When the watchdog kills us for a loop that hangs (SIGABRT), the stacks of all
    threads go there, too.
    """
    faulthandler.enable()
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(levelname)s %(name)s: %(message)s"
    )
    # APScheduler tells of every job; a card wears out on log lines.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)


def die_on_unknown_errors() -> None:
    """Let an unknown error in any thread end the process.

    The service manager starts it again, and every store is durable; a process
    that lives on with one loop dead only looks healthy.
    """

    def hook(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "a thread"
        log.critical(
            "unknown error in %s: ending, to be started again",
            name,
            exc_info=args.exc_value,
        )
        logging.shutdown()
        os._exit(EXIT_CRASH)

    threading.excepthook = hook


def start_loop(
    pulse: Pulse, name: str, silence_s: float, run: Callable[[Beat], None]
) -> threading.Thread:
    """Run a loop in a thread of its own, and listen for its beats until it ends.

    Args:
        pulse: Listens.
        name: Of the thread, and in the log when it hangs.
        silence_s: How long it may go without a beat.
        run: The loop.
    """

    def listened() -> None:
        _tell_top(name)
        with pulse.expects(name, silence_s) as beat:
            run(beat)

    # A daemon: who wants to wait for its end joins it.
    thread = threading.Thread(target=listened, name=name, daemon=True)
    thread.start()
    return thread


def _tell_top(name: str) -> None:
    """Let `top -H` show a thread of ours by its name; Python does from 3.14 on."""
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    with contextlib.suppress(OSError):
        comm.write_text(name[:MOST_OF_A_NAME])


def on_stop_signals(stop: Callable[[], None]) -> None:
    """Call `stop`, in a thread of its own, on SIGTERM and SIGINT."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        threading.Thread(target=stop, name="stop").start()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def exit_for_settings(program: str, error: SettingsError | OSError) -> int:
    """Print each mistake on its own line; the exit status to use."""
    lines = error.problems if isinstance(error, SettingsError) else (str(error),)
    for line in lines:
        print(f"{program}: {line}", file=sys.stderr)  # noqa: T201 - for a person
    return EXIT_CONFIG


STATUS_EVERY_S: Final = 10.0
STATUS_SILENCE_S: Final = 60.0
STOPPING_WITHIN_S: Final = 5.0
READY_WITHIN_S: Final = 30.0
"""A daemon that works on without its broker is not started again and again for want
of one, and what systemd starts after it does not wait for ever."""

READY_LOOK_S: Final = 0.05
FEEDS: Final = 4
"""How often within the watchdog's time we feed it."""


class Program(Protocol):
    """What is run."""

    def run(self) -> None:
        """Work until `stop`."""

    def stop(self) -> None:
        """End `run`. Called in another thread."""


class Supervision:
    """Tells the service manager how we are.

    Args:
        notifier: The way to it.
        pulse: Who must be alive.
        status: One line on what the daemon does, for `systemctl status`.
        every_s: Time between two looks.
        serves: Whether what others send reaches us; None when that is always so.
    """

    def __init__(
        self,
        notifier: Notifier,
        pulse: Pulse,
        status: Callable[[], str],
        every_s: float = STATUS_EVERY_S,
        *,
        serves: Callable[[], bool] | None = None,
    ) -> None:
        self._notifier = notifier
        self._pulse = pulse
        self._status = status
        self._every_s = every_s
        self._serves = serves
        self._is_late = False
        self._telling = threading.Lock()
        self._stopping = threading.Event()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    @classmethod
    def of(
        cls,
        environ: Mapping[str, str],
        pid: int,
        pulse: Pulse,
        status: Callable[[], str],
        *,
        serves: Callable[[], bool] | None = None,
    ) -> "Supervision":
        """What the environment of the process asks for."""
        limit_s = watchdog_s(environ, pid)
        every_s = STATUS_EVERY_S if limit_s is None else limit_s / FEEDS
        notifier = Notifier(environ.get("NOTIFY_SOCKET", ""))
        every_s = min(every_s, STATUS_EVERY_S)
        return cls(notifier, pulse, status, every_s, serves=serves)

    def ready(self) -> None:
        """Settings are valid and stores are open: our work begins.

        READY is said once we are served, or after `READY_WITHIN_S`.
        """
        if self._serves is None:
            self._say_ready()
        else:
            self._start("ready", self._await_service)
        self._start("supervision", self._watch)
        # Also where nobody hears it: the agent keeps what it tells for `status`.
        self._start("status line", self._tell)

    def stopping(self) -> None:
        """We end, on purpose; from now on only systemd's time for stopping counts.

        What the status asks may be closed when this returns.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._notifier.say("STOPPING=1", "STATUS=stopping")
        if self._telling.acquire(timeout=STOPPING_WITHIN_S):
            self._telling.release()

    def close(self) -> None:
        """Say no more."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def look(self) -> None:
        """Look at every loop once; feed the watchdog if all live."""
        late = () if self._stopping.is_set() else self._pulse.late()
        if late:
            words = ", ".join(late)
            log.error("%s: the watchdog is not fed", words)
            self._notifier.status(f"HANGS: {words}")
        else:
            self._notifier.say("WATCHDOG=1")
        if self._is_late and not late:
            log.warning("all loops are alive again")
        self._is_late = bool(late)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _say_ready(self) -> None:
        self._notifier.say("READY=1")
        self._notifier.status(self._status())

    def _await_service(self) -> None:
        until_s = self._pulse.clock() + READY_WITHIN_S
        while self._serves is not None and not self._serves():
            if self._pulse.clock() >= until_s:
                log.warning("not served within %.0f s; going on", READY_WITHIN_S)
                break
            if self._closed.wait(READY_LOOK_S):
                return
        self._say_ready()

    def _watch(self) -> None:
        while not self._closed.wait(self._every_s):
            self.look()

    def _tell(self) -> None:
        """Apart from `look`: the status may wait for a lock that a hung loop holds."""
        with self._pulse.expects("status line", STATUS_SILENCE_S) as beat:
            while not self._closed.wait(self._every_s):
                beat()
                self._tell_once()

    def _tell_once(self) -> None:
        with self._telling:
            if self._stopping.is_set():
                return
            words = self._status()
            if not self._is_late and not self._stopping.is_set():
                self._notifier.status(words)


def serve(program: Program, supervision: Supervision) -> None:
    """Run a program until a signal stops it, and tell the service manager."""

    def stop() -> None:
        supervision.stopping()
        program.stop()

    on_stop_signals(stop)
    supervision.ready()
    program.run()
    supervision.stopping()
    supervision.close()


class LoopService:
    """A program with one loop, watched until it ends.

    Args:
        pulse: Watchdog of the loop.
        name: Name of the loop, for the log and the metrics.
        silence_s: Longest time between two heartbeats.
        run: The loop; calls its argument as a heartbeat.
        stop: Ends the loop; called in another thread.
    """

    def __init__(
        self,
        pulse: Pulse,
        name: str,
        silence_s: float,
        run: Callable[[Beat], object],
        stop: Callable[[], object],
    ) -> None:
        self._pulse = pulse
        self._name = name
        self._silence_s = silence_s
        self._run = run
        self._stop = stop

    def run(self) -> None:
        """Run the loop until `stop`."""
        with self._pulse.expects(self._name, self._silence_s) as beat:
            self._run(beat)

    def stop(self) -> None:
        """End the loop."""
        self._stop()

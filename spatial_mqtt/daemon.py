"""What every daemon of ours does alike: how it starts, ends and dies."""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from spatial_mqtt.pulse import Beat, Pulse
from spatial_mqtt.settings import SettingsError

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

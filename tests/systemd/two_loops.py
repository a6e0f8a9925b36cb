"""A daemon of two loops for tests, of which one hangs when told to; and a line.

The line is a FIFO whose descriptor systemd keeps, as it keeps those of pins.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from spatial_mqtt import daemon
from spatial_mqtt.notify import Notifier, inherited_fds
from spatial_mqtt.pulse import Beat, Pulse
from spatial_mqtt.supervision import Supervision, serve

FOLDER = Path("/run/two-loops")
LINE = "line17"


class TwoLoops:
    """The daemon."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.pulse = Pulse(time.monotonic)

    def run(self) -> None:
        daemon.start_loop(self.pulse, "the good loop", 0.5, self._good)
        daemon.start_loop(self.pulse, "the bad loop", 0.5, self._bad)
        self._stop.wait()

    def stop(self) -> None:
        self._stop.set()

    def status(self) -> str:
        return f"life of {os.getpid()}"

    def _good(self, beat: Beat) -> None:
        while not self._stop.wait(0.1):
            beat()

    def _bad(self, beat: Beat) -> None:
        while not self._stop.wait(0.1):
            beat()
            if (FOLDER / "hang").exists():
                (FOLDER / "hang").unlink()
                time.sleep(3600)


def take_up_the_line() -> None:
    """Read what came on the line while nobody was there; or begin to listen."""
    line = inherited_fds(os.environ, os.getpid()).get(LINE)
    if line is not None:
        with suppress(BlockingIOError):
            (FOLDER / "heard").write_bytes(os.read(line, 1000))
        return
    os.mkfifo(FOLDER / "line")
    line = os.open(FOLDER / "line", os.O_RDWR | os.O_NONBLOCK)
    Notifier(os.environ["NOTIFY_SOCKET"]).store_fd(LINE, line)


daemon.log_to_stderr()
take_up_the_line()
program = TwoLoops()
serve(program, Supervision.of(os.environ, os.getpid(), program.pulse, program.status))

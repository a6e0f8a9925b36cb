"""A daemon with two loops, one of which can be made to hang, and a GPIO line.

The line is a FIFO in place of the descriptor of a kernel's line request: systemd
stores it in the same way, and the test writes kernel events into it.
"""

import os
import threading
import time
from pathlib import Path

from edge_agent.sensors.linux import KernelLines
from edge_agent.sensors.rain_gauge_and_vibration import KernelPulseSource
from service_runtime import lifecycle
from service_runtime.lifecycle import SystemdSupervisor, run_service
from service_runtime.watchdog import (
    Heartbeat,
    LoopWatchdog,
    SystemdNotifier,
    read_inherited_fds,
)

FOLDER = Path("/run/two-loops")
LINE = "line17-20000-0-1"
NO_CHIP = Path("/dev/no-chip")


class TwoLoops:
    """The daemon."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.pulse = LoopWatchdog(time.monotonic)

    def run(self) -> None:
        lifecycle.start_watched_loop(self.pulse, "the good loop", 0.5, self._good)
        lifecycle.start_watched_loop(self.pulse, "the bad loop", 0.5, self._bad)
        self._stop.wait()

    def stop(self) -> None:
        self._stop.set()

    def status(self) -> str:
        return f"life of {os.getpid()}"

    def _good(self, beat: Heartbeat) -> None:
        while not self._stop.wait(0.1):
            beat()

    def _bad(self, beat: Heartbeat) -> None:
        while not self._stop.wait(0.1):
            beat()
            if (FOLDER / "hang").exists():
                (FOLDER / "hang").unlink()
                time.sleep(3600)


def resume_line() -> None:
    """Count the edges that arrived while the daemon was down, or create the line.

    Everything but the first request, which needs a chip, is the agent's own code.
    """
    if LINE not in read_inherited_fds(os.environ, os.getpid()):
        os.mkfifo(FOLDER / "line")
        fd = os.open(FOLDER / "line", os.O_RDWR | os.O_NONBLOCK)
        SystemdNotifier(os.environ["NOTIFY_SOCKET"]).store_fd(LINE, fd)
        return
    lines = KernelLines(NO_CHIP, os.environ, os.getpid(), time.monotonic_ns)
    mark = FOLDER / "mark"
    pulses = KernelPulseSource(
        lines.open(17, 0.02, active_high=False),
        mark.read_text() if mark.exists() else "",
    )
    lines.release_unclaimed()
    drained = pulses.drain()
    with (FOLDER / "tips").open("a") as tips:
        tips.write(f"{len(drained.times_s)}+{drained.untimed_count} ")
    mark.write_text(pulses.resume_token())


lifecycle.log_to_stderr()
resume_line()
program = TwoLoops()
run_service(
    program,
    SystemdSupervisor.from_environment(
        os.environ, os.getpid(), program.pulse, program.status
    ),
)

"""The service manager of a container, with real programs as its children."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_until

from service_runtime.container import (
    STATUS_FILE,
    check_health,
)

LOOP = """
import faulthandler, os, socket, sys, threading, time
from service_runtime.watchdog import SystemdNotifier
faulthandler.enable()
notifier = SystemdNotifier(os.environ["NOTIFY_SOCKET"])
notifier.send("READY=1", "STATUS=well")
"""
FED = f"{LOOP}\nwhile True:\n    notifier.send('WATCHDOG=1')\n    time.sleep(0.05)\n"
HANGS = f"{LOOP}\nthreading.Event().wait()\n"
STOPS = f"{LOOP}\nnotifier.send('STOPPING=1')\nthreading.Event().wait(3)\nsys.exit(4)\n"

ORPHAN = """
import os, sys, time
reading, writing = os.pipe()
if (child := os.fork()) == 0:
    if os.fork() == 0:
        os.write(writing, str(os.getpid()).encode())
        os._exit(3)
    os._exit(0)
os.waitpid(child, 0)
orphan = os.read(reading, 20).decode()
while os.path.exists(f"/proc/{orphan}"):
    time.sleep(0.01)
sys.exit(78)
"""
BECOME_REAPER = 36
"""prctl(2), PR_SET_CHILD_SUBREAPER: orphans come here, as to a first process."""


class Container:
    """The manager in a process of its own, as the first one of a container."""

    def __init__(self, folder: Path, program: str, timeout_s: float) -> None:
        self.folder = folder
        code = (
            "import ctypes, os, sys; from pathlib import Path; "
            f"ctypes.CDLL(None).prctl({BECOME_REAPER}, 1); "
            "from service_runtime.container import ContainerManager; "
            "sys.exit(ContainerManager(Path(sys.argv[1]), float(sys.argv[2]))"
            ".run([sys.executable, '-c', sys.argv[3]], dict(os.environ)))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, folder, str(timeout_s), program],
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_healthy(self) -> bool:
        return check_health(self.folder, 5.0)[0]

    def wait(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


def test_health_is_that_of_the_running_program(tmp_path: Path) -> None:
    """Not before it is ready, and not after its end; SIGTERM is passed on."""
    container = Container(tmp_path, FED, 30.0)
    wait_until(container.is_healthy)
    wait_until(lambda: check_health(tmp_path, 5.0)[1] == "well")
    container.process.send_signal(signal.SIGTERM)

    assert container.wait()[0] == 128 + signal.SIGTERM
    assert check_health(tmp_path, 5.0) == (False, "the program is not ready, or stops")


def test_hung_program_is_aborted_with_its_stacks(tmp_path: Path) -> None:
    """The container ends, to be started again; the log names the cause."""
    status, errors = Container(tmp_path, HANGS, 1.0).wait()

    assert status == 128 + signal.SIGABRT
    assert "container: watchdog not fed for 1 s: well" in errors
    assert "Fatal Python error: Aborted" in errors


def test_program_that_stops_is_not_watched(tmp_path: Path) -> None:
    """It may finish its work within the grace period of the engine."""
    assert Container(tmp_path, STOPS, 0.5).wait()[0] == 4
    assert not (tmp_path / STATUS_FILE).exists()


def test_late_feeding_is_unhealthy(tmp_path: Path) -> None:
    """The status line stays, so that it can be read."""
    (tmp_path / STATUS_FILE).write_text("0.0 queue 12")

    is_healthy, line = check_health(tmp_path, 60.0)

    assert not is_healthy
    assert line.startswith("watchdog not fed for ")
    assert line.endswith(" s: queue 12")


def test_orphan_is_collected_and_its_status_is_not_the_programs(
    tmp_path: Path,
) -> None:
    """The program ends once no zombie of its grandchild is left."""
    container = Container(tmp_path, ORPHAN, 30.0)

    assert container.wait()[0] == 78


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--health"], 1, "not ready"),
        (["no-such-program"], 127, "cannot start no-such-program"),
        ([], 1, "Usage:"),
    ],
)
def test_command_line(arguments: list[str], status: int, words: str) -> None:
    """Statuses as an engine expects them."""
    done = subprocess.run(
        [sys.executable, "-m", "service_runtime.container", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == status
    assert words in done.stdout + done.stderr

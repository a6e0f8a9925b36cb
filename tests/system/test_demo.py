"""`make demo` leaves no process and no folder behind when it is ended."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import wait_until

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_demo_that_is_ended_ends_its_processes(
    number: signal.Signals, times: int, tmp_path: Path
) -> None:
    """Also one that a script started in the background, where SIGINT is ignored.

    make forwards SIGTERM, so that a process group gets it twice.
    """
    with subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$0" -u -m demo --out out', sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout
        folder = demo.stdout.readline().partition(": ")[2].strip()
        wait_until(lambda: any("gateway_daemon run" in each for each in using(folder)))
        for _ in range(times):
            demo.send_signal(number)
            time.sleep(0.3)
        status = demo.wait(120)
    left = using(folder)
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
    assert (status, left) == (130, {})
    assert not Path(folder).exists()


def using(folder: str) -> dict[str, int]:
    """Processes with a folder in their command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if folder in line:
                found[line] = int(path.parent.name)
    return found

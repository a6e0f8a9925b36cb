"""A session of Spark in a process of its own."""

import subprocess
import sys

import pytest

NAMELESS = ("unshare", "--map-root-user", "--uts", "sh", "-c")
"""A shell that may change the name of its machine without changing that of others."""
RENAME = "echo nowhere.invalid > /proc/sys/kernel/hostname"
PROGRAM = """
from backend_spark.streaming.session import open_session

session = open_session("local[1]")
print(session.range(3).count())
session.stop()
"""


@pytest.mark.spark
def test_local_job_needs_no_host_name_that_resolves() -> None:
    """As after a change of /etc/hostname without one of /etc/hosts."""
    tried = subprocess.run(
        [*NAMELESS, RENAME], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"no machine can be renamed here: {tried.stderr.strip()}")
    done = subprocess.run(
        [*NAMELESS, f'{RENAME} && exec "$0" -c "$1"', sys.executable, PROGRAM],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    # Java may warn of an archive of classes before.
    assert done.stdout.splitlines()[-1:] == ["3"]

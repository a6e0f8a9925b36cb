"""A session of Spark in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
import pytest

from backend_spark.streaming.session import WORKER_SITE

NAMELESS = ("unshare", "--map-root-user", "--uts", "sh", "-c")
"""A shell that may change the name of its machine without changing that of others."""
RENAME = "echo nowhere.invalid > /proc/sys/kernel/hostname"
IMPORTED = """
import pyarrow as pa
from backend_spark.streaming.session import open_session

def find(batches):
    import py4j, pyspark
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [pyspark.__file__, py4j.__file__]})

session = open_session("local[1]")
found = session.range(1).mapInArrow(find, "path string").toArrow()
print(*found["path"].to_pylist())
session.stop()
"""
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


@pytest.mark.spark
def test_workers_import_the_installed_pyspark() -> None:
    """Not Spark's archive, whose modules are compiled at each start of a worker."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]
    paths = done.stdout.splitlines()[-1].split()
    assert paths == [pyspark.__file__, py4j.__file__]


def test_archives_of_another_spark_stay_on_the_path(tmp_path: Path) -> None:
    """Its JVM may need another version than the installed one."""
    other = tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    own = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    path = os.pathsep.join([str(own), str(other), WORKER_SITE])
    found = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.path)"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert str(other) in found
    assert str(own) not in found

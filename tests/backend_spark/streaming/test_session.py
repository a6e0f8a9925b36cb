"""A session of Spark, and executors that do not see the folders of the job."""

import os
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from storm_log import message, write

from backend_spark.config import BackendSettings, read_settings
from backend_spark.errors import UnsharedFolderError
from backend_spark.streaming import job
from backend_spark.streaming.session import WORKER_SITE, SharedFolders
from backend_spark.streaming.sources import read_table_rows
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.schemas import SPARK_TABLES
from backend_spark.tables.store import open_table

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


@pytest.fixture
def settings(tmp_path: Path) -> BackendSettings:
    """Settings of a data folder with messages in the log."""
    config, data = tmp_path / "backend.toml", tmp_path / "data"
    config.write_text(f'[backend]\ndata = "{data}"\n')
    write(data / "log", "0a", [[message(0)]])
    create_tables(data / "tables", SPARK_TABLES)
    return read_settings(config)


def test_folder_without_the_mark_is_refused(tmp_path: Path) -> None:
    """As on a machine where nothing is mounted."""
    shared = SharedFolders.create([tmp_path / "data", tmp_path / "tables"])
    shared.require()
    elsewhere = SharedFolders((tmp_path / "data", tmp_path), shared.mark)

    with pytest.raises(UnsharedFolderError, match=r"is missing.*mount the same shared"):
        elsewhere.require()


def test_marks_of_earlier_jobs_are_deleted(tmp_path: Path) -> None:
    """Otherwise each start would leave a file."""
    SharedFolders.create([tmp_path])
    later = SharedFolders.create([tmp_path])
    later.delete_other_marks()

    assert [path.name for path in tmp_path.iterdir()] == [later.mark]


@pytest.mark.spark
def test_start_names_the_folder_that_executors_do_not_see(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The error of an executor is that of the job."""
    shared = SharedFolders.create([tmp_path])
    shared.require_on_executors(spark)
    other = SharedFolders(shared.places, "elsewhere")

    with pytest.raises(UnsharedFolderError, match="is missing") as found:
        other.require_on_executors(spark)
    assert found.value.place == str(tmp_path)


@pytest.mark.spark
def test_batch_of_an_executor_elsewhere_is_not_committed(
    spark: SparkSession, settings: BackendSettings
) -> None:
    """An executor that came after the start checks in its tasks."""
    job.register(spark)
    pipeline = job.make_pipeline(settings)
    messages = read_table_rows(spark, pipeline.tables, "bronze", {})
    (pipeline.data / pipeline.shared.mark).unlink()

    with pytest.raises(PythonException, match="executors must see"):
        pipeline.run_batch(messages, 0)
    assert open_table(pipeline.tables / "messages").version() == 0

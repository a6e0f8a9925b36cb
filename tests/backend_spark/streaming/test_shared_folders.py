"""Executors that do not see the folders of the job write nothing."""

from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from storm_log import message, write

from backend_spark.config import BackendSettings, read_settings
from backend_spark.errors import UnsharedFolderError
from backend_spark.streaming import job
from backend_spark.streaming.shared_folders import SharedFolders
from backend_spark.streaming.sources import read_table_rows
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.schemas import SPARK_TABLES
from backend_spark.tables.store import open_table


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

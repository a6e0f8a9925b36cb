"""The Spark session: settings that were measured, and why."""

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Stored in the checkpoint with the first batch: chosen once.
    "spark.sql.shuffle.partitions": "2",
    # Workers of Python answer late on a busy machine; by default 15 s end the job.
    "spark.python.authenticate.socketTimeout": "120s",
    # State outlives a new field only in avro; set before there is any state.
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
}
LOCAL_SETTINGS: Final = {
    # Rows are in the Python workers: this is for plans, and what comes back of a lot.
    "spark.driver.memory": "600m",
    # G1 takes the whole heap before it collects; what lives in it is a third of that.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:MaxMetaspaceSize=256m",
    # Workers share what they import, and start in no time.
    "spark.python.daemon.module": "backend_spark.workers",
    # A task that decodes has two: one reads the log. Scoring needs one for each core.
    "spark.python.factory.idleWorkerMaxPoolSize": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # rename(2) is atomic on a local disk; the default starts about 20 processes
    # per batch without libhadoop, a quarter of its time.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
LEAN: Final = {
    # The allocators that give memory back: a lot of messages holds 70 MB less in a
    # worker, and is decoded as quickly.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}
"""Environment of the JVM and of all its Pythons, unless it says something else."""


def open_session(master: str | None) -> SparkSession:
    """Start Spark, or join the one that spark-submit started.

    Args:
        master: Where to run; None leaves it to spark-submit.
    """
    # Spark's own default is whatever python3 is first on the path; the workers need
    # this interpreter's packages, installed at the same place on every machine.
    for name, value in {"PYSPARK_PYTHON": sys.executable, **LEAN}.items():
        os.environ.setdefault(name, value)  # noqa: TID251 - pyspark reads it
    builder = SparkSession.builder.appName("yamamori")
    settings = dict(SETTINGS)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            settings |= LOCAL_SETTINGS
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()

"""The Spark session: settings that were measured, and why.

Spark's checkpoint, so kept that a loss of power is no more than a kill.

Spark never calls fsync. Which segments a batch reads is chosen once, in the file
``offsets/N``: planned anew, it would read more, and a table that has batch N would
skip what came to it.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from service_runtime.files import fsync_file, fsync_folder

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
    "spark.python.daemon.module": "backend_spark.streaming.workers",
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


log = logging.getLogger(__name__)

METADATA: Final = "metadata"
_LINES: Final = {"offsets": 3, "commits": 2}
"""Version, settings and offset; version and settings."""


def keep_plan(checkpoint: Path, batch_id: int) -> None:
    """Make the plan of a batch survive, before any table has a row of the batch."""
    plan = checkpoint / "offsets" / str(batch_id)
    for path in (checkpoint / METADATA, plan):
        for file in (path, _checksum(path)):
            if file.exists():
                fsync_file(file)
        fsync_folder(path.parent)


def mend(checkpoint: Path) -> list[Path]:
    """Remove what a loss of power left without its end; Spark would not start.

    No table has a row of a batch whose plan is torn (`keep_plan`), and a batch whose
    end is not told is run again and found to be done.
    """
    torn = []
    for folder, lines in _LINES.items():
        for path in _newest_first(checkpoint / folder):
            # Ours is the check of these; a torn checksum would condemn a whole file.
            _checksum(path).unlink(missing_ok=True)
            if _is_whole(path, lines):
                break
            torn.append(path)
    metadata, plans = checkpoint / METADATA, _newest_first(checkpoint / "offsets")
    has_begun = any(_newest_first(checkpoint / "commits")) or len(plans) > 1
    if metadata.exists() and not has_begun and not _is_whole(metadata, 1):
        torn += [metadata, _checksum(metadata), *plans]
    for path in dict.fromkeys(torn):
        log.warning("%s is torn by a loss of power, and removed", path)
        path.unlink(missing_ok=True)
        fsync_folder(path.parent)
    return torn


def _newest_first(folder: Path) -> list[Path]:
    numbered = [path for path in folder.glob("*") if path.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.name), reverse=True)


def _is_whole(path: Path, lines: int) -> bool:
    """Whether the last of so many lines is JSON to its end."""
    told = path.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        return len(told) >= lines and bool(json.loads(told[-1]))
    except json.JSONDecodeError:
        return False


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")

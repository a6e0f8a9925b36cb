"""Spark session with measured settings, and durability of Spark's checkpoint.

Spark never calls fsync, so a power cut may lose or tear checkpoint files.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from service_runtime.files import fsync_file, fsync_folder

log = logging.getLogger(__name__)

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Stored in the checkpoint with the first batch, so it cannot be changed later.
    "spark.sql.shuffle.partitions": "2",
    # Python workers start slowly on a busy machine; the default of 15 s ends the job.
    "spark.python.authenticate.socketTimeout": "120s",
    # Only avro state allows new fields; must be set before there is any state.
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
}
LOCAL_SETTINGS: Final = {
    # Rows are in the Python workers; the JVM holds plans and the results of lots.
    "spark.driver.memory": "600m",
    # G1 fills the whole heap before it collects; a third of it is live.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:MaxMetaspaceSize=256m",
    # Workers share their imports, and start at once.
    "spark.python.daemon.module": "backend_spark.streaming.workers",
    # A decoding task has two workers, one to read the log; scoring has one per core.
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
ENVIRONMENT: Final = {
    # Allocators that return memory: 70 MB less per worker at the same decoding speed.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}
"""Environment of the JVM and of its Python workers, unless set already."""


def open_session(master: str | None) -> SparkSession:
    """Start Spark, or use the session that spark-submit started.

    Args:
        master: Spark master; None leaves it to spark-submit.
    """
    # Spark's default is the first python3 on the path; the workers need this
    # interpreter's packages, installed at the same path on every machine.
    for name, value in {"PYSPARK_PYTHON": sys.executable, **ENVIRONMENT}.items():
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


METADATA_FILE: Final = "metadata"
_LINES: Final = {"offsets": 3, "commits": 2}
"""Lines of a file: version, settings and offset; version and settings."""


def sync_plan(checkpoint: Path, batch_id: int) -> None:
    """Fsync the plan of a batch, before any table has a row of the batch.

    The file ``offsets/N`` determines which segments batch N reads. A batch that is
    planned again may read more segments, and a table that already has batch N would
    skip them.
    """
    plan = checkpoint / "offsets" / str(batch_id)
    for path in (checkpoint / METADATA_FILE, plan):
        for file in (path, _checksum(path)):
            if file.exists():
                fsync_file(file)
        fsync_folder(path.parent)


def repair_checkpoint(checkpoint: Path) -> list[Path]:
    """Delete files that a power cut tore, with which Spark would not start.

    No table has a row of a batch whose plan is torn (`sync_plan`). A batch whose commit
    is lost is run again, and its tables have it already.

    Returns:
        The deleted files.
    """
    torn = []
    for folder, lines in _LINES.items():
        for path in _newest_first(checkpoint / folder):
            # A torn checksum would make Spark reject a complete file.
            _checksum(path).unlink(missing_ok=True)
            if _is_complete(path, lines):
                break
            torn.append(path)
    metadata, plans = checkpoint / METADATA_FILE, _newest_first(checkpoint / "offsets")
    has_begun = any(_newest_first(checkpoint / "commits")) or len(plans) > 1
    if metadata.exists() and not has_begun and not _is_complete(metadata, 1):
        torn += [metadata, _checksum(metadata), *plans]
    for path in dict.fromkeys(torn):
        log.warning("%s was torn by a power cut: deleted", path)
        path.unlink(missing_ok=True)
        fsync_folder(path.parent)
    for name in _LINES:
        for path in _unfinished(checkpoint / name):
            path.unlink()
    return torn


def _unfinished(folder: Path) -> list[Path]:
    """Files that Spark had not renamed yet when it was killed, and stray checksums.

    Spark does not start its first batch in a folder that has any file.
    """
    kept = {_checksum(path) for path in _newest_first(folder)}
    return [path for path in folder.glob(".*") if path.is_file() and path not in kept]


def _newest_first(folder: Path) -> list[Path]:
    numbered = [path for path in folder.glob("*") if path.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.name), reverse=True)


def _is_complete(path: Path, min_lines: int) -> bool:
    """Whether a file has enough lines and the last one is complete JSON."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        return len(lines) >= min_lines and bool(json.loads(lines[-1]))
    except json.JSONDecodeError:
        return False


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")

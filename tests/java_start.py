"""A fast start of the JVMs that tests start: a third less processor time for each.

The classes that Spark loads are stored once, already parsed, in the user's cache
(dynamic class data sharing, Java 13 and later); a JVM with other flags or jars than
those of the archive ignores it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

BASE_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SMALL_LOG = """
import sys
from pathlib import Path
from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

writer = SegmentWriter(Path(sys.argv[1]), "ingest-0.0a")
for seq in range(4):
    at_s = 1_750_000_200 + 600 * seq
    pack = Pack(MessageId("n", "b", seq), 1, at_s, (Reading("rain", "mm", None, seq),))
    topic = cell_topic(Cell.at(33.0, 133.0))
    row = LogRow(at_s * 1_000_000, topic, encode_cbor(pack), "n", "b", seq, 1)
    writer.append([row])
"""


def java_options() -> str:
    """Options of every JVM; with the archive, if it has been made."""
    archive = _archive()
    if not archive.exists():
        return BASE_OPTIONS
    return f"{BASE_OPTIONS} -XX:SharedArchiveFile={archive}"


def make_archive(folder: Path) -> None:
    """Make the archive, unless it exists, by a small run of the scoring job.

    Args:
        folder: An empty folder for its data.
    """
    archive = _archive()
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    config, made = folder / "backend.toml", folder / "spark.jsa"
    config.write_text(
        f'[backend]\ndata = "{folder}/data"\n[score]\nmaster = "local[2]"\n'
    )
    run = [sys.executable, "-c", SMALL_LOG, f"{folder}/data/log"]
    subprocess.run(run, check=True)
    subprocess.run(
        [sys.executable, "-m", "backend_spark", "score", "--once", "--config", config],
        env=os.environ
        | {"JAVA_TOOL_OPTIONS": f"{BASE_OPTIONS} -XX:ArchiveClassesAtExit={made}"},
        check=True,
        capture_output=True,
    )
    if made.exists():  # a JVM that cannot write one runs as well without
        shutil.copy(made, f"{archive}.part")
        Path(f"{archive}.part").rename(archive)


def _archive() -> Path:
    java = Path(shutil.which("java") or "java").resolve()
    spark = find_spec("pyspark")
    origin = spark.origin if spark else None
    parts = (str(java), version("pyspark"), str(origin))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "yamamori" / f"spark-{key}.jsa"

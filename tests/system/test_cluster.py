"""The same job on a standalone Spark cluster, a worker killed in the middle."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from conftest import wait_until

from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from backend_spark.tables.reader import open_tables
from demo.processes import Processes, free_port, wait_for_port
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.long]

T0 = 1_750_000_200
SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
DEPLOY = "org.apache.spark.deploy"


def message(seq: int, node: int) -> LogRow:
    """A pack of a node in a storm."""
    at_s = T0 + 600 * seq
    readings = (Reading("rain", "mm", None, 3.0 * seq), Reading("wire", None, False))
    name = f"n{node}"
    payload = encode_cbor(Pack(MessageId(name, "b", seq), 1, at_s, readings))
    topic = cell_topic(Cell.at(33.0 + node / 20, 133.0))
    return LogRow((at_s + 2) * 1_000_000, topic, payload, name, "b", seq, 1)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A master and two workers out of the pip package; gives them and the URL."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_LOG_DIR", str(tmp_path))
    processes, port = Processes(tmp_path), free_port()
    url = f"spark://127.0.0.1:{port}"
    processes.start(
        "master", SPARK_CLASS, f"{DEPLOY}.master.Master",
        "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0",
    )  # fmt: skip
    wait_for_port(port, 120)
    for name in ("worker-1", "worker-2"):
        processes.start(
            name, SPARK_CLASS, f"{DEPLOY}.worker.Worker", "--cores", "1",
            "--memory", "1g", "--webui-port", "0", "--host", "127.0.0.1",
            "--work-dir", str(tmp_path / name), url,
        )  # fmt: skip
    yield processes, url
    processes.stop()


def data_folder(folder: Path, segments: int) -> Path:
    """A data folder with a log of four nodes; gives its settings."""
    writer = SegmentWriter(folder / "data" / "log", "ingest-0.0a")
    for seq in range(segments):
        writer.append([message(seq, node) for node in range(4)])
    config = folder / "backend.toml"
    config.write_text(
        f'[backend]\ndata = "{folder / "data"}"\n[score]\nmaster = "local[2]"\n'
        "max_segments_per_batch = 4\nevery_s = 1\n"
    )
    return config


def rows(folder: Path, name: str, *keys: str) -> list[dict[str, Any]]:
    """Rows of a table, sorted; batches may be cut differently."""
    table = open_tables(folder / "data").read(name)
    return table.sort_by([(key, "ascending") for key in keys]).to_pylist()  # type: ignore[no-any-return]


def test_cluster_that_loses_a_worker_ends_with_the_tables_of_one_machine(
    tmp_path: Path,
    cluster: Any,  # noqa: ANN401 - from the fixture
) -> None:
    """`--master spark://` is all that changes; what the dead one did is done again."""
    processes, url = cluster
    here, there = tmp_path / "here", tmp_path / "there"
    configs = {folder: data_folder(folder, 24) for folder in (here, there)}
    command = [sys.executable, "-m", "backend_spark", "score", "--once", "--config"]
    log = (tmp_path / "there.log").open("wb")
    run = subprocess.Popen(
        [*command, str(configs[there]), "--master", url], stderr=log, stdout=log
    )
    bronze = open_tables(there / "data")
    wait_until(lambda: bronze.bronze(["seq"]).num_rows > 0, timeout_s=300)
    processes.kill("worker-1")
    assert run.wait(600) == 0, (tmp_path / "there.log").read_text()[-3000:]
    log.close()
    subprocess.run([*command, str(configs[here])], check=True)
    used = {path.name for path in tmp_path.glob("worker-*/app-*/*") if path.is_dir()}

    assert len(used) >= 2, "both workers had an executor"
    assert len(rows(there, "messages", "node", "seq")) == 4 * 24
    for name, keys in (
        ("silver", ("node", "seq", "name")),
        ("messages", ("node", "seq")),
        ("levels", ("cell", "at")),
    ):
        assert rows(there, name, *keys) == rows(here, name, *keys), name

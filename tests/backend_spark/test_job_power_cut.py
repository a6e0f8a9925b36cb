"""Power cuts while the job runs: Spark's checkpoint and the tables still agree."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import powercut
import pytest
from conftest import wait_until

from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from backend_spark.tables.reader import open_tables
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

pytestmark = [pytest.mark.spark, pytest.mark.long]

STARTED_S = 900.0
PYTHON = [sys.executable, "-m"]


def write(log: Path, run: str, seqs: range) -> None:
    """Write one segment per message."""
    writer = SegmentWriter(log, f"ingest-0.{run}")
    topic = cell_topic(Cell.at(33.56, 133.53))
    for seq in seqs:
        at_s = 1_750_000_200 + 600 * seq
        pack = Pack(
            MessageId("n", "b", seq), 1, at_s, (Reading("rain", "mm", 1.0, 1.0),)
        )
        row = LogRow(at_s * 1_000_000, topic, encode_cbor(pack), "n", "b", seq, 1)
        writer.append([row])


@pytest.mark.usefixtures("quick_java")
def test_job_scores_each_message_once_after_a_power_cut(
    make_data: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is not planned again if a table already has it.

    Segments that arrive during the power cut would be in the new plan but in no
    table, because the batch counts as committed.
    """
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    root, store, kept = (tmp_path / name for name in ("root", "store", "kept"))
    data = root / "data"
    write(data / "log", "0a", range(9))
    config = make_data().config
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace(f"{tmp_path}/data", f"{data}"), encoding="utf-8")
    score = ["backend_spark", "score", "--config", str(config)]
    job = subprocess.Popen(
        [*PYTHON, "powercut", str(store), str(root), *score], start_new_session=True
    )
    wait_until(lambda: job.poll() or open_tables(data).bronze().num_rows, STARTED_S)
    os.killpg(job.pid, signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    shutil.copytree(root, kept / "root")
    shutil.copytree(store, kept / "store")
    for keeps_names in (False, True):
        for folder in (root, store):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(kept / folder.name, folder)
        powercut.cut(store, root, keeps_names=keeps_names)
        write(data / "log", "0b", range(9, 15))
        subprocess.run([*PYTHON, *score, "--once"], check=True)
        tables = open_tables(data)

        for name in ("bronze", "messages", "silver"):
            seqs = tables.read(name, ["seq"])["seq"].to_pylist()
            assert Counter(seqs) == dict.fromkeys(range(15), 1), name
        assert tables.levels().num_rows == 15

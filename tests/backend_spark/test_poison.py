"""A message that ends ingest, alerts or the scorer's workers is put aside."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dying_program
import pyarrow.parquet as pq
import pytest
from conftest import Broker, wait_until
from ingesting import TOPIC, IngestBench, Sender

from backend_spark.ingest.messages import DEAD_LETTER
from backend_spark.ingest.segment_log import LogRow, SegmentWriter, read_segments
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import SPARK_TABLES
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.transport import Publication

PROGRAM = str(Path(dying_program.__file__))
T0 = 1_750_000_200


def pack(seq: int, why: bytes = b"", priority: int = 5) -> bytes:
    readings = (Reading("wire", None, True),)
    message_id = MessageId("node-1", "b", seq)
    return encode_cbor(Pack(message_id, priority, T0, readings, why=why.decode()))


KILLS, RAISES = pack(1, dying_program.KILLS), pack(2, dying_program.RAISES)


def letters(data: Path) -> set[bytes]:
    """Payloads of the dead letters."""
    found = (data / "dead-letters").iterdir()
    return {base64.b64decode(json.loads(each.read_text())["payload"]) for each in found}


def write_log(data: Path) -> None:
    """A log with three messages; two of them kill their readers."""
    rows = [
        LogRow((T0 + 2) * 1_000_000, TOPIC, payload, "node-1", "b", seq, 5)
        for seq, payload in enumerate((KILLS, RAISES, pack(3)), 1)
    ]
    SegmentWriter(data / "log", "ingest-0.01").append(rows)


@pytest.mark.broker
def test_message_that_kills_ingest_is_put_aside_after_two_deaths(
    broker: Broker, make_data: Callable[[str], Any]
) -> None:
    """The broker redelivers it; the message behind it is logged and receipted."""
    data = make_data(f'[ingest]\nbroker = "{broker.url}"\n')
    ingester = IngestBench(data.config, data.folder)
    ingester.module = ["-P", PROGRAM, "backend_spark"]
    sender = Sender(broker)
    ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.connection.publish(Publication(TOPIC, KILLS))
    sender.send(3)

    def has_arrived() -> bool:
        if ingester.processes[-1].poll() is not None:
            ingester.start()
        return sender.has_receipt(3)

    wait_until(has_arrived, 120)
    ends = [process.poll() for process in ingester.processes]
    ingester.end_all()
    sender.connection.stop()
    rows = [row for _, t in read_segments(ingester.quarantine) for row in t.to_pylist()]

    assert ends == [-signal.SIGKILL, -signal.SIGKILL, None]
    assert ingester.logged() == {3: 1}
    assert [(row["payload"], row["reason"]) for row in rows] == [(KILLS, DEAD_LETTER)]
    assert letters(data.folder) == {KILLS}
    assert not sender.has_receipt(1)


@pytest.mark.attack("a message that ends alerts at each start", "no alerts any more")
def test_message_that_kills_alerts_becomes_an_alert_without_its_content(
    make_data: Callable[[str], Any],
) -> None:
    """Two deaths each; afterwards the analyst sees that urgent messages are unread."""
    data = make_data("")
    write_log(data.folder)
    command = [sys.executable, "-P", PROGRAM, "backend_spark", "alerts", "--config"]
    ends: list[int | None] = []
    running: list[subprocess.Popen[bytes]] = []

    def is_written() -> bool:
        if not running or running[-1].poll() is not None:
            ends.extend(process.returncode for process in running[-1:])
            running.append(subprocess.Popen([*command, str(data.config)]))
        tables = data.folder / "tables" / "alerts"
        return tables.exists() and open_tables(data.folder).alerts().num_rows == 3

    wait_until(is_written, 120)
    running[-1].kill()
    running[-1].wait()
    rows = sorted(open_tables(data.folder).alerts().to_pylist(), key=lambda r: r["seq"])

    assert ends == [-signal.SIGKILL] * 2 + [1] * 2
    assert [row["reason"] for row in rows] == [DEAD_LETTER, DEAD_LETTER, None]
    assert [row["readings"] for row in rows] == [[], [], ["wire true"]]
    assert letters(data.folder) == {KILLS, RAISES}


WORKER = """
import json, sys
from pathlib import Path
import dying_program
from backend_spark.ingest.segment_log import read_segments
from backend_spark.streaming.batches import DecodingWorker
from backend_spark.tables.schemas import RECEIVED
data = Path(sys.argv[1])
worker = DecodingWorker(data / "tables", data, frozenset(RECEIVED), 7, 600, 60 * 86_400)
batches = [b for _, t in read_segments(data / "log") for b in t.to_batches()]
for result in worker.process(batches):
    for row in result.to_pylist():
        if row["table"] in RECEIVED:
            print(row["table"], json.loads(row["data"])["file"])
"""


@pytest.mark.attack(
    "a message that ends the scorer at each start", "no levels any more"
)
def test_message_that_kills_a_worker_of_the_scorer_is_rejected_undecoded(
    tmp_path: Path,
) -> None:
    """Bronze has it as received; a death of the chunk counts as its first one."""
    write_log(tmp_path)
    create_tables(tmp_path / "tables", SPARK_TABLES)
    path = str(Path(PROGRAM).parent)
    ends = []
    while not ends or ends[-1]:
        done = subprocess.run(
            [sys.executable, "-c", WORKER, str(tmp_path)],
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        ends.append(done.returncode)
        assert len(ends) < 9
    files = dict(line.split() for line in done.stdout.splitlines())
    rows = {
        name: pq.read_table(tmp_path / "tables" / name / file).to_pylist()
        for name, file in files.items()
    }

    # The chunk dies, then each of the two messages alone.
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 1, 0]
    assert [row["payload"] for row in rows["bronze"]] == [KILLS, RAISES, pack(3)]
    assert {row["seq"]: row["reason"] for row in rows["rejected"]} == {
        1: DEAD_LETTER,
        2: DEAD_LETTER,
    }
    assert [row["seq"] for row in rows["silver"]] == [3]
    assert letters(tmp_path) == {KILLS, RAISES}

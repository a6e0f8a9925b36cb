"""The ingest process on a real Mosquitto, killed and restarted."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Broker, free_port, wait_until
from ingesting import TOPIC, IngestBench, Sender, scrape, value

from backend_spark.alerts import AlertCheckpoint
from backend_spark.ingest.log import REPLACED_FILE
from backend_spark.ingest.segment_log import (
    LogRow,
    SegmentWriter,
    list_segments,
    read_segments,
)
from spatial_mqtt.custody import COMPACT_FORM, encode_correlation
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import Publication

pytestmark = pytest.mark.broker


@pytest.fixture
def ingester(broker: Broker, make_data: Callable[[str], Any]) -> Iterator[IngestBench]:
    """An ingester that reads from the broker."""
    data = make_data(f'[ingest]\nbroker = "{broker.url}"\n')
    ingester = IngestBench(data.config, data.folder)
    yield ingester
    ingester.end_all()


def test_message_is_on_disk_when_its_receipt_arrives(
    ingester: IngestBench, sender: Sender
) -> None:
    """Offer, segment, receipt; a duplicate gets a receipt but is not logged."""
    ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1))
    logged = ingester.logged()
    sender.receipts.clear()
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1))

    assert sender.offers[0].receiver == "ingest-0"
    assert sender.offers[0].covers(TOPIC)
    assert logged == {1: 1}
    assert ingester.logged() == {1: 1}
    assert not list(ingester.log.glob(".unfinished*"))


def test_metrics_count_what_scoring_and_alerts_have_not_read(
    broker: Broker, make_data: Callable[[str], Any]
) -> None:
    """Each on its own, so that an alert names the program that stands still."""
    port = free_port()
    data = make_data(
        f'[ingest]\nbroker = "{broker.url}"\n[metrics]\nlisten = "127.0.0.1:{port}"\n'
    )
    writer = SegmentWriter(data.folder / "log", "east.01")
    for seq in range(7):
        writer.append([LogRow(1, "/4/1", b"", "n", "b", seq, 1)])
    ingester = IngestBench(data.config, data.folder)
    ingester.start()

    def is_served() -> bool:
        with suppress(OSError):
            return "yamamori_log_segments 7" in scrape(port)
        return False

    wait_until(is_served)
    page, unscored = scrape(port), [value(port, "log_unscored_segments")]
    for name, last in (("alerts", 1), ("score", 4)):
        checkpoint = data.folder / "checkpoints" / name
        AlertCheckpoint(checkpoint).write({"east.01": last})
        unscored.append(value(port, "log_unscored_segments"))
    unread = value(port, "alerts_unread_segments")
    ingester.end_all()

    assert re.findall(r"^yamamori_alerts_unread_segments", page, re.MULTILINE) == []
    assert unscored == [7, 7, 2]
    assert unread == 5


def test_ingester_of_a_replaced_machine_ends(
    ingester: IngestBench, sender: Sender
) -> None:
    """It would take messages from the new one, and nothing would score them."""
    replaced = ingester.log.parent / "checkpoints" / REPLACED_FILE
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    replaced.parent.mkdir()
    replaced.write_text("backend-2", encoding="utf-8")
    _, stderr = process.communicate(timeout=60)
    again = ingester.start()
    _, stderr_again = again.communicate(timeout=60)

    assert process.returncode == again.returncode == 78
    assert "got 'those of backend-2'" in stderr
    assert stderr.count(f"delete {replaced}") == 1
    assert f"delete {replaced}" in stderr_again


def test_gateways_properties_in_both_forms_are_one_message(
    ingester: IngestBench, sender: Sender
) -> None:
    """A plain client's message in the compact form, and again in the earlier one."""
    ingester.start()
    wait_until(lambda: bool(sender.offers))
    id_ = MessageId("node-1", "0123abcd", 7)
    plain = Publication(TOPIC, b"plain")
    earlier = {"message_id": str(id_), "response_topic": "/custody/node-1"}
    for publication in (
        plain._replace(correlation=encode_correlation(4, id_, "node-1")),
        plain._replace(priority=4, **earlier),
    ):
        sender.receipts.clear()
        sender.connection.publish(publication)
        wait_until(lambda: any(id_ in receipt for receipt in sender.receipts))
    tables = [table for _, table in read_segments(ingester.log)]
    rows = [row for table in tables for row in table.to_pylist()]

    assert COMPACT_FORM in sender.offers[0].takes
    assert [(r["payload"], r["node"], r["boot"], r["seq"], r["pri"]) for r in rows] == [
        (b"plain", "node-1", "0123abcd", 7, 4)
    ]


def test_malformed_message_is_quarantined_and_blocks_no_other(
    ingester: IngestBench, sender: Sender
) -> None:
    """A payload without an id is stored with its reason and acknowledged."""
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.connection.publish(Publication(TOPIC, b"not a pack"))
    sender.send(2)
    wait_until(lambda: sender.has_receipt(2))
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    rows = [row for _, t in read_segments(ingester.quarantine) for row in t.to_pylist()]

    assert process.returncode == 0
    assert ingester.logged() == {2: 1}
    assert [(row["payload"], row["node"]) for row in rows] == [(b"not a pack", None)]
    assert "payload must be SenML" in rows[0]["reason"]
    assert "1 messages in 1 segments, 0 duplicates, 1 in quarantine" in stderr


def test_node_id_outside_its_certificate_area_is_quarantined(
    broker: Broker, make_data: Callable[[str], Any], sender: Sender, tmp_path: Path
) -> None:
    """A later message of the real node with the same number counts as new."""
    path = tmp_path / "places.json"
    path.write_text(json.dumps({"node-1": [TOPIC]}))
    data = make_data(f'[ingest]\nbroker = "{broker.url}"\nplaces = "{path}"\n')
    ingester = IngestBench(data.config, data.folder)
    ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.send(1, priority=5, topic="/0/1")
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1))
    ingester.end_all()
    rows = [row for _, t in read_segments(ingester.quarantine) for row in t.to_pylist()]

    assert ingester.logged() == {1: 1}
    assert [(row["topic"], row["node"]) for row in rows] == [("/0/1", None)]


def test_second_ingester_on_the_same_folder_is_rejected(
    ingester: IngestBench, sender: Sender
) -> None:
    """Two ingesters of one name would receive each other's messages."""
    ingester.start()
    wait_until(lambda: bool(sender.offers))
    second = ingester.start()
    _, stderr = second.communicate(timeout=60)

    assert second.returncode == 75
    assert "backend-spark: cannot start while another process holds" in stderr


def test_failing_disk_ends_the_process_without_loss(
    ingester: IngestBench, sender: Sender
) -> None:
    """An unwritten message is not acknowledged and is redelivered after a restart."""
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    shutil.rmtree(ingester.log)
    sender.send(3, priority=5)
    _, stderr = process.communicate(timeout=60)
    ingester.start()
    wait_until(lambda: sender.has_receipt(3))

    assert process.returncode == 70
    assert "unknown error" in stderr
    assert ingester.logged() == {3: 1}


def test_kill_during_a_stream_keeps_each_message_once(
    ingester: IngestBench, sender: Sender
) -> None:
    """Two kill -9 while messages arrive; the log has each id exactly once."""
    count = 600
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    for seq in range(count):
        sender.send(seq, priority=1 + seq % 5)
        if seq in {200, 400}:
            # One segment may hold all messages sent so far.
            wait_until(lambda: list_segments(ingester.log))
            process.kill()
            process.wait()
            process = ingester.start()
    wait_until(lambda: len(ingester.logged()) == count, timeout_s=90)
    # A sender without a receipt sends again.
    for seq in range(0, count, 7):
        sender.send(seq)
    sender.receipts.clear()
    sender.send(count)
    wait_until(lambda: sender.has_receipt(count))

    assert ingester.logged() == dict.fromkeys(range(count + 1), 1)

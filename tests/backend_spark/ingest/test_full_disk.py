"""A full disk of one megabyte: no message is acknowledged and none is lost."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Broker, free_port, wait_until
from ingesting import IngestBench, Sender, scrape, value

from backend_spark.ingest.deduplication import MessageIdSet, archived_ids_path
from backend_spark.ingest.segment_log import LogRow, SegmentWriter, list_segments

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]
BUFFER_BYTES = 200_000
PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "data"
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True
    )
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def port() -> int:
    """Port of the ingester's metrics."""
    return free_port()


@pytest.fixture
def ingester(
    disk: Path, port: int, broker: Broker, make_data: Callable[[str], Any]
) -> Iterator[IngestBench]:
    """An ingester that writes to the small disk."""
    data = make_data(
        f'[ingest]\nbroker = "{broker.url}"\nbuffer_bytes = {BUFFER_BYTES}\n'
        f'takeover_s = 3600\n[metrics]\nlisten = "127.0.0.1:{port}"\n'
    )
    assert data.folder == disk
    ingester = IngestBench(data.config, data.folder)
    yield ingester
    ingester.end_all()


def fill_up(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_full_disk_stops_acknowledgements_and_bounds_memory(
    ingester: IngestBench, port: int, sender: Sender, disk: Path
) -> None:
    """The ingester waits, reports it in its metrics, and resumes when space is free."""
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.send(0, priority=5)
    wait_until(lambda: sender.has_receipt(0))
    fill_up(disk / "ballast")
    count = 2000
    for seq in range(1, count):
        sender.send(seq, priority=1 + seq % 5)
    wait_until(lambda: value(port, "ingest_disk_full") == 1)
    wait_until(lambda: value(port, "ingest_waiting_bytes") > BUFFER_BYTES)
    waiting = value(port, "ingest_waiting_bytes")

    assert waiting < BUFFER_BYTES + 2000
    assert value(port, "ingest_lag_seconds") > 0
    assert ingester.logged() == {0: 1}
    assert not any(sender.has_receipt(seq) for seq in range(1, count))
    assert process.poll() is None

    (disk / "ballast").unlink()
    wait_until(lambda: len(ingester.logged()) == count)
    wait_until(lambda: sender.has_receipt(count - 1))
    assert ingester.logged() == dict.fromkeys(range(count), 1)
    assert value(port, "ingest_disk_full") == 0
    assert value(port, "ingest_logged_total") == count


def test_full_disk_removes_scored_segments(
    ingester: IngestBench, sender: Sender, disk: Path
) -> None:
    """Half of the log is removed, before any limit is reached; the ids are kept."""
    stream = "ingest-0.00"
    writer = SegmentWriter(ingester.log, stream)
    for seq in range(10_000, 10_040):
        writer.append([LogRow(1_800_000_000_000_000, "/4/1", b"", "n", "b", seq, 1)])
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    wait_until((ingester.log / ".reserve.ids-ingest-0").exists)
    for kind, text in (("offsets", f'v1\n{{}}\n{{"{stream}": 39}}'), ("commits", "v1")):
        path = disk / "checkpoints" / "score" / kind / "0"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    fill_up(disk / "ballast")
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1), timeout_s=90)

    assert process.poll() is None
    assert archived_ids_path(ingester.log, "ingest-0").exists()
    assert len(list_segments(ingester.log)) < 41
    assert MessageIdSet.read_log(ingester.log).count() == 41


def test_stop_on_a_full_disk_acknowledges_nothing(
    ingester: IngestBench, port: int, sender: Sender, disk: Path
) -> None:
    """The broker delivers the messages again."""
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    fill_up(disk / "ballast")
    sender.send(1)
    wait_until(lambda: value(port, "ingest_disk_full") == 1)
    process.terminate()
    assert process.wait(timeout=60) == 0
    (disk / "ballast").unlink()
    ingester.start()
    wait_until(lambda: sender.has_receipt(1))

    assert ingester.logged() == {1: 1}


def test_metrics_match_the_reference(
    ingester: IngestBench, port: int, sender: Sender
) -> None:
    """The names in docs/reference/metrics.md are the exported ones."""
    ingester.start()
    wait_until(lambda: bool(sender.offers))
    section = PAGE.read_text(encoding="utf-8").partition("## An ingester\n")[2]
    documented = re.findall(
        r"^\| `(\w+)`", section.partition("\n## ")[0], flags=re.MULTILINE
    )
    exported = re.findall(r"^# TYPE (\w+) ", scrape(port), flags=re.MULTILINE)

    assert sorted(documented) == sorted(exported)

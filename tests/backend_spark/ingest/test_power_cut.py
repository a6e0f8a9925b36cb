"""Power cuts: unsynced data is lost, but no message with a receipt."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import powercut
import pytest
from conftest import Broker, wait_until
from ingesting import IngestBench, Sender
from sizes import sizes

from backend_spark.ingest.deduplication import MessageIdSet


@pytest.fixture
def ingester(
    broker: Broker, make_data: Callable[[str], Any], tmp_path: Path
) -> Iterator[IngestBench]:
    """An ingester on an empty disk, with every fsync recorded."""
    data = make_data(f'[ingest]\nbroker = "{broker.url}"\nkeep_segments = 10\n')
    root = tmp_path / "root"
    root.mkdir()
    text = data.config.read_text(encoding="utf-8")
    data.config.write_text(text.replace(f"{data.folder}", f"{root}/new/data"))
    ingester = IngestBench(data.config, root / "new/data")
    ingester.module = [
        "-m",
        "powercut",
        f"{tmp_path}/store",
        f"{root}",
        "backend_spark",
    ]
    yield ingester
    ingester.end_all()


@pytest.fixture
def sender(broker: Broker) -> Iterator[Sender]:
    """A node on the same broker; neither is affected by the power cut."""
    sender = Sender(broker)
    yield sender
    sender.connection.stop()


@pytest.mark.broker
@pytest.mark.parametrize("rounds", sizes(2, 20))
def test_power_cut_loses_no_message_with_a_receipt(
    ingester: IngestBench,
    sender: Sender,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
) -> None:
    """Repeatedly; the broker does not redeliver acknowledged messages."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    rng = random.Random(11)
    sent = 0
    for _ in range(rounds):
        process = ingester.start()
        first = sent
        wait_until(lambda: bool(sender.offers))  # the broker has its session then
        sender.send(sent, priority=5)
        wait_until(lambda seq=sent: sender.has_receipt(seq))
        for sent in range(first + 1, first + rng.randrange(100, 600)):
            sender.send(sent, priority=1 + sent % 5)
            time.sleep(rng.uniform(0, 0.002))
        sent += 1
        process.kill()
        process.wait()
        known = {seq for seq in range(sent) if sender.has_receipt(seq)}
        powercut.cut(tmp_path / "store", tmp_path / "root")

        assert known <= ingester.logged().keys()
        assert known
    ingester.start()
    # Nothing is sent again: all messages acknowledged to the broker must be there.
    wait_until(lambda: sender.has_receipt(sent - 1))
    wait_until(lambda: len(ingester.logged()) == sent)

    assert ingester.logged() == dict.fromkeys(range(sent), 1)
    assert MessageIdSet.read_log(ingester.log).count() == sent


PROGRAM = """
import os
from pathlib import Path

def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

root = Path({root!r})
for name in ("both", "file", "folder", "later"):
    (root / name).write_text("before")
for name in ("both", "file", "later"):
    sync(root / name)
(root / "file").rename(root / "renamed")
(root / "made").mkdir()
sync(root)
(root / "renamed").rename(root / "again")
(root / "later").write_text("after")
(root / "unnamed").write_text("before")
sync(root / "unnamed")
(root / "made" / "inner").write_text("before")
sync(root / "made" / "inner")
"""


def test_cut_keeps_only_synced_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Self-test of `powercut`: content by fsync of the file, names by the folder's."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    (root / "old").write_text("before")
    (tmp_path / "writes.py").write_text(PROGRAM.format(root=str(root)))
    command = ["-m", "powercut", str(store), str(root), "writes"]
    subprocess.run([sys.executable, *command], check=True)
    powercut.cut(store, root)
    left = {p.name: p.read_text() for p in root.iterdir() if p.is_file()}

    assert left == {
        "old": "before",
        "both": "before",
        "renamed": "before",
        "folder": "",
        "later": "before",
    }
    assert list((root / "made").iterdir()) == []

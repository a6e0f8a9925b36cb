"""Two ingest processes of one name: one is active, the other takes over."""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Broker, wait_until
from ingesting import IngestBench, Sender
from sizes import sizes

from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from service_runtime.files import LockHolder, acquire_lock

pytestmark = pytest.mark.broker


@pytest.fixture
def ingester(broker: Broker, make_data: Callable[[str], Any]) -> Iterator[IngestBench]:
    """A folder whose ingester is replaced after three silent seconds."""
    data = make_data(f'[ingest]\nbroker = "{broker.url}"\ntakeover_s = 3\n')
    ingester = IngestBench(data.config, data.folder)
    yield ingester
    ingester.end_all()


@pytest.fixture
def sender(broker: Broker) -> Iterator[Sender]:
    """A node on the same broker."""
    sender = Sender(broker)
    yield sender
    sender.connection.stop()


def wait_for_active_pid(ingester: IngestBench, but: int = 0) -> int:
    """Wait for a process that holds the lock, other than `but`; return its id."""
    lock = ingester.log / ".lock-ingest-0"

    def holder() -> LockHolder | None:
        found = LockHolder.read(lock) if lock.exists() else None
        return found if found is not None and found.pid != but else None

    wait_until(holder)
    found = holder()
    assert found is not None
    return found.pid


SLOW_READING = """
import logging, runpy, sys, time
from backend_spark.ingest import deduplication, process

read_segment_ids = deduplication.read_segment_ids

def read_slowly(path):
    logging.warning("reads %s", path)
    time.sleep(0.04)
    return read_segment_ids(path)

deduplication.read_segment_ids = read_slowly
process.SILENCE_S, process.CATCH_UP_S = 3.0, 0.2
sys.argv[0] = "backend-spark"
runpy.run_module("backend_spark", run_name="__main__")
"""
"""The program with segments of which 150 take twice the longest silence."""


def start_slowly(
    ingester: IngestBench, monkeypatch: pytest.MonkeyPatch
) -> subprocess.Popen[str]:
    """Start a standby that reads 150 segments slowly, with a check each half second."""
    path = SegmentWriter(ingester.log, "east.01").append([
        LogRow(1, "/4/1", b"", "node-2", "b", 1, 1)
    ])
    for number in range(1, 150):
        (ingester.log / f"east.{number:010x}-0000000000.arrow").hardlink_to(path)
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    ingester.module = ["-c", SLOW_READING]
    return ingester.start("--standby")


def test_standby_that_reads_a_long_log_does_not_count_as_hanging(
    ingester: IngestBench, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog would end it, and the next one would begin at the start again."""
    lock = acquire_lock(ingester.log / ".lock-ingest-0")
    process = start_slowly(ingester, monkeypatch)
    assert process.stderr is not None
    while "reads " not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(6)
    os.close(lock)
    wait_until(lambda: bool(sender.offers))
    process.terminate()
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "standby is silent" not in stderr
    assert "1 ids known" in stderr


def test_start_with_a_long_log_does_not_count_as_hanging(
    ingester: IngestBench, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby would kill it, for it reads the touches of the lock only."""
    lock, touches = ingester.log / ".lock-ingest-0", set[int]()
    start_slowly(ingester, monkeypatch)
    wait_until(lock.exists)

    def has_started() -> bool:
        touches.add(lock.stat().st_mtime_ns)
        return bool(sender.offers)

    wait_until(has_started)

    assert len(touches) > 5


def kill(ingester: IngestBench, pid: int) -> None:
    """Kill the active process by kill -9."""
    [process] = [each for each in ingester.processes if each.pid == pid]
    process.kill()
    process.wait()


@pytest.mark.parametrize("rounds", sizes(2, 20))
def test_standby_takes_over_and_ids_stay_exact(
    ingester: IngestBench, sender: Sender, rounds: int
) -> None:
    """The active process is killed repeatedly; each id is in the log once."""
    rng = random.Random(7)
    ingester.start("--standby")
    pid = wait_for_active_pid(ingester)
    ingester.start("--standby")
    wait_until(lambda: bool(sender.offers))
    sent = 0
    for _ in range(rounds):
        for _ in range(rng.randrange(200, 400)):
            sender.send(sent, priority=1 + sent % 5)
            sent += 1
        time.sleep(rng.uniform(0, 0.3))
        kill(ingester, pid)
        known = {seq for seq in range(sent) if sender.has_receipt(seq)}
        pid = wait_for_active_pid(ingester, but=pid)
        assert known <= ingester.logged().keys()
        ingester.start("--standby")
    wait_until(lambda: len(ingester.logged()) == sent, timeout_s=90)
    for seq in range(0, sent, 3):  # as a sender does without a receipt
        sender.send(seq)
    sender.send(sent)
    wait_until(lambda: sender.has_receipt(sent))

    assert ingester.logged() == dict.fromkeys(range(sent + 1), 1)


def test_standby_kills_a_hanging_process(ingester: IngestBench, sender: Sender) -> None:
    """A stopped process keeps its lock, so it is killed before the takeover."""
    first = ingester.start()
    pid = wait_for_active_pid(ingester)
    wait_until(lambda: bool(sender.offers))
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1))
    second = ingester.start("--standby")
    first.send_signal(signal.SIGSTOP)
    sender.send(2, priority=5)
    wait_until(lambda: sender.has_receipt(2))

    assert first.wait(timeout=60) == -signal.SIGKILL
    assert wait_for_active_pid(ingester, but=pid) == second.pid
    assert ingester.logged() == {1: 1, 2: 1}


def test_standby_of_a_healthy_process_stays_standby(
    ingester: IngestBench, sender: Sender
) -> None:
    """An idle ingester does not count as hanging, and both stop on SIGTERM."""
    first = ingester.start()
    pid = wait_for_active_pid(ingester)
    second = ingester.start("--standby")
    wait_until(lambda: bool(sender.offers))
    time.sleep(5)
    second.terminate()
    _, stderr = second.communicate(timeout=60)

    assert second.returncode == 0
    assert "hangs" not in stderr
    assert first.poll() is None
    assert wait_for_active_pid(ingester) == pid
    first.terminate()
    assert first.wait(timeout=60) == 0


def test_shards_share_the_log_and_the_work(
    broker: Broker, make_data: Callable[[str], Any], sender: Sender
) -> None:
    """Each process reads its own topics under its own name into one log."""
    shards = "".join(
        f'[[shard]]\nid = "face-{face}"\nfilters = ["/{face}/#"]\n' for face in range(6)
    )
    data = make_data(f'[ingest]\nbroker = "{broker.url}"\n{shards}')
    ingester = IngestBench(data.config, data.folder)
    for face in (3, 4):
        ingester.start("--shard", f"face-{face}")
    wait_until(lambda: {o.receiver for o in sender.offers} == {"face-3", "face-4"})
    sender.send(1, topic="/3/1")
    sender.send(2, topic="/4/1")
    wait_until(lambda: sender.has_receipt(1) and sender.has_receipt(2))
    names = {path.name for path in ingester.log.glob("*.arrow")}
    without_shard = ingester.start()
    _, stderr = without_shard.communicate(timeout=60)
    ingester.end_all()

    assert ingester.logged() == {1: 1, 2: 1}
    assert {re.sub(r"\..*", "", name) for name in names} == {"face-3", "face-4"}
    assert without_shard.returncode == 78
    assert "--shard must be the id of a [[shard]]" in stderr
    assert "there is: face-0, face-1" in stderr

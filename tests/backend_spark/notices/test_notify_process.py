"""`backend-spark notify` as a process, with a real broker."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from notice_bench import CELL, write_level
from soak.disk import fill, mounted

from spatial_mqtt.announcements import Notice
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.topics import cell_topic, notice_topic

pytestmark = pytest.mark.broker
TOPIC = notice_topic(cell_topic(CELL))


def level_at(broker: Broker) -> int:
    """Level of the retained notice; 0 without one."""
    try:
        return Notice.decode(fetch_retained(broker.endpoint, TOPIC, "probe", 2)).level
    except BrokerError:
        return 0


@contextmanager
def running(config: Path) -> Iterator[None]:
    """The program, which ends in order."""
    command = [sys.executable, "-m", "backend_spark", "notify", "--config", str(config)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A data folder without space."""
    with mounted(tmp_path / "data", "1m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        fill(disk)
        yield disk


def test_full_disk_stops_no_notice(
    tmp_path: Path, full_disk: Path, broker: Broker
) -> None:
    """Neither at the first start nor after a restart; the tables are elsewhere."""
    config = tmp_path / "backend.toml"
    config.write_text(
        f'[backend]\ndata = "{full_disk}"\ntables = "{tmp_path}/tables"\n'
        f'[notify]\nbrokers = ["{broker.url}"]\nevery_s = 1\ncalm_s = 1\n'
    )
    for level in (4, 5):
        write_level(tmp_path, level)
        with running(config):
            wait_until(lambda expected=level: level_at(broker) == expected)

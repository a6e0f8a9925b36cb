"""The loops of a whole node, built from its settings with simulated pins."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from gpiozero import Device
from gpiozero.pins.mock import MockFactory

from edge_agent import app
from edge_agent.config import parse_node_settings
from edge_agent.coordinator import Coordinator
from spatial_mqtt.announcements import Drill
from spatial_mqtt.topics import drill_topic
from spatial_mqtt.transport import IncomingMessage


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Coordinator]:
    """A running node with a siren and a rain gauge, without a gateway."""
    before, Device.pin_factory = Device.pin_factory, MockFactory()
    settings = {
        "node": {"id": "n", "latitude": 33.5, "longitude": 133.5},
        "uplink": {"gateway": "mqtt://127.0.0.1:1"},
        "queue": {"path": str(tmp_path / "queue.db")},
        "alarm": [{"name": "siren", "pin": 5}],
        "sensor": [{"kind": "rain-gauge", "name": "rain", "pin": 17}],
    }
    coordinator, _ = app.build_node(parse_node_settings(settings))
    thread = threading.Thread(target=coordinator.run, daemon=True)
    thread.start()
    yield coordinator
    coordinator.stop()
    thread.join(30)
    Device.pin_factory.reset()
    Device.pin_factory = before
    assert not thread.is_alive()


def order(node: Coordinator, drill: Drill) -> None:
    """Give a drill to the node, as its broker does."""
    payload, topic = drill.encode(), drill_topic("/1/2/2")
    message = IncomingMessage(topic, payload, 1, False, None, None, None, (1, 1))
    node.parts.drills.on_message(message)


def test_report_that_hangs_does_not_delay_the_siren(
    node: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worn card takes minutes to write; the outputs are switched meanwhile."""
    hangs, release = threading.Event(), threading.Event()

    def report(*_: object) -> None:
        hangs.set()
        release.wait(60)

    wait_until(lambda: node.parts.alarms.summary() == "siren:off")
    monkeypatch.setattr(node.parts.sampler, "report", report)
    begin_s = time.time()
    try:
        order(node, Drill(4, begin_s + 300.0, begin_s))
        wait_until(lambda: node.parts.alarms.summary() == "siren:drill")
        assert hangs.wait(30)
        order(node, Drill(1, begin_s + 1.0, begin_s + 1.0, withdrawn=True))
        wait_until(lambda: node.parts.alarms.summary() == "siren:off", timeout_s=30)
    finally:
        release.set()

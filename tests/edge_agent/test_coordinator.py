"""The loops of a whole node, built from its settings with simulated pins."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until
from gpiozero import Device
from gpiozero.pins.mock import MockFactory
from notice_bench import write_keys

from edge_agent import app
from edge_agent import coordinator as coordinator_module
from edge_agent.config import parse_node_settings
from edge_agent.coordinator import Coordinator
from edge_agent.queue.base import QueueFileError
from edge_agent.sampler import REPORT_PRIORITY
from edge_agent.sensors.base import SensorBusError
from spatial_mqtt.announcements import Drill, Notice
from spatial_mqtt.senml import Reading
from spatial_mqtt.topics import drill_topic
from spatial_mqtt.transport import IncomingMessage


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[[str], Coordinator]]:
    """Builds a node with a siren and a sensor of a kind, without a gateway."""
    before, Device.pin_factory = Device.pin_factory, MockFactory()
    write_keys(tmp_path)

    def build(kind: str) -> Coordinator:
        settings = {
            "node": {"id": "n", "latitude": 33.5, "longitude": 133.5},
            "uplink": {"gateway": "mqtt://127.0.0.1:1"},
            "queue": {"path": str(tmp_path / "queue.db")},
            "update": {"keys": [str(tmp_path / "office.pub")]},
            "alarm": [{"name": "siren", "pin": 5}],
            "sensor": [{"kind": kind, "name": "sensor", "pin": 17}],
        }
        return app.build_node(parse_node_settings(settings))[0]

    yield build
    Device.pin_factory.reset()
    Device.pin_factory = before


@contextmanager
def running(coordinator: Coordinator) -> Iterator[None]:
    """Runs a node."""
    thread = threading.Thread(target=coordinator.run, daemon=True)
    thread.start()
    yield
    coordinator.stop()
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def node(build: Callable[[str], Coordinator]) -> Iterator[Coordinator]:
    """A running node with a siren and a rain gauge."""
    coordinator = build("rain-gauge")
    with running(coordinator):
        yield coordinator


def order(node: Coordinator, drill: Drill) -> None:
    """Give a drill to the node, as its broker does."""
    payload, topic = drill.encode(), drill_topic("/1/2/2")
    message = IncomingMessage(topic, payload, 1, False, None, None, None, (1, 1))
    node.parts.drills.on_message(message)


def publish(node: Coordinator, notice: Notice) -> None:
    """Give a notice to the node, as its broker does."""
    payload, topic = notice.encode(), "/notice/1/2/2"
    message = IncomingMessage(topic, payload, 1, True, None, None, None, (1, 1))
    node.parts.notices.on_message(message)


def obstacle(node: Coordinator) -> str | None:
    """Why the node may not reboot for an update."""
    assert node.parts.updater is not None
    return node.parts.updater.find_obstacle()


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


def test_siren_goes_on_after_a_restart_without_waiting_for_a_reading(
    build: Callable[[str], Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wire was cut before the restart, and its sensor hangs after it."""
    node, release = build("wire"), threading.Event()
    with running(node):
        wait_until(lambda: node.parts.queue.stats().depth[5].rows, timeout_s=30)
    again = build("wire")

    def hang(_now_s: float) -> list[Reading]:
        release.wait()
        return []

    monkeypatch.setattr(again.parts.sensors[0], "read", hang)
    with running(again):
        try:
            # Well before the deadline of a reading, 30 s.
            wait_until(lambda: again.parts.alarms.summary() == "siren:on", timeout_s=10)
        finally:
            release.set()


def test_level_is_unknown_while_no_sensor_can_be_read(
    build: Callable[[str], Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lamp that stays off would mean no danger."""
    monkeypatch.setattr(coordinator_module, "BLIND_S", 1.0)
    node = build("rain-gauge")
    sensor = node.parts.sensors[0]
    read = sensor.read

    def fail(_now_s: float) -> list[Reading]:
        raise SensorBusError(sensor.name, "does not answer", "check its cable")

    monkeypatch.setattr(sensor, "read", fail)
    with running(node):
        wait_until(lambda: node.parts.alarms.summary() == "siren:unknown", timeout_s=30)
        monkeypatch.setattr(sensor, "read", read)

        def is_known() -> bool:
            node.parts.sampler.sample()
            return node.parts.alarms.summary() == "siren:off"

        wait_until(is_known, timeout_s=60)


def test_stop_waits_for_a_report_before_it_closes_the_queue(
    build: Callable[[str], Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that is being made at a stop is stored; it met a closed file."""
    node, hangs, release = build("rain-gauge"), threading.Event(), threading.Event()
    report = node.parts.sampler.report
    results: list[object] = []

    def late(*args: Any) -> None:  # noqa: ANN401 - those of `report`
        hangs.set()
        release.wait(60)
        try:
            results.append(report(*args))
        except Exception as error:  # noqa: BLE001 - any ends the agent
            results.append(error)

    monkeypatch.setattr(node.parts.sampler, "report", late)
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    wait_until(lambda: node.parts.alarms.summary() == "siren:off")
    order(node, Drill(4, time.time() + 300.0, time.time()))
    assert hangs.wait(30)
    node.stop()
    thread.join(3)  # enough to close the queue, if nothing waits
    release.set()
    thread.join(30)

    wait_until(lambda: bool(results), timeout_s=30)
    assert not thread.is_alive()
    assert results == [None]


def test_siren_does_not_wait_for_the_card(
    build: Callable[[str], Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wire is cut, and the queue does not return from storing the reading."""
    node, release = build("wire"), threading.Event()
    put = node.parts.queue.put

    def hang(*args: Any, **options: Any) -> object:  # noqa: ANN401 - those of `put`
        release.wait()
        return put(*args, **options)

    monkeypatch.setattr(node.parts.queue, "put", hang)
    with running(node):
        try:
            wait_until(lambda: node.parts.alarms.summary() == "siren:on", timeout_s=30)
        finally:
            release.set()
        # Stop after the report of the siren, which waits behind the reading.
        wait_until(lambda: node.parts.queue.stats().depth[REPORT_PRIORITY].rows)


def test_level_is_logged_with_its_reason_when_it_changes(
    build: Callable[[str], Coordinator], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is at the node with a siren on reads the journal."""
    node = build("wire")
    with caplog.at_level("INFO"), running(node):
        wait_until(lambda: node.parts.queue.stats().depth[5].rows, timeout_s=30)
        node.parts.sampler.sample()
    levels = [r.getMessage() for r in caplog.records if r.name.endswith("coordinator")]
    text = "wire: sensor is cut: a flow may have occurred, unconfirmed"
    assert levels == [f"level 5, was 1: {text}"]


def test_node_does_not_reboot_for_an_update_by_its_own_level(
    build: Callable[[str], Coordinator],
) -> None:
    """Also after a restart of the agent, before any reading."""
    node = build("wire")
    with running(node):
        wait_until(lambda: obstacle(node) == "level 5", timeout_s=30)
    again = build("wire")
    again.parts.sampler.resume_level()
    assert obstacle(again) == "level 5"
    again.parts.queue.close()


def test_node_does_not_reboot_for_an_update_by_notice_or_drill(
    node: Coordinator,
) -> None:
    """A notice that expired without withdrawal leaves the level unknown."""
    now_s = time.time()
    assert obstacle(node) is None
    order(node, Drill(4, now_s + 300.0, now_s))
    wait_until(lambda: obstacle(node) == "siren:drill")
    publish(node, Notice(3, now_s + 600.0, at_s=now_s))
    assert obstacle(node) == "level 3"
    publish(node, Notice(3, now_s, at_s=now_s + 1.0))
    assert obstacle(node) == "level unknown"
    order(node, Drill(1, now_s + 1.0, now_s + 1.0, withdrawn=True))
    publish(node, Notice(2, now_s + 600.0, at_s=now_s + 2.0))
    wait_until(lambda: obstacle(node) is None)


def test_second_agent_on_a_queue_is_refused(
    build: Callable[[str], Coordinator],
) -> None:
    """As one run by hand beside the service: each would end the other's connection."""
    first = build("wire")
    with pytest.raises(QueueFileError, match="another agent uses it; stop that one"):
        build("wire")
    first.parts.queue.close()

    build("wire").parts.queue.close()

"""The client library and its command line against real gateways."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Programs

from spatial_mqtt.cells import Cell
from spatial_mqtt.client import Client, SpatialMessage, fetch_retained
from spatial_mqtt.directory import BrokerEntry
from spatial_mqtt.errors import BrokerError, PositionError
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic, offer_topic

pytestmark = pytest.mark.broker

WEST, EAST = (33.5588, 133.5312), (33.5588, 133.9312)
LOG_SETTINGS = ("log_dest topic", "log_type subscribe", "log_type unsubscribe",
         "log_type notice")  # fmt: skip


def area(place: tuple[float, float]) -> str:
    return cell_topic(Cell.at(*place, 8))


class Deployment:
    """Two gateways with one area each, a Manager and a broker."""

    def __init__(
        self, programs: Programs, make_broker: Callable[..., Broker], folder: Path
    ) -> None:
        self.manager, self.distributed = make_broker(), make_broker()
        self.west, self.east = make_broker(*LOG_SETTINGS), make_broker(*LOG_SETTINGS)
        programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{self.distributed.url}"\n',
        )
        for name, broker, place in (
            ("west", self.west, WEST),
            ("east", self.east, EAST),
        ):
            programs.start(
                name,
                "run",
                f'[gateway]\nid = "{name}"\nbroker = "{broker.url}"\n'
                f'managers = ["{self.manager.url}"]\nareas = ["{area(place)}"]\n'
                f'data = "{folder}/{name}"\n',
            )
            fetch_retained(broker.endpoint, offer_topic(name), "probe", 60)
        self.log = lambda name: (folder / f"{name}.log").read_text()


@pytest.fixture
def deployment(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> Iterator[Deployment]:
    programs = Programs(tmp_path)
    yield Deployment(programs, make_broker, tmp_path)
    programs.kill_all()


def in_order(_entries: list[BrokerEntry]) -> None:
    """A shuffle that keeps the order."""


def client(
    deployment: Deployment, name: str, got: list[SpatialMessage] | None = None
) -> Client:
    on_message = None if got is None else got.append
    return Client([deployment.manager.url], name, on_message, shuffle=in_order)


def pack(seq: int) -> bytes:
    reading = Reading("rain", "mm", 0.5)
    return encode_cbor(Pack(MessageId("n1", "bb", seq), 3, 1.7e9, (reading,)))


def test_message_reaches_only_subscribers_around_its_position(
    deployment: Deployment,
) -> None:
    """From a client of one gateway to a client of another, with its priority."""
    near: list[SpatialMessage] = []
    far: list[SpatialMessage] = []
    with client(deployment, "near", near) as a, client(deployment, "far", far) as b:
        assert a.connect(*WEST) == deployment.west.endpoint
        assert a.subscribe_around(*EAST, radius_km=1.0)
        b.connect(*EAST)
        b.subscribe_around(*WEST, radius_km=1.0)
        wait_until(lambda: "confirmed the subscription to /" in deployment.log("west"))
        assert b.publish_at(*EAST, pack(1), 5)
        assert b.flush()
        wait_until(lambda: near)

    assert [m.payload for m in near] == [pack(1)]
    assert near[0].topic == cell_topic(Cell.at(*EAST))
    assert far == []


class Writer:
    """Publishes packs for a position in a background thread."""

    def __init__(self, client: Client, place: tuple[float, float]) -> None:
        self.sent: list[bytes] = []
        self._client, self._place = client, place
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._client.flush()

    def _write(self) -> None:
        while not self._stop.wait(0.01):
            self.sent.append(pack(len(self.sent)))
            assert self._client.publish_at(*self._place, self.sent[-1], 3)


def test_moving_client_receives_every_message_once(deployment: Deployment) -> None:
    """It enters another area while another client publishes at the border."""
    got: list[SpatialMessage] = []
    middle = (33.5588, 133.7312)
    with (
        client(deployment, "car", got) as car,
        client(deployment, "writer") as publisher,
    ):
        car.connect(*WEST)
        car.subscribe_around(*middle, radius_km=60.0)
        publisher.connect(*EAST)
        wait_until(lambda: "confirmed the subscription to /" in deployment.log("west"))
        writer = Writer(publisher, middle)
        wait_until(lambda: len(got) > 20)
        assert car.move(*EAST) == deployment.east.endpoint
        before = len(got)
        wait_until(lambda: len(got) > before + 50)
        writer.stop()
        wait_until(lambda: len(got) >= len(writer.sent))
        time.sleep(0.5)

    assert sorted(m.payload for m in got) == sorted(writer.sent)


def test_unreachable_managers_raise_an_error_with_their_addresses() -> None:
    """After the time limit."""
    with (
        Client(["mqtt://127.0.0.1:1"], "c") as unconnected,
        pytest.raises(BrokerError, match=r"127\.0\.0\.1:1"),
    ):
        unconnected.connect(*WEST, timeout_s=1.0)


def test_position_out_of_range_is_refused(deployment: Deployment) -> None:
    """The error is raised before anything is sent."""
    with (
        client(deployment, "c") as connected,
        pytest.raises(PositionError, match="latitude"),
    ):
        connected.connect(95.0, 0.0)


def spatial_mqtt(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spatial_mqtt", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_command_publishes_and_subscribes(deployment: Deployment) -> None:
    """`spatial-mqtt pub` and `sub` as separate processes."""
    place = "33.5588,133.5312"
    manager = ("--manager", deployment.manager.url)
    subscriber = spatial_mqtt("sub", *manager, "--around", place, "--count", "1")
    wait_until(lambda: "confirmed the subscription to /" in deployment.log("west"))
    publisher = spatial_mqtt("pub", *manager, "--at", place, "--priority", "4", "hello")
    _, report = publisher.communicate(timeout=60)
    received, _ = subscriber.communicate(timeout=60)

    assert (publisher.returncode, subscriber.returncode) == (0, 0)
    assert report.startswith("1 sent by 127.0.0.1:")
    assert received.strip().endswith("hello")


def test_command_reports_a_wrong_argument() -> None:
    """The message names the field or the rule; the exit status is not 0."""
    for arguments, word in (
        (("pub", "--manager", "http://x", "--at", "1,2", "x"), "mqtt://"),
        (("pub", "--manager", "mqtt://x:1", "--at", "north", "x"), "LATITUDE"),
        (("sub", "--manager", "mqtt://127.0.0.1:1", "--around", "95,0"), "latitude"),
    ):
        done = spatial_mqtt(*arguments)
        _, error = done.communicate(timeout=60)

        assert done.returncode != 0
        assert word in error

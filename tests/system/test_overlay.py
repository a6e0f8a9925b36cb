"""With the backbone cut, a warning still reaches a siren at another gateway, once."""

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, free_port, wait_until
from programs import Client, Programs
from soak.relay import Relay

from spatial_mqtt.client import fetch_retained
from spatial_mqtt.senml import MessageId, Pack, Reading, decode_message_id, encode_cbor
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

LOG_SETTINGS = (
    "log_dest topic",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
)
TOPIC = "/3/1/2/0"
ROUND_TRIP = "yamamori_overlay_round_trip_seconds"
"""Absent until the first publication."""


class Deployment:
    """A Manager, a distributed broker and three gateways."""

    def __init__(
        self, programs: Programs, make_broker: Callable[..., Broker], folder: Path
    ) -> None:
        self.programs, self.folder = programs, folder
        self.manager, self.central = make_broker(), make_broker()
        self.backbone = Relay(self.central.port)
        self.local = {name: make_broker(*LOG_SETTINGS) for name in "abc"}
        self.ports = {name: free_port() for name in "abc"}
        programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "mqtt://127.0.0.1:{self.backbone.port}"\n',
        )

    def start(self, name: str, place: str, route: str = "brokers") -> None:
        peers = f"peers = {[self.local[peer].url for peer in 'ab']}"
        self.start_with(name, peers, f'place = "{place}"', route)

    def start_with(self, name: str, peers: str, place: str, route: str) -> None:
        broker = self.local[name]
        self.programs.start(
            name,
            "run",
            f'[gateway]\nid = "{name}"\nbroker = "{broker.url}"\nroute = "{route}"\n'
            f'managers = ["{self.manager.url}"]\ndata = "{self.folder}/{name}"\n'
            f"[overlay]\n{peers}\n{place}\nout_of_reach_s = 1.0\n"
            f'[metrics]\nlisten = "127.0.0.1:{self.ports[name]}"\n',
        )
        fetch_retained(broker.endpoint, offer_topic(name), "probe", 120)

    def measure(self, name: str, metric: str) -> float | None:
        """A metric's value; None if it is absent."""
        values = [line.rpartition(" ") for line in self.metrics(name)]
        return next((float(v) for name, _, v in values if name == metric), None)

    def metric_names(self, name: str) -> set[str]:
        """Names of the overlay's metrics."""
        found = (re.match(r"yamamori_overlay_\w+", m) for m in self.metrics(name))
        return {each[0] for each in found if each}

    def metrics(self, name: str) -> list[str]:
        """Lines of a gateway's metrics; empty while it is down."""
        url = f"http://127.0.0.1:{self.ports[name]}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.read().decode().splitlines()
        except urllib.error.URLError:
            return []

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture
def deployment(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> Iterator[Deployment]:
    programs = Programs(tmp_path)
    made = Deployment(programs, make_broker, tmp_path)
    yield made
    programs.kill_all()
    made.backbone.close()


def warning(seq: int, priority: int = 5) -> bytes:
    reading = Reading("tilt", "deg", 9.0)
    pack = Pack(MessageId("n1", "bb", seq), priority, 1.7e9, (reading,))
    return encode_cbor(pack)


def seqs(client: Client) -> list[int]:
    return [decode_message_id(message.payload)[0].seq for message in client.got]


def test_warning_reaches_a_siren_while_the_backbone_is_cut(
    deployment: Deployment,
) -> None:
    """Routine messages wait; after the repair nothing arrives twice."""
    for name, place in (("a", "/3/1/2/0"), ("b", "/3/1/2/1"), ("c", "/3/2")):
        deployment.start(name, place)
    siren = Client(deployment.local["b"].endpoint, "siren", "/3/1/#")
    office = Client(deployment.central.endpoint, "office", "/3/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("b"))
    node = Client(deployment.local["a"].endpoint, "node")
    node.publish(f"/forward{TOPIC}/pri5", warning(1))
    wait_until(lambda: seqs(siren) == [1] == seqs(office))

    deployment.backbone.cut()
    cut = [warning(2), warning(3, 2), b"plain text"]
    for priority, payload in zip((5, 2, 5), cut, strict=True):
        node.publish(f"/forward{TOPIC}/pri{priority}", payload)
    wait_until(lambda: len(siren.got) == 3)
    assert sorted(siren.on(TOPIC)) == sorted([warning(1), warning(2), b"plain text"])

    deployment.backbone.restore()
    wait_until(lambda: len(siren.got) == 4, 120)
    node.publish(f"/forward{TOPIC}/pri1", warning(4, 1))
    wait_until(lambda: warning(4, 1) in siren.on(TOPIC))

    everything = sorted([warning(1), *cut, warning(4, 1)])
    assert sorted(siren.on(TOPIC)) == everything
    # A client that ignores ids may receive unacknowledged messages again.
    assert sorted(set(office.on(TOPIC))) == everything


def test_gateway_with_overlay_route_needs_no_distributed_broker(
    deployment: Deployment,
) -> None:
    """Its messages wait on disk until there is a subscriber, also over a kill -9."""
    deployment.backbone.cut()
    deployment.start("a", "/3/1/2/0", route="overlay")
    node = Client(deployment.local["a"].endpoint, "node")
    for seq in range(5):
        node.publish(f"/forward{TOPIC}/pri{1 + seq}", warning(seq, 1 + seq))
    receipts = Client(deployment.local["a"].endpoint, "receipts", "/custody/n1")
    node.publish(f"/forward{TOPIC}/pri5", warning(5))
    wait_until(lambda: receipts.got)
    deployment.programs.kill("a")

    deployment.start("b", "/3/1/2/1")
    siren = Client(deployment.local["b"].endpoint, "siren", "/3/1/2/#")
    wait_until(lambda: "clients subscribe to /3/1/2/#" in deployment.log("b"))
    deployment.start("a", "/3/1/2/0", route="overlay")
    wait_until(lambda: len(siren.got) == 6)

    assert sorted(seqs(siren)) == list(range(6))


def documented() -> set[str]:
    page = Path(__file__).parents[2] / "docs/reference/metrics.md"
    section = page.read_text("utf-8").partition("## A gateway in the overlay\n")[2]
    names = re.findall(r"^\| `(\w+)`", section.partition("\n## ")[0], re.MULTILINE)
    return set(names)


@pytest.mark.long
def test_gateways_find_each_other_by_the_managers_list(deployment: Deployment) -> None:
    """No peers are configured; outages are detected without a Manager, too."""
    for name in "abc":
        deployment.start_with(name, "from_managers = true", "", "brokers")
    answer = 'yamamori_overlay_gateways{state="answers"}'
    silent = 'yamamori_overlay_gateways{state="silent"}'
    for name in "abc":
        wait_until(lambda n=name: deployment.measure(n, answer) == 2, 180)
        wait_until(
            lambda n=name: deployment.measure(n, "yamamori_overlay_up") == 1, 180
        )

    deployment.manager.kill()
    deployment.programs.kill("c")
    wait_until(lambda: deployment.measure("a", silent) == 1, 180)
    deployment.programs.kill("b")
    deployment.start_with("b", "from_managers = true", "", "brokers")
    wait_until(lambda: deployment.measure("b", answer) == 1, 180)
    deployment.manager.start()
    deployment.start_with("c", "from_managers = true", "", "brokers")

    for name in "abc":
        wait_until(lambda n=name: deployment.measure(n, silent) == 0, 180)
        wait_until(lambda n=name: deployment.measure(n, answer) == 2, 180)
    assert deployment.metric_names("a") | {ROUND_TRIP} == documented()
    assert deployment.measure("a", "yamamori_overlay_returns_total") > 0
    assert "overlay: 1 of 2 others do not answer: " in deployment.log("a")
    assert "overlay: all 2 others answer again, after " in deployment.log("a")

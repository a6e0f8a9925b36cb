"""The backbone is cut: a siren in the next valley still hears the warning, once."""

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, free_port, wait_until
from programs import Client, Programs
from soak.relay import Relay

from spatial_mqtt.retained import fetch_retained
from spatial_mqtt.senml import MessageId, Pack, Reading, decode_message_id, encode_cbor
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

TELLS = (
    "log_dest topic",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
)
TOPIC = "/3/1/2/0"
ROUND_TRIP = "yamamori_overlay_round_trip_seconds"
"""Absent as long as nobody published."""


class Valleys:
    """A Manager, a distributed broker and a gateway in each of three valleys."""

    def __init__(
        self, programs: Programs, make_broker: Callable[..., Broker], folder: Path
    ) -> None:
        self.programs, self.folder = programs, folder
        self.manager, self.central = make_broker(), make_broker()
        self.backbone = Relay(self.central.port)
        self.local = {name: make_broker(*TELLS) for name in "abc"}
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

    def start_with(self, name: str, finds: str, place: str, route: str) -> None:
        broker = self.local[name]
        self.programs.start(
            name,
            "run",
            f'[gateway]\nid = "{name}"\nbroker = "{broker.url}"\nroute = "{route}"\n'
            f'managers = ["{self.manager.url}"]\ndata = "{self.folder}/{name}"\n'
            f"[overlay]\n{finds}\n{place}\nout_of_reach_s = 1.0\n"
            f'[metrics]\nlisten = "127.0.0.1:{self.ports[name]}"\n',
        )
        fetch_retained(broker.endpoint, offer_topic(name), "probe", 120)

    def measure(self, name: str, metric: str) -> float | None:
        """A metric's value; None while there is none."""
        values = [line.rpartition(" ") for line in self.metrics(name)]
        return next((float(v) for name, _, v in values if name == metric), None)

    def told(self, name: str) -> set[str]:
        """Names of the overlay's metrics."""
        found = (re.match(r"yamamori_overlay_\w+", m) for m in self.metrics(name))
        return {each[0] for each in found if each}

    def metrics(self, name: str) -> list[str]:
        """Lines of a gateway's answer to Prometheus; none while it is away."""
        url = f"http://127.0.0.1:{self.ports[name]}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.read().decode().splitlines()
        except urllib.error.URLError:
            return []

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture
def valleys(make_broker: Callable[..., Broker], tmp_path: Path) -> Iterator[Valleys]:
    programs = Programs(tmp_path)
    made = Valleys(programs, make_broker, tmp_path)
    yield made
    programs.kill_all()
    made.backbone.close()


def warning(seq: int, priority: int = 5) -> bytes:
    reading = Reading("tilt", "deg", 9.0)
    pack = Pack(MessageId("n1", "bb", seq), priority, 1.7e9, (reading,))
    return encode_cbor(pack)


def seqs(client: Client) -> list[int]:
    return [decode_message_id(message.payload)[0].seq for message in client.got]


def test_a_siren_hears_the_warning_while_the_backbone_is_cut(valleys: Valleys) -> None:
    """What is not urgent waits; when the backbone heals, nothing comes twice."""
    for name, place in (("a", "/3/1/2/0"), ("b", "/3/1/2/1"), ("c", "/3/2")):
        valleys.start(name, place)
    siren = Client(valleys.local["b"].endpoint, "siren", "/3/1/#")
    office = Client(valleys.central.endpoint, "office", "/3/#")
    wait_until(lambda: "is listened to for /3/1/#" in valleys.log("b"))
    node = Client(valleys.local["a"].endpoint, "node")
    node.publish(f"/forward{TOPIC}/pri5", warning(1))
    wait_until(lambda: seqs(siren) == [1] == seqs(office))

    valleys.backbone.cut()
    cut = [warning(2), warning(3, 2), b"plain text"]
    for priority, payload in zip((5, 2, 5), cut, strict=True):
        node.publish(f"/forward{TOPIC}/pri{priority}", payload)
    wait_until(lambda: len(siren.got) == 3)
    assert sorted(siren.on(TOPIC)) == sorted([warning(1), warning(2), b"plain text"])

    valleys.backbone.restore()
    wait_until(lambda: len(siren.got) == 4, 120)
    node.publish(f"/forward{TOPIC}/pri1", warning(4, 1))
    wait_until(lambda: warning(4, 1) in siren.on(TOPIC))

    everything = sorted([warning(1), *cut, warning(4, 1)])
    assert sorted(siren.on(TOPIC)) == everything
    # A client without ids may hear again what the cut left unacknowledged.
    assert sorted(set(office.on(TOPIC))) == everything


def test_a_gateway_whose_route_is_the_overlay_needs_no_broker(valleys: Valleys) -> None:
    """Its messages wait on disk until there is somebody, also over a kill -9."""
    valleys.backbone.cut()
    valleys.start("a", "/3/1/2/0", route="overlay")
    node = Client(valleys.local["a"].endpoint, "node")
    for seq in range(5):
        node.publish(f"/forward{TOPIC}/pri{1 + seq}", warning(seq, 1 + seq))
    receipts = Client(valleys.local["a"].endpoint, "receipts", "/custody/n1")
    node.publish(f"/forward{TOPIC}/pri5", warning(5))
    wait_until(lambda: receipts.got)
    valleys.programs.kill("a")

    valleys.start("b", "/3/1/2/1")
    siren = Client(valleys.local["b"].endpoint, "siren", "/3/1/2/#")
    wait_until(lambda: "clients listen to /3/1/2/#" in valleys.log("b"))
    valleys.start("a", "/3/1/2/0", route="overlay")
    wait_until(lambda: len(siren.got) == 6)

    assert sorted(seqs(siren)) == list(range(6))


def documented() -> set[str]:
    page = Path(__file__).parents[2] / "docs/reference/metrics.md"
    section = page.read_text("utf-8").partition("## A gateway in the overlay\n")[2]
    names = re.findall(r"^\| `(\w+)`", section.partition("\n## ")[0], re.MULTILINE)
    return set(names)


def test_gateways_find_each_other_by_the_managers_list(valleys: Valleys) -> None:
    """No peer is named; and who is away is missed, also where no Manager is reached."""
    for name in "abc":
        valleys.start_with(name, "from_managers = true", "", "brokers")
    answer = 'yamamori_overlay_gateways{state="answers"}'
    silent = 'yamamori_overlay_gateways{state="silent"}'
    for name in "abc":
        wait_until(lambda n=name: valleys.measure(n, answer) == 2, 180)
        wait_until(lambda n=name: valleys.measure(n, "yamamori_overlay_up") == 1, 180)

    valleys.manager.kill()
    valleys.programs.kill("c")
    wait_until(lambda: valleys.measure("a", silent) == 1, 180)
    valleys.programs.kill("b")
    valleys.start_with("b", "from_managers = true", "", "brokers")
    wait_until(lambda: valleys.measure("b", answer) == 1, 180)
    valleys.manager.start()
    valleys.start_with("c", "from_managers = true", "", "brokers")

    for name in "abc":
        wait_until(lambda n=name: valleys.measure(n, silent) == 0, 180)
        wait_until(lambda n=name: valleys.measure(n, answer) == 2, 180)
    assert valleys.told("a") | {ROUND_TRIP} == documented()
    assert valleys.measure("a", "yamamori_overlay_returns_total") > 0
    assert "overlay: 1 of 2 others do not answer: " in valleys.log("a")
    assert "overlay: all 2 others answer again, after " in valleys.log("a")

"""The backbone is cut: a siren in the next valley still hears the warning, once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client, Programs
from soak.relay import Relay

from spatial_mqtt.envelope import MessageId, Pack, Reading, decode_id, encode_cbor
from spatial_mqtt.retained import fetch_retained
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

TELLS = (
    "log_dest topic",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
)
TOPIC = "/3/1/2/0"


class Valleys:
    """A Manager, a distributed broker and a gateway in each of three valleys."""

    def __init__(
        self, programs: Programs, make_broker: Callable[..., Broker], folder: Path
    ) -> None:
        self.programs, self.folder = programs, folder
        self.manager, self.central = make_broker(), make_broker()
        self.backbone = Relay(self.central.port)
        self.local = {name: make_broker(*TELLS) for name in "abc"}
        programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "mqtt://127.0.0.1:{self.backbone.port}"\n',
        )

    def start(self, name: str, place: str, route: str = "brokers") -> None:
        broker = self.local[name]
        self.programs.start(
            name,
            "run",
            f'[gateway]\nid = "{name}"\nbroker = "{broker.url}"\nroute = "{route}"\n'
            f'managers = ["{self.manager.url}"]\ndata = "{self.folder}/{name}"\n'
            f'[overlay]\npeers = ["{self.local["a"].url}", "{self.local["b"].url}"]\n'
            f'place = "{place}"\nout_of_reach_s = 1.0\n',
        )
        fetch_retained(broker.endpoint, offer_topic(name), "probe", 60)

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
    return [decode_id(message.payload)[0].seq for message in client.got]


def test_a_siren_hears_the_warning_while_the_backbone_is_cut(valleys: Valleys) -> None:
    """What is not urgent waits; when the backbone heals, nothing comes twice."""
    for name, place in (("a", "/3/1/2/0"), ("b", "/3/1/2/1"), ("c", "/3/2")):
        valleys.start(name, place)
    siren = Client(valleys.local["b"].endpoint, "siren", "/3/1/#")
    office = Client(valleys.central.endpoint, "office", "/3/#")
    wait_until(lambda: "clients listen to /3/1/#" in valleys.log("b"))
    node = Client(valleys.local["a"].endpoint, "node")
    node.publish(f"/forward{TOPIC}/pri5", warning(1))
    wait_until(lambda: seqs(siren) == [1] == seqs(office))

    valleys.backbone.cut()
    cut = [warning(2), warning(3, 2), b"plain text"]
    for priority, payload in zip((5, 2, 5), cut, strict=True):
        node.publish(f"/forward{TOPIC}/pri{priority}", payload)
    wait_until(lambda: len(siren.got) == 3)
    assert sorted(siren.on(TOPIC)) == sorted([warning(1), warning(2), b"plain text"])

    valleys.backbone.mend()
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

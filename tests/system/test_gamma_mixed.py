"""Messages of priority 4 and 5 through gateways of ours and of the published Gamma."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from field_node import Node
from gamma_peer import GammaClient, GammaGateway
from programs import Client, Programs

from gateway_daemon.gateway.incoming import Unpacker
from spatial_mqtt.cells import Cell
from spatial_mqtt.client import Client as SpatialClient
from spatial_mqtt.client import SpatialMessage, fetch_retained
from spatial_mqtt.directory import decode_gateways
from spatial_mqtt.senml import MessageId, decode_message_id
from spatial_mqtt.topics import GATEWAY_INFO, cell_topic, offer_topic

pytestmark = pytest.mark.broker

HERE, ELSEWHERE = (33.5588, 133.5312), (43.06, 141.35)
"""In the area of our gateway, and far from it; the other gateway has the area /."""

AREA, TOPIC = (cell_topic(Cell.at(*HERE, level)) for level in (8, 20))
COUNT = 100
LOG_SETTINGS = ("log_dest topic", "log_type subscribe", "log_type unsubscribe",
                "log_type notice")  # fmt: skip


class Deployment:
    """Our Manager and gateway, the original's gateway, and one distributed broker."""

    def __init__(
        self, programs: Programs, make_broker: Callable[..., Broker], folder: Path
    ) -> None:
        self.programs, self.folder = programs, folder
        self.manager, self.distributed, self.at_original = (
            make_broker() for _ in range(3)
        )
        self.at_ours = make_broker(*LOG_SETTINGS)
        programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{self.distributed.url}"\n',
        )
        self.start_ours()
        self.original = GammaGateway(self.manager.endpoint, self.at_original.endpoint)
        self.original.start()
        wait_until(lambda: self.original.is_started and len(self._gateways()) == 2)

    def start_ours(self) -> None:
        self.programs.start(
            "ours",
            "run",
            f'[gateway]\nid = "ours"\nbroker = "{self.at_ours.url}"\n'
            f'managers = ["{self.manager.url}"]\nareas = ["{AREA}"]\n'
            f'data = "{self.folder}/ours"\n',
        )
        fetch_retained(self.at_ours.endpoint, offer_topic("ours"), "probe", 60)

    def wait_for_filter(self, filter_: str) -> None:
        """Wait until our gateway has subscribed to a filter at the broker."""
        log = self.folder / "ours.log"
        wait_until(
            lambda: f"confirmed the subscription to {filter_}" in log.read_text()
        )

    def _gateways(self) -> set[int]:
        listed = fetch_retained(self.manager.endpoint, GATEWAY_INFO, "probe", 60)
        return {entry.broker_info.port for entry in decode_gateways(listed)}


@pytest.fixture
def deployment(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> Iterator[Deployment]:
    programs = Programs(tmp_path)
    made: list[Deployment] = []
    try:
        made.append(Deployment(programs, make_broker, tmp_path))
        yield made[0]
    finally:
        for each in made:
            each.original.stop()
        programs.kill_all()


@pytest.fixture
def make_client(deployment: Deployment) -> Iterator[Callable[..., Client]]:
    """Plain clients; they drop no copies."""
    clients: list[Client] = []

    def make(broker: Broker, *filters: str) -> Client:
        clients.append(Client(broker.endpoint, f"c{len(clients)}", *filters))
        return clients[-1]

    yield make
    for each in clients:
        each.connection.stop()


@pytest.fixture
def make_original_client(
    deployment: Deployment,
) -> Iterator[Callable[..., GammaClient]]:
    """Clients of the original, at the gateway of a place."""
    clients: list[GammaClient] = []

    def make(place: tuple[float, float]) -> GammaClient:
        clients.append(GammaClient(deployment.manager.endpoint, *place))
        return clients[-1]

    yield make
    for each in clients:
        each.close()


def lost_and_doubled(sent: Iterable[object], got: Iterable[object]) -> tuple[int, int]:
    """Number of messages that did not arrive, and of copies beyond the first."""
    counts = Counter(got)
    return len(set(sent) - counts.keys()), counts.total() - len(counts)


def face(topic: str) -> str:
    """Filter for all cells of the face of a cell."""
    return f"/{topic.split('/')[1]}/#"


def ids(client: Client) -> list[MessageId]:
    unpacker = Unpacker(float)
    messages = [each for got in client.got for each in unpacker.unpack(got)]
    return [decode_message_id(message.payload)[0] for message in messages]


def test_node_behind_the_original_gateway(
    deployment: Deployment, make_client: Callable[..., Client], tmp_path: Path
) -> None:
    """A priority in the topic would be no cell for it, and the message be dropped."""
    topic = cell_topic(Cell.at(*ELSEWHERE))
    at_ours = make_client(deployment.at_ours, face(topic))
    deployment.wait_for_filter(face(topic))
    time.sleep(0.5)
    node = Node(deployment.manager.endpoint, topic, tmp_path)
    wait_until(lambda: node.uplink.endpoint == deployment.at_original.endpoint)
    sent = [node.put(5 - n % 2) for n in range(COUNT)]
    routine = [node.put(1 + n % 3) for n in range(COUNT)]
    wait_until(lambda: not node.uplink.gives_receipts)
    wait_until(lambda: set(ids(at_ours)) == {*sent, *routine})
    time.sleep(0.5)
    held, waiting = node.uplink.held_count, sum(node.queue.stats().acked.values())
    node.stop()

    assert lost_and_doubled([*sent, *routine], ids(at_ours)) == (0, 0)
    assert not deployment.original.errors
    assert held > 0
    assert waiting == 2 * COUNT - held


def test_node_fails_over_to_the_original_gateway_and_back(
    deployment: Deployment, make_client: Callable[..., Client], tmp_path: Path
) -> None:
    """What only the original acknowledged is delivered again where a store is."""
    at_broker = make_client(deployment.distributed, face(TOPIC))
    node = Node(deployment.manager.endpoint, TOPIC, tmp_path)
    wait_until(lambda: node.uplink.endpoint == deployment.at_ours.endpoint)
    sent = [node.put(5 - n % 2) for n in range(20)]
    wait_until(node.is_empty)
    deployment.programs.kill("ours")
    sent += [node.put(5 - n % 2) for n in range(20)]
    wait_until(lambda: node.uplink.endpoint == deployment.at_original.endpoint)
    wait_until(lambda: node.uplink.held_count >= 20)
    only_original = set(sent[20:])
    wait_until(lambda: only_original <= set(ids(at_broker)))
    deployment.start_ours()
    wait_until(lambda: node.uplink.endpoint == deployment.at_ours.endpoint)
    wait_until(lambda: node.uplink.held_count == 0 and node.is_empty())
    node.stop()

    assert set(ids(at_broker)) == set(sent)


def test_urgent_messages_that_the_original_loses_are_delivered_by_ours(
    deployment: Deployment, make_client: Callable[..., Client], tmp_path: Path
) -> None:
    """It acknowledges them, and publishes at QoS 0 to a broker that is away."""
    topic = cell_topic(Cell.at(*ELSEWHERE))
    node = Node(deployment.manager.endpoint, topic, tmp_path)
    wait_until(lambda: node.uplink.endpoint == deployment.at_original.endpoint)
    wait_until(lambda: not node.uplink.gives_receipts)
    deployment.distributed.kill()
    sent = [node.put(5 - n % 2) for n in range(20)]
    wait_until(lambda: node.uplink.held_count == 20)
    time.sleep(0.5)  # until the original has handled them
    deployment.distributed.start()
    at_broker = make_client(deployment.distributed, face(topic))
    deployment.original.stop()
    sent.append(node.put(5))
    wait_until(lambda: node.uplink.endpoint == deployment.at_ours.endpoint)
    wait_until(lambda: set(ids(at_broker)) == set(sent))
    node.stop()


def test_node_leaves_an_original_gateway_whose_daemon_ended(
    deployment: Deployment, make_client: Callable[..., Client], tmp_path: Path
) -> None:
    """Its broker still acknowledges, but has no subscriber for the messages."""
    at_broker = make_client(
        deployment.distributed, face(cell_topic(Cell.at(*ELSEWHERE)))
    )
    node = Node(deployment.manager.endpoint, cell_topic(Cell.at(*ELSEWHERE)), tmp_path)
    wait_until(lambda: node.uplink.endpoint == deployment.at_original.endpoint)
    deployment.original.stop()
    sent = [node.put(5 - n % 2) for n in range(20)]
    wait_until(lambda: node.uplink.endpoint == deployment.at_ours.endpoint)
    wait_until(lambda: set(ids(at_broker)) == set(sent))
    wait_until(node.is_empty)
    node.stop()


def test_our_client_at_the_original_gateway(
    deployment: Deployment, make_original_client: Callable[..., GammaClient]
) -> None:
    """``publish_at`` with a priority; one of theirs and one of ours receive it."""
    theirs, ours = make_original_client(ELSEWHERE), list[SpatialMessage]()
    theirs.subscribe_at(*ELSEWHERE)
    manager = [deployment.manager.url]
    with (
        SpatialClient(manager, "near", ours.append) as near,
        SpatialClient(manager, "writer") as writer,
    ):
        near.connect(*HERE)
        near.subscribe_around(*ELSEWHERE, radius_km=1.0)
        deployment.wait_for_filter("/")
        time.sleep(0.5)
        assert writer.connect(*ELSEWHERE) == deployment.at_original.endpoint
        sent = [b"%d" % n for n in range(COUNT)]
        assert all(writer.publish_at(*ELSEWHERE, each, 5) for each in sent)
        assert writer.flush()
        wait_until(lambda: len(theirs.received) >= COUNT and len(ours) >= COUNT)
        time.sleep(0.5)

    assert lost_and_doubled(sent, [payload for _, payload in theirs.received]) == (0, 0)
    assert lost_and_doubled(sent, [message.payload for message in ours]) == (0, 0)


def test_original_clients_at_our_gateway_and_at_theirs(
    deployment: Deployment, make_original_client: Callable[..., GammaClient]
) -> None:
    """Both directions between the two gateways."""
    at_ours, at_original = make_original_client(HERE), make_original_client(ELSEWHERE)
    assert at_ours.gateway == deployment.at_ours.endpoint
    assert at_original.gateway == deployment.at_original.endpoint
    clients = {b"to ours": at_ours, b"to theirs": at_original}
    for each in clients.values():
        each.subscribe_at(*HERE)

    def is_routed() -> bool:
        """Publish at each gateway; whether each client has received from both."""
        for payload, each in clients.items():
            each.publish_at(*HERE, payload, qos=1)
        time.sleep(0.2)
        received = [{p for _, p in each.received} for each in clients.values()]
        return all(clients.keys() <= each for each in received)

    wait_until(is_routed)
    sent = [b"%d" % n for n in range(2 * COUNT)]
    for first, second in zip(sent[::2], sent[1::2], strict=True):
        at_ours.publish_at(*HERE, first, qos=1)
        at_original.publish_at(*HERE, second, qos=1)
    for each in clients.values():
        wait_until(lambda c=each: {p for _, p in c.received} >= set(sent))
    time.sleep(0.5)

    for each in clients.values():
        payloads = [p for _, p in each.received if p not in clients]
        assert lost_and_doubled(sent, payloads) == (0, 0)


def test_messages_without_ids_reach_nested_subscriptions_once(
    deployment: Deployment,
    make_client: Callable[..., Client],
    make_original_client: Callable[..., GammaClient],
) -> None:
    """The original's gateway adds no id by which a copy could be dropped."""
    wide, nested = AREA.rpartition("/")[0] + "/#", f"{AREA}/#"
    clients = [make_client(deployment.at_ours, f) for f in (nested, wide, nested)]
    deployment.wait_for_filter(wide)
    time.sleep(0.5)
    writer, sent = make_original_client(ELSEWHERE), [b"%d" % n for n in range(COUNT)]
    for each in sent:
        writer.publish_at(*HERE, each, qos=1)
    wait_until(lambda: all(len(client.got) >= COUNT for client in clients))
    time.sleep(0.5)

    for client in clients:
        assert lost_and_doubled(sent, [m.payload for m in client.got]) == (0, 0)

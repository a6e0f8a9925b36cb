"""Attacks of a machine with a valid certificate on others, at real brokers."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_table import timed
from conftest import wait_until
from trust_bench import IssuingAuthority, Person, TrustedBroker
from trusted_system import tls_section

from demo.processes import Processes
from edge_agent.queue.base import MessageDraft
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.app import _GatewayLinks
from gateway_daemon.gateway.downstream import BrokerSubscriber
from gateway_daemon.gateway.manager_link import ManagerLink
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.directory import AreaSetting, BrokerInfo, BrokerTable
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import BATCH_CONTENT, offer_topic
from spatial_mqtt.transport import IncomingMessage, Publication

pytestmark = pytest.mark.broker

CELL = "/3/1/1/2"
REFUSED = "Not authorized"


class Store(Person):
    """The backend's ingester: makes an offer, reads and receipts what it can read."""

    def __init__(self, broker: TrustedBroker, authority: IssuingAuthority) -> None:
        tls = authority.files("ingest-0")
        super().__init__(broker.daemons, tls, "ingest-0", "/3/#")
        offer = CustodyOffer("ingest-0", ("/3/#",)).encode()
        self.say(offer_topic("ingest-0"), offer, retain=True)

    def on_message(self, message: IncomingMessage) -> None:
        super().on_message(message)
        if message.content is None and message.message_id is not None:
            read = CustodyReceipt.from_ids([MessageId.parse(message.message_id)])
            answer = Publication(message.response_topic or "", read.encode())
            self.connection.publish(answer)


class GatewayUplink:
    """Lane and subscriber of gateway gw-1 at a distributed broker, as in the daemon."""

    def __init__(
        self,
        broker: TrustedBroker,
        authority: IssuingAuthority,
        report: Callable[..., None],
    ) -> None:
        self._report = report
        self.queue = MemoryQueue("gw-1", "boot", 10_000_000)
        links = _GatewayLinks(
            authority.files("gw-1"), LoopWatchdog(time.monotonic), "gw-1"
        )
        self.delivered: list[str] = []
        self.subscriber = BrokerSubscriber(
            "gw-1",
            broker.daemons,
            links.to_brokers,
            lambda received: self.delivered.append(received.message.topic),
            lambda: None,
        )
        self.subscriber.set_filters(frozenset({"/3/#"}))
        self.uplink = Uplink(
            self.queue,
            SenderProfile("gw-1", is_relay=True),
            links.to_brokers,
            RateLimiter(),
            time.monotonic,
        )
        self._thread = threading.Thread(target=self.uplink.run, daemon=True)
        self._thread.start()
        self.uplink.switch_to(broker.daemons)

    def put(self, priority: int, count: int = 1) -> None:
        draft = MessageDraft(priority, CELL, lambda i: str(i).encode() * 9)
        self.queue.put([draft] * count)
        self.uplink.wake()

    def pass_alarm(self) -> None:
        """Wait until an alarm has its receipt; `make attack` prints how long."""
        acked, began_s = self.queue.stats().acked[5], time.monotonic()
        self.put(5)
        wait_until(lambda: self.queue.stats().acked[5] > acked)
        self._report(bystander_s=[time.monotonic() - began_s])

    def stop(self) -> None:
        self.subscriber.connection.stop()
        self.uplink.stop()
        self._thread.join()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> IssuingAuthority:
    made = IssuingAuthority(tmp_path_factory.mktemp("ca") / "ca")
    for gateway in ("gw-1", "gw-2"):
        made.issue("gateway", gateway, "/3/1")
    made.issue("backend", "ingest-0")
    made.issue("manager", "m1")
    made.issue("admin", "mayor")
    made.issue("node", "n1", CELL)
    return made


@pytest.fixture(scope="module")
def distributed(
    tmp_path_factory: pytest.TempPathFactory, authority: IssuingAuthority
) -> Iterator[TrustedBroker]:
    made = TrustedBroker(tmp_path_factory.mktemp("d1"), authority, "distributed", "d1")
    yield made
    made.kill()


@pytest.fixture(scope="module")
def manager(
    tmp_path_factory: pytest.TempPathFactory, authority: IssuingAuthority
) -> Iterator[TrustedBroker]:
    made = TrustedBroker(tmp_path_factory.mktemp("m1"), authority, "manager", "m1")
    yield made
    made.kill()


@pytest.fixture
def join() -> Iterator[Callable[..., Person]]:
    clients: list[Person] = []

    def make(at: Endpoint, *args: object, **more: object) -> Person:
        clients.append(Person(at, *args, **more))  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for client in clients:
        client.stop()


@pytest.fixture
def store(distributed: TrustedBroker, authority: IssuingAuthority) -> Iterator[Store]:
    made = Store(distributed, authority)
    yield made
    made.stop()


@pytest.fixture
def lane(
    distributed: TrustedBroker,
    authority: IssuingAuthority,
    report: Callable[..., None],
) -> Iterator[GatewayUplink]:
    made = GatewayUplink(distributed, authority, report)
    yield made
    made.stop()


@pytest.mark.attack(
    "a gateway's offer at a distributed broker",
    "batches that no subscriber reads: 9 of 353 messages arrived",
)
def test_gateway_cannot_make_an_offer_as_if_it_were_a_store(
    distributed: TrustedBroker,
    authority: IssuingAuthority,
    store: Store,
    lane: GatewayUplink,
    join: Callable[..., Person],
) -> None:
    """Another gateway then sent batches that no subscriber can read, for ever."""
    rogue = join(distributed.daemons, authority.files("gw-2"), "gw-2")
    false = CustodyOffer("gw-2", ("#",), (BATCH_CONTENT,)).encode()
    answers = [
        rogue.say(offer_topic(name), false, retain=True)
        for name in ("gw-2", "ingest-0")
    ]
    lane.put(1, 50)

    for _ in range(8):
        lane.pass_alarm()
    wait_until(lambda: lane.queue.stats().acked[1] == 50)
    assert {message.content for message in store.got} == {None}
    assert answers == [REFUSED] * 2


def test_offer_from_before_the_rights_is_not_delivered(
    authority: IssuingAuthority, tmp_path: Path, join: Callable[..., Person]
) -> None:
    """The broker still has it, and Mosquitto would deliver it."""
    broker = TrustedBroker(tmp_path, authority, "distributed", "d1")
    rights = broker.plan.folder / "acl"
    own = "user gw-2\n"
    earlier = f"{own}topic write /custody/offer/gw-2\n"
    rights.write_text(rights.read_text().replace(own, earlier))
    broker.kill()
    broker.start()
    rogue = join(broker.daemons, authority.files("gw-2"), "gw-2")
    assert rogue.say(offer_topic("gw-2"), b"offer", retain=True) is None
    broker.hup()
    wait_until(lambda: rogue.say(offer_topic("gw-2"), b"offer") == REFUSED)
    store = Store(broker, authority)
    reader = join(broker.daemons, authority.files("gw-1"), "gw-1", "/custody/offer/+")
    wait_until(lambda: reader.got)
    store.stop()
    broker.kill()

    assert reader.heard() == [offer_topic("ingest-0")]


def test_offer_under_another_name_than_its_topic_is_ignored(
    distributed: TrustedBroker,
    authority: IssuingAuthority,
    store: Store,
    lane: GatewayUplink,
) -> None:
    """The broker checks the topic only."""
    lane.pass_alarm()
    false = CustodyOffer("ingest-9", ("#",), (BATCH_CONTENT,)).encode()
    store.say(offer_topic("ingest-0"), false)

    lane.pass_alarm()
    known = lane.queue.get_state(f"uplink/offers/{distributed.daemons}") or ""
    assert "ingest-0" in known
    assert "ingest-9" not in known


def test_withdrawn_offer_ends_on_a_link_that_is_up(
    distributed: TrustedBroker, store: Store, lane: GatewayUplink
) -> None:
    """Messages do not wait for receipts that cannot come."""
    lane.pass_alarm()
    store.say(offer_topic("ingest-0"), b"", retain=True)
    key = f"uplink/offers/{distributed.daemons}"
    wait_until(lambda: lane.queue.get_state(key) == "[]")

    store.on_message = lambda _: None  # type: ignore[method-assign]
    lane.pass_alarm()  # by PUBACK, after the grace for a new offer


@pytest.mark.attack(
    "another program's client id at a distributed broker",
    "48 takeovers/s by a node, 0 of 8 alarms arrived",
)
def test_client_id_of_another_certificate_takes_over_no_session(
    distributed: TrustedBroker,
    authority: IssuingAuthority,
    store: Store,
    lane: GatewayUplink,
) -> None:
    """A takeover ended the session and dropped its queued messages."""
    lane.pass_alarm()
    rogue, names = authority.files("gw-2"), ("ingest-0", "gw-1", "gw-1-ear", "m1") * 4
    for name in names:
        thief = Person(distributed.daemons, rogue, name)
        lane.pass_alarm()
        thief.stop()

    assert (store.connection.is_up, lane.uplink.down_since_s) == (True, None)
    wait_until(lambda: len(lane.delivered) >= len(names))  # the lane's own cell


@pytest.mark.attack(
    "a node's certificate where only daemons connect",
    "accepted",
)
@pytest.mark.usefixtures("store")  # without its receipts no alarm is delivered
def test_node_is_refused_where_only_daemons_connect(
    distributed: TrustedBroker,
    manager: TrustedBroker,
    authority: IssuingAuthority,
    lane: GatewayUplink,
    join: Callable[..., Person],
) -> None:
    """Its card can be in a thief's hands; TLS ends before any MQTT packet is read."""
    stolen = authority.files("n1")
    for broker in (distributed, manager):
        for name in ("n1", "ingest-0", "CN=m1,OU=manager"):
            node = join(broker.daemons, stolen, name, wait=False)
            assert node.is_refused("the broker's port is for daemons")
            lane.pass_alarm()
    assert join(manager.nodes, stolen, "n1").is_ready.is_set()


@pytest.mark.attack(
    "another program's client id at a Manager",
    "not prevented",
)
def test_certificates_of_a_manager_have_one_session_for_each_listener(
    manager: TrustedBroker,
    authority: IssuingAuthority,
    join: Callable[..., Person],
    report: Callable[..., None],
) -> None:
    """A rogue gateway cut off the Manager's daemon, and a gateway's renewals."""
    daemon = join(manager.daemons, authority.files("m1"), "yamamori-manager", "/api/#")
    gateway = join(manager.daemons, authority.files("gw-1"), "gw-1-presence")
    renewing = join(manager.nodes, authority.files("gw-1"), "gw-1-asks")
    victims = ("yamamori-manager", "CN=m1,OU=manager", "m1", "gw-1", "gw-1-presence")
    heartbeat = "/api/from/gw-1/notice/gatewaybroker/here"
    took_s: list[float] = []

    def beat() -> None:
        before = len(daemon.heard())
        assert gateway.say(heartbeat) is None
        wait_until(lambda: len(daemon.heard()) > before)

    for at in (manager.daemons, manager.nodes):
        for name in victims:
            join(at, authority.files("gw-2"), name).stop()
            took_s += timed(beat)
    report(bystander_s=took_s)

    assert daemon.heard() == [heartbeat] * len(took_s)
    assert renewing.say("/api/certificate/asked/gw-1") is None
    log = manager.log.read_text()
    assert log.count("as CN=m1,OU=manager (") == log.count("as gw-1 (") == 1


def test_brokers_of_an_older_authority_still_accept_its_certificates(
    authority: IssuingAuthority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    join: Callable[..., Person],
) -> None:
    """Until the last daemon has a certificate that names its role, nodes get in."""
    monkeypatch.setattr("gateway_daemon.ca.authority.INFRASTRUCTURE", frozenset())
    older = IssuingAuthority(tmp_path / "ca")
    backend, node = older.issue("backend", "ingest-0"), older.issue("node", "n1", CELL)
    monkeypatch.undo()
    unmarked = older.folder.load_register().list_unmarked(time.time())
    broker = TrustedBroker(
        tmp_path, older, "distributed", "d1", refuses_nodes=not unmarked
    )
    try:
        for tls in (backend, node):
            assert join(broker.daemons, tls, "x").is_ready.is_set()
        older.issue("backend", "ingest-0")
        now_unmarked = older.folder.load_register().list_unmarked(time.time())
    finally:
        broker.kill()

    assert (unmarked, now_unmarked) == (["ingest-0"], [])


@pytest.fixture(scope="module")
def directory(
    manager: TrustedBroker,
    authority: IssuingAuthority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """The Manager's daemon."""
    tmp_path = tmp_path_factory.mktemp("daemon")
    config = tmp_path / "m1.toml"
    config.write_text(
        f'[manager]\nid = "m1"\nbroker = "mqtts://{manager.daemons}"\n'
        f'data = "{tmp_path}"\n{tls_section(authority.files("m1"))}'
    )
    processes = Processes(tmp_path)
    processes.python("m1", "gateway_daemon", "manager", "--config", str(config))
    yield
    processes.stop()


def announce(address: int, **more: object) -> bytes:
    """A gateway's message about the gateway with a port."""
    about = {"broker_info": {"host": "gw.example", "port": address}}
    return json.dumps({**about, **more}).encode()


@pytest.mark.attack(
    "another gateway's area, and invented gateways",
    "/3/1 became /5, 20 invented gateways listed",
)
@pytest.mark.usefixtures("directory")
def test_gateway_speaks_for_itself_only(
    manager: TrustedBroker, authority: IssuingAuthority, join: Callable[..., Person]
) -> None:
    """A rogue gateway changed another's area, and invented gateways."""
    notice = "/api/notice/gatewaybroker"
    genuine = join(
        manager.daemons, authority.files("gw-1"), "gw-1", "/api/gateway/info/all"
    )
    rogue = join(manager.daemons, authority.files("gw-2"), "gw-2")

    def listed() -> set[tuple[int, str]]:
        rows = json.loads(genuine.got[-1].payload) if genuine.got else []
        return {(row["broker_info"]["port"], row["topic"]) for row in rows}

    def attack() -> list[str | None]:
        messages = [
            ("/wish", announce(1001, topics=["/5"])),
            ("", announce(1001, status="up")),
            ("/down", announce(1001)),
            *(("", announce(port, status="up")) for port in range(2001, 2021)),
        ]
        for tail, payload in messages:
            rogue.say(f"/api/from/gw-2/notice/gatewaybroker{tail}", payload)
        return [
            rogue.say(f"{root}{tail}", payload)
            for tail, payload in messages
            for root in (notice, "/api/from/gw-1/notice/gatewaybroker")
        ]

    mine = "/api/from/gw-1/notice/gatewaybroker"

    def announce_genuine() -> bool:
        assert genuine.say(mine, announce(1001, status="up")) is None
        assert genuine.say(f"{mine}/wish", announce(1001, topics=["/3/1"])) is None
        return listed() == {(1001, "/3/1")}

    wait_until(announce_genuine)
    assert set(attack()) == {REFUSED}
    rogue.say("/api/from/gw-2/notice/gatewaybroker/wish", announce(2001, topics=["/4"]))

    wait_until(lambda: (2001, "/4") in listed())
    assert listed() == {(1001, "/3/1"), (2001, "/4")}


@pytest.mark.attack(
    "another gateway's position on the map",
    "not prevented",
)
@pytest.mark.usefixtures("directory")
def test_position_of_another_gateway_is_removed(
    manager: TrustedBroker, authority: IssuingAuthority, join: Callable[..., Person]
) -> None:
    """A rogue gateway moved another one on the console's map."""
    place = "/api/notice/gatewaybroker/place"
    false = announce(1001, latitude=35.0, longitude=135.0)
    genuine = join(
        manager.daemons, authority.files("gw-1"), "gw-1", "/api/gateway/info/all"
    )
    rogue = join(manager.daemons, authority.files("gw-2"), "gw-2")
    console = join(
        manager.daemons, authority.files("ingest-0"), "console", f"{place}/+"
    )

    def is_listed() -> bool:
        up = announce(1001, status="up")
        genuine.say("/api/from/gw-1/notice/gatewaybroker", up)
        return bool(genuine.got) and b"1001" in genuine.got[-1].payload

    wait_until(is_listed)
    assert genuine.say(f"{place}/gw-1", false, retain=True) is None
    assert rogue.say(f"{place}/gw-2", false, retain=True) is None
    wait_until(lambda: console.got[-1:] and not console.got[-1].payload)

    assert [message.topic[-4:] for message in console.got] == ["gw-1", "gw-2", "gw-2"]


class NoTables:
    """Ignores the Manager's tables."""

    def on_table(self, table: BrokerTable, link: ManagerLink) -> None:
        pass

    def on_complete(self, link: ManagerLink, version: int | None) -> None:
        pass


def test_gateway_announces_itself_at_a_broker_with_earlier_rights(
    authority: IssuingAuthority, tmp_path: Path, join: Callable[..., Person]
) -> None:
    """An upgrade of the programs comes before the brokers' files."""
    notice = "/api/notice/gatewaybroker"
    broker = TrustedBroker(tmp_path, authority, "manager", "m1")
    rights = broker.plan.folder / "acl"
    earlier = "\n".join(f"topic write {notice}{t}" for t in ("", "/here", "/wish"))
    later = "topic write /api/from/gw-1/notice/gatewaybroker/#"
    rights.write_text(rights.read_text().replace(later, earlier))
    broker.kill()
    broker.start()
    manager = join(broker.daemons, authority.files("m1"), "m1", "/api/notice/#")
    tls = authority.files("gw-1")
    link = ManagerLink(
        "gw-1",
        AreaSetting(BrokerInfo("gw.example", 1001), topics=("/3/1",)),
        lambda session, handler: Connection(broker.daemons, session, handler, tls),
        NoTables(),
        time.monotonic,
        has_certificates=True,
    )
    link.start()
    try:
        wait_until(lambda: {notice, f"{notice}/wish"} <= set(manager.heard()))
        link.send_heartbeat()
        wait_until(lambda: manager.heard().count(f"{notice}/here") == 2)
    finally:
        link.stop()
        broker.kill()

"""Rights of each certificate at a real Mosquitto."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_table import timed
from conftest import wait_until
from trust_bench import HOUR_S, IssuingAuthority, Join, Make, Person, TrustedBroker

from spatial_mqtt.cells import Cell
from spatial_mqtt.connection import Connection
from spatial_mqtt.shared_connection import ConnectionPool
from spatial_mqtt.topics import cell_topic
from spatial_mqtt.transport import MessageHandler, Session

pytestmark = pytest.mark.broker

CELL, OTHER = "/3/1/1/2", "/3/1/1/3"
WHOLE_CELL = cell_topic(Cell.at(33.5588, 133.5312))
REFUSED = "Not authorized"


@pytest.fixture
def gateway_broker(authority: IssuingAuthority, make_trusted: Make) -> TrustedBroker:
    """The broker of gateway gw-1, with all certificates registered."""
    authority.issue("node", "n1", CELL)
    authority.issue("node", "n2", OTHER)
    authority.issue("gateway", "gw-1", "/3/1")
    authority.issue("gateway", "gw-2", "/3/2")
    authority.issue("client", "analyst", "/3")
    authority.issue("admin", "mayor")
    authority.issue("backend", "ingest-0")
    return make_trusted("gateway", "gw-1")


@pytest.mark.parametrize(
    ("topic", "is_allowed"),
    [
        (f"/from/n1{CELL}", True),
        (f"/from/n1{CELL}/pri5", True),
        (f"/from/n1{OTHER}/pri5", False),
        (f"/from/n2{CELL}/pri5", False),
        (f"/forward{CELL}/pri5", False),
        ("/from/n1/3/1/1/pri5", False),
        ("/from/n1/3", False),
        (CELL, False),
        ("/custody/n1", False),
        ("/custody/n2", False),
        ("/custody/offer/n1", False),
        ("/custody/offer/gw-1", False),
        (f"/notice{CELL}", False),
        (f"/update{CELL}", False),
        ("/piece/want/n1", True),
        ("/piece/want/n2", False),
        ("/piece/for/n1", False),
        ("/api/register", False),
        ("/api/tool/gatewaybroker/set", False),
        ("$SYS/broker/log/M/subscribe", False),
    ],
)
def test_node_may_publish_only_for_its_cell(
    topic: str,
    is_allowed: bool,
    gateway_broker: TrustedBroker,
    authority: IssuingAuthority,
    join: Join,
) -> None:
    """A stolen certificate is of no use for another cell or node, or as the gateway."""
    node = join(gateway_broker.nodes, authority.files("n1"), "n1")

    assert (node.say(topic) is None) == is_allowed


@pytest.mark.attack("a node's retained messages", "200 MB accepted")
def test_node_of_a_whole_cell_publishes_on_six_topics_only(
    authority: IssuingAuthority,
    make_trusted: Make,
    join: Join,
    report: Callable[..., None],
) -> None:
    """Each topic may hold a retained message: 200 MB of them were accepted."""
    tls = authority.issue("node", "n5", WHOLE_CELL)
    other = authority.issue("node", "n1", CELL)
    broker = make_trusted("gateway", "gw-1")
    node = join(broker.nodes, tls, "n5")
    bystander, waits_s = join(broker.nodes, other, "n1"), []
    topic = f"/from/n5{WHOLE_CELL}"
    for tail in ("", "/pri1", "/pri5"):
        assert node.say(topic + tail, retain=True) is None
    for tail in ("/pri6", "/x", "/pri5/x", "/" + "x" * 5000):
        assert node.say(topic + tail, retain=True) == REFUSED
        waits_s += timed(lambda: bystander.say(f"/from/n1{CELL}/pri5"), 3)
    report(bystander_s=waits_s)


def test_node_receives_only_its_receipts_and_notices(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """A subscription to everything delivers its own custody and areas only."""
    node = join(gateway_broker.nodes, authority.files("n1"), "n1", "#", "/from/#")
    gateway = join(gateway_broker.daemons, authority.files("gw-1"), "gw-1")
    admin = join(gateway_broker.daemons, authority.files("mayor"), "mayor")
    pieces = ("/piece/for/n1", "/piece/for/n2")
    for topic in ("/custody/n2", "/custody/n1", CELL, "/custody/offer/gw-1", *pieces):
        assert gateway.say(topic) is None
    for topic in (f"/notice{OTHER}", f"/notice{CELL}", "/notice/3", "/notice/4"):
        assert admin.say(topic) is None
        assert admin.say(topic.replace("notice", "update")) is None
    assert node.say(f"/from/n1{CELL}/pri1") is None
    assert gateway.say("/custody/n1", b"last") is None
    wait_until(lambda: any(m.payload == b"last" for m in node.got))

    assert sorted(set(node.heard())) == [
        "/custody/n1",
        "/custody/offer/gw-1",
        "/notice/3",
        f"/notice{CELL}",
        "/piece/for/n1",
        "/update/3",
        f"/update{CELL}",
    ]


def test_client_id_is_the_name_of_the_certificate(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """The id in CONNECT is ignored, so a session cannot be taken over."""
    first = join(gateway_broker.nodes, authority.files("n1"), "n1", "/custody/n1")
    join(gateway_broker.nodes, authority.files("n2"), "n1")

    assert first.say(f"/from/n1{CELL}") is None
    assert first.connection.is_up


def test_parts_of_a_node_share_the_session_of_its_certificate(
    gateway_broker: TrustedBroker, authority: IssuingAuthority
) -> None:
    """An update's download must not end the link for alarms."""
    files = authority.files("n1")
    pool = ConnectionPool(
        Session("n1"),
        lambda at, session, handler: Connection(at, session, handler, files),
        time.monotonic,
    )
    received: dict[str, list[bytes]] = {}
    parts = [
        pool.connect(
            gateway_broker.nodes,
            Session(f"n1-{topic}", ((topic, 1),)),
            MessageHandler(
                lambda m: received.setdefault(m.topic, []).append(m.payload)
            ),
        )
        for topic in ("/custody/n1", "/piece/for/n1")
    ]
    for part in parts:
        part.start()
    gateway = Person(gateway_broker.daemons, authority.files("gw-1"), "gw-1")
    for number in range(3):
        for topic in ("/custody/n1", "/piece/for/n1"):
            wait_until(lambda: gateway.reaches(topic, b"%d" % number))  # noqa: B023
    wait_until(lambda: all(b"2" in each for each in received.values()))
    log = gateway_broker.log.read_text()
    for part in (*parts, gateway):
        part.stop()

    assert log.count(" as n1 (") == 1
    assert set(received) == {"/custody/n1", "/piece/for/n1"}


def test_foreign_gateway_may_not_publish_at_a_gateways_broker(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """Only the broker's own gateway sends receipts there."""
    other = join(gateway_broker.daemons, authority.files("gw-2"), "gw-2")

    for topic in ("/custody/n1", "/custody/offer/gw-2", "/from/gw-2/3/2", "/3/2"):
        assert other.say(topic) == REFUSED


def test_other_gateways_may_send_overlay_frames(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """Other gateways may read its name and publish its frames; nodes may not."""
    inbox = join(
        gateway_broker.daemons, authority.files("gw-1"), "gw-1", "/overlay/node/gw-1"
    )
    assert inbox.say("/overlay/name/gw-1", b"0", retain=True) is None
    names = "/overlay/name/+"
    other = join(gateway_broker.nodes, authority.files("gw-2"), "gw-2", names)
    node = join(gateway_broker.nodes, authority.files("n1"), "n1", "/overlay/#")

    assert other.say("/overlay/node/gw-1") is None
    wait_until(lambda: inbox.got and other.got)
    assert other.say("/overlay/name/gw-1") == REFUSED
    assert other.say("/overlay/node/gw-2") == REFUSED
    assert node.say("/overlay/node/gw-1") == REFUSED
    assert node.got == []


def test_client_receives_cells_and_publishes_in_its_areas(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """An analyst's program subscribes to everything and publishes in its areas."""
    client = join(gateway_broker.nodes, authority.files("analyst"), "a", "#")
    gateway = join(gateway_broker.daemons, authority.files("gw-1"), "gw-1")

    assert client.say("/api/register", b"/3/#") is None
    assert client.say(f"/forward{CELL}/pri2") is None
    assert client.say(f"/from/analyst{CELL}/pri2") is None
    assert client.say(f"/from/n1{CELL}/pri2") == REFUSED
    assert client.say("/forward/4/pri2") == REFUSED
    assert client.say(f"/notice{CELL}") == REFUSED
    assert gateway.say(CELL) is None
    wait_until(lambda: client.got)
    assert client.heard() == [CELL]


def test_gateway_may_publish_only_for_its_areas(
    authority: IssuingAuthority, make_trusted: Make, join: Join
) -> None:
    """At a distributed broker; offers are made by the backend alone."""
    gateway_tls = authority.issue("gateway", "gw-1", "/3/1")
    authority.issue("gateway", "gw-2", "/")
    backend_tls = authority.issue("backend", "ingest-0")
    broker = make_trusted("distributed", "d1")
    gateway = join(broker.daemons, gateway_tls, "gw-1", "/custody/#")
    backend = join(broker.daemons, backend_tls, "ingest-0", "#")

    refused = (
        "/3/2",
        "/custody/gw-1",
        "/custody/gw-2",
        "/custody/offer/gw-1",
        "/custody/offer/gw-2",
        "/api/x",
    )
    assert gateway.say(CELL) is None
    assert [gateway.say(topic) for topic in refused] == [REFUSED] * 6
    assert backend.say(CELL) == REFUSED
    for topic in ("/custody/gw-2", "/custody/gw-1", "/custody/offer/ingest-0"):
        assert backend.say(topic) is None
    wait_until(lambda: "/custody/offer/ingest-0" in gateway.heard())
    assert "/custody/gw-2" not in gateway.heard()
    assert backend.heard() == [CELL]


def test_tools_of_a_manager_are_for_administrators(
    authority: IssuingAuthority, make_trusted: Make, join: Join
) -> None:
    """A gateway requests areas on a topic of its own."""
    files = {
        "admin": authority.issue("admin", "mayor"),
        "gateway": authority.issue("gateway", "gw-1", "/3"),
        "node": authority.issue("node", "n1", CELL),
        "client": authority.issue("client", "analyst"),
    }
    other_gateway = authority.issue("gateway", "gw-2", "/4")
    broker = make_trusted("manager", "m1")
    at = {"node": broker.nodes, "client": broker.nodes}
    clients = {
        role: join(at.get(role, broker.daemons), tls, f"{role}-x")
        for role, tls in files.items()
    }
    tools = ("/api/tool/gatewaybroker/set", "/api/tool/distributedbroker/add")

    for tool in tools:
        answers = {role: client.say(tool) for role, client in clients.items()}
        assert answers == {
            "admin": None, "gateway": REFUSED, "node": REFUSED, "client": REFUSED
        }  # fmt: skip
    wish = "notice/gatewaybroker/wish"
    assert clients["gateway"].say(f"/api/from/gw-1/{wish}") is None
    for topic in (f"/api/from/gw-2/{wish}", f"/api/{wish}"):
        assert clients["gateway"].say(topic) == REFUSED
    place = "/api/notice/gatewaybroker/place/"
    other = join(broker.daemons, other_gateway, "x", f"{place}+")
    assert clients["gateway"].say(f"{place}gw-1") is None
    wait_until(lambda: other.heard() == [f"{place}gw-1"])
    assert clients["gateway"].say(f"{place}gw-2") == REFUSED
    for role in ("node", "client", "admin"):
        assert clients[role].say(f"/api/from/gw-1/{wish}") == REFUSED
        assert clients[role].say(f"{place}gw-1") == REFUSED
        assert clients[role].say("/api/manager/record/x") == REFUSED


def test_notices_pass_from_the_backend_through_the_gateway(
    gateway_broker: TrustedBroker,
    authority: IssuingAuthority,
    make_trusted: Make,
    join: Join,
) -> None:
    """Nodes and clients may publish notices at neither broker."""
    manager = make_trusted("manager", "m1")
    topic = f"/notice{CELL}"
    listener = join(
        manager.daemons, authority.files("gw-1"), "gw-1-notices", "/notice/#"
    )
    backend = join(manager.daemons, authority.files("ingest-0"), "notify-0")
    gateway = join(gateway_broker.daemons, authority.files("gw-1"), "gw-1-notices-out")

    assert backend.say(topic) is None
    wait_until(lambda: listener.heard() == [topic])
    assert gateway.say(topic) is None
    assert listener.say(topic) == REFUSED
    for name in ("n1", "analyst"):
        client = join(manager.nodes, authority.files(name), f"{name}-x")
        assert client.say(topic) == REFUSED


def test_client_without_a_certificate_is_refused(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """The error names the setting to change."""
    tls = authority.files("n1")
    bare = type(tls)(ca=tls.ca)
    bare_client = join(gateway_broker.nodes, bare, "n1", wait=False)

    assert bare_client.is_refused("set tls.certificate")


def test_expired_certificate_is_refused(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """The error states the reason."""
    tls = authority.issue("node", "n3", CELL, life_s=1.0)
    time.sleep(2.1)
    late = join(gateway_broker.nodes, tls, "n3", wait=False)

    assert late.is_refused("our certificate has ended")


def test_foreign_certificate_is_refused(
    gateway_broker: TrustedBroker,
    authority: IssuingAuthority,
    join: Join,
    tmp_path: Path,
) -> None:
    """A certificate of another authority is invalid."""
    tls = IssuingAuthority(tmp_path / "elsewhere").issue("node", "n1", CELL)
    mixed = type(tls)(
        ca=authority.files("n1").ca, certificate=tls.certificate, key=tls.key
    )
    stranger = join(gateway_broker.nodes, mixed, "n1", wait=False)

    assert stranger.is_refused("another authority")


def test_node_refuses_a_broker_of_another_authority(
    gateway_broker: TrustedBroker,
    authority: IssuingAuthority,
    join: Join,
    tmp_path: Path,
) -> None:
    """A false gateway receives no message."""
    tls = IssuingAuthority(tmp_path / "elsewhere").issue("node", "n1", CELL)
    node = join(gateway_broker.nodes, tls, "n1", wait=False)

    assert node.is_refused("put that one's ca.pem where tls.ca says")


def test_revoked_certificate_is_refused(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """It loses its rights at once, and its link at the broker's next start.

    All other clients reconnect by themselves.
    """
    node = join(gateway_broker.nodes, authority.files("n1"), "n1")
    other = join(gateway_broker.nodes, authority.files("n2"), "n2", "/custody/n2")
    assert node.say(f"/from/n1{CELL}") is None
    authority.folder.revoke("n1")
    gateway_broker.hup()
    wait_until(lambda: node.connection.is_up and node.say(f"/from/n1{CELL}") == REFUSED)
    gateway_broker.kill()
    gateway_broker.start()
    wait_until(lambda: "our certificate was revoked" in node.connection.last_reason)
    wait_until(lambda: other.connection.is_up)
    assert other.say(f"/from/n2{OTHER}/pri5") is None


def test_new_certificate_is_valid_without_a_restart(
    gateway_broker: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """A new node does not interrupt the others."""
    old = join(gateway_broker.nodes, authority.files("n1"), "n1")
    tls = authority.issue("node", "n9", "/3/1/1/1", life_s=HOUR_S)
    gateway_broker.hup()
    new = join(gateway_broker.nodes, tls, "n9")

    wait_until(lambda: new.say("/from/n9/3/1/1/1") is None)
    assert new.say(f"/from/n9{CELL}") == REFUSED
    assert old.connection.is_up

"""Manager and gateway as processes on real brokers, tested over plain MQTT."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client, Programs, run_command

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.config import GatewaySection
from service_runtime.errors import FieldError
from spatial_mqtt.client import fetch_all_retained, fetch_retained
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import COMPACT_FORM, CustodyOffer, CustodyReceipt
from spatial_mqtt.directory import BrokerInfo, GatewayLocation, encode_directory_message
from spatial_mqtt.senml import MessageId, Pack, Reading, decode_pack, encode_cbor
from spatial_mqtt.topics import GATEWAY_INFO, GATEWAY_LOCATIONS, offer_topic

PLACE = "latitude = 33.55\nlongitude = 133.53\n"

pytestmark = pytest.mark.broker


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    created = Programs(tmp_path)
    yield created
    created.kill_all()


class System:
    """One Manager, one gateway, one distributed broker."""

    def __init__(
        self, programs: Programs, make_broker: Callable[[], Broker], folder: Path
    ) -> None:
        self.manager, self.local, self.distributed = (make_broker() for _ in range(3))
        self._programs = programs
        programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{self.distributed.url}"\n',
        )
        self.gateway_config = (
            f'[gateway]\nid = "gw-1"\nbroker = "{self.local.url}"\n'
            f'managers = ["{self.manager.url}"]\nareas = ["/3/1", "/3/2"]\n'
            f"{PLACE}"
            f'data = "{folder}/gateway"\n'
        )
        self.start_gateway()

    def start_gateway(self) -> None:
        self._programs.start("gateway", "run", self.gateway_config)
        fetch_retained(self.local.endpoint, offer_topic("gw-1"), "probe", 60)


@pytest.fixture
def system(
    programs: Programs, make_broker: Callable[[], Broker], tmp_path: Path
) -> System:
    return System(programs, make_broker, tmp_path)


def pack(seq: int, priority: int = 3) -> bytes:
    reading = Reading("rain", "mm", 0.5)
    return encode_cbor(Pack(MessageId("n1", "bb", seq), priority, 1.7e9, (reading,)))


def receipted(client: Client) -> set[int]:
    seqs: set[int] = set()
    for payload in client.on("/custody/n1"):
        for low, high in CustodyReceipt.decode(payload).ranges[("n1", "bb")]:
            seqs |= set(range(low, high + 1))
    return seqs


def test_manager_lists_the_gateway_under_its_areas(system: System) -> None:
    """The directory is Gamma's, byte for byte."""
    client = Client(system.manager.endpoint, "c", "/api/#")
    expected = [
        {"topic": t, "broker_info": {"host": "127.0.0.1", "port": system.local.port}}
        for t in ("/3/1", "/3/2")
    ]
    wait_until(
        lambda: expected in [json.loads(p) for p in client.on("/api/gateway/info/all")]
    )
    table = {
        "version": 1,
        "brokers": [
            {
                "topic": "/",
                "broker_info": {"host": "127.0.0.1", "port": system.distributed.port},
            }
        ],
    }
    wait_until(
        lambda: table in [json.loads(p) for p in client.on("/api/brokertable/all/info")]
    )

    client.publish("/api/tool/gatewaybroker/set", b"not json")
    # Other errors may come before: the Manager may have subscribed between the
    # notice of the gateway and its wish.
    problem = b"area setting must be JSON of its form"
    wait_until(lambda: any(problem in error for error in client.on("/api/errors")))
    client.connection.stop()


def test_gateway_location_is_retained_until_it_is_removed_from_the_settings(
    system: System, programs: Programs
) -> None:
    """At the Manager under the gateway's own name, with the forms that it reads."""

    def locations() -> list[bytes]:
        topics = (GATEWAY_INFO, GATEWAY_LOCATIONS)
        found = fetch_all_retained(system.manager.endpoint, topics, "c", 60)
        return [found[topic] for topic in found if topic != GATEWAY_INFO]

    broker = BrokerInfo("127.0.0.1", system.local.port)
    here = GatewayLocation(broker, 33.55, 133.53, (COMPACT_FORM,))
    wait_until(lambda: locations() == [encode_directory_message(here)])
    programs.kill("gateway", signal.SIGTERM)
    system.gateway_config = system.gateway_config.replace(PLACE, "")
    system.start_gateway()
    nowhere = GatewayLocation(broker, reads=(COMPACT_FORM,))
    wait_until(lambda: locations() == [encode_directory_message(nowhere)])


def test_gateway_that_started_before_its_manager_is_listed(
    programs: Programs, make_broker: Callable[[], Broker], tmp_path: Path
) -> None:
    """The order in which the programs start does not matter."""
    manager, local = make_broker(), make_broker()
    gateway = (
        f'[gateway]\nid = "gw-9"\nbroker = "{local.url}"\nareas = ["/2"]\n'
        f'managers = ["{manager.url}"]\ndata = "{tmp_path}/gateway"\n'
    )
    watcher = Client(manager.endpoint, "watcher", "/api/#")
    programs.start("gateway", "run", gateway)
    wait_until(lambda: watcher.on("/api/notice/gatewaybroker"))
    text = f'[manager]\nbroker = "{manager.url}"\ndata = "{tmp_path}/manager"\n'
    programs.start("manager", "manager", text)

    info = {"host": "127.0.0.1", "port": local.port}
    expected = [{"topic": "/2", "broker_info": info}]
    wait_until(
        lambda: expected in [json.loads(p) for p in watcher.on("/api/gateway/info/all")]
    )
    watcher.connection.stop()


def test_message_is_receipted_stripped_and_forwarded_once(system: System) -> None:
    """A message that a node sends twice is forwarded once, and receipted."""
    subscriber = Client(system.distributed.endpoint, "subscriber", "/#")
    # Ids are sent only to a store that gives receipts.
    offer = CustodyOffer("store", ("/3/#",)).encode()
    subscriber.publish(offer_topic("store"), offer, retain=True)
    wait_until(lambda: subscriber.on(offer_topic("store")))
    node = Client(system.local.endpoint, "node", "/custody/n1")
    node.publish("/forward/3/1/2/pri4", pack(1))
    node.publish("/forward/3/1/2/pri4", pack(1))
    node.publish("/forward/3/1/2", b"plain")

    wait_until(lambda: len(node.on("/custody/n1")) >= 1 and receipted(node) == {1})
    wait_until(lambda: len(subscriber.on("/3/1/2")) >= 2)
    first, plain = sorted(
        (m for m in subscriber.got if m.topic == "/3/1/2"),
        key=lambda m: m.payload == b"plain",
    )
    assert (first.payload, first.priority, first.response_topic) == (
        pack(1),
        4,
        "/custody/gw-1",
    )
    assert (plain.payload, plain.priority) == (b"plain", 1)
    assert MessageId.parse(plain.message_id or "").node == "gw-1"
    subscriber.connection.stop()
    node.connection.stop()


def test_receipted_messages_survive_sigkill_of_the_gateway(
    system: System, programs: Programs
) -> None:
    """Here while the broker of their area is unreachable."""
    system.distributed.kill()
    node = Client(system.local.endpoint, "node", "/custody/n1")
    for seq in range(1, 51):
        node.publish("/forward/3/1/2/pri2", pack(seq, 2))
    node.publish("/forward/3/1/2/pri5", pack(51, 5))
    wait_until(lambda: receipted(node) == set(range(1, 52)))
    programs.kill("gateway")
    system.start_gateway()
    system.distributed.start()
    subscriber = Client(system.distributed.endpoint, "subscriber", "/#")
    offer = CustodyOffer("store", ("/3/#",)).encode()
    subscriber.publish(offer_topic("store"), offer, retain=True)

    wait_until(
        lambda: (
            {m.payload for m in subscriber.got} >= {pack(s, 2) for s in range(1, 51)}
        ),
        40,
    )
    assert pack(51, 5) in [m.payload for m in subscriber.got]
    subscriber.connection.stop()
    node.connection.stop()


def test_sigterm_ends_the_gateway_with_status_zero(
    system: System, programs: Programs
) -> None:
    """Stopping by the service manager is no failure."""
    assert programs.kill("gateway", signal.SIGTERM) == 0
    assert programs.kill("manager", signal.SIGTERM) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_gateway_that_ends_is_unlisted_and_returns_with_its_areas(
    system: System, programs: Programs, how: int
) -> None:
    """After SIGKILL the broker publishes its last will."""
    client = Client(system.manager.endpoint, "c", "/api/#")

    def listed() -> list[str]:
        messages = client.on("/api/gateway/info/all")
        return (
            [entry["topic"] for entry in json.loads(messages[-1])] if messages else []
        )

    wait_until(lambda: listed() == ["/3/1", "/3/2"])
    programs.kill("gateway", how)
    wait_until(lambda: listed() == [])
    areas = admin(system, "set-area", system.local.url, "/3/1", "/3/3")
    assert areas.returncode == 0
    assert "it gets these areas when it returns" in areas.stderr
    system.start_gateway()
    wait_until(lambda: listed() == ["/3/1", "/3/3"])


def test_broker_can_be_removed_while_running(
    system: System, make_broker: Callable[[], Broker]
) -> None:
    """Messages queued for it go to the broker that holds their area then."""
    admin = Client(system.manager.endpoint, "admin", "/api/#")
    extra = make_broker()
    info = {"host": "127.0.0.1", "port": extra.port}
    entry = json.dumps({"topic": "/3/1", "broker_info": info}).encode()
    admin.publish("/api/tool/distributedbroker/add", entry)
    wait_until(lambda: b"complete" in admin.on("/api/brokertable/update/status"))
    extra.kill()
    writer = Client(system.local.endpoint, "writer")
    writer.publish("/forward/3/1/2/pri2", pack(1))
    analyst = Client(system.distributed.endpoint, "analyst", "/3/1/#")
    admin.publish("/api/tool/distributedbroker/remove", entry)
    wait_until(lambda: analyst.got)
    admin.publish("/api/tool/distributedbroker/remove", entry)
    wait_until(lambda: any(b"one of the table" in e for e in admin.on("/api/errors")))

    assert [m.topic for m in analyst.got] == ["/3/1/2"]


def test_delays_on_node_and_gateway_add_up(system: System) -> None:
    """A message that was not delayed has no age."""
    analyst = Client(system.distributed.endpoint, "analyst", "/3/1/#")
    node = Client(system.local.endpoint, "node")
    node.publish("/forward/3/1/2/pri2", pack(1), age_s=7200)
    node.publish("/forward/3/1/2/pri2", pack(2))
    wait_until(lambda: len(analyst.got) == 2)
    ages = {decode_pack(m.payload).id.seq: m.age_s for m in analyst.got}

    assert 7200 <= (ages[1] or 0) <= 7230
    assert ages[2] is None


def admin(system: System, *words: str) -> subprocess.CompletedProcess[str]:
    manager = ("--manager", system.manager.url)
    return run_command("gateway_daemon", "admin", *manager, *words)


def test_administrator_lists_and_changes_areas(system: System) -> None:
    """Each command returns when the Manager has applied the change."""
    client = Client(system.manager.endpoint, "c", "/api/gateway/info/all")
    wait_until(lambda: b"/3/2" in b"".join(m.payload for m in client.got))
    local = system.local.url
    assert f"/3/1  127.0.0.1:{system.local.port}" in admin(system, "gateways").stdout
    assert admin(system, "set-area", local, "/3/1", "/5").stdout == "done\n"
    assert admin(system, "unset-area", local, "/3/1").stdout == "done\n"
    listed = json.loads(admin(system, "--json", "gateways").stdout)
    assert [entry["topic"] for entry in listed] == ["/5"]
    assert admin(system, "unset-area", local, "/5").stdout == "done\n"
    listed = json.loads(admin(system, "--json", "gateways").stdout)
    assert [entry["topic"] for entry in listed] == ["/"]

    explanation = admin(system, "why", "/5/1").stdout
    assert "serves /: the closest area" in explanation
    assert f"127.0.0.1:{system.distributed.port} holds /" in explanation


def test_runbook_gives_the_area_of_a_broker_that_is_gone_to_another(
    system: System, make_broker: Callable[[], Broker], tmp_path: Path
) -> None:
    """The commands of the page, in its order."""
    old, new = make_broker(), make_broker()
    page = Path(__file__).parents[2] / "docs/how-to/runbooks.md"
    section = page.read_text("utf-8").partition("\n## 4. ")[2].partition("\n## ")[0]
    commands = re.findall(
        r"^\d\. `gateway-daemon admin .*admin.toml (.+?)`", section, re.MULTILINE
    )
    assert admin(system, "add-broker", "/3/1", old.url).returncode == 0
    old.kill()
    analyst = Client(new.endpoint, "analyst", "/3/1/#")
    urls = {
        "mqtts://broker.example:8883": old.url,
        "mqtts://other.example:8883": new.url,
    }
    for command in commands:
        done = admin(system, *(urls.get(word, word) for word in command.split()))
        assert done.returncode == 0, done.stderr
    # Until then the gateway sends to the broker of the area around it.
    changed, log = f"/3/1 -> {new.endpoint}", tmp_path / "gateway.log"
    wait_until(lambda: changed in log.read_text())
    writer = Client(system.local.endpoint, "writer")
    writer.publish("/forward/3/1/2/pri5", pack(1))
    wait_until(lambda: analyst.got)

    assert len(commands) == 3


def test_refused_admin_command_states_the_reason(system: System) -> None:
    """Every refusal has a reason and a non-zero exit status, the repeated one too."""
    broker = system.distributed.url
    for words, reason in (
        (("forget", "mqtt://nobody:1883"), "sent a notice"),
        (("add-broker", "/", "mqtt://other:1883"), "an area without a broker"),
        (("remove-broker", "/9", broker), "one of the table"),
        (("set-area", "mqtt://nobody:1883", "/1"), "sent a notice"),
        (("forget", "mqtt://nobody:1883"), "sent a notice"),
        (("add-broker", "/", "mqtt://other:1883"), "an area without a broker"),
        (("add-broker", "1/2", broker), "levels such as"),
        (("why", "/1/#"), "without + and #"),
    ):
        done = admin(system, *words)

        assert done.returncode != 0
        assert reason in done.stderr


def test_batches_and_fragments_reach_subscribers_as_single_messages(
    system: System, tmp_path: Path
) -> None:
    """Batches and fragments are used only between node and gateway."""
    client = Client(system.distributed.endpoint, "analyst", "/3/1/#")
    queue = MemoryQueue("n1", "bb", 10_000_000)
    large = bytes(range(256)) * 80
    queue.put([_opaque(1, b"%03d" % n * 50) for n in range(200)])
    queue.put([_opaque(3, large), _opaque(5, b"warning")])
    uplink = Uplink(
        queue, SenderProfile("n1"), Connection, RateLimiter(), time.monotonic
    )
    thread = threading.Thread(target=uplink.run)
    thread.start()
    uplink.switch_to(system.local.endpoint)
    wait_until(lambda: not queue.stats().leased and not queue.waiting_priorities())
    uplink.stop()
    thread.join()
    wait_until(lambda: len(client.got) == 202)
    values = [_value(message.payload) for message in client.got]

    assert values[0] == b"warning"
    assert sorted(values) == sorted([
        *(b"%03d" % n * 50 for n in range(200)),
        large,
        b"warning",
    ])


def _opaque(priority: int, data: bytes) -> MessageDraft:
    def encode(message_id: MessageId) -> bytes:
        reading = Reading("photo", None, data)
        return encode_cbor(Pack(message_id, priority, 1.7e9, (reading,)))

    return MessageDraft(priority, f"/forward/3/1/0/pri{priority}", encode)


def _value(payload: bytes) -> object:
    return decode_pack(payload).readings[0].value


def test_longitude_without_latitude_is_refused() -> None:
    """A single coordinate is a typing error."""
    with pytest.raises(FieldError, match="latitude must be given where"):
        GatewaySection(id="gw", broker="mqtt://h:1", managers=(), longitude=133.5)


def test_bad_settings_name_each_error_and_exit_78(tmp_path: Path) -> None:
    """With this status systemd does not restart the gateway."""
    path = tmp_path / "gw.toml"
    path.write_text(
        '[gateway]\nid = "a/b"\nbroker = "http://x"\nmanager = []\nlatitude = 95\n'
        '[queue]\nmax_bytes = "1 GB"\n'
    )

    done = subprocess.run(
        [sys.executable, "-m", "gateway_daemon", "run", "--config", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 78
    assert done.stderr.count("gateway-daemon: ") == 6
    for message in (
        "did you mean 'managers'?",
        "gateway.managers must be given",
        "without quotes",
    ):
        assert message in done.stderr

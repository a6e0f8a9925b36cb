"""The uplink against a real Mosquitto."""

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from connection_events import Recorder

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.congestion import CongestionWindow
from edge_agent.uplink.gateway_selection import FailoverTimeouts, GatewaySelector
from edge_agent.uplink.in_flight import FlightLimits
from edge_agent.uplink.link_rate import RateLimiter, SendSample
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import ExtraSubscriptions, Uplink
from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.priority import Delivery, QosPolicy
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import custody_topic, offer_topic
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    Publication,
    SentPublication,
    Session,
)

pytestmark = pytest.mark.broker


def connect(
    endpoint: Endpoint, session: Session, handler: ConnectionHandler
) -> Connection:
    backoff = Backoff(random.Random(1), base_s=0.05, cap_s=0.3)
    return Connection(endpoint, session, handler, backoff=backoff)


_receivers: list["Receiver"] = []


@pytest.fixture(autouse=True)
def stop_receivers() -> Iterator[None]:
    """No connection outlives its test."""
    yield
    while _receivers:
        _receivers.pop().connection.stop()


class Receiver:
    """A gateway that records messages and sends receipts on request."""

    def __init__(
        self, endpoint: Endpoint, gives_receipts: bool = False, expiry_s: int = 0
    ) -> None:
        self.received: list[IncomingMessage] = []
        self.is_ready = threading.Event()
        self._gives_receipts = gives_receipts
        session = Session("receiver", (("/forward/#", 1),), expiry_s)
        self.connection = connect(endpoint, session, self)
        self.connection.start()
        _receivers.append(self)

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        if self._gives_receipts:
            offer = CustodyOffer("receiver", ("/forward/#",)).encode()
            topic = offer_topic("receiver")
            self.connection.publish(Publication(topic, offer, retain=True))

    def on_down(self, reason: str) -> None:
        self.is_ready.clear()

    def on_message(self, message: IncomingMessage) -> None:
        self.received.append(message)

    def on_published(self, token: int, refused: str | None) -> None:
        pass

    def on_subscribed(self) -> None:
        self.is_ready.set()

    def receipt(self, *ids: MessageId) -> None:
        self.connection.publish(
            Publication(custody_topic("n1"), CustodyReceipt.from_ids(ids).encode())
        )


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue("n1", "boot", 10_000_000)


@pytest.fixture
def run_uplink(queue: MemoryQueue) -> Iterator[Callable[..., Uplink]]:
    running: list[tuple[Uplink, threading.Thread]] = []

    def run(
        endpoint: Endpoint, limits: FlightLimits, rate: float = math.inf, qos: int = 1
    ) -> Uplink:
        limiter = RateLimiter(None if math.isinf(rate) else rate)
        policy = QosPolicy(dict.fromkeys(range(1, 6), Delivery(qos)))
        sender = SenderProfile("n1", limits=limits, qos_policy=policy)
        uplink = Uplink(queue, sender, connect, limiter, time.monotonic)
        thread = threading.Thread(target=uplink.run, daemon=True)
        thread.start()
        running.append((uplink, thread))
        uplink.switch_to(endpoint)
        return uplink

    yield run
    for uplink, thread in running:
        uplink.stop()
        thread.join()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[list[Publication]]:
    """Publications of each write to the link; the link is real."""
    seen: list[list[Publication]] = []
    publish_unrecorded = Connection.publish_together

    def publish_together(
        connection: Connection, publications: list[Publication]
    ) -> list[SentPublication]:
        seen.append(publications)
        return publish_unrecorded(connection, publications)

    monkeypatch.setattr(Connection, "publish_together", publish_together)
    return seen


def put(
    queue: MemoryQueue, priority: int, count: int = 1, size: int = 20
) -> list[MessageId]:
    drafts = [
        MessageDraft(
            priority,
            f"/forward/1/2/pri{priority}",
            lambda i: str(i).encode().ljust(size),
        )
        for _ in range(count)
    ]
    return [i for i in queue.put(drafts) if i]


def test_urgent_message_overtakes_a_backlog_on_a_slow_link(
    queue: MemoryQueue, broker: Broker, run_uplink: Callable[..., Uplink]
) -> None:
    """At most a window of the backlog is sent before a new message of priority 5."""
    receiver = Receiver(broker.endpoint)
    receiver.is_ready.wait(60)
    put(queue, 1, count=60, size=400)
    uplink = run_uplink(broker.endpoint, FlightLimits(window_bytes=1000), rate=20_000.0)
    wait_until(lambda: len(receiver.received) >= 5)
    before = len(receiver.received)
    put(queue, 5)
    uplink.wake()
    wait_until(lambda: len(receiver.received) == 61)

    position = [m.priority for m in receiver.received].index(5)
    assert position <= before + 4


def test_urgent_messages_are_written_separately(
    queue: MemoryQueue, broker: Broker, writes: list[list[Publication]]
) -> None:
    """A segment arrives as a whole, so routine messages would make it longer."""
    put(queue, 5, count=2)
    put(queue, 1, count=3)

    send(queue, broker, FlightLimits(window_bytes=3000), count=5)

    urgent = [[p.priority == 5 for p in write] for write in writes]
    assert urgent[0] == [True, True]
    assert not any(any(write) for write in urgent[1:])


def test_large_messages_stay_within_the_window(
    queue: MemoryQueue, broker: Broker, writes: list[list[Publication]]
) -> None:
    """Each extra message delays an urgent one by a quarter of a second at 30 kbps."""
    put(queue, 1, count=6, size=1000)

    send(queue, broker, FlightLimits(window_bytes=1600), count=6)

    assert max(len(write) for write in writes) == 1


def send(queue: MemoryQueue, broker: Broker, limits: FlightLimits, count: int) -> None:
    uplink = Uplink(
        queue,
        SenderProfile("n1", limits=limits),
        connect,
        RateLimiter(None),
        time.monotonic,
    )
    thread = threading.Thread(target=uplink.run, daemon=True)
    thread.start()
    receiver = Receiver(broker.endpoint)
    receiver.is_ready.wait(60)
    uplink.switch_to(broker.endpoint)
    wait_until(lambda: len(receiver.received) == count)
    uplink.stop()
    thread.join()


def test_receipts_empty_the_queue_and_pubacks_do_not(
    queue: MemoryQueue, broker: Broker, run_uplink: Callable[..., Uplink]
) -> None:
    """Messages stay until the gateway has confirmed that they are on its disk."""
    receiver = Receiver(broker.endpoint, gives_receipts=True)
    receiver.is_ready.wait(60)
    ids = put(queue, 3, count=3)
    run_uplink(broker.endpoint, FlightLimits())
    wait_until(lambda: len(receiver.received) == 3)
    wait_until(lambda: queue.get_state(f"uplink/offers/{broker.endpoint}"))
    assert queue.stats().depth[3].rows == 3

    receiver.receipt(*ids[:2])
    wait_until(lambda: queue.stats().depth[3].rows == 1)
    receiver.receipt(ids[2])
    wait_until(lambda: queue.stats().depth[3].rows == 0)


def test_plain_broker_ends_custody_with_its_puback(
    queue: MemoryQueue, broker: Broker, run_uplink: Callable[..., Uplink]
) -> None:
    """A peer without receipts empties the queue too, except of urgent messages."""
    receiver = Receiver(broker.endpoint)
    receiver.is_ready.wait(60)
    put(queue, 2, count=5)
    put(queue, 5)
    uplink = run_uplink(broker.endpoint, FlightLimits(offer_grace_s=0.3))

    wait_until(lambda: queue.stats().acked[2] == 5)
    assert (uplink.gives_receipts, uplink.held_count) == (False, 1)
    assert {(m.topic, m.priority) for m in receiver.received} == {
        ("/forward/1/2", 2),
        ("/forward/1/2", 5),
    }


def test_held_message_is_delivered_where_receipts_are_given(
    queue: MemoryQueue,
    make_broker: Callable[[], Broker],
    run_uplink: Callable[..., Uplink],
) -> None:
    """A plain broker acknowledged it; reconnecting there sends it no second time."""
    plain, other = make_broker(), make_broker()
    at_plain = Receiver(plain.endpoint)
    at_plain.is_ready.wait(60)
    (urgent,) = put(queue, 5)
    uplink = run_uplink(plain.endpoint, FlightLimits(offer_grace_s=0.3))
    wait_until(lambda: uplink.held_count == 1)
    uplink.switch_to(plain.endpoint)
    put(queue, 1)
    wait_until(lambda: queue.stats().acked[1] == 1)
    assert [m.priority for m in at_plain.received] == [5, 1]

    store = Receiver(other.endpoint, gives_receipts=True)
    store.is_ready.wait(60)
    uplink.switch_to(other.endpoint)
    wait_until(lambda: store.received)
    store.receipt(urgent)
    wait_until(lambda: queue.stats().acked[5] == 1)
    assert uplink.held_count == 0
    assert {m.topic for m in store.received} == {"/forward/1/2/pri5"}


def test_offer_before_the_confirmed_subscription_counts(queue: MemoryQueue) -> None:
    """MQTT permits that order. Mosquitto has the other, so a script is the peer."""
    handlers: list[ConnectionHandler] = []

    def connect_script(
        endpoint: Endpoint, session: Session, handler: ConnectionHandler
    ) -> Connection:
        handlers.append(handler)
        return Connection(endpoint, session, Recorder())

    sender = SenderProfile("n1", limits=FlightLimits(offer_grace_s=0.0))
    uplink = Uplink(queue, sender, connect_script, RateLimiter(), time.monotonic)
    thread = threading.Thread(target=uplink.run, daemon=True)
    thread.start()
    uplink.switch_to(Endpoint("127.0.0.1", 1))
    offer = CustodyOffer("gw", ("/forward/#",)).encode()
    handlers[0].on_up(False, 20)
    handlers[0].on_message(
        IncomingMessage(offer_topic("gw"), offer, 1, True, None, None, None, (1, 1))
    )
    handlers[0].on_subscribed()
    wait_until(lambda: queue.get_state("uplink/offers/127.0.0.1:1"))
    uplink.stop()
    thread.join()

    assert uplink.gives_receipts


def test_first_contact_while_the_gateway_is_offline_loses_nothing(
    queue: MemoryQueue, broker: Broker, run_uplink: Callable[..., Uplink]
) -> None:
    """The broker of a rebooted gateway acknowledges before there is an offer."""
    ids = put(queue, 2, count=5)
    run_uplink(
        broker.endpoint, FlightLimits(offer_grace_s=0.3, no_subscriber_pause_s=0.2)
    )
    time.sleep(1.5)
    assert queue.stats().acked[2] == 0
    receiver = Receiver(broker.endpoint, gives_receipts=True)
    wait_until(lambda: len({m.payload for m in receiver.received}) == 5)
    receiver.receipt(*ids)

    wait_until(lambda: queue.stats().acked[2] == 5)


def test_killed_broker_loses_no_message_and_draining_resumes(
    queue: MemoryQueue, broker: Broker, run_uplink: Callable[..., Uplink]
) -> None:
    """Messages without a receipt are sent again without a new message to start it."""
    receiver = Receiver(broker.endpoint, gives_receipts=True)
    receiver.is_ready.wait(60)
    ids = put(queue, 2, count=30)
    run_uplink(broker.endpoint, FlightLimits())
    wait_until(lambda: len(receiver.received) >= 30)
    broker.kill()
    receiver.received.clear()
    broker.start()

    wait_until(
        lambda: (
            {m.payload.strip() for m in receiver.received}
            >= {str(i).encode() for i in ids}
        )
    )
    receiver.receipt(*ids)
    wait_until(lambda: queue.stats().acked[2] == 30)


def test_urgent_message_shortens_a_long_backoff(
    queue: MemoryQueue, broker: Broker
) -> None:
    """A dead link is retried at `urgent_cap_s` while priority 4 or 5 waits."""

    def connect_with_long_backoff(
        endpoint: Endpoint, session: Session, handler: ConnectionHandler
    ) -> Connection:
        backoff = Backoff(random.Random(1), base_s=50.0, cap_s=60.0, urgent_cap_s=0.3)
        return Connection(endpoint, session, handler, backoff=backoff)

    broker.kill()
    limits = FlightLimits(offer_grace_s=0.2)
    uplink = Uplink(
        queue,
        SenderProfile("n1", limits=limits),
        connect_with_long_backoff,
        RateLimiter(),
        time.monotonic,
    )
    thread = threading.Thread(target=uplink.run, daemon=True)
    thread.start()
    uplink.switch_to(broker.endpoint)
    put(queue, 1)
    broker.start()
    put(queue, 5)

    wait_until(lambda: uplink.down_since_s is None)
    Receiver(broker.endpoint)
    wait_until(lambda: uplink.held_count == 1)
    uplink.stop()
    thread.join()


def test_extra_subscriptions_receive_notices_of_the_area(
    queue: MemoryQueue, broker: Broker
) -> None:
    """Retained notices arrive on connecting; receipts and offers are not passed on."""
    received: list[IncomingMessage] = []
    receiver = Receiver(broker.endpoint)
    receiver.is_ready.wait(60)
    receiver.connection.publish(Publication("/notice/3", b"{}", retain=True))
    uplink = Uplink(
        queue,
        SenderProfile("n1"),
        connect,
        RateLimiter(),
        time.monotonic,
        extra=ExtraSubscriptions(("/notice/3", "/notice/3/1"), received.append),
    )
    thread = threading.Thread(target=uplink.run)
    thread.start()
    uplink.switch_to(broker.endpoint)
    wait_until(lambda: received)
    receiver.connection.publish(Publication("/notice/3/1", b"x"))
    receiver.connection.publish(Publication("/notice/3/2", b"y"))
    receiver.receipt(MessageId("n1", "boot", 1))
    wait_until(lambda: len(received) == 2)
    uplink.stop()
    thread.join()

    assert [m.payload for m in received] == [b"{}", b"x"]


@pytest.mark.parametrize(
    ("stored", "count"),
    [
        ("[3750.0, 1600.0]", 1),
        (None, 2),
        ("[3750.0", 2),
        ('["a", 1]', 2),
        ("[0, 0]", 2),
    ],
)
def test_link_is_known_from_the_connection_before(  # noqa: PLR0917 - fixtures
    queue: MemoryQueue,
    broker: Broker,
    run_uplink: Callable[..., Uplink],
    writes: list[list[Publication]],
    stored: str | None,
    count: int,
) -> None:
    """A slow link gets one frame at first, an unknown one two; damage is ignored."""
    if stored is not None:
        queue.put([], {f"uplink/link/{broker.endpoint}": stored})
    put(queue, 1, count=3, size=1200)
    receiver = Receiver(broker.endpoint)
    assert receiver.is_ready.wait(20)
    run_uplink(broker.endpoint, FlightLimits())
    wait_until(lambda: len(receiver.received) == 3)

    assert len(writes[0]) == count


def test_rate_of_a_link_is_stored(
    queue: MemoryQueue, broker: Broker, run_uplink: Callable[..., Uplink]
) -> None:
    """It is there for the next connection, also after a restart."""
    key = f"uplink/link/{broker.endpoint}"
    uplink = run_uplink(broker.endpoint, FlightLimits())
    wait_until(lambda: uplink.down_since_s is None)
    uplink._in_flight._window._meter.rate = 8000.0  # noqa: SLF001 - as if measured
    uplink.switch_to(broker.endpoint)
    wait_until(lambda: queue.get_state(key) is not None)

    assert queue.get_state(key) == "[8000.0, 0.0]"


@pytest.fixture
def refusing_broker(make_broker: Callable[..., Broker], tmp_path: Path) -> Broker:
    """A broker that refuses all publications below ``/forward/9``."""
    rights = tmp_path / "acl"
    rights.write_text("topic readwrite #\ntopic deny /forward/9/#\n")
    # With 0, its other setting, Mosquitto 2.0.11 disconnects instead of refusing.
    most = "max_queued_messages 100000"
    return make_broker("user root", most, f"acl_file {rights}")


def test_messages_that_the_broker_refuses_leave_the_link_to_later_ones(
    queue: MemoryQueue, refusing_broker: Broker, run_uplink: Callable[..., Uplink]
) -> None:
    """As of the cell that a node has left: their repetition took all of a slow link."""
    refused = MessageDraft(1, "/forward/9/pri1", lambda i: str(i).encode().ljust(1000))
    queue.put([refused] * 60)
    receiver = Receiver(refusing_broker.endpoint)
    assert receiver.is_ready.wait(20)
    limits = FlightLimits(refused_pause_s=0.5)
    run_uplink(refusing_broker.endpoint, limits, rate=40_000.0)
    put(queue, 1)

    wait_until(lambda: receiver.received)
    assert queue.stats().depth[1].rows >= 60  # refused, not lost


@pytest.fixture
def small_packets(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> tuple[Broker, list[int]]:
    """A broker that allows 3,000 bytes, and the sizes that measured a link."""
    measured: list[int] = []
    on_ack = CongestionWindow.on_ack

    def measure(window: CongestionWindow, sample: SendSample, now_s: float) -> None:
        measured.append(sample.size_bytes)
        on_ack(window, sample, now_s)

    monkeypatch.setattr(CongestionWindow, "on_ack", measure)
    return make_broker("max_packet_size 3000"), measured


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_message_larger_than_the_broker_allows_leaves_the_link_to_others(
    queue: MemoryQueue,
    small_packets: tuple[Broker, list[int]],
    run_uplink: Callable[..., Uplink],
    caplog: pytest.LogCaptureFixture,
    qos: int,
) -> None:
    """The broker ended each connection for it, before less urgent ones were sent.

    Its refusal comes from this machine, so it measures no round trip of the link.
    """
    broker, measured = small_packets
    put(queue, 3)
    large = MessageDraft(3, "/forward/7", lambda i: str(i).encode().ljust(5000))
    queue.put([large])
    receiver = Receiver(broker.endpoint)
    assert receiver.is_ready.wait(20)
    uplink = run_uplink(broker.endpoint, FlightLimits(), qos=qos)
    put(queue, 1)

    wait_until(lambda: len(receiver.received) == 2)
    wait_until(lambda: any("3000" in text for text in caplog.messages))
    wait_until(lambda: queue.stats().depth[3].rows == 1)  # refused, not lost
    assert uplink.down_since_s is None
    wait_until(lambda: len(measured) == (2 if qos else 0))
    assert all(size < 1000 for size in measured)


@pytest.fixture
def select() -> Iterator[Callable[..., None]]:
    """Starts to select a gateway for an uplink, of which none is ever healthy again."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(uplink: Uplink, *ranked: Endpoint) -> None:
        timeouts = FailoverTimeouts(failover_s=1.0)
        selector = GatewaySelector(
            uplink, Gateways(*ranked), stop, time.monotonic, timeouts
        )
        for run in (selector.run, selector.run_checks):
            threads.append(threading.Thread(target=run))
            threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def test_gateway_that_refuses_is_left_for_one_that_accepts(
    queue: MemoryQueue,
    broker: Broker,
    refusing_broker: Broker,
    run_uplink: Callable[..., Uplink],
    select: Callable[..., None],
) -> None:
    """One restored from a backup has no rights for a newer node, which stayed there."""
    queue.put([MessageDraft(5, "/forward/9/pri5", lambda i: str(i).encode())])
    receiver = Receiver(broker.endpoint)
    assert receiver.is_ready.wait(20)
    uplink = run_uplink(refusing_broker.endpoint, FlightLimits())
    select(uplink, refusing_broker.endpoint, broker.endpoint)

    wait_until(lambda: receiver.received)


@pytest.mark.parametrize("has_database", [False, True])
def test_broker_whose_gateway_did_not_start_is_left(
    queue: MemoryQueue,
    make_broker: Callable[[], Broker],
    run_uplink: Callable[..., Uplink],
    select: Callable[..., None],
    has_database: bool,
) -> None:
    """After a power cut: with a remembered offer, or with that of an old database."""
    alone, other = make_broker(), make_broker()
    if has_database:
        gone = Receiver(alone.endpoint, gives_receipts=True, expiry_s=3600)
        assert gone.is_ready.wait(20)
        gone.connection.stop()
    else:
        offers = json.dumps([["receiver", ["/forward/#"], [], 0.0]])
        queue.put([], {f"uplink/offers/{alone.endpoint}": offers})
    receiver = Receiver(other.endpoint, gives_receipts=True)
    assert receiver.is_ready.wait(20)
    put(queue, 5)
    uplink = run_uplink(alone.endpoint, FlightLimits(resend_after_s=0.5))
    select(uplink, alone.endpoint, other.endpoint)

    wait_until(lambda: receiver.received)


class Gateways:
    """Gateways of which only the one in use is healthy."""

    def __init__(self, *ranked: Endpoint) -> None:
        self._ranked = list(ranked)

    def cached_gateways(self) -> list[Endpoint]:
        return self.ranked_gateways()

    def ranked_gateways(self) -> list[Endpoint]:
        return self._ranked

    def is_healthy(self, _: Endpoint) -> bool:
        return False

"""Ingress at a real broker."""

import logging
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Broker, free_port, wait_until

from edge_agent.queue.base import (
    MessageDraft,
    QueueDiskFullError,
    QueueShareError,
)
from edge_agent.queue.eviction import Budget
from edge_agent.queue.memory import MemoryQueue
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.gateway.egress import Egress
from gateway_daemon.gateway.incoming import (
    IdentityCheck,
    ReceivedPublication,
    SenderRateLimit,
)
from gateway_daemon.gateway.ingress import (
    PUBLICATION_BYTES,
    AdmissionChecks,
    Ingress,
)
from gateway_daemon.gateway.unacknowledged import (
    REDELIVERY_STATE_KEY,
    RedeliveryFilter,
    make_mark,
)
from service_runtime.crash_guard import make_crash_guard
from service_runtime.watchdog import LoopWatchdog, no_heartbeat
from spatial_mqtt.batching import BatchItem, Fragment, encode_batch, split_message
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable
from spatial_mqtt.senml import MAX_SEQ, MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT
from spatial_mqtt.transport import NO_SUBSCRIBERS, IncomingMessage, Publication, Session

pytestmark = pytest.mark.broker


class Client:
    """Publishes, and records whether the broker had a subscriber."""

    def __init__(self, broker: Broker) -> None:
        """Connect."""
        self.answers: dict[int, str | None] = {}
        self.is_ready = threading.Event()
        self._connection = Connection(broker.endpoint, Session("client"), self)
        self._connection.start()
        assert self.is_ready.wait(60)

    def publish(self, topic: str, payload: bytes = b"x", **more: object) -> str | None:
        """Publish and return the broker's reason code, None for success."""
        token = self._connection.publish(Publication(topic, payload, **more))
        wait_until(lambda: token in self.answers)
        return self.answers[token or 0]

    def stop(self) -> None:
        """Disconnect."""
        self._connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""
        self.is_ready.set()

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""
        self.answers[token] = refused

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""


class RunOnLogLine(logging.Handler):
    """Calls a function when a log line contains a text."""

    def __init__(self, text: str, do: Callable[[], object]) -> None:
        """Wait for `text`."""
        super().__init__()
        self.done: list[object] = []
        self._text = text
        self._do = do

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if self._text in record.getMessage():
            self.done.append(self._do())


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """A client of the same broker."""
    created = Client(broker)
    yield created
    created.stop()


@pytest.fixture
def ingress(broker: Broker, tmp_path: Path) -> Iterator[Ingress]:
    """An ingress that is not yet running and stores in memory."""
    with make_ingress(broker, tmp_path) as created:
        yield created


@contextmanager
def make_ingress(broker: Broker, tmp_path: Path) -> Iterator[Ingress]:
    """Make an ingress that is not yet running and stores in memory; stop it."""
    clock = time.monotonic
    egress = Egress(
        lambda _broker: MemoryQueue("gw", "b", 10**6, clock),
        lambda _broker, queue: Uplink(
            queue, SenderProfile("gw"), Connection, RateLimiter(), clock
        ),
        tls=False,
        watchdog=LoopWatchdog(clock),
    )
    identity_check = IdentityCheck(
        tmp_path / "impostors.jsonl", time.time, has_certificates=False
    )
    created = Ingress(
        "gw",
        lambda session, handler: Connection(broker.endpoint, session, handler),
        egress,
        3,
        clock,
        checks=AdmissionChecks(
            SenderRateLimit(100), identity_check, make_crash_guard(tmp_path, "ingress")
        ),
    )
    yield created
    created.stop()
    egress.close()


def test_ingress_is_subscribed_when_it_logs_that_it_is_up(
    ingress: Ingress, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker drops a message that arrives before the subscription."""
    on_line = RunOnLogLine(
        "gateway gw is up", lambda: client.publish("/forward/3/1/2/pri5")
    )
    log = logging.getLogger("gateway_daemon.gateway.ingress")
    caplog.set_level(logging.INFO, log.name)
    log.addHandler(on_line)
    threading.Thread(target=ingress.run, args=(no_heartbeat,), daemon=True).start()
    wait_until(lambda: on_line.done)
    log.removeHandler(on_line)

    assert on_line.done == [None], f"{NO_SUBSCRIBERS} means that the message is lost"
    assert ingress.is_up


def test_invalid_topic_is_dropped_and_logged_once(
    ingress: Ingress, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic of 60 KB would be stored with each message, and kept in caches."""
    threading.Thread(target=ingress.run, args=(no_heartbeat,), daemon=True).start()
    wait_until(lambda: ingress.is_up)
    for n in range(20):
        client.publish("/from/!/1/2")
        client.publish(f"/forward/1/2/{n}/" + "x" * 60_000)
    client.publish("/forward/1/2/pri5")
    wait_until(lambda: _stored(ingress) == 1)

    assert caplog.text.count("not stored") == 1


def test_retained_publication_is_forwarded_once(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Also one made while the gateway is away, at any QoS; restarts add no copies."""
    broker = make_broker("queue_qos0_messages true")
    client, forwarded = Client(broker), []
    client.publish("/forward/1/2", b"before the first session", retain=True)
    for number in range(3):
        with make_ingress(broker, tmp_path) as ingress:
            forwarded += _run_once(ingress, client, b"end %d" % number)
        client.publish("/forward/1/3", b"away %d" % number, retain=True)
        client.publish("/forward/1/4", b"QoS 0 %d" % number, retain=True, qos=0)
    client.stop()

    away = [b"%s %d" % (kind, n) for n in range(2) for kind in (b"away", b"QoS 0")]
    ends = [b"end %d" % n for n in range(3)]
    assert sorted(forwarded) == sorted([b"before the first session", *away, *ends])


def test_urgent_message_that_overtook_is_stored_once_after_a_lost_link(
    ingress: Ingress, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored before those that came earlier, but acknowledged after them."""
    monkeypatch.setattr("gateway_daemon.gateway.incoming.FULL_BATCH", 2)
    _connect(ingress, monkeypatch)
    routine = [b"routine %d" % number for number in range(5)]
    for payload in routine:
        client.publish("/forward/1/2", payload)
    client.publish("/forward/1/2/pri5", b"urgent")
    wait_until(lambda: ingress._inbox._arrived.qsize() == 6)  # noqa: SLF001

    batch = ingress._inbox.next_batch(5.0) or []  # noqa: SLF001
    passed = ingress._inbox.passed  # noqa: SLF001
    ingress._process(batch)  # noqa: SLF001
    ingress._acknowledge(passed)  # noqa: SLF001
    first = [publication.incoming.payload for publication in batch]
    _break_link(ingress)
    # What is acknowledged on a dead connection arrives again.
    wait_until(lambda: ingress._connection._generation > 1 and ingress.is_up)  # noqa: SLF001
    threading.Thread(target=ingress.run, args=(no_heartbeat,), daemon=True).start()
    client.publish("/forward/1/2", b"last")
    wait_until(lambda: _stored(ingress) >= 7)

    assert first == [*routine[:2], b"urgent"]
    assert [each.incoming.payload for each in passed] == first[:2]
    stored = ingress._lanes._lanes[None].queue.lease(100)  # noqa: SLF001
    payloads = sorted(message.payload for message in stored)
    assert payloads == sorted([*routine, b"urgent", b"last"])


def test_full_inbox_leaves_publications_with_the_broker(
    ingress: Ingress, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``max_inflight_messages 0`` Mosquitto ignores the receive maximum."""
    limit_bytes = 5 * (PUBLICATION_BYTES + 100)
    monkeypatch.setattr("gateway_daemon.gateway.ingress.MAX_INBOX_BYTES", limit_bytes)
    _connect(ingress, monkeypatch)
    for _ in range(50):
        client.publish("/forward/1/2", b"." * 100)
    waiting = ingress._inbox._arrived.qsize()  # noqa: SLF001
    threading.Thread(target=ingress.run, args=(no_heartbeat,), daemon=True).start()
    wait_until(lambda: _stored(ingress) == 50)

    assert waiting <= 6


def test_message_without_an_id_waits_for_space_on_disk(
    broker: Broker, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is acknowledged once it is stored, after a lost link too.

    All come at once then, which a rate limit would reject.
    """
    with make_ingress(broker, tmp_path) as ingress:
        put = ingress._lanes.put  # noqa: SLF001
        _run_with_full_disk(ingress, monkeypatch)
        for number in range(30):
            client.publish("/forward/1/2", b"%d" % number)
        _wait_for_held(ingress, 30)
        ingress.checks = replace(ingress.checks, rate_limit=SenderRateLimit(0.1))
        _break_link(ingress)
        wait_until(lambda: ingress._connection._generation > 1 and ingress.is_up)  # noqa: SLF001
        _wait_for_held(ingress, 30, connection=2)
        ingress.checks = replace(ingress.checks, rate_limit=SenderRateLimit(None))
        monkeypatch.setattr(ingress._lanes, "put", put)  # noqa: SLF001
        wait_until(lambda: _stored(ingress) >= 30 and not ingress._withheld)  # noqa: SLF001
        stored = ingress._lanes._lanes[None].queue.lease(100)  # noqa: SLF001
        assert sorted(int(message.payload) for message in stored) == list(range(30))
        ingress.stop()
    with make_ingress(broker, tmp_path) as after:
        assert _run_once(after, client, b"end") == [b"end"]


def test_message_without_an_id_outlasts_a_gateway_with_a_full_disk(
    broker: Broker, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has it until another process of the gateway stores it."""
    with make_ingress(broker, tmp_path) as ingress:
        thread = _run_with_full_disk(ingress, monkeypatch)
        client.publish("/forward/1/2", b"plain")
        _wait_for_held(ingress, 1)
        ingress.stop()
        thread.join()
    with make_ingress(broker, tmp_path) as after:
        assert _run_once(after, client, b"end") == [b"plain", b"end"]


def _run_with_full_disk(
    ingress: Ingress, monkeypatch: pytest.MonkeyPatch
) -> threading.Thread:
    def refuse(*_args: object) -> None:
        raise QueueDiskFullError("queue.db")

    monkeypatch.setattr(ingress._lanes, "put", refuse)  # noqa: SLF001
    thread = threading.Thread(target=ingress.run, args=(no_heartbeat,), daemon=True)
    thread.start()
    wait_until(lambda: ingress.is_up)
    return thread


def _wait_for_held(ingress: Ingress, count: int, connection: int = 1) -> None:
    """Wait until messages of a connection are held, and no others."""

    def are_held() -> bool:
        held = list(ingress._retries.deliveries)  # noqa: SLF001
        return len(held) == count and {number for number, _ in held} == {connection}

    wait_until(are_held)


def _connect(ingress: Ingress, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect an ingress that does not run yet; `run` does not connect again."""
    ingress._connection.start()  # noqa: SLF001
    monkeypatch.setattr(ingress._connection, "start", lambda: None)  # noqa: SLF001
    wait_until(lambda: ingress.is_up)


def _break_link(ingress: Ingress) -> None:
    """Close the socket once the broker has read the acknowledgements."""
    paho = ingress._connection._client  # noqa: SLF001
    assert paho is not None
    token = ingress._connection.publish(Publication("after/acknowledgements", b""))  # noqa: SLF001
    wait_until(lambda: token not in paho._unacknowledged)  # noqa: SLF001
    sock: Any = paho.socket()
    sock.close()


def _run_once(ingress: Ingress, client: Client, last: bytes) -> list[bytes]:
    """Run until a last publication is stored; return all that was stored."""
    thread = threading.Thread(target=ingress.run, args=(no_heartbeat,), daemon=True)
    thread.start()
    wait_until(lambda: ingress.is_up)
    client.publish("/forward/1/2/0", last)
    lane = ingress._lanes._lanes[None].queue  # noqa: SLF001
    stored: list[bytes] = []
    while last not in stored:
        stored += [message.payload for message in lane.lease(100)]
        time.sleep(0.01)
    ingress.stop()
    thread.join()
    return stored


def _stored(ingress: Ingress) -> int:
    lanes = ingress._lanes.lane_status()  # noqa: SLF001
    return sum(depth.rows for depth in lanes[None].stats.depth.values())


def test_message_without_an_id_is_stored_once_beside_a_full_lane(
    ingress: Ingress, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch is for two brokers; the lane of the second takes nothing more."""
    brokers = [BrokerInfo("127.0.0.1", free_port()) for _ in range(2)]
    areas = zip(("/1", "/2"), brokers, strict=True)
    lanes = ingress._lanes  # noqa: SLF001
    lanes.apply_table(BrokerTable(1, tuple(BrokerEntry(*each) for each in areas)))
    queues = [lanes._lanes[each].queue for each in brokers]  # noqa: SLF001
    full = MessageDraft(5, "/2/0", lambda _id: bytes(999_000))
    queues[1].put([full])
    _connect(ingress, monkeypatch)
    for topic in ("/forward/1/0", "/forward/2/0", "/forward/1/1"):
        client.publish(topic, bytes(2000))
    wait_until(lambda: ingress._inbox._arrived.qsize() == 3)  # noqa: SLF001
    batch = ingress._inbox.next_batch(5.0) or []  # noqa: SLF001
    stored = ingress._process(batch)  # noqa: SLF001

    assert len(batch) == 3
    assert sorted(m.draft.topic for m in stored) == ["/1/0", "/1/1"]
    assert sorted(m.topic for m in queues[0].lease(10)) == ["/1/0", "/1/1"]


def test_share_of_a_second_lane_does_not_end_the_gateway(
    ingress: Ingress, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While the broker table changes, messages are stored in two lanes."""
    first, second = [BrokerInfo("127.0.0.1", free_port()) for _ in range(2)]
    lanes = ingress._lanes  # noqa: SLF001
    lanes.apply_table(BrokerTable(1, (BrokerEntry("/", first),)))
    queue = SqliteQueue(tmp_path / "q.db", "gw", "b", Budget(20_000, is_shared=True))
    monkeypatch.setattr(lanes, "_make_queue", lambda _broker: queue)
    lanes.publish_to_both(BrokerTable(2, (BrokerEntry("/", second),)))
    with suppress(QueueShareError):
        while True:
            queue.put([MessageDraft(5, "/1", lambda _id: bytes(500))])
    _connect(ingress, monkeypatch)
    client.publish("/forward/1/0/pri5", bytes(500))
    batch = ingress._inbox.next_batch(5.0) or []  # noqa: SLF001
    stored = ingress._process(batch)  # noqa: SLF001

    assert len(stored) == len(batch) == 1
    assert [m.topic for m in lanes._lanes[first].queue.lease(10)] == ["/1/0"]  # noqa: SLF001


def test_largest_numbers_of_a_node_do_not_end_the_gateway(
    ingress: Ingress, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next sequence number, and the time of birth, are too large for SQLite."""
    queue = SqliteQueue(tmp_path / "q.db", "gw", "b", 10**6)
    monkeypatch.setattr(ingress._lanes, "_make_queue", lambda _broker: queue)  # noqa: SLF001
    broker = BrokerInfo("127.0.0.1", free_port())
    ingress._lanes.apply_table(BrokerTable(1, (BrokerEntry("/", broker),)))  # noqa: SLF001
    reading = Reading("wire", None, True)
    pack = encode_cbor(Pack(MessageId("n", "b", MAX_SEQ), 5, 1.7e9, (reading,)))
    aged = encode_batch([BatchItem(b"aged", 2**64 - 1)])
    _connect(ingress, monkeypatch)
    client.publish("/forward/1/0", pack)
    client.publish("/forward/1/0", aged, content=BATCH_CONTENT)
    wait_until(lambda: ingress._inbox._arrived.qsize() == 2)  # noqa: SLF001
    batch = ingress._inbox.next_batch(5.0) or []  # noqa: SLF001
    for publication in batch:
        ingress._process([publication])  # noqa: SLF001

    assert {message.payload for message in queue.lease(10)} == {pack, b"aged"}


def test_fragments_on_many_topics_do_not_displace_those_of_another_node(
    ingress: Ingress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher's name counts: a coarse cell has any number of topics."""
    queue = MemoryQueue("gw", "b", 10**6, time.monotonic)
    monkeypatch.setattr(ingress._lanes, "_make_queue", lambda _broker: queue)  # noqa: SLF001
    broker = BrokerInfo("127.0.0.1", free_port())
    ingress._lanes.apply_table(BrokerTable(1, (BrokerEntry("/", broker),)))  # noqa: SLF001

    def arrive(topic: str, fragment: Fragment) -> None:
        message = IncomingMessage(
            topic, fragment.encode(), 1, False, None, None, "n:b:1", (1, 1),
            FRAGMENT_CONTENT,
        )  # fmt: skip
        ingress._process([ReceivedPublication.parse(message)])  # noqa: SLF001

    first, last = split_message("n:b:1", bytes(200_000), 100_000)
    arrive("/from/n/1/0", first)
    for number in range(40):
        hostile = Fragment(f"evil:b:{number}", 0, 2, 1, bytes(50_000))
        arrive(f"/from/evil/1/{number}", hostile)
    arrive("/from/n/1/0", last)

    assert [message.payload for message in queue.lease(10)] == [bytes(200_000)]


def test_lost_session_clears_the_marks_on_disk(
    ingress: Ingress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash before the next put must not bring the marks back.

    The new session uses the packet ids again, and an equal message would be lost.
    """
    message = IncomingMessage(
        "/forward/1/2", b"on", 1, False, None, None, None, (1, 1), is_duplicate=True
    )
    stored = RedeliveryFilter().to_state([make_mark(message)])
    queue = SqliteQueue(tmp_path / "q.db", "gw", "b", Budget(20_000))
    queue.put([MessageDraft(5, "/1", lambda _id: b"x")], {REDELIVERY_STATE_KEY: stored})
    lanes = ingress._lanes  # noqa: SLF001
    monkeypatch.setattr(lanes, "_make_queue", lambda _broker: queue)
    info = BrokerInfo("127.0.0.1", free_port())
    lanes.apply_table(BrokerTable(1, (BrokerEntry("/", info),)))
    running = threading.Thread(target=ingress.run, args=(no_heartbeat,))
    running.start()
    wait_until(lambda: ingress.is_up)
    with closing(sqlite3.connect(tmp_path / "q.db")) as file:
        ((on_disk,),) = file.execute(
            "SELECT value FROM state WHERE name = ?", (REDELIVERY_STATE_KEY,)
        )
    ingress.stop()
    running.join()
    before, after = RedeliveryFilter(), RedeliveryFilter()
    before.load([stored])
    after.load([stored, on_disk])

    assert before.is_stored(message)
    assert not after.is_stored(message)


def test_redelivered_message_that_was_not_stored_is_stored_once(
    ingress: Ingress,
) -> None:
    """Beside its own first delivery, from before a lost connection, or without it."""
    one, other = (
        IncomingMessage(
            "/forward/1/2", b"on", 1, False, None, None, None, at, is_duplicate=True
        )
        for at in ((1, 1), (1, 2))
    )
    arrived = (one._replace(is_duplicate=False), one, other)
    ingress._process(list(map(ReceivedPublication.parse, arrived)))  # noqa: SLF001

    assert _stored(ingress) == 2


def test_acknowledgement_that_a_restarted_broker_did_not_read(
    make_broker: Callable[..., Broker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A persistent Mosquitto delivers the message again; it is stored once."""
    place = f"persistence_location {tmp_path}/"
    broker = make_broker("persistence true", place, "user root")
    with make_ingress(broker, tmp_path) as ingress:
        client = Client(broker)
        _connect(ingress, monkeypatch)
        client.publish("/forward/1/2", b"once")
        wait_until(lambda: ingress._inbox._arrived.qsize() == 1)  # noqa: SLF001
        batch = ingress._inbox.next_batch(5.0) or []  # noqa: SLF001
        saved_file = tmp_path / "mosquitto.db"
        broker.signal(signal.SIGUSR1)  # it saves
        wait_until(lambda: saved_file.exists() and b"once" in saved_file.read_bytes())
        broker.signal(signal.SIGSTOP)
        ingress._process(batch)  # noqa: SLF001
        ingress._acknowledge(ingress._inbox.passed)  # noqa: SLF001
        broker.kill()
        broker.start()
        wait_until(lambda: ingress._inbox._arrived.qsize() == 1)  # noqa: SLF001
        again = ingress._inbox.next_batch(5.0) or []  # noqa: SLF001
        ingress._process(again)  # noqa: SLF001

        assert [each.incoming.is_duplicate for each in again] == [True]
        assert _stored(ingress) == 1
        client.stop()

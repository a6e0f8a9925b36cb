"""Egress when the broker table changes, with real uplinks to unreachable brokers."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGSTOP

import pytest
from conftest import Broker, free_port, wait_until

from edge_agent.queue.base import (
    COMMIT_PUTS_DEFER_ACKS,
    MessageDraft,
    Queue,
)
from edge_agent.queue.eviction import Budget
from edge_agent.queue.memory import MemoryQueue
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.link_rate import RateLimiter, RatePeriod
from edge_agent.uplink.offer_memory import KnownStores
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.app import _egress, _GatewayLinks
from gateway_daemon.config import read_gateway_settings
from gateway_daemon.gateway.egress import Egress, MakeQueue
from gateway_daemon.gateway.manager_link import CpuMeter, LoadReporter, TopicMeter
from service_runtime.tls import TlsFiles
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import CustodyOffer
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable, LoadReport
from spatial_mqtt.senml import MessageId

TOPIC = "/3/1/2"

LoadOf = Callable[[MemoryQueue, RateLimiter], tuple[Egress, Callable[[], float]]]


class Clock:
    """A clock that the test advances, in seconds."""

    now_s = 0.0

    def __call__(self) -> float:
        """Current time."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """Clock of the queues."""
    return Clock()


@pytest.fixture
def queues() -> dict[BrokerInfo | None, MemoryQueue]:
    """Queues by broker."""
    return {}


@pytest.fixture
def make_egress() -> Iterator[Callable[..., Egress]]:
    """Makes the egress of a gateway before its first table."""
    made: list[Egress] = []

    def make(
        make_queue: MakeQueue,
        limiter: RateLimiter | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        stores: KnownStores | None = None,
    ) -> Egress:
        def make_uplink(_broker: BrokerInfo, queue: Queue) -> Uplink:
            profile = SenderProfile("gw", is_relay=True, stores=stores)
            limit = limiter or RateLimiter()
            return Uplink(queue, profile, Connection, limit, time.monotonic)

        watchdog = LoopWatchdog(clock)
        made.append(Egress(make_queue, make_uplink, tls=False, watchdog=watchdog))
        return made[-1]

    yield make
    for egress in made:
        egress.close()


@pytest.fixture
def egress(
    make_egress: Callable[..., Egress],
    clock: Clock,
    queues: dict[BrokerInfo | None, MemoryQueue],
) -> Egress:
    """The egress of a gateway before its first table, with queues in memory."""
    return make_egress(
        lambda broker: queues.setdefault(broker, MemoryQueue("gw", "b", 10**6, clock))
    )


def test_message_moved_to_another_broker_keeps_its_age(
    egress: Egress, clock: Clock, queues: dict[BrokerInfo | None, MemoryQueue]
) -> None:
    """The age at arrival and the time spent waiting for a broker add up."""
    egress.put([MessageDraft(3, TOPIC, lambda _id: b"x", age_s=500.0)])
    clock.now_s += 100.0
    broker = BrokerInfo("127.0.0.1", free_port())
    egress.apply_table(BrokerTable(1, (BrokerEntry("/3", broker),)))

    (moved,) = queues[broker].lease()
    assert queues[broker].age_s(moved) == pytest.approx(600.0)
    assert not queues[None].lease()


def test_area_moved_from_an_unreachable_broker_takes_its_messages_along(
    egress: Egress, queues: dict[BrokerInfo | None, MemoryQueue]
) -> None:
    """Messages of its other areas stay in its queue."""
    dead, alive = (BrokerInfo("127.0.0.1", free_port()) for _ in range(2))
    egress.apply_table(
        BrokerTable(1, (BrokerEntry("/3/1", dead), BrokerEntry("/3/2", dead)))
    )
    egress.put([
        MessageDraft(p, f"/3/{p % 2 + 1}/0", lambda _id: b"x") for p in (5, 4, 3, 2)
    ])
    egress.apply_table(
        BrokerTable(2, (BrokerEntry("/3/1", dead), BrokerEntry("/3/2", alive)))
    )

    assert [m.priority for m in queues[alive].lease(9)] == [5, 3]
    assert [m.priority for m in queues[dead].lease(9)] == [4, 2]


def test_area_moved_from_a_broker_that_hangs_takes_its_messages_along(
    egress: Egress,
    queues: dict[BrokerInfo | None, MemoryQueue],
    make_broker: Callable[..., Broker],
) -> None:
    """Also what is in flight, although the broker restarts between two ticks.

    It receives only messages of its other areas then: nobody else subscribes there.
    """
    broker = make_broker()
    hung = BrokerInfo(broker.endpoint.host, broker.endpoint.port)
    new = BrokerInfo("127.0.0.1", free_port())
    root = BrokerEntry("/", hung)
    egress.apply_table(BrokerTable(1, (root,)))
    wait_until(lambda: egress.lane_status()[hung].is_up)
    broker.signal(SIGSTOP)
    ids = [MessageId("n1", "b", seq) for seq in range(300)]
    egress.put([MessageDraft(2, TOPIC, lambda _id: bytes(1000), each) for each in ids])
    egress.put([MessageDraft(3, "/4/1", lambda _id: b"x")])
    wait_until(lambda: queues[hung].stats().leased)
    egress.apply_table(BrokerTable(2, (root, BrokerEntry("/3", new))))
    assert not queues[new].ages_s()

    for _ in range(3):
        egress.move_leftovers()
        time.sleep(0.2)
    assert egress.lane_status()[hung].is_up
    assert queues[new].stats().duplicates == 0, "moved again"
    broker.kill()
    broker.start()
    wait_until(lambda: not queues[hung].ages_s())
    egress.move_leftovers()

    assert sorted(m.id for m in queues[new].lease(999)) == ids


def test_message_held_for_a_store_is_no_load_and_moves_with_its_area(
    make_egress: Callable[..., Egress], make_broker: Callable[..., Broker]
) -> None:
    """Its broker has no store and no subscriber; it was sent there all the same."""
    queues: dict[BrokerInfo | None, MemoryQueue] = {}
    stores = KnownStores(MemoryQueue("gw", "b", 10**6), time.monotonic)
    stores.show("elsewhere:1883", [CustodyOffer("ingest-0", ("/3/#",))])
    endpoint = make_broker().endpoint
    plain = BrokerInfo(endpoint.host, endpoint.port)
    new = BrokerInfo("127.0.0.1", free_port())

    def make_queue(broker: BrokerInfo | None) -> MemoryQueue:
        queue = MemoryQueue("gw", "b", 10**6, time.monotonic)
        return queues.setdefault(broker, queue)

    egress = make_egress(make_queue, stores=stores)
    root = BrokerEntry("/", plain)
    egress.apply_table(BrokerTable(1, (root,)))
    egress.put([MessageDraft(5, TOPIC, lambda _id: b"x")])
    words = "gives no receipts, 1 held until a store does"
    wait_until(lambda: words in egress.summaries(time.monotonic())[1])
    status = egress.lane_status()[plain]
    assert (status.waits_s, list(status.ages_s)) == ({5: 0.0}, [5])
    egress.apply_table(BrokerTable(2, (root, BrokerEntry("/3", new))))
    egress.move_leftovers()

    assert [m.topic for m in queues[new].lease(9)] == [TOPIC]
    assert " held " not in egress.summaries(time.monotonic())[1]


def test_message_without_broker_waits_for_a_table_that_covers_its_topic(
    egress: Egress, queues: dict[BrokerInfo | None, MemoryQueue]
) -> None:
    """Tables without its area leave it in the queue."""
    broker = BrokerInfo("127.0.0.1", free_port())
    egress.put([MessageDraft(5, TOPIC, lambda _id: b"x")])
    egress.apply_table(BrokerTable(1, (BrokerEntry("/4", broker),)))
    egress.apply_table(
        BrokerTable(2, (BrokerEntry("/4", broker), BrokerEntry("/3", broker)))
    )

    assert [m.topic for m in queues[broker].lease(9)] == [TOPIC]
    assert not queues[None].lease()


def test_urgent_messages_move_although_others_are_refused(
    tmp_path: Path, make_egress: Callable[..., Egress]
) -> None:
    """The other lane is full of the readings of one node; real files."""
    budget = Budget(100_000, is_shared=True)

    def make_queue(broker: BrokerInfo | None) -> Queue:
        return SqliteQueue(tmp_path / f"{broker and broker.port}.db", "gw", "b", budget)

    egress = make_egress(make_queue)
    old, new = (BrokerInfo("127.0.0.1", free_port()) for _ in range(2))
    seq = itertools.count(1)

    def put(count: int, priority: int, topic: str, node: str) -> None:
        egress.put([
            MessageDraft(
                priority,
                topic,
                lambda _id: bytes(1000),
                MessageId(node, "b", next(seq)),
            )
            for _ in range(count)
        ])

    egress.apply_table(BrokerTable(1, (BrokerEntry("/3", old), BrokerEntry("/4", new))))
    put(60, 1, "/4/1", "busy")
    put(40, 2, "/3/1", "busy")
    put(3, 4, "/3/1", "quiet")
    egress.apply_table(BrokerTable(2, (BrokerEntry("/3", new), BrokerEntry("/4", new))))
    depth = {b: s.stats.depth for b, s in egress.lane_status().items()}

    assert (depth[old][4].rows, depth[new][4].rows) == (0, 3)
    assert depth[old][2].rows == 40


def test_alarm_is_stored_while_a_backlog_moves(
    tmp_path: Path, make_egress: Callable[..., Egress]
) -> None:
    """Real files: the backlog of a day takes minutes."""

    def make_queue(broker: BrokerInfo | None) -> Queue:
        return SqliteQueue(tmp_path / f"{broker and broker.port}.db", "gw", "b", 10**8)

    egress = make_egress(make_queue)
    old, new = (BrokerInfo("127.0.0.1", free_port()) for _ in range(2))
    tables = [BrokerTable(n, (BrokerEntry("/", b),)) for n, b in enumerate((old, new))]
    egress.apply_table(tables[0])
    egress.put([MessageDraft(1, TOPIC, lambda _id: bytes(200))] * 8000)
    change = threading.Thread(target=egress.apply_table, args=[tables[1]])

    def moved(priority: int = 1) -> int:
        status = egress.lane_status().get(new)
        return 0 if status is None else status.stats.depth[priority].rows

    change.start()
    wait_until(moved)
    egress.put([MessageDraft(5, TOPIC, lambda _id: b"alarm")])
    assert moved(5) == 1
    assert moved() < 8000
    change.join()
    assert moved() == 8000


def test_message_comes_back_with_its_area(
    tmp_path: Path, make_egress: Callable[..., Egress]
) -> None:
    """To its first broker, and to no broker; real files, which remember its id."""

    def make_queue(broker: BrokerInfo | None) -> Queue:
        path, at = tmp_path / f"{broker and broker.port}.db", COMMIT_PUTS_DEFER_ACKS
        return SqliteQueue(path, "gw", "b", 10**7, durability=at)

    egress = make_egress(make_queue)
    first, second = (BrokerInfo("127.0.0.1", free_port()) for _ in range(2))
    tables = [(BrokerEntry("/3", broker),) for broker in (first, second)]
    id_ = MessageId("node", "boot", 1)
    drafts = [
        MessageDraft(p, TOPIC, lambda _id: b"x", i) for p, i in ((5, id_), (4, None))
    ]
    egress.put(drafts)
    for version, entries in enumerate([*tables, *tables, (), *tables, ()]):
        egress.apply_table(BrokerTable(version, entries))
        place = entries[0].broker_info if entries else None
        status = egress.lane_status().items()
        rows = {b: [s.stats.depth[p].rows for p in (5, 4)] for b, s in status}
        assert {b: each for b, each in rows.items() if any(each)} == {place: [1, 1]}

    assert egress.put(drafts[:1]) == 0


@pytest.mark.attack(
    "an announced broker has a host that is no name",
    "every gateway ended, or wrote outside its folder",
)
def test_broker_with_an_impossible_host_gets_no_lane(
    tmp_path: Path, make_egress: Callable[..., Egress]
) -> None:
    """A Manager of an earlier version lists it; the other brokers are served."""
    folder = tmp_path / "data" / "lanes"
    folder.mkdir(parents=True)

    def make_queue(broker: BrokerInfo | None) -> Queue:
        name = f"{broker.host}-{broker.port}" if broker else "nowhere"
        at = COMMIT_PUTS_DEFER_ACKS
        return SqliteQueue(folder / f"{name}.db", "gw", "b", 10**7, durability=at)

    egress = make_egress(make_queue)
    good, outside, nul = (BrokerInfo(h, 1) for h in ("localhost", "../x", "a\0b"))
    entries = zip(("/3", "/3/1", "/3/2"), (good, outside, nul), strict=True)
    egress.apply_table(BrokerTable(1, tuple(BrokerEntry(*each) for each in entries)))
    for area in ("/3/3", "/3/1", "/3/2"):
        egress.put([MessageDraft(3, f"{area}/0", lambda _id: b"x")])

    rows = {b: s.stats.depth[3].rows for b, s in egress.lane_status().items()}
    assert rows == {good: 1, None: 2}
    assert {file.parent for file in tmp_path.rglob("*.db")} == {folder}


def test_message_for_both_brokers_has_one_id(
    egress: Egress, queues: dict[BrokerInfo | None, MemoryQueue]
) -> None:
    """Subscribers of both drop the second one; the next table ends it."""
    old, new = (BrokerInfo("127.0.0.1", free_port()) for _ in range(2))
    root = BrokerEntry("/", old)
    table = BrokerTable(2, (root, BrokerEntry("/3", new)))
    egress.apply_table(BrokerTable(1, (root,)))
    egress.publish_to_both(table)
    assert egress.put([MessageDraft(p, TOPIC, lambda _id: b"x") for p in (5, 4)]) == 2
    egress.put([MessageDraft(3, "/4/1", lambda _id: b"x")])
    twice = [[m.id for m in queues[broker].lease(9)] for broker in (old, new)]
    assert twice[0][:2] == twice[1]
    assert len(twice[0]) == 3

    egress.apply_table(table)
    egress.put([MessageDraft(2, TOPIC, lambda _id: b"x")])
    assert [m.priority for m in queues[new].lease(9)] == [2]


@pytest.fixture
def load_s(make_egress: Callable[..., Egress], clock: Clock) -> LoadOf:
    """The time that a load report gives for the lane of a queue, to be called again."""

    def start(
        queue: MemoryQueue, limiter: RateLimiter
    ) -> tuple[Egress, Callable[[], float]]:
        broker = BrokerInfo("127.0.0.1", free_port())
        unrouted = MemoryQueue("gw", "b", 10**6, clock)
        egress = make_egress(lambda each: queue if each else unrouted, limiter, clock)
        egress.apply_table(BrokerTable(1, (BrokerEntry("/", broker),)))
        reports: list[LoadReport] = []
        meter, cpu = TopicMeter(clock), CpuMeter()
        reporter = LoadReporter(broker, egress, meter, cpu, [reports.append])

        def age_s() -> float:
            reporter.publish_report()
            return reports[-1].lanes[0].age_s

        return egress, age_s

    return start


def test_load_of_a_lane_is_the_time_in_it_and_not_the_age_of_its_messages(
    load_s: LoadOf, clock: Clock
) -> None:
    """A node's backlog of two hours that passes at once is no load."""
    late = MessageDraft(2, TOPIC, lambda _id: b"x", age_s=7200.0)
    queue = MemoryQueue("gw", "b", 10**6, clock)
    queue.put([late, late])
    clock.now_s += 50.0
    egress, age_s = load_s(queue, RateLimiter())
    clock.now_s += 7.0
    assert age_s() == 7.0, "what an earlier process left counts from the start"

    for _ in range(60):
        queue.ack([message.seq for message in queue.lease(9)])
        egress.put([late, late])
        clock.now_s += 1.0
    assert age_s() == 1.0
    for _ in range(400):
        egress.put([late])
        clock.now_s += 1.0
    assert age_s() == 401.0
    queue.ack([message.seq for message in queue.lease(102)])
    assert age_s() == pytest.approx(300.0, rel=0.02)


def test_messages_that_must_not_be_sent_now_are_no_load(
    load_s: LoadOf, clock: Clock
) -> None:
    """Another broker would not send them either."""
    queue = MemoryQueue("gw", "b", 10**6, clock)
    closed = RateLimiter(None, [RatePeriod(0, 0, 0.0)], 4, lambda: 0)
    egress, age_s = load_s(queue, closed)
    egress.put([MessageDraft(2, TOPIC, lambda _id: b"x")])
    clock.now_s += 100.0
    assert age_s() == 0.0

    egress.put([MessageDraft(4, TOPIC, lambda _id: b"x")])
    clock.now_s += 3.0
    assert age_s() == 3.0


@pytest.mark.broker
def test_lanes_share_the_rate_of_the_link(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Urgent messages of one lane pass at once, and delay the others of all lanes."""
    brokers = [make_broker().endpoint for _ in range(2)]
    first, second = (BrokerInfo(each.host, each.port) for each in brokers)
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[gateway]\nid = "gw"\nbroker = "mqtt://{first}"\n'
        f'managers = ["mqtt://{first}"]\ndata = "{tmp_path}"\n'
        "[uplink]\nrate_bytes_per_s = 100\n"
    )
    links = _GatewayLinks(TlsFiles(), LoopWatchdog(time.monotonic), "gw")
    egress = _egress(
        read_gateway_settings(file),
        tmp_path,
        links,
        TopicMeter(time.monotonic),
        None,
        managers=(),
    )

    def rows(broker: BrokerInfo, priority: int) -> int:
        return egress.lane_status()[broker].stats.depth[priority].rows

    egress.apply_table(
        BrokerTable(1, (BrokerEntry("/1", first), BrokerEntry("/2", second)))
    )
    for broker in (first, second):
        wait_until(lambda broker=broker: egress.lane_status()[broker].is_up)
    egress.put([MessageDraft(5, "/1/0", lambda _id: bytes(2000)) for _ in range(10)])
    wait_until(lambda: rows(first, 5) == 0)
    egress.put([MessageDraft(2, "/2/0", lambda _id: b"x")])
    for _ in range(2):
        egress.put([MessageDraft(5, "/2/0", lambda _id: b"x")])
        wait_until(lambda: rows(second, 5) == 0)

    assert rows(second, 2) == 1
    egress.close()

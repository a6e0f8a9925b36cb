"""What one publication carries, decided without a network."""

import random

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits, InFlight
from edge_agent.uplink.publications import (
    CHUNK_BYTES,
    MAX_PARCEL_BYTES,
    OutgoingPublication,
    PublicationBuilder,
    SenderProfile,
)
from spatial_mqtt.batching import Fragment, decode_batch
from spatial_mqtt.custody import CustodyOffer
from spatial_mqtt.priority import Delivery, QosPolicy
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT
from spatial_mqtt.transport import Publication

READER = CustodyOffer("gw", ("/forward/#",), (BATCH_CONTENT, FRAGMENT_CONTENT))


class Bench:
    """A loader on a queue in memory, and what its receiver reads."""

    def __init__(
        self, *offers: CustodyOffer, sender: SenderProfile | None = None
    ) -> None:
        sender = sender or SenderProfile("n")
        self.queue = MemoryQueue("n", "b", 10_000_000)
        self.flight = InFlight(FlightLimits(), sender.custody)
        self.flight.on_up(0.0, 1000, offers)
        self.loader = PublicationBuilder(self.queue, sender, self.flight)

    def put(self, priority: int, payload: bytes, count: int = 1) -> None:
        topic = f"/forward/1/2/pri{priority}"
        self.queue.put([MessageDraft(priority, topic, lambda _: payload)] * count)

    def load(self) -> OutgoingPublication | None:
        priority = self.loader.next_priority(0.0)
        return None if priority is None else self.loader.build_next(priority)

    def loads(self) -> list[OutgoingPublication]:
        return list(iter(self.load, None))

    def free(self) -> int:
        return len(self.queue.lease(10_000))


def payloads(load: OutgoingPublication) -> list[bytes]:
    return [item.payload for item in decode_batch(load.publication.payload)]


def test_name_is_put_before_the_place_when_it_is_sent() -> None:
    """What an older version queued goes out under its name, too."""
    bench = Bench(READER, sender=SenderProfile("n", publisher_id="n"))
    bench.put(1, b"reading " * 20, count=2)
    bench.put(5, b"alarm")
    alarm, parcel = bench.loads()

    assert alarm.publication.topic == "/from/n/1/2/pri5"
    assert parcel.publication.topic == "/from/n/1/2/pri1"
    assert alarm.messages[0].topic == "/forward/1/2/pri5"


def test_routine_messages_share_a_publication() -> None:
    """Ten for the price of one, to who reads them."""
    bench = Bench(READER)
    bench.put(1, b"reading " * 20, count=10)
    (load,) = bench.loads()

    assert load.publication.content == BATCH_CONTENT
    assert payloads(load) == [b"reading " * 20] * 10
    assert len(load.messages) == 10


def test_parcel_fits_a_segment_and_the_rest_stays() -> None:
    """What does not shrink goes in several."""
    bench = Bench(READER)
    noise = [bytes((n * k * k + k) % 251 for k in range(250)) for n in range(1, 31)]
    for each in noise:
        bench.put(2, each)
    loads = bench.loads()

    assert all(len(load.publication.payload) <= MAX_PARCEL_BYTES for load in loads)
    assert [p for load in loads for p in payloads(load)] == noise
    assert len(loads) > 3


def test_plain_receiver_gets_plain_messages() -> None:
    """A subscriber cannot open a parcel."""
    for offers in (
        (),
        (CustodyOffer("gw", ("/forward/#",)),),
        (CustodyOffer("x", ("/1/#",), (BATCH_CONTENT,)),),
    ):
        bench = Bench(*offers)
        bench.put(1, b"reading", count=3)

        assert [load.publication.content for load in bench.loads()] == [None] * 3


def test_urgent_messages_travel_alone() -> None:
    """A warning must be readable by itself, and first."""
    bench = Bench(READER)
    bench.put(5, b"warning", count=2)

    assert [load.publication.payload for load in bench.loads()] == [b"warning"] * 2


def test_large_message_is_passed_between_its_pieces() -> None:
    """One photograph must not block an alarm."""
    bench = Bench(READER)
    photo = random.Random(1).randbytes(10_240)
    bench.put(3, photo)
    before = [bench.load() for _ in range(2)]
    bench.put(5, b"warning")
    bench.put(1, b"routine")
    rest = bench.loads()

    assert rest[0].publication.payload == b"warning"
    assert rest[-1].publication.payload == b"routine"
    pieces = [
        load
        for load in (*before, *rest)
        if load.publication.content == FRAGMENT_CONTENT
    ]
    chunks = [Fragment.decode(load.publication.payload) for load in pieces]
    assert b"".join(chunk.data for chunk in chunks) == photo
    assert all(len(chunk.data) <= CHUNK_BYTES for chunk in chunks)
    assert [len(load.messages) for load in pieces] == [0] * (len(pieces) - 1) + [1]


def test_large_message_begins_again_on_another_link() -> None:
    """Pieces on a link that is gone may not have arrived."""
    bench = Bench(READER)
    bench.put(3, random.Random(1).randbytes(5000))
    bench.load()
    bench.loader.release_large()
    first = bench.load()

    assert first is not None
    assert Fragment.decode(first.publication.payload).number == 0


def test_large_message_goes_whole_where_nobody_joins() -> None:
    """A plain broker's subscribers get what was published."""
    bench = Bench()
    bench.put(3, bytes(5000))
    (load,) = bench.loads()

    assert load.publication == Publication("/forward/1/2/pri3", bytes(5000))


def test_what_was_not_handed_over_goes_back() -> None:
    """A link that broke in a burst costs nothing."""
    bench = Bench(READER)
    bench.put(1, b"reading", count=5)
    bench.put(5, b"warning")
    bench.put(4, bytes(5000))
    loads = [bench.load() for _ in range(2)]
    bench.loader.release([load for load in loads if load])

    assert bench.free() == 7


def test_each_priority_has_its_qos() -> None:
    """The operator's table reaches the wire."""
    policy = QosPolicy({1: Delivery(0), 5: Delivery(2)})
    bench = Bench(sender=SenderProfile("n", qos_policy=policy))
    for priority in (1, 3, 5):
        bench.put(priority, b"x")

    assert [load.publication.qos for load in bench.loads()] == [2, 1, 0]


def test_relay_names_itself_only_where_it_is_answered() -> None:
    """Names are bytes; a plain broker needs none."""
    relay = SenderProfile("gw1", is_relay=True)
    bench = Bench(CustodyOffer("ingest", ("/forward/#",)), sender=relay)
    bench.put(3, b"x")
    (named,) = bench.loads()
    assert named.publication.response_topic == "/custody/gw1"
    assert named.publication.priority == 3

    plain = Bench(
        sender=SenderProfile("gw1", is_relay=True, custody=CustodyMode.PUBACK)
    )
    plain.flight.custody = CustodyMode.PUBACK
    plain.put(3, b"x")
    (bare,) = plain.loads()

    assert bare.publication == Publication("/forward/1/2/pri3", b"x")


def test_messages_that_travel_alone_are_taken_together() -> None:
    """Towards who reads no parcels: one each, of any topic, in their order."""
    bench = Bench()
    bench.queue.put([
        MessageDraft(1, f"/1/{number}", lambda _, n=number: b"%d" % n)
        for number in range(5)
    ])

    loads = bench.loader.build_burst(1, 3, 1000)

    assert [load.publication.topic for load in loads] == ["/1/0", "/1/1", "/1/2"]
    assert [load.publication.payload for load in loads] == [b"0", b"1", b"2"]
    assert bench.free() == 2


def test_together_they_are_no_larger_than_asked() -> None:
    """What does not fit stays; the first always goes."""
    bench = Bench()
    bench.put(4, b"x" * 100, count=4)

    assert len(bench.loader.build_burst(4, 10, 250)) == 2
    assert len(bench.loader.build_burst(4, 10, 50)) == 1
    assert bench.free() == 1


def test_to_who_reads_parcels_one_load_is_taken() -> None:
    """It carries several messages itself."""
    bench = Bench(READER)
    bench.put(1, b"reading " * 20, count=10)

    (load,) = bench.loader.build_burst(1, 10, 8192)

    assert len(load.messages) == 10


def named(  # noqa: ANN201
    *offers: CustodyOffer,
    custody: CustodyMode = CustodyMode.AUTO,
    names_all: bool = False,
):
    """What a relay says beside a nameless message of its own."""
    sender = SenderProfile(
        "n", is_relay=True, custody=custody, always_sends_ids=names_all
    )
    bench = Bench(*offers, sender=sender)
    bench.put(4, b"plain")
    (load,) = bench.loader.build_burst(4, 10, 1000)
    told = load.publication
    return told.message_id is not None, told.priority, told.response_topic


def test_a_relay_names_messages_for_who_passes_them_on() -> None:
    """An offer without filters: no receipts, but ids and priorities are wanted."""
    assert named(CustodyOffer("gw-2", ()), custody=CustodyMode.PUBACK) == (
        True,
        4,
        None,
    )


def test_a_relay_asks_for_receipts_where_they_are_given() -> None:
    """Then it says where to, too."""
    assert named(CustodyOffer("store", ("#",))) == (True, 4, "/custody/n")


def test_a_relay_says_nothing_to_who_does_not_listen() -> None:
    """Each byte costs on a slow link."""
    assert named(custody=CustodyMode.PUBACK) == (False, None, None)


def test_on_its_own_machine_a_relay_names_everything() -> None:
    """Its clients may hear a message again after a crash, and know it by its id."""
    assert named(custody=CustodyMode.PUBACK, names_all=True) == (True, 4, None)

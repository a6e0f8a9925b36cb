"""Contents of a publication, without a network."""

import random

import pytest

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits, InFlight
from edge_agent.uplink.scheduler import (
    CHUNK_BYTES,
    MAX_PARCEL_BYTES,
    OutgoingPublication,
    PublicationBuilder,
    SenderProfile,
)
from spatial_mqtt.batching import Fragment, decode_batch
from spatial_mqtt.custody import COMPACT_FORM, CustodyOffer, encode_correlation
from spatial_mqtt.priority import Delivery, QosPolicy
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT
from spatial_mqtt.transport import Publication

BATCH_RECEIVER = CustodyOffer("gw", ("/forward/#",), (BATCH_CONTENT, FRAGMENT_CONTENT))


class BuilderHarness:
    """A publication builder on a queue in memory."""

    def __init__(
        self, *offers: CustodyOffer, sender: SenderProfile | None = None
    ) -> None:
        sender = sender or SenderProfile("n")
        self.queue = MemoryQueue("n", "0123abcd", 10_000_000)
        self.in_flight = InFlight(FlightLimits(), sender.custody)
        self.in_flight.on_up(0.0, 1000, offers)
        self.builder = PublicationBuilder(self.queue, sender, self.in_flight)

    def put(self, priority: int, payload: bytes, count: int = 1) -> None:
        topic = f"/forward/1/2/pri{priority}"
        self.queue.put([MessageDraft(priority, topic, lambda _: payload)] * count)

    def build(self) -> OutgoingPublication | None:
        priority = self.builder.next_priority(0.0, 1)
        return None if priority is None else self.builder.build_next(priority)

    def build_next_content(self) -> str | None:
        built = self.build()
        return built and built.publication.content

    def build_all(self) -> list[OutgoingPublication]:
        return list(iter(self.build, None))

    def free(self) -> int:
        return len(self.queue.lease(10_000))


def payloads(outgoing: OutgoingPublication) -> list[bytes]:
    return [item.payload for item in decode_batch(outgoing.publication.payload)]


def test_publisher_id_is_added_to_the_topic_when_sent() -> None:
    """Messages queued by an older version get the publisher id too."""
    harness = BuilderHarness(
        BATCH_RECEIVER, sender=SenderProfile("n", publisher_id="n")
    )
    harness.put(1, b"reading " * 20, count=2)
    harness.put(5, b"alarm")
    alarm, batch = harness.build_all()

    assert alarm.publication.topic == "/from/n/1/2/pri5"
    assert batch.publication.topic == "/from/n/1/2/pri1"
    assert alarm.messages[0].topic == "/forward/1/2/pri5"


def of_renamed_node(priority: int, size: int) -> MessageDraft:
    payload = random.Random(size).randbytes(size)
    topic = f"/forward/1/2/pri{priority}"
    return MessageDraft(priority, topic, lambda _: payload, MessageId("old", "b", size))


def test_receipts_of_another_id_go_to_the_sender() -> None:
    """After a change of `node.id` they went to the old one, and all was repeated."""
    harness = BuilderHarness(BATCH_RECEIVER)
    harness.queue.put([of_renamed_node(5, 10), of_renamed_node(3, 3000)])
    harness.put(5, b"alarm")
    harness.put(1, b"reading " * 20)
    harness.queue.put([of_renamed_node(1, 20)])
    topics = [each.publication.response_topic for each in harness.build_all()]

    assert topics == ["/custody/n", None, *["/custody/n"] * 4]


def test_messages_of_another_node_are_not_sent_with_a_certificate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A gateway refuses them; they were repeated every 15 s for ever."""
    harness = BuilderHarness(
        BATCH_RECEIVER, sender=SenderProfile("n", publisher_id="n")
    )
    harness.queue.put([of_renamed_node(1, size) for size in range(10, 110)])
    harness.queue.put([of_renamed_node(5, size) for size in range(110, 120)])
    for priority in (5, 1):
        harness.put(priority, b"reading " * 20)
    sent = [m for each in harness.build_all() for m in each.messages]

    assert [(m.id.node, m.priority) for m in sent] == [("n", 5), ("n", 1)]
    assert harness.builder.withheld_count == 110
    assert harness.free() == 0
    assert caplog.text.count("edge-agent queue export") == 1


def test_routine_messages_are_batched() -> None:
    """Ten messages in one publication, for a receiver that decodes batches."""
    harness = BuilderHarness(BATCH_RECEIVER)
    harness.put(1, b"reading " * 20, count=10)
    (outgoing,) = harness.build_all()

    assert outgoing.publication.content == BATCH_CONTENT
    assert payloads(outgoing) == [b"reading " * 20] * 10
    assert len(outgoing.messages) == 10


def test_batch_fits_a_segment_and_the_rest_follows() -> None:
    """Payloads that do not compress are split over several batches."""
    harness = BuilderHarness(BATCH_RECEIVER)
    noise = [bytes((n * k * k + k) % 251 for k in range(250)) for n in range(1, 31)]
    for each in noise:
        harness.put(2, each)
    built = harness.build_all()

    assert all(
        len(outgoing.publication.payload) <= MAX_PARCEL_BYTES for outgoing in built
    )
    assert [p for outgoing in built for p in payloads(outgoing)] == noise
    assert len(built) > 3


def test_plain_receiver_gets_plain_messages() -> None:
    """A subscriber cannot decode a batch."""
    for offers in (
        (),
        (CustodyOffer("gw", ("/forward/#",)),),
        (CustodyOffer("x", ("/1/#",), (BATCH_CONTENT,)),),
    ):
        harness = BuilderHarness(*offers)
        harness.put(1, b"reading", count=3)

        assert [outgoing.publication.content for outgoing in harness.build_all()] == [
            None
        ] * 3


def test_urgent_messages_are_not_batched() -> None:
    """A warning must be readable by itself, and sent first."""
    harness = BuilderHarness(BATCH_RECEIVER)
    harness.put(5, b"warning", count=2)

    assert [outgoing.publication.payload for outgoing in harness.build_all()] == [
        b"warning"
    ] * 2


def test_urgent_message_is_sent_between_fragments() -> None:
    """One photograph must not delay an alarm."""
    harness = BuilderHarness(BATCH_RECEIVER)
    photo = random.Random(1).randbytes(10_240)
    harness.put(3, photo)
    before = [harness.build() for _ in range(2)]
    harness.put(5, b"warning")
    harness.put(1, b"routine")
    rest = harness.build_all()

    assert rest[0].publication.payload == b"warning"
    assert rest[-1].publication.payload == b"routine"
    fragments_sent = [
        outgoing
        for outgoing in (*before, *rest)
        if outgoing.publication.content == FRAGMENT_CONTENT
    ]
    fragments = [
        Fragment.decode(outgoing.publication.payload) for outgoing in fragments_sent
    ]
    assert b"".join(fragment.data for fragment in fragments) == photo
    assert all(len(fragment.data) <= CHUNK_BYTES for fragment in fragments)
    assert [len(outgoing.messages) for outgoing in fragments_sent] == [0] * (
        len(fragments_sent) - 1
    ) + [1]


def test_large_message_goes_on_after_a_more_urgent_large_one() -> None:
    """It stayed leased, and was sent only after a restart."""
    harness = BuilderHarness(BATCH_RECEIVER)
    routine, urgent = (random.Random(n).randbytes(5000) for n in (1, 5))
    harness.put(1, routine)
    harness.build()
    harness.put(5, urgent)
    done = [each.messages[0] for each in harness.build_all() if each.messages]

    assert [(each.priority, each.payload) for each in done] == [
        (5, urgent),
        (1, routine),
    ]


def test_all_fragments_count_towards_the_share_of_their_priority() -> None:
    """Only the first did: others got too small a share of the link."""
    harness = BuilderHarness(BATCH_RECEIVER)
    noise = random.Random(1)
    harness.put(3, noise.randbytes(19_200))
    for priority in (3, 3, *[2] * 12):
        harness.put(priority, noise.randbytes(1000))
    sent = [each.messages[0].priority for each in harness.build_all() if each.messages]

    assert sent[:10] == [3, *[2] * 9]  # half of the weight: half of the bytes


def test_fragment_that_is_put_back_is_the_next_one() -> None:
    """A large message goes on where it was, also with its last fragment."""
    harness = BuilderHarness(BATCH_RECEIVER)
    photo = random.Random(1).randbytes(5000)
    harness.put(3, photo)
    built = []
    while (outgoing := harness.build()) is not None:
        harness.builder.put_back([outgoing])
        again = harness.build()
        assert again == outgoing
        built.append(outgoing)

    fragments = [Fragment.decode(each.publication.payload) for each in built]
    assert b"".join(each.data for each in fragments) == photo


def test_large_message_restarts_on_another_link() -> None:
    """Fragments sent over a lost link may not have arrived."""
    harness = BuilderHarness(BATCH_RECEIVER)
    harness.put(3, random.Random(1).randbytes(5000))
    harness.build()
    harness.builder.release_large()
    first = harness.build()

    assert first is not None
    assert Fragment.decode(first.publication.payload).number == 0


def test_messages_pass_a_large_one_that_the_link_has_interrupted() -> None:
    """A link that breaks every few kilobytes brought none of its priority."""
    harness = BuilderHarness(BATCH_RECEIVER)
    harness.put(3, random.Random(1).randbytes(20_000))
    for seed in range(3):
        harness.put(3, random.Random(seed).randbytes(1000))
    assert harness.build_next_content() == FRAGMENT_CONTENT
    harness.builder.release_large()
    contents = [harness.build_next_content() for _ in range(4)]

    assert contents == [None, None, None, FRAGMENT_CONTENT]


def sizes_by_link(link_bytes: int, links: int, first: int) -> list[list[int]]:
    """Sizes of what each of some short links brings: 20 kB after others, under load."""
    harness = BuilderHarness(BATCH_RECEIVER)
    noise = random.Random(2)
    for size in (*[1000] * first, 20_000):
        harness.put(3, noise.randbytes(size))
    arrived: list[list[int]] = []
    for _ in range(links):
        left_bytes = link_bytes
        arrived.append([])
        while True:
            harness.put(3, noise.randbytes(1000))
            built = harness.build()
            assert built is not None
            left_bytes -= built.packet_bytes
            if left_bytes < 0:
                break
            arrived[-1] += [len(message.payload) for message in built.messages]
            harness.queue.ack([message.seq for message in built.messages])
        harness.builder.release([built])
    return arrived


@pytest.mark.parametrize(("link_bytes", "first"), [(22_000, 5), (30_000, 15)])
def test_large_message_arrives_over_links_that_carry_it_once(
    link_bytes: int, first: int
) -> None:
    """One that began in the middle of a link is first on the next one."""
    one, two, three = sizes_by_link(link_bytes, 3, first)
    assert one == [1000] * first
    assert two[0] == 20_000
    assert set(three) == {1000}


@pytest.mark.parametrize("first", [0, 3])
def test_messages_arrive_over_links_that_never_carry_a_large_one(first: int) -> None:
    """It is tried first on one of them, then the others pass."""
    arrived = sizes_by_link(8000, 12, first)
    assert sum(map(len, arrived)) > 60
    assert {size for sizes in arrived for size in sizes} == {1000}


def test_interrupted_message_goes_on_under_constant_load() -> None:
    """Others pass it with as many bytes as it has, then it is the oldest."""
    harness = BuilderHarness(BATCH_RECEIVER)
    harness.put(3, random.Random(1).randbytes(20_000))
    for seed in range(100):
        harness.put(3, random.Random(seed).randbytes(1000))
    assert harness.build_next_content() == FRAGMENT_CONTENT
    harness.builder.release_large()
    contents = [harness.build_next_content() for _ in range(50)]

    assert contents.index(FRAGMENT_CONTENT) in range(15, 21)
    assert contents.count(FRAGMENT_CONTENT) == 17


def test_interrupted_message_goes_on_in_the_bursts_to_a_plain_broker() -> None:
    """The bytes of messages that are sent whole count, too."""
    harness = BuilderHarness(BATCH_RECEIVER)
    for size in (20_000, *[1000] * 50):
        harness.put(3, random.Random(size).randbytes(size))
    assert harness.build_next_content() == FRAGMENT_CONTENT
    harness.builder.release_large()
    harness.in_flight.on_down()
    harness.in_flight.on_up(1.0, 1000, [])
    bursts = []
    for _ in range(6):
        assert harness.builder.next_priority(0.0, 1) == 3
        bursts.append(harness.builder.build_burst(3, 10, 10_000))

    sizes = [
        len(m.payload) for loads in bursts for load in loads for m in load.messages
    ]
    assert sizes.index(20_000) in range(20, 30)


def test_large_message_is_not_fragmented_for_a_plain_broker() -> None:
    """Subscribers of a plain broker get the message as it was put."""
    harness = BuilderHarness()
    harness.put(3, bytes(5000))
    (outgoing,) = harness.build_all()

    assert outgoing.publication == Publication("/forward/1/2", bytes(5000), priority=3)


def test_priority_is_in_the_topic_only_for_a_store_that_reads_it() -> None:
    """A Gamma gateway takes ``pri5`` for a cell, and drops the message."""
    for offers, topic, priority in (
        ([BATCH_RECEIVER], "/forward/1/2/pri5", None),
        ([], "/forward/1/2", 5),
        ([CustodyOffer("other", ("/1/#",))], "/forward/1/2", 5),
    ):
        harness = BuilderHarness(*offers)
        harness.put(5, b"alarm")
        (outgoing,) = harness.build_all()

        assert outgoing.publication == Publication(topic, b"alarm", priority=priority)


def test_released_publications_return_to_the_queue() -> None:
    """After a link broke during a burst no message is lost."""
    harness = BuilderHarness(BATCH_RECEIVER)
    harness.put(1, b"reading", count=5)
    harness.put(5, b"warning")
    harness.put(4, bytes(5000))
    built = [harness.build() for _ in range(2)]
    harness.builder.release([outgoing for outgoing in built if outgoing])

    assert harness.free() == 7


def test_each_priority_has_its_qos() -> None:
    """The QoS of the policy is that of the publication."""
    policy = QosPolicy({1: Delivery(0), 5: Delivery(2)})
    harness = BuilderHarness(sender=SenderProfile("n", qos_policy=policy))
    for priority in (1, 3, 5):
        harness.put(priority, b"x")

    assert [outgoing.publication.qos for outgoing in harness.build_all()] == [2, 1, 0]


def test_relay_sends_a_response_topic_only_for_receipts() -> None:
    """Without a store no receipt can come. Other gateways need the priority."""
    relay = SenderProfile("gw1", is_relay=True)
    harness = BuilderHarness(CustodyOffer("ingest", ("/forward/#",)), sender=relay)
    harness.put(3, b"x")
    (with_topic,) = harness.build_all()
    assert with_topic.publication.response_topic == "/custody/gw1"
    assert with_topic.publication.priority == 3

    plain = BuilderHarness(
        sender=SenderProfile("gw1", is_relay=True, custody=CustodyMode.PUBACK)
    )
    plain.in_flight.custody = CustodyMode.PUBACK
    plain.put(3, b"x")
    (bare,) = plain.build_all()

    assert bare.publication == Publication(
        "/forward/1/2/pri3", b"x", priority=3, message_id=str(OWN_ID)
    )


def test_relay_sends_no_batch() -> None:
    """Its messages also go to subscribers that make no offer and read no batches."""
    relay = SenderProfile("gw1", is_relay=True)
    harness = BuilderHarness(
        CustodyOffer("rogue", ("#",), (BATCH_CONTENT, FRAGMENT_CONTENT)), sender=relay
    )
    harness.put(1, b"reading " * 20, count=3)
    harness.put(2, b"x" * 5000)

    built = harness.build_all()
    assert [len(each.messages) for each in built] == [1] * 4
    assert {each.publication.content for each in built} == {None}


def test_unbatched_messages_are_built_as_a_burst() -> None:
    """For a receiver that decodes no batches: one each, of any topic, in order."""
    harness = BuilderHarness()
    harness.queue.put([
        MessageDraft(1, f"/forward/1/{number}", lambda _, n=number: b"%d" % n)
        for number in range(5)
    ])

    built = harness.builder.build_burst(1, 3, 1000)

    assert [outgoing.publication.topic for outgoing in built] == [
        "/forward/1/0",
        "/forward/1/1",
        "/forward/1/2",
    ]
    assert [outgoing.publication.payload for outgoing in built] == [b"0", b"1", b"2"]
    assert harness.free() == 2


def test_burst_is_not_larger_than_max_bytes() -> None:
    """The first message is always taken; one that does not fit stays."""
    harness = BuilderHarness()
    harness.put(4, b"x" * 100, count=4)

    assert len(harness.builder.build_burst(4, 10, 250)) == 2
    assert len(harness.builder.build_burst(4, 10, 50)) == 1
    assert harness.free() == 1


def test_burst_for_a_batch_receiver_is_one_batch() -> None:
    """It contains several messages."""
    harness = BuilderHarness(BATCH_RECEIVER)
    harness.put(1, b"reading " * 20, count=10)

    (outgoing,) = harness.builder.build_burst(1, 10, 8192)

    assert len(outgoing.messages) == 10


def added_properties(  # noqa: ANN201
    *offers: CustodyOffer,
    custody: CustodyMode = CustodyMode.AUTO,
    always_sends_ids: bool = False,
):
    """What a relay adds to a message: has an id, priority, response topic."""
    sender = SenderProfile(
        "n", is_relay=True, custody=custody, always_sends_ids=always_sends_ids
    )
    harness = BuilderHarness(*offers, sender=sender)
    harness.put(4, b"plain")
    (outgoing,) = harness.builder.build_burst(4, 10, 1000)
    publication = outgoing.publication
    return (
        publication.message_id is not None,
        publication.priority,
        publication.response_topic,
    )


def test_relay_requests_receipts_from_a_store() -> None:
    """The response topic is added."""
    assert added_properties(CustodyOffer("store", ("#",))) == (True, 4, "/custody/n")


def test_relay_sends_priority_and_id_to_a_plain_broker() -> None:
    """Other gateways subscribe there, and drop a repeated message by its id."""
    assert added_properties(custody=CustodyMode.PUBACK) == (True, 4, None)


def test_relay_always_sends_ids_when_configured() -> None:
    """Its clients may get a message again after a crash, and deduplicate by id."""
    assert added_properties(custody=CustodyMode.PUBACK, always_sends_ids=True) == (
        True,
        4,
        None,
    )


COMPACT_STORE = CustodyOffer("store", ("/forward/#",), (COMPACT_FORM,))
OLDER_STORE = CustodyOffer("older", ("/forward/#",))


def sent_by_relay(
    *offers: CustodyOffer,
    custody: CustodyMode = CustodyMode.AUTO,
    has_compact_peers: bool = True,
    is_pack: bool = False,
) -> Publication:
    """What a relay publishes for a message of priority 4."""
    harness = BuilderHarness(
        *offers,
        sender=SenderProfile(
            "n",
            is_relay=True,
            custody=custody,
            has_compact_peers=lambda: has_compact_peers,
        ),
    )
    payload = encode_cbor(PACK) if is_pack else b"x"
    id_ = NODE_ID if is_pack else None
    draft = MessageDraft(4, "/forward/1/2", lambda _: payload, id_)
    harness.queue.put([draft])
    (outgoing,) = harness.build_all()
    return outgoing.publication


OWN_ID = MessageId("n", "0123abcd", 1)
NODE_ID = MessageId("node", "89abcdef", 9)
PACK = Pack(NODE_ID, 4, 1.7e9, (Reading("rain", "mm", 0.5),))


def test_compact_form_with_a_receipt() -> None:
    """For a store that reads it: one property in place of three."""
    sent = sent_by_relay(COMPACT_STORE)

    compact = encode_correlation(4, OWN_ID, "n")
    assert sent == Publication("/forward/1/2", b"x", correlation=compact)


def test_compact_form_without_a_store() -> None:
    """Where only gateways read it, no receipt is requested."""
    sent = sent_by_relay(custody=CustodyMode.PUBACK)

    compact = encode_correlation(4, OWN_ID, None)
    assert sent == Publication("/forward/1/2", b"x", correlation=compact)


def test_compact_form_of_a_nodes_message() -> None:
    """The payload contains its id; the receipt goes to the gateway."""
    sent = sent_by_relay(COMPACT_STORE, is_pack=True)

    assert sent.correlation == encode_correlation(4, None, "n")


def test_older_readers_get_user_properties() -> None:
    """Each store of the topic and each gateway must read the compact form."""
    full = Publication(
        "/forward/1/2",
        b"x",
        priority=4,
        response_topic="/custody/n",
        message_id=str(OWN_ID),
    )

    assert sent_by_relay(COMPACT_STORE, OLDER_STORE) == full
    assert sent_by_relay(COMPACT_STORE, has_compact_peers=False) == full


def test_user_properties_while_stores_are_unknown() -> None:
    """A store that does not read the compact form may be about to make its offer."""
    for custody in (CustodyMode.AUTO, CustodyMode.RECEIPTS):
        assert sent_by_relay(custody=custody).message_id == str(OWN_ID)


def test_store_of_other_topics_does_not_count() -> None:
    """It does not get the message."""
    elsewhere = CustodyOffer("older", ("/elsewhere/#",))

    assert sent_by_relay(COMPACT_STORE, elsewhere).correlation is not None

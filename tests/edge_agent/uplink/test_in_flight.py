"""Custody and congestion window of messages in flight, without a network."""

from dataclasses import replace

import pytest

from edge_agent.queue.base import QueuedMessage
from edge_agent.uplink.congestion import START_FRAMES
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits, InFlight
from edge_agent.uplink.link_rate import FRAME_BYTES, SEGMENT_BYTES
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import NO_SUBSCRIBERS

LIMITS = FlightLimits(
    window_bytes=300,
    max_awaiting=3,
    resend_after_s=10,
    offer_grace_s=2,
    refused_pause_s=5,
)

OFFER = CustodyOffer("gw", ("/t",))


def message(seq: int, priority: int = 3) -> QueuedMessage:
    return QueuedMessage(seq, MessageId("n", "b", seq), priority, "/t", b"x")


def make_in_flight(
    custody: CustodyMode = CustodyMode.RECEIPTS, *, needs_subscriber: bool = False
) -> InFlight:
    in_flight = InFlight(LIMITS, custody, needs_subscriber=needs_subscriber)
    in_flight.on_up(0.0, receive_maximum=20)
    return in_flight


def receipt(*seqs: int) -> CustodyReceipt:
    return CustodyReceipt.from_ids(MessageId("n", "b", seq) for seq in seqs)


def test_puback_does_not_end_custody_with_receipts() -> None:
    """A broker that keeps messages in memory does not store them on disk."""
    f = make_in_flight()
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(0.2).ack == []
    f.on_receipt(receipt(1))
    assert f.take_actions(0.3).ack == [1]


def test_silence_does_not_hold_back_urgent_messages() -> None:
    """After an outage, TCP at the broker may repeat its answers seconds later."""
    f = InFlight(replace(LIMITS, window_bytes=FRAME_BYTES))
    f.on_up(0.0, receive_maximum=20)
    f.on_sent(1, (message(1),), FRAME_BYTES, 0.0)
    f.on_sent(2, (message(2),), SEGMENT_BYTES, 0.0)

    assert f.sendable_bytes(1.9, 5) == 0
    assert f.sendable_bytes(2.1, 5) == SEGMENT_BYTES
    assert f.sendable_bytes(4.1, 5) == 2 * SEGMENT_BYTES
    assert f.sendable_bytes(9.9) == 0


def test_receipt_before_its_puback_counts() -> None:
    """Receipts and PUBACKs arrive independently, in any order."""
    f = make_in_flight()
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_receipt(receipt(1))
    f.on_published(1, None, 0.1)

    assert f.take_actions(0.2).ack == [1]


def test_message_without_receipt_is_sent_again() -> None:
    """The time begins with its PUBACK: a large one took longer on a slow link."""
    f = make_in_flight()
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, None, 30.0)

    assert f.take_actions(39.9).release == []
    assert f.take_actions(40.0).release == [1]


def test_lost_link_releases_all_messages_without_receipt() -> None:
    """After a reconnect the queue decides again what is sent first."""
    f = make_in_flight()
    for seq in (1, 2, 3):
        f.on_sent(seq, (message(seq),), 50, 0.0)
    f.on_published(1, None, 0.1)
    f.on_receipt(receipt(2))
    f.on_down()

    actions = f.take_actions(0.2)

    assert (sorted(actions.release), actions.ack) == ([1, 3], [2])
    assert f.sendable_bytes(0.2) == 0


def test_window_counts_bytes_until_the_puback() -> None:
    """A new link carries one message; a measured one as much as its window."""
    f = make_in_flight()
    f.on_sent(1, (message(1),), 299, 0.0)
    assert f.sendable_bytes(0.05) == 0
    f.on_published(1, None, 0.1)
    f.on_sent(2, (message(2),), 140, 0.1)
    assert f.sendable_bytes(0.1) == 160
    f.on_sent(3, (message(3),), 20, 0.1)
    assert f.sendable_bytes(0.1) == 0  # less than half a window: not worth a segment
    f.on_published(2, None, 0.2)
    assert f.sendable_bytes(0.2) == 280


def test_window_is_larger_for_urgent_messages() -> None:
    """Its window is one segment larger, and need not be half free."""
    f = make_in_flight()
    f.on_sent(1, (message(1),), 299, 0.0)

    assert (f.sendable_bytes(0.05), f.sendable_bytes(0.05, 5)) == (
        0,
        SEGMENT_BYTES + 1,
    )
    f.on_sent(2, (message(2),), SEGMENT_BYTES - 300, 0.0)
    assert f.sendable_bytes(0.05, 5) == 301


def test_round_trip_of_the_subscription_opens_the_window() -> None:
    """Draining need not wait until the first message is acknowledged."""
    f = InFlight(FlightLimits(), CustodyMode.RECEIPTS)
    f.on_up(0.0, 20, round_trip_s=0.1)

    assert f.sendable_bytes(0.0) == START_FRAMES * FRAME_BYTES


def test_no_slots_are_free_at_receive_maximum() -> None:
    """Receive Maximum of MQTT 5 limits publications in flight."""
    f = InFlight(FlightLimits(), CustodyMode.RECEIPTS)
    f.on_up(0.0, 2, round_trip_s=0.1)
    for seq in (1, 2):
        f.on_sent(seq, (message(seq),), 50, 0.0)

    assert (f.free_slots, f.sendable_bytes(0.0)) == (0, 0)


def test_qos_0_publications_do_not_measure_the_link() -> None:
    """QoS 0 is "published" within a millisecond; this is no round trip."""
    f = InFlight(FlightLimits(), CustodyMode.RECEIPTS)
    f.on_up(0.0, 1000, round_trip_s=0.1)
    for token in range(50):
        f.on_sent(token, (message(token),), 500, 0.0, is_answered=False)
        f.on_published(token, None, 0.0001)

    assert f.sendable_bytes(0.01) == START_FRAMES * FRAME_BYTES


def test_node_keeps_messages_without_a_subscriber() -> None:
    """After a broker restart its gateway may still send an offer."""
    f = InFlight(LIMITS, CustodyMode.AUTO, needs_subscriber=True)
    f.on_up(0.0, 20)
    f.on_sent(1, (message(1),), 100, 1.9)
    f.on_published(1, NO_SUBSCRIBERS, 1.9)
    actions = f.take_actions(2.0)
    assert (actions.decided_custody, actions.ack, actions.release) == (None, [], [1])

    f.on_offer(OFFER)
    assert f.take_actions(3.0).decided_custody is CustodyMode.RECEIPTS


def test_gateway_acknowledges_messages_without_a_subscriber() -> None:
    """A plain broker without subscribers will never have a receiver to wait for."""
    f = make_in_flight(CustodyMode.PUBACK)
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, NO_SUBSCRIBERS, 0.1)

    assert f.take_actions(0.2).ack == [1]


def test_messages_of_one_publication_are_receipted_one_by_one() -> None:
    """Acknowledged together by the PUBACK, and one by one by receipts."""
    f = make_in_flight()
    f.on_sent(1, (message(1), message(2)), 100, 0.0)
    f.on_receipt(receipt(2))
    f.on_published(1, None, 0.1)

    assert f.take_actions(0.2).ack == [2]
    f.on_receipt(receipt(1))
    assert f.take_actions(0.3).ack == [1]


def test_first_fragments_of_a_large_message_have_no_actions() -> None:
    """Only the last fragment completes a message."""
    f = make_in_flight()
    f.on_sent(1, (), 100, 0.0)
    f.on_published(1, None, 0.1)
    f.on_down()

    assert (f.take_actions(0.2).ack, f.take_actions(0.2).release) == ([], [])


@pytest.mark.parametrize(
    ("custody", "is_accepted"),
    [(CustodyMode.RECEIPTS, True), (CustodyMode.PUBACK, False)],
)
def test_internal_content_is_accepted_only_with_an_offer(
    custody: CustodyMode, is_accepted: bool
) -> None:
    """A subscriber behind a plain broker must never receive a batch."""
    f = make_in_flight(custody)
    f.on_offer(CustodyOffer("gw", ("/t",), takes=("parcel",)))

    assert f.accepts("parcel", "/t") is is_accepted
    assert not f.accepts("parcel", "/other")
    assert not f.accepts("chunk", "/t")


def test_receive_maximum_of_the_broker_stops_sending() -> None:
    """MQTT 5 lets the receiver limit what is unacknowledged."""
    f = InFlight(LIMITS)
    f.on_up(0.0, receive_maximum=1, known_offers=[OFFER])
    f.on_sent(1, (message(1),), 1, 0.0)

    assert f.sendable_bytes(0.2) == 0


def test_too_many_messages_without_receipt_stop_sending() -> None:
    """A gateway whose disk is blocked is not flooded."""
    f = make_in_flight()
    for seq in (1, 2, 3):
        f.on_sent(seq, (message(seq),), 1, 0.0)
        f.on_published(seq, None, 0.0)

    assert f.sendable_bytes(0.2) == 0


def test_messages_without_receipt_do_not_stop_more_urgent_ones() -> None:
    """A gateway with a full disk stores only urgent ones, and they waited 14 s."""
    f = make_in_flight()
    for seq, priority in enumerate((3, 3, 3, 3, 4, 4, 4, 5, 5, 5)):
        if seq != 3:
            assert f.sendable_bytes(0.0, priority) > 0
        f.on_sent(seq, (message(seq, priority),), 1, 0.0)
        f.on_published(seq, None, 0.0)

    assert [f.sendable_bytes(0.1, p) for p in (1, 3, 4, 5)] == [0, 0, 0, 0]


def test_custody_ends_with_puback_after_the_grace_without_an_offer() -> None:
    """A plain broker or a Gamma gateway gives no receipts; decided once per link."""
    f = make_in_flight(CustodyMode.AUTO)
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, None, 0.1)
    assert f.take_actions(1.9).ack == []

    actions = f.take_actions(2.0)

    assert (actions.ack, actions.decided_custody) == ([1], CustodyMode.PUBACK)
    f.on_sent(2, (message(2),), 1, 2.0)
    f.on_published(2, None, 2.1)
    assert f.take_actions(2.2).ack == [2]


def test_offer_within_the_grace_decides_for_receipts() -> None:
    """A retained offer shows that a store subscribes at the broker."""
    f = make_in_flight(CustodyMode.AUTO)
    f.on_offer(OFFER)

    assert f.take_actions(0.1).decided_custody is CustodyMode.RECEIPTS
    assert f.take_actions(99.0).decided_custody is None


def test_each_link_has_its_own_grace() -> None:
    """After an outage the retained offers take as long as at the start."""
    f = make_in_flight(CustodyMode.AUTO)
    f.on_down()
    f.on_up(1000.0, 100)
    f.on_sent(1, (message(1),), 100, 1000.0)
    f.on_published(1, None, 1000.1)

    assert f.take_actions(1000.5).ack == []


def test_peer_with_a_known_offer_is_never_treated_as_plain_broker() -> None:
    """A restarted broker has lost the offer; its messages must not be lost."""
    f = InFlight(LIMITS, CustodyMode.AUTO)
    f.on_up(0.0, receive_maximum=20, known_offers=[OFFER])
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(9.0).ack == []


def test_custody_ends_with_puback_for_topics_outside_the_offers() -> None:
    """No receiver subscribes to the topic, so no receipt can come."""
    f = make_in_flight(CustodyMode.AUTO)
    f.on_offer(CustodyOffer("gw", ("/other/#",)))
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(0.2).ack == [1]


def test_message_without_subscriber_is_sent_again_after_a_pause() -> None:
    """A restarted broker acknowledges before the gateway has subscribed again."""
    f = make_in_flight()
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, NO_SUBSCRIBERS, 0.1)

    assert f.take_actions(0.2).release == [1]
    assert f.sendable_bytes(1.0) == 0
    assert f.sendable_bytes(1.1) > 0


def test_message_without_subscriber_is_delivered_to_a_plain_broker() -> None:
    """Where no receipts are given, no subscriber is needed."""
    f = make_in_flight(CustodyMode.PUBACK)
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, NO_SUBSCRIBERS, 0.1)

    assert f.take_actions(0.2).ack == [1]


@pytest.mark.parametrize("token", [7, 0])
def test_answer_to_an_unknown_token_is_ignored(token: int) -> None:
    """Late answers from an earlier connection change nothing."""
    f = make_in_flight()

    assert f.on_published(token, None, 0.0) == ()


def test_offer_without_filters_does_not_count() -> None:
    """Gateways of earlier versions make such offers; they give no receipts."""
    f = make_in_flight(CustodyMode.AUTO)
    f.on_offer(CustodyOffer("gw-2", ()))
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(2.0).ack == [1]
    assert f.custody is CustodyMode.PUBACK
    f.on_offer(OFFER)
    f.on_offer(CustodyOffer("gw", ("/t",), is_offline=True))
    assert not f.is_served(3.0)
    f.on_offer(OFFER)
    assert f.is_served(3.0)

    f.on_offer(CustodyOffer("gw", ("/t",), is_offline=True))
    f.on_down()
    f.on_up(4.0, 100, [OFFER])
    assert f.is_served(4.0)


def test_form_is_used_only_if_every_store_reads_it() -> None:
    """One offer more must not make messages unreadable for the other store."""
    f = make_in_flight(CustodyMode.AUTO)
    f.on_offer(CustodyOffer("rogue", ("#",), takes=("parcel",)))
    assert f.accepts("parcel", "/t")
    f.on_offer(OFFER)

    assert not f.accepts("parcel", "/t")
    assert f.accepts("parcel", "/other")


def test_withdrawn_offer_ends_at_once() -> None:
    """What was sent is sent again, for the store that remains."""
    f = make_in_flight(CustodyMode.AUTO)
    f.on_offer(CustodyOffer("rogue", ("#",), takes=("parcel",)))
    for seq in (1, 2, 3):
        f.on_sent(seq, (message(seq),), 1, 0.0)
    f.on_published(1, None, 0.1)
    f.on_receipt(receipt(2))
    f.on_offer(OFFER)
    f.on_withdrawn("rogue", 1.0)

    due = f.take_actions(1.0)
    assert (sorted(due.release), due.ack) == ([1, 3], [2])
    assert (f.on_published(3, None, 1.1), f.take_actions(30.0).release) == ((), [])
    assert f.custody is CustodyMode.RECEIPTS
    assert not f.expects_receipt("/other")


def test_withdrawal_of_the_last_offer_leaves_a_plain_broker() -> None:
    """PUBACK ends custody, but only after the grace for a new offer."""
    f = make_in_flight(CustodyMode.AUTO)
    f.on_offer(OFFER)
    f.on_withdrawn("gw", 5.0)
    f.on_withdrawn("unknown", 5.0)
    f.on_sent(1, (message(1),), 1, 5.0)
    f.on_published(1, None, 5.1)

    assert f.take_actions(6.9).ack == []
    assert f.take_actions(7.0).ack == [1]


def urgent(seq: int, size: int = 10) -> QueuedMessage:
    return QueuedMessage(seq, MessageId("n", "b", seq), 5, "/t", b"x" * size)


def make_node(custody: CustodyMode = CustodyMode.AUTO) -> InFlight:
    """State of a node's link to a plain broker that has a subscriber."""
    limits = replace(LIMITS, held_bytes=100)
    in_flight = InFlight(limits, custody, needs_subscriber=True)
    in_flight.on_up(0.0, receive_maximum=20)
    in_flight.take_actions(9.0)
    return in_flight


def deliver(in_flight: InFlight, *messages: QueuedMessage) -> None:
    for each in messages:
        in_flight.on_sent(each.seq, (each,), 1, 9.0)
        in_flight.on_published(each.seq, None, 9.0)


def test_urgent_message_is_held_until_a_link_gives_receipts() -> None:
    """It is not sent again at brokers that give none."""
    f = make_node()
    deliver(f, message(1), urgent(2))
    assert f.take_actions(9.1).ack == [1]
    f.on_down()
    f.on_up(10.0, 20)
    actions = f.take_actions(20.0)
    assert (actions.ack, actions.release, len(f.held)) == ([], [], 1)

    f.on_down()
    f.on_up(30.0, 20, known_offers=[OFFER])

    assert (f.take_actions(30.0).release, len(f.held)) == ([2], 0)


def test_urgent_message_sent_within_the_grace_is_held() -> None:
    """The offer of the same link may come late."""
    f = InFlight(LIMITS, needs_subscriber=True)
    f.on_up(0.0, 20)
    deliver(f, urgent(1), message(2))
    assert f.take_actions(9.0).ack == [2]
    f.on_offer(OFFER)

    assert f.take_actions(9.1).release == [1]


def test_held_messages_are_bounded() -> None:
    """The oldest ones leave the queue, as they did before they were held."""
    f = make_node()
    deliver(f, *(urgent(seq, size=28) for seq in range(1, 6)))
    assert (f.take_actions(9.1).ack, len(f.held)) == ([1, 2], 3)
    deliver(f, urgent(6, size=1000))

    assert (f.take_actions(9.2).ack, len(f.held)) == ([3, 4, 5, 6], 0)


@pytest.mark.parametrize(
    ("custody", "is_node"), [(CustodyMode.PUBACK, True), (CustodyMode.AUTO, False)]
)
def test_nothing_is_held_by_a_gateway_or_against_the_settings(
    custody: CustodyMode, is_node: bool
) -> None:
    """A plain distributed broker is the rule in a system of Gamma."""
    f = InFlight(LIMITS, custody, needs_subscriber=is_node)
    f.on_up(0.0, 20)
    f.take_actions(9.0)
    deliver(f, urgent(1))

    assert f.take_actions(9.1).ack == [1]


def test_broker_without_a_subscriber_does_not_serve_a_node() -> None:
    """A Gamma gateway whose daemon ended: the node fails over."""
    f = make_node()
    f.on_sent(1, (urgent(1),), 1, 9.0)
    f.on_published(1, NO_SUBSCRIBERS, 9.0)
    assert not f.is_served(9.1)
    deliver(f, urgent(1))

    assert f.is_served(9.2)


def test_offer_is_needed_for_the_priority_in_the_topic() -> None:
    """Also where the settings rely on PUBACK; an earlier offer is none there."""
    for custody, expected in (
        (CustodyMode.AUTO, True),
        (CustodyMode.RECEIPTS, True),
        (CustodyMode.PUBACK, False),
    ):
        f = InFlight(LIMITS, custody)
        f.on_up(0.0, 20)
        assert not f.reads_priority("/t")
        f.on_up(0.0, 20, known_offers=[OFFER])
        assert f.reads_priority("/t") is expected
        f.on_offer(OFFER)
        assert f.reads_priority("/t")
        assert not f.reads_priority("/other")


def test_broker_without_its_gateway_does_not_serve_in_spite_of_an_offer() -> None:
    """The offer is remembered; the broker lost it and the subscription at a restart."""
    f = make_in_flight(needs_subscriber=True)
    f.on_up(0.0, 20, known_offers=[OFFER])
    f.on_sent(1, (urgent(1),), 1, 0.0)
    f.on_published(1, NO_SUBSCRIBERS, 0.1)
    assert not f.is_served(0.2)
    f.on_offer(OFFER)

    assert f.is_served(0.3)


def send_unreceipted(f: InFlight, seq: int, now_s: float) -> None:
    """Send a message for which no receipt comes, until it is to be sent again."""
    f.on_sent(seq, (urgent(seq),), 1, now_s)
    f.on_published(seq, None, now_s)
    assert f.take_actions(now_s + LIMITS.resend_after_s).release == [seq]


def test_stored_message_without_its_puback_frees_the_window() -> None:
    """PUBACKs that were lost for a time stopped all routine messages after it."""
    f = make_in_flight()
    f.on_sent(1, (message(1), message(2)), 300, 0.0)
    f.on_receipt(receipt(1))
    assert f.take_actions(60.0).ack == []  # the other one may not be stored
    f.on_receipt(receipt(2))
    f.on_sent(2, (message(3),), 100, 55.0)
    f.on_receipt(receipt(3))

    assert f.sendable_bytes(60.0) == 0
    assert (f.silence_s(60.0), f.take_actions(60.0).ack) == (5.0, [1, 2])
    assert f.sendable_bytes(60.0) > 0
    assert f.take_actions(65.0).ack == [3]
    assert f.silence_s(100.0) == 0.0


def test_lost_puback_keeps_its_slot_of_the_receive_maximum() -> None:
    """They count until then (MQTT 5.0 section 4.9); a late PUBACK frees its slot."""
    f = InFlight(LIMITS, CustodyMode.RECEIPTS)
    f.on_up(0.0, receive_maximum=2)
    for token in (1, 2):
        f.on_sent(token, (message(token),), 100, 0.0)
        f.on_receipt(receipt(token))
    assert f.take_actions(20.0).ack == [1, 2]
    assert (f.free_slots, f.silence_s(20.0)) == (0, 20.0)

    assert f.on_published(1, None, 21.0) == ()
    assert (f.free_slots, f.silence_s(21.0)) == (1, 0.0)
    assert f.take_actions(21.0).ack == []
    f.on_down()
    f.on_up(30.0, receive_maximum=2)
    assert f.free_slots == 2


def make_restored() -> InFlight:
    """State of a node's link to a broker with a stored offer and subscription."""
    f = make_in_flight(needs_subscriber=True)
    f.on_offer(OFFER)
    return f


def test_broker_that_acknowledges_without_any_receipt_does_not_serve() -> None:
    """After a power cut Mosquitto has its stored state, and no gateway behind it."""
    f = make_restored()
    send_unreceipted(f, 1, 0.0)
    served = [f.is_served(10.0)]
    send_unreceipted(f, 1, 10.0)
    served.append(f.is_served(20.0))
    f.on_receipt(receipt(1))

    assert [*served, f.is_served(21.0)] == [True, False, True]


def test_receipt_of_another_message_shows_a_gateway_that_stores() -> None:
    """It has no space for one of this size, or cannot read it."""
    f = make_restored()
    for now_s in range(0, 100, 10):
        send_unreceipted(f, 1, now_s)
        f.on_receipt(receipt(2))

        assert f.is_served(now_s + 10)


def test_message_that_no_gateway_stores_ends_no_service() -> None:
    """Otherwise a quiet node would change its gateway for ever because of it."""
    f = make_restored()
    served = []
    for start_s in (0.0, 20.0, 40.0, 60.0):
        f.on_up(start_s, 20, known_offers=[OFFER])
        send_unreceipted(f, 1, start_s)
        send_unreceipted(f, 1, start_s + 10)
        served.append(f.is_served(start_s + 20))
        f.on_down()

    assert served == [False, False, False, True]


def test_lane_counts_no_missing_receipts() -> None:
    """The overlay takes over when a broker is out of reach, not when ingest is slow."""
    f = make_in_flight()
    f.on_offer(OFFER)
    for now_s in (0.0, 10.0, 20.0):
        send_unreceipted(f, 1, now_s)

    assert f.is_served(30.0)

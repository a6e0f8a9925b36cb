"""Custody and window, decided without a network."""

import pytest

from edge_agent.queue.base import QueuedMessage
from edge_agent.uplink.congestion import MIN_WINDOW_BYTES
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits, InFlight
from edge_agent.uplink.rate_limit import SEGMENT_BYTES
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


def message(seq: int) -> QueuedMessage:
    return QueuedMessage(seq, MessageId("n", "b", seq), 3, "/t", b"x")


def flight(custody: CustodyMode = CustodyMode.RECEIPTS) -> InFlight:
    made = InFlight(LIMITS, custody)
    made.on_up(0.0, receive_maximum=20)
    return made


def receipt(*seqs: int) -> CustodyReceipt:
    return CustodyReceipt.from_ids(MessageId("n", "b", seq) for seq in seqs)


def test_puback_does_not_end_custody_when_receipts_are_given() -> None:
    """A broker's memory is not a disk."""
    f = flight()
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(0.2).ack == []
    f.on_receipt(receipt(1))
    assert f.take_actions(0.3).ack == [1]


def test_receipt_before_its_puback_counts() -> None:
    """The two travel apart; either may come first."""
    f = flight()
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_receipt(receipt(1))
    f.on_published(1, None, 0.1)

    assert f.take_actions(0.2).ack == [1]


def test_silence_means_send_again() -> None:
    """A message without receipt goes back to the queue."""
    f = flight()
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(9.9).release == []
    assert f.take_actions(10.0).release == [1]


def test_lost_link_gives_back_all_but_the_receipted() -> None:
    """After a reconnect the queue decides anew what goes first."""
    f = flight()
    for seq in (1, 2, 3):
        f.on_sent(seq, (message(seq),), 50, 0.0)
    f.on_published(1, None, 0.1)
    f.on_receipt(receipt(2))
    f.on_down()

    due = f.take_actions(0.2)

    assert (sorted(due.release), due.ack) == ([1, 3], [2])
    assert f.sendable_bytes(0.2) == 0


def test_window_is_counted_in_bytes_until_the_puback() -> None:
    """A fresh link carries one message; a measured one as much as it holds."""
    f = flight()
    f.on_sent(1, (message(1),), 299, 0.0)
    assert f.sendable_bytes(0.05) == 0
    f.on_published(1, None, 0.1)
    f.on_sent(2, (message(2),), 140, 0.1)
    assert f.sendable_bytes(0.1) == 160
    f.on_sent(3, (message(3),), 20, 0.1)
    assert f.sendable_bytes(0.1) == 0  # less than half a window is not worth a segment
    f.on_published(2, None, 0.2)
    assert f.sendable_bytes(0.2) == 280


def test_urgent_message_finds_room_where_others_wait() -> None:
    """Its window is a segment larger, and it does not wait for all of that."""
    f = flight()
    f.on_sent(1, (message(1),), 299, 0.0)

    assert (f.sendable_bytes(0.05), f.sendable_bytes(0.05, is_urgent=True)) == (
        0,
        SEGMENT_BYTES - 298,
    )
    f.on_sent(2, (message(2),), SEGMENT_BYTES - 300, 0.0)
    assert f.sendable_bytes(0.05, is_urgent=True) == 2


def test_round_trip_of_the_subscription_opens_the_window() -> None:
    """A drain need not wait for its first message to come back."""
    f = InFlight(FlightLimits(), CustodyMode.RECEIPTS)
    f.on_up(0.0, 20, round_trip_s=0.1)

    assert f.sendable_bytes(0.0) == MIN_WINDOW_BYTES


def test_no_more_publications_than_the_broker_receives() -> None:
    """MQTT 5's Receive Maximum is the broker's word."""
    f = InFlight(FlightLimits(), CustodyMode.RECEIPTS)
    f.on_up(0.0, 2, round_trip_s=0.1)
    for seq in (1, 2):
        f.on_sent(seq, (message(seq),), 50, 0.0)

    assert (f.free_slots, f.sendable_bytes(0.0)) == (0, 0)


def test_what_is_never_answered_does_not_measure_the_link() -> None:
    """QoS 0 is "published" within a millisecond; the window must not believe it."""
    f = InFlight(FlightLimits(), CustodyMode.RECEIPTS)
    f.on_up(0.0, 1000, round_trip_s=0.1)
    for token in range(50):
        f.on_sent(token, (message(token),), 500, 0.0, is_answered=False)
        f.on_published(token, None, 0.0001)

    assert f.sendable_bytes(0.01) == MIN_WINDOW_BYTES


def test_node_lets_nothing_go_that_nobody_takes() -> None:
    """A gateway's broker came back alone: its daemon may offer receipts yet."""
    f = InFlight(LIMITS, CustodyMode.AUTO, needs_subscriber=True)
    f.on_up(0.0, 20)
    f.on_sent(1, (message(1),), 100, 1.9)
    f.on_published(1, NO_SUBSCRIBERS, 1.9)
    due = f.take_actions(2.0)
    assert (due.decided_custody, due.ack, due.release) == (None, [], [1])

    f.on_offer(OFFER)
    assert f.take_actions(3.0).decided_custody is CustodyMode.RECEIPTS


def test_gateway_lets_go_what_nobody_listens_to() -> None:
    """Towards a plain broker without subscribers there is nobody to keep it for."""
    f = flight(CustodyMode.PUBACK)
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, NO_SUBSCRIBERS, 0.1)

    assert f.take_actions(0.2).ack == [1]


def test_messages_of_one_publication_share_its_fate() -> None:
    """A parcel is acknowledged as one, and receipted message by message."""
    f = flight()
    f.on_sent(1, (message(1), message(2)), 100, 0.0)
    f.on_receipt(receipt(2))
    f.on_published(1, None, 0.1)

    assert f.take_actions(0.2).ack == [2]
    f.on_receipt(receipt(1))
    assert f.take_actions(0.3).ack == [1]


def test_first_pieces_of_a_large_message_end_nothing() -> None:
    """Only with the last piece is the message on its way."""
    f = flight()
    f.on_sent(1, (), 100, 0.0)
    f.on_published(1, None, 0.1)
    f.on_down()

    assert (f.take_actions(0.2).ack, f.take_actions(0.2).release) == ([], [])


@pytest.mark.parametrize(
    ("custody", "is_taken"), [(CustodyMode.RECEIPTS, True), (CustodyMode.PUBACK, False)]
)
def test_content_of_ours_goes_only_to_who_reads_it(
    custody: CustodyMode, is_taken: bool
) -> None:
    """A subscriber behind a plain broker must never see a parcel."""
    f = flight(custody)
    f.on_offer(CustodyOffer("gw", ("/t",), takes=("parcel",)))

    assert f.accepts("parcel", "/t") is is_taken
    assert not f.accepts("parcel", "/other")
    assert not f.accepts("chunk", "/t")


def test_receive_maximum_of_the_broker_is_kept() -> None:
    """MQTT 5 lets the receiver bound what is unacknowledged."""
    f = InFlight(LIMITS)
    f.on_up(0.0, receive_maximum=1, known_offers=[OFFER])
    f.on_sent(1, (message(1),), 1, 0.0)

    assert f.sendable_bytes(0.2) == 0


def test_too_many_without_receipt_stop_the_sending() -> None:
    """A gateway whose disk is stuck is not flooded."""
    f = flight()
    for seq in (1, 2, 3):
        f.on_sent(seq, (message(seq),), 1, 0.0)
        f.on_published(seq, None, 0.0)

    assert f.sendable_bytes(0.2) == 0


def test_peer_without_offer_ends_custody_with_puback_after_the_grace() -> None:
    """A plain broker or a Gamma gateway gives no receipts; this is settled once."""
    f = flight(CustodyMode.AUTO)
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, None, 0.1)
    assert f.take_actions(1.9).ack == []

    due = f.take_actions(2.0)

    assert (due.ack, due.decided_custody) == ([1], CustodyMode.PUBACK)
    f.on_sent(2, (message(2),), 1, 2.0)
    f.on_published(2, None, 2.1)
    assert f.take_actions(2.2).ack == [2]


def test_offer_within_the_grace_settles_receipts() -> None:
    """A retained offer says that a store stands behind the broker."""
    f = flight(CustodyMode.AUTO)
    f.on_offer(OFFER)

    assert f.take_actions(0.1).decided_custody is CustodyMode.RECEIPTS
    assert f.take_actions(99.0).decided_custody is None


def test_peer_known_to_give_receipts_is_never_taken_for_a_plain_broker() -> None:
    """A restarted broker has forgotten the offer; the message must not be lost."""
    f = InFlight(LIMITS, CustodyMode.AUTO)
    f.on_up(0.0, receive_maximum=20, known_offers=[OFFER])
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(9.0).ack == []


def test_topic_outside_the_offers_ends_custody_with_its_puback() -> None:
    """Nobody will ever receipt what no receiver subscribes to."""
    f = flight(CustodyMode.AUTO)
    f.on_offer(CustodyOffer("gw", ("/other/#",)))
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(0.2).ack == [1]


def test_refused_message_rests_and_is_tried_again() -> None:
    """A refusal neither loses the message nor spins."""
    f = flight()
    f.on_sent(1, (message(1),), 1, 0.0)

    assert f.on_published(1, "Quota exceeded", 1.0) == (message(1),)
    assert f.take_actions(5.9).release == []
    assert f.take_actions(6.0).release == [1]


def test_message_without_taker_is_sent_again_when_the_store_may_be_back() -> None:
    """A restarted broker acknowledges before the gateway has subscribed again."""
    f = flight()
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, NO_SUBSCRIBERS, 0.1)

    assert f.take_actions(0.2).release == [1]
    assert f.sendable_bytes(1.0) == 0
    assert f.sendable_bytes(1.1) > 0


def test_message_without_taker_is_delivered_to_a_plain_broker() -> None:
    """Where no receipts are given, nobody needs to listen."""
    f = flight(CustodyMode.PUBACK)
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, NO_SUBSCRIBERS, 0.1)

    assert f.take_actions(0.2).ack == [1]


@pytest.mark.parametrize("token", [7, 0])
def test_answer_to_an_unknown_token_is_let_go(token: int) -> None:
    """A late answer of an older connection changes nothing."""
    f = flight()

    assert f.on_published(token, None, 0.0) == ()


def test_who_only_passes_on_gives_no_receipts() -> None:
    """Its offer has no filters; a store's, which may follow at once, decides."""
    f = flight(CustodyMode.AUTO)
    f.on_offer(CustodyOffer("gw-2", ()))
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, None, 0.1)
    assert f.take_actions(0.2).ack == []
    f.on_offer(OFFER)

    assert f.take_actions(10.0).ack == []
    assert f.custody is CustodyMode.RECEIPTS


def test_without_a_store_puback_ends_custody_but_names_are_wanted() -> None:
    """Other gateways behind a plain broker go by ids."""
    f = flight(CustodyMode.AUTO)
    f.on_offer(CustodyOffer("gw-2", ()))
    f.on_sent(1, (message(1),), 100, 0.0)
    f.on_published(1, None, 0.1)

    assert f.take_actions(2.0).ack == [1]
    assert (f.custody, f.needs_message_ids) == (CustodyMode.PUBACK, True)
    assert f.is_served(2.0)


def test_a_store_that_is_away_is_not_made_up_for_by_who_passes_on() -> None:
    """Nobody takes custody meanwhile."""
    f = flight(CustodyMode.AUTO)
    f.on_offer(CustodyOffer("gw-2", ()))
    f.on_offer(OFFER)
    f.on_offer(CustodyOffer("gw", ("/t",), is_offline=True))

    assert not f.is_served(1.0)

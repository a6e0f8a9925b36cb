"""Messages at a broker without a store, while another broker has one."""

import pytest

from edge_agent.queue.base import QueuedMessage
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits, InFlight
from edge_agent.uplink.offer_memory import (
    MAX_UNSEEN_S,
    SHOWN_S,
    STORE_INTERVAL_S,
    KnownStores,
    OfferMemory,
)
from spatial_mqtt.custody import CustodyOffer
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import NO_SUBSCRIBERS

STORE = CustodyOffer("ingest-0", ("/3/#",))
ANOTHER = CustodyOffer("ingest-1", ("/3/1/#",))
MOST = 5


class Gateway:
    """Stores of a gateway, a lane to a broker with one, and the state of another."""

    def __init__(self) -> None:
        self.queue = MemoryQueue("gw", "b", 1_000_000)
        self.now_s = 0.0
        self.restart()

    def restart(self, custody: CustodyMode = CustodyMode.AUTO) -> None:
        self.stores = KnownStores(self.queue, lambda: self.now_s)
        self.first = self.lane("first:1883")
        limits = FlightLimits(max_awaiting=MOST)
        self.flight = InFlight(limits, custody, stores=self.stores)
        self.connect()

    def lane(self, broker: str) -> OfferMemory:
        queue = MemoryQueue("gw", "b", 1_000_000)
        lane = OfferMemory(queue, broker, lambda: self.now_s, self.stores)
        lane.on_up()
        return lane

    def connect(self) -> None:
        """Connect to the other broker, which makes no offer in time."""
        self.flight.on_up(self.now_s, 100)
        self.now_s += 9.0
        self.flight.take_actions(self.now_s)

    def deliver(self, *seqs: int, priority: int = 3, topic: str = "/3/1/2") -> None:
        """Send messages there; one is acknowledged, the others have no subscriber."""
        for seq in seqs:
            each = QueuedMessage(seq, MessageId("n", "b", seq), priority, topic, b"x")
            self.flight.on_sent(seq, (each,), 1, self.now_s)
            refused = NO_SUBSCRIBERS if seq > 1 else None
            self.flight.on_published(seq, refused, self.now_s)

    def due(self) -> tuple[list[int], list[int]]:
        """Messages that leave the queue, and that are to be sent again."""
        actions = self.flight.take_actions(self.now_s)
        return actions.ack, actions.release


@pytest.fixture
def gateway() -> Gateway:
    made = Gateway()
    made.first.on_offer(STORE)
    return made


def test_message_is_held_until_a_store_at_its_broker_covers_it(
    gateway: Gateway,
) -> None:
    """It is not sent again before, nor after a reconnect; others are delivered."""
    gateway.deliver(1, 2)
    gateway.deliver(3, topic="/4/1")
    assert gateway.due() == ([3], [])
    gateway.now_s += 3600.0
    gateway.flight.on_down()
    gateway.connect()
    assert gateway.due() == ([], [])
    gateway.flight.on_offer(CustodyOffer("ingest-2", ("/3/2/#",)))
    assert gateway.due() == ([], [])

    gateway.flight.on_offer(ANOTHER)

    assert gateway.due() == ([], [1, 2])


def test_store_is_known_after_a_restart_without_its_broker(gateway: Gateway) -> None:
    """Its broker may be the one whose area has moved, and be removed."""
    gateway.restart()
    gateway.deliver(1)

    assert gateway.due() == ([], [])


def test_settings_end_custody_with_the_puback(gateway: Gateway) -> None:
    """With `puback`, an operator ends custody without receipts."""
    gateway.restart(CustodyMode.PUBACK)
    gateway.deliver(1)

    assert gateway.due() == ([1], [])


def test_held_messages_stop_only_those_of_lower_priority(gateway: Gateway) -> None:
    """More routine messages stay in the queue, which can drop them when it is full."""
    gateway.deliver(*range(MOST))
    assert gateway.flight.sendable_bytes(gateway.now_s, 3) == 0
    assert gateway.flight.sendable_bytes(gateway.now_s, 5) > 0
    gateway.flight.held.forget([0])

    assert gateway.flight.sendable_bytes(gateway.now_s, 3) > 0


def test_withdrawn_store_ends_custody_of_what_is_held(gateway: Gateway) -> None:
    """At its broker, or at any other if no lane has shown it for a while."""
    gateway.deliver(1)
    second = gateway.lane("second:1883")
    second.on_withdrawn("ingest-0")
    assert gateway.due() == ([], []), "it is at its broker"
    gateway.first.on_withdrawn("ingest-0")
    assert gateway.due() == ([1], [])

    gateway.first.on_offer(STORE)
    gateway.deliver(2)
    gateway.now_s += SHOWN_S + 1.0
    second.on_withdrawn("ingest-0")

    assert gateway.due() == ([2], [])


def test_store_that_leaves_an_area_out_ends_custody_there(gateway: Gateway) -> None:
    """An earlier offer that another broker still has does not change that."""
    gateway.deliver(1)
    gateway.deliver(2, topic="/3/2")
    gateway.first.on_offer(CustodyOffer("ingest-0", ("/3/1/#",)))
    assert gateway.due() == ([2], [])
    second = gateway.lane("second:1883")
    second.on_offer(CustodyOffer("ingest-0", ("/4/#",)))
    second.forget_unseen()

    assert gateway.due() == ([], [])


def test_store_that_no_lane_shows_ends_after_days(gateway: Gateway) -> None:
    """As the offer of one broker; a lane that remembers it shows it again and again."""
    gateway.deliver(1)
    second = gateway.lane("second:1883")

    def stay(*lanes: OfferMemory) -> None:
        until_s = gateway.now_s + MAX_UNSEEN_S + 2 * STORE_INTERVAL_S
        while gateway.now_s < until_s:
            gateway.now_s += STORE_INTERVAL_S
            for lane in lanes:
                lane.forget_unseen()

    stay(gateway.first, second)
    assert gateway.due() == ([], [])
    stay(second)

    assert gateway.due() == ([1], [])

"""Offers of receipts that are remembered, withdrawn and forgotten."""

import json

import pytest

from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.offer_memory import MAX_UNSEEN_S, STORE_INTERVAL_S, OfferMemory
from spatial_mqtt.custody import CustodyOffer

KEY = "uplink/offers/d1:8883"
STORE = CustodyOffer("ingest-0", ("/#",), ("parcel",))


class Harness:
    """A queue, a clock, and one memory for each start of the program."""

    def __init__(self) -> None:
        self.queue = MemoryQueue("gw", "b", 1_000_000)
        self.now_s = 0.0
        self.memory = self.restart()

    def restart(self) -> OfferMemory:
        self.memory = OfferMemory(self.queue, "d1:8883", lambda: self.now_s)
        self.memory.on_up()
        return self.memory

    def stay_connected(self, seconds: float) -> list[str]:
        gone: list[str] = []
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += STORE_INTERVAL_S
            gone += self.memory.forget_unseen()
        return gone


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.memory.on_offer(STORE)
    return made


def test_offer_survives_a_restart(harness: Harness) -> None:
    """A broker without persistence must not become a plain one."""
    assert harness.restart().offers == [STORE]


def test_unseen_offer_is_forgotten_after_days_of_connection(harness: Harness) -> None:
    """It ended while this machine was away; restarts do not prolong it."""
    harness.restart()
    assert harness.stay_connected(MAX_UNSEEN_S / 2) == []
    harness.now_s += 100
    harness.memory.on_down()
    harness.now_s += 10 * MAX_UNSEEN_S  # without a connection
    harness.restart()
    assert harness.memory.forget_unseen() == []

    assert harness.stay_connected(MAX_UNSEEN_S / 2) == ["ingest-0"]
    assert (harness.memory.offers, harness.restart().offers) == ([], [])


def test_offer_that_was_seen_is_kept(harness: Harness) -> None:
    """Seeing it once on a connection restarts the count."""
    harness.restart()
    harness.stay_connected(MAX_UNSEEN_S - 2 * STORE_INTERVAL_S)
    harness.memory.on_offer(STORE)
    assert harness.stay_connected(3 * MAX_UNSEEN_S) == []
    harness.restart()

    assert harness.stay_connected(MAX_UNSEEN_S - STORE_INTERVAL_S) == []


def test_withdrawn_offer_is_forgotten_at_once(harness: Harness) -> None:
    """Also after a restart."""
    harness.memory.on_withdrawn("ingest-0")

    assert (harness.memory.offers, harness.restart().offers) == ([], [])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([["a", ["#"]]], [CustodyOffer("a")]),
        ([["a", ["#"], ["parcel"]]], [CustodyOffer("a", ("#",), ("parcel",))]),
        ([["gw-2", [], []]], []),
        ("damaged", []),
    ],
)
def test_offers_of_earlier_versions_are_read(
    rows: object, expected: list[CustodyOffer]
) -> None:
    """Those without filters, of gateways, no longer count."""
    harness = Harness()
    harness.queue.put([], {KEY: json.dumps(rows)})

    assert harness.restart().offers == expected

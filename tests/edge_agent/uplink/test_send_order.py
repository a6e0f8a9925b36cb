"""No message is sent before an urgent one that was put earlier.

Not even if the link, the store behind it, or the queue changes between two steps of the
uplink. The connections are scripts; queue and uplink are real. Everything runs in one
thread: each step of a test is one pass of the uplink's loop, and its events are handled
together, as after a pass that a slow disk has delayed.
"""

import random
import time
from collections.abc import Callable, Sequence

import pytest

from edge_agent.queue.base import MessageDraft, QueuedMessage
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.in_flight import FlightLimits
from edge_agent.uplink.link_rate import RateLimiter, RatePeriod
from edge_agent.uplink.scheduler import CHUNK_BYTES, SenderProfile
from edge_agent.uplink.uplink import Uplink
from service_runtime.tls import Endpoint
from spatial_mqtt.batching import Fragment, FragmentJoiner
from spatial_mqtt.custody import CustodyOffer
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT, offer_topic
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    Publication,
    SentPublication,
    Session,
)

FIRST, SECOND = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)
URGENT = [5, 5, 4, 4]
"""Priorities of four waiting messages, in the order in which they are sent."""


class ScriptedConnection:
    """A connection whose broker answers as the test says, and records priorities."""

    def __init__(self, endpoint: Endpoint, handler: ConnectionHandler) -> None:
        self.endpoint = endpoint
        self.handler = handler
        self.is_up = False
        self.sent: list[int] = []
        self.publications: list[Publication] = []
        self._unanswered: list[int] = []

    def start(self) -> None:
        """The broker has accepted the connection, but confirmed no subscription."""
        self.is_up = True

    def stop(self) -> None:
        self.is_up = False

    def reconnect_soon(self) -> None:
        """Nothing to shorten."""

    def renew_if_stuck(self) -> None:
        """It never is."""

    def renew_if_unanswered(self, _silence_s: float) -> bool:
        """Each test has an answer in time."""
        return False

    def publish_together(
        self, publications: Sequence[Publication]
    ) -> list[SentPublication]:
        if not self.is_up:
            return []
        first = len(self.sent)
        self.sent += [p.priority or int(p.topic[-1]) for p in publications]
        self.publications += publications
        tokens = range(first, len(self.sent))
        self._unanswered += tokens
        return [
            SentPublication(token, max(100, len(publication.payload)))
            for token, publication in zip(tokens, publications, strict=True)
        ]

    def open(self) -> None:
        """The broker has confirmed the subscriptions."""
        self.is_up = True
        self.handler.on_up(False, 100)
        self.handler.on_subscribed()

    def lose(self) -> None:
        self.is_up = False
        self._unanswered.clear()
        self.handler.on_down("lost")

    def acknowledge(self, most: int | None = None) -> None:
        """The broker has what was sent; no store gives a receipt for it."""
        for token in self._unanswered[:most]:
            self.handler.on_published(token, None)
        del self._unanswered[:most]

    def offer(
        self,
        receiver: str = "gw",
        takes: tuple[str, ...] = (),
        *,
        is_withdrawn: bool = False,
    ) -> None:
        payload = CustodyOffer(receiver, ("/forward/#",), takes).encode()
        self.handler.on_message(
            IncomingMessage(
                offer_topic(receiver), b"" if is_withdrawn else payload,
                1, True, None, None, None, (1, 1),
            )
        )  # fmt: skip


class InterruptedQueue(MemoryQueue):
    """A queue in which something else happens just before the next lease."""

    meanwhile: Callable[[], None] | None = None

    def lease(
        self,
        limit: int = 1,
        max_bytes: int | None = None,
        *,
        priority: int | None = None,
        newest: bool = False,
    ) -> list[QueuedMessage]:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return super().lease(limit, max_bytes, priority=priority, newest=newest)


class Bench:
    """An uplink with scripted connections, whose clock the test sets."""

    def __init__(
        self,
        limiter: RateLimiter | None = None,
        *,
        is_relay: bool = False,
        max_awaiting: int = 2000,
        window_bytes: int = FlightLimits.window_bytes,
    ) -> None:
        limits = FlightLimits(
            window_bytes, max_awaiting, resend_after_s=600.0, offer_grace_s=3.0
        )
        self.queue = InterruptedQueue("n1", "boot", 10_000_000)
        self.connections: list[ScriptedConnection] = []
        self.later_s = 0.0
        self.uplink = Uplink(
            self.queue,
            SenderProfile("n1", is_relay, limits=limits),
            self._connect,
            limiter or RateLimiter(None),
            lambda: time.monotonic() + self.later_s,
        )

    @property
    def link(self) -> ScriptedConnection:
        """The connection in use."""
        return self.connections[-1]

    def put(self, *priorities: int, size_bytes: int = 0) -> None:
        topic = "/forward/1/2/pri{}"
        padding = random.Random(1).randbytes(size_bytes)  # does not compress
        self.queue.put([
            MessageDraft(p, topic.format(p), lambda i: str(i).encode() + padding)
            for p in priorities
        ])

    def run(self, *steps: Callable[[], object]) -> None:
        """Run the uplink; a step happens before each pass, then one pass sends."""
        left = [each for step in steps for each in (step, lambda: None)]
        left.append(self.uplink.stop)

        def beat() -> None:
            left.pop(0)()

        self.uplink.run(beat)

    def end_grace(self) -> None:
        """The broker offers no receipts in time."""
        self.later_s += 10.0

    def start(self) -> None:
        """Connect to a gateway that offers receipts."""
        self.uplink.switch_to(FIRST)
        self.link.open()
        self.link.offer()

    def open(self) -> None:
        """The broker in use has confirmed the subscriptions."""
        self.link.open()

    def acknowledge(self) -> None:
        """The broker in use acknowledges what was sent."""
        self.link.acknowledge()

    def _connect(
        self, endpoint: Endpoint, _session: Session, handler: ConnectionHandler
    ) -> ScriptedConnection:
        self.connections.append(ScriptedConnection(endpoint, handler))
        return self.connections[-1]


@pytest.fixture(autouse=True)
def short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass without an event ends at once."""
    monkeypatch.setattr("edge_agent.uplink.uplink.IDLE_POLL_S", 0.001)


@pytest.fixture
def bench() -> Bench:
    """Four urgent messages wait."""
    made = Bench()
    made.put(5, 4, 5, 4)
    return made


def test_lost_link_returns_urgent_messages_before_the_next_is_sent(
    bench: Bench,
) -> None:
    """The events of the lost link and of the next one may be handled together."""

    def reconnect() -> None:
        bench.put(3)
        bench.link.lose()
        bench.link.open()

    bench.run(bench.start, bench.acknowledge, reconnect)

    assert bench.link.sent == [*URGENT, *URGENT, 3]


def test_next_gateway_gets_urgent_messages_of_the_last_first(bench: Bench) -> None:
    """A gateway that was killed has acknowledged them by its broker only."""

    def switch() -> None:
        bench.put(3)
        bench.uplink.switch_to(SECOND)
        bench.link.open()

    bench.run(bench.start, bench.acknowledge, switch)

    assert bench.link.sent == [*URGENT, 3]


def test_withdrawn_offer_returns_urgent_messages_before_the_next_is_sent(
    bench: Bench,
) -> None:
    """They wait for a receipt that cannot come."""

    def withdraw() -> None:
        bench.put(3)
        bench.link.offer(is_withdrawn=True)

    bench.run(bench.start, bench.acknowledge, withdraw)

    assert bench.link.sent == [*URGENT, *URGENT, 3]


def test_held_urgent_messages_are_sent_first_to_a_store(bench: Bench) -> None:
    """A store that appears gets what a broker without one has acknowledged."""

    def offer() -> None:
        bench.put(3)
        bench.link.offer()

    def connect() -> None:
        bench.uplink.switch_to(FIRST)
        bench.link.open()

    bench.run(connect, bench.acknowledge, bench.end_grace, offer)

    assert bench.link.sent == [*URGENT, *URGENT, 3]


def test_message_chosen_before_a_switch_is_not_sent_to_the_next_gateway(
    bench: Bench,
) -> None:
    """Until the loop has handled the switch, urgent messages count as sent."""

    def switch_before_lease() -> None:
        bench.put(3)
        bench.queue.meanwhile = lambda: bench.uplink.switch_to(SECOND)

    bench.run(
        bench.start,
        bench.acknowledge,
        switch_before_lease,
        bench.open,
    )

    assert bench.link.sent == [*URGENT, 3]


def test_message_chosen_before_a_reconnect_is_not_sent_on_the_new_connection(
    bench: Bench,
) -> None:
    """The same, when the connection returns to the same gateway."""

    def reconnect() -> None:
        bench.link.lose()
        bench.link.start()

    def reconnect_before_lease() -> None:
        bench.put(3)
        bench.queue.meanwhile = reconnect

    bench.run(
        bench.start,
        bench.acknowledge,
        reconnect_before_lease,
        bench.open,
    )

    assert bench.link.sent == [*URGENT, *URGENT, 3]


def test_urgent_message_does_not_wait_for_receipts_of_routine_ones() -> None:
    """A gateway with a full disk acknowledges all, and stores urgent ones only."""
    node = Bench(max_awaiting=3)
    node.put(3, 3, 3, 3, 3)

    def put_alarm() -> None:
        node.acknowledge()
        node.put(3, 5)

    node.run(node.start, node.acknowledge, put_alarm)

    assert node.link.sent == [3, 3, 3, 3, 3, 5]


@pytest.mark.parametrize("rate_bps", [10_000, 64_000, 1_000_000, 10_000_000])
def test_large_message_is_sent_once_over_a_window_of_two_fragments(
    rate_bps: int,
) -> None:
    """It began again whenever the next fragment, or another message, did not fit."""
    node = Bench(window_bytes=2800)
    node.put(3, 2, 3, 2, size_bytes=20_000)

    def start() -> None:
        node.start()
        node.link.offer(takes=(BATCH_CONTENT, FRAGMENT_CONTENT))

    def carry() -> None:
        """The link carries a fragment."""
        node.later_s += 8 * CHUNK_BYTES / rate_bps
        node.link.acknowledge(1)
        if len(node.link.sent) % 7 == 0:
            node.put(1, 5)

    node.run(start, *[carry] * 160)

    joiner, whole, count = FragmentJoiner(), [], 0
    for each in node.link.publications:
        if each.content == FRAGMENT_CONTENT:
            count += 1
            whole.append(joiner.add(each.topic, Fragment.decode(each.payload)))
    sizes = [len(each) for each in whole if each is not None]
    assert len(sizes) == 4
    assert count == sum(-(-size // CHUNK_BYTES) for size in sizes)


@pytest.mark.parametrize(
    ("first", "later", "sent"),
    [(3, (5, 4, 5, 4, 3), [*URGENT, 3, 3]), (4, (5, 4), [5, 4, 4])],
)
def test_message_put_after_an_urgent_one_is_not_sent_with_earlier_ones(
    first: int, later: tuple[int, ...], sent: list[int]
) -> None:
    """A gateway sends several of a priority at once, and stores while it chooses."""
    relay = Bench(is_relay=True)

    def put_before_lease() -> None:
        relay.put(first)
        relay.queue.meanwhile = lambda: relay.put(*later)

    relay.run(relay.start, put_before_lease)

    assert relay.link.sent == sent


@pytest.mark.parametrize(
    ("override_from", "sent"), [(4, []), (3, [3, 3, 3]), (2, [3, 2, 3, 3, 2])]
)
def test_override_from_passes_a_closed_link_whatever_else_waits(
    override_from: int, sent: list[int]
) -> None:
    """Those below it have a share of the link only while it is open."""
    minute = 60
    night = RatePeriod(0, 120, 0)
    node = Bench(RateLimiter(None, [night], override_from, lambda: minute))
    node.put(1, 2, 3, 1, 2, 3, 1, 3)

    def open_link() -> None:
        nonlocal minute
        assert node.link.sent == sent
        minute = 120

    node.run(node.start, lambda: None, open_link)

    assert sorted(node.link.sent) == [1, 1, 1, 2, 2, 3, 3, 3]

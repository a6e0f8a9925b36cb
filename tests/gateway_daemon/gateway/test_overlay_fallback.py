import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import pytest

from edge_agent.queue.base import ExpiryPolicy, MessageDraft, QueueFullError
from edge_agent.queue.sqlite_queue import SqliteQueue
from gateway_daemon.config import read_gateway_settings
from gateway_daemon.gateway.downstream import make_store
from gateway_daemon.gateway.overlay_fallback import (
    HOLD_S,
    MAX_EMPTY_TRIES,
    REPEAT_WINDOW,
    FallbackRules,
    OverlayFallback,
)
from gateway_daemon.overlay.messages import (
    CarriedMessage,
    OverlayMessage,
    PublicationResult,
)
from gateway_daemon.overlay.peers import PeerSummary
from gateway_daemon.overlay.runner import OverlayStatus
from service_runtime.settings import SettingsError
from spatial_mqtt.senml import MessageId

TOPIC = "/3/1/2/0"


BOTH_ANSWER = OverlayStatus(has_peers=True, peer_summary=PeerSummary(2))


@dataclass
class Overlay:
    """Records what is published."""

    status: OverlayStatus = BOTH_ANSWER
    sent: list[str] = field(default_factory=list)
    is_cut: bool = False

    def set_peers(self, *silent: str, return_count: int = 0) -> None:
        """Set which gateways do not answer, and how often some answered again."""
        summary = PeerSummary(2, silent, return_count)
        self.status = replace(self.status, peer_summary=summary)

    def wake(self) -> None:
        pass

    def set_broker_outage(self, is_out_of_reach: bool) -> None:
        self.is_cut = is_out_of_reach

    def publish(self, message_id: str, priority: int, carried: CarriedMessage) -> None:
        self.sent.append(message_id)


@dataclass
class Broker:
    """The broker state of an uplink."""

    unserved_since_s: float | None = None


class FallbackSetup:
    """An `OverlayFallback` with a clock that the test sets."""

    def __init__(
        self,
        folder: Path,
        rules: FallbackRules,
        ttl_s: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self.now_s = 100.0
        self.overlay = Overlay()
        expiry = ExpiryPolicy(lambda: self.now_s, ttl_s)
        path = folder / "overlay.db"
        queue = SqliteQueue(path, "g", "boot", 1_000_000, expiry=expiry)
        self.fallback = OverlayFallback(queue, rules, lambda: self.now_s)
        self.fallback.set_overlay(self.overlay)

    def poll(self, after_s: float = 0.0) -> list[int]:
        self.now_s += after_s
        self.fallback.poll(self.now_s)
        sent, self.overlay.sent = self.overlay.sent, []
        return [MessageId.parse(message_id).seq for message_id in sent]

    def finish(self, seq: int, reached: int = 3, is_whole: bool = True) -> None:
        ended = PublicationResult(str(id_of(seq)), reached, is_whole)
        self.fallback.on_result(ended)

    def waiting_count(self) -> int:
        return sum(each.rows for each in self.fallback.queue.stats().depth.values())


def id_of(seq: int) -> MessageId:
    return MessageId("n1", "bb", seq)


def draft(seq: int, priority: int) -> MessageDraft:
    return MessageDraft(priority, TOPIC, lambda _id: b"x", id_of(seq))


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[FallbackSetup]:
    created = FallbackSetup(tmp_path, FallbackRules(out_of_reach_s=5.0))
    yield created
    created.fallback.close()


def test_urgent_messages_use_the_overlay_once_their_broker_is_unreachable(
    setup: FallbackSetup,
) -> None:
    """Also messages stored shortly before the outage was noticed; routine ones wait."""
    broker = Broker()
    drafts = [draft(1, 5), draft(2, 2), draft(3, 4)]
    setup.fallback.on_stored(drafts, [d.id for d in drafts], broker)
    assert setup.poll() == []

    broker.unserved_since_s = setup.now_s
    assert setup.poll(after_s=4.0) == []
    assert setup.poll(after_s=1.0) == [1, 3]
    assert setup.poll(after_s=1.0) == []
    assert setup.overlay.is_cut

    broker.unserved_since_s = None
    setup.poll(after_s=60.0)
    assert not setup.overlay.is_cut


def test_emergency_is_not_displaced_by_other_urgent_messages(
    setup: FallbackSetup, caplog: pytest.LogCaptureFixture
) -> None:
    """A lost broker is noticed late, and many others may be stored until then."""
    broker = Broker()
    drafts = [draft(seq, 5 if seq == 1 else 4) for seq in range(1, 1003)]
    setup.fallback.on_stored(drafts, [d.id for d in drafts], broker)
    assert "more than 1000 messages of priority 4 within 60 s" in caplog.text

    broker.unserved_since_s = setup.now_s
    assert setup.poll(after_s=5.0)[0] == 1


def test_duplicate_is_not_sent_by_the_overlay(setup: FallbackSetup) -> None:
    """The first copy has been stored and sent already."""
    setup.fallback.on_stored([draft(1, 5)], [None], None)

    assert setup.poll() == []


def test_urgent_message_without_a_broker_uses_the_overlay(setup: FallbackSetup) -> None:
    """No Manager has sent a broker table yet."""
    setup.fallback.on_stored([draft(1, 5)], [id_of(1)], None)

    assert setup.poll() == [1]


def test_message_is_kept_until_all_subscribers_have_it(setup: FallbackSetup) -> None:
    """Subscribers that were given up are tried again at growing intervals."""
    setup.fallback.put([draft(1, 3)])
    assert setup.poll() == [1]
    setup.finish(1, is_whole=False)
    assert setup.poll(after_s=1.0) == []
    assert setup.poll(after_s=1.0) == [1]
    assert setup.waiting_count() == 1
    setup.finish(1)

    assert setup.waiting_count() == 0
    assert setup.poll(after_s=300.0) == []


def test_emergency_is_repeated(setup: FallbackSetup) -> None:
    """The overlay may have been partitioned; receivers drop duplicates by id."""
    setup.fallback.put([draft(1, 5)])
    times = []
    for _ in range(60):
        if setup.poll(after_s=1.0):
            times.append(setup.now_s - 101.0)
            setup.finish(1)

    assert times == [0.0, 10.0, 40.0]
    assert setup.waiting_count() == 0


def publication_times(setup: FallbackSetup, seconds: int) -> list[float]:
    """Times of the single message's publications, each of which ends at once."""
    times = []
    for _ in range(seconds):
        if setup.poll(after_s=1.0):
            times.append(setup.now_s - 101.0)
            setup.finish(1)
    return times


def test_emergency_is_held_for_peers_that_do_not_answer(setup: FallbackSetup) -> None:
    """It is published once more when a peer returns, until all have returned."""
    setup.overlay.set_peers("a", "b")
    setup.fallback.put([draft(1, 5)])
    assert publication_times(setup, 300) == [0.0, 10.0, 40.0]
    assert setup.waiting_count() == 1

    setup.overlay.set_peers("b", return_count=1)
    assert publication_times(setup, 100) == [300.0]
    assert setup.waiting_count() == 1

    setup.overlay.set_peers(return_count=2)
    assert publication_times(setup, 100) == [400.0]
    assert setup.waiting_count() == 0


def test_new_emergency_does_not_wait_behind_held_ones(setup: FallbackSetup) -> None:
    """When a gateway answers again, a few are in flight at once, the newest first."""
    held = list(range(1, 31))
    setup.overlay.set_peers("a")
    setup.fallback.put([draft(seq, 5) for seq in held])
    for _ in range(600):
        for seq in setup.poll(after_s=0.5):
            setup.finish(seq)
    setup.overlay.set_peers(return_count=1)
    first = setup.poll()
    assert len(first) == REPEAT_WINDOW
    assert setup.poll(after_s=1.0) == []
    setup.fallback.put([draft(99, 5)])
    assert setup.poll() == [99]

    repeated, sent = list(first), first
    while sent:
        for seq in sent:
            setup.finish(seq)
        sent = [seq for seq in setup.poll() if seq != 99]
        repeated += sent
    assert repeated == held[::-1]
    assert setup.waiting_count() == 1


def test_emergency_is_not_held_forever(setup: FallbackSetup) -> None:
    """After an hour a peer is given up; the gateway may have been removed."""
    setup.overlay.set_peers("a", "b")
    setup.fallback.put([draft(1, 5)])
    publication_times(setup, 100)
    setup.poll(after_s=HOLD_S)

    assert setup.waiting_count() == 0


def test_message_below_emergency_priority_is_not_held(setup: FallbackSetup) -> None:
    """Its broker receives it."""
    setup.overlay.set_peers("a", "b")
    setup.fallback.put([draft(1, 4)])

    assert publication_times(setup, 100) == [0.0]
    assert setup.waiting_count() == 0


def test_message_without_receivers_is_retried_often_at_first(
    setup: FallbackSetup,
) -> None:
    """Rings that have just merged may hide their subscribers for ten seconds."""
    setup.fallback.put([draft(1, 5)])
    times = []
    for _ in range(40):
        if setup.poll(after_s=1.0):
            times.append(setup.now_s - 101.0)
            setup.finish(1, reached=0)

    assert times == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 22.0, 38.0]


def test_message_is_dropped_after_enough_tries_without_receivers(
    setup: FallbackSetup,
) -> None:
    """Then the topic is taken to have no subscribers."""
    setup.fallback.put([draft(1, 1)])
    tries = 0
    for _ in range(400):
        if setup.poll(after_s=1.0):
            tries += 1
            setup.finish(1, reached=0)

    assert tries == MAX_EMPTY_TRIES
    assert setup.waiting_count() == 0


def test_messages_wait_while_there_are_no_peers(setup: FallbackSetup) -> None:
    """They are sent as soon as a peer is known."""
    setup.overlay.status = OverlayStatus()
    setup.fallback.put([draft(1, 5)])
    assert setup.poll() == []
    setup.overlay.status = BOTH_ANSWER

    assert setup.poll() == [1]


def test_emergency_does_not_wait_for_space_in_the_window(setup: FallbackSetup) -> None:
    """Routine messages whose receivers are gone may fill the window."""
    setup.fallback.put([draft(seq, 1) for seq in range(1, 101)])
    assert len(setup.poll()) == 32
    setup.fallback.put([draft(200, 5)])

    assert setup.poll() == [200]


def publish_refused(setup: FallbackSetup, first: int, count: int) -> None:
    """Put messages; a gateway with a full disk refuses each of them."""
    setup.fallback.put([draft(seq, 3) for seq in range(first, first + count)])
    while seqs := [seq for seq in setup.poll() if seq >= first]:
        for seq in seqs:
            setup.finish(seq, is_whole=False)


def test_refused_messages_do_not_fill_the_window(setup: FallbackSetup) -> None:
    """One gateway's disk is full: all others have each message at once."""
    publish_refused(setup, 1, 500)
    setup.fallback.put([draft(1000, 2)])

    assert setup.poll() == [1000]
    assert setup.waiting_count() == 501


def test_refused_messages_are_tried_two_a_second_until_one_succeeds(
    setup: FallbackSetup,
) -> None:
    """Each try goes to all gateways; when the disk has space, all follow soon."""
    publish_refused(setup, 1, 500)
    tried: set[int] = set()
    count = 0
    for _ in range(3000):
        for seq in setup.poll(after_s=0.2):
            count += 1
            tried.add(seq)
            setup.finish(seq, is_whole=False)
    assert len(tried) == 500
    assert 900 <= count <= 1500

    space_s = setup.now_s
    while setup.waiting_count():
        for seq in setup.poll(after_s=0.2):
            setup.finish(seq)
    assert setup.now_s - space_s <= 60.0


def test_refused_messages_that_are_tried_leave_space_in_the_window(
    setup: FallbackSetup,
) -> None:
    """Their results take long where a gateway does not answer at all."""
    publish_refused(setup, 1, 500)
    setup.poll(after_s=600.0)
    setup.fallback.put([draft(1000, 2)])

    assert setup.poll() == [1000]


def test_refused_message_expires(tmp_path: Path) -> None:
    """The queue counts it as dropped."""
    ttl_s = {3: 600.0}
    setup = FallbackSetup(tmp_path, FallbackRules(ttl_s=ttl_s), ttl_s)
    publish_refused(setup, 1, 1)
    assert setup.poll(after_s=599.0) == [1]
    setup.finish(1, is_whole=False)
    setup.poll(after_s=60.0)

    assert setup.waiting_count() == 0
    assert setup.fallback.queue.stats().drop_reasons[3] == {"expired": 1}
    setup.fallback.close()


@pytest.mark.parametrize(("priority", "reached"), [(5, 3), (5, 0), (3, 0)])
def test_message_that_is_never_complete_expires(
    tmp_path: Path, priority: int, reached: int
) -> None:
    """An emergency that one gateway cannot store, or one that reaches no gateway."""
    ttl_s = {priority: 3600.0}
    setup = FallbackSetup(tmp_path, FallbackRules(ttl_s=ttl_s), ttl_s)
    setup.fallback.put([draft(1, priority)])
    for _ in range(3660):
        if setup.poll(after_s=1.0):
            setup.finish(1, reached=reached, is_whole=False)

    assert setup.waiting_count() == 0
    assert setup.fallback.queue.stats().drop_reasons[priority] == {"expired": 1}
    setup.fallback.close()


def test_repeated_emergency_expires_without_a_loss(tmp_path: Path) -> None:
    """All had it at the first publication."""
    ttl_s = {5: 30.0}
    setup = FallbackSetup(tmp_path, FallbackRules(ttl_s=ttl_s), ttl_s)
    setup.fallback.put([draft(1, 5)])

    assert publication_times(setup, 60) == [0.0, 10.0]
    assert setup.waiting_count() == 0
    assert not setup.fallback.queue.stats().drop_reasons[5]
    setup.fallback.close()


def publish_unheard(setup: FallbackSetup, seqs: Sequence[int]) -> None:
    """Put messages to topics without a subscriber, and end each publication."""
    setup.fallback.put([draft(seq, 3) for seq in seqs])
    while sent := [seq for seq in setup.poll() if seq in seqs]:
        for seq in sent:
            setup.finish(seq, reached=0)


def drain_unheard(setup: FallbackSetup) -> float:
    """Poll until no message waits; returns how long that took."""
    began_s = setup.now_s
    while setup.waiting_count():
        for seq in setup.poll(after_s=0.5):
            setup.finish(seq, reached=0)
        assert setup.now_s - began_s < 600.0
    return setup.now_s - began_s


def test_messages_without_receivers_do_not_fill_the_window(
    setup: FallbackSetup,
) -> None:
    """32 of them held up all others for three minutes."""
    publish_unheard(setup, range(1, 501))
    setup.fallback.put([draft(1000, 2)])

    assert setup.poll() == [1000]
    assert setup.waiting_count() == 501


def test_topic_without_receivers_for_three_minutes_has_no_subscribers(
    setup: FallbackSetup,
) -> None:
    """Then its messages leave at the first answer, until it has a subscriber again."""
    publish_unheard(setup, range(1, 501))
    assert 180.0 <= drain_unheard(setup) <= 300.0

    publish_unheard(setup, range(501, 601))
    assert setup.waiting_count() == 0

    setup.fallback.put([draft(601, 3)])
    assert setup.poll() == [601]
    setup.finish(601)
    publish_unheard(setup, [602])
    assert setup.waiting_count() == 1


def test_gateway_that_returns_may_have_subscribers(setup: FallbackSetup) -> None:
    """Rings that have just merged may hide its subscribers for ten seconds."""
    publish_unheard(setup, [1])
    drain_unheard(setup)
    setup.overlay.set_peers(return_count=1)
    publish_unheard(setup, [2])
    assert setup.waiting_count() == 1

    assert setup.poll(after_s=2.0) == [2]
    setup.finish(2)
    assert setup.waiting_count() == 0


def test_silent_gateway_may_have_subscribers(setup: FallbackSetup) -> None:
    """What it missed last is tried for three minutes, however long it was away."""
    setup.overlay.set_peers("gateway-2")
    publish_unheard(setup, [1])
    drain_unheard(setup)
    publish_unheard(setup, [2])
    assert setup.waiting_count() == 1

    setup.overlay.set_peers(return_count=1)
    assert setup.poll(after_s=2.0) == [2]
    setup.finish(2)
    assert setup.waiting_count() == 0


def test_emergency_without_receivers_is_tried_for_three_minutes(
    setup: FallbackSetup,
) -> None:
    """Also to a topic that has had no subscriber for long; it needs no window."""
    publish_unheard(setup, [1])
    drain_unheard(setup)
    setup.fallback.put([draft(2, 5)])
    began_s = setup.now_s
    drain_unheard(setup)

    assert setup.now_s - began_s > 180.0


def received(seq: int, priority: int) -> tuple[OverlayMessage, CarriedMessage]:
    return OverlayMessage(str(id_of(seq)), priority), CarriedMessage(TOPIC, bytes(1000))


def test_messages_that_cannot_be_stored_are_named(tmp_path: Path) -> None:
    """The urgent ones are stored if there is space for them; malformed ones never."""
    queue = SqliteQueue(tmp_path / "local.db", "g", "boot", 30_000)

    def store_drafts(drafts: Sequence[MessageDraft]) -> bool:
        try:
            queue.put(drafts)
        except QueueFullError:
            return False
        return True

    malformed = OverlayMessage("junk", 3), CarriedMessage(TOPIC, b"")
    earlier = [received(n, 3) for n in range(100, 140)]
    batch = [received(n, 4 if n == 20 else 2) for n in range(40)]
    store = make_store(store_drafts)
    assert not store([malformed, *earlier])

    refused = store([malformed, *batch])

    assert set(refused) == {str(id_of(n)) for n in range(40) if n != 20}
    leased = queue.lease(100)
    assert leased[0].id == id_of(20)
    assert {message.priority for message in leased} == {4, 3}
    queue.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('route = "overlay"', "overlay.peers must be another gateway's broker when"),
        ('[overlay]\nplace = "/valley/7"', "overlay.place: topic must be a cell's"),
        ('[overlay]\npeers = ["gateway-2"]', "overlay.peers: broker url must be mqtt:"),
        ("[overlay]\nfrom_priority = 0", "overlay.from_priority must be between 1 and"),
        ("[overlay]\nrate_bytes_per_s = 3", "overlay.rate_bytes_per_s must be"),
    ],
)
def test_settings_error_names_the_field(
    tmp_path: Path, text: str, message: str
) -> None:
    """The message holds the field, the rule and the value found."""
    path = tmp_path / "gateway.toml"
    head = '[gateway]\nid = "g"\nbroker = "mqtts://b"\nmanagers = ["mqtts://m"]\n'
    path.write_text(head + text)
    with pytest.raises(SettingsError, match=re.escape(message)):
        read_gateway_settings(path)

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edge_agent.queue.base import MessageDraft, QueuedMessage
from edge_agent.queue.sqlite_queue import SqliteQueue
from gateway_daemon.config import read_gateway_settings
from gateway_daemon.gateway.overlay_fallback import (
    HOLD_S,
    MAX_EMPTY_TRIES,
    FallbackRules,
    OverlayFallback,
)
from service_runtime.settings import SettingsError
from spatial_mqtt.senml import MessageId

TOPIC = "/3/1/2/0"


@dataclass
class Overlay:
    """Notes what is published."""

    has_peers: bool = True
    has_silent_peers: bool = False
    return_count: int = 0
    peer_summary: str = "all 2 others answer"
    sent: list[QueuedMessage] = field(default_factory=list)

    is_cut: bool = False

    def wake(self) -> None:
        pass

    def set_broker_outage(self, is_out_of_reach: bool) -> None:
        self.is_cut = is_out_of_reach

    def publish(self, message: QueuedMessage, age_s: float) -> None:
        self.sent.append(message)


@dataclass
class Broker:
    """What an uplink tells of its broker."""

    unserved_since_s: float | None = None


class Bench:
    """A detour with a clock that is set by hand."""

    def __init__(self, folder: Path, rules: FallbackRules) -> None:
        self.now_s = 100.0
        self.overlay = Overlay()
        queue = SqliteQueue(folder / "overlay.db", "g", "boot", 1_000_000)
        self.detour = OverlayFallback(queue, rules, lambda: self.now_s)
        self.detour.set_overlay(self.overlay)

    def look(self, after_s: float = 0.0) -> list[int]:
        self.now_s += after_s
        self.detour.poll(self.now_s)
        sent, self.overlay.sent = self.overlay.sent, []
        return [message.id.seq for message in sent]

    def end(self, seq: int, reached: int = 3, is_whole: bool = True) -> None:
        self.detour.on_result(str(id_of(seq)), reached, is_whole)

    def waiting(self) -> int:
        return sum(each.rows for each in self.detour.queue.stats().depth.values())


def id_of(seq: int) -> MessageId:
    return MessageId("n1", "bb", seq)


def draft(seq: int, priority: int) -> MessageDraft:
    return MessageDraft(priority, TOPIC, lambda _id: b"x", id_of(seq))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, FallbackRules(out_of_reach_s=5.0))
    yield made
    made.detour.close()


def test_what_is_urgent_takes_the_detour_once_its_broker_is_out_of_reach(
    bench: Bench,
) -> None:
    """Also what was put shortly before anybody noticed; routine messages wait."""
    broker = Broker()
    drafts = [draft(1, 5), draft(2, 2), draft(3, 4)]
    bench.detour.on_stored(drafts, [d.id for d in drafts], broker)
    assert bench.look() == []

    broker.unserved_since_s = bench.now_s
    assert bench.look(after_s=4.0) == []
    assert bench.look(after_s=1.0) == [1, 3]
    assert bench.look(after_s=1.0) == []
    assert bench.overlay.is_cut

    broker.unserved_since_s = None
    bench.look(after_s=60.0)
    assert not bench.overlay.is_cut


def test_a_duplicate_takes_no_detour(bench: Bench) -> None:
    """It was put before, and took it then."""
    bench.detour.on_stored([draft(1, 5)], [None], None)

    assert bench.look() == []


def test_without_a_broker_at_all_there_is_the_overlay(bench: Bench) -> None:
    """No Manager has told of one yet."""
    bench.detour.on_stored([draft(1, 5)], [id_of(1)], None)

    assert bench.look() == [1]


def test_a_message_is_kept_until_everybody_has_it(bench: Bench) -> None:
    """Who had to be given up is tried again, less and less often."""
    bench.detour.put([draft(1, 3)])
    assert bench.look() == [1]
    bench.end(1, is_whole=False)
    assert bench.look(after_s=1.0) == []
    assert bench.look(after_s=1.0) == [1]
    assert bench.waiting() == 1
    bench.end(1)

    assert bench.waiting() == 0
    assert bench.look(after_s=300.0) == []


def test_an_emergency_is_repeated(bench: Bench) -> None:
    """The overlay may have been in pieces; who has it knows its id."""
    bench.detour.put([draft(1, 5)])
    times = []
    for _ in range(60):
        if bench.look(after_s=1.0):
            times.append(bench.now_s - 101.0)
            bench.end(1)

    assert times == [0.0, 10.0, 40.0]
    assert bench.waiting() == 0


def everything_sent(bench: Bench, seconds: int) -> list[float]:
    """When the one message was published; each publication ends at once."""
    times = []
    for _ in range(seconds):
        if bench.look(after_s=1.0):
            times.append(bench.now_s - 101.0)
            bench.end(1)
    return times


def test_an_emergency_is_held_for_who_does_not_answer(bench: Bench) -> None:
    """And published once more when somebody is back, until all are."""
    bench.overlay.has_silent_peers = True
    bench.detour.put([draft(1, 5)])
    assert everything_sent(bench, 300) == [0.0, 10.0, 40.0]
    assert bench.waiting() == 1

    bench.overlay.return_count += 1
    assert everything_sent(bench, 100) == [300.0]
    assert bench.waiting() == 1

    bench.overlay.return_count += 1
    bench.overlay.has_silent_peers = False
    assert everything_sent(bench, 100) == [400.0]
    assert bench.waiting() == 0


def test_an_emergency_is_not_held_for_ever(bench: Bench) -> None:
    """Who is away for an hour is not waited for; a gateway may be down for good."""
    bench.overlay.has_silent_peers = True
    bench.detour.put([draft(1, 5)])
    everything_sent(bench, 100)
    bench.look(after_s=HOLD_S)

    assert bench.waiting() == 0


def test_what_is_no_emergency_is_not_held(bench: Bench) -> None:
    """Its broker gets it."""
    bench.overlay.has_silent_peers = True
    bench.detour.put([draft(1, 4)])

    assert everything_sent(bench, 100) == [0.0]
    assert bench.waiting() == 0


def test_what_nobody_heard_is_tried_often_at_first(bench: Bench) -> None:
    """Rings that have just met may hide their subscribers for ten seconds."""
    bench.detour.put([draft(1, 5)])
    times = []
    for _ in range(40):
        if bench.look(after_s=1.0):
            times.append(bench.now_s - 101.0)
            bench.end(1, reached=0)

    assert times == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 22.0, 38.0]


def test_it_is_believed_at_last_that_nobody_listens(bench: Bench) -> None:
    """Then the message has no taker, and is not kept."""
    bench.detour.put([draft(1, 1)])
    tries = 0
    for _ in range(400):
        if bench.look(after_s=1.0):
            tries += 1
            bench.end(1, reached=0)

    assert tries == MAX_EMPTY_TRIES
    assert bench.waiting() == 0


def test_alone_messages_wait(bench: Bench) -> None:
    """There is nobody to send to."""
    bench.overlay.has_peers = False
    bench.detour.put([draft(1, 5)])
    assert bench.look() == []
    bench.overlay.has_peers = True

    assert bench.look() == [1]


def test_an_emergency_does_not_wait_for_a_place_in_the_window(bench: Bench) -> None:
    """Routine messages whose takers are gone may fill it."""
    bench.detour.put([draft(seq, 1) for seq in range(1, 101)])
    assert len(bench.look()) == 32
    bench.detour.put([draft(200, 5)])

    assert bench.look() == [200]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('route = "overlay"', "overlay.peers must be another gateway's broker when"),
        ('[overlay]\nplace = "/valley/7"', "overlay.place: topic must be a cell's"),
        ('[overlay]\npeers = ["gateway-2"]', "overlay.peers: broker url must be mqtt:"),
        ("[overlay]\nfrom_priority = 0", "overlay.from_priority must be between 1 and"),
        ("[overlay]\nrate_bytes_per_s = 3", "overlay.rate_bytes_per_s must be"),
    ],
)
def test_a_mistake_in_the_settings_is_named(
    tmp_path: Path, text: str, words: str
) -> None:
    """The field, the rule and what was found."""
    path = tmp_path / "gateway.toml"
    head = '[gateway]\nid = "g"\nbroker = "mqtt://b"\nmanagers = ["mqtt://m"]\n'
    path.write_text(head + text)
    with pytest.raises(SettingsError, match=re.escape(words)):
        read_gateway_settings(path)

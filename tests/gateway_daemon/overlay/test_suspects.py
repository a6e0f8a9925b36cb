"""Suspected nodes: a publication is complete only if they have the message as well."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest

from experiments.overlay_study.baselines import SkipGraph
from gateway_daemon.overlay.forwarder import Forwarder
from gateway_daemon.overlay.keys import VECTOR_BITS
from gateway_daemon.overlay.messages import (
    DeliverMessage,
    ForwarderAction,
    ForwarderPacket,
    MessageCopy,
    OverlayMessage,
    PublicationDone,
    RangeReport,
    RankedNode,
    SendPacket,
)
from gateway_daemon.overlay.partition import RangePart
from gateway_daemon.overlay.peers import DEFAULT_TIMEOUTS

MESSAGE = OverlayMessage("m", 4)
LEFT_NEIGHBOURS = 4
MAX_PACKETS = 5000


@dataclass
class View:
    """Nodes that a node knows."""

    rights: list[int] = field(default_factory=list)
    lefts: list[int] = field(default_factory=list)

    def right_neighbours(self) -> list[RankedNode[int]]:
        return [RankedNode(key, place) for place, key in enumerate(self.rights)]

    def left_neighbours(self) -> list[int]:
        return self.lefts


def parts(actions: list[ForwarderAction[int]]) -> list[tuple[int, int, int]]:
    """Receiver and range of each copy."""
    return [
        (a.to, a.packet.low, a.packet.high)
        for a in actions
        if isinstance(a, SendPacket) and isinstance(a.packet, MessageCopy)
    ]


def is_whole(actions: list[ForwarderAction[int]]) -> bool:
    """What the report among the actions says."""
    (report,) = (
        a.packet
        for a in actions
        if isinstance(a, SendPacket) and isinstance(a.packet, RangeReport)
    )
    return report.is_whole


def node_with_suspect(view: View, suspect: int) -> Forwarder[int]:
    """Node 10, whose neighbour did not answer a copy at 0 s."""
    node = Forwarder(10, view)
    early = MessageCopy(0, OverlayMessage("early", 4), 1, 99, 0)
    for action in node.receive(0, early, 0.0):
        match action:
            case SendPacket(to, MessageCopy(number)) if to != suspect:
                node.receive(to, RangeReport(number, 1, ()), 0.1)
            case _:
                pass
    node.on_timer(1.0 + DEFAULT_TIMEOUTS.receipt_timeout_s)
    return node


def test_the_first_head_right_of_a_suspect_covers_it() -> None:
    """And the nodes between them, which only the head knows."""
    node = node_with_suspect(View(rights=[11, 13]), suspect=11)

    sent = node.receive(0, MessageCopy(1, MESSAGE, 10, 99, 0), 14.0)

    assert parts(sent) == [(13, 11, 99)]


def test_a_range_with_only_suspects_to_the_right_is_not_whole() -> None:
    node = node_with_suspect(View(rights=[11]), suspect=11)

    sent = node.receive(0, MessageCopy(1, MESSAGE, 10, 99, 0), 14.0)

    assert parts(sent) == []
    assert not is_whole(sent)


def test_the_node_before_a_suspect_to_the_left_covers_it() -> None:
    node = node_with_suspect(View(lefts=[3, 8]), suspect=8)

    sent = node.receive(0, MessageCopy(1, MESSAGE, 5, 11, 0), 14.0)

    assert parts(sent) == [(3, 5, 10)]


def test_a_range_with_only_suspects_to_the_left_is_not_whole() -> None:
    node = node_with_suspect(View(lefts=[8]), suspect=8)

    sent = node.receive(0, MessageCopy(1, MESSAGE, 5, 11, 0), 14.0)

    assert parts(sent) == []
    assert not is_whole(sent)


def test_a_range_left_of_which_no_node_is_known_is_whole() -> None:
    """The left neighbour is outside it, suspected or not."""
    node = node_with_suspect(View(lefts=[3]), suspect=3)

    sent = node.receive(0, MessageCopy(1, MESSAGE, 5, 11, 0), 14.0)

    assert parts(sent) == []
    assert is_whole(sent)


def test_a_relay_covers_suspects_left_of_the_first_known_head() -> None:
    """A publisher that relays for another one, and knows a head from its own reports.

    Its right neighbour, at the start of the range, is suspected.
    """
    node = Forwarder(0, View(rights=[11]))
    node.publish(OverlayMessage("own", 4), 10, 99, 0.0)
    node.receive(11, RangeReport(0, 2, (RankedNode(13, 0),)), 0.1)
    node.receive(5, MessageCopy(0, OverlayMessage("early", 4), 10, 12, 0), 1.0)
    node.on_timer(1.0 + DEFAULT_TIMEOUTS.receipt_timeout_s)

    sent = node.receive(5, MessageCopy(1, MESSAGE, 10, 99, 0), 14.0)

    assert parts(sent) == [(13, 10, 99)]


class Ring:
    """Forwarders of one ring: publisher 0, other nodes, and subscribers from `low`.

    Views are those of a converged Skip Graph, which still contains dead nodes.
    """

    def __init__(self, chance: Random, size: int, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.dead: set[int] = set()
        self.cut: set[tuple[int, int]] = set()
        self.now_s = 0.0
        self.received: list[int] = []
        self.packets: deque[tuple[int, int, ForwarderPacket[int]]] = deque()
        self.results: list[PublicationDone[int]] = []
        self.chance, self.loss = chance, 0.0
        graph = SkipGraph([chance.getrandbits(VECTOR_BITS) for _ in range(size)])
        self.nodes = {rank: self._node(graph, rank) for rank in range(size)}

    def _node(self, graph: SkipGraph, rank: int) -> Forwarder[int]:
        nearest = range(max(0, rank - LEFT_NEIGHBOURS), rank)
        lefts = sorted({*graph.left_neighbours(rank), *nearest})
        node = Forwarder(rank, View(sorted(graph.right_neighbours(rank)), lefts))
        node.contacts = lambda: self.nodes
        return node

    def reachable(self) -> list[int]:
        """Return the subscribers that the publisher can reach by way of any nodes."""
        found = [0]
        for rank in found:
            found += [
                to
                for to in self.nodes
                if to not in found and (rank, to) not in self.cut
            ]
        return sorted(rank for rank in found if self.low <= rank < self.high)

    def publish(self, id_: str) -> PublicationDone[int]:
        """Publish a message, and return its result when no packet is left."""
        self.received.clear()
        self.results.clear()
        message = OverlayMessage(id_, 4)
        self._act(0, self.nodes[0].publish(message, self.low, self.high, self.now_s))
        for _ in range(MAX_PACKETS):
            if self.packets:
                sender, to, packet = self.packets.popleft()
                if to not in self.dead:
                    done = self.nodes[to].receive(sender, packet, self.now_s)
                    self._act(to, done)
            elif not self._wait():
                (result,) = self.results
                return result
        raise AssertionError("packets without end")

    def _wait(self) -> bool:
        """Advance the time to the next timeout, if any."""
        live = [rank for rank in self.nodes if rank not in self.dead]
        dues = {r: s for r in live if (s := self.nodes[r].next_due_s()) is not None}
        if dues:
            self.now_s = min(dues.values())
        for rank, due_s in dues.items():
            if due_s <= self.now_s:
                self._act(rank, self.nodes[rank].on_timer(self.now_s))
        return bool(dues)

    def _act(self, rank: int, actions: list[ForwarderAction[int]]) -> None:
        for action in actions:
            match action:
                case DeliverMessage():
                    self.received.append(rank)
                case PublicationDone():
                    self.results.append(action)
                case SendPacket(to, packet) if self.chance.random() >= self.loss:
                    if (rank, to) not in self.cut:
                        self.packets.append((rank, to, packet))
                case _:
                    pass


def ring_with_suspects(seed: int) -> Ring:
    """Return a ring in which packets were lost and nodes may be dead."""
    chance = Random(seed)
    size = chance.randint(3, 14)
    low = chance.randint(1, size - 1)
    ring = Ring(chance, size, low, chance.randint(low + 1, size))
    ring.dead = set(chance.sample(range(1, size), chance.choice([0, 0, 0, 1, 2])))
    if chance.random() < 0.5:
        ring.publish("learn")  # the publisher then knows heads
    ring.loss = chance.choice([0.2, 0.5, 0.8])
    ring.publish("early")
    ring.loss = 0.0
    return ring


@pytest.mark.parametrize("seed", range(300))
def test_a_complete_publication_has_reached_all_live_subscribers(seed: int) -> None:
    """With random suspects, dead or alive; and all are reached when suspicions end."""
    ring = ring_with_suspects(seed)
    subscribers = set(range(ring.low, ring.high)) - ring.dead

    first = ring.publish("first")

    assert not first.is_complete or set(ring.received) == subscribers
    ring.now_s += DEFAULT_TIMEOUTS.suspect_s
    again = ring.publish("again")
    assert not again.is_complete or set(ring.received) == subscribers
    if not ring.dead:
        assert again.is_complete
        assert set(ring.received) == subscribers


@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize("seed", range(150))
def test_a_broken_link_hides_no_subscriber_that_others_reach(
    seed: int, links: int
) -> None:
    """In one direction or in both; with heads known to the publisher or without."""
    chance = Random(seed)
    size = chance.choice([3, 4, 5, 8, 12, 20, 32])
    ring = Ring(chance, size, chance.randint(1, min(3, size - 2)), size)
    if chance.random() < 0.5:
        ring.publish("learn")
    for _ in range(links):
        ends = chance.choice([range(size), [at := chance.randrange(size - 1), at + 1]])
        one, other = chance.sample(ends, 2)
        ring.cut |= {(one, other)} | chance.choice([set(), {(other, one)}])

    result = ring.publish("m")

    assert sorted(ring.received) == ring.reachable()
    assert not result.is_complete or ring.received


def test_a_relay_names_the_range_that_it_does_not_reach() -> None:
    """And the next node on the way back sends a copy there itself."""
    relay = Forwarder(4, View(rights=[5]))
    relay.receive(0, MessageCopy(0, MESSAGE, 4, 9, 0), 0.0)
    relay.on_timer(DEFAULT_TIMEOUTS.receipt_timeout_s)
    node = Forwarder(0, View(rights=[4]))
    node.publish(MESSAGE, 1, 9, 0.0)

    (report,) = [
        each.packet
        for each in relay.receive(0, MessageCopy(0, MESSAGE, 4, 9, 0), 14.0)
        if isinstance(each, SendPacket) and isinstance(each.packet, RangeReport)
    ]
    sent = node.receive(4, report, 14.1)

    assert report.missing == (RangePart(5, 5, 9),)
    assert parts(sent) == [(5, 5, 9)]


def test_a_missing_range_outside_that_of_its_copy_is_ignored() -> None:
    node = Forwarder(0, View(rights=[4]))
    node.publish(MESSAGE, 1, 9, 0.0)
    missing = (RangePart(20, 20, 30),)

    done = node.receive(4, RangeReport(0, 1, (), False, missing, True), 0.1)

    assert [type(each) for each in done] == [PublicationDone]
    assert not any(e.is_complete for e in done if isinstance(e, PublicationDone))


def detour(sample: tuple[RankedNode[int], ...]) -> PublicationDone[int]:
    """Result where each way around the broken link to node 5 reports `sample`."""
    node = Forwarder(0, View(rights=[4]))
    node.contacts = lambda: [7, 8]
    node.publish(MESSAGE, 1, 9, 0.0)
    missing = (RangePart(5, 5, 9),)
    node.receive(4, RangeReport(0, 1, (), False, missing, True), 0.1)
    now_s, actions = 0.1, list[ForwarderAction[int]]()
    while not any(isinstance(each, PublicationDone) for each in actions):
        now_s += DEFAULT_TIMEOUTS.receipt_timeout_s
        actions = node.on_timer(now_s)
        while sent := [e for e in actions if isinstance(e, SendPacket) and e.to > 5]:
            (each,) = sent
            report = RangeReport(each.packet.number, len(sample), sample, True)
            actions = node.receive(each.to, report, now_s)
        assert now_s < 100
    (done,) = actions
    assert isinstance(done, PublicationDone)
    return done


def test_a_way_that_does_not_know_the_silent_node_completes_nothing() -> None:
    """It may be in a ring of its own, whose ranges are whole."""
    assert not detour(()).is_complete
    assert not detour((RankedNode(8, 0),)).is_complete
    assert detour((RankedNode(5, 0), RankedNode(8, 1))).is_complete

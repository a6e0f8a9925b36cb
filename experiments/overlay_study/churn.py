"""Churn simulation: joins, leaves, crashes and partitions of a ring or of gateways."""

from collections.abc import Collection
from heapq import heappop, heappush
from itertools import count
from random import Random

import msgspec

from gateway_daemon.overlay.ddll import LinkSend, PingTimes, RingLink
from gateway_daemon.overlay.gateway_node import OverlayNode
from gateway_daemon.overlay.keys import OverlayKey
from gateway_daemon.overlay.messages import (
    CarriedMessage,
    LinkPacket,
    LinkStatus,
    MessageCopy,
    OverlayMessage,
    PublicationResult,
    decode_frame,
    encode_frame,
)
from gateway_daemon.overlay.peers import ReplyTimeouts

FAST_PING_TIMES = PingTimes(ping_interval_s=1.0, answer_timeout_s=0.5)
RING_LATENCY_S = (0.005, 0.100)
"""Minimum and maximum latency of a packet; later packets may overtake earlier ones."""


MEETING_PROBABILITY = 0.2
"""Probability that a node also queries a random node when it pings its neighbour."""


class SimulatedRing:
    """Nodes of one list and the packets between them.

    Attributes:
        now_s: Simulated time.
        links: Live nodes, by key.
        partitioned: Keys that are separated from the others: no packet passes between.
        known_keys: All keys that ever joined, as in a directory.
        packets: Packets sent so far.
    """

    def __init__(self, seed: int, times: PingTimes = FAST_PING_TIMES) -> None:
        self.now_s = 0.0
        self.links: dict[int, RingLink[int]] = {}
        self.partitioned: set[int] = set()
        self.known_keys: list[int] = []
        self.packets = 0
        self._ping_times = times
        self._chance = Random(seed)
        self._events: list[tuple[float, int, int, tuple[int, LinkPacket[int]] | None]]
        self._events = []
        self._order = count()
        self._planned: dict[int, float] = {}

    def join(self, key: int, near: int | None = None) -> None:
        """Start a node; without a known node it starts the list."""
        self.known_keys.append(key)
        link = self.links[key] = RingLink(key, self._ping_times)
        if near is None:
            link.found_ring(self.now_s)
            self._plan(key)
        else:
            self._send(key, link.join(near, self.now_s))

    def leave(self, key: int) -> None:
        """Let a node leave in order."""
        self._send(key, self.links[key].leave(self.now_s))

    def crash(self, key: int) -> None:
        """Stop a node without notice."""
        del self.links[key]
        self._planned.pop(key, None)

    def run(self, for_s: float) -> None:
        """Advance the simulated time."""
        until_s = self.now_s + for_s
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, key, what = heappop(self._events)
            link = self.links.get(key)
            if link is None:
                continue
            if what is None:
                done = link.on_timer(self.now_s)
                if self._chance.random() < MEETING_PROBABILITY:
                    contact = self._chance.choice(self.known_keys)
                    link.set_start(contact)  # that of a joining node may have crashed
                    done += link.probe(contact)
            else:
                done = link.receive(*what, self.now_s)
            self._send(key, done)
        self.now_s = until_s

    def joined_keys(self) -> list[int]:
        """Return the keys that have joined, in order."""
        return sorted(
            k for k, link in self.links.items() if link.status is LinkStatus.IN
        )

    def is_consistent(self, of: Collection[int] | None = None) -> bool:
        """Whether the links of joined nodes form the sorted ring in both directions.

        Args:
            of: Only these, when the network is partitioned.
        """
        keys = [key for key in self.joined_keys() if of is None or key in of]
        return all(
            self.links[key].right == after and self.links[after].left == key
            for key, after in zip(keys, [*keys[1:], *keys[:1]], strict=True)
        )

    def walk(self, start: int) -> list[int]:
        """Return the keys along the right links, until they repeat or end."""
        found, at = [start], self.links[start].right
        while at != start and at in self.links and len(found) <= len(self.links):
            found.append(at)
            at = self.links[at].right
        return found

    def _send(self, key: int, done: list[LinkSend[int]]) -> None:
        for to, packet in done:
            self.packets += 1
            if (key in self.partitioned) != (to in self.partitioned):
                continue
            at_s = self.now_s + self._chance.uniform(*RING_LATENCY_S)
            heappush(self._events, (at_s, next(self._order), to, (key, packet)))
        self._plan(key)

    def _plan(self, key: int) -> None:
        due_s = self.links[key].next_due_s()
        if due_s is not None and due_s != self._planned.get(key):
            self._planned[key] = due_s
            heappush(self._events, (due_s, next(self._order), key, None))


FAST_TIMEOUTS = ReplyTimeouts(
    receipt_timeout_s=0.3, per_copy_s=0.001, report_timeout_s=1.0, suspect_s=3.0
)
GATEWAY_LATENCY_S = (0.005, 0.050)


class SimulatedGateways:
    """Gateways and the encoded frames between them.

    Attributes:
        now_s: Simulated time.
        nodes: Live gateways, by name.
        partitioned: Names that are separated from the others: no frame passes between.
        broken_links: Pairs of names; no frame passes from the first to the second.
        full: Names of gateways whose store takes no message.
        received: Message ids that each gateway delivered to its clients, in order.
        results: Results that publishers received.
        copies: Copies sent so far.
    """

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.nodes: dict[str, OverlayNode] = {}
        self.partitioned: set[str] = set()
        self.broken_links: set[tuple[str, str]] = set()
        self.full: set[str] = set()
        self.received: dict[str, list[str]] = {}
        self.results: list[PublicationResult] = []
        self.copies = 0
        self.random = Random(seed)
        self._known: list[str] = []
        self._events: list[tuple[float, int, str, bytes | None]] = []
        self._order = count()
        self._planned: dict[str, float] = {}

    def start(self, name: str, *filters: str) -> None:
        """Start a gateway with filters of its clients; it knows the first gateway."""
        node = self.nodes[name] = OverlayNode(
            name, self.random.choice, FAST_PING_TIMES, FAST_TIMEOUTS
        )
        self.received[name] = []
        node.start(self.now_s)
        for other in self._known[:1]:
            node.add_peer(other, self.now_s)
        if name not in self._known:
            self._known.append(name)
        self.set_filters(name, *filters)

    def set_filters(self, name: str, *filters: str) -> None:
        """Set the filters of a gateway's clients."""
        self.nodes[name].set_filters(frozenset(filters), self.now_s)
        self._serve(name)

    def publish(self, name: str, topic: str, id_: str, priority: int) -> None:
        """Publish a message of a gateway's client."""
        payload = msgspec.msgpack.encode(CarriedMessage(topic, b"ground moves"))
        message = OverlayMessage(id_, priority, payload)
        self.nodes[name].publish(message, topic, self.now_s)
        self._serve(name)

    def crash(self, name: str) -> None:
        """Stop a gateway without notice."""
        del self.nodes[name]
        self._planned.pop(name, None)

    def leave(self, name: str) -> None:
        """Let a gateway leave in order; its node remains in `nodes`."""
        self.nodes[name].leave(self.now_s)
        self._serve(name)

    def run(self, for_s: float) -> None:
        """Advance the simulated time."""
        until_s = self.now_s + for_s
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, name, frame = heappop(self._events)
            node = self.nodes.get(name)
            if node is None:
                continue
            if frame is None:
                if self._planned.get(name) != self.now_s:
                    continue  # another plan has replaced it
                del self._planned[name]
                node.on_timer(self.now_s)
            else:
                node.receive(*decode_frame(frame), self.now_s)
            self._serve(name)
        self.now_s = until_s

    def joined_keys(self, of: Collection[str] | None = None) -> list[OverlayKey]:
        """Return all keys that have joined, in order."""
        names = self.nodes if of is None else of
        return sorted(key for name in names for key in self.nodes[name].joined_keys())

    def is_consistent(self, of: Collection[str] | None = None) -> bool:
        """Whether level 0 is the sorted ring of all keys in both directions."""
        keys = self.joined_keys(of)
        return all(
            self.nodes[key.gateway].neighbours(key)[1] == after
            and self.nodes[after.gateway].neighbours(after)[0] == key
            for key, after in zip(keys, [*keys[1:], *keys[:1]], strict=True)
        )

    def _serve(self, name: str) -> None:
        node = self.nodes[name]
        while copy := node.pop_copy(self.now_s):
            self._send_frame(name, copy.to, encode_frame(*copy))
            self.copies += isinstance(copy.packet, MessageCopy)
        outbox = node.pop_outbox()
        ids = [message.id for message, _ in outbox.received]
        if name in self.full:
            node.refuse(outbox, ids)
        else:
            self.received[name] += ids
        for packet in outbox.packets:
            self._send_frame(name, packet.to, encode_frame(*packet))
        self.results += outbox.results
        due_s = node.next_due_s()
        if due_s is not None and due_s != self._planned.get(name):
            self._planned[name] = due_s
            self._at(due_s, name, None)

    def _send_frame(self, sender: str, to: OverlayKey, frame: bytes) -> None:
        is_apart = (sender in self.partitioned) != (to.gateway in self.partitioned)
        if not is_apart and (sender, to.gateway) not in self.broken_links:
            at_s = self.now_s + self.random.uniform(*GATEWAY_LATENCY_S)
            self._at(at_s, to.gateway, frame)

    def _at(self, at_s: float, name: str, frame: bytes | None) -> None:
        heappush(self._events, (at_s, next(self._order), name, frame))

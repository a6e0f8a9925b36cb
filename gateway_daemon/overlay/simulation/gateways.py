"""Whole gateways in simulated time: the nodes that run live, without a broker."""

from collections.abc import Collection
from heapq import heappop, heappush
from itertools import count
from random import Random

import msgspec

from gateway_daemon.overlay import wire
from gateway_daemon.overlay.ddll import Rhythm
from gateway_daemon.overlay.keys import Key
from gateway_daemon.overlay.node import Node
from gateway_daemon.overlay.packets import Copy, Message
from gateway_daemon.overlay.patience import Patience
from gateway_daemon.overlay.todo import Carried, Ended

QUICK = Rhythm(ping_s=1.0, answer_s=0.5)
HASTY = Patience(receipt_s=0.3, child_s=0.001, report_s=1.0, suspect_s=3.0)
LATENCY_S = (0.005, 0.050)


class Gateways:
    """Gateways and the frames between them, as they are on the wire.

    Attributes:
        now_s: Simulated time.
        nodes: Those that are alive, by name.
        cut_off: Names behind a cut: no frame passes between them and the others.
        heard: Message ids that each gateway handed to its clients, in order.
        ended: What publishers were told.
        copies: Copies that were sent so far.
    """

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.nodes: dict[str, Node] = {}
        self.cut_off: set[str] = set()
        self.heard: dict[str, list[str]] = {}
        self.ended: list[Ended] = []
        self.copies = 0
        self.chance = Random(seed)
        self._known: list[str] = []
        self._events: list[tuple[float, int, str, bytes | None]] = []
        self._order = count()
        self._planned: dict[str, float] = {}

    def start(self, name: str, *filters: str) -> None:
        """Start a gateway whose clients listen; it knows the first that ever was."""
        node = self.nodes[name] = Node(name, self.chance.choice, QUICK, HASTY)
        self.heard[name] = []
        node.start(self.now_s)
        for other in self._known[:1]:
            node.contact(other, self.now_s)
        if name not in self._known:
            self._known.append(name)
        self.listen(name, *filters)

    def listen(self, name: str, *filters: str) -> None:
        """A gateway's clients listen to these from now on."""
        self.nodes[name].listen(frozenset(filters), self.now_s)
        self._serve(name)

    def publish(self, name: str, topic: str, id_: str, priority: int) -> None:
        """A gateway's client publishes."""
        payload = msgspec.msgpack.encode(Carried(topic, b"ground moves"))
        message = Message(id_, priority, payload)
        self.nodes[name].publish(message, topic, self.now_s)
        self._serve(name)

    def crash(self, name: str) -> None:
        """Stop a gateway; nobody is told."""
        del self.nodes[name]
        self._planned.pop(name, None)

    def leave(self, name: str) -> None:
        """Let a gateway leave in order; it stays until its time comes."""
        self.nodes[name].leave(self.now_s)
        self._serve(name)

    def run(self, for_s: float) -> None:
        """Let time pass."""
        until_s = self.now_s + for_s
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, name, frame = heappop(self._events)
            node = self.nodes.get(name)
            if node is None:
                continue
            if frame is None:
                self._planned.pop(name, None)
                node.due(self.now_s)
            else:
                node.receive(*wire.decode(frame), self.now_s)
            self._serve(name)
        self.now_s = until_s

    def ring(self, of: Collection[str] | None = None) -> list[Key]:
        """All keys that are in, in order."""
        names = self.nodes if of is None else of
        return sorted(key for name in names for key in self.nodes[name].joined())

    def is_whole(self, of: Collection[str] | None = None) -> bool:
        """Whether level 0 is the sorted ring of all keys, both ways."""
        keys = self.ring(of)
        return all(
            self.nodes[key.gateway].neighbours(key)[1] == after
            and self.nodes[after.gateway].neighbours(after)[0] == key
            for key, after in zip(keys, [*keys[1:], *keys[:1]], strict=True)
        )

    def _serve(self, name: str) -> None:
        node = self.nodes[name]
        while letter := node.take(self.now_s):
            self._post(name, letter.to, wire.encode(*letter))
            self.copies += isinstance(letter.packet, Copy)
        todo = node.collect()
        for letter in todo.letters:
            self._post(name, letter.to, wire.encode(*letter))
        self.heard[name] += [message.id for message, _ in todo.heard]
        self.ended += todo.ended
        due_s = node.next_due_s()
        if due_s is not None and due_s != self._planned.get(name):
            self._planned[name] = due_s
            self._at(due_s, name, None)

    def _post(self, sender: str, to: Key, frame: bytes) -> None:
        if (sender in self.cut_off) == (to.gateway in self.cut_off):
            at_s = self.now_s + self.chance.uniform(*LATENCY_S)
            self._at(at_s, to.gateway, frame)

    def _at(self, at_s: float, name: str, frame: bytes | None) -> None:
        heappush(self._events, (at_s, next(self._order), name, frame))

"""Forwarders in simulated time: links take time, nodes have queues, some are dead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from gateway_daemon.overlay.backlog import Backlog
from gateway_daemon.overlay.delay import COST, Cost
from gateway_daemon.overlay.forwarder import Forwarder
from gateway_daemon.overlay.packets import (
    Action,
    Copy,
    Deliver,
    Done,
    Message,
    Packet,
    Placed,
)
from gateway_daemon.overlay.partition import ROOM
from gateway_daemon.overlay.patience import Patience
from gateway_daemon.overlay.simulation.patterns import Pattern
from gateway_daemon.overlay.skip_graph import SkipGraph

LEFT_NEIGHBOURS = 4
"""What the ring keeps of its left, to heal."""

QUICK = Patience(receipt_s=0.030, child_s=0.0001, report_s=0.120, suspect_s=60.0)
"""For links of 10 ms."""


@dataclass(frozen=True)
class AtRest:
    """What a node knows when the overlay has converged.

    Attributes:
        graph: The topic's Skip Graph.
        rank: Whose knowledge.
        pattern: The topic; its subscribers keep the successors of their range.
    """

    graph: SkipGraph
    rank: int
    pattern: Pattern

    def rights(self) -> Sequence[Placed[int]]:
        """Links, and for a subscriber the next ones."""
        known = set(self.graph.rights(self.rank))
        if self.rank >= self.pattern.publishers:
            last = min(self.rank + ROOM, self.pattern.members - 1)
            known.update(range(self.rank + 1, last + 1))
        return [Placed(r, r - self.rank - 1) for r in sorted(known)]

    def lefts(self) -> Sequence[int]:
        """Links, and the next ones."""
        near = range(max(0, self.rank - LEFT_NEIGHBOURS), self.rank)
        return sorted({*near, *self.graph.lefts(self.rank)})


@dataclass
class _Node:
    forwarder: Forwarder[int]
    backlog: Backlog[tuple[int, Copy[int]]] = field(default_factory=Backlog)
    busy_until_s: float = 0.0
    wakes_s: float | None = None


class Network:
    """The nodes of one topic and what is under way between them.

    Attributes:
        now_s: Simulated time.
        delivered: When each rank had each message, by message id.
        copies: Copies sent so far.
    """

    def __init__(
        self,
        graph: SkipGraph,
        pattern: Pattern,
        patience: Patience = QUICK,
        cost: Cost = COST,
    ) -> None:
        self.now_s = 0.0
        self.delivered: dict[str, dict[int, float]] = {}
        self.copies = 0
        self._pattern = pattern
        self._cost = cost
        self._nodes = {
            rank: _Node(Forwarder(rank, AtRest(graph, rank, pattern), patience))
            for rank in range(pattern.members)
        }
        self._dead: set[int] = set()
        self._events: list[tuple[float, int, int, tuple[int, Packet[int]] | None]] = []
        self._order = count()

    def crash(self, ranks: Sequence[int]) -> None:
        """Stop nodes; nobody is told."""
        self._dead.update(ranks)

    def publish(self, publisher: int, message: Message) -> None:
        """Publish to all subscribers."""
        low, high = self._pattern.publishers, self._pattern.members
        forwarder = self._nodes[publisher].forwarder
        self._act(publisher, forwarder.publish(message, low, high, self.now_s))

    def run(self, until_s: float = float("inf")) -> None:
        """Let time pass until nothing is left to do, or until then."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, rank, what = heappop(self._events)
            if rank in self._dead:
                continue
            node = self._nodes[rank]
            if what is None:
                self._wake(rank, node)
            elif isinstance(what[1], Copy):
                node.backlog.put(
                    (what[0], what[1]), what[1].message.priority, self.now_s
                )
                self._serve(rank, node)
            else:
                self._act(rank, node.forwarder.receive(*what, self.now_s))

    def reached(self, message_id: str) -> Mapping[int, float]:
        """When each subscriber had a message."""
        return self.delivered.get(message_id, {})

    def forwarder(self, rank: int) -> Forwarder[int]:
        """The state machine of a node."""
        return self._nodes[rank].forwarder

    def _serve(self, rank: int, node: _Node) -> None:
        """Take the next copy if the node has nothing in hand."""
        if self.now_s < node.busy_until_s or not len(node.backlog):
            return
        sender, copy = node.backlog.take(self.now_s)
        node.forwarder.waiting = len(node.backlog)
        busy_s = self._act(rank, node.forwarder.receive(sender, copy, self.now_s))
        node.busy_until_s = self.now_s + busy_s
        self._at(node.busy_until_s, rank, None)

    def _wake(self, rank: int, node: _Node) -> None:
        """A service ends, or an answer is overdue."""
        due_s = node.forwarder.next_due_s()
        if due_s is not None and due_s <= self.now_s:
            self._act(rank, node.forwarder.due(self.now_s))
        self._serve(rank, node)

    def _act(self, rank: int, actions: Sequence[Action[int]]) -> float:
        """Do what a forwarder says; how long that keeps the node busy."""
        busy_ms = self._cost.node_ms
        for action in actions:
            if isinstance(action, Deliver):
                self.delivered.setdefault(action.message.id, {})[rank] = self.now_s
                continue
            if isinstance(action, Done):
                continue
            if isinstance(action.packet, Copy):
                self.copies += 1
                busy_ms += self._cost.child_ms
            at_s = self.now_s + (busy_ms + self._cost.link_ms) / 1000
            self._at(at_s, action.to, (rank, action.packet))
        self._plan(rank)
        return busy_ms / 1000

    def _plan(self, rank: int) -> None:
        node = self._nodes[rank]
        due_s = node.forwarder.next_due_s()
        if due_s is not None and due_s != node.wakes_s:
            node.wakes_s = due_s
            self._at(due_s, rank, None)

    def _at(self, at_s: float, rank: int, what: tuple[int, Packet[int]] | None) -> None:
        heappush(self._events, (at_s, next(self._order), rank, what))

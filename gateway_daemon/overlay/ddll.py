"""DDLL: one list of the Skip Graph as a ring with concurrent joins, leaves and repairs.

A node joins or leaves with three messages and no lock. It requests its left neighbour
to set its right link (`SetRight`); the neighbour confirms (`SetRightReply`) and informs
the right neighbour (`SetLeft`). Right links are always correct while no node crashes;
left links follow. The sequence number of a link prevents an old message from undoing a
new one. Every node pings its left neighbour and stores four nodes to the left. When one
crashes, its right neighbour searches for the nearest live node and links to it in a new
era (`LinkSequence.repair`), so late messages of the old era are ignored.

Pure state machine: it reads no clock, and every method returns the packets to send.

Source: Abe and Yoshida, IEEE P2P 2015 (the idea). Querying before linking
(`NeighbourQuery`) serves insertion, repair and the regular ping alike, which is ours.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Generic, NamedTuple

from gateway_daemon.overlay.messages import (
    LinkChange,
    LinkPacket,
    LinkSequence,
    LinkStatus,
    NeighbourQuery,
    NeighbourReply,
    SetLeft,
    SetRight,
    SetRightReply,
)
from gateway_daemon.overlay.partition import K

LEFT_NEIGHBOURS = 4
"""Known nodes to the left: this many may crash at once."""

SURPRISES_BEFORE_REPAIR = 2
"""Unexpected replies in a row before a repair: the first may have crossed a message."""

MAX_LEAVE_TRIES = 12
"""Attempts to leave; then the node leaves anyway and the others repair the list."""


class LinkSend(NamedTuple, Generic[K]):
    """An action: send a packet."""

    to: K
    packet: LinkPacket[K]


@dataclass(frozen=True)
class PingTimes:
    """Ping interval and timeout.

    Attributes:
        ping_interval_s: Between two pings of the left neighbour.
        answer_timeout_s: Longest wait for an answer.
    """

    ping_interval_s: float = 10.0
    answer_timeout_s: float = 4.0


DEFAULT_PING_TIMES = PingTimes()


def is_between(low: K, key: K, high: K) -> bool:
    """Whether a key lies right of one and left of the other on the ring."""
    if low < high:
        return low < key < high
    return low < key or key < high


class RingLink(Generic[K]):
    """One node in one list.

    Attributes:
        key: Its own key.
        status: Its state.
        right: Right neighbour on the ring; itself when alone.
        lefts: Up to four left neighbours, nearest first; itself when alone.
        skipped: Last right neighbour that a repair replaced, for up to two rounds of
            pings; None without one. It may live: then it links to us again.
    """

    def __init__(self, key: K, times: PingTimes = DEFAULT_PING_TIMES) -> None:
        self.key = key
        self.status = LinkStatus.OUT
        self.right = key
        self.lefts: tuple[K, ...] = (key,)
        self.skipped: K | None = None
        self._skipped_until_s = 0.0
        self._left_seq = self._right_seq = LinkSequence()
        self._ping_times = times
        self._suspects: set[K] = set()
        self._start = key
        # Queried node, last node that answered, right link we requested to change.
        self._asked: K | None = None
        self._good: K | None = None
        self._expected: K | None = None
        self._due_s: float | None = None
        self._surprises = self._tries = 0

    @property
    def left(self) -> K:
        """Left neighbour on the ring; itself when alone."""
        return self.lefts[0]

    def found_ring(self, now_s: float) -> None:
        """Start a list: a ring of one."""
        self.status = LinkStatus.IN
        self._due_s = now_s + self._ping_times.ping_interval_s

    def join(self, near: K, now_s: float) -> list[LinkSend[K]]:
        """Join the list of a node; any node in it will do."""
        self.status = LinkStatus.INSERTING
        self._start = near
        return self._ask(near, now_s)

    def set_start(self, near: K) -> None:
        """Set the node from which the next attempt to join starts."""
        self._start = near

    def leave(self, now_s: float) -> list[LinkSend[K]]:
        """Leave in order; `status` is OUT when the neighbours have confirmed."""
        if self.left == self.key or self._tries >= MAX_LEAVE_TRIES:
            self.status, self._due_s = LinkStatus.OUT, None
            return []
        self.status = LinkStatus.LEAVING
        self._tries += 1
        self._due_s = now_s + self._ping_times.answer_timeout_s
        seq = self._right_seq.next()
        return [
            LinkSend(self.left, SetRight(LinkChange.DELETE, self.right, self.key, seq))
        ]

    def probe(self, contact: K) -> list[LinkSend[K]]:
        """Query a node known from elsewhere.

        If more neighbours crash at once than are known, or the network is partitioned,
        the list becomes several rings. Only such random queries merge them.
        """
        return (
            [LinkSend(contact, NeighbourQuery())]
            if self.status is LinkStatus.IN
            else []
        )

    def next_due_s(self) -> float | None:
        """Return when `on_timer` has something to do."""
        return self._due_s

    def on_timer(self, now_s: float) -> list[LinkSend[K]]:
        """Ping the left neighbour, or continue without a node that did not answer."""
        is_early = self._due_s is None or now_s < self._due_s
        if is_early or self.status is LinkStatus.OUT:
            return []
        if self.status is LinkStatus.LEAVING:
            return self.leave(now_s)
        if self._skipped_until_s <= now_s:
            self.skipped = None
        silent, self._asked = self._asked, None
        if silent is None:  # a new round clears the suspects
            self._suspects.clear()
            near = self.right if self.left == self.key else self.left
            is_new = self.status is LinkStatus.INSERTING
            return self._ask(self._start if is_new else near, now_s)
        self._suspects.add(silent)
        if self._good is not None and self.status is LinkStatus.IN:
            return self._set_right(self._good, silent, now_s)
        return self._next_candidate(now_s)

    def receive(
        self, sender: K, packet: LinkPacket[K], now_s: float
    ) -> list[LinkSend[K]]:
        """Process a packet of another node of the list."""
        self._suspects.discard(sender)
        done: list[LinkSend[K]] = []
        match packet:
            case NeighbourQuery():
                done = [LinkSend(sender, self._reply())]
            case NeighbourReply():
                done = self._on_reply(sender, packet, now_s)
            case SetRight():
                done = self._change_right(sender, packet, now_s)
            case SetRightReply():
                self._agreed(sender, packet, now_s)
            case SetLeft(seq, lefts):
                if self._left_seq < seq:
                    self._left_seq, self.lefts = seq, lefts
                    if (
                        self.status is LinkStatus.LEAVING
                    ):  # the neighbour has left first
                        self._tries = 0
                        done = self.leave(now_s)
        return done

    def _reply(self, refused: bool = False) -> NeighbourReply[K]:
        lefts = (self.key, *self.lefts)[:LEFT_NEIGHBOURS]
        return NeighbourReply(self.status, self.right, self._right_seq, lefts, refused)

    def _change_right(
        self, sender: K, asked: SetRight[K], now_s: float
    ) -> list[LinkSend[K]]:
        if self.status is not LinkStatus.IN or self.right != asked.expected:
            return [LinkSend(sender, self._reply(refused=True))]
        lefts = (self.key, *(k for k in self.lefts if k != self.key))[:LEFT_NEIGHBOURS]
        after = asked.seq
        done: list[LinkSend[K]] = []
        if asked.kind is LinkChange.INSERT:
            after = self._right_seq.next()
            second = (asked.new, *lefts)[:LEFT_NEIGHBOURS]
            done = [LinkSend(asked.expected, SetLeft(after, second))]
        elif asked.kind is LinkChange.DELETE:
            done = [LinkSend(asked.new, SetLeft(after, lefts))]
        if asked.kind is LinkChange.REPAIR:
            self.skipped = asked.expected
            self._skipped_until_s = now_s + 2 * self._ping_times.ping_interval_s
        self.right, self._right_seq = asked.new, asked.seq
        return [LinkSend(sender, SetRightReply(after, lefts)), *done]

    def _agreed(self, sender: K, packet: SetRightReply[K], now_s: float) -> None:
        if self.status is LinkStatus.LEAVING:
            self.status, self._due_s = LinkStatus.OUT, None
            return
        is_out = self.status is LinkStatus.OUT  # a late answer to a repair
        if is_out or self._asked != sender or self._expected is None:
            return
        if self.status is LinkStatus.INSERTING:
            self.status, self.right = LinkStatus.IN, self._expected
            self._left_seq, self._right_seq = LinkSequence(), packet.seq
        else:
            self._left_seq = packet.seq
        self._settle(packet.lefts, now_s)

    def _settle(self, lefts: Many[K], now_s: float) -> None:
        """Adopt a confirmed left neighbour."""
        self.lefts = tuple(lefts)
        self._asked = self._good = None
        self._surprises = 0
        self._due_s = now_s + self._ping_times.ping_interval_s

    def _on_reply(
        self, sender: K, reply: NeighbourReply[K], now_s: float
    ) -> list[LinkSend[K]]:
        """Process a reply to a search or to a ping."""
        if self.status in {LinkStatus.LEAVING, LinkStatus.OUT}:
            return []
        if sender != self._asked:
            return self._on_unasked_reply(sender, reply, now_s)
        return self._answered(sender, reply, now_s)

    def _answered(
        self, sender: K, reply: NeighbourReply[K], now_s: float
    ) -> list[LinkSend[K]]:
        if self._expected is not None and not reply.refused:  # to an earlier question
            return []
        self._asked = None
        is_odd = reply.status is not LinkStatus.IN or reply.right != self.key
        self._surprises += is_odd
        is_left = self.status is LinkStatus.IN and sender == self.left
        is_patient = is_odd and is_left and self._surprises < SURPRISES_BEFORE_REPAIR
        if is_patient or self._is_moving(reply.status):
            return self._retry_later(now_s)
        if reply.status is not LinkStatus.IN:
            self._suspects.add(sender)
            return self._next_candidate(now_s)
        return self._step(sender, reply, now_s)

    def _is_moving(self, status: LinkStatus) -> bool:
        """Whether to wait for a node that is leaving or joining.

        Not for long for one that only claims to join: it has restarted after a crash,
        and can join only after we stop waiting for it.
        """
        if status is LinkStatus.INSERTING:
            return (
                self.status is LinkStatus.INSERTING
                or self._surprises < 2 * SURPRISES_BEFORE_REPAIR
            )
        return status is LinkStatus.LEAVING

    def _on_unasked_reply(
        self, sender: K, reply: NeighbourReply[K], now_s: float
    ) -> list[LinkSend[K]]:
        """Link to a node nearer than our left neighbour: two rings must merge."""
        is_nearer = is_between(self.left, sender, self.key)
        if (
            not is_nearer
            or self._asked is not None
            or reply.status is not LinkStatus.IN
        ):
            return []
        if self.left == self.right == self.key:
            # A repair would cut off our right neighbour until its next ping. A lone
            # node joins instead; of two such nodes, the one further right.
            if reply.right == sender and self.key < sender:
                return [LinkSend(sender, self._reply())]
            self.status, self._start = LinkStatus.INSERTING, sender
        return self._step(sender, reply, now_s)

    def _step(
        self, sender: K, reply: NeighbourReply[K], now_s: float
    ) -> list[LinkSend[K]]:
        """Link to the node that answered, or continue to the right of it."""
        right, is_new = reply.right, self.status is LinkStatus.INSERTING
        if right == self.key and not is_new:
            self._left_seq = max(self._left_seq, reply.seq)
            self._settle(reply.lefts, now_s)
            return []
        if right == sender or is_between(sender, self.key, right):
            return self._set_right(sender, right, now_s)
        # It may know us from before a crash, or its right neighbour has crashed: a
        # joining node waits for others to repair, a member repairs.
        if is_new and (right == self.key or right in self._suspects):
            return self._retry_later(now_s)
        if right in self._suspects:
            return self._set_right(sender, right, now_s)
        self._good = sender
        return self._ask(right, now_s)

    def _set_right(self, to: K, expected: K, now_s: float) -> list[LinkSend[K]]:
        is_new = self.status is LinkStatus.INSERTING
        if is_new:  # a search may pass us before we are confirmed
            self.right = expected
        kind = LinkChange.INSERT if is_new else LinkChange.REPAIR
        seq = LinkSequence() if is_new else LinkSequence(self._left_seq.repair + 1)
        self._asked, self._good, self._expected = to, None, expected
        self._due_s = now_s + self._ping_times.answer_timeout_s
        return [LinkSend(to, SetRight(kind, self.key, expected, seq))]

    def _ask(self, node: K, now_s: float) -> list[LinkSend[K]]:
        if node == self.key:
            self._asked = None
            self._due_s = now_s + self._ping_times.ping_interval_s
            return []
        self._asked, self._expected = node, None
        self._due_s = now_s + self._ping_times.answer_timeout_s
        return [LinkSend(node, NeighbourQuery())]

    def _retry_later(self, now_s: float) -> list[LinkSend[K]]:
        """Retry after the answer timeout."""
        self._asked = self._good = None
        self._due_s = now_s + self._ping_times.answer_timeout_s
        return []

    def _next_candidate(self, now_s: float) -> list[LinkSend[K]]:
        """Query the nearest left neighbour that is not suspected."""
        self._good = None
        if self.status is LinkStatus.INSERTING:  # others repair; try later
            return self._retry_later(now_s)
        # If all known left neighbours have crashed, continue around the ring.
        for key in (*self.lefts, self.right):
            if key not in self._suspects and key != self.key:
                return self._ask(key, now_s)
        seq = LinkSequence(max(self._left_seq, self._right_seq).repair + 1)
        self.right, self._left_seq, self._right_seq = self.key, seq, seq
        self._settle((self.key,), now_s)
        return []

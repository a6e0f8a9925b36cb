"""Forwarder: range multicast with receipts and retries.

A node that receives a copy delivers it, splits its range and is responsible for the
parts. A part without an acknowledgement is split again around the silent node. When all
parts have reported, the node reports to its parent the number of subscribers reached
and an even sample of them, so the publisher learns its heads from any message.

A link may be broken while both its ends live. So a report names the ranges behind nodes
that did not answer, and each node on the way back to the publisher sends these nodes a
copy itself. If none reaches them, the publisher tries by way of other nodes.

Pure state machine: it reads no clock and sends nothing; every method returns actions.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Generic, NamedTuple, Protocol

from gateway_daemon.overlay.messages import (
    CopyReceipt,
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
from gateway_daemon.overlay.partition import (
    POLICIES,
    K,
    RangeHead,
    RangePart,
    SplitPlan,
    assign_range,
    choose_plan,
    choose_valley_heads,
    head_positions,
    nearest_indices,
    second_tree_heads,
    split_range,
    subtree_sizes,
)
from gateway_daemon.overlay.peers import (
    DEFAULT_TIMEOUTS,
    ReplyTimeouts,
    RoundTripTimes,
)

MAX_SAMPLE = 512
MAX_SEEN = 10_000
MAX_ATTEMPTS = 4

MAX_DETOURS = 3
"""Tries of a publisher to reach missing ranges by way of other nodes."""

DETOUR_PARTS = 2
"""Missing ranges in each of them; many are missing when many nodes have crashed."""

MAX_MISSING = 64  # ranges in a report

MAX_LATE = 256
"""Copies that were given up and may still be answered."""

PROGRESS_SIGNS = 3
"""Progress signs that a node sends within `report_timeout_s`."""


class NeighbourView(Protocol[K]):
    """Nodes of a topic that a node knows."""

    def right_neighbours(self) -> Sequence[RankedNode[K]]:
        """Return nodes right of it, nearest first; the next one is always included."""

    def left_neighbours(self) -> Sequence[K]:
        """Return nodes left of it in key order; the nearest is always included."""


class _Result(NamedTuple, Generic[K]):
    """Nodes that are known to have the message, from a key on."""

    low: K
    number: int
    sample: tuple[RankedNode[K], ...]


@dataclass
class _Task(Generic[K]):
    """A copy that we are responsible for; without a parent it is our own publication.

    Attributes:
        sign_s: When the parent expects the next progress sign.
        is_whole: Whether no part of it was refused, or given up by an older gateway.
        missing: Parts that were given up, with the nodes that did not answer.
        detours: How often we tried to reach these by way of other nodes.
    """

    copy: MessageCopy[K]
    parent: K | None
    sign_s: float = 0.0
    is_whole: bool = True
    missing: list[RangePart[K]] = field(default_factory=list)
    detours: int = 0
    results: list[_Result[K]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)


@dataclass
class _Sent(Generic[K]):
    """A part that was delegated.

    Attributes:
        sent_s: When it was sent; None when it has been answered.
        silent: Node that the copy shall reach by way of `to`, if it is a detour.
    """

    task: _Task[K]
    to: K
    copy: MessageCopy[K]
    due_s: float
    attempt: int
    sent_s: float | None
    silent: K | None = None


def _no_valley(_key: object) -> str:
    return ""


class Forwarder(Generic[K]):
    """One node of one topic.

    Args:
        key: Its key.
        neighbours: Nodes that it knows.
        timeouts: Of the copies that it sends.
        valley_of: Returns the valley of a key; empty if unknown.
        round_trips: Measured round trips, shared by the keys of a gateway.
        numbers: Numbers of copies. They should not begin where they did before a
            restart: a late report would be taken for that of another copy.

    Attributes:
        known_heads: Subscribers known to a publisher, from the last report.
        subscriber_count: Their number, from the last report; 0 before the first.
        queued_copies: Copies in our own queue, set by the owner: fan-out shrinks with
            it.
        is_uplink_narrow: Whether the uplink of our valley is cut or busy, set by the
            owner.
        contacts: Returns nodes anywhere on the ring that should answer, set by the
            owner.
    """

    def __init__(
        self,
        key: K,
        neighbours: NeighbourView[K],
        timeouts: ReplyTimeouts = DEFAULT_TIMEOUTS,
        valley_of: Callable[[K], str] = _no_valley,
        *,
        round_trips: RoundTripTimes[K] | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._valley_of = valley_of
        self.is_uplink_narrow = False
        self.contacts: Callable[[], Iterable[K]] = tuple
        self.key = key
        self.known_heads: Sequence[RankedNode[K]] = ()
        self.subscriber_count = 0
        self.queued_copies = 0
        self._known = neighbours
        self._timeouts = timeouts
        self._trips: RoundTripTimes[K] = round_trips or RoundTripTimes(timeouts)
        self._late: dict[int, tuple[K, float]] = {}
        self._numbers = numbers or count()
        self._sent: dict[int, _Sent[K]] = {}
        self._suspects: dict[K, float] = {}
        self._seen: dict[str, None] = {}
        self._failed_detours = 0

    def publish(
        self, message: OverlayMessage, low: K, high: K, now_s: float
    ) -> list[ForwarderAction[K]]:
        """Send a message to the subscribers between two keys."""
        policy = POLICIES[message.priority]
        # Directly reached subscribers need no second head; a narrow uplink carries
        # one copy.
        is_wide = self.subscriber_count > policy.plan.root_fan_out
        if self._valley_of(self.key):
            is_wide = self.subscriber_count > 1 and not self.is_uplink_narrow
        done: list[ForwarderAction[K]] = []
        for tree in range(policy.trees if is_wide else 1):
            own = MessageCopy(0, message, low, high, self.subscriber_count, tree)
            task = _Task(own, None)
            sent = self._delegate(task, own, now_s)
            done += sent or self._finish(task, now_s)
        return done

    def on_sent(self, number: int, now_s: float) -> None:
        """Start the timeout of a copy that leaves our queue; infinity while queued."""
        if sent := self._sent.get(number):
            sent.sent_s = now_s
            sent.due_s = now_s + self._trips.timeout_s(sent.to)

    def receive(
        self, sender: K, packet: ForwarderPacket[K], now_s: float
    ) -> list[ForwarderAction[K]]:
        """Process a packet of another node."""
        self.mark_alive(sender)
        match packet:
            case MessageCopy():
                return self._on_copy(sender, packet, now_s)
            case CopyReceipt(number):
                if sent := self._answered(sender, number, now_s):
                    sent.due_s = now_s + self._timeouts.report_timeout_s
                return []
            case RangeReport(number):
                sent = self._answered(sender, number, now_s)
                return self._on_report(sent, packet, now_s) if sent else []

    def mark_alive(self, sender: K) -> None:
        """Trust a node again that was silent: it has sent a packet, maybe a ping."""
        self._suspects.pop(sender, None)

    def refuse(self, message_ids: Collection[str]) -> None:
        """Take back the delivery of messages: our clients' store has not taken them.

        What is still open of them is reported as not whole, and their next copy is
        delivered again.
        """
        for message_id in message_ids:
            self._seen.pop(message_id, None)
        for task in self._open_tasks():
            task.is_whole &= task.copy.message.id not in message_ids

    def on_timer(self, now_s: float) -> list[ForwarderAction[K]]:
        """Split parts without an answer again; send progress signs to parents."""
        done: list[ForwarderAction[K]] = []
        for task in self._open_tasks():
            if task.parent is not None and task.sign_s <= now_s:
                task.sign_s = now_s + self._timeouts.report_timeout_s / PROGRESS_SIGNS
                done.append(SendPacket(task.parent, CopyReceipt(task.copy.number)))
        for number in [n for n, sent in self._sent.items() if sent.due_s <= now_s]:
            sent = self._sent.pop(number)
            sent.task.open.discard(number)
            self._was_silent(number, sent)
            self._suspects[sent.to] = now_s + self._timeouts.suspect_s
            done += self._resend(sent, now_s)
            done += self._finish(sent.task, now_s)
        return done

    def _resend(self, sent: _Sent[K], now_s: float) -> list[ForwarderAction[K]]:
        """Split the part of a silent node again."""
        task, copy = sent.task, sent.copy
        missing = len(task.missing)
        # Only the first tree is repaired; the second is redundancy.
        if sent.attempt < MAX_ATTEMPTS and copy.tree == 0:
            again = self._delegate(task, copy, now_s, sent.attempt + 1)
            if again or len(task.missing) > missing:
                return again
        # Behind the silent node there may be nodes that are unknown here.
        silent = sent.to if sent.silent is None else sent.silent
        task.missing.append(RangePart(silent, copy.low, copy.high))
        return []

    def next_due_s(self) -> float | None:
        """Return when `on_timer` has something to do."""
        signs = (t.sign_s for t in self._open_tasks() if t.parent is not None)
        dues = (sent.due_s for sent in self._sent.values())
        return min(chain(dues, signs), default=None)

    def _answered(self, sender: K, number: int, now_s: float) -> _Sent[K] | None:
        """Record how long the first answer to a copy took, even if late.

        Returns:
            The copy; None if it has been given up, or was sent to another node.
        """
        if (late := self._late.get(number)) and late[0] == sender:
            del self._late[number]
            self._trips.on_answer(sender, now_s - late[1])
        sent = self._sent.get(number)
        if sent is None or sent.to != sender:
            return None
        if sent.sent_s is not None:
            self._trips.on_answer(sender, now_s - sent.sent_s)
            sent.sent_s = None
        return sent

    def _was_silent(self, number: int, sent: _Sent[K]) -> None:
        if sent.sent_s is None:
            return
        self._trips.on_timeout(sent.to)
        if len(self._late) >= MAX_LATE:
            del self._late[next(iter(self._late))]
        self._late[number] = (sent.to, sent.sent_s)

    def _open_tasks(self) -> list[_Task[K]]:
        return list({id(sent.task): sent.task for sent in self._sent.values()}.values())

    def _on_copy(
        self, sender: K, copy: MessageCopy[K], now_s: float
    ) -> list[ForwarderAction[K]]:
        task = _Task(
            copy, sender, now_s + self._timeouts.report_timeout_s / PROGRESS_SIGNS
        )
        done: list[ForwarderAction[K]] = []
        if not (self.key < copy.low or copy.high < self.key or self.key == copy.high):
            task.results.append(_Result(self.key, 1, (RankedNode(self.key, 0),)))
            if self._is_new(copy.message.id):
                done.append(DeliverMessage(copy.message))
        sent = self._delegate(task, copy, now_s)
        if sent:
            return [*done, SendPacket(sender, CopyReceipt(copy.number)), *sent]
        return [*done, *self._finish(task, now_s)]

    def _is_new(self, message_id: str) -> bool:
        if message_id in self._seen:
            return False
        self._seen[message_id] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def _on_report(
        self, sent: _Sent[K], report: RangeReport[K], now_s: float
    ) -> list[ForwarderAction[K]]:
        del self._sent[report.number]
        task, copy = sent.task, sent.copy
        task.open.discard(report.number)
        task.results.append(_Result(copy.low, report.count, report.sample))
        task.is_whole &= report.is_whole or report.is_rest_whole
        done: list[ForwarderAction[K]] = []
        if not report.missing and sent.silent is not None and _misses(sent, report):
            task.missing.append(RangePart(sent.silent, copy.low, copy.high))
        is_last = sent.attempt >= MAX_ATTEMPTS or copy.tree > 0
        for part in report.missing[:MAX_MISSING]:
            if part.low < copy.low or copy.high < part.high or part.to == self.key:
                task.is_whole = False
            elif is_last or self._is_suspect(part.to, now_s):
                task.missing.append(part)
            else:
                done.append(self._send(task, part, MAX_ATTEMPTS, now_s))
        return [*done, *self._finish(task, now_s)]

    def _finish(self, task: _Task[K], now_s: float) -> list[ForwarderAction[K]]:
        """Report to the parent when no part is open."""
        if task.open:
            return []
        total, sample = _merged(task.results)
        is_whole = task.is_whole and not task.missing
        if task.parent is not None:
            missing = tuple(task.missing[:MAX_MISSING])
            is_rest_whole = task.is_whole and 0 < len(task.missing) <= MAX_MISSING
            report = RangeReport(
                task.copy.number, total, sample, is_whole, missing, is_rest_whole
            )
            return [SendPacket(task.parent, report, task.copy.message.id)]
        if detours := self._detour(task, sample, now_s):
            return detours
        if is_whole or task.copy.tree == 0:
            self.subscriber_count, self.known_heads = total, sample
        return [PublicationDone(task.copy, total, is_whole)]

    def _detour(
        self, task: _Task[K], reached: Sequence[RankedNode[K]], now_s: float
    ) -> list[ForwarderAction[K]]:
        """Send the missing parts by way of other nodes, which may reach them.

        First the node right of a part, as it knows nodes left of it; then the next.
        """
        self._failed_detours += bool(task.missing and task.detours)
        if not task.missing or task.copy.tree or task.detours >= MAX_DETOURS:
            return []
        known = {*self.contacts(), *(each.key for each in reached)} - {self.key}
        trusted = {key for key in known if not self._is_suspect(key, now_s)}
        # Suspects may receive although their answers are lost.
        if not (ways := sorted(trusted or known)):
            return []
        task.detours += 1
        first = self._failed_detours % len(task.missing)
        parts = task.missing[first:] + task.missing[:first]
        task.missing = parts[DETOUR_PARTS:]
        done: list[ForwarderAction[K]] = []
        for part in parts[:DETOUR_PARTS]:
            place = bisect_left(ways, part.high) + self._failed_detours
            way = part._replace(to=ways[place % len(ways)])
            packet = self._send(task, way, MAX_ATTEMPTS, now_s)
            self._sent[packet.packet.number].silent = part.to
            done.append(packet)
        return done

    def _delegate(
        self, task: _Task[K], copy: MessageCopy[K], now_s: float, attempt: int = 0
    ) -> list[ForwarderAction[K]]:
        """Delegate a range: the parts left and right of ourselves."""
        parts: list[tuple[RangePart[K], int]] = []
        if copy.low < self.key:
            high = min(self.key, copy.high)
            parts += [(p, 0) for p in self._left(task, copy.low, high, now_s)]
        if self.key < copy.high:
            parts += self._right(task, copy, now_s)
        done: list[ForwarderAction[K]] = []
        parts.sort(key=lambda each: -each[1])  # the largest part is sent first
        for before, (part, share) in enumerate(parts):
            done.append(
                self._send(task, part, attempt, now_s, share=share, before=before)
            )
        return done

    def _send(
        self,
        task: _Task[K],
        part: RangePart[K],
        attempt: int,
        now_s: float,
        *,
        share: int = 0,
        before: int = 0,
    ) -> SendPacket[K]:
        """Delegate a part, after the copies before it."""
        number = next(self._numbers)
        copy = replace(
            task.copy, number=number, low=part.low, high=part.high, share=share
        )
        wait_s = self._trips.timeout_s(part.to) + before * self._timeouts.per_copy_s
        self._sent[number] = _Sent(task, part.to, copy, now_s + wait_s, attempt, now_s)
        task.open.add(number)
        return SendPacket(part.to, copy)

    def _left(
        self, task: _Task[K], low: K, high: K, now_s: float
    ) -> list[RangePart[K]]:
        """Parts of a range left of us; the first head covers all left of it."""
        lefts = self._known.left_neighbours()
        if not lefts or lefts[-1] < low:  # the nearest: no node is in the range
            return []
        known = [key for key in lefts if not self._is_suspect(key, now_s)]
        inside = known[bisect_left(known, low) : bisect_left(known, high)]
        beyond = known[bisect_left(known, high) :]
        # Only suspects are in the range: the node before it may reach them.
        heads = inside or beyond[:1] or known[-1:]
        if not heads:
            suspects = lefts[bisect_left(lefts, low) : bisect_left(lefts, high)]
            task.missing += assign_range(low, high, suspects)
        return assign_range(low, high, heads)

    def _right(
        self, task: _Task[K], copy: MessageCopy[K], now_s: float
    ) -> list[tuple[RangePart[K], int]]:
        """Parts of a range right of us, with the estimated subscribers in each."""
        is_root = task.parent is None
        rights = (is_root and self.known_heads) or self._known.right_neighbours()
        known = self._trusted(rights, now_s)
        keys = [each.key for each in known]
        inside = known[bisect_left(keys, copy.low) : bisect_left(keys, copy.high)]
        if not inside:
            onward = self._relay(copy, now_s)
            if not onward:
                task.missing += self._hidden(copy, now_s)
            return [(p, copy.share) for p in onward]
        chosen = self._heads(inside, copy, is_root)
        firsts = [inside[head.first_index] for head in chosen]
        # The first head also covers suspects left of it, and nodes behind them.
        low = copy.low if self.key < copy.low else rights[0].key
        starts = [low, *(first.key for first in firsts[1:])]
        ends = [*starts[1:], copy.high]
        places = [each.position for each in firsts]
        sizes = [
            max(1, end - place) if copy.share else 0
            for place, end in zip(
                places, [*places[1:], inside[0].position + copy.share], strict=True
            )
        ]
        parts = [
            RangePart(inside[head.head_index].key, start, end)
            for head, start, end in zip(chosen, starts, ends, strict=True)
        ]
        return list(zip(parts, sizes, strict=True))

    def _heads(
        self, inside: Sequence[RankedNode[K]], copy: MessageCopy[K], is_root: bool
    ) -> list[RangeHead]:
        """Choose the heads of a range among the nodes known in it."""
        own = self._valley_of(self.key)
        if own:
            valleys = [self._valley_of(each.key) for each in inside]
            tree = copy.tree if is_root else 0
            return choose_valley_heads(
                own, valleys, is_uplink_narrow=self.is_uplink_narrow, tree=tree
            )
        plan = choose_plan(copy.message.priority, self.queued_copies)
        return [RangeHead(i, i) for i in _choose(inside, copy, plan, is_root)]

    def _hidden(self, copy: MessageCopy[K], now_s: float) -> list[RangePart[K]]:
        """Parts of a range that only suspected nodes may know."""
        rights = [each.key for each in self._known.right_neighbours()]
        before = rights[: bisect_left(rights, copy.high)]
        suspects = [key for key in before if self._is_suspect(key, now_s)]
        if not suspects:
            return []
        inside = suspects[bisect_left(suspects, copy.low) :] or suspects[-1:]
        low = copy.low if self.key < copy.low else rights[0]
        return assign_range(low, copy.high, inside)

    def _relay(self, copy: MessageCopy[K], now_s: float) -> list[RangePart[K]]:
        """Pass a range on towards it: no node in it is known."""
        if not self.key < copy.low:
            return []
        known = self._trusted(
            [*self.known_heads, *self._known.right_neighbours()], now_s
        )
        parts = split_range(copy.low, copy.high, sorted({each.key for each in known}))
        # Left of the first known node in the range there may be suspects.
        return [p._replace(low=copy.low) for p in parts[:1]] + parts[1:]

    def _trusted(
        self, known: Sequence[RankedNode[K]], now_s: float
    ) -> list[RankedNode[K]]:
        return [each for each in known if not self._is_suspect(each.key, now_s)]

    def _is_suspect(self, key: K, now_s: float) -> bool:
        return self._suspects.get(key, now_s) > now_s


def _choose(
    inside: Sequence[RankedNode[K]],
    copy: MessageCopy[K],
    plan: SplitPlan,
    is_root: bool,
) -> Sequence[int]:
    """Choose heads by the sizes of the parts, where no locations are known."""
    if not copy.share:
        return range(len(inside))
    sizes = subtree_sizes(copy.share, plan, is_root)
    wanted = (
        second_tree_heads(sizes) if is_root and copy.tree else head_positions(sizes)
    )
    return nearest_indices(
        wanted, [each.position - inside[0].position for each in inside]
    )


def _misses(detour: _Sent[K], report: RangeReport[K]) -> bool:
    """Whether the report of a detour lacks the silent node.

    The node on the way may not know it, and reports its range as whole then.
    """
    silent, copy = detour.silent, detour.copy
    if silent is None or silent < copy.low or not silent < copy.high:
        return False
    return all(each.key != silent for each in report.sample)


def _merged(results: list[_Result[K]]) -> tuple[int, tuple[RankedNode[K], ...]]:
    """Add up results, and keep an even sample of all."""
    total = 0
    whole: list[RankedNode[K]] = []
    for _, number, sample in sorted(results, key=lambda result: result.low):
        whole += [RankedNode(key, place + total) for key, place in sample]
        total += number
    step = max(1.0, len(whole) / MAX_SAMPLE)
    return total, tuple(whole[int(i * step)] for i in range(int(len(whole) / step)))

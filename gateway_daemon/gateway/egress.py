"""Egress: one lane for each distributed broker, with a durable queue and an uplink.

A broker that is down blocks its own lane only. Messages no broker is responsible for
wait in a lane of their own until the broker table names one. So do those of a lane that
cannot be opened, on a full disk; see `Egress.settle`.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edge_agent.queue.base import (
    MessageDraft,
    Queue,
    QueuedMessage,
    QueueError,
    QueueFileError,
    QueueStats,
    format_depth,
)
from edge_agent.uplink.settings import format_link
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.gateway.overlay_fallback import OverlayFallback
from service_runtime.lifecycle import start_watched_loop
from service_runtime.tls import Endpoint
from service_runtime.watchdog import MAX_SILENCE_S, LoopWatchdog
from spatial_mqtt.directory import BrokerInfo, BrokerTable, find_responsible_broker
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

REROUTE_BATCH = 200
PAUSE_S = 0.002
"""Pause between two batches of a move: without it their thread would mostly take the
lock again before one that waits for it."""

RETIRE_TIMEOUT_S = 10.0

MERGED_SHARE = 0.01
"""Share of the longest wait within which arrivals have one time, to bound memory."""


class ArrivalTimes:
    """When the messages of a lane entered it, by priority.

    Those of a priority leave in about that order, so their number gives the oldest.
    Times are not stored: what an earlier process left counts from `opened_s`.
    """

    def __init__(self, opened_s: float) -> None:
        self._counts: Counter[int] = Counter()
        self._times = {p: deque([(0, opened_s)]) for p in LADDER.descending}

    def add(self, priorities: Iterable[int], now_s: float) -> None:
        """Record messages that enter now."""
        for priority, count in Counter(priorities).items():
            self._counts[priority] += count
            times, at_s = self._times[priority], now_s
            if times and now_s - times[-1][1] < (now_s - times[0][1]) * MERGED_SHARE:
                _, at_s = times.pop()
            times.append((self._counts[priority], at_s))

    def waits_s(self, rows: Mapping[int, int], now_s: float) -> dict[int, float]:
        """Seconds since the oldest message of each priority that has one entered.

        Args:
            rows: Number of messages that wait, by priority.
            now_s: Monotonic.
        """
        for priority, times in self._times.items():
            left = self._counts[priority] - rows.get(priority, 0)
            while times and times[0][0] <= left:
                times.popleft()
        return {p: now_s - times[0][1] for p, times in self._times.items() if times}


@dataclass(frozen=True)
class Lane:
    """Queue and uplink for one broker.

    Attributes:
        queue: The queue.
        arrivals: When its messages entered it.
        uplink: The uplink; None without a known broker.
        thread: Thread of the uplink.
        moved: Sequence numbers of messages that were moved, and that the uplink still
            has in flight.
    """

    queue: Queue
    arrivals: ArrivalTimes
    uplink: Uplink | None = None
    thread: threading.Thread | None = None
    moved: set[int] = field(default_factory=set)

    @property
    def is_up(self) -> bool:
        """Whether the broker is connected."""
        return self.uplink is not None and self.uplink.down_since_s is None

    def retire(self) -> None:
        """Stop the uplink and end its leases, so that all messages can be moved."""
        if self.uplink is not None:
            self.uplink.stop()
        if self.thread is not None:
            self.thread.join(RETIRE_TIMEOUT_S)
        self.queue.release_all()


@dataclass(frozen=True)
class LaneStatus:
    """Contents and connection state of a lane.

    Attributes:
        stats: Messages, bytes and counters of the queue.
        ages_s: Age of the oldest message of each priority that has one.
        is_up: Whether the broker is connected.
        waits_s: How long the oldest message of each priority has been in the lane;
            without priorities that the rate limit forbids now.
    """

    stats: QueueStats
    ages_s: Mapping[int, float]
    is_up: bool = False
    waits_s: Mapping[int, float] = field(default_factory=dict)


MakeQueue = Callable[[BrokerInfo | None], Queue]
MakeUplink = Callable[[BrokerInfo, Queue], Uplink]
StateOf = Callable[[Sequence[MessageDraft]], Mapping[str, str]]
OnStored = Callable[[Sequence[MessageDraft]], object]


class Egress:
    """All lanes of a gateway.

    Args:
        make_queue: Opens the queue of a lane; None is the lane without a broker.
        make_uplink: Makes the uplink of a lane.
        tls: Whether distributed brokers use TLS.
        watchdog: Watchdog of the uplinks' loops.
        count_topics: Called with the topics of stored messages.
        fallback: The overlay, if this gateway takes part in it.
    """

    def __init__(
        self,
        make_queue: MakeQueue,
        make_uplink: MakeUplink,
        tls: bool,
        watchdog: LoopWatchdog,
        count_topics: Callable[[Iterable[str]], object] = lambda _: None,
        *,
        fallback: OverlayFallback | None = None,
    ) -> None:
        self._fallback = fallback
        self._watchdog = watchdog
        self._clock = watchdog.clock
        self._count = count_topics
        self._make_queue = make_queue
        self._make_uplink = make_uplink
        self._tls = tls
        self._lock = threading.RLock()
        self._table = BrokerTable(-1, ())
        self._second: BrokerTable | None = None
        self._lanes: dict[BrokerInfo | None, Lane] = {
            None: self._new_lane(make_queue(None))
        }
        self._is_settled = True
        self._closed = threading.Event()
        self._leftovers: dict[BrokerInfo, bool] = {}

    @property
    def needs_table(self) -> bool:
        """Whether messages have no route before a broker table is known."""
        return self._fallback is None or not self._fallback.is_route

    @property
    def table(self) -> BrokerTable:
        """The broker table in use; version -1 before the first one."""
        return self._table

    def adopt(self, stored: Iterable[BrokerInfo]) -> None:
        """Open the queues of lanes that an earlier process left, without an uplink.

        The next table moves their messages, also if it lacks their brokers: the table
        that they rest on may be lost, as a damaged file or with a card.
        """
        with self._lock:
            for broker in stored:
                if broker in self._lanes:
                    continue
                try:
                    self._lanes[broker] = self._new_lane(self._make_queue(broker))
                except QueueFileError as error:
                    log.error("the lane to %s is not used: %s", broker, error)  # noqa: TRY400

    def apply_table(self, table: BrokerTable) -> None:
        """Use a new broker table: open its lanes and move messages between lanes."""
        with self._lock:
            self._table, self._second = table, None
        self._settle()
        with self._lock:
            self._leftovers = {each: False for each in self._lanes if each is not None}

    def settle(self) -> None:
        """Try again what a full disk or lane did not allow; to be called repeatedly.

        Meanwhile the messages stay where they are.
        """
        if not self._is_settled:
            self._settle()
            kept = self._leftovers.items()
            self._leftovers = {b: each for b, each in kept if b in self._lanes}

    def move_leftovers(self) -> None:
        """Move messages of areas that went to other brokers out of lanes that are up.

        Until the subscribers leave the old brokers, such messages are delivered there
        (see `apply_table`). To be called repeatedly when that time ends: a few may be
        leased at the first call and not sent yet.
        """
        for broker, is_searched in list(self._leftovers.items()):
            lane = self._lanes[broker]
            sent = _Move(broker, lane)
            self._move_in_flight(sent)
            if is_searched:
                sent.refused = None  # logged the first time
            _log_move(sent)
            if is_searched and lane.is_up:
                continue
            is_moved = self._move(_Move(broker, lane))
            self._leftovers[broker] = True
            if is_moved and not lane.queue.stats().leased:
                del self._leftovers[broker]

    def publish_to_both(self, table: BrokerTable) -> None:
        """Store new messages also in the lanes of another table until `apply_table`."""
        with self._lock:
            self._second = table
            for entry in table.brokers:
                self._open_lane(entry.broker_info)

    @property
    def publishes_to_both(self) -> bool:
        """Whether new messages are also stored by a second table."""
        return self._second is not None

    def is_sent(self, age_s: float) -> bool:
        """Whether the brokers that are up have all messages older than this."""
        with self._lock:
            ages_s = [e.queue.oldest_s() for e in self._lanes.values() if e.is_up]
        return all(each is None or each < age_s for each in ages_s)

    def put(
        self,
        drafts: Iterable[MessageDraft],
        state_of: StateOf = lambda _: {},
        on_stored: OnStored = lambda _: None,
    ) -> int:
        """Store drafts in their lanes; they are on disk when this returns.

        Args:
            drafts: Messages.
            state_of: State that a lane stores in the transaction of its messages.
            on_stored: Called with the messages of each lane that has stored them, also
                where another lane then raises an error.

        Returns:
            Number of new messages.
        """
        drafts = list(drafts)
        self._count([draft.topic for draft in drafts])
        if self._fallback is not None and self._fallback.is_route:
            count = _count_new(self._fallback.put(drafts, state_of(drafts)))
            on_stored(drafts)
            return count
        return self._put(drafts, state_of, on_stored)

    def store_state(self, state: Mapping[str, str]) -> None:
        """Store a state in each lane, without messages; on disk when this returns.

        Raises:
            QueueFileError: A lane cannot be written.
        """
        with self._lock:
            queues = [lane.queue for lane in self._lanes.values()]
            if self._fallback is not None:
                queues.append(self._fallback.queue)
            for queue in queues:
                queue.put((), state)

    def stored_states(self, name: str) -> list[str]:
        """State that the lanes stored under a name."""
        with self._lock:
            states = [lane.queue.get_state(name) for lane in self._lanes.values()]
        if self._fallback is not None:
            states.append(self._fallback.queue.get_state(name))
        return [state for state in states if state is not None]

    def lane_status(self) -> dict[BrokerInfo | None, LaneStatus]:
        """Contents and connection state of each lane."""
        with self._lock:  # keeps lanes from being closed
            return {broker: self._status(lane) for broker, lane in self._lanes.items()}

    def summaries(self, now_s: float) -> list[str]:
        """Summary of each lane: its connection and its queue.

        Args:
            now_s: Monotonic seconds, on the uplinks' clock.
        """
        with self._lock:
            lanes = list(self._lanes.values())
        fallback = [self._fallback.summary()] if self._fallback is not None else []
        return [*(_summary(lane, now_s) for lane in lanes), *fallback]

    def close(self) -> None:
        """Stop the uplinks and close the queues."""
        with self._lock:
            self._closed.set()
            # The first one last: the others store in it which stores they know.
            for lane in reversed(self._lanes.values()):
                if lane.uplink is not None:
                    lane.uplink.stop()
                lane.queue.close()
        if self._fallback is not None:
            self._fallback.close()

    def _put(
        self,
        drafts: Iterable[MessageDraft],
        state_of: StateOf = lambda _: {},
        on_stored: OnStored = lambda _: None,
    ) -> int:
        with self._lock:
            by_broker = self._by_broker(self._table, drafts)
            ids: dict[BrokerInfo | None, Sequence[MessageId | None]] = {}
            for broker, batch in by_broker.items():
                ids[broker] = self._store(self._lanes[broker], batch, state_of(batch))
                on_stored(batch)
            if self._second is not None:
                for broker, batch in by_broker.items():
                    self._store_again(self._second, broker, batch, ids[broker])
            return sum(map(_count_new, ids.values()))

    def _store_again(
        self,
        table: BrokerTable,
        first: BrokerInfo | None,
        drafts: Sequence[MessageDraft],
        ids: Sequence[MessageId | None],
    ) -> None:
        """Store messages also where a second table assigns them, with the same ids."""
        stored = [
            draft._replace(id=message_id)
            for draft, message_id in zip(drafts, ids, strict=True)
            if message_id is not None
        ]
        for broker, batch in self._by_broker(table, stored).items():
            if broker not in {first, None}:
                self._store(self._lanes[broker], batch, {})

    def _store(
        self, lane: Lane, drafts: list[MessageDraft], state: Mapping[str, str]
    ) -> Sequence[MessageId | None]:
        ids = lane.queue.put(drafts, state)
        if lane.uplink is not None:
            lane.uplink.wake()
        if self._fallback is not None:
            self._fallback.on_stored(drafts, ids, lane.uplink)
        lane.arrivals.add(
            (d.priority for d, i in zip(drafts, ids, strict=True) if i is not None),
            self._clock(),
        )
        return ids

    def _status(self, lane: Lane) -> LaneStatus:
        stats, ages_s = lane.queue.stats(), lane.queue.ages_s()
        # What is held was sent: another broker would not make it faster.
        held = lane.uplink.held.messages() if lane.uplink is not None else []
        held_rows = Counter(message.priority for message in held)
        rows = {p: depth.rows - held_rows[p] for p, depth in stats.depth.items()}
        waits_s = lane.arrivals.waits_s(rows, self._clock())
        lowest = lane.uplink.lowest_permitted if lane.uplink is not None else 0
        # At most the age: where the newest are sent first, the order is not kept.
        waits_s = {
            p: min(waits_s.get(p, 0.0), age_s)
            for p, age_s in ages_s.items()
            if p >= lowest
        }
        return LaneStatus(stats, ages_s, lane.is_up, waits_s)

    def _new_lane(self, queue: Queue) -> Lane:
        return Lane(queue, ArrivalTimes(self._clock()))

    def _settle(self) -> None:
        """Open the lanes of the table, and move messages to them."""
        with self._lock:
            opened = [
                self._open_lane(entry.broker_info) for entry in self._table.brokers
            ]
            lanes = list(self._lanes.items())
        moved = [self._reroute(*each) for each in lanes]
        self._is_settled = all(opened) and all(moved)

    def _open_lane(self, broker: BrokerInfo) -> bool:
        """Open the lane to a broker, unless it is open; whether it is then."""
        lane = self._lanes.get(broker)
        if lane is not None and lane.uplink is not None:
            return True
        if not broker.has_valid_host:  # it is part of a file's name
            log.error("messages to %a wait without a lane: wrong host", str(broker))
            return False
        try:
            lane = lane or self._new_lane(self._make_queue(broker))
        except QueueFileError as error:
            log.error("messages to %s wait without a lane: %s", broker, error)  # noqa: TRY400
            return False
        uplink = self._make_uplink(broker, lane.queue)
        name = f"lane {broker}"
        thread = start_watched_loop(self._watchdog, name, MAX_SILENCE_S, uplink.run)
        self._lanes[broker] = replace(lane, uplink=uplink, thread=thread)
        uplink.switch_to(Endpoint(broker.host, broker.port, self._tls))
        return True

    def _responsible(self, table: BrokerTable, topic: str) -> BrokerInfo | None:
        """Broker that a table makes responsible; None if it has no open lane."""
        broker = find_responsible_broker(table.brokers, topic)
        return broker if broker in self._lanes else None

    def _by_broker(
        self, table: BrokerTable, drafts: Iterable[MessageDraft]
    ) -> dict[BrokerInfo | None, list[MessageDraft]]:
        found: dict[BrokerInfo | None, list[MessageDraft]] = {}
        for draft in drafts:
            broker = self._responsible(table, draft.topic)
            found.setdefault(broker, []).append(draft)
        return found

    def _reroute(self, broker: BrokerInfo | None, lane: Lane) -> bool:
        """Move messages to the lanes that the current table assigns them to.

        A broker that is up also receives what is left of areas that went to another
        one, until `move_leftovers`. Behind a broker that is down such messages would
        wait as long as it keeps any area.

        Returns:
            Whether all have been moved that should be.
        """
        known = {entry.broker_info for entry in self._table.brokers}
        is_removed = broker is not None and broker not in known
        if is_removed:
            lane.retire()
        elif lane.is_up or not known:
            return True
        is_done = self._move(_Move(broker, lane, is_removed))
        with self._lock:
            if is_removed and is_done:
                self._lanes.pop(broker).queue.close()
            elif is_removed:
                self._lanes[broker] = Lane(lane.queue, lane.arrivals)
        return is_done

    def _move(self, move: "_Move") -> bool:
        """Move messages; whether the other lanes took all of them.

        By priority: a lane that refuses the readings of a node still takes alarms, and
        an alarm that is stored meanwhile is not leased here. In batches: to move the
        messages of a day takes minutes, in which others are stored.
        """
        queue = move.lane.queue
        for priority in LADDER.descending:
            while self._move_batch(move, priority):
                self._closed.wait(PAUSE_S)
            with self._lock:
                if self._closed.is_set():
                    return False
                queue.release(move.remaining)
            move.remaining.clear()
        if move.lane.uplink is not None:
            move.lane.uplink.wake()
        _log_move(move)
        return move.refused is None

    def _move_batch(self, move: "_Move", priority: int) -> bool:
        """Move some messages; whether there were any."""
        with self._lock:
            if self._closed.is_set():
                return False
            batch = move.lane.queue.lease(REROUTE_BATCH, priority=priority)
            self._move_leased(batch, move)
            return bool(batch)

    def _move_in_flight(self, move: "_Move") -> None:
        """Move what was sent to a broker that may never acknowledge it.

        A broker that restarts is not always seen down, and would receive it again, as
        the only one. One that has received it already causes a repeat with the same id.
        """
        if move.lane.uplink is None:
            return
        with self._lock:
            if self._closed.is_set():
                return
            sent, moved = move.lane.uplink.in_flight, move.lane.moved
            moved.intersection_update([m.seq for m in sent])
            for priority in LADDER.descending:
                batch = [m for m in sent if m.priority == priority]
                self._move_leased([m for m in batch if m.seq not in moved], move)
            moved.update({m.seq for m in sent}.difference(move.remaining))

    def _move_leased(self, batch: Iterable[QueuedMessage], move: "_Move") -> None:
        by_target: dict[BrokerInfo | None, list[QueuedMessage]] = {}
        for message in batch:
            target = self._responsible(self._table, message.topic)
            by_target.setdefault(target, []).append(message)
        for target, messages in by_target.items():
            self._move_to(target, messages, move)

    def _move_to(
        self, target: BrokerInfo | None, messages: list[QueuedMessage], move: "_Move"
    ) -> None:
        queue, seqs = move.lane.queue, [message.seq for message in messages]
        if not move.is_removed and target in {move.broker, None}:
            move.remaining += seqs
            return
        try:
            self._put([_to_draft(m, queue.age_s(m)) for m in messages])
        except QueueError as error:
            move.refused = error
            move.remaining += seqs
        else:
            queue.hand_over(seqs)
            if move.lane.uplink is not None:
                move.lane.uplink.held.forget(seqs)
            move.count += len(seqs)


@dataclass
class _Move:
    """A move of messages from a lane to others.

    Attributes:
        broker: Broker of the lane.
        lane: The lane.
        is_removed: Whether all its messages are moved, also to no broker.
        count: Number of messages that were moved.
        remaining: Leased messages that stay.
        refused: Why another lane did not take some.
    """

    broker: BrokerInfo | None
    lane: Lane
    is_removed: bool = False
    count: int = 0
    remaining: list[int] = field(default_factory=list)
    refused: QueueError | None = None


def _log_move(move: _Move) -> None:
    name = move.broker or "nowhere"
    if move.count:
        log.info("%d messages moved from the lane to %s", move.count, name)
    if move.refused is not None:
        log.error("messages stay in the lane to %s: %s", name, move.refused)


def _to_draft(message: QueuedMessage, age_s: float | None) -> MessageDraft:
    payload = message.payload
    return MessageDraft(
        message.priority, message.topic, lambda _id: payload, message.id, age_s or 0.0
    )


def _count_new(ids: Sequence[MessageId | None]) -> int:
    return len(ids) - ids.count(None)


def _summary(lane: Lane, now_s: float) -> str:
    link = "without a broker"
    if lane.uplink is not None:
        link = format_link(lane.uplink, now_s, "held until a store does")
    return f"{link}, {format_depth(lane.queue.stats(), lane.queue.oldest_s())}"

"""Overlay fallback: messages that go from gateway to gateway, without a broker.

With ``route = "overlay"`` all messages do. Otherwise only urgent ones do, and only
while their broker is out of reach: the overlay carries a copy, the message itself stays
in the queue of its broker, and receivers drop the duplicate by its id. Messages stay in
a queue file of their own until all subscribed gateways have them on disk. What one of
them cannot store, because its disk is full, is published again until it can, and no
other message waits for that.
"""

import logging
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

from edge_agent.queue.base import (
    MessageDraft,
    Queue,
    QueuedMessage,
    QueueFileError,
    QueueFullError,
    format_depth,
)
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.overlay.messages import CarriedMessage, PublicationResult
from gateway_daemon.overlay.runner import (
    OverlayRunner,
    OverlayStatus,
    overlay_metrics,
)
from service_runtime.files import write_best_effort
from service_runtime.lifecycle import Service
from service_runtime.metrics import Metric
from spatial_mqtt.directory import (
    BrokerEntry,
    decode_gateways,
    encode_directory_message,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

RECENT_S = 60.0
"""How long stored messages are remembered: a lost broker may be noticed that late."""

MAX_RECENT = 1000
"""Remembered messages of each priority, so that none displaces a more urgent one."""

WINDOW = 32
"""Messages in flight at once; messages of the top priority have their own window."""

RETRY_WINDOW = 8
"""Messages of the window that were set aside and are tried again, of each kind."""

RETRIES_PER_S = 2.0
"""Tries of all messages of a kind that were set aside, while none succeeds."""

RETRY_CHECK_S = 0.25
"""Interval of searches for messages to try again."""

HASTENED = 2
"""Messages of a kind that are tried at once when another one has succeeded."""

MAX_INCOMPLETE_BYTES = 32 << 20
"""Messages of a kind that were set aside. They are in memory."""

INCOMPLETE_BYTES = 512
"""Memory of a message that was set aside, beside its payload."""

RESEND_S = 120.0
"""Time after which a message is published again if its result is unknown."""

FIRST_RETRY_S, LAST_RETRY_S = 2.0, 30.0

CONSTANT_TRIES = 5
"""Tries before the retry interval grows: rings that merge after a partition may hide
subscribers from each other until all nodes have checked their neighbours."""

MAX_EMPTY_TRIES = 14
"""Tries (three minutes) after which a message counts as having no subscribers."""

UNHEARD_S = 180.0
"""Time without subscribers after which a topic counts as having none: the same time,
for further messages."""

MAX_UNHEARD = 10_000
"""Topics without subscribers that are remembered."""

REPEATS_S = (10.0, 30.0)
"""Intervals of further publications of a top-priority message: while links fail and
recover, the overlay may be partitioned before a node can detect it."""

REPEAT_WINDOW = 4
"""Repeats of top-priority messages in flight at once. When a silent gateway answers
again, an hour of them may be due, and a new emergency must not wait behind them."""

HOLD_S = 3600.0
"""How long a top-priority message is held for gateways that do not answer, to be
published again when one of them does."""


class RecentMessage(NamedTuple):
    """A message that was stored for a broker; None when no broker is known."""

    draft: MessageDraft
    broker: Uplink | None
    at_s: float


class RecentMessages:
    """Messages of the last `RECENT_S`; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[int, deque[RecentMessage]] = defaultdict(deque)
        self._logged_s = -math.inf

    def add(self, messages: Iterable[RecentMessage]) -> None:
        """Add messages; drop and log the oldest of a priority when there are many."""
        with self._lock:
            for each in messages:
                line = self._messages[each.draft.priority]
                line.append(each)
                if len(line) > MAX_RECENT:
                    self._log_dropped(line.popleft(), each.at_s)

    def pop_lost(
        self, now_s: float, is_lost: Callable[[Uplink | None], bool]
    ) -> list[MessageDraft]:
        """Remove and return those of lost brokers; forget those that are too old."""
        lost: list[MessageDraft] = []
        with self._lock:
            for priority, line in self._messages.items():
                recent = [each for each in line if now_s - each.at_s <= RECENT_S]
                lost += [each.draft for each in recent if is_lost(each.broker)]
                kept = (each for each in recent if not is_lost(each.broker))
                self._messages[priority] = deque(kept)
        return lost

    def _log_dropped(self, oldest: RecentMessage, now_s: float) -> None:
        if now_s - oldest.at_s <= RECENT_S <= now_s - self._logged_s:
            self._logged_s = now_s
            log.warning(
                "more than %d messages of priority %d within %.0f s: the oldest do not "
                "take the overlay if their broker is lost now",
                MAX_RECENT,
                oldest.draft.priority,
                RECENT_S,
            )


@dataclass(frozen=True)
class FallbackRules:
    """Which messages take the overlay.

    Attributes:
        is_route: Whether all messages do.
        from_priority: Lowest priority that does while its broker is out of reach.
        out_of_reach_s: Time without service after which a broker is out of reach.
        ttl_s: Maximum age by priority, as in the queue's `ExpiryPolicy`.
    """

    is_route: bool = False
    from_priority: int = LADDER.urgent_from
    out_of_reach_s: float = 5.0
    ttl_s: Mapping[int, float] = field(default_factory=dict)


@dataclass
class _InFlight:
    """A published message.

    Attributes:
        message: The message.
        tries: How often it was published.
        repeats: How many of `REPEATS_S` are done.
        is_repeating: Whether a repeat waits for its result.
        due_s: When it is published again.
        held_until_s: End of the hold time; None while it is not held.
        returns: Value of `return_count` at the last publication.
        retry_of: Where it waited outside the window until this try.
    """

    message: QueuedMessage
    tries: int = 0
    repeats: int = 0
    is_repeating: bool = False
    due_s: float = 0.0
    held_until_s: float | None = None
    returns: int = 0
    retry_of: "_SetAside | None" = None


class _Unheard:
    """Topics whose publications have found no subscriber lately.

    A single answer is not definite: rings that merge hide subscribers from each other.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}

    def is_definite(self, each: _InFlight, now_s: float) -> bool:
        """Note an answer without subscribers; whether the topic counts as having none.

        The time begins anew when a gateway returns, which may have subscribers.
        """
        topic, first = each.message.topic, (now_s, each.returns)
        since_s, returns = self._since.setdefault(topic, first)
        if returns != each.returns:
            self._since[topic], since_s = first, now_s
        if len(self._since) > MAX_UNHEARD:
            del self._since[next(iter(self._since))]
        return now_s - since_s >= UNHEARD_S

    def discard(self, topic: str) -> None:
        """Note that a topic has subscribers, or that some may have been missed."""
        self._since.pop(topic, None)


class _SetAside:
    """Messages that wait outside the window for another try.

    Some gateway could not store them or did not receive them, or none has subscribed to
    their topic: a full disk may last for days. Each is tried again at growing
    intervals, and all of them together only at `RETRIES_PER_S`: each try goes to every
    subscriber. When one succeeds, the others follow, faster and faster.
    """

    def __init__(self) -> None:
        self._messages: dict[str, _InFlight] = {}
        self._bytes = 0

    @property
    def has_space(self) -> bool:
        """Whether another message fits."""
        return self._bytes < MAX_INCOMPLETE_BYTES

    def add(self, each: _InFlight, now_s: float, due_s: float) -> None:
        """Add a message that is due then, or later if there are many."""
        each.due_s = max(due_s, now_s + len(self._messages) / RETRIES_PER_S)
        self._messages[str(each.message.id)] = each
        self._bytes += INCOMPLETE_BYTES + len(each.message.payload)

    def pop_due(self, now_s: float, limit: int) -> list[_InFlight]:
        """Remove and return messages that are due, the most urgent first."""
        due = [each for each in self._messages.values() if each.due_s <= now_s]
        due.sort(key=lambda each: (-each.message.priority, each.due_s))
        for each in due[:limit]:
            del self._messages[str(each.message.id)]
            self._bytes -= INCOMPLETE_BYTES + len(each.message.payload)
        return due[:limit]

    def hasten(self, now_s: float) -> None:
        """Let the next messages be due now: one of them has succeeded."""
        later = (each for each in self._messages.values() if each.due_s > now_s)
        for each in nsmallest(HASTENED, later, key=lambda each: each.due_s):
            each.due_s = now_s


class OverlayFallback:
    """Publishes messages from its own queue in the overlay.

    Args:
        queue: Messages for the overlay.
        rules: Which messages take the overlay.
        clock: Monotonic seconds.
    """

    def __init__(
        self, queue: Queue, rules: FallbackRules, clock: Callable[[], float]
    ) -> None:
        self.queue = queue
        self.is_route = rules.is_route
        self._rules = rules
        self._clock = clock
        self._recent = RecentMessages()
        self._in_flight: dict[str, _InFlight] = {}
        self._incomplete, self._without_subscribers = _SetAside(), _SetAside()
        self._unheard = _Unheard()
        self._retry_at_s = -math.inf
        self._outage_until_s = -math.inf
        self._overlay: OverlayRunner | None = None

    def set_overlay(self, overlay: OverlayRunner) -> None:
        """Set the overlay, before it runs."""
        self._overlay = overlay

    def put(
        self, drafts: Sequence[MessageDraft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        """Store messages that have the overlay as their route, as `Queue.put` does."""
        ids = self.queue.put(drafts, state)
        self._wake()
        return ids

    def on_stored(
        self,
        drafts: Iterable[MessageDraft],
        ids: Iterable[MessageId | None],
        broker: Uplink | None,
    ) -> None:
        """Remember urgent messages that were stored for a broker.

        Args:
            drafts: Messages.
            ids: Id of each; None for a duplicate.
            broker: The broker's uplink; None when no broker is known.
        """
        now_s = self._clock()
        urgent = [
            RecentMessage(draft._replace(id=id_), broker, now_s)
            for draft, id_ in zip(drafts, ids, strict=True)
            if id_ is not None and draft.priority >= self._rules.from_priority
        ]
        if urgent:
            self._recent.add(urgent)
            self._wake()

    def poll(self, now_s: float) -> None:
        """Copy messages of lost brokers and publish; called in the overlay's loop."""
        self._copy_unreachable(now_s)
        if self._overlay is None:
            return
        for each in [e for e in self._in_flight.values() if e.held_until_s is not None]:
            self._check_held(each, self._overlay, now_s)
        self._send_due(now_s)
        self._retry_set_aside(now_s)
        if self._overlay.status.has_peers:
            for message in self._lease():
                each = _InFlight(message)
                self._in_flight[str(message.id)] = each
                self._send(each, now_s)

    def on_result(self, ended: PublicationResult) -> None:
        """Handle the result of a publication; called in the overlay's loop."""
        each = self._in_flight.get(ended.message_id)
        if each is None:
            return
        now_s = self._clock()
        each.is_repeating = False
        if not self._is_received(each, ended, now_s):
            doublings = min(max(0, each.tries - CONSTANT_TRIES), 10)
            wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2**doublings)
            if self._set_aside(each, ended, now_s + wait_s):
                return
        elif each.message.priority == LADDER.top and each.repeats < len(REPEATS_S):
            wait_s = REPEATS_S[each.repeats]
            each.repeats += 1
        elif self._hold(each):
            wait_s = math.inf
        else:
            self._finish(each)
            if each.retry_of is not None:
                each.retry_of.hasten(now_s)
            return
        each.due_s = now_s + wait_s

    @property
    def waiting_by_priority(self) -> Mapping[int, int]:
        """Number of messages that wait for the overlay, by priority."""
        return {p: depth.rows for p, depth in self.queue.stats().depth.items()}

    def summary(self) -> str:
        """Summary of the overlay and of the messages that wait for it."""
        status = self._overlay.status if self._overlay is not None else OverlayStatus()
        reach = f"up, {status.peer_summary}" if status.has_peers else "alone"
        depth = format_depth(self.queue.stats(), self.queue.oldest_s())
        return f"overlay {reach}, {depth}"

    def close(self) -> None:
        """Close the queue."""
        self.queue.close()

    def _send_due(self, now_s: float) -> None:
        """Publish messages again that are due; repeats only in their window."""
        due = [each for each in self._in_flight.values() if each.due_s <= now_s]
        free = REPEAT_WINDOW - sum(e.is_repeating for e in self._in_flight.values())
        for each in sorted(due, key=_send_order):
            if each.repeats and not each.is_repeating:
                if free <= 0:
                    continue
                free -= 1
                each.is_repeating = True
            self._send(each, now_s)

    def _hold(self, each: _InFlight) -> bool:
        """Hold a top-priority message while a known gateway does not answer.

        Returns:
            Whether the message is held.
        """
        if each.message.priority < LADDER.top or self._overlay is None:
            return False
        if not self._overlay.status.peer_summary.silent:
            return False
        if each.held_until_s is None:
            each.held_until_s = self._clock() + HOLD_S
        return self._clock() < each.held_until_s

    def _check_held(
        self, each: _InFlight, overlay: OverlayRunner, now_s: float
    ) -> None:
        """Publish a held message again when a silent gateway answers again."""
        if each.due_s < math.inf:
            return
        if overlay.status.peer_summary.return_count != each.returns:
            each.due_s = now_s
        elif not self._hold(each):
            self._finish(each)

    def _is_received(
        self, each: _InFlight, ended: PublicationResult, now_s: float
    ) -> bool:
        """Whether all subscribers have a message, or it definitely has none."""
        is_unheard = ended.is_complete and not ended.reached
        if not is_unheard:
            self._unheard.discard(each.message.topic)
            return ended.is_complete
        if each.tries >= MAX_EMPTY_TRIES:
            return True
        if self._overlay is not None and self._overlay.status.peer_summary.silent:
            self._unheard.discard(each.message.topic)  # that one may have subscribers
            return False
        is_definite = self._unheard.is_definite(each, now_s)
        return is_definite and each.message.priority < LADDER.top

    def _set_aside(
        self, each: _InFlight, ended: PublicationResult, due_s: float
    ) -> bool:
        """Take a message out of the window until it is due; emergencies have none."""
        if not (ended.reached or ended.is_complete):
            return False  # no gateway has answered: others would fare no better
        place = self._incomplete if ended.reached else self._without_subscribers
        if each.message.priority == LADDER.top or not place.has_space:
            return False
        del self._in_flight[str(each.message.id)]
        place.add(each, self._clock(), due_s)
        return True

    def _retry_set_aside(self, now_s: float) -> None:
        """Publish messages again that were set aside, as far as they are due."""
        if now_s < self._retry_at_s:
            return
        self._retry_at_s = now_s + RETRY_CHECK_S
        for place in (self._incomplete, self._without_subscribers):
            retries = sum(e.retry_of is place for e in self._in_flight.values())
            for each in place.pop_due(now_s, max(0, RETRY_WINDOW - retries)):
                each.retry_of = place
                self._in_flight[str(each.message.id)] = each
                self._send(each, now_s)

    def _is_expired(self, message: QueuedMessage) -> bool:
        ttl_s = self._rules.ttl_s.get(message.priority, math.inf)
        return (self.queue.age_s(message) or 0.0) > ttl_s

    def _finish(self, each: _InFlight) -> None:
        del self._in_flight[str(each.message.id)]
        self.queue.ack([each.message.seq])

    def _copy_unreachable(self, now_s: float) -> None:
        """Store a copy of recent messages for brokers that are out of reach."""
        drafts = self._recent.pop_lost(
            now_s, lambda broker: self._is_out_of_reach(broker, now_s)
        )
        if drafts:
            self._outage_until_s = now_s + RECENT_S
        if self._overlay is not None:
            self._overlay.set_broker_outage(now_s < self._outage_until_s)
        if not drafts:
            return
        log.warning("%d urgent messages take the overlay as well", len(drafts))
        alarms = [draft for draft in drafts if draft.priority == LADDER.top]
        others = [draft for draft in drafts if draft.priority < LADDER.top]
        try:
            # On a full disk only alarms have space, and only without the others.
            for group in filter(None, (alarms, others)):
                self.queue.put(group)
        except (QueueFullError, QueueFileError) as error:  # the broker's queue has them
            log.error("they do not take the overlay: %s", error)  # noqa: TRY400

    def _is_out_of_reach(self, broker: Uplink | None, now_s: float) -> bool:
        if broker is None:
            return True
        since_s = broker.unserved_since_s
        return since_s is not None and now_s - since_s >= self._rules.out_of_reach_s

    def _lease(self) -> list[QueuedMessage]:
        top = self.queue.lease(WINDOW, priority=LADDER.top)
        others = sum(e.message.priority < LADDER.top for e in self._in_flight.values())
        free = WINDOW - others
        return top + (self.queue.lease(free) if free > 0 else [])

    def _send(self, each: _InFlight, now_s: float) -> None:
        """Publish a message, or end it when it is too old."""
        if self._is_expired(each.message):
            if each.repeats:  # it was complete before
                self._finish(each)
                return
            del self._in_flight[str(each.message.id)]
            self.queue.release([each.message.seq])  # it drops and counts it
            return
        each.tries += 1
        each.due_s = now_s + RESEND_S
        if self._overlay is not None:
            message, age_s = each.message, self.queue.age_s(each.message) or 0.0
            carried = CarriedMessage(message.topic, message.payload, age_s)
            each.returns = self._overlay.status.peer_summary.return_count
            self._overlay.publish(str(message.id), message.priority, carried)

    def _wake(self) -> None:
        if self._overlay is not None:
            self._overlay.wake()


@dataclass(frozen=True)
class OverlayMembership:
    """The overlay of a gateway and its last known members; empty without peers.

    Attributes:
        fallback: Messages for the overlay.
        runner: The overlay's loop.
        directory: File of the Managers' list of gateways; None does not use that list.
    """

    fallback: OverlayFallback | None = None
    runner: OverlayRunner | None = None
    directory: Path | None = None

    @property
    def services(self) -> Sequence[Service]:
        """Services that run beside the gateway."""
        return [self.runner] if self.runner is not None else []

    def metrics(self) -> Iterable[Metric]:
        """Metrics of the overlay."""
        if self.runner is None or self.fallback is None:
            return ()
        return overlay_metrics(self.runner.status, self.fallback.waiting_by_priority)

    def set_filters(self, filters: frozenset[str]) -> None:
        """Set the filters that clients subscribe to."""
        if self.runner is not None:
            self.runner.set_filters(filters)

    def recall_gateways(self) -> None:
        """Use the list of gateways of the last run."""
        if self.runner is None or self.directory is None:
            return
        try:
            gateways = decode_gateways(self.directory.read_bytes())
        except FileNotFoundError:
            gateways = ()
        except (OSError, DirectoryError) as error:
            log.warning("the last list of gateways cannot be used: %s", error)
            gateways = ()
        self.runner.on_gateway_list(entry.broker_info for entry in gateways)

    def on_gateway_list(self, gateways: Sequence[BrokerEntry]) -> None:
        """Use and store a Manager's list of gateways."""
        if self.runner is not None and self.directory is not None:
            self.runner.on_gateway_list([entry.broker_info for entry in gateways])
            write_best_effort(self.directory, encode_directory_message(gateways))


def _send_order(each: _InFlight) -> tuple[bool, float]:
    """First tries by the time at which they are due; then repeats, the newest first."""
    return each.repeats > 0, -each.message.seq if each.repeats else each.due_s

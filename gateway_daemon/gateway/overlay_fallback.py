"""The detour: what cannot go by a broker goes by the overlay among gateways.

By choice everything does (`route = "overlay"`). Otherwise only what is urgent, and only
while its broker is out of reach: a copy, while the message itself goes on waiting for
its broker. Who gets both knows them by their id.

Messages wait in a queue file of their own until all gateways that listen have them on
disk, or none does.

The gateway's side of the overlay: messages out of our queue, and into our store.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from edge_agent.queue.base import Draft, Message, Queue, QueueFileError, QueueFullError
from edge_agent.queue.inspection import depth_words
from gateway_daemon.overlay import messages
from gateway_daemon.overlay.gateway_node import Carried, Ended
from gateway_daemon.overlay.runner import Heard, Live
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

REMEMBERED_S = 60.0
"""A broker may be gone for so long before anybody notices."""

MOST_REMEMBERED = 1000

WINDOW = 32
"""Messages under way at once; emergencies have a window of their own."""

PATIENCE_S = 120.0
"""Then a message is published again, whatever became of it."""

FIRST_RETRY_S, LAST_RETRY_S = 2.0, 30.0

FIRST_TRIES = 5
"""So many at first follow each other at the same pace: rings that meet after a cut may
hide their subscribers from each other until all have looked at their neighbours."""

MOST_UNHEARD = 14
"""Tries, three minutes: then it is believed that nobody listens."""

REPEATS_S = (10.0, 30.0)
"""An emergency is published again so long after: while links are cut and mended the
overlay may be in pieces, and it takes its time until that is seen from inside one."""

HELD_S = 3600.0
"""An emergency is held so long for gateways that do not answer, and published again
when one of them does. What is older they hear from their broker, or not at all."""


class Way(Protocol):
    """The overlay as the detour sees it."""

    @property
    def is_in_company(self) -> bool:
        """Whether another gateway is reached."""

    @property
    def is_parted(self) -> bool:
        """Whether a gateway that is known does not answer."""

    @property
    def returns(self) -> int:
        """How often one of those has answered again, since the start."""

    @property
    def census(self) -> str:
        """Who of the others answers, in words."""

    def wake(self) -> None:
        """Let it look at us soon."""

    def cut(self, is_cut: bool) -> None:
        """Say whether a broker is out of reach."""

    def send(self, message: Message, age_s: float) -> None:
        """Publish; `Detour.ended` is told of the end."""


class Reach(Protocol):
    """What tells whether a broker is out of reach: an uplink."""

    unserved_since_s: float | None


@dataclass(frozen=True)
class Rules:
    """What takes the detour.

    Attributes:
        is_route: Whether everything does.
        from_priority: What does while its broker is out of reach.
        out_of_reach_s: When a broker counts as that.
    """

    is_route: bool = False
    from_priority: int = 4
    out_of_reach_s: float = 5.0


class _Recent(NamedTuple):
    draft: Draft
    reach: Reach | None
    at_s: float


@dataclass
class _UnderWay:
    """A message that is published.

    Attributes:
        message: Which.
        tries, repeats: How often it was published, and again for good measure.
        due_s: When it is published again.
        held_until_s: While it is held, until when.
        returns: Of the overlay, when it was published last.
    """

    message: Message
    tries: int = 0
    repeats: int = 0
    due_s: float = 0.0
    held_until_s: float | None = None
    returns: int = 0


class Detour:
    """Moves messages from a queue of its own to the overlay.

    Args:
        queue: Where they wait.
        rules: What takes the detour.
        clock: Monotonic seconds.
    """

    def __init__(self, queue: Queue, rules: Rules, clock: Callable[[], float]) -> None:
        self.queue = queue
        self.is_route = rules.is_route
        self._rules = rules
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[_Recent] = deque(maxlen=MOST_REMEMBERED)
        self._under_way: dict[str, _UnderWay] = {}
        self._cut_until_s = -math.inf
        self._way: Way | None = None

    def use(self, way: Way) -> None:
        """Name the overlay; before it runs."""
        self._way = way

    def put(
        self, drafts: Sequence[Draft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        """Store messages whose route this is; see `Queue.put`."""
        ids = self.queue.put(drafts, state)
        self._wake()
        return ids

    def stored(
        self,
        drafts: Iterable[Draft],
        ids: Iterable[MessageId | None],
        reach: Reach | None,
    ) -> None:
        """Messages were stored for a broker; remember those that may need the detour.

        Args:
            drafts: Messages.
            ids: Of each; None for one that was known already.
            reach: The broker's uplink; None when no broker is known.
        """
        now_s = self._clock()
        urgent = [
            _Recent(draft._replace(id=id_), reach, now_s)
            for draft, id_ in zip(drafts, ids, strict=True)
            if id_ is not None and draft.priority >= self._rules.from_priority
        ]
        if urgent:
            with self._lock:
                self._recent.extend(urgent)
            self._wake()

    def look(self, now_s: float) -> None:
        """Take what has to, and publish what waits; in the overlay's loop."""
        self._divert(now_s)
        if self._way is None:
            return
        for each in [e for e in self._under_way.values() if e.held_until_s is not None]:
            self._look_at_held(each, self._way, now_s)
        for each in [e for e in self._under_way.values() if e.due_s <= now_s]:
            self._send(each, now_s)
        if self._way.is_in_company:
            for message in self._leased():
                each = _UnderWay(message)
                self._under_way[str(message.id)] = each
                self._send(each, now_s)

    def ended(self, message_id: str, reached: int, is_whole: bool) -> None:
        """A publication has come to its end; in the overlay's loop.

        Args:
            message_id: Which.
            reached: Gateways' subscriptions that have it.
            is_whole: Whether nobody had to be given up.
        """
        each = self._under_way.get(message_id)
        if each is None:
            return
        is_heard = reached > 0 or each.tries >= MOST_UNHEARD
        if not (is_whole and is_heard):
            slower = min(max(0, each.tries - FIRST_TRIES), 10)
            wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2**slower)
        elif each.message.priority == LADDER.top and each.repeats < len(REPEATS_S):
            wait_s = REPEATS_S[each.repeats]
            each.repeats += 1
        elif self._may_be_held(each):
            wait_s = math.inf
        else:
            self._finish(each)
            return
        each.due_s = self._clock() + wait_s

    @property
    def waiting(self) -> Mapping[int, int]:
        """Messages that wait for the overlay, by priority."""
        return {p: depth.rows for p, depth in self.queue.stats().depth.items()}

    def status(self) -> str:
        """What waits for the overlay, in words."""
        way = self._way
        reach = f"up, {way.census}" if way and way.is_in_company else "alone"
        return (
            f"overlay {reach}, {depth_words(self.queue.stats(), self.queue.oldest_s())}"
        )

    def close(self) -> None:
        """Close the queue."""
        self.queue.close()

    def _may_be_held(self, each: _UnderWay) -> bool:
        """Whether somebody may not have heard an emergency: then hold it."""
        if each.message.priority < LADDER.top or self._way is None:
            return False
        if not self._way.is_parted:
            return False
        if each.held_until_s is None:
            each.held_until_s = self._clock() + HELD_S
        return self._clock() < each.held_until_s

    def _look_at_held(self, each: _UnderWay, way: Way, now_s: float) -> None:
        """Publish again what somebody who is back has not heard."""
        if each.due_s < math.inf:
            return
        if way.returns != each.returns:
            each.due_s = now_s
        elif not self._may_be_held(each):
            self._finish(each)

    def _finish(self, each: _UnderWay) -> None:
        del self._under_way[str(each.message.id)]
        self.queue.ack([each.message.seq])

    def _divert(self, now_s: float) -> None:
        """Store a copy of what was put for a broker that is out of reach."""
        with self._lock:
            recent = list(self._recent)
            fresh = [r for r in recent if now_s - r.at_s <= REMEMBERED_S]
            gone = [r for r in fresh if self._is_out_of_reach(r.reach, now_s)]
            kept = [r for r in fresh if not self._is_out_of_reach(r.reach, now_s)]
            self._recent = deque(kept, MOST_REMEMBERED)
        if gone:
            self._cut_until_s = now_s + REMEMBERED_S
        if self._way is not None:
            self._way.cut(now_s < self._cut_until_s)
        if not gone:
            return
        log.warning("%d urgent messages take the overlay as well", len(gone))
        try:
            self.queue.put([each.draft for each in gone])
        except (QueueFullError, QueueFileError) as error:  # they wait for their broker
            log.error("they do not take the overlay: %s", error)  # noqa: TRY400

    def _is_out_of_reach(self, reach: Reach | None, now_s: float) -> bool:
        if reach is None:
            return True
        since_s = reach.unserved_since_s
        return since_s is not None and now_s - since_s >= self._rules.out_of_reach_s

    def _leased(self) -> list[Message]:
        urgent = self.queue.lease(WINDOW, priority=LADDER.top)
        usual = sum(e.message.priority < LADDER.top for e in self._under_way.values())
        room = WINDOW - usual
        return urgent + (self.queue.lease(room) if room > 0 else [])

    def _send(self, each: _UnderWay, now_s: float) -> None:
        each.tries += 1
        each.due_s = now_s + PATIENCE_S
        if self._way is not None:
            each.returns = self._way.returns
            self._way.send(each.message, self.queue.age_s(each.message) or 0.0)

    def _wake(self) -> None:
        if self._way is not None:
            self._way.wake()


class Neighbours:
    """Joins a detour to the overlay, one way; `store_in` is the other way.

    Args:
        live: The overlay.
        detour: Where messages wait for it.
    """

    def __init__(self, live: Live, detour: Detour) -> None:
        self._live = live
        self._detour = detour
        live.source = self
        detour.use(self)

    @property
    def is_in_company(self) -> bool:
        return self._live.is_in_company

    @property
    def is_parted(self) -> bool:
        return bool(self._live.facts.census.silent)

    @property
    def returns(self) -> int:
        return self._live.facts.census.returns

    @property
    def census(self) -> str:
        return str(self._live.facts.census)

    def wake(self) -> None:
        self._live.wake()

    def cut(self, is_cut: bool) -> None:
        self._live.cut(is_cut)

    def send(self, message: Message, age_s: float) -> None:
        carried = Carried(message.topic, message.payload, age_s)
        self._live.publish(str(message.id), message.priority, carried)

    def look(self, now_s: float) -> None:
        self._detour.look(now_s)

    def ended(self, ended: Ended) -> None:
        self._detour.ended(ended.id, ended.reached, ended.is_whole)


def store_in(
    take: Callable[[Sequence[Draft]], bool],
) -> Callable[[Heard], object]:
    """Store what is heard for our clients, its ids as their first gateway gave them."""

    def store(heard: Heard) -> None:
        drafts = [_draft(*each) for each in heard]
        if not take([draft for draft in drafts if draft is not None]):
            log.error("%d messages of the overlay are lost to our clients", len(heard))

    return store


def _draft(message: messages.Message, carried: Carried) -> Draft | None:
    try:
        message_id = MessageId.parse(message.id)
        priority = LADDER.check(message.priority)
    except (EnvelopeError, ValueError) as error:
        log.warning("a message of the overlay is dropped: %s", error)
        return None
    payload = carried.payload
    return Draft(
        priority, carried.topic, lambda _id: payload, message_id, carried.age_s
    )

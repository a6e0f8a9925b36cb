"""What arrived from a network thread, taken in batches: one commit for many.

Urgent messages that found no room: tried again before anything that came later.

Their sender keeps them, and would send them again only when a receipt is overdue;
until then, with room again, whatever came later would pass them. So while the disk is
full what is less urgent is not even tried: room may come between two tries.

Knows a nameless publication that was stored before it was acknowledged. No I/O.

A plain client's message gets its id here, so a second delivery of it would get another
one. But our broker tells: it delivers again, after a cut or our death, under the same
packet id and marked as a duplicate. What is stored and not acknowledged is therefore
remembered in the transaction that stores it, by packet id and checksum.

Source: MQTT 5.0 sections 3.3.1.1 and 4.4.

When a gateway answers: at once for what is urgent, gathered for the rest. No I/O.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar
from zlib import crc32

from gateway_daemon.gateway.ingress_messages import Taken
from spatial_mqtt.custody import Receipt
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import Incoming

T = TypeVar("T")

BATCH = 500

APART_S = 0.010
"""Batches are taken no closer together, but for urgent messages. Alone, a message waits
for nothing; in a stream it waits as long as a memory card takes to commit, and to
commit every second message by itself would cost five times the CPU."""

MOST_APART_S = 0.1
ENOUGH = 100
"""A batch of so many needs no more company."""

URGENT_FROM = 4
"""Priorities that do not wait for company."""


class Inbox(Generic[T]):
    """A queue between a network thread and the thread that stores.

    Args:
        clock: Monotonic seconds.
        is_urgent: Whether something must not wait for company.
    """

    def __init__(
        self, clock: Callable[[], float], is_urgent: Callable[[T], bool]
    ) -> None:
        self._clock = clock
        self._is_urgent = is_urgent
        self._arrived: SimpleQueue[T | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._taken_at_s = clock() - APART_S
        self._took = 0

    def put(self, item: T) -> None:
        """Add what arrived."""
        self._arrived.put(item)
        if self._is_urgent(item):
            self._hurry.set()

    def close(self) -> None:
        """End the batches, after what has arrived."""
        self._arrived.put(None)
        self._hurry.set()

    def batch(self, wait_s: float) -> list[T] | None:
        """What has arrived; nothing when the wait is over; None when it is closed."""
        rests_until_s = self._taken_at_s + self._rest_s()
        try:
            first = self._arrived.get(timeout=wait_s)
        except Empty:
            return []
        if first is None:
            return None
        self._hurry.wait(max(0.0, rests_until_s - self._clock()))
        self._hurry.clear()  # before they are taken: later ones hurry the next batch
        self._taken_at_s = self._clock()
        batch = [first, *self._following()]
        self._took = len(batch)
        return batch

    def _rest_s(self) -> float:
        """How far apart the next batch is: a slow machine gathers longer.

        Half of the time at most is spent on batches, so that what they cost by
        themselves is shared by more messages where the machine is short of time.
        """
        busy_s = self._clock() - self._taken_at_s
        if self._took >= ENOUGH:
            return APART_S
        return max(APART_S, min(MOST_APART_S, 2 * busy_s))

    def _following(self) -> list[T]:
        batch: list[T] = []
        while len(batch) < BATCH - 1:
            try:
                following = self._arrived.get_nowait()
            except Empty:
                break
            if following is None:
                self._arrived.put(None)
                break
            batch.append(following)
        return batch


RETRY_S = 0.5

MOST_WAITING = 500
"""More their senders keep alone."""


class Waiting:
    """Holds them in memory; no receipt is given for them meanwhile."""

    def __init__(self) -> None:
        self._held: deque[Taken] = deque(maxlen=MOST_WAITING)
        self._is_disk_full = False

    def add(self, taken: Taken, *, is_disk_full: bool = True) -> None:
        """A message was refused; what is urgent and has an id waits."""
        if taken.draft.priority >= URGENT_FROM and taken.nameless is None:
            self._held.append(taken)
            self._is_disk_full = is_disk_full

    def holds_back(self, taken: Taken) -> bool:
        """Whether a more urgent message must find room first.

        Not a nameless one: nobody sends it again.
        """
        if not self._is_disk_full or taken.nameless is not None:
            return False
        return any(each.draft.priority > taken.draft.priority for each in self._held)

    def wait_s(self) -> float | None:
        """How soon to try again; None when nothing waits."""
        return RETRY_S if self._held else None

    def stored(self, store: Callable[[list[Taken]], list[Taken]]) -> list[Taken]:
        """Try the most urgent one, and when there is room for it all the others.

        Args:
            store: Gives back what it stored; what it refuses it has added here.
        """
        if not self._held:
            return []
        first, *others = sorted(self._held, key=lambda each: -each.draft.priority)
        self._held.clear()
        found = store([first])
        if not found:
            self._held.extend(others)
            return []
        return found + (store(others) if others else [])


UNACKNOWLEDGED = "front/unacknowledged"
"""Name of the value that a lane remembers."""


class Redelivered:
    """Publications that are stored and may come again."""

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}

    def recall(self, texts: Iterable[str]) -> None:
        """Remember what `text` said before our death."""
        for text in texts:
            for pair in text.split():
                mid, _, checksum = pair.partition(":")
                self._stored[int(mid)] = int(checksum)

    def forget(self) -> None:
        """The broker has forgotten our session: nothing comes again."""
        self._stored.clear()

    def is_stored(self, message: Incoming) -> bool:
        """Whether a publication that comes again is stored."""
        return message.is_again and self._stored.get(_mid(message)) == _sum(message)

    def text(self, messages: Iterable[Incoming]) -> str:
        """What to remember with some messages that are about to be stored."""
        marks = self._stored | {_mid(m): _sum(m) for m in messages}
        return " ".join(f"{mid}:{checksum}" for mid, checksum in marks.items())

    def store(self, messages: Iterable[Incoming]) -> None:
        """These are stored."""
        self._stored.update((_mid(m), _sum(m)) for m in messages)

    def acknowledge(self, messages: Iterable[Incoming]) -> None:
        """The broker was told so, and does not deliver them again."""
        for message in messages:
            self._stored.pop(_mid(message), None)


def _mid(message: Incoming) -> int:
    return message.delivery[1]


def _sum(message: Incoming) -> int:
    return crc32(message.payload, crc32(message.topic.encode(errors="replace")))


GATHER_S = 1.0
"""A receipt may wait so long for others; a sender asks again much later."""

MOST_GATHERED = 64


class Receipts:
    """Ids that are stored, by the topic where their sender waits for the receipt.

    Attributes:
        given: Ids that were receipted.
    """

    def __init__(self) -> None:
        self._ids: dict[str, list[MessageId]] = {}
        self._due_s: dict[str, float] = {}
        self.given = 0

    def add(self, taken: Taken, now_s: float) -> None:
        """A message is on our disk."""
        topic, message_id = taken.receipt_topic, taken.draft.id
        if topic is None or message_id is None:
            return
        ids = self._ids.setdefault(topic, [])
        ids.append(message_id)
        due_s = self._due_s.setdefault(topic, now_s + GATHER_S)
        if taken.draft.priority >= URGENT_FROM or len(ids) >= MOST_GATHERED:
            self._due_s[topic] = min(due_s, now_s)

    def due(self, now_s: float) -> list[tuple[str, Receipt]]:
        """Topics and receipts to publish now; they are forgotten here."""
        topics = [topic for topic, due_s in self._due_s.items() if due_s <= now_s]
        for topic in topics:
            del self._due_s[topic]
        told = [(topic, self._ids.pop(topic)) for topic in topics]
        self.given += sum(len(ids) for _, ids in told)
        return [(topic, Receipt.of(ids)) for topic, ids in told]

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next one is due; None when none waits."""
        due_s = min(self._due_s.values(), default=math.inf)
        return None if math.isinf(due_s) else max(0.0, due_s - now_s)

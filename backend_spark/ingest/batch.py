"""When to flush, and what a flush writes: decisions without a disk or a broker."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from backend_spark.ingest.arrival import Arrival
from backend_spark.ingest.log import LogRow
from backend_spark.ingest.seen import SeenIds
from spatial_mqtt.custody import Receipt, receipt_topic
from spatial_mqtt.envelope import MessageId

MAX_MESSAGES = 5000
MAX_BYTES = 16 * 2**20
RANGES_PER_RECEIPT = 500
"""Keeps a receipt of ids that share nothing under `custody.MAX_RECEIPT_BYTES`."""


@dataclass
class Batch:
    """Messages that wait for one flush.

    Attributes:
        flush_s: Longest wait of a message.
        window: Messages that the broker sends before it waits for us; to wait
            with so many in hand would only idle the link.
        arrivals: In the order of arrival.
        due_s: Monotonic time at which the oldest has waited long enough.
        size_bytes: Of the payloads.
    """

    flush_s: float
    window: int = MAX_MESSAGES
    arrivals: list[Arrival] = field(default_factory=list)
    due_s: float | None = None
    size_bytes: int = 0
    _urgent: bool = False

    @property
    def since_s(self) -> float | None:
        """Monotonic time since which the oldest waits."""
        return None if self.due_s is None else self.due_s - self.flush_s

    def add(self, arrival: Arrival, now_s: float) -> None:
        """Take one message."""
        if self.due_s is None:
            self.due_s = now_s + self.flush_s
        self.arrivals.append(arrival)
        self.size_bytes += len(arrival.row.payload)
        self._urgent = self._urgent or arrival.is_urgent

    def is_due(self, now_s: float, more_waiting: bool) -> bool:
        """Whether to flush now.

        Args:
            now_s: Monotonic time.
            more_waiting: Whether messages wait to be added; an urgent one lets
                them board, so that a burst costs one fsync and not one each.
        """
        if self.due_s is None:
            return False
        if len(self.arrivals) >= MAX_MESSAGES or now_s >= self.due_s:
            return True
        if self.size_bytes >= MAX_BYTES:
            return True
        is_full = len(self.arrivals) >= self.window
        return (self._urgent or is_full) and not more_waiting

    def take(self) -> list[Arrival]:
        """Empty the batch."""
        taken, self.arrivals = self.arrivals, []
        self.due_s = None
        self.size_bytes = 0
        self._urgent = False
        return taken


@dataclass(frozen=True)
class Plan:
    """What to write for a batch.

    Attributes:
        log: Rows that are new.
        new_ids: Their ids.
        quarantine: Rows without an id, or under another's name.
        duplicates: How many messages the log has already.
        impostors: How many messages are under another's name.
    """

    log: list[LogRow]
    new_ids: list[MessageId]
    quarantine: list[LogRow]
    duplicates: int
    impostors: int


def plan(arrivals: Iterable[Arrival], seen: SeenIds) -> Plan:
    """Sort messages into new ones, known ones and those for quarantine."""
    fresh: dict[MessageId, LogRow] = {}
    quarantine = []
    duplicates = impostors = 0
    for arrival in arrivals:
        if arrival.id is None or arrival.is_aside:
            quarantine.append(arrival.row)
            impostors += arrival.id is not None
        elif arrival.id in seen or arrival.id in fresh:
            duplicates += 1
        else:
            fresh[arrival.id] = arrival.row
    return Plan(list(fresh.values()), list(fresh), quarantine, duplicates, impostors)


def receipts(arrivals: Iterable[Arrival]) -> Iterator[tuple[str, bytes]]:
    """Topic and payload of the receipts for a batch, duplicates included.

    Who brought an impostor's message hears that it is kept, too, or would bring it
    for ever; whose name it says hears nothing.
    """
    ids_of: dict[str, list[MessageId]] = {}
    for arrival in arrivals:
        answer = arrival.message.response_topic
        if arrival.id is not None and not (arrival.is_aside and answer is None):
            topic = receipt_topic(arrival.id, answer)
            ids_of.setdefault(topic, []).append(arrival.id)
    for topic, ids in ids_of.items():
        whole = Receipt.of(ids).ranges.items()
        rest = ((key, pair) for key, ranges in whole for pair in ranges)
        while some := list(islice(rest, RANGES_PER_RECEIPT)):
            pairs_of: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {}
            for key, pair in some:
                pairs_of[key] = (*pairs_of.get(key, ()), pair)
            yield topic, Receipt(pairs_of).encode()

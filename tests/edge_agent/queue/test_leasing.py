"""Leasing oldest first and newest first: the SQLite queue against the in-memory one."""

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    Durability,
    MessageDraft,
    QueuedMessage,
)
from edge_agent.queue.leasing import MAX_SPARE_RANGES, LeaseTable, ReadRanges
from edge_agent.queue.memory import MemoryQueue
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import LARGE_BYTES, QueueRow
from spatial_mqtt.senml import MessageId

WINDOW = Durability(window_s=3600.0, max_pending=4)
MAX_BYTES = 10_000_000


def draft(
    priority: int, body: bytes = b"x", id_: MessageId | None = None
) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: body, id_)


def open_queue(path: Path, durability: Durability) -> SqliteQueue:
    return SqliteQueue(path, "n1", "boot", MAX_BYTES, durability=durability)


class ModelComparison:
    """A SQLite queue and a `MemoryQueue` that get the same calls."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self._path = path
        self._durability = durability
        self.durable = open_queue(path, durability)
        self.fake = MemoryQueue("n1", "b1", MAX_BYTES)
        self._leased: list[tuple[QueuedMessage, QueuedMessage]] = []
        self._bodies = (str(number).encode() for number in itertools.count())

    def put(self, priority: int, count: int, size: int) -> None:
        bodies = [next(self._bodies).rjust(size) for _ in range(count)]
        drafts = [draft(priority, body) for body in bodies]
        self.durable.put(drafts)
        self.fake.put(drafts)

    def lease(self, limit: int, priority: int | None, newest: bool) -> None:
        pairs = [
            queue.lease(limit, priority=priority, newest=newest)
            for queue in (self.durable, self.fake)
        ]
        bodies, expected = ([(m.priority, m.payload) for m in p] for p in pairs)
        assert bodies == expected
        self._leased += zip(*pairs, strict=True)

    def end(self, action: str, count: int, is_last: bool) -> None:
        ended = self._leased[-count:] if is_last else self._leased[:count]
        self._leased = self._leased[: -len(ended)] if is_last else self._leased[count:]
        getattr(self.durable, action)([ours.seq for ours, _ in ended])
        getattr(self.fake, action)([theirs.seq for _, theirs in ended])

    def flush(self) -> None:
        self.durable.flush()

    def reap(self) -> None:
        assert self.durable.release_all() == self.fake.release_all()
        self._leased.clear()

    def restart(self) -> None:
        self.durable.close()
        self.durable = open_queue(self._path, self._durability)
        self.fake.release_all()
        self._leased.clear()


PRIORITY = st.sampled_from([1, 1, 1, 2, 5])
COUNT = st.sampled_from([1, 2, 5, 70])
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            PRIORITY,
            st.sampled_from([1, 2, 6, 70]),
            st.sampled_from([1, 1, LARGE_BYTES + 1]),
        ),
        st.tuples(st.just("lease"), COUNT, PRIORITY, st.booleans()),
        st.tuples(st.just("lease"), COUNT, st.none(), st.just(False)),
        st.tuples(
            st.just("end"),
            st.sampled_from(["ack", "release"]),
            COUNT,
            st.booleans(),
        ),
        st.tuples(st.sampled_from(["flush", "reap", "restart"])),
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, durability=st.sampled_from([COMMIT_EVERY_PUT, WINDOW]))
def test_any_sequence_of_calls_leases_as_the_memory_queue_does(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[object, ...]],
    durability: Durability,
) -> None:
    """Order, leases and waiting priorities agree after every step."""
    comparison = ModelComparison(tmp_path_factory.mktemp("q") / "q.db", durability)
    for action, *arguments in steps:
        getattr(comparison, str(action))(*arguments)
        assert (
            comparison.durable.waiting_priorities()
            == comparison.fake.waiting_priorities()
        )
    comparison.restart()
    comparison.lease(999, None, newest=False)
    comparison.durable.close()


class SharedFile:
    """An agent's queue and a second process that commits each put.

    Attributes:
        free: Priority of each message that is not leased, by sequence number.
        leased: The same for leased messages.
    """

    def __init__(self, path: Path, durability: Durability) -> None:
        self.agent = open_queue(path, durability)
        self.sender = open_queue(path, COMMIT_EVERY_PUT)
        self.free: dict[int, int] = {}
        self.leased: dict[int, int] = {}

    def put(self, name: str, priority: int) -> None:
        (put,) = getattr(self, name).put([draft(priority)])
        self.free[put.seq] = priority

    def lease(self, limit: int, priority: int, newest: bool) -> None:
        seqs = sorted(s for s, p in self.free.items() if p == priority)
        expected = (seqs[::-1] if newest else seqs)[:limit]
        got = self.agent.lease(limit, priority=priority, newest=newest)
        assert [m.seq for m in got] == expected
        self.leased.update({seq: self.free.pop(seq) for seq in expected})

    def end(self, action: str, count: int) -> None:
        for seq in list(self.leased)[:count]:
            getattr(self.agent, action)([seq])
            priority = self.leased.pop(seq)
            if action == "release":
                self.free[seq] = priority

    def flush(self) -> None:
        self.agent.flush()

    def close(self) -> None:
        self.agent.close()
        self.sender.close()


SHARED_FILE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(["agent", "sender"]), PRIORITY),
        st.tuples(st.just("lease"), st.integers(1, 4), PRIORITY, st.booleans()),
        st.tuples(
            st.just("end"), st.sampled_from(["ack", "release"]), st.integers(1, 4)
        ),
        st.tuples(st.just("flush")),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=SHARED_FILE_STEPS, durability=st.sampled_from([COMMIT_EVERY_PUT, WINDOW]))
def test_rows_of_two_processes_are_leased_in_order_from_both_ends(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[object, ...]],
    durability: Durability,
) -> None:
    """A row committed late, below numbers already read, is leased in its place."""
    shared = SharedFile(tmp_path_factory.mktemp("q") / "q.db", durability)
    for action, *arguments in steps:
        getattr(shared, str(action))(*arguments)
        assert shared.agent.waiting_priorities() == frozenset(shared.free.values())
    for priority in (5, 2, 1):
        shared.lease(999, priority, newest=False)
    shared.close()

    assert shared.free == {}


def test_own_row_below_a_cached_page_is_leased_first(tmp_path: Path) -> None:
    """A cached page of rows does not change the order of sequence numbers."""
    shared = SharedFile(tmp_path / "q.db", WINDOW)
    for name in ("agent", "sender"):
        shared.put(name, 1)
    assert shared.agent.waiting_priorities() == {1}
    shared.put("agent", 1)
    shared.flush()
    shared.lease(9, 1, newest=False)
    shared.close()


def test_own_row_below_leased_rows_is_found_after_a_foreign_put(tmp_path: Path) -> None:
    """A put by another process does not lose a row that the agent had pending."""
    shared = SharedFile(tmp_path / "q.db", WINDOW)
    for name in ("agent", "sender"):
        shared.put(name, 1)
    shared.lease(9, 1, newest=False)
    shared.put("agent", 1)
    shared.flush()
    shared.put("sender", 1)
    shared.lease(9, 1, newest=False)
    shared.close()


@settings(max_examples=200, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=20),
    newest=st.booleans(),
    kept=st.sets(st.integers(1, 70)),
)
def test_read_ranges_and_their_gaps_cover_all_numbers(
    spans: list[tuple[int, int]], newest: bool, kept: set[int]
) -> None:
    """Each number is covered or in a gap; closing a gap while iterating is allowed."""
    ranges = ReadRanges()
    for start, more in spans:
        ranges.add(start, start + more)
    covered = {n for start, more in spans for n in range(start, start + more + 1)}
    in_gaps = []
    for after, before in ranges.gaps(newest):
        in_gaps.append(range(after + 1, before or 100))
        assert in_gaps[-1]
        if before is not None:
            ranges.add(after + 1, before - 1)
    numbers = [n for gap in in_gaps for n in gap]

    assert sorted([*numbers, *covered]) == list(range(1, 100))
    assert all((n in ranges) == (n <= max(covered, default=0)) for n in range(1, 100))
    ranges.retain(kept)
    assert all(n in ranges for n in kept if n <= max(covered, default=0))


def test_number_of_ranges_does_not_grow_with_the_backlog() -> None:
    """Leasing newest first under a growing backlog keeps few ranges."""
    leases = LeaseTable([1])
    for seq in range(2, 20_000, 2):
        leases.lease([QueueRow(1, seq, "n", "b", seq, "t", 0, b"")], newest=True)
        leases.remove([seq])
        leases.compact_ranges()

    assert len(list(leases.gaps(1, newest=False))) <= MAX_SPARE_RANGES + 2


def test_messages_between_many_leased_ones_are_leased_once(tmp_path: Path) -> None:
    """Also when the ranges of those that were acknowledged are forgotten."""
    model = ModelComparison(tmp_path / "q.db", COMMIT_EVERY_PUT)
    for number in range(60):
        model.put(1, 2, 1)
        model.lease(1, 1, newest=True)
        if number % 7:
            model.end("ack", 1, is_last=True)
    model.end("release", 3, is_last=True)
    for newest in (False, True, False):
        model.lease(20, 1, newest)
    model.lease(99, 1, newest=False)
    model.durable.close()


def test_newest_first_continues_below_leased_messages(tmp_path: Path) -> None:
    """New messages come first, then the ones left below those already leased."""
    queue = open_queue(tmp_path / "q.db", COMMIT_EVERY_PUT)
    queue.put([draft(1) for _ in range(300)])
    leased = [queue.lease(priority=1, newest=True)[0].seq for _ in range(200)]
    queue.put([draft(1)])
    (latest,) = queue.lease(priority=1, newest=True)
    (below,) = queue.lease(priority=1, newest=True)
    queue.close()

    assert leased == list(range(300, 100, -1))
    assert (latest.seq, below.seq) == (301, 100)

"""Leasing from both ends: any history gives what the fake in memory gives."""

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
MOST_BYTES = 10_000_000


def draft(
    priority: int, body: bytes = b"x", id_: MessageId | None = None
) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: body, id_)


def open_queue(path: Path, durability: Durability) -> SqliteQueue:
    return SqliteQueue(path, "n1", "boot", MOST_BYTES, durability=durability)


class Twins:
    """A queue in a file and one in memory that live the same life."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self._path = path
        self._durability = durability
        self.durable = open_queue(path, durability)
        self.fake = MemoryQueue("n1", "b1", MOST_BYTES)
        self._out: list[tuple[QueuedMessage, QueuedMessage]] = []
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
        self._out += zip(*pairs, strict=True)

    def end(self, action: str, count: int, is_last: bool) -> None:
        ended = self._out[-count:] if is_last else self._out[:count]
        self._out = self._out[: -len(ended)] if is_last else self._out[count:]
        getattr(self.durable, action)([ours.seq for ours, _ in ended])
        getattr(self.fake, action)([theirs.seq for _, theirs in ended])

    def flush(self) -> None:
        self.durable.flush()

    def reap(self) -> None:
        assert self.durable.release_all() == self.fake.release_all()
        self._out.clear()

    def restart(self) -> None:
        self.durable.close()
        self.durable = open_queue(self._path, self._durability)
        self.fake.release_all()
        self._out.clear()


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
def test_any_history_from_both_ends_is_that_of_the_fake(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[object, ...]],
    durability: Durability,
) -> None:
    """Order, leases and what waits agree after every step."""
    twins = Twins(tmp_path_factory.mktemp("q") / "q.db", durability)
    for action, *arguments in steps:
        getattr(twins, str(action))(*arguments)
        assert twins.durable.waiting_priorities() == twins.fake.waiting_priorities()
    twins.restart()
    twins.lease(999, None, newest=False)
    twins.durable.close()


class Pair:
    """An agent and a sender that puts at once; what nobody holds, by number."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.agent = open_queue(path, durability)
        self.sender = open_queue(path, COMMIT_EVERY_PUT)
        self.free: dict[int, int] = {}
        self.out: dict[int, int] = {}

    def put(self, name: str, priority: int) -> None:
        (put,) = getattr(self, name).put([draft(priority)])
        self.free[put.seq] = priority

    def lease(self, limit: int, priority: int, newest: bool) -> None:
        seqs = sorted(s for s, p in self.free.items() if p == priority)
        expected = (seqs[::-1] if newest else seqs)[:limit]
        got = self.agent.lease(limit, priority=priority, newest=newest)
        assert [m.seq for m in got] == expected
        self.out.update({seq: self.free.pop(seq) for seq in expected})

    def end(self, action: str, count: int) -> None:
        for seq in list(self.out)[:count]:
            getattr(self.agent, action)([seq])
            priority = self.out.pop(seq)
            if action == "release":
                self.free[seq] = priority

    def flush(self) -> None:
        self.agent.flush()

    def close(self) -> None:
        self.agent.close()
        self.sender.close()


PAIR_STEPS = st.lists(
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
@given(steps=PAIR_STEPS, durability=st.sampled_from([COMMIT_EVERY_PUT, WINDOW]))
def test_numbers_of_blocks_and_of_others_are_found_from_both_ends(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[object, ...]],
    durability: Durability,
) -> None:
    """A number stored late, below what was read, is in its place all the same."""
    pair = Pair(tmp_path_factory.mktemp("q") / "q.db", durability)
    for action, *arguments in steps:
        getattr(pair, str(action))(*arguments)
        assert pair.agent.waiting_priorities() == frozenset(pair.free.values())
    for priority in (5, 2, 1):
        pair.lease(999, priority, newest=False)
    pair.close()

    assert pair.free == {}


def test_own_number_below_a_page_that_was_read_comes_first(tmp_path: Path) -> None:
    """A page is no excuse for another order than that of the numbers."""
    pair = Pair(tmp_path / "q.db", WINDOW)
    for name in ("agent", "sender"):
        pair.put(name, 1)
    assert pair.agent.waiting_priorities() == {1}
    pair.put("agent", 1)
    pair.flush()
    pair.lease(9, 1, newest=False)
    pair.close()


def test_own_number_below_what_was_leased_outlives_the_page(tmp_path: Path) -> None:
    """What another process writes makes nobody forget a message of ours."""
    pair = Pair(tmp_path / "q.db", WINDOW)
    for name in ("agent", "sender"):
        pair.put(name, 1)
    pair.lease(9, 1, newest=False)
    pair.put("agent", 1)
    pair.flush()
    pair.put("sender", 1)
    pair.lease(9, 1, newest=False)
    pair.close()


@settings(max_examples=200, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=20),
    newest=st.booleans(),
    kept=st.sets(st.integers(1, 70)),
)
def test_ranges_and_their_gaps_are_all_numbers(
    spans: list[tuple[int, int]], newest: bool, kept: set[int]
) -> None:
    """Covered or in a gap, never both; a gap may be closed while they are read."""
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


def test_memory_grows_with_leases_and_not_with_a_backlog() -> None:
    """Newest first under a growing backlog leaves no trail of ranges."""
    leases = LeaseTable([1])
    for seq in range(2, 20_000, 2):
        leases.lease([QueueRow(1, seq, "n", "b", seq, "t", 0, b"")], newest=True)
        leases.remove([seq])
        leases.compact_ranges()

    assert len(list(leases.gaps(1, newest=False))) <= MAX_SPARE_RANGES + 2


def test_newest_goes_on_below_what_is_out(tmp_path: Path) -> None:
    """However much is out, what came meanwhile is next, then what was left."""
    queue = open_queue(tmp_path / "q.db", COMMIT_EVERY_PUT)
    queue.put([draft(1) for _ in range(300)])
    out = [queue.lease(priority=1, newest=True)[0].seq for _ in range(200)]
    queue.put([draft(1)])
    (latest,) = queue.lease(priority=1, newest=True)
    (below,) = queue.lease(priority=1, newest=True)
    queue.close()

    assert out == list(range(300, 100, -1))
    assert (latest.seq, below.seq) == (301, 100)

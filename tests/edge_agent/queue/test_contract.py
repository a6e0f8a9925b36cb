"""Contract tests of `edge_agent.queue.base.Queue`, for every implementation."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.queue.base import ExpiryPolicy, MessageDraft, Queue, QueueFullError
from edge_agent.queue.memory import MemoryQueue
from edge_agent.queue.sqlite_queue import SqliteQueue
from spatial_mqtt.senml import MessageId

MakeQueue = Callable[[int], Queue]


@pytest.fixture(params=["sqlite", "memory"])
def make_queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeQueue]:
    queues: list[Queue] = []

    def make(max_bytes: int = 1_000_000) -> Queue:
        if request.param == "memory":
            queue: Queue = MemoryQueue("n1", "b1", max_bytes)
        else:
            path = tmp_path / f"queue-{len(queues)}.db"
            queue = SqliteQueue(path, "n1", "machine-boot", max_bytes)
        queues.append(queue)
        return queue

    yield make
    for queue in queues:
        queue.close()


def draft(
    priority: int, payload: bytes = b"x", id_: MessageId | None = None
) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: payload, id_)


def foreign(seq: int) -> MessageId:
    return MessageId("other", "bb", seq)


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_oldest_age_is_reported_by_priority(kind: str, tmp_path: Path) -> None:
    """Leased messages count until the ack; withheld ones do not."""
    now = [100.0]
    if kind == "memory":
        queue: Queue = MemoryQueue("n1", "b1", 1_000_000, lambda: now[0])
    else:
        policy = ExpiryPolicy(lambda: now[0])
        queue = SqliteQueue(tmp_path / "q.db", "n1", "b", 1_000_000, expiry=policy)
    queue.put([draft(2)._replace(age_s=20.0)])
    now[0] = 107.0
    queue.put([draft(2), draft(5)])
    (urgent,) = queue.lease(priority=5)
    now[0] = 110.0
    assert queue.ages_s() == {2: 30.0, 5: 3.0}

    queue.ack([urgent.seq])
    assert queue.ages_s() == {2: 30.0}
    queue.withhold([queue.lease()[0].seq])
    assert queue.ages_s() == {2: 3.0}
    queue.close()


def test_lease_returns_most_urgent_first_then_oldest(make_queue: MakeQueue) -> None:
    """Within a priority, messages are leased in the order of arrival."""
    queue = make_queue(10_000)
    queue.put([draft(p, str(i).encode()) for i, p in enumerate([1, 5, 3, 5, 1])])

    leased = [(m.priority, m.payload) for m in queue.lease(10)]

    assert leased == [(5, b"1"), (5, b"3"), (3, b"2"), (1, b"0"), (1, b"4")]


def test_urgent_message_is_leased_before_a_backlog(
    make_queue: MakeQueue,
) -> None:
    """A lease taken before the urgent put does not change this."""
    queue = make_queue(10_000)
    queue.put([draft(1) for _ in range(5)])
    queue.lease(2)
    queue.put([draft(5)])

    assert queue.lease()[0].priority == 5


def test_put_assigns_unique_increasing_ids(make_queue: MakeQueue) -> None:
    """All ids of one queue share node and boot."""
    queue = make_queue(10_000)

    ids = queue.put([draft(1), draft(5)]) + queue.put([draft(2)])

    assert len({(i.node, i.boot) for i in ids if i}) == 1
    assert [i.seq for i in ids if i] == sorted({i.seq for i in ids if i})


def test_put_of_a_known_id_stores_nothing(make_queue: MakeQueue) -> None:
    """Putting is idempotent by message id, also after delivery."""
    queue = make_queue(10_000)
    queue.put([draft(3, id_=foreign(7))])
    queue.ack([m.seq for m in queue.lease(9)])

    again = queue.put([draft(3, id_=foreign(7)), draft(3, id_=foreign(8))])

    assert again == [None, foreign(8)]
    assert queue.stats().duplicates == 1


def test_message_that_another_queue_has_may_come_back(make_queue: MakeQueue) -> None:
    """The ids around it stay known."""
    queue = make_queue(10_000)
    queue.put([draft(3, id_=foreign(seq)) for seq in range(5)])
    leased = {m.id.seq: m.seq for m in queue.lease(9)}
    queue.hand_over([leased.pop(seq) for seq in (0, 2)])
    queue.ack(leased.values())

    again = queue.put([draft(3, id_=foreign(seq)) for seq in range(5)])

    assert again == [foreign(0), None, foreign(2), None, None]
    assert queue.stats().acked[3] == 5
    assert queue.put([draft(3, id_=foreign(2))]) == [None]


def test_ack_removes_a_message_and_release_requeues_it(make_queue: MakeQueue) -> None:
    """A released message keeps its place; an acknowledged one is gone."""
    queue = make_queue(10_000)
    queue.put([draft(2, b"a"), draft(2, b"b"), draft(2, b"c")])
    first, second = queue.lease(2)
    queue.ack([first.seq])
    queue.release([second.seq])

    assert [m.payload for m in queue.lease(9)] == [b"b", b"c"]


def test_release_all_requeues_every_leased_message(make_queue: MakeQueue) -> None:
    """Messages that were leased over a lost link can be leased again."""
    queue = make_queue(10_000)
    queue.put([draft(2), draft(4)])
    queue.lease(9)

    assert queue.release_all() == 2
    assert [m.priority for m in queue.lease(9)] == [4, 2]


def test_withheld_message_is_stored_but_not_leased_again(make_queue: MakeQueue) -> None:
    """Also from the other end, and after newer ones; it gives way as others do."""
    queue = make_queue(1_000_000)
    queue.put([draft(2) for _ in range(200)])
    withheld = [m.seq for m in queue.lease(150)]
    queue.withhold(withheld)
    queue.put([draft(2)])
    queue.release(withheld)

    newest = queue.lease(30, priority=2, newest=True)
    rest = queue.lease(100)
    assert not {m.seq for m in (*newest, *rest)} & set(withheld)
    assert (len(newest) + len(rest), queue.lease()) == (51, [])
    assert (queue.stats().depth[2].rows, queue.stats().leased) == (201, 51)
    assert queue.waiting_priorities() == frozenset()


def test_lease_stops_at_the_byte_limit_but_returns_at_least_one(
    make_queue: MakeQueue,
) -> None:
    """The first message is always leased, so that a large one is never stuck."""
    queue = make_queue(10_000)
    queue.put([draft(2, b"x" * 600), draft(2, b"x" * 300), draft(2, b"x" * 300)])

    assert len(queue.lease(9, max_bytes=100)) == 1
    assert len(queue.lease(9, max_bytes=599)) == 1


def test_full_queue_drops_lowest_priority_first_and_counts_it(
    make_queue: MakeQueue,
) -> None:
    """One message of priority 1 makes room for one of priority 5."""
    queue = make_queue(700)
    queue.put([draft(1, b"x" * 100), draft(2, b"x" * 100), draft(1, b"x" * 100)])

    queue.put([draft(5, b"x" * 100)])

    assert [m.priority for m in queue.lease(9)] == [5, 2, 1]
    assert queue.stats().dropped[1] == 1


def test_full_queue_refuses_messages_that_are_not_more_urgent(
    make_queue: MakeQueue,
) -> None:
    """A refused put stores nothing, and the error names the setting to raise."""
    queue = make_queue(450)
    queue.put([draft(2, b"x" * 100)])

    with pytest.raises(
        QueueFullError, match=r"queue is full: .* raise queue.max_bytes"
    ):
        queue.put([draft(2, b"x" * 100), draft(2, b"x" * 100)])

    assert queue.stats().depth[2].rows == 1


def test_state_is_stored_with_the_messages(make_queue: MakeQueue) -> None:
    """State put together with a reading is stored with it."""
    queue = make_queue(10_000)
    queue.put([draft(1)], {"rain/tips": "12"})
    queue.put([], {"rain/tips": "13"})

    assert queue.get_state("rain/tips") == "13"
    assert queue.get_state("nothing") is None


def test_stats_count_puts_and_acks(make_queue: MakeQueue) -> None:
    """Depth, put and acked, by priority."""
    queue = make_queue(10_000)
    queue.put([draft(1), draft(1), draft(5)])
    queue.ack([queue.lease()[0].seq])

    stats = queue.stats()

    assert {p: d.rows for p, d in stats.depth.items()} == {5: 0, 4: 0, 3: 0, 2: 0, 1: 2}
    assert (stats.put[5], stats.acked[5], stats.put[1]) == (1, 1, 2)


def test_lease_of_one_priority_leaves_other_priorities(make_queue: MakeQueue) -> None:
    """More urgent messages can still be leased."""
    queue = make_queue(10_000)
    queue.put([draft(1, b"a"), draft(5, b"b"), draft(1, b"c")])

    assert [m.payload for m in queue.lease(9, priority=1)] == [b"a", b"c"]
    assert [m.payload for m in queue.lease(9)] == [b"b"]


def test_newest_first_and_oldest_first_do_not_overlap(make_queue: MakeQueue) -> None:
    """Leasing from both ends returns every message once."""
    queue = make_queue(10_000)
    queue.put([draft(1, str(i).encode()) for i in range(5)])
    newest = [m.payload for m in queue.lease(2, priority=1, newest=True)]
    oldest = [m.payload for m in queue.lease(9, priority=1)]

    assert (newest, oldest) == ([b"4", b"3"], [b"0", b"1", b"2"])


def test_newest_first_returns_a_message_put_after_an_ack(make_queue: MakeQueue) -> None:
    """An earlier lease and ack at the newest end does not hide it."""
    queue = make_queue(10_000)
    queue.put([draft(1, b"a"), draft(1, b"b")])
    queue.ack([m.seq for m in queue.lease(priority=1, newest=True)])
    queue.put([draft(1, b"c")])

    leased = queue.lease(9, priority=1, newest=True)

    assert [m.payload for m in leased] == [b"c", b"a"]


def test_released_newest_message_is_newest_again(make_queue: MakeQueue) -> None:
    """A released message keeps its place at either end."""
    queue = make_queue(10_000)
    queue.put([draft(1, str(i).encode()) for i in range(4)])
    queue.release([m.seq for m in queue.lease(2, priority=1, newest=True)])

    assert [m.payload for m in queue.lease(1, priority=1, newest=True)] == [b"3"]
    assert [m.payload for m in queue.lease(9, priority=1)] == [b"0", b"1", b"2"]


def test_newest_first_without_a_priority_is_an_error(make_queue: MakeQueue) -> None:
    """Across priorities, messages are ordered by urgency and not by age."""
    queue = make_queue(10_000)

    with pytest.raises(ValueError, match="newest needs a priority"):
        queue.lease(newest=True)


def test_waiting_priorities_excludes_leased_messages(make_queue: MakeQueue) -> None:
    """A leased message does not wait; a released one waits again."""
    queue = make_queue(10_000)
    queue.put([draft(1), draft(3), draft(3)])
    (leased,) = queue.lease()
    names = [queue.waiting_priorities()]
    (last,) = queue.lease()
    names.append(queue.waiting_priorities())
    queue.ack([leased.seq])
    queue.release([last.seq])
    names.append(queue.waiting_priorities())

    assert names == [{1, 3}, {1}, {1, 3}]


def test_queue_without_a_clock_reports_no_age(make_queue: MakeQueue) -> None:
    """Ages are None instead of a wrong value."""
    queue = make_queue(10_000)
    queue.put([draft(1)])

    assert queue.oldest_s() is None
    assert queue.age_s(queue.lease()[0]) is None


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 5)),
            st.tuples(st.sampled_from(["lease", "ack", "release"]), st.integers(1, 4)),
        ),
        max_size=40,
    )
)
def test_any_sequence_of_calls_keeps_order_and_loses_nothing(
    make_queue: MakeQueue, steps: list[tuple[str, int]]
) -> None:
    """Every message is acknowledged, leased or waiting, and is leased in order."""
    queue = make_queue(1_000_000)
    waiting: dict[int, tuple[int, int]] = {}
    leased: dict[int, tuple[int, int]] = {}
    for action, number in steps:
        if action == "put":
            (message_id,) = queue.put([draft(number)])
            assert message_id
            waiting[message_id.seq] = (-number, message_id.seq)
        elif action == "lease":
            expected = sorted(waiting.values())[:number]
            got = queue.lease(number)
            assert [(-m.priority, m.seq) for m in got] == expected
            leased.update({m.seq: waiting.pop(m.seq) for m in got})
        else:
            seqs = list(leased)[:number]
            (queue.ack if action == "ack" else queue.release)(seqs)
            given_back = {seq: leased.pop(seq) for seq in seqs}
            waiting.update(given_back if action == "release" else {})
    queue.release_all()

    assert [m.seq for m in queue.lease(99)] == [
        seq for _, seq in sorted([*waiting.values(), *leased.values()])
    ]

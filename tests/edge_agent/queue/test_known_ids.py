"""Known ids take bounded space in the queue file, whatever one node sends."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.queue import shared_queue
from edge_agent.queue.base import MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from spatial_mqtt.senml import MAX_SEQ, MessageId

MAX, EVERY = 100, 10


def draft(message_id: MessageId) -> MessageDraft:
    return MessageDraft(1, "/t", lambda _id: b"", message_id)


@pytest.mark.parametrize(
    "make_id",
    [
        lambda n: MessageId("greedy", f"boot-{n}", n),
        lambda n: MessageId("greedy", "b", 2 * n),
    ],
    ids=["boots", "gaps"],
)
def test_invented_boots_and_gaps_fill_no_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_id: Callable[[int], MessageId],
) -> None:
    """Ids of other nodes and the latest of that node stay known."""
    monkeypatch.setattr(shared_queue, "MAX_RANGES_OF_NODE", MAX)
    monkeypatch.setattr(shared_queue, "CHECK_EVERY", EVERY)
    queue = SqliteQueue(tmp_path / "q.db", "gw", "boot", 10**6)
    quiet = [draft(MessageId("quiet", "b", n)) for n in range(0, 20, 2)]
    queue.put(quiet)
    for n in range(0, 1000, 50):
        queue.put([draft(make_id(n + k)) for k in range(50)])
    assert queue.put(quiet) == [None] * len(quiet)
    assert queue.put([draft(make_id(999))]) == [None]
    assert queue.put([draft(make_id(0))]) != [None]
    queue.close()

    rows = sqlite3.connect(tmp_path / "q.db").execute("SELECT count(*) FROM taken")
    assert rows.fetchone()[0] <= MAX + EVERY + len(quiet) + 1


def test_largest_sequence_number_is_stored_once(tmp_path: Path) -> None:
    """A node may choose it; the number after it is too large for SQLite."""
    queue = SqliteQueue(tmp_path / "q.db", "gw", "boot", 10**6)
    ids = [MessageId("greedy", "b", MAX_SEQ - n) for n in (0, 2, 1)]

    assert queue.put(list(map(draft, ids))) == ids
    assert queue.put(list(map(draft, ids))) == [None] * len(ids)
    queue.close()

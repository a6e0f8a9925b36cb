"""Ids in memory: bounded for each node, and never taken for known when they are not."""

import tracemalloc

import pytest

from backend_spark.ingest import deduplication
from backend_spark.ingest.deduplication import (
    MAX_RANGES_OF_NODE,
    IdRanges,
    MessageIdSet,
)
from spatial_mqtt.senml import MessageId


def ids_of_boots(count: int) -> list[MessageId]:
    return [MessageId("greedy", f"boot-{n}", n) for n in range(count)]


def ids_with_gaps(count: int) -> list[MessageId]:
    return [MessageId("greedy", "b", 2 * n) for n in range(count)]


@pytest.mark.parametrize("make_ids", [ids_of_boots, ids_with_gaps])
def test_invented_boots_and_gaps_fill_no_memory(make_ids: object) -> None:
    """The ids of other nodes stay known, and the latest of that node."""
    known = MessageIdSet()
    quiet = [MessageId("quiet", "b", n) for n in range(100)]
    known.add(quiet)
    ids = make_ids(2 * MAX_RANGES_OF_NODE)  # type: ignore[operator]
    tracemalloc.start()
    known.add(ids)
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert held_bytes < 16 * 2**20
    assert all(each in known for each in quiet)
    assert all(each in known for each in ids[-1000:])
    assert ids[0] not in known
    assert known.ranges.forgotten > 0
    assert MessageId("greedy", "b", 1) not in known


def test_honest_node_keeps_all_its_ids() -> None:
    """A node that starts again every ten minutes for a month."""
    known = MessageIdSet()
    ids = [MessageId("n1", f"boot-{n // 10}", n) for n in range(10 * 4400)]
    known.add(ids)
    assert all(each in known for each in ids)
    assert known.ranges.forgotten == 0


@pytest.mark.attack("invented names, boots and gaps", "unbounded memory")
def test_number_of_nodes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway may invent nodes; those that were silent longest are forgotten."""
    monkeypatch.setattr(deduplication, "MAX_NODES", 10)
    ranges = IdRanges()
    for n in range(100):
        ranges.add((f"node-{n}", "b"), 1, 5)
        ranges.add(("quiet", "b"), n, n)
    assert len(list(ranges)) == 10
    assert MessageId("quiet", "b", 0) in ranges

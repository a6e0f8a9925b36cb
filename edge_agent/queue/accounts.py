"""What a queue holds and what went through it: the file and memory together."""

from edge_agent.queue.base import Depth, Stats
from edge_agent.queue.numbers import LOST_AT_MOST
from edge_agent.queue.store import Store
from edge_agent.queue.tally import COLUMNS, Changes


def stats_of(store: Store, changes: Changes, leased: int) -> Stats:
    """The file's tally with what it does not know yet.

    Args:
        store: The file.
        changes: Not in it yet.
        leased: Messages that are out.
    """
    tally = store.tally()
    now = {
        column: {p: row[column] + changes.of(p, column) for p, row in tally.items()}
        for column in COLUMNS
    }
    reasons: dict[int, dict[str, int]] = {p: {} for p in tally}
    for found in (store.reasons(), changes.reasons):
        for (priority, reason), count in found.items():
            held = reasons.setdefault(priority, {})
            held[reason] = held.get(reason, 0) + count
    return Stats(
        depth={p: Depth(now["rows"][p], now["bytes"][p]) for p in tally},
        leased=leased,
        put=now["put"],
        acked=now["acked"],
        dropped=now["dropped"],
        duplicates=sum(now["duplicates"].values()),
        reasons=reasons,
        lost_at_most=int(store.recall(LOST_AT_MOST) or 0),
    )

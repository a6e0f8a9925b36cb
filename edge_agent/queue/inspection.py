"""Inspection of a queue: counters and users of its file, status text, put ledger."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from edge_agent.queue.base import (
    Depth,
    MessageDraft,
    OnPut,
    QueueFileError,
    QueueStats,
)
from edge_agent.queue.recovery import EMPTIED, has_only_its_log
from edge_agent.queue.store import COUNTER_COLUMNS, CounterDeltas, Store
from edge_agent.queue.write_journal import MAX_LOST_KEY
from spatial_mqtt.senml import MessageId


def read_counters(path: Path) -> dict[int, dict[str, int]]:
    """Counters of each priority in a queue file, most urgent first; read only.

    Returns:
        Priority to rows, bytes, put, acked, dropped, duplicates.

    Raises:
        QueueFileError: The file is not a queue.
    """
    refuse_emptied(path)
    if not path.is_file():
        raise QueueFileError(str(path), "there is no such file; has the agent run yet?")
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True)
        connection.row_factory = sqlite3.Row
        found = connection.execute("SELECT * FROM tally ORDER BY priority DESC")
        rows = [dict(row) for row in found]
    except sqlite3.DatabaseError as error:
        raise QueueFileError(str(path), str(error)) from error
    connection.close()
    return {row.pop("priority"): row for row in rows}


def refuse_emptied(path: Path) -> None:
    """Raise QueueFileError for a file whose log SQLite would delete on open."""
    if has_only_its_log(path):
        remedy = "start the agent, or run edge-agent queue repair; both recover them"
        raise QueueFileError(str(path), f"{EMPTIED}; {remedy}")


LOCKS = Path("/proc/locks")


def processes_using(path: Path) -> list[int]:
    """Processes that have a queue file open, read without taking its locks.

    Returns:
        Their process ids; 0 for one in another namespace.
    """
    try:
        stat = Path(f"{path}.lock").stat()
        rows = [line.split() for line in LOCKS.read_text().splitlines()]
    except OSError:
        return []
    inode = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    return [int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == inode]


def format_waiting(stats: QueueStats) -> str:
    """Number of messages by priority, most urgent first, such as ``5:1 3:13``."""
    depths = sorted(stats.depth.items(), reverse=True)
    return " ".join(f"{p}:{depth.rows}" for p, depth in depths if depth.rows)


def format_depth(stats: QueueStats, oldest_s: float | None) -> str:
    """Status text such as ``14 queued (5:1 3:13), oldest 35 s, 7 ever dropped``.

    Args:
        stats: Of the queue.
        oldest_s: Age of its oldest message; None without one.
    """
    waiting = format_waiting(stats)
    parts = [f"{sum(depth.rows for depth in stats.depth.values())} queued"]
    if waiting:
        parts[0] += f" ({waiting})"
        parts += [] if oldest_s is None else [f"oldest {oldest_s:.0f} s"]
    dropped = sum(stats.dropped.values())
    if dropped:
        parts.append(f"{dropped} ever dropped")
    return ", ".join(parts)


def ledger_writer(ledger: Path) -> OnPut:
    """Hook for `SqliteQueue.on_put` that appends ``<id> <priority>`` lines to a file.

    Tests and simulations compare the file with the messages that arrived.
    """
    ledger.touch()

    def write(ids: Sequence[MessageId | None], drafts: Sequence[MessageDraft]) -> None:
        put = zip(ids, drafts, strict=True)
        with ledger.open("a", encoding="ascii") as file:
            file.writelines(f"{id_} {d.priority}\n" for id_, d in put if id_)

    return write


def read_stats(store: Store, changes: CounterDeltas, leased: int) -> QueueStats:
    """Counters of the file plus `changes`, which are not in it yet."""
    tally = store.read_counters()
    now = {
        column: {p: row[column] + changes.get(p, column) for p, row in tally.items()}
        for column in COUNTER_COLUMNS
    }
    reasons: dict[int, dict[str, int]] = {p: {} for p in tally}
    for counts in (store.read_drop_reasons(), changes.drop_reasons):
        for (priority, reason), count in counts.items():
            group = reasons.setdefault(priority, {})
            group[reason] = group.get(reason, 0) + count
    return QueueStats(
        depth={p: Depth(now["rows"][p], now["bytes"][p]) for p in tally},
        leased=leased,
        put=now["put"],
        acked=now["acked"],
        dropped=now["dropped"],
        duplicates=sum(now["duplicates"].values()),
        drop_reasons=reasons,
        max_lost=store.get_int(MAX_LOST_KEY, 0),
    )

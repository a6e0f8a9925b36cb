"""A look into a queue file from outside: reads, and changes nothing.

What a queue holds, in words for a status line.
"""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from sqlite_utils import Database

from edge_agent.queue.base import Draft, OnPut, QueueFileError, Stats
from spatial_mqtt.senml import MessageId


def read_tally(path: Path) -> dict[int, dict[str, int]]:
    """What each priority holds and what went through it, most urgent first.

    Returns:
        Priority to rows, bytes, put, acked, dropped, duplicates.

    Raises:
        QueueFileError: There is no queue in that file.
    """
    if not path.is_file():
        raise QueueFileError(str(path), "there is no such file; has the agent run yet?")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        rows = list(
            Database(connection).table("tally").rows_where(order_by="priority desc")
        )
    except sqlite3.DatabaseError as error:
        raise QueueFileError(str(path), str(error)) from error
    connection.close()
    return {row.pop("priority"): row for row in rows}


def users(path: Path, locks: Path = Path("/proc/locks")) -> list[int]:
    """Processes that have a queue file open, without touching its locks.

    Args:
        path: The queue's file.
        locks: The kernel's list of locks.

    Returns:
        Their ids; 0 for one in another namespace. Empty where nobody has it open.
    """
    try:
        told = Path(f"{path}.lock").stat()
        rows = [line.split() for line in locks.read_text().splitlines()]
    except OSError:
        return []
    place = f"{os.major(told.st_dev):02x}:{os.minor(told.st_dev):02x}:{told.st_ino}"
    return [int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == place]


def waiting_words(stats: Stats) -> str:
    """Messages by priority, the most urgent first, such as ``5:1 3:13``."""
    depths = sorted(stats.depth.items(), reverse=True)
    return " ".join(f"{p}:{depth.rows}" for p, depth in depths if depth.rows)


def depth_words(stats: Stats, oldest_s: float | None) -> str:
    """Such as ``14 queued (5:1 3:13), oldest 35 s``, with what was dropped, if any.

    Args:
        stats: Of the queue.
        oldest_s: Age of its oldest message; None when there is none.
    """
    waiting = waiting_words(stats)
    words = [f"{sum(depth.rows for depth in stats.depth.values())} queued"]
    if waiting:
        words[0] += f" ({waiting})"
        words += [] if oldest_s is None else [f"oldest {oldest_s:.0f} s"]
    dropped = sum(stats.dropped.values())
    if dropped:
        words.append(f"{dropped} ever dropped")
    return ", ".join(words)


def ledger_writer(ledger: Path) -> OnPut:
    """An `on_put` hook that appends ``<id> <priority>`` of each stored message.

    For tests and simulations: the ledger names only what is in the queue.
    """
    ledger.touch()

    def write(ids: Sequence[MessageId | None], drafts: Sequence[Draft]) -> None:
        put = zip(ids, drafts, strict=True)
        with ledger.open("a", encoding="ascii") as file:
            file.writelines(f"{id_} {d.priority}\n" for id_, d in put if id_)

    return write

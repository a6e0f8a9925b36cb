"""A look into a queue file from outside: reads, and changes nothing."""

import os
import sqlite3
from pathlib import Path

from sqlite_utils import Database

from edge_agent.queue.errors import QueueFileError


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

"""A lock file: one process per name and data folder."""

import fcntl
import os
from pathlib import Path

from backend_spark.errors import AlreadyRunningError


def hold(path: Path) -> int:
    """Take a lock that lasts as long as this process.

    The kernel lets go when the process dies, however it dies. Keep the returned
    descriptor open.

    Raises:
        AlreadyRunningError: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise AlreadyRunningError(path) from error
    return descriptor

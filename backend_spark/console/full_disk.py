"""A full disk: how it is recognised, and the answer to what cannot be saved."""

import errno
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fastapi import Request, Response

from backend_spark.console.http import json_response
from service_runtime.log_limit import LogLimit

log = logging.getLogger(__name__)

INSUFFICIENT_STORAGE: Final = 507
"""HTTP status; source: RFC 4918, section 11.5."""

Handler = Callable[[Request, Exception], Awaitable[Response]]


def is_full(error: Exception) -> bool:
    """Whether a write failed for want of space."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in {
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CANTOPEN,
        }
    full = {errno.ENOSPC, errno.EDQUOT}
    return isinstance(error, OSError) and error.errno in full


def full_disk_handler(folder: Path, limit: LogLimit) -> Handler:
    """Make the handler of what a route cannot save: it answers 507.

    The page translates the answer, and needs the folder for it.

    Args:
        folder: That has no space.
        limit: Limits the lines in the log, which anyone can cause.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        if not is_full(error):
            raise error
        remedy = "free space on its disk, then try again"
        problem = f"cannot be saved in {folder}: {error}; {remedy}"
        path = request.url.path
        if (count := limit.count(path)) is not None:
            log.error("%d requests of %s: %s", count, path, problem)
        body = {"detail": f"the request {problem}", "folder": str(folder)}
        return json_response(body, INSUFFICIENT_STORAGE)

    return refuse

"""Files that rights or a mount forbid: which one it is, whose, and what to do."""

import errno
import os
import pwd
import stat
from pathlib import Path
from typing import Final

MAX_SYSTEM_PARTS: Final = 3
"""``/var/lib`` has three parts. So short a path may be a folder of the system, and
`chown -R` would take that from it."""


def explain_denied(error: BaseException | None) -> str | None:
    """What to do about a file that rights or a mount forbid; None for other errors."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return None
    if error.errno in {errno.EACCES, errno.EPERM}:
        try:
            return _explain_rights(_find_denied(Path(error.filename)), error)
        except OSError:  # it is gone meanwhile
            return None
    if error.errno == errno.EROFS:
        return (
            f"{error.filename} must be writable, got: {error.strerror}; in a unit, "
            "name its folder in ReadWritePaths=; else check the disk by dmesg, and "
            "mount it read-write"
        )
    return None


def _find_denied(path: Path) -> Path:
    """The first folder on the way that cannot be used, else the path or its folder."""
    path = path.absolute()
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK):
            return folder
    return path if path.exists() else path.parent


def _explain_rights(path: Path, error: OSError) -> str:
    user, status = _user_name(os.geteuid()), path.stat()
    owner, mode = _user_name(status.st_uid), stat.filemode(status.st_mode)
    if len(path.parts) > MAX_SYSTEM_PARTS:
        remedy = f"give the folder to {user}: chown -R {user} {path}"
    else:
        remedy = f"make a folder for {user} alone, and name that in the settings"
    return (
        f"{path} must be accessible for the user {user}, got: {error.strerror} "
        f"({mode}, owner {owner}); run this as {owner}, or {remedy}"
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

"""What a daemon says to systemd, and what it gets back from its store.

Source: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3).
"""

import array
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

log = logging.getLogger(__name__)

FIRST_FD: Final = 3
SEND_WITHIN_S: Final = 5.0
"""A service manager that takes nothing for so long must not hang us as well."""


class Notifier:
    """Speaks to the service manager; to nobody when there is none.

    Args:
        address: ``NOTIFY_SOCKET``: a path, or a name that begins with ``@``; empty
            when nobody listens.
    """

    def __init__(self, address: str = "") -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @property
    def is_heard(self) -> bool:
        """Whether there is somebody to speak to."""
        return bool(self._address)

    def say(self, *lines: str, fds: Sequence[int] = ()) -> None:
        """Send assignments such as ``READY=1`` in one datagram.

        A service manager that does not listen is no reason to stop: it is named in
        the log, and it kills us itself when it hears nothing for too long.
        """
        if not self._address:
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.settimeout(SEND_WITHIN_S)
            try:
                to.connect(self._address)
                to.sendmsg(["\n".join(lines).encode()], rights if fds else [])
            except OSError as error:
                log.warning("systemd does not hear %s: %s", lines[0], error)

    def status(self, words: str) -> None:
        """The line that ``systemctl status`` shows."""
        self.say(f"STATUS={_one_line(words)}")

    def store_fd(self, name: str, fd: int) -> None:
        """Let systemd keep a descriptor over our death, under a name of its own.

        It comes back from `inherited_fds` after a restart, a crash or a kill, if
        the unit has ``FileDescriptorStoreMax=``. What had the name before is given
        back. One whose other end hangs up is forgotten.

        Args:
            name: Up to 255 printable ASCII characters without a colon.
            fd: Stays open here too.
        """
        self.forget_fd(name)
        self.say("FDSTORE=1", f"FDNAME={name}", fds=[fd])

    def forget_fd(self, name: str) -> None:
        """Let systemd close what it keeps under a name."""
        self.say("FDSTOREREMOVE=1", f"FDNAME={name}")


def inherited_fds(environ: Mapping[str, str], pid: int) -> dict[str, int]:
    """Descriptors that systemd hands us at the start, by their names.

    No child of ours inherits them. Whoever takes one up closes it; what nobody
    wants should be closed and forgotten.

    Args:
        environ: Of the process.
        pid: Of the process: a child must not take what is meant for its parent.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return {}
    count = int(environ.get("LISTEN_FDS", "0"))
    names = environ.get("LISTEN_FDNAMES", "").split(":")[:count]
    found = {name: FIRST_FD + at for at, name in enumerate(names)}
    for fd in found.values():
        os.set_inheritable(fd, False)
    return found


def watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    """How long systemd lets us be silent; None when it does not mind."""
    told = environ.get("WATCHDOG_USEC")
    if told is None or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(told) / 1e6


def _one_line(words: str) -> str:
    return " ".join(words.split())

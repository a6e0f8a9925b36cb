"""Notification protocol of systemd: status, watchdog, and stored descriptors.

Source: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3).
"""

import array
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

log = logging.getLogger(__name__)

FIRST_PASSED_FD: Final = 3
SEND_TIMEOUT_S: Final = 5.0
"""Limit, so that a hung service manager does not hang the daemon."""


class SystemdNotifier:
    """Sends notifications to systemd; does nothing without it.

    Args:
        address: ``NOTIFY_SOCKET``: a path, or a name that begins with ``@``; empty
            without systemd.
    """

    def __init__(self, address: str = "") -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @property
    def is_enabled(self) -> bool:
        """Whether the process was started with a notification socket."""
        return bool(self._address)

    def send(self, *lines: str, fds: Sequence[int] = ()) -> None:
        """Send assignments such as ``READY=1`` in one datagram.

        An error is logged only: systemd kills the process by itself when it misses
        the watchdog for too long.
        """
        if not self._address:
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(SEND_TIMEOUT_S)
            try:
                sender.connect(self._address)
                sender.sendmsg(["\n".join(lines).encode()], rights if fds else [])
            except OSError as error:
                log.warning("cannot send %s to systemd: %s", lines[0], error)

    def send_status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows."""
        self.send(f"STATUS={_one_line(text)}")

    def store_fd(self, name: str, fd: int) -> None:
        """Store a copy of a descriptor in systemd, for the next process of the unit.

        `read_inherited_fds` returns it after a restart, a crash or a kill, if the
        unit has ``FileDescriptorStoreMax=``. A descriptor stored before under the
        name is removed. systemd drops a descriptor whose other end is closed.

        Args:
            name: Up to 255 printable ASCII characters without a colon.
            fd: The descriptor; it stays open in this process.
        """
        self.forget_fd(name)
        self.send("FDSTORE=1", f"FDNAME={name}", fds=[fd])

    def forget_fd(self, name: str) -> None:
        """Remove the stored descriptor of a name."""
        self.send("FDSTOREREMOVE=1", f"FDNAME={name}")


def read_inherited_fds(environ: Mapping[str, str], pid: int) -> dict[str, int]:
    """Descriptors that systemd passed at the start, by name.

    Child processes do not inherit them. The caller must close all of them, and
    remove those from the store that it does not use.

    Args:
        environ: Environment of the process.
        pid: Id of the process: the variables of a parent are ignored.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return {}
    count = int(environ.get("LISTEN_FDS", "0"))
    names = environ.get("LISTEN_FDNAMES", "").split(":")[:count]
    found = {name: FIRST_PASSED_FD + index for index, name in enumerate(names)}
    for fd in found.values():
        os.set_inheritable(fd, False)
    return found


def read_watchdog_timeout_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Watchdog time-out of the unit; None without one."""
    timeout_us = environ.get("WATCHDOG_USEC")
    if timeout_us is None or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(timeout_us) / 1e6


def _one_line(words: str) -> str:
    return " ".join(words.split())

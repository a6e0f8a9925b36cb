"""Messages to the service manager, and file descriptors from it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from service_runtime.watchdog import (
    SystemdNotifier,
    read_inherited_fds,
    read_watchdog_timeout_s,
)

PID = 4711


class NotifySocket:
    """The service manager's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.settimeout(5)

    def receive(self) -> tuple[str, list[int]]:
        message, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
        return message.decode(), fds

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    paths = {"path": str(tmp_path / "s"), "abstract": f"@yamamori-test-{os.getpid()}"}
    notify_socket = NotifySocket(paths[request.param])
    yield notify_socket
    notify_socket.close()


def test_messages_arrive_at_both_kinds_of_address(manager: NotifySocket) -> None:
    """A path, or a name in the abstract namespace as used by containers."""
    SystemdNotifier(manager.address).send("READY=1", "STATUS=well")

    assert manager.receive() == ("READY=1\nSTATUS=well", [])


def test_status_stays_on_one_line(manager: NotifySocket) -> None:
    """A line break would start another assignment."""
    SystemdNotifier(manager.address).send_status("sensor says\nWATCHDOG=1")

    assert manager.receive()[0] == "STATUS=sensor says WATCHDOG=1"


def test_stored_descriptor_replaces_the_one_before(manager: NotifySocket) -> None:
    """A name holds one descriptor; the descriptor itself is passed."""
    read, write = os.pipe()
    SystemdNotifier(manager.address).store_fd("line17", read)
    removal, storage = manager.receive(), manager.receive()
    os.write(write, b"tip")

    assert removal == ("FDSTOREREMOVE=1\nFDNAME=line17", [])
    assert storage[0] == "FDSTORE=1\nFDNAME=line17"
    assert os.read(storage[1][0], 10) == b"tip"
    for fd in (read, write, *storage[1]):
        os.close(fd)


def test_notifier_without_a_socket_does_nothing() -> None:
    """A daemon started by hand sends nothing and continues."""
    notifier = SystemdNotifier()
    notifier.send("READY=1")
    notifier.store_fd("line17", 0)


def test_unreachable_service_manager_is_logged_and_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing service manager must not stop sampling."""
    SystemdNotifier(str(tmp_path / "gone")).send("WATCHDOG=1")

    assert "cannot send WATCHDOG=1 to systemd" in caplog.text


def test_inherited_descriptors_have_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are numbered consecutively and not inherited by child processes."""
    first, second = os.dup2(0, 700), os.dup2(0, 701)
    monkeypatch.setattr(
        "service_runtime.watchdog.FIRST_PASSED_FD", first
    )  # 3 and 4 are pytest's own
    environ = {
        "LISTEN_PID": str(PID),
        "LISTEN_FDS": "2",
        "LISTEN_FDNAMES": "line17:line27",
    }
    found = read_inherited_fds(environ, PID)

    assert found == {"line17": first, "line27": second}
    assert not any(map(os.get_inheritable, found.values()))
    for fd in found.values():
        os.close(fd)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "line17"},
        {"LISTEN_PID": str(PID), "LISTEN_FDS": "0", "LISTEN_FDNAMES": ""},
    ],
    ids=["none", "for another process", "empty"],
)
def test_descriptors_for_other_processes_are_ignored(environ: dict[str, str]) -> None:
    """Descriptor 3 may be any file then."""
    assert read_inherited_fds(environ, PID) == {}


@pytest.mark.parametrize(
    ("environ", "expected_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(PID)}, 0.5),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_watchdog_timeout_applies_to_our_process_only(
    environ: dict[str, str], expected_s: float | None
) -> None:
    """The value is in microseconds, and may be meant for the parent process."""
    assert read_watchdog_timeout_s(environ, PID) == expected_s

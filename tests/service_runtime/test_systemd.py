"""What is said to a service manager, and what it hands back."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from service_runtime import systemd
from service_runtime.systemd import (
    SystemdNotifier,
    read_inherited_fds,
    read_watchdog_timeout_s,
)

PID = 4711


class Manager:
    """The service manager's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.settimeout(5)

    def hears(self) -> tuple[str, list[int]]:
        message, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
        return message.decode(), fds

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    paths = {"path": str(tmp_path / "s"), "abstract": f"@yamamori-test-{os.getpid()}"}
    made = Manager(paths[request.param])
    yield made
    made.close()


def test_words_arrive_by_either_kind_of_address(manager: Manager) -> None:
    """A path, or a name in the abstract space, as containers have it."""
    SystemdNotifier(manager.address).send("READY=1", "STATUS=well")

    assert manager.hears() == ("READY=1\nSTATUS=well", [])


def test_status_stays_on_one_line(manager: Manager) -> None:
    """A line break would begin another assignment."""
    SystemdNotifier(manager.address).send_status("sensor says\nWATCHDOG=1")

    assert manager.hears()[0] == "STATUS=sensor says WATCHDOG=1"


def test_stored_descriptor_replaces_the_one_before(manager: Manager) -> None:
    """One name holds one descriptor, and the descriptor itself travels."""
    read, write = os.pipe()
    SystemdNotifier(manager.address).store_fd("line17", read)
    forgets, stores = manager.hears(), manager.hears()
    os.write(write, b"tip")

    assert forgets == ("FDSTOREREMOVE=1\nFDNAME=line17", [])
    assert stores[0] == "FDSTORE=1\nFDNAME=line17"
    assert os.read(stores[1][0], 10) == b"tip"
    for fd in (read, write, *stores[1]):
        os.close(fd)


def test_nobody_hears_where_there_is_no_manager() -> None:
    """Started by hand, a daemon says nothing and goes on."""
    notifier = SystemdNotifier()
    notifier.send("READY=1")
    notifier.store_fd("line17", 0)

    assert not notifier.is_enabled


def test_deaf_manager_is_named_and_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A service manager that is gone stops no sampling."""
    SystemdNotifier(str(tmp_path / "gone")).send("WATCHDOG=1")

    assert "cannot send WATCHDOG=1 to systemd" in caplog.text


def test_descriptors_come_back_under_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They follow each other, and a child of ours does not get them."""
    first, second = os.dup2(0, 700), os.dup2(0, 701)
    monkeypatch.setattr(systemd, "FIRST_PASSED_FD", first)  # 3 and 4 are pytest's own
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
def test_no_descriptor_is_taken_that_is_not_ours(environ: dict[str, str]) -> None:
    """Descriptor 3 may be anything then."""
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
def test_watchdog_is_ours_when_it_says_so(
    environ: dict[str, str], expected_s: float | None
) -> None:
    """The time is in microseconds, and may be meant for our parent."""
    assert read_watchdog_timeout_s(environ, PID) == expected_s

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.sensors.buses import EDGE_EVENT, EdgeEvent
from edge_agent.sensors.linux.gpio import (
    LINE_REQUEST,
    KernelLine,
    KernelLines,
    encode_line_request,
    find_header_chip,
    inherited_lines,
)
from service_runtime import systemd

PID = 4711
NO_CHIP = Path("/dev/no-chip")


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe in place of a line's descriptor: what is written are its events."""
    ends = os.pipe()
    monkeypatch.setattr(systemd, "FIRST_PASSED_FD", ends[0])  # 3 is pytest's own
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def handed_over(name: str) -> dict[str, str]:
    """The environment in which systemd hands one descriptor over: `queue`'s."""
    return {"LISTEN_PID": str(PID), "LISTEN_FDS": "1", "LISTEN_FDNAMES": name}


def test_request_is_the_kernels_structure() -> None:
    """As a C program with linux/gpio.h reads it: GPIO17, pull-up, 20 ms, 1024 events.

    The bytes were checked with the header of kernel 6.1: 592 in all, every field
    at its place.
    """
    raw = encode_line_request(17, 20_000, active_high=False)
    told = {at: byte for at, byte in enumerate(raw) if byte}
    assert len(raw) == LINE_REQUEST.size == 592
    assert told == {
        0: 17,
        **{256 + at: byte for at, byte in enumerate(b"yamamori")},
        288: 0x16, 289: 0x01,  # input, active low, rising edges, pull-up
        296: 1, 320: 3, 328: 0x20, 329: 0x4E, 336: 1,  # debounce of 20000 us
        560: 1, 565: 4,  # one line, 1024 events
        588: 255, 589: 255, 590: 255, 591: 255,
    }  # fmt: skip


def test_request_without_debounce_has_no_attribute() -> None:
    """Zero would be a debounce, too; and a pulse up has a pull-down."""
    raw = encode_line_request(4, 0, active_high=True)
    assert raw[288:300] == bytes.fromhex("1402000000000000 00000000")


def test_events_are_read_without_waiting(queue: tuple[int, int]) -> None:
    """An empty queue is no edge; a full one is read to its end."""
    line = KernelLine(queue[0], "line17")
    assert line.read() == []
    for number in range(1, 101):
        os.write(queue[1], EDGE_EVENT.pack(number * 1000, 1, 17, number, number))
    assert line.read() == [EdgeEvent(n * 1000, n) for n in range(1, 101)]
    line.close()


def test_line_of_an_earlier_life_is_taken_up(queue: tuple[int, int]) -> None:
    """Same pin, same settings: the events that waited are there, under the name."""
    name = "line17-20000-0-123"
    lines = KernelLines(NO_CHIP, handed_over(name), PID, lambda: 5)
    os.write(queue[1], EDGE_EVENT.pack(9, 1, 17, 8, 8))
    line = lines.open(17, 0.02, False)
    assert (line.token, line.read()) == (name, [EdgeEvent(9, 8)])


def test_store_of_another_process_is_not_ours(queue: tuple[int, int]) -> None:
    """LISTEN_PID says for whom; other names are other people's descriptors."""
    environ = handed_over("line17-20000-0-123")
    assert inherited_lines(environ, PID) == {"line17-20000-0-123": queue[0]}
    assert inherited_lines(environ, PID + 1) == {}
    assert inherited_lines(handed_over("http"), PID) == {}


def test_line_with_other_settings_is_given_back(
    queue: tuple[int, int], tmp_path: Path
) -> None:
    """Its debounce has changed: systemd forgets it, and it is requested anew."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        environ = handed_over("line17-10000-0-1") | {"NOTIFY_SOCKET": address}
        lines = KernelLines(NO_CHIP, environ, PID, lambda: 5)
        with pytest.raises(FileNotFoundError, match=r"No such file .*no-chip"):
            lines.open(17, 0.02, False)
        assert systemd.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=line17-10000-0-1"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(queue[0])


def test_line_that_nobody_uses_is_given_back(queue: tuple[int, int]) -> None:
    """A sensor was taken out of the settings; without systemd nothing is told."""
    lines = KernelLines(NO_CHIP, handed_over("line4-0-1-9"), PID, lambda: 5)
    lines.release_unclaimed()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(queue[0])


def test_file_that_is_no_chip_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without the header counts by gpiozero, and the log says why."""
    assert find_header_chip(tmp_path) is None
    (tmp_path / "gpiochip0").write_bytes(b"")
    assert find_header_chip(tmp_path) is None
    assert "gpiochip0 has no label" in caplog.text


def test_request_to_a_file_that_is_no_chip_is_an_error(tmp_path: Path) -> None:
    """The sensor is then tried again, as any that does not open."""
    (tmp_path / "gpiochip0").write_bytes(b"")
    lines = KernelLines(tmp_path / "gpiochip0", {}, PID, lambda: 5)
    with pytest.raises(OSError, match="ioctl"):
        lines.open(17, 0.02, False)

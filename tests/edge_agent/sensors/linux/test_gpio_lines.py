import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.sensors.buses import EDGE_EVENT, EdgeEvent
from edge_agent.sensors.linux import (
    LINE_REQUEST,
    KernelLine,
    KernelLines,
    encode_line_request,
    find_header_chip,
    inherited_lines,
)

PID = 4711
NO_CHIP = Path("/dev/no-chip")


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe in place of a line's descriptor: written bytes are its events."""
    ends = os.pipe()
    monkeypatch.setattr(
        "service_runtime.watchdog.FIRST_PASSED_FD", ends[0]
    )  # 3 is in use by pytest
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def inherited_environ(name: str) -> dict[str, str]:
    """Environment in which systemd passes one descriptor: that of `queue`."""
    return {"LISTEN_PID": str(PID), "LISTEN_FDS": "1", "LISTEN_FDNAMES": name}


def test_request_has_the_layout_of_the_kernel() -> None:
    """As a C program with linux/gpio.h reads it: GPIO17, pull-up, 20 ms, 1024 events.

    The bytes were checked with the header of kernel 6.1: 592 in all, every field
    at its offset.
    """
    raw = encode_line_request(17, 20_000, active_high=False)
    nonzero = {at: byte for at, byte in enumerate(raw) if byte}
    assert len(raw) == LINE_REQUEST.size == 592
    assert nonzero == {
        0: 17,
        **{256 + at: byte for at, byte in enumerate(b"yamamori")},
        288: 0x16, 289: 0x01,  # input, active low, rising edges, pull-up
        296: 1, 320: 3, 328: 0x20, 329: 0x4E, 336: 1,  # debounce of 20000 us
        560: 1, 565: 4,  # one line, 1024 events
        588: 255, 589: 255, 590: 255, 591: 255,
    }  # fmt: skip


def test_request_without_debounce_has_no_attribute() -> None:
    """A debounce of zero needs no attribute; an active-high line has a pull-down."""
    raw = encode_line_request(4, 0, active_high=True)
    assert raw[288:300] == bytes.fromhex("1402000000000000 00000000")


def test_events_are_read_without_waiting(queue: tuple[int, int]) -> None:
    """An empty queue has no edges; a full one is read to its end."""
    line = KernelLine(queue[0], "line17", is_kept=False)
    assert line.read() == []
    for number in range(1, 101):
        os.write(queue[1], EDGE_EVENT.pack(number * 1000, 1, 17, number, number))
    assert line.read() == [EdgeEvent(n * 1000, n) for n in range(1, 101)]
    line.close()


def test_line_of_an_earlier_process_is_reused(queue: tuple[int, int]) -> None:
    """Same pin and settings: queued events are kept, under the stored name."""
    name = "line17-20000-0-123"
    lines = KernelLines(NO_CHIP, inherited_environ(name), PID, lambda: 5)
    os.write(queue[1], EDGE_EVENT.pack(9, 1, 17, 8, 8))
    line = lines.open(17, 0.02, False)
    assert (line.token, line.read()) == (name, [EdgeEvent(9, 8)])
    assert line.is_kept


def test_descriptors_of_another_process_are_ignored(queue: tuple[int, int]) -> None:
    """LISTEN_PID names the receiving process; other names are not lines."""
    environ = inherited_environ("line17-20000-0-123")
    assert inherited_lines(environ, PID) == {"line17-20000-0-123": queue[0]}
    assert inherited_lines(environ, PID + 1) == {}
    assert inherited_lines(inherited_environ("http"), PID) == {}


def test_line_with_other_settings_is_released(
    queue: tuple[int, int], tmp_path: Path
) -> None:
    """Its debounce has changed: systemd drops it, and the line is requested again."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        environ = inherited_environ("line17-10000-0-1") | {"NOTIFY_SOCKET": address}
        lines = KernelLines(NO_CHIP, environ, PID, lambda: 5)
        with pytest.raises(FileNotFoundError, match=r"No such file .*no-chip"):
            lines.open(17, 0.02, False)
        assert systemd.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=line17-10000-0-1"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(queue[0])


def test_unused_line_is_released(queue: tuple[int, int]) -> None:
    """Its sensor was removed from the settings; without systemd nothing is sent."""
    lines = KernelLines(NO_CHIP, inherited_environ("line4-0-1-9"), PID, lambda: 5)
    lines.release_unclaimed()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(queue[0])


def test_file_that_is_no_chip_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the header chip gpiozero is used, and the log gives the reason."""
    assert find_header_chip(tmp_path) is None
    (tmp_path / "gpiochip0").write_bytes(b"")
    assert find_header_chip(tmp_path) is None
    assert "gpiochip0 has no label" in caplog.text


def test_request_to_a_file_that_is_no_chip_is_an_error(tmp_path: Path) -> None:
    """The sensor is then retried like any that does not open."""
    (tmp_path / "gpiochip0").write_bytes(b"")
    lines = KernelLines(tmp_path / "gpiochip0", {}, PID, lambda: 5)
    with pytest.raises(OSError, match="ioctl"):
        lines.open(17, 0.02, False)

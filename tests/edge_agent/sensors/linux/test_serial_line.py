import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.sensors import linux
from edge_agent.sensors.buses import SerialSettings
from edge_agent.sensors.linux import LinuxBuses, LinuxSerialLine

pytest.importorskip("serial")

MODBUS = SerialSettings("Modbus", 9600)


class FarEnd:
    """The far end of a real line of the kernel, a pseudo terminal."""

    def __init__(self) -> None:
        self.end, near = os.openpty()
        self.path = os.ttyname(near)
        os.close(near)
        self.received: list[bytes] = []

    def answer(self, *pieces: bytes) -> threading.Thread:
        """Answer the next request in several pieces."""
        thread = threading.Thread(target=self._serve, args=(pieces,))
        thread.start()
        return thread

    def discard(self, count: int) -> None:
        """Read the requests before; the kernel may deliver them one by one."""
        while count > 0:
            count -= len(os.read(self.end, count))

    def write(self, data: bytes) -> None:
        """Send bytes without a request."""
        os.write(self.end, data)

    def close(self) -> None:
        """Unplug the adapter."""
        os.close(self.end)

    def _serve(self, pieces: tuple[bytes, ...]) -> None:
        self.received.append(os.read(self.end, 100))
        for piece in pieces:
            os.write(self.end, piece)


@pytest.fixture
def far_end() -> Iterator[FarEnd]:
    """An open line."""
    end = FarEnd()
    # the kernel hangs up a terminal without an open descriptor
    descriptor = os.open(end.path, os.O_RDWR | os.O_NOCTTY)
    yield end
    os.close(descriptor)


def ends_with_x(answer: bytes) -> bool:
    """Whether an answer is complete."""
    return answer.endswith(b"x")


def test_answer_is_collected_until_complete(far_end: FarEnd) -> None:
    """Pieces are joined; bytes from before the request are dropped."""
    line = LinuxSerialLine(far_end.path, MODBUS)
    line.query(b"", ends_with_x, 0.01)  # opens it
    far_end.write(b"old noise x")
    thread = far_end.answer(b"ab", b"c", b"x")
    assert line.query(b"hello", ends_with_x, 2.0) == b"abcx"
    thread.join()
    assert far_end.received == [b"hello"]
    line.close()


def test_missing_and_partial_answers_are_returned(far_end: FarEnd) -> None:
    """The bytes received in time are returned; nothing is raised."""
    line = LinuxSerialLine(far_end.path, MODBUS)
    assert line.query(b"", ends_with_x, 0.05) == b""
    thread = far_end.answer(b"ab")
    assert line.query(b"hello", ends_with_x, 2.0) == b"ab"
    thread.join()
    line.close()


class WaitingLine(LinuxSerialLine):
    """Notes how long it waits for a first byte."""

    def __init__(self, path: str) -> None:
        super().__init__(path, MODBUS, 0.05)
        self.waits: list[float] = []

    def _collect(self, is_complete: Callable[[bytes], bool], timeout_s: float) -> bytes:
        self.waits.append(timeout_s)
        return super()._collect(is_complete, timeout_s)


def test_dead_line_is_waited_for_once(far_end: FarEnd) -> None:
    """Where nothing came late either, the next requests follow at once."""
    line = WaitingLine(far_end.path)
    for _ in range(5):
        assert line.query(b"hello", ends_with_x, 0.01) == b""
    assert line.waits == [0.01, 0.05, *(4 * [0.01])]
    line.close()


def test_first_answer_of_a_dead_line_is_not_attributed(far_end: FarEnd) -> None:
    """It may be that to an earlier request; the one after it is waited for."""
    line = WaitingLine(far_end.path)
    for _ in range(2):
        assert line.query(b"a1", ends_with_x, 0.01) == b""
    late = threading.Timer(0.05, far_end.write, [b"to 1 x"])
    late.start()
    assert line.query(b"a2", ends_with_x, 2.0) == b""
    late.join()
    far_end.discard(6)
    thread = far_end.answer(b"to 3 x")
    assert line.query(b"a3", ends_with_x, 2.0) == b"to 3 x"
    thread.join()
    assert line.waits == [0.01, 0.05, 0.01, 2.0, 0.05, 2.0]
    line.close()


def test_answer_counts_while_another_probe_of_the_line_is_dead(far_end: FarEnd) -> None:
    """A register that is cleared when it is read would lose its rain."""
    line = WaitingLine(far_end.path)
    for _ in range(2):
        for _ in range(3):
            assert line.query(b"a", ends_with_x, 0.01) == b""
        far_end.discard(3)
        thread = far_end.answer(b"5 mm x")
        assert line.query(b"b", ends_with_x, 2.0) == b"5 mm x"
        thread.join()
    assert line.waits == [0.01, 0.05, 0.01, 0.01, 2.0, 0.01, 0.01, 0.01, 2.0]
    line.close()


def test_first_answer_of_a_later_round_counts(
    far_end: FarEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing late comes then, also where another probe has answered meanwhile."""
    line = WaitingLine(far_end.path)
    for _ in range(3):
        assert line.query(b"a", ends_with_x, 0.01) == b""
    monkeypatch.setattr(linux, "DEAD_S", 0.0)
    far_end.discard(3)
    for probe in (b"b", b"a"):
        thread = far_end.answer(b"5 mm x")
        assert line.query(probe, ends_with_x, 2.0) == b"5 mm x"
        thread.join()
    line.close()


def test_answer_counts_after_the_wait_for_a_late_one(far_end: FarEnd) -> None:
    """Of the same probe or of another one."""
    for after in (b"a", b"b"):
        line = WaitingLine(far_end.path)
        assert line.query(b"a", ends_with_x, 0.01) == b""
        far_end.discard(1)
        thread = far_end.answer(b"5 mm x")
        assert line.query(after, ends_with_x, 2.0) == b"5 mm x"
        thread.join()
        line.close()


def test_endless_noise_is_truncated(far_end: FarEnd) -> None:
    """At most 512 bytes are read."""
    line = LinuxSerialLine(far_end.path, MODBUS)
    line.query(b"", ends_with_x, 0.01)
    thread = far_end.answer(b"n" * 600)
    assert len(line.query(b"hello", ends_with_x, 2.0)) == 512
    thread.join()
    line.close()


def test_missing_line_is_reported_and_retried(far_end: FarEnd, tmp_path: Path) -> None:
    """An adapter that is plugged in later works without a restart."""
    path = tmp_path / "ttyUSB0"
    line = LinuxSerialLine(str(path), MODBUS)
    with pytest.raises(OSError, match=r"/ttyUSB0: .*No such file"):
        line.query(b"hello", ends_with_x, 0.01)
    path.symlink_to(far_end.path)
    assert line.query(b"", ends_with_x, 0.01) == b""
    line.close()


def test_sensors_of_one_line_share_one_object() -> None:
    """Each line has one owner and one protocol."""
    buses = LinuxBuses()
    line = buses.serial("/dev/ttyUSB99", MODBUS)
    assert buses.serial("/dev/ttyUSB99", MODBUS) is line
    with pytest.raises(
        OSError,
        match="/dev/ttyUSB99 is already used for Modbus at 9600 8N1, and not for "
        "SDI-12 at 9600 8N1; give all its sensors the same settings",
    ):
        buses.serial("/dev/ttyUSB99", SerialSettings("SDI-12"))
    buses.close()

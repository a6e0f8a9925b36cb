"""Buses and pins of a real machine under Linux.

`LinuxBuses` implements `Buses`: I2C (smbus2), files, serial lines (pyserial) and gpsd.
`KernelLines` gives the edges of pins (GPIO v2), kept by systemd across restarts of the
agent: the kernel debounces, timestamps, numbers and queues them, so none is lost while
the process is stopped or busy. The descriptor of the request is kept in systemd's file
descriptor store; after a restart the agent gets it back with the edges that came in
between. The package ``gpiod`` is not used, because it cannot adopt a request that it
did not make.

Requests and events were run on kernel 6.1 under QEMU, and the store under systemd 252,
by a prototype of this file. The pins have not been run on a Raspberry Pi.

Source: ``linux/gpio.h`` (GPIO v2).
"""

import errno
import fcntl
import logging
import math
import os
import re
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from edge_agent.sensors.base import import_library
from edge_agent.sensors.buses import (
    EDGE_EVENT,
    EdgeEvent,
    SerialSettings,
    check_same_settings,
    decode_edge_events,
)
from service_runtime.watchdog import SystemdNotifier, read_inherited_fds

_log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 512  # longer than any answer; ends the reading of noise
_WRITE_TIMEOUT_S = 2.0
_MAX_GAP_S = 0.1  # between two bytes of one answer; USB adapters bundle 16 ms
LATE_S = 2.0
"""Longest wait for a late answer before the next request. An answer does not say to
which request it belongs."""
DEAD_S = 20.0
"""Time without that wait after one that brought nothing: less than from one round of
readings to the next, so that an answer of the next round counts."""
_MAX_LATE_READS = 4  # ends the wait on a line that is never silent


class LinuxSerialLine:
    """One line, opened on the first query, and again after it was unplugged.

    Args:
        path: Device of the line.
        settings: Its speed and format.
        late_s: Longest wait for a late answer before the next request.

    Raises:
        MissingPackageError: pyserial is not installed.
    """

    def __init__(
        self, path: str, settings: SerialSettings, late_s: float = LATE_S
    ) -> None:
        self.settings = settings
        self._path = path
        self._late_s = late_s
        # Probes by the first byte of their requests, which is their address.
        self._unanswered = b""  # by the last request; empty: none
        self._has_answered = True
        # From which nothing came, not even late; and when that was seen.
        self._dead_s: dict[bytes, float] = {}
        self._lock = threading.RLock()
        self._serial = import_library("a serial line", "serial", "pyserial")
        self._port: Any = None

    def exclusive(self) -> threading.RLock:
        return self._lock

    def query(
        self, request: bytes, is_complete: Callable[[bytes], bool], timeout_s: float
    ) -> bytes:
        """Send a request and read the answer until it is complete or times out."""
        with self._lock:
            try:
                if self._port is None:
                    self._port = self._open()
                is_doubtful = False
                if request:
                    is_doubtful = self._send(request, is_complete)
                answer = self._collect(is_complete, timeout_s)
            except (OSError, termios.error) as error:
                # pyserial lets termios' own error through, which is no OSError
                self.close()
                number = error.args[0] if len(error.args) > 1 else errno.EIO
                raise OSError(number, f"{error.args[-1]}") from error
            if not request:
                return answer
            self._note(request[:1], answer, is_complete(answer) and not is_doubtful)
            return b"" if is_doubtful else answer

    def close(self) -> None:
        with self._lock:
            port, self._port = self._port, None
            if port is not None:
                port.close()

    def _open(self) -> Any:  # noqa: ANN401 - pyserial ships no types
        s = self.settings
        return self._serial.Serial(
            self._path,
            s.baud,
            bytesize=s.data_bits,
            parity=s.parity[0].upper(),
            stopbits=s.stop_bits,
            write_timeout=_WRITE_TIMEOUT_S,
            exclusive=True,
        )

    def _send(self, request: bytes, is_complete: Callable[[bytes], bool]) -> bool:
        """Send a request; whether its answer may be a late one to an earlier request.

        Nothing late is expected from a dead probe for a while: three sensors of a probe
        with a cut cable would pass their deadline.
        """
        is_waiting = bool(self._unanswered) and not self._is_dead(self._unanswered)
        is_doubtful = self._is_dead(request[:1]) and not is_waiting
        if is_waiting:
            self._discard_late(is_complete)
        self._port.reset_input_buffer()
        self._port.write(request)
        self._port.flush()
        return is_doubtful

    def _is_dead(self, probe: bytes) -> bool:
        seen_s = self._dead_s.get(probe, -math.inf)
        return time.monotonic() - seen_s <= DEAD_S  # noqa: TID251 - it waits really

    def _discard_late(self, is_complete: Callable[[bytes], bool]) -> None:
        """Discard a late answer, if one comes."""
        has_come = self._has_answered
        for _ in range(_MAX_LATE_READS):
            late = self._collect(is_complete, self._late_s)
            has_come |= bool(late)
            if not late or is_complete(late):
                break
        if not has_come:
            self._dead_s[self._unanswered] = time.monotonic()  # noqa: TID251 - the same

    def _note(self, probe: bytes, answer: bytes, is_answered: bool) -> None:
        self._has_answered = bool(answer)
        self._unanswered = b"" if is_answered else probe
        if answer:
            self._dead_s.pop(probe, None)

    def _collect(self, is_complete: Callable[[bytes], bool], timeout_s: float) -> bytes:
        self._port.timeout = timeout_s
        answer = more = bytes(self._port.read(1))
        self._port.timeout = _MAX_GAP_S
        while more and len(answer) < MAX_ANSWER_BYTES and not is_complete(answer):
            more = bytes(self._port.read(1))
            answer += more
        return answer


ADDRESS = ("localhost", 2947)
_WATCH = b'?WATCH={"enable":true,"json":false};\r\n'
_POLL = b"?POLL;\r\n"
_TIMEOUT_S = 5.0
_MAX_LINES = 100
_MAX_LINE_BYTES = 65536


class LinuxGpsd:
    """One connection, opened when first polled, and again after gpsd restarts.

    Args:
        address: Host and port of the daemon.
        timeout_s: Longest wait for an answer.
    """

    def __init__(
        self, address: tuple[str, int] = ADDRESS, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._place = address
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._buffer = b""

    def poll(self) -> str:
        """The line that answers ``?POLL;``; other messages are skipped."""
        with self._lock:
            was_open = self._socket is not None
            try:
                return self._poll_once()
            except OSError as error:
                self.close()
                if was_open:  # gpsd was restarted, or closed an idle connection
                    return self.poll()
                host, port = self._place
                raise OSError(f"{host}:{port}: {error}") from error

    def close(self) -> None:
        connection, self._socket = self._socket, None
        self._buffer = b""
        if connection is not None:
            connection.close()

    def _poll_once(self) -> str:
        connection = self._connected()
        connection.sendall(_POLL)
        return self._answer(connection)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._place, self._timeout_s)
            self._socket.sendall(_WATCH)
        return self._socket

    def _answer(self, connection: socket.socket) -> str:
        for _ in range(_MAX_LINES):
            line = self._line(connection)
            if '"class":"POLL"' in line.replace(" ", ""):
                return line
        raise OSError("it sends no answer to ?POLL;")

    def _line(self, connection: socket.socket) -> str:
        while b"\n" not in self._buffer:
            more = connection.recv(4096)
            if not more:
                raise OSError("it closed the connection")
            self._buffer += more
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise OSError("it sends a line without an end")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace").strip()


_ONE_WIRE = "/sys/bus/w1/"


class LinuxFiles:
    """Kernel files; 1-Wire ones one at a time, as each occupies its bus for 0.75 s.

    Args:
        root: Directory that stands for ``/``.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._one_wire = threading.Lock()

    def read(self, path: str) -> str:
        """Text of a file."""
        with self._one_wire if path.startswith(_ONE_WIRE) else nullcontext():
            return self._under(path).read_text(encoding="utf-8", errors="replace")

    def disk_usage(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(self._under(path))
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize

    def _under(self, path: str) -> Path:
        return self._root / path.lstrip("/")


class LinuxI2c:
    """One bus, one transfer at a time.

    Raises:
        MissingPackageError: smbus2 is not installed.
        OSError: The bus is switched off, or may not be used by this user.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.RLock()
        self._bus: Any = import_library("I2C", "smbus2", "smbus2").SMBus(number)

    def exclusive(self) -> threading.RLock:
        return self._lock

    def read(self, address: int, register: int, count: int) -> bytes:
        """Read up to 32 bytes in one transfer."""
        with self._lock:
            return bytes(self._bus.read_i2c_block_data(address, register, count))

    def write(self, address: int, register: int, data: bytes) -> None:
        """Write up to 32 bytes in one transfer."""
        with self._lock:
            self._bus.write_i2c_block_data(address, register, list(data))

    def close(self) -> None:
        self._bus.close()


class LinuxBuses:
    """All buses of the machine; sensors on one bus get the same object."""

    def __init__(self, late_s: float = LATE_S) -> None:
        self._lock = threading.Lock()
        self._late_s = late_s
        self._i2c: dict[int, LinuxI2c] = {}
        self._lines: dict[str, LinuxSerialLine] = {}
        self._files, self._gpsd = LinuxFiles(), LinuxGpsd()

    def i2c(self, number: int) -> LinuxI2c:
        with self._lock:
            if number not in self._i2c:
                self._i2c[number] = LinuxI2c(number)
            return self._i2c[number]

    def serial(self, port: str, settings: SerialSettings) -> LinuxSerialLine:
        with self._lock:
            line = self._lines.get(port)
            if line is None:
                line = LinuxSerialLine(port, settings, self._late_s)
                self._lines[port] = line
        check_same_settings(port, line.settings, settings)
        return line

    def read_file(self, path: str) -> str:
        return self._files.read(path)

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self._files.disk_usage(path)

    def poll_gpsd(self) -> str:
        return self._gpsd.poll()

    def close(self) -> None:
        for bus in self._i2c.values():
            bus.close()
        for line in self._lines.values():
            line.close()
        self._gpsd.close()


QUEUE_EVENTS = 1024

LINE_REQUEST = struct.Struct("=64I32sQI5I" + "IIQQ" * 10 + "II5Ii")
_GET_LINE, _GET_VALUES, _CHIP_INFO = 0xC250B407, 0xC010B40E, 0x8044B401
_INPUT, _ACTIVE_LOW, _RISING = 1 << 2, 1 << 1, 1 << 4
_PULL_UP, _PULL_DOWN = 1 << 8, 1 << 9
_DEBOUNCE_ATTRIBUTE = 3
_VALUES = struct.Struct("=QQ")
_CHIP_LABELS = re.compile(r"pinctrl-(bcm2|rp1)")
_NAME = re.compile(r"line(\d+)-(\d+)-([01])-\d+")


def encode_line_request(pin: int, debounce_us: int, *, active_high: bool) -> bytes:
    """The kernel's request structure for one line and its edges to active."""
    flags = _INPUT | _RISING | (_PULL_DOWN if active_high else _PULL_UP | _ACTIVE_LOW)
    attribute = (_DEBOUNCE_ATTRIBUTE, 0, debounce_us, 1) if debounce_us else ()
    padded = (*attribute, *[0] * (40 - len(attribute)))
    return LINE_REQUEST.pack(
        *(pin, *[0] * 63),
        b"yamamori",
        *(flags, 1 if debounce_us else 0, *[0] * 5),
        *padded,
        *(1, QUEUE_EVENTS, *[0] * 5, -1),
    )


class KernelLine:
    """One request, from the chip or from systemd's store."""

    def __init__(self, fd: int, token: str, *, is_kept: bool) -> None:
        self.token = token
        self.is_kept = is_kept
        self._fd = fd
        os.set_blocking(fd, False)

    def read(self) -> list[EdgeEvent]:
        events: list[EdgeEvent] = []
        while True:
            try:
                raw = os.read(self._fd, EDGE_EVENT.size * 64)
            except BlockingIOError:
                return events
            if not raw:
                return events
            events += decode_edge_events(raw)

    def is_active(self) -> bool:
        values = bytearray(_VALUES.pack(0, 1))
        fcntl.ioctl(self._fd, _GET_VALUES, values)
        return bool(_VALUES.unpack(values)[0] & 1)

    def close(self) -> None:
        os.close(self._fd)


class KernelLines:
    """The pins of the header, on one GPIO chip of the kernel.

    Args:
        chip: The chip, from `find_header_chip`.
        environ: Environment with systemd's descriptor store and socket.
        pid: Process id that the store must be addressed to.
        now_ns: A clock, for unique request names.
    """

    def __init__(
        self,
        chip: Path,
        environ: Mapping[str, str],
        pid: int,
        now_ns: Callable[[], int],
    ) -> None:
        self._chip = chip
        self._notifier = SystemdNotifier(environ.get("NOTIFY_SOCKET", ""))
        self._now_ns = now_ns
        self._kept = inherited_lines(environ, pid)

    def open(self, pin: int, debounce_s: float, active_high: bool) -> KernelLine:
        """Adopt the kept request of a pin, or make a new one."""
        debounce_us = round(debounce_s * 1e6)
        stem = f"line{pin}-{debounce_us}-{int(active_high)}-"
        for name in [name for name in self._kept if name.startswith(f"line{pin}-")]:
            fd = self._kept.pop(name)
            if name.startswith(stem):
                return KernelLine(fd, name, is_kept=True)
            self._drop(name, fd)
        raw = bytearray(encode_line_request(pin, debounce_us, active_high=active_high))
        chip = os.open(self._chip, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(chip, _GET_LINE, raw)
        finally:
            os.close(chip)
        fd, name = LINE_REQUEST.unpack(raw)[-1], f"{stem}{self._now_ns()}"
        self._notifier.store_fd(name, fd)
        return KernelLine(fd, name, is_kept=False)

    def release_unclaimed(self) -> None:
        """Release kept pins that no sensor uses after a change of the settings."""
        while self._kept:
            self._drop(*self._kept.popitem())

    def _drop(self, name: str, fd: int) -> None:
        os.close(fd)
        self._notifier.forget_fd(name)


def find_header_chip(devices: Path = Path("/dev")) -> Path | None:
    """Find the GPIO chip of the header; None on other machines.

    A chip without permission is skipped; gpiozero then reports the reason.
    """
    for chip in sorted(devices.glob("gpiochip*")):
        try:
            label = _label(chip)
        except OSError as error:
            _log.warning("%s has no label: %s", chip, error)
            continue
        if _CHIP_LABELS.match(label):
            return chip
    return None


def inherited_lines(environ: Mapping[str, str], pid: int) -> dict[str, int]:
    """Descriptors of our lines in systemd's store, by name."""
    inherited = read_inherited_fds(environ, pid)
    return {name: fd for name, fd in inherited.items() if _NAME.fullmatch(name)}


def _label(chip: Path) -> str:
    info = bytearray(68)
    fd = os.open(chip, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _CHIP_INFO, info)
    finally:
        os.close(fd)
    return bytes(info[32:64]).rstrip(b"\0").decode("ascii", "replace")


def is_edge_thread_alive(modules: Mapping[str, object]) -> bool:
    """Whether lgpio's thread is alive; true if lgpio is not in use.

    An exception in any callback ends it, while the process looks healthy.

    Args:
        modules: The imported modules of the process.
    """
    thread = getattr(modules.get("lgpio"), "_notify_thread", None)
    return thread is None or bool(thread.is_alive())

"""Pin edges from the kernel (GPIO v2), kept by systemd across restarts of the agent.

The kernel debounces, timestamps, numbers and queues the edges, so none is lost while
the process is stopped or busy. The descriptor of the request is kept in systemd's
file descriptor store; after a restart the agent gets it back with the edges that
came in between. The package ``gpiod`` is not used, because it cannot adopt a request
that it did not make.

Requests and events were run on kernel 6.1 under QEMU, and the store under systemd
252, by a prototype of this file. This file has not been run on a Raspberry Pi.

Source: ``linux/gpio.h`` (GPIO v2).
"""

import fcntl
import logging
import os
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from edge_agent.sensors.buses import EDGE_EVENT, EdgeEvent, decode_edge_events
from service_runtime.systemd import SystemdNotifier, read_inherited_fds

_log = logging.getLogger(__name__)

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

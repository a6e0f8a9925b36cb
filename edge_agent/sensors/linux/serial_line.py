"""Serial line on pyserial; the only file that imports it."""

import errno
import termios
import threading
from collections.abc import Callable
from typing import Any

from edge_agent.sensors.buses import SerialSettings
from edge_agent.sensors.linux.optional import import_library

MAX_ANSWER_BYTES = 512  # longer than any answer; ends the reading of noise
_WRITE_TIMEOUT_S = 2.0
_MAX_GAP_S = 0.1  # between two bytes of one answer; USB adapters bundle 16 ms


class LinuxSerialLine:
    """One line, opened on the first query, and again after it was unplugged.

    Raises:
        MissingPackageError: pyserial is not installed.
    """

    def __init__(self, path: str, settings: SerialSettings) -> None:
        self.settings = settings
        self._path = path
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
                if request:
                    self._send(request)
                return self._collect(is_complete, timeout_s)
            except (OSError, termios.error) as error:
                # pyserial lets termios' own error through, which is no OSError
                self.close()
                number = error.args[0] if len(error.args) > 1 else errno.EIO
                raise OSError(number, f"{error.args[-1]}") from error

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

    def _send(self, request: bytes) -> None:
        self._port.reset_input_buffer()
        self._port.write(request)
        self._port.flush()

    def _collect(self, is_complete: Callable[[bytes], bool], timeout_s: float) -> bytes:
        self._port.timeout = timeout_s
        answer = more = bytes(self._port.read(1))
        self._port.timeout = _MAX_GAP_S
        while more and len(answer) < MAX_ANSWER_BYTES and not is_complete(answer):
            more = bytes(self._port.read(1))
            answer += more
        return answer

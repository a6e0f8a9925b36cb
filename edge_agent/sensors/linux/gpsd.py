"""gpsd over its TCP socket.

Source: gpsd_json(5): a device is polled by ``?POLL;`` once ``?WATCH`` activated it.
"""

import socket
import threading

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

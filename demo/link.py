"""TCP relay with a limited byte rate that can be cut."""

import contextlib
import socket
import threading
import time

CHUNK_BYTES = 1024


class Link:
    """Relays one port to another.

    Args:
        target_port: Port of the target on this machine.
        bytes_per_s: Rate of each direction.
    """

    def __init__(self, target_port: int, bytes_per_s: float) -> None:
        self._target_port = target_port
        self._bytes_per_s = bytes_per_s
        self._open: set[socket.socket] = set()
        self._is_up = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Small buffers, so that messages wait in the sender's queue, not here.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._is_up = False
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Accept connections again."""
        self._is_up = True

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if not self._is_up:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(
                    target=self._pump, args=(source, sink), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        self._open.add(source)
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                sink.sendall(chunk)
                time.sleep(len(chunk) / self._bytes_per_s)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()

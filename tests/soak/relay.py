"""A TCP relay that can be cut, also in the middle of a packet, or slowed down."""

import contextlib
import socket
import threading
import time

CHUNK_BYTES = 4096


class Relay:
    """Relays its own port to another one.

    Args:
        target_port: Target of the connections on this machine.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._dead: set[socket.socket] = set()
        self._left: int | None = None
        self._is_up = True
        self._is_lost = False
        self._rate: float | None = None
        self._was_cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection now and refuse new ones."""
        with self._lock:
            self._is_up = False
            pairs, self._pairs = self._pairs, []
            self._left = None
        for pair in pairs:
            for sock in pair:
                _shut(sock)
        self._was_cut.set()

    def cut_after(self, count: int, timeout_s: float) -> bool:
        """Break the link after `count` more bytes in either direction.

        Returns:
            Whether that many bytes were relayed; the link is cut in any case.
        """
        self._was_cut.clear()
        with self._lock:
            self._left = count
        was_cut = self._was_cut.wait(timeout_s)
        self.cut()
        return was_cut

    def lose(self) -> None:
        """Carry nothing any more on connections that stay open, as a dead router does.

        After `restore` new connections are relayed again.
        """
        with self._lock:
            self._is_lost = True
            self._dead.update(sock for pair in self._pairs for sock in pair)

    def restore(self) -> None:
        """Accept connections again, without a rate limit."""
        with self._lock:
            self._is_up = True
            self._is_lost = False
            self._rate = None

    def slow(self, rate: float) -> None:
        """Limit each direction of each connection to `rate` bytes per second."""
        self._rate = rate

    def close(self) -> None:
        """Close the port and all connections."""
        self._listener.close()
        self.cut()

    def on_chunk(self, chunk: bytes, *, is_sent: bool) -> None:
        """Called with the bytes of each read, and whether the client sent them."""

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            if not self._is_up:
                raise ConnectionRefusedError
            far = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:
            near.close()
            return
        with self._lock:
            self._pairs.append((near, far))
            if self._is_lost:
                self._dead.update((near, far))
            self.connections += 1
        for source, sink in ((near, far), (far, near)):
            threading.Thread(
                target=self._pump, args=(source, sink, source is near), daemon=True
            ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_sent: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(self._chunk_bytes()):
                if source in self._dead:
                    continue
                self.on_chunk(chunk, is_sent=is_sent)
                if (rate := self._rate) is not None:
                    time.sleep(len(chunk) / rate)
                allowed, is_last = self._allowed(len(chunk))
                sink.sendall(chunk[:allowed])
                if is_last:
                    self.cut()
        if source not in self._dead:
            _shut(source)
            _shut(sink)
        source.close()

    def _chunk_bytes(self) -> int:
        """Chunk size: on a slow link the bytes of a twentieth of a second."""
        rate = self._rate
        return CHUNK_BYTES if rate is None else max(64, int(rate / 20))

    def _allowed(self, size: int) -> tuple[int, bool]:
        """How many bytes may still pass, and whether the link breaks after them."""
        with self._lock:
            if not self._is_up:
                return 0, True
            if self._left is None:
                return size, False
            allowed = min(size, self._left)
            self._left -= allowed
            return allowed, self._left == 0


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)

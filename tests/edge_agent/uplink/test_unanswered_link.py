"""Links on which TCP works, and the broker answers late or not at all."""

import logging
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count

import pytest
from conftest import wait_until

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.transport import (
    ConnectionHandler,
    Publication,
    SentPublication,
    Session,
)

CONNACK = b"\x20\x03\x00\x00\x00"
CONNECT, PUBLISH, SUBSCRIBE = 1, 3, 8
LARGE_BYTES = 1_000_000
"""More than the kernels of both ends hold."""


class SilentPeer:
    """A broker, or a proxy before it, that answers PUBLISH on some connections only.

    Args:
        answers: Whether the connection of a number, from 0, is answered.
        reads: Whether its messages are read.
        confirms: Whether its SUBSCRIBE is answered; it may wait.
    """

    def __init__(
        self,
        answers: Callable[[int], bool],
        reads: Callable[[int], bool],
        confirms: Callable[[int], bool],
    ) -> None:
        self._answers, self._reads, self._confirms = answers, reads, confirms
        self._sockets = ExitStack()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(16)
        self._sockets.callback(self._listener.shutdown, socket.SHUT_RDWR)
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self.published: list[int] = []
        self.connected: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        self._sockets.close()
        for each in (self._listener, *self.connected):
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            for number in count():
                sock, _ = self._listener.accept()
                self.connected.append(sock)
                threading.Thread(
                    target=self._serve, args=(number, sock), daemon=True
                ).start()

    def _serve(self, number: int, sock: socket.socket) -> None:
        held: list[bytes] = []
        with suppress(OSError, EOFError):
            while True:
                kind, body = _read_packet(sock)
                if kind == CONNECT:
                    sock.sendall(CONNACK)
                elif kind == SUBSCRIBE and self._confirms(number):
                    # Packet id, properties, and the filters, each with one byte.
                    sock.sendall(b"\x90\x05" + body[:2] + b"\x00\x01\x01")
                    wait_until(lambda: self._reads(number))
                elif kind == PUBLISH:
                    self.published.append(number)
                    after_topic = 2 + int.from_bytes(body[:2])
                    held.append(b"\x40\x02" + body[after_topic : after_topic + 2])
                if self._answers(number):
                    sock.sendall(b"".join(held))
                    held.clear()


def _read_packet(sock: socket.socket) -> tuple[int, bytes]:
    head, size, shift = _read(sock, 1)[0], 0, 0
    while True:
        byte = _read(sock, 1)[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return head >> 4, _read(sock, size)


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


class Node:
    """An uplink with a queue."""

    def __init__(self) -> None:
        self.passes = 0
        self.queue = MemoryQueue("n1", "boot", 10_000_000)
        self.uplink = Uplink(
            self.queue, SenderProfile("n1"), _connect, RateLimiter(), time.monotonic
        )
        self._thread = threading.Thread(
            target=self.uplink.run, args=(self._count_pass,), daemon=True
        )
        self._thread.start()

    def _count_pass(self) -> None:
        self.passes += 1

    def put(self, priority: int, size_bytes: int = 50) -> None:
        text = random.Random(1).randbytes(size_bytes)  # does not compress
        topic = f"/forward/1/2/pri{priority}"
        self.queue.put([MessageDraft(priority, topic, lambda _: text)])
        self.uplink.wake()

    def wait_for_passes(self) -> None:
        """Wait until the uplink has checked the link several times."""
        before = self.passes
        wait_until(lambda: self.passes > before + 20)

    def stop(self) -> None:
        self.uplink.stop()
        self._thread.join()


def _connect(
    endpoint: Endpoint, session: Session, handler: ConnectionHandler
) -> Connection:
    backoff = Backoff(random.Random(1), base_s=0.05, cap_s=0.3)
    return Connection(endpoint, session, handler, backoff=backoff)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.stop()


@pytest.fixture
def make_peer() -> Iterator[Callable[..., SilentPeer]]:
    with ExitStack() as peers:

        def make(
            answers: Callable[[int], bool],
            reads: Callable[[int], bool] = lambda _: True,
            confirms: Callable[[int], bool] = lambda _: True,
        ) -> SilentPeer:
            peer = SilentPeer(answers, reads, confirms)
            peers.callback(peer.close)
            return peer

        yield make


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some hundredths of a second count as silence."""
    monkeypatch.setattr("edge_agent.uplink.in_flight.SILENCE_S", 0.01)
    monkeypatch.setattr("edge_agent.uplink.in_flight.MIN_BYTES_PER_S", 1e9)
    monkeypatch.setattr("edge_agent.uplink.uplink.SILENT_LINK_S", 0.01)
    monkeypatch.setattr("edge_agent.uplink.uplink.IDLE_POLL_S", 0.02)


def test_urgent_message_without_an_answer_is_sent_on_a_new_connection(
    node: Node,
    make_peer: Callable[..., SilentPeer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy keeps a connection whose broker is gone, here the next one, too."""
    be_impatient(monkeypatch)
    peer = make_peer(answers=lambda number: number >= 2)
    node.uplink.switch_to(peer.endpoint)
    node.put(5)

    wait_until(lambda: node.uplink.held_count == 1)  # acknowledged, without a receipt
    assert {0, 1, 2} <= set(peer.published)


def test_routine_message_without_an_answer_keeps_the_connection(
    node: Node,
    make_peer: Callable[..., SilentPeer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new one costs a handshake; it is made once an urgent message waits."""
    be_impatient(monkeypatch)
    peer = make_peer(answers=lambda _: False)
    node.uplink.switch_to(peer.endpoint)
    node.put(3)
    wait_until(lambda: peer.published)
    node.wait_for_passes()
    assert len(peer.connected) == 1

    node.put(4)
    wait_until(lambda: len(peer.connected) > 1)


def test_slow_link_keeps_its_connection(
    node: Node,
    make_peer: Callable[..., SilentPeer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes are on their way, although nothing is answered for long."""
    is_read = threading.Event()
    peer = make_peer(answers=lambda _: True, reads=lambda _: is_read.is_set())
    node.uplink.switch_to(peer.endpoint)
    wait_until(lambda: node.uplink.down_since_s is None)
    node.put(5, LARGE_BYTES)
    wait_until(lambda: select.select([peer.connected[0]], [], [], 0)[0])
    with monkeypatch.context() as impatient:
        be_impatient(impatient)
        node.wait_for_passes()
    is_read.set()

    wait_until(lambda: peer.published)
    assert (peer.published, len(peer.connected)) == ([0], 1)


def test_connection_without_an_answer_to_subscribe_is_renewed(
    node: Node,
    make_peer: Callable[..., SilentPeer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was noticed by the keep-alive only, and an alarm waited."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("spatial_mqtt.connection.CONNECT_TIMEOUT_S", 0.1)
    peer = make_peer(answers=lambda _: True, confirms=lambda number: number >= 1)
    node.uplink.switch_to(peer.endpoint)
    node.put(5)

    wait_until(lambda: peer.published)
    assert peer.published[0] == 1
    assert "no answer to SUBSCRIBE" in caplog.text


def test_broker_that_is_slow_to_answer_subscribe_is_used(
    node: Node,
    make_peer: Callable[..., SilentPeer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit doubles: with a fixed one it would get connections for ever."""
    monkeypatch.setattr("spatial_mqtt.connection.CONNECT_TIMEOUT_S", 1.0)

    def confirm_late(_number: int) -> bool:
        time.sleep(2.1)  # paho checks once a second
        return True

    peer = make_peer(answers=lambda _: True, confirms=confirm_late)
    node.uplink.switch_to(peer.endpoint)
    node.put(5)
    wait_until(lambda: peer.published)


class SilentConnection(Connection):
    """A connection that is renewed whenever the uplink requests it."""

    def __init__(self, handler: ConnectionHandler) -> None:
        super().__init__(Endpoint("127.0.0.1", 1), Session("n1"), handler)
        self.limits_s: list[float] = []

    def start(self) -> None:
        self.open()

    def open(self) -> None:
        self.handler.on_up(False, 100)
        self.handler.on_subscribed()

    def publish_together(
        self, publications: Sequence[Publication]
    ) -> list[SentPublication]:
        return [SentPublication(n, 1000) for n, _ in enumerate(publications)]

    def renew_if_unanswered(self, silence_s: float) -> bool:
        self.limits_s.append(silence_s)
        self.handler.on_down("renewed")
        self.open()
        return True


def test_wait_for_the_next_renewal_doubles_up_to_the_keepalive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that answers too slowly must not get more connections for it."""
    monkeypatch.setattr("edge_agent.uplink.uplink.IDLE_POLL_S", 0.001)
    later_s = 0.0
    made: list[SilentConnection] = []

    def connect(_to: Endpoint, _session: Session, handler: ConnectionHandler):  # noqa: ANN202
        made.append(SilentConnection(handler))
        return made[0]

    queue = MemoryQueue("n1", "boot", 10_000_000)
    queue.put([MessageDraft(5, "/forward/1/2/pri5", lambda _: b"x")])
    uplink = Uplink(queue, SenderProfile("n1"), connect, RateLimiter(), lambda: later_s)
    uplink.switch_to(Endpoint("127.0.0.1", 1))

    def beat() -> None:
        nonlocal later_s
        later_s += 1.0
        if len(made[0].limits_s) == 4 and later_s < 3600.0:
            later_s += 3600.0
        if len(made[0].limits_s) == 5:
            uplink.stop()

    uplink.run(beat)
    first_s = made[0].limits_s[0]
    assert 20.0 < first_s < 30.0
    assert made[0].limits_s == [first_s, 2 * first_s, 60.0, 60.0, first_s]

"""Connecting by TCP to machines that answer, refuse or are silent."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from conftest import Broker, wait_until

from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt import connection as connection_module
from spatial_mqtt import tcp
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.transport import BaseConnectionHandler, Session

PATIENT = tcp.ConnectPolicy(lambda _waited_s: False)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port whose queue of connections is full, so that the kernel drops requests."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        # A busy kernel may accept one more than the queue has.
        with suppress(TimeoutError):
            while True:
                sock = opened.enter_context(socket.socket())
                sock.settimeout(0.5)
                sock.connect(server.getsockname())
        yield server.getsockname()[1]


@pytest.fixture
def refusing_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_attempt_ends_when_it_is_given_up(silent_port: int) -> None:
    """It does not wait for the kernel's two minutes."""
    with pytest.raises(tcp.NoAnswerError, match="no answer") as raised:
        tcp.connect(
            "127.0.0.1", silent_port, tcp.ConnectPolicy(lambda waited_s: waited_s > 0.2)
        )

    assert not tcp.was_answered(raised.value)


def test_refusal_is_an_answer(refusing_port: int) -> None:
    with pytest.raises(ConnectionRefusedError, match="refused") as raised:
        tcp.connect("127.0.0.1", refusing_port, PATIENT)

    assert tcp.was_answered(raised.value)


def test_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """``localhost`` is often an IPv6 address that refuses, then an IPv4 one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        stream = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        addresses = [(*stream, ("127.9.9.9", port)), (*stream, ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        with tcp.connect("gateway", port, PATIENT) as sock:
            assert sock.getpeername() == ("127.0.0.1", port)


def test_name_without_address_is_no_answer() -> None:
    with pytest.raises(OSError, match=r"ame") as raised:
        tcp.connect("gateway.invalid", 1883, PATIENT)

    assert not tcp.was_answered(raised.value)


def test_route_is_known_without_a_packet() -> None:
    assert tcp.has_route("127.0.0.1", 1)
    assert not tcp.has_route("gateway.invalid", 1)


def test_repetitions_of_tcp_are_not_minutes_apart() -> None:
    """Where the kernel has a limit; elsewhere the connection works without it."""
    with socket.socket() as sock:
        tcp.set_options(sock)
        try:
            repeat_ms = sock.getsockopt(socket.IPPROTO_TCP, tcp.TCP_RTO_MAX_MS)
        except OSError:
            repeat_ms = tcp.MAX_REPEAT_MS

        assert repeat_ms == tcp.MAX_REPEAT_MS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_stop_does_not_wait_for_an_attempt(silent_port: int) -> None:
    """A node that changes its gateway does not wait for the one that is silent."""
    connection = Connection(
        Endpoint("127.0.0.1", silent_port), Session("a"), BaseConnectionHandler()
    )
    connection.start()
    time.sleep(0.3)  # it requests the connection at once
    stopping = threading.Thread(target=connection.stop)
    stopping.start()
    stopping.join(connection_module.CONNECT_TIMEOUT_S / 2)

    assert not stopping.is_alive()


class Requests:
    """Requests for a connection to one port; other threads make some to others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
        self.sockets: list[socket.socket] = []
        self.answering: tuple[str, int] | None = None
        self._port = port
        self._request = tcp._request  # noqa: SLF001 - counts its calls
        monkeypatch.setattr(tcp, "_request", self._count)

    def _count(self, sock: socket.socket, address: tuple[str, int]) -> None:
        if address[1] == self._port:
            self.sockets.append(sock)
            if self.answering and len(self.sockets) == 3:
                address = self.answering
        self._request(sock, address)


def test_urgent_connection_is_requested_again(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request is repeated by the kernel only after ever longer waits.

    Its machine answers a later one from another port, as after an outage.
    """
    monkeypatch.setattr(tcp, "REQUEST_AGAIN_S", 0.2)
    requests = Requests(monkeypatch, silent_port)
    policy = PATIENT._replace(is_urgent=lambda: True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        requests.answering = server.getsockname()
        with tcp.connect("127.0.0.1", silent_port, policy) as sock:
            assert sock.getpeername() == server.getsockname()
            assert sock is requests.sockets[2]
    assert [each.fileno() for each in requests.sockets] == [-1, -1, -1]


def test_urgent_message_makes_a_waiting_connection_request_again(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be put while the connection already waits for an answer."""
    monkeypatch.setattr(tcp, "REQUEST_AGAIN_S", 0.1)
    requests = Requests(monkeypatch, silent_port)
    connection = Connection(
        Endpoint("127.0.0.1", silent_port), Session("a"), BaseConnectionHandler()
    )
    connection.start()
    wait_until(lambda: requests.sockets)
    time.sleep(0.5)
    before = len(requests.sockets)
    connection.reconnect_soon()
    wait_until(lambda: len(requests.sockets) > 3)
    connection.stop()

    assert before == 1


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, silent_port: int) -> Iterator[int]:
    """A port of a name of which the first address is silent and the second accepts."""
    with socket.create_server(("127.0.0.2", silent_port)):
        _give_addresses(monkeypatch, silent_port, "127.0.0.1", "127.0.0.2")
        yield silent_port


def _give_addresses(
    monkeypatch: pytest.MonkeyPatch, port: int, *addresses: str
) -> None:
    """Let the name ``gateway`` have several addresses; other threads use others."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, port)) for each in addresses
    ]
    real = socket.getaddrinfo

    def find(host: str, *values: int | str | None, **named: int) -> list[Any]:
        return found if host == "gateway" else real(host, *values, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", find)


@pytest.mark.parametrize("is_urgent", [True, False])
def test_next_address_does_not_wait_for_a_silent_one(
    gateway: int, is_urgent: bool
) -> None:
    """IPv6 behind a router that forwards none; each address had waited for 10 s."""
    waits: list[float] = []
    policy = tcp.ConnectPolicy(
        lambda waited_s: waits.append(waited_s) or waited_s > 1.0, lambda: is_urgent
    )
    with tcp.connect("gateway", gateway, policy) as sock:
        assert sock.getpeername() == ("127.0.0.2", gateway)
    assert max(waits) == pytest.approx(tcp.NEXT_ADDRESS_S, abs=tcp.CONNECT_POLL_S)


def test_first_address_that_answers_counts_although_others_were_requested(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the first one, over a link that is slow; the others are closed."""
    _give_addresses(monkeypatch, silent_port, "127.0.0.1", "127.0.0.1", "127.0.0.1")
    requests = Requests(monkeypatch, silent_port)
    with socket.create_server(("127.0.0.1", 0)) as server:
        requests.answering = server.getsockname()
        with tcp.connect("gateway", silent_port, PATIENT) as sock:
            assert sock is requests.sockets[2]
    assert [each.fileno() for each in requests.sockets] == [-1, -1, -1]


def test_address_that_refuses_ends_no_attempt_at_the_others(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is the answer: the back-off counts it if no other address accepts."""
    _give_addresses(monkeypatch, silent_port, "127.0.0.1", "127.0.0.9")
    policy = tcp.ConnectPolicy(lambda waited_s: waited_s > 1.0)
    started_s = time.monotonic()
    with pytest.raises(ConnectionRefusedError, match="refused") as raised:
        tcp.connect("gateway", silent_port, policy)

    assert time.monotonic() - started_s > 0.9
    assert tcp.was_answered(raised.value)


def test_address_without_a_route_costs_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the IPv6 address of a gateway in a network that has IPv4 only."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        _give_addresses(monkeypatch, port, "255.255.255.255", "127.0.0.1")
        waits: list[float] = []
        policy = tcp.ConnectPolicy(lambda waited_s: bool(waits.append(waited_s)))
        with tcp.connect("gateway", port, policy) as sock:
            assert sock.getpeername() == ("127.0.0.1", port)
    assert max(waits) == 0.0


def test_stop_does_not_wait_for_a_tls_handshake() -> None:
    """A gateway that hangs accepts connections, and a change of it took 10 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint("127.0.0.1", server.getsockname()[1], tls=True)
        connection = Connection(
            endpoint, Session("a"), BaseConnectionHandler(), TlsFiles()
        )
        connection.start()
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(1)  # it has begun the handshake
            stopping = threading.Thread(target=connection.stop)
            stopping.start()
            stopping.join(connection_module.CONNECT_TIMEOUT_S / 2)

            assert not stopping.is_alive()


@pytest.mark.broker
def test_address_on_which_no_broker_answers_is_tried_last(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections and is then silent; it was tried for ever."""
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.2", broker.port)):
        _give_addresses(monkeypatch, broker.port, "127.0.0.2", "127.0.0.1")
        backoff = Backoff(random.Random(1), base_s=0.05, cap_s=0.1)
        connection = Connection(
            broker.endpoint, Session("a"), BaseConnectionHandler(), backoff=backoff
        )
        connection.start()
        try:
            wait_until(lambda: connection.is_up)
        finally:
            connection.stop()


def _accept_in_silence(server: socket.socket) -> int:
    """Accept a connection, and answer nothing; the segments that it announced."""
    with server.accept()[0] as accepted:
        announced = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        while accepted.recv(4096):
            pass
    return announced


@pytest.mark.parametrize("is_tls", [True, False])
def test_smaller_segments_follow_a_connection_on_which_nothing_arrives(
    monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    """The certificates of a gateway do not pass a tunnel that loses large packets."""
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(tcp, "SILENT_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint("127.0.0.1", server.getsockname()[1], tls=is_tls)
        backoff = Backoff(random.Random(1), base_s=0.05, cap_s=0.1)
        connection = Connection(
            endpoint, Session("a"), BaseConnectionHandler(), TlsFiles(), backoff
        )
        connection.start()
        first, *others = [_accept_in_silence(server) for _ in range(4)]
        connection.stop()

    # What remains of a segment without its options.
    assert first > 1220
    assert others == pytest.approx([1220, 536, 536], abs=40)


def test_smaller_segments_follow_a_request_that_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node asks its Manager in a new connection each time, for a few seconds."""
    monkeypatch.setattr(tcp, "SILENT_S", 0.4)
    announced: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint("127.0.0.1", server.getsockname()[1])
        for _ in range(2):
            answering = threading.Thread(
                target=lambda: announced.append(_accept_in_silence(server))
            )
            answering.start()
            with pytest.raises(BrokerError, match="no retained message"):
                fetch_retained(endpoint, "/api/manager/table", "node", 0.5)
            answering.join()

    assert announced[0] > 1220
    assert announced[1] == pytest.approx(1220, abs=40)


def test_larger_segments_return_after_a_long_connection() -> None:
    """An outage, and a broker that ends connections, are no sign of a small path."""
    limit = tcp.SegmentLimit()
    limit.report_end(tcp.SHORT_S + 1, was_silent=True)
    limit.report_end(1.0, was_silent=False)
    assert limit.segment_bytes is None

    limit.report_end(tcp.SILENT_S / 2, was_silent=True)
    assert limit.segment_bytes is None
    for expected in (1220, 536, 536):
        limit.report_end(tcp.SILENT_S + 1, was_silent=True)
        assert limit.segment_bytes == expected
    limit.report_end(tcp.LONG_S + 1, was_silent=True)
    limit.report_end(tcp.LONG_S - 1, was_silent=False)
    assert limit.segment_bytes == 536
    limit.report_end(tcp.LONG_S + 1, was_silent=False)
    assert limit.segment_bytes == 1220


def test_answer_is_missing_only_if_all_data_arrived_and_none_came() -> None:
    """On a slow link data are on their way in one of the directions."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.socket())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind(("127.0.0.1", 0))
        server.listen()
        sock = opened.enter_context(socket.create_connection(server.getsockname()))
        peer = opened.enter_context(server.accept()[0])
        sock.send(b"question")
        wait_until(lambda: tcp.is_unanswered(sock, 1.0))

        def is_answered() -> bool:
            peer.send(b"a part of the answer")
            return not tcp.is_unanswered(sock, 1.0)

        wait_until(is_answered)
        wait_until(lambda: tcp.is_unanswered(sock, 1.0))

        sock.setblocking(False)
        sock.send(bytes(1_000_000))  # more than the peer's kernel takes
        wait_until(lambda: not tcp.is_unanswered(sock, 0.0))
        time.sleep(0.5)
        assert not tcp.is_unanswered(sock, 0.0)
    assert not tcp.is_unanswered(sock, 0.0)

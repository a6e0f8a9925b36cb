"""TCP below MQTT: connecting within limits, small kernel buffers, lost connections."""

import errno
import os
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

MAX_UNSENT_BYTES: Final = 4096
"""Limit for unsent bytes in the kernel buffer."""

TCP_RTO_MAX_MS: Final = 44
MAX_REPEAT_MS: Final = 3000
"""Longest wait before TCP repeats a segment, for connections that are not renewed."""

STUCK_REPEATS: Final = 3
STUCK_WAIT_S: Final = 2.5
"""Repetitions of a segment without an answer, and wait for the next one, from which a
new connection is faster. The wait doubles each time, up to `MAX_REPEAT_MS` or, before
Linux 6.15, two minutes."""

TCP_INFO: Final = struct.Struct("=2xB5xI12xI24xI88xI")
"""Of Linux's ``struct tcp_info``: the fields of `_TcpInfo`, in their order."""

SEGMENTS_BYTES: Final = (None, 1220, 536)
"""Limits of a segment, by level: that of the interface, that of any IPv6 path (RFC
8200: 1280 bytes with headers), and that of a machine that announces none (RFC 9293)."""

SILENT_S: Final = 3.0
SHORT_S: Final = 60.0
"""A connection that ends after this time without an answer may have lost a segment for
its size: earlier it is only slow, and later the link is interrupted."""

LONG_S: Final = 3600.0
"""After a connection of this length, larger segments are tried again."""

LINGER: Final = struct.Struct("=ii")
CONNECT_POLL_S: Final = 0.125

NEXT_ADDRESS_S: Final = 0.25
"""How long one address of a name may be silent before the next is requested too, as
RFC 8305 recommends: a network may have IPv6 addresses that lead nowhere."""

REQUEST_AGAIN_S: Final = 2.0
"""Interval of further requests for an urgent connection. Linux repeats a request after
1, 2, 3, 4, 6 and 10 s, before 6.5 after 1, 3 and 7 s: a link that is back in between
would stay unused."""

NO_PATH: Final = frozenset({
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
})


class _TcpInfo(NamedTuple):
    """State of a connection, as the kernel reports it.

    Attributes:
        repeats: ``tcpi_retransmits``: repetitions of a segment without an answer.
        wait_us: ``tcpi_rto``: wait for the next repetition.
        unacknowledged: ``tcpi_unacked``: segments that the other machine may lack.
        silent_ms: ``tcpi_last_data_recv``: time since data arrived.
        unsent_bytes: ``tcpi_notsent_bytes``.
    """

    repeats: int
    wait_us: int
    unacknowledged: int
    silent_ms: int
    unsent_bytes: int


class NoAnswerError(TimeoutError):
    """No machine has answered the request for a connection."""


class ConnectPolicy(NamedTuple):
    """How long and how often a connection is requested.

    Attributes:
        gives_up: Called several times a second with the seconds since the first
            request; ends the attempt by returning True.
        is_urgent: Whether to request anew every `REQUEST_AGAIN_S`, beside the earlier
            requests; the first that is answered counts.
        failures: Addresses that accepted a connection on which no broker answered, each
            with the number of the last such attempt; requested last.
        segment_bytes: Limit of a segment in both directions; None is the interface's.
    """

    gives_up: Callable[[float], bool]
    is_urgent: Callable[[], bool] = lambda: False
    failures: Mapping[Any, int] = MappingProxyType({})
    segment_bytes: int | None = None


@dataclass
class SegmentLimit:
    """Limit of a segment on a path that may lose large packets without an error.

    A tunnel or a mobile network may carry less than the interface, and behind a
    firewall that discards ICMP the sender gets no error: small messages arrive, and a
    full segment does not, on each new connection again. Without rights a program
    cannot let the kernel probe (RFC 4821), so smaller segments follow a failure.

    Attributes:
        level: Index in `SEGMENTS_BYTES`.
    """

    level: int = 0

    @property
    def segment_bytes(self) -> int | None:
        """The limit; None is the interface's."""
        return SEGMENTS_BYTES[self.level]

    def report_end(self, lasted_s: float, *, was_silent: bool) -> None:
        """Adapt the limit to the end of a connection.

        Args:
            lasted_s: Time since the request for it.
            was_silent: Whether it was accepted, and ended because nothing arrived.
        """
        if was_silent and SILENT_S <= lasted_s < SHORT_S:
            self.level = min(self.level + 1, len(SEGMENTS_BYTES) - 1)
        elif not was_silent and lasted_s > LONG_S:
            self.level = max(self.level - 1, 0)


_LIMITS: dict[tuple[str, int], SegmentLimit] = {}


def segment_limit(host: str, port: int) -> SegmentLimit:
    """The limit of a path, which all connections to a broker share.

    A node asks its Manager in a new connection each time.
    """
    return _LIMITS.setdefault((host, port), SegmentLimit())


def connect(host: str, port: int, policy: ConnectPolicy) -> socket.socket:
    """Connect to the first address of a host that accepts.

    While one does not answer, the next is requested beside it (RFC 8305).

    Raises:
        OSError: None accepts; `NoAnswerError` if none has answered.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found.sort(key=lambda each: policy.failures.get(each[4], 0))
    left = deque(_Target(family, address) for family, _, _, _, address in found)
    waited_s, next_s, again_s = 0.0, 0.0, REQUEST_AGAIN_S
    with closing(_Requests(policy.segment_bytes)) as requests:
        while not policy.gives_up(waited_s):
            if left and (waited_s >= next_s or not requests.pending):
                requests.make(left.popleft())
                next_s = waited_s + NEXT_ADDRESS_S
            elif not requests.pending:
                raise requests.failure
            elif policy.is_urgent() and waited_s >= again_s:
                requests.repeat()
                again_s = waited_s + REQUEST_AGAIN_S
            elif (sock := requests.wait(CONNECT_POLL_S)) is not None:
                return sock
            else:
                waited_s += CONNECT_POLL_S
        requests.note(NoAnswerError("no answer"))
        raise requests.failure


def shake_hands(sock: ssl.SSLSocket, gives_up: Callable[[float], bool]) -> None:
    """Make the TLS handshake, unless the attempt is given up.

    Raises:
        OSError: It failed or was given up.
    """
    sock.setblocking(False)
    waited_s = 0.0
    while not gives_up(waited_s):
        poll = select.poll()
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            poll.register(sock, select.POLLIN)
        except ssl.SSLWantWriteError:
            poll.register(sock, select.POLLOUT)
        else:
            return
        if not poll.poll(CONNECT_POLL_S * 1000):
            waited_s += CONNECT_POLL_S
    raise TimeoutError(errno.ETIMEDOUT, "no answer in the TLS handshake")


class _Target(NamedTuple):
    """One address of a name."""

    family: int
    address: Any  # differs between families


class _Requests:
    """Requests for a connection, of which the first that is accepted counts.

    Args:
        segment_bytes: See `ConnectPolicy`.

    Attributes:
        pending: Sockets without an answer, each with its address.
        failure: Why none was accepted; an answer of the other machine comes first.
    """

    def __init__(self, segment_bytes: int | None) -> None:
        self._segment_bytes = segment_bytes
        self.pending: dict[socket.socket, _Target] = {}
        self.failure: OSError = NoAnswerError("no answer")

    def make(self, target: _Target) -> None:
        """Request a connection to an address."""
        try:
            sock = socket.socket(target.family, socket.SOCK_STREAM)
            self.pending[sock] = target
            if self._segment_bytes is not None:  # announced, so it limits answers too
                limit = self._segment_bytes
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, limit)
            _request(sock, target.address)
        except OSError as error:
            self._end(target, error)

    def repeat(self) -> None:
        """Request anew what has not been answered, beside the earlier requests."""
        for target in dict.fromkeys(self.pending.values()):
            self.make(target)

    def wait(self, timeout_s: float) -> socket.socket | None:
        """Wait for an answer; None if there is none, or a refusal."""
        poll = select.poll()  # not `select`, which refuses descriptors above 1023
        for sock in self.pending:
            poll.register(sock, select.POLLOUT)
        answered = {number for number, _ in poll.poll(timeout_s * 1000)}
        for sock, target in list(self.pending.items()):
            if sock.fileno() in answered:  # not of a socket that `_end` has closed
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    del self.pending[sock]
                    return sock
                self._end(target, OSError(code, os.strerror(code)))
        return None

    def note(self, failure: OSError) -> None:
        """Keep a failure, unless an answer of the other machine is known."""
        if was_answered(failure) or not was_answered(self.failure):
            self.failure = failure

    def close(self) -> None:
        """End all requests that are pending."""
        while self.pending:
            self.pending.popitem()[0].close()

    def _end(self, target: _Target, failure: OSError) -> None:
        """End all requests to an address that has refused one."""
        self.note(failure)
        for sock in [each for each, to in self.pending.items() if to == target]:
            del self.pending[sock]
            sock.close()


def _request(sock: socket.socket, address: Any) -> None:  # noqa: ANN401 - as above
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code != errno.EINPROGRESS:
        _raise(code)


def _raise(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))


def was_answered(error: Exception) -> bool:
    """Whether a failed attempt to connect reached the other machine."""
    if isinstance(error, (NoAnswerError, socket.gaierror)):
        return False
    return not (isinstance(error, OSError) and error.errno in NO_PATH)


def has_route(host: str, port: int) -> bool:
    """Whether this machine has a route to an address; sends nothing.

    False for names, because to resolve one takes a network.
    """
    try:
        ((family, _, _, _, address),) = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
    except OSError:
        return False
    return True


def set_options(sock: socket.socket) -> None:
    """Make the kernel send packets at once, and keep its buffer small."""
    # Nagle and delayed ACK together hold QoS 1 to about 330 messages/s.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError):  # Linux before 6.15 waits up to two minutes
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, MAX_REPEAT_MS)
    watermark = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if watermark is not None:
        sock.setsockopt(socket.IPPROTO_TCP, watermark, MAX_UNSENT_BYTES)


def set_cork(sock: socket.socket | None, *, is_corked: bool) -> None:
    """Hold back partly filled segments, where the system supports it."""
    cork = getattr(socket, "TCP_CORK", None)
    if sock is not None and cork is not None:
        with suppress(OSError):  # closed meanwhile: the reader handles it
            sock.setsockopt(socket.IPPROTO_TCP, cork, int(is_corked))


def is_stuck(sock: socket.socket) -> bool:
    """Whether TCP waits for long before it repeats once more what was lost."""
    info = _read_info(sock)
    if info is None:
        return False
    return info.repeats >= STUCK_REPEATS and info.wait_us > STUCK_WAIT_S * 1_000_000


def is_unanswered(sock: socket.socket, silence_s: float) -> bool:
    """Whether the other machine has all data, and has sent none for a time.

    On a slow link data are on their way in one of the directions.
    """
    info = _read_info(sock)
    if info is None or info.unacknowledged or info.unsent_bytes:
        return False
    return info.silent_ms > silence_s * 1000


def has_unread(sock: socket.socket) -> bool:
    """Whether data or the end wait in the kernel, as while a callback blocks."""
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
    except ValueError:  # closed meanwhile
        return True
    return bool(poll.poll(0))


def _read_info(sock: socket.socket) -> _TcpInfo | None:
    """The state of a connection; None without one, or on another system."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, TCP_INFO.size)
    except OSError:  # closed meanwhile
        return None
    return _TcpInfo(*TCP_INFO.unpack(info.ljust(TCP_INFO.size, b"\0")))


def abort(sock: socket.socket) -> None:
    """End a connection; what the kernel has not sent is discarded."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER.pack(1, 0))
        # The method of an SSL socket changes a state that paho's thread uses.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)

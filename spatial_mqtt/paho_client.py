"""paho client with batched writes, small kernel buffers, a fast path and topic aliases.

Publications that are sent together leave in one write, in full segments: on a slow link
the overhead of a segment is as large as a small message. The kernel buffer stays small,
because urgent messages cannot overtake what is in it. PUBLISH and PUBACK of QoS 0 and 1
are encoded and decoded here; paho does connection, TLS, keep-alive, subscriptions and
QoS 2.

With a topic alias, a repeated topic takes 3 bytes instead of 30. Each connection
has one alias table per direction; a publication that defines an alias must be written
before any that uses it.

Source: MQTT 5.0 section 3.3.2.3.4.
"""

import math
import socket
import ssl
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.exception import MalformedPacket
from paho.mqtt.subscribeoptions import SubscribeOptions

from service_runtime.watchdog import Heartbeat, no_heartbeat
from spatial_mqtt import codec, tcp
from spatial_mqtt.errors import PacketError
from spatial_mqtt.transport import (
    IncomingMessage,
    Publication,
    SentPublication,
    Session,
)

MIN_ALIASED_TOPIC_CHARS = 6
"""Shorter topics are hardly longer than an alias."""

REMEMBERED_PER_ALIAS = 8
"""Recent topics that are remembered for each available alias."""


class TopicAliases:
    """Assigns aliases to repeated topics.

    Args:
        max_aliases: Number of aliases that the receiver allows.
    """

    def __init__(self, max_aliases: int = 0) -> None:
        self._most = max_aliases
        self._aliases: dict[str, int] = {}
        self._last_used: OrderedDict[str, int] = OrderedDict()
        self._count = 0

    def shorten(self, topic: str) -> tuple[str, int | None]:
        """Replace a topic by its alias.

        Returns:
            Topic and alias: both to define the alias, an empty topic to use it, None
            as alias for neither.
        """
        if self._most == 0 or len(topic) < MIN_ALIASED_TOPIC_CHARS:
            return topic, None
        self._count += 1
        is_repeated = topic in self._last_used
        self._last_used[topic] = self._count
        self._last_used.move_to_end(topic)
        if topic in self._aliases:
            return "", self._aliases[topic]
        if is_repeated and (alias := self._free_alias()) is not None:
            self._aliases[topic] = alias
            return topic, alias
        self._drop_oldest()
        return topic, None

    def _free_alias(self) -> int | None:
        """An unused alias, or that of a topic not used for long; None without one."""
        if len(self._aliases) < self._most:
            return len(self._aliases) + 1
        oldest = min(self._aliases, key=self._last_used.__getitem__)
        if self._count - self._last_used[oldest] < self._most * REMEMBERED_PER_ALIAS:
            return None  # redefining aliases in turn would cost more than it saves
        return self._aliases.pop(oldest)

    def _drop_oldest(self) -> None:
        while len(self._last_used) > self._most * REMEMBERED_PER_ALIAS:
            oldest = next(t for t in self._last_used if t not in self._aliases)
            del self._last_used[oldest]


READ_BYTES: Final = 65536

MAX_MQTT_PACKET_BYTES: Final = 268_435_460
"""What a broker without a limit of its own accepts (MQTT 5.0 section 2.1.4)."""

MAX_HEAD_BYTES: Final = 1024
"""Most that a packet of ours has beside its payload, with a topic of 512 characters."""

NO_SUBACK: Final = "no answer to SUBSCRIBE"

TLS_RECORD_BYTES: Final = 1300
"""Largest TLS record. A receiver decrypts a record when all of it has arrived, so the
messages in one that takes several segments would be acknowledged together, and the
first would seem to have taken as long as the last."""


CLOSED: Final = "the broker closed the connection"
TAKEN_OVER: Final = "Session taken over"
"""Reason code 0x8E in a DISCONNECT, as paho names it."""

TAKEOVER_PERIOD_S: Final = 600.0
"""Three ends within this time cause a warning, at most one in this time."""


TAKEOVER_WARNING: Final = (
    "%s ends our connections again and again: another program may connect with the "
    "same client id, %s, as from a copied card or settings file; the broker's log has "
    "'already connected' and the addresses of both"
)


@dataclass
class TakeoverDetector:
    """Recognises that another machine connects with the same client id.

    The broker then ends the older of both connections, in turn and for ever. Mosquitto
    2.0.11 only closes it; newer ones send a reason. One end alone says nothing: a
    broker that stops closes its connections too.
    """

    _ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    _silent_until_s: float = -math.inf

    def report_end(self, reason: str, now_s: float) -> bool:
        """Note the end of a connection or attempt; whether to warn now.

        One with another reason between says that the broker or the link is at fault.
        """
        if reason not in {CLOSED, TAKEN_OVER}:
            self._ends_s.clear()
            return False
        self._ends_s.append(now_s)
        is_often = len(self._ends_s) == self._ends_s.maxlen
        if not is_often or now_s - self._ends_s[0] > TAKEOVER_PERIOD_S:
            return False
        is_due = now_s >= self._silent_until_s
        if is_due:
            self._silent_until_s = now_s + TAKEOVER_PERIOD_S
        return is_due

    def is_suspected(self, now_s: float) -> bool:
        """Whether the last warning is at most 20 minutes old."""
        return now_s < self._silent_until_s + TAKEOVER_PERIOD_S


class BatchingClient(paho.Client):
    """paho client that writes several publications at once.

    Args:
        session: Parameters of the MQTT session.
        generation: Number of the connection, for `IncomingMessage.delivery`.
        on_incoming: Called with each message of QoS 0 or 1, in the network thread.
        on_answered: Called with the token of each publication of QoS 1 and the reason
            of a refusal, in the network thread; with that of one that is too large for
            the broker in the caller's.
        policy: How long and how often the connection is requested.

    Attributes:
        suback_limit_s: Time without an answer to SUBSCRIBE after which the connection
            ends, unless bytes are on their way.
        fault: Error that ended the connection.
        abort_reason: Why `abort` ended it.
        is_closed_by_broker: Whether the broker ended it without an error.
    """

    def __init__(
        self,
        session: Session,
        generation: int,
        on_incoming: Callable[[IncomingMessage], object],
        on_answered: Callable[[int, str | None], object],
        policy: tcp.ConnectPolicy,
    ) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            session.client_id,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=session.manual_ack,
        )
        self.aliases = TopicAliases()
        self.max_packet_bytes = MAX_MQTT_PACKET_BYTES
        self.heartbeat: Heartbeat = no_heartbeat
        self.fault: OSError | None = None
        self.is_closed_by_broker = False
        self.abort_reason = ""
        self.peer: Any = None  # differs between families
        self.suback_limit_s = math.inf
        self._requested_s: deque[float] = deque()
        self._write_lock = threading.RLock()
        self._receive_buffer = bytearray()
        self._unacknowledged: set[int] = set()
        self._generation = generation
        self._on_incoming = on_incoming
        self._on_answered = on_answered
        self._policy = policy

    def publish_together(
        self, publications: Sequence[Publication]
    ) -> list[SentPublication]:
        """Publish messages in order, in one write.

        One that is larger than the broker allows is refused here: the broker would end
        the connection, each time anew.

        Returns:
            Token and size of each; fewer when the connection was lost meanwhile.
        """
        handed: list[SentPublication] = []
        packets: list[bytes] = []
        # The second lock keeps other writes out. paho's thread takes both in this order
        # when it writes, after CONNACK, what was published with QoS 2 meanwhile.
        is_stored = any(each.qos > 1 for each in publications)
        with self._out_message_mutex if is_stored else nullcontext(), self._write_lock:
            for publication in publications:
                if (refused := self._refuse_too_large(publication)) is not None:
                    handed.append(refused)
                    continue
                topic, alias = self.aliases.shorten(publication.topic)
                if publication.qos == 1:
                    mid = self._free_mid()
                    packet = codec.encode_publish(publication, topic, alias, mid)
                    self._unacknowledged.add(mid)
                    packets.append(packet)
                    handed.append(SentPublication(mid, len(packet)))
                    continue
                self._send(codec.PUBLISH, packets)
                sent = self._publish_by_paho(publication, topic, alias)
                if sent is None:
                    break
                handed.append(sent)
            self._send(codec.PUBLISH, packets)
        return handed

    def _refuse_too_large(self, publication: Publication) -> SentPublication | None:
        """Refuse a publication that is too large for the broker; None if it is not."""
        if len(publication.payload) + MAX_HEAD_BYTES <= self.max_packet_bytes:
            return None
        # With the definition of an alias, and a packet id, it is largest.
        size_bytes = len(codec.encode_publish(publication, publication.topic, 1, 1))
        if size_bytes <= self.max_packet_bytes:
            return None
        mid = self._free_mid()
        limit = f"the broker allows packets of {self.max_packet_bytes} bytes"
        self._on_answered(mid, f"{limit}, this one has {size_bytes}; raise its limit")
        return SentPublication(mid, 0)

    def request(self, filters: list[tuple[str, SubscribeOptions]]) -> None:
        """Subscribe; the connection ends if no answer comes."""
        self._requested_s.append(paho.time_func())
        self.subscribe(filters)

    def is_stuck(self) -> bool:
        """Whether TCP waits for long before it repeats once more what was lost."""
        sock = self._sock
        return isinstance(sock, socket.socket) and tcp.is_stuck(sock)

    def is_unanswered(self, silence_s: float) -> bool:
        """Whether the broker's machine has all data, and has sent none for a time."""
        sock = self._sock
        return isinstance(sock, socket.socket) and tcp.is_unanswered(sock, silence_s)

    def abort(self, reason: str) -> None:
        """End the connection; what the kernel has not sent is discarded."""
        self.abort_reason, sock = reason, self._sock
        if isinstance(sock, socket.socket):
            tcp.abort(sock)

    def acknowledge(self, deliveries: Iterable[IncomingMessage]) -> None:
        """Acknowledge messages of this connection, in one write."""
        mids: list[int] = []
        for message in deliveries:
            if message.qos == 1:
                mids.append(message.delivery[1])
            else:
                self.ack(message.delivery[1], message.qos)
        if mids:
            self._send(codec.PUBACK, [codec.encode_pubacks(mids)])

    def loop_stop(self) -> MQTTErrorCode:
        """End paho's thread.

        paho reads `_thread` three times, and fails if the thread ends meanwhile.
        """
        thread = self._thread
        if thread is None:
            return MQTTErrorCode.MQTT_ERR_INVAL
        self._thread_terminate = True
        if thread is not threading.current_thread():
            thread.join()
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Read all received data; called by paho's thread."""
        if self._sock is None:
            return MQTTErrorCode.MQTT_ERR_NO_CONN
        code = self._read()
        return self._loop_rc_handle(code) if code > 0 else code

    def loop_misc(self) -> MQTTErrorCode:
        """Send a heartbeat; called by paho's thread at least once a second."""
        self.heartbeat()
        self._end_without_suback()
        return super().loop_misc()

    def _end_without_suback(self) -> None:
        """End a connection that died before the answer to SUBSCRIBE.

        On a slow link, bytes of SUBSCRIBE or of its answer are on their way.
        """
        limit_s, now_s = self.suback_limit_s, paho.time_func()
        is_late = self._requested_s and now_s - self._requested_s[0] > limit_s
        if not is_late or not isinstance(sock := self._sock, socket.socket):
            return
        is_silent = tcp.is_unanswered(sock, limit_s) and not tcp.has_unread(sock)
        if tcp.is_stuck(sock) or is_silent:
            self.abort(NO_SUBACK)

    def loop_write(self) -> MQTTErrorCode:
        """Write queued packets in full segments; called by paho's thread."""
        sock = self._sock if isinstance(self._sock, socket.socket) else None
        with self._write_lock:
            tcp.set_cork(sock, is_corked=True)
            try:
                return super().loop_write()
            finally:
                tcp.set_cork(sock, is_corked=False)

    def _create_socket_connection(self) -> socket.socket:
        sock = tcp.connect(self._host, self._port, self._policy)
        tcp.set_options(sock)
        sock.settimeout(self._connect_timeout)
        self.peer = sock.getpeername()
        return sock

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        """Start TLS; paho's own handshake delays the end of the connection by 10 s."""
        if self._ssl_context is None:
            raise AssertionError("TLS needs a context")
        sock = self._ssl_context.wrap_socket(
            tcp_sock, server_hostname=self._host, do_handshake_on_connect=False
        )
        try:
            tcp.shake_hands(sock, self._policy.gives_up)
        except OSError:
            sock.close()
            raise
        return sock

    def _sock_send(self, buf: bytes | bytearray) -> int:
        """Write what the kernel accepts; with TLS one record, which fits a segment."""
        is_tls = isinstance(self._sock, ssl.SSLSocket)
        return super()._sock_send(buf[:TLS_RECORD_BYTES] if is_tls else buf)

    def _read(self) -> MQTTErrorCode:
        try:
            data = self._sock_recv(READ_BYTES)
        except BlockingIOError:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        except ssl.SSLError as error:  # TLS 1.3 rejects a client after its handshake
            self.fault = error
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        except OSError as error:
            self.fault = error
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        if not data:
            self.is_closed_by_broker = True
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        with self._msgtime_mutex:
            self._last_bytes_received = paho.time_func()
        self._receive_buffer += data
        return self._handle_complete_packets()

    def _handle_complete_packets(self) -> MQTTErrorCode:
        """Handle the complete packets in the receive buffer."""
        try:
            for first, body in codec.split_packets(self._receive_buffer):
                code = self._handle_packet(first, body)
                if code > 0 or self._sock is None:
                    return code
        except (PacketError, MalformedPacket):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_packet(self, first: int, body: bytes) -> MQTTErrorCode:
        """Handle a PUBLISH or PUBACK; paho handles all others."""
        kind = first & 0xF0
        if kind == codec.PUBLISH and first & 0x06 in {0, codec.QOS_1}:
            message = codec.decode_publish(first, body, self._generation)
            self._on_incoming(message)
            if message.qos and not self._manual_ack:
                self._send(codec.PUBACK, [codec.encode_pubacks([message.delivery[1]])])
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        if kind == codec.PUBACK:
            mid, refused = codec.decode_puback(body)
            if mid in self._unacknowledged:
                self._unacknowledged.discard(mid)
                self._on_answered(mid, refused)
                return MQTTErrorCode.MQTT_ERR_SUCCESS
        if kind == paho.SUBACK and self._requested_s:
            self._requested_s.popleft()  # the broker answers in order
        self._in_packet = {
            "command": first,
            "have_remaining": 1,
            "remaining_count": [],
            "remaining_mult": 1,
            "remaining_length": len(body),
            "packet": bytearray(body),
            "to_process": 0,
            "pos": 0,
        }
        return self._packet_handle()

    def _publish_by_paho(
        self, publication: Publication, topic: str, alias: int | None
    ) -> SentPublication | None:
        properties = codec.make_publish_properties(publication, alias)
        info = self.publish(
            topic, publication.payload, publication.qos, publication.retain, properties
        )
        if info.rc != paho.MQTT_ERR_SUCCESS:
            return None
        size_bytes = codec.publish_packet_bytes(publication, topic, properties)
        return SentPublication(info.mid, size_bytes)

    def _free_mid(self) -> int:
        mid = self._mid_generate()
        while mid in self._unacknowledged:
            mid = self._mid_generate()
        return mid

    def _send(self, kind: int, packets: list[bytes]) -> None:
        """Write packets after the queued ones, without paho's state for each."""
        if not packets:
            return
        data = b"".join(packets)
        packets.clear()
        with self._write_lock:
            rest = data if self._out_packet else self._write_directly(data)
            if len(rest) < len(data):
                self._queue_rest(kind, rest)
            else:
                self._packet_queue(kind, rest, 0, 1)

    def _queue_rest(self, kind: int, rest: bytes) -> None:
        """Queue what the kernel did not accept before all other packets.

        Other threads queue a PUBREL, SUBSCRIBE or PINGREQ at any time. Between the two
        parts of a packet it would become a part of its payload.
        """
        if not rest:
            return
        self._out_packet.appendleft({
            "command": kind,
            "mid": 0,
            "qos": 1,
            "pos": 0,
            "to_process": len(rest),
            "packet": rest,
            "info": None,
        })
        if self._sockpairW is not None:
            with suppress(BlockingIOError):  # paho's thread is being woken already
                self._sockpairW.send(b"0")

    def _write_directly(self, data: bytes) -> bytes:
        """Write what the kernel accepts, without paho's thread; return the rest.

        Not with TLS: OpenSSL connections must not be used by two threads at once.
        """
        sock = self._sock
        if type(sock) is not socket.socket or not self.is_connected():
            return data
        try:
            sent = sock.send(data)
        except OSError:  # full or closed: paho's thread handles it
            return data
        with self._msgtime_mutex:
            self._last_msg_out = paho.time_func()
        return data[sent:]

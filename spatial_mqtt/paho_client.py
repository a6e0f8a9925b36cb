"""A paho client that keeps the link full and the kernel empty, and is quick about it.

What is handed over together leaves in one write, in full segments: on a slow link
a segment for each small message would cost as much as the message. And little may
wait in the kernel, where nothing overtakes it.

What comes is read in one go, and PUBLISH and PUBACK of QoS 0 and 1 are made and read
here; connecting, TLS, keeping alive, subscribing and QoS 2 are paho's.

Topic aliases: a topic that comes again costs three bytes instead of thirty. No I/O.

One table for one connection, in one direction: both ends forget it with the
connection. The publication that defines an alias must be written before any that
uses it.

Source: MQTT 5.0 section 3.3.2.3.4.
"""

import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.exception import MalformedPacket

from service_runtime.watchdog import Beat, unheard
from spatial_mqtt import codec
from spatial_mqtt.errors import PacketError
from spatial_mqtt.transport import Handed, Incoming, Publication, Session

WORTH_BYTES = 6
"""A shorter topic is hardly longer than its alias."""

REMEMBERED = 8
"""Topics seen once that are remembered, for each alias that there is."""


class TopicAliases:
    """Gives aliases to topics that come again.

    Args:
        most: Aliases that the receiver allows; 0 is none.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._aliases: dict[str, int] = {}
        self._last_used: OrderedDict[str, int] = OrderedDict()
        self._count = 0

    def shorten(self, topic: str) -> tuple[str, int | None]:
        """What to publish on instead of a topic.

        Returns:
            Topic and alias: both to define the alias, an empty topic to use it,
            no alias to do without.
        """
        if self._most == 0 or len(topic) < WORTH_BYTES:
            return topic, None
        self._count += 1
        has_come_before = topic in self._last_used
        self._last_used[topic] = self._count
        self._last_used.move_to_end(topic)
        if topic in self._aliases:
            return "", self._aliases[topic]
        if has_come_before and (alias := self._free_alias()) is not None:
            self._aliases[topic] = alias
            return topic, alias
        self._forget_oldest()
        return topic, None

    def _free_alias(self) -> int | None:
        """An alias nobody has, or that of a topic that stayed away for long."""
        if len(self._aliases) < self._most:
            return len(self._aliases) + 1
        oldest = min(self._aliases, key=self._last_used.__getitem__)
        if self._count - self._last_used[oldest] < self._most * REMEMBERED:
            return None  # to define them in turn would cost more than it saves
        return self._aliases.pop(oldest)

    def _forget_oldest(self) -> None:
        while len(self._last_used) > self._most * REMEMBERED:
            oldest = next(t for t in self._last_used if t not in self._aliases)
            del self._last_used[oldest]


UNSENT_BYTES: Final = 4096
"""What the kernel may hold before the first byte of it is on the wire."""

READ_BYTES: Final = 65536


class CorkedClient(paho.Client):
    """A client whose packets leave together when they were handed over together.

    Args:
        session: What is asked of the broker.
        generation: Of the connection, for `Incoming.delivery`.
        hear: Called with each message of QoS 0 or 1.
        answered: Called with the token of each publication of QoS 1, and why it was
            refused; both in the network thread.
    """

    def __init__(
        self,
        session: Session,
        generation: int,
        hear: Callable[[Incoming], object],
        answered: Callable[[int, str | None], object],
    ) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            session.client_id,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=session.manual_ack,
        )
        self.aliases = TopicAliases()
        self.beat: Beat = unheard
        self.fault: ssl.SSLError | None = None
        self._burst = threading.RLock()
        self._arrived = bytearray()
        self._awaited: set[int] = set()
        self._generation = generation
        self._hear = hear
        self._answered = answered

    def publish_together(self, publications: Sequence[Publication]) -> list[Handed]:
        """Hand publications over, to leave in one write, in their order.

        Returns:
            For each its token; fewer when the link went down on the way.
        """
        handed: list[Handed] = []
        waiting: list[bytes] = []
        with self._burst:  # nothing is written meanwhile
            for publication in publications:
                topic, alias = self.aliases.shorten(publication.topic)
                if publication.qos == 1:
                    mid = self._free_mid()
                    packet = codec.publish(publication, topic, alias, mid)
                    self._awaited.add(mid)
                    waiting.append(packet)
                    handed.append(Handed(mid, len(packet)))
                    continue
                self._send(codec.PUBLISH, waiting)
                one = self._publish_by_paho(publication, topic, alias)
                if one is None:
                    break
                handed.append(one)
            self._send(codec.PUBLISH, waiting)
        return handed

    def acknowledge(self, deliveries: Iterable[Incoming]) -> None:
        """Acknowledge messages of this connection, in one write."""
        mids: list[int] = []
        for message in deliveries:
            if message.qos == 1:
                mids.append(message.delivery[1])
            else:
                self.ack(message.delivery[1], message.qos)
        if mids:
            self._send(codec.PUBACK, [codec.pubacks(mids)])

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Read all that has arrived, as paho's thread asks us to."""
        if self._sock is None:
            return MQTTErrorCode.MQTT_ERR_NO_CONN
        code = self._read()
        return self._loop_rc_handle(code) if code > 0 else code

    def loop_misc(self) -> MQTTErrorCode:
        """Look after the link, as paho's thread does once a second or more often."""
        self.beat()
        return super().loop_misc()

    def loop_write(self) -> MQTTErrorCode:
        """Write what waits in full segments, as paho's thread asks us to."""
        sock = self.socket()
        with self._burst:
            _cork(sock, is_corked=True)
            try:
                return super().loop_write()
            finally:
                _cork(sock, is_corked=False)

    def _read(self) -> MQTTErrorCode:
        try:
            data = self._sock_recv(READ_BYTES)
        except BlockingIOError:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        except ssl.SSLError as error:  # TLS 1.3 refuses us only after its handshake
            self.fault = error
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        except OSError:
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        if not data:
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        with self._msgtime_mutex:
            self._last_bytes_received = paho.time_func()
        self._arrived += data
        return self._take_whole()

    def _take_whole(self) -> MQTTErrorCode:
        """Take the packets that have arrived with their ends."""
        try:
            for first, body in codec.frames(self._arrived):
                code = self._take(first, body)
                if code > 0 or self._sock is None:
                    return code
        except (PacketError, MalformedPacket):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _take(self, first: int, body: bytes) -> MQTTErrorCode:
        """Take one packet; what is not ours is for paho."""
        kind = first & 0xF0
        if kind == codec.PUBLISH and first & 0x06 in {0, codec.QOS_1}:
            message = codec.incoming(first, body, self._generation)
            self._hear(message)
            if message.qos and not self._manual_ack:
                self._send(codec.PUBACK, [codec.pubacks([message.delivery[1]])])
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        if kind == codec.PUBACK:
            mid, refused = codec.answer(body)
            if mid in self._awaited:
                self._awaited.discard(mid)
                self._answered(mid, refused)
                return MQTTErrorCode.MQTT_ERR_SUCCESS
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
    ) -> Handed | None:
        properties = codec.of_publish(publication, alias)
        info = self.publish(
            topic, publication.payload, publication.qos, publication.retain, properties
        )
        if info.rc != paho.MQTT_ERR_SUCCESS:
            return None
        size_bytes = codec.size_bytes(publication, topic, properties)
        return Handed(info.mid, size_bytes)

    def _free_mid(self) -> int:
        mid = self._mid_generate()
        while mid in self._awaited:
            mid = self._mid_generate()
        return mid

    def _send(self, kind: int, waiting: list[bytes]) -> None:
        """Write packets behind those that wait; paho need know no more of them."""
        if not waiting:
            return
        data = b"".join(waiting)
        waiting.clear()
        with self._burst:
            rest = data if self._out_packet else self._written_at_once(data)
            if rest:
                self._packet_queue(kind, rest, 0, 1)

    def _written_at_once(self, data: bytes) -> bytes:
        """Write what the kernel takes without waking paho's thread; the rest.

        Not with TLS: OpenSSL is not for two threads at a time.
        """
        sock = self._sock
        if type(sock) is not socket.socket or not self.is_connected():
            return data
        try:
            sent = sock.send(data)
        except OSError:  # full, or gone: paho's thread finds out
            return data
        with self._msgtime_mutex:
            self._last_msg_out = paho.time_func()
        return data[sent:]


def hold_little(_client: paho.Client, _userdata: object, sock: Any) -> None:  # noqa: ANN401 - paho's
    """Let the kernel neither wait with our packets nor hoard them."""
    # Nagle and delayed ACK together hold QoS 1 to about 330 messages/s.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    watermark = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if watermark is not None:
        sock.setsockopt(socket.IPPROTO_TCP, watermark, UNSENT_BYTES)


def _cork(sock: Any, *, is_corked: bool) -> None:  # noqa: ANN401 - paho's
    """Hold back part-filled segments, where the system can."""
    cork = getattr(socket, "TCP_CORK", None)
    if sock is not None and cork is not None:
        with suppress(OSError):  # closed meanwhile: its reader finds out
            sock.setsockopt(socket.IPPROTO_TCP, cork, int(is_corked))

"""A paho client that keeps the link full and the kernel empty.

What is handed over together leaves in one write, in full segments: on a slow link
a segment for each small message would cost as much as the message. And little may
wait in the kernel, where nothing overtakes it.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from spatial_mqtt.aliases import TopicAliases
from spatial_mqtt.link import Session

UNSENT_BYTES: Final = 4096
"""What the kernel may hold before the first byte of it is on the wire."""


class CorkedClient(paho.Client):
    """A client whose packets leave together when they were handed over together."""

    def __init__(self, session: Session) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            session.client_id,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=session.manual_ack,
        )
        self.aliases = TopicAliases()
        self._burst = threading.RLock()

    @contextmanager
    def burst(self) -> Iterator[None]:
        """Nothing is written meanwhile, so that it all goes in one write."""
        with self._burst:
            yield

    def loop_write(self) -> MQTTErrorCode:
        """Write what waits in full segments, as paho's thread asks us to."""
        sock = self.socket()
        with self._burst:
            _cork(sock, is_corked=True)
            try:
                return super().loop_write()
            finally:
                _cork(sock, is_corked=False)


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

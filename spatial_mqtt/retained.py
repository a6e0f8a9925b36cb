"""What a broker retains: how a client asks a Manager."""

import threading
from typing import Final

from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.topics import matches
from spatial_mqtt.transport import Incoming, Session

MORE_S: Final = 1.0
"""How long a broker may take to send what else it retains."""


def fetch_retained(
    endpoint: Endpoint,
    topic: str,
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> bytes:
    """Connect, take one retained message of a topic or filter, disconnect.

    Raises:
        BrokerError: The broker is out of reach, or holds no such message.

    Source:
        Gamma (seed 000) section 3.2, steps 1-3.
    """
    return _fetch(endpoint, (topic,), client_id, timeout_s, tls).first


def fetch_several(
    endpoint: Endpoint,
    filters: tuple[str, ...],
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> dict[str, bytes]:
    """Take one retained message, and what more there is within a second.

    Args:
        endpoint: Of the broker.
        filters: The first is the topic that must be there.
        client_id: Of the session.
        timeout_s: For that message.
        tls: Files of the connection.

    Raises:
        BrokerError: The broker is out of reach, or does not hold the first.
    """
    return _fetch(endpoint, filters, client_id, timeout_s, tls, more_s=MORE_S).payloads


def _fetch(
    endpoint: Endpoint,
    filters: tuple[str, ...],
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None,
    *,
    more_s: float = 0.0,
) -> "_Catcher":
    catcher = _Catcher(filters[0])
    asked = tuple((each, 1) for each in filters)
    session = Session(client_id, filters=asked, keepalive_s=10)
    connection = Connection(endpoint, session, catcher, tls)
    connection.start()
    try:
        if not catcher.caught.wait(timeout_s):
            said = connection.last_reason or f"no retained message on {filters[0]}"
            raise BrokerError(str(endpoint), f"{said} within {timeout_s:g} s")
        if more_s:
            threading.Event().wait(more_s)
    finally:
        connection.stop()
    return catcher


class _Catcher:
    """Handler that keeps the first message of each topic, and of a filter."""

    def __init__(self, wanted: str) -> None:
        self.caught = threading.Event()
        self.first = b""
        self.payloads: dict[str, bytes] = {}
        self._wanted = wanted

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: Incoming) -> None:
        self.payloads.setdefault(message.topic, message.payload)
        is_wanted = matches(self._wanted, message.topic)
        if is_wanted and not self.caught.is_set():
            self.first = message.payload
            self.caught.set()

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""

"""One retained message from a broker: how a client asks a Manager."""

import threading

from spatial_mqtt.connection import Connection
from spatial_mqtt.endpoint import Endpoint, TlsFiles
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.link import Incoming, Session


def fetch_retained(
    endpoint: Endpoint,
    topic: str,
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> bytes:
    """Connect, take one retained message, disconnect.

    Raises:
        BrokerError: The broker is out of reach, or holds no such message.

    Source:
        Gamma (seed 000) section 3.2, steps 1-3.
    """
    catcher = _Catcher()
    session = Session(client_id, filters=((topic, 1),), keepalive_s=10)
    connection = Connection(endpoint, session, catcher, tls)
    connection.start()
    try:
        if not catcher.caught.wait(timeout_s):
            said = connection.last_reason or f"no retained message on {topic}"
            raise BrokerError(str(endpoint), f"{said} within {timeout_s:g} s")
    finally:
        connection.stop()
    return catcher.payload


class _Catcher:
    """Handler that keeps the first message."""

    def __init__(self) -> None:
        self.caught = threading.Event()
        self.payload = b""

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""

    def on_down(self, reason: str) -> None:
        """See `Handler`."""

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        if not self.caught.is_set():
            self.payload = message.payload
            self.caught.set()

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""

    def on_subscribed(self) -> None:
        """See `Handler`."""

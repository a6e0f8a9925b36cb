"""Read retained messages of a broker."""

import threading
from typing import Final

from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.topics import matches
from spatial_mqtt.transport import BaseConnectionHandler, IncomingMessage, Session

COLLECT_S: Final = 1.0
"""Time to wait for further retained messages."""


def fetch_retained(
    endpoint: Endpoint,
    topic: str,
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> bytes:
    """Connect, read one retained message of a topic or filter, disconnect.

    Raises:
        BrokerError: The broker is not reachable, or has no such message.

    Source:
        Gamma (seed 000) section 3.2, steps 1-3.
    """
    return _fetch(endpoint, (topic,), client_id, timeout_s, tls).first


def fetch_all_retained(
    endpoint: Endpoint,
    filters: tuple[str, ...],
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> dict[str, bytes]:
    """Read a required retained message, and all others that arrive within a second.

    Args:
        endpoint: Address of the broker.
        filters: Topic of the required message, and filters of the others.
        client_id: Client id of the session.
        timeout_s: Limit for the required message.
        tls: Files for an ``mqtts`` endpoint.

    Raises:
        BrokerError: The broker is not reachable, or does not have the message.
    """
    return _fetch(
        endpoint, filters, client_id, timeout_s, tls, more_s=COLLECT_S
    ).payloads


def _fetch(
    endpoint: Endpoint,
    filters: tuple[str, ...],
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None,
    *,
    more_s: float = 0.0,
) -> "_RetainedReader":
    reader = _RetainedReader(filters[0])
    subscriptions = tuple((each, 1) for each in filters)
    session = Session(client_id, filters=subscriptions, keepalive_s=10)
    connection = Connection(endpoint, session, reader, tls)
    connection.start()
    try:
        if not reader.is_received.wait(timeout_s):
            connection.report_missing_answer()
            reason = connection.last_reason or f"no retained message on {filters[0]}"
            raise BrokerError(str(endpoint), f"{reason} within {timeout_s:g} s")
        if more_s:
            threading.Event().wait(more_s)
    finally:
        connection.stop()
    return reader


class _RetainedReader(BaseConnectionHandler):
    """Stores the first message of each topic, and of the required filter."""

    def __init__(self, required: str) -> None:
        self.is_received = threading.Event()
        self.first = b""
        self.payloads: dict[str, bytes] = {}
        self._required = required

    def on_message(self, message: IncomingMessage) -> None:
        self.payloads.setdefault(message.topic, message.payload)
        is_required = matches(self._required, message.topic)
        if is_required and not self.is_received.is_set():
            self.first = message.payload
            self.is_received.set()

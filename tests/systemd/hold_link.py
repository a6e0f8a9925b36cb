"""Holds one connection with a certificate, and logs when it goes up and down."""

import logging
import sys
import threading

from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import Session

logging.basicConfig(format="%(message)s", level=logging.INFO)
log = logging.getLogger("hold_link")


class LoggingHandler:
    """Logs the state of the connection."""

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""
        log.info("up")

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""
        log.info("down: %s", reason)

    def on_message(self, message: object) -> None:
        """See `ConnectionHandler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""


name, folder = sys.argv[1:]
issued = f"{folder}/issued/{name}"
tls = TlsFiles(ca=f"{folder}/ca.pem", certificate=f"{issued}.pem", key=f"{issued}.key")
link = Connection(
    Endpoint("127.0.0.1", 8883, tls=True), Session(name), LoggingHandler(), tls
)
link.start()
threading.Event().wait()

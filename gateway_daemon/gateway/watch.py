"""Finds out who subscribes on the gateway's own broker.

Stock Mosquitto tells on ``$SYS/broker/log/...`` when its configuration has
``log_dest topic`` and ``log_type subscribe unsubscribe notice``. A lasting session
of ours makes the broker keep what is said while the daemon is down.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway_daemon.gateway.memory import remember
from gateway_daemon.gateway.subscriptions import Kept, Subscriptions
from spatial_mqtt.connection import Connection
from spatial_mqtt.link import Handler, Incoming, Session
from spatial_mqtt.topics import (
    CLIENT_LOG,
    REGISTER,
    SUBSCRIBE_LOG,
    UNREGISTER,
    UNSUBSCRIBE_LOG,
)

log = logging.getLogger(__name__)

SESSION_EXPIRY_S = 7 * 86_400
LISTENS_TO = (SUBSCRIBE_LOG, UNSUBSCRIBE_LOG, CLIENT_LOG, REGISTER, UNREGISTER)

Connect = Callable[[Session, Handler], Connection]


class Watch:
    """Keeps the table of subscriptions.

    Args:
        gateway_id: Names the session.
        connect: Makes the connection to the gateway's own broker.
        path: File that keeps the table.
        on_change: Called with all filters after a change, in the network thread.
    """

    def __init__(
        self,
        gateway_id: str,
        connect: Connect,
        path: Path,
        on_change: Callable[[frozenset[str]], object],
    ) -> None:
        self._path = path
        self._on_change = on_change
        self._table = Subscriptions(_recalled(path))
        self._told: frozenset[str] | None = None
        session = Session(
            f"{gateway_id}-watch",
            filters=tuple((topic, 1) for topic in LISTENS_TO),
            expiry_s=SESSION_EXPIRY_S,
        )
        self._is_subscribed = False
        self._connection = connect(session, self)

    @property
    def is_up(self) -> bool:
        """Whether we hear of who subscribes: what was said before is not repeated."""
        return self._is_subscribed and self._connection.is_up

    def start(self) -> None:
        """Begin to connect, with what is remembered."""
        self._tell()
        self._connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""
        if not session_present:
            self._table.broker_restarted()
            self._tell()

    def on_down(self, reason: str) -> None:
        """See `Handler`."""
        self._is_subscribed = False

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        line = message.payload.decode(errors="replace")
        match message.topic:
            case t if t == SUBSCRIBE_LOG:
                self._table.subscribed(line)
            case t if t == UNSUBSCRIBE_LOG:
                self._table.unsubscribed(line)
            case t if t == CLIENT_LOG:
                self._table.client(line)
            case t if t == REGISTER:
                self._table.registered(line)
            case _:
                self._table.unregistered(line)
        self._tell()

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""

    def on_subscribed(self) -> None:
        """See `Handler`."""
        self._is_subscribed = True

    def _tell(self) -> None:
        filters = self._table.filters
        if filters == self._told:
            return
        self._told = filters
        remember(self._path, msgspec.json.encode(self._table.keep()))
        log.info("clients listen to %s", ", ".join(sorted(filters)) or "nothing")
        self._on_change(filters)


def _recalled(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        log.warning("remembered subscriptions are not used: %s", error)
        return None

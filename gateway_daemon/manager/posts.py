"""A broker where a Manager listens and speaks: its own, or another Manager's."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway_daemon.manager.records import View
from spatial_mqtt.connection import Connection
from spatial_mqtt.link import Handler, Incoming, Publication, Session

log = logging.getLogger(__name__)

DIRECTORY_QOS = 2

Connect = Callable[[Session, Handler], Connection]


@dataclass(frozen=True)
class Ways:
    """Make connections.

    Attributes:
        own: To the Manager's own broker.
        peers: To the other Managers' brokers.
    """

    own: Connect
    peers: Sequence[Connect] = ()


@dataclass(frozen=True)
class Up:
    """A broker can be spoken to; what it retains is on its way."""

    post: "Post"


@dataclass(frozen=True)
class Down:
    """A broker is gone."""

    post: "Post"


@dataclass(frozen=True)
class Heard:
    """Something was said at a broker."""

    post: "Post"
    message: Incoming


Event = Up | Down | Heard


class Post:
    """One connection of a Manager.

    Args:
        connect: Makes it.
        session: What is asked of the broker.
        tell: Takes events; called in the network thread, must not block.

    Attributes:
        is_up: Whether the broker can be spoken to, as far as events were served.
        is_heard: Whether the broker has confirmed what we want to hear.
        view: What the broker's own Manager said last; None before, and for our own.
        seen: What it saw last, before it went away.
    """

    def __init__(
        self, connect: Connect, session: Session, tell: Callable[[Event], object]
    ) -> None:
        self.is_up = self.is_heard = False
        self.view: View | None = None
        self.seen: View | None = None
        self._tell = tell
        self._connection = connect(session, self)

    def __str__(self) -> str:
        """Where the broker is."""
        return str(self._connection.endpoint)

    @property
    def is_orphan(self) -> bool:
        """Whether the broker lives and its Manager does not."""
        return self.is_up and self.view is not None and self.view.is_away

    def see(self, view: View) -> None:
        """The broker's own Manager spoke."""
        self.view = view
        if not view.is_away:
            self.seen = view

    def start(self) -> None:
        """Begin to connect."""
        self._connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._connection.stop()

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> None:
        """Say something there; nothing is kept while the broker is gone."""
        self._connection.publish(Publication(topic, payload, DIRECTORY_QOS, retain))

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""
        self._tell(Up(self))

    def on_down(self, reason: str) -> None:
        """See `Handler`."""
        self.is_heard = False
        log.warning("the manager's broker %s is gone: %s", self, reason)
        self._tell(Down(self))

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        self._tell(Heard(self, message))

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""

    def on_subscribed(self) -> None:
        """See `Handler`."""
        self.is_heard = True
        log.info("the manager is up on %s", self)

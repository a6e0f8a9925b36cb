"""A link to a broker with a stopwatch beside it; the link itself is as ever."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import Receipt
from spatial_mqtt.errors import ReceiptError
from spatial_mqtt.link import Handed, Handler, Incoming, Publication


@dataclass
class Notes:
    """What happened on a link, in monotonic seconds.

    Attributes:
        began_s: When it was asked for.
        up_s: When the broker accepted it.
        subscribed_s: When the broker had taken the subscriptions.
        handed: Size in bytes of each publication, by its token.
        answered: When the broker answered it, and why not, by its token.
        receipts: When the next store said what it has.
        reason: Why the last attempt ended.
    """

    began_s: float
    up_s: float | None = None
    subscribed_s: float | None = None
    handed: dict[int, int] = field(default_factory=dict)
    answered: dict[int, tuple[float, str | None]] = field(default_factory=dict)
    receipts: list[tuple[float, Receipt]] = field(default_factory=list)
    reason: str = ""


@dataclass
class NotedConnection(Connection):
    """A connection that notes what it hands over."""

    notes: Notes = field(default_factory=lambda: Notes(0.0))

    def publish_together(self, publications: Sequence[Publication]) -> list[Handed]:
        """See `Connection`."""
        handed = super().publish_together(publications)
        self.notes.handed.update((each.token, each.size_bytes) for each in handed)
        return handed


@dataclass(frozen=True)
class Overhearing:
    """A handler that notes what it hears and passes it on.

    Attributes:
        inner: Who else hears it.
        notes: Where it is noted.
        clock: Monotonic seconds.
        receipts_on: Topic of our receipts.
    """

    inner: Handler
    notes: Notes
    clock: Callable[[], float]
    receipts_on: str

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""
        self.notes.up_s = self.clock()
        self.inner.on_up(session_present, receive_maximum)

    def on_subscribed(self) -> None:
        """See `Handler`."""
        self.notes.subscribed_s = self.clock()
        self.inner.on_subscribed()

    def on_down(self, reason: str) -> None:
        """See `Handler`."""
        self.notes.reason = reason
        self.inner.on_down(reason)

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        if message.topic == self.receipts_on:
            try:
                receipt = Receipt.decode(message.payload)
                self.notes.receipts.append((self.clock(), receipt))
            except ReceiptError as error:
                self.notes.reason = str(error)
        self.inner.on_message(message)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""
        self.notes.answered[token] = (self.clock(), refused)
        self.inner.on_published(token, refused)

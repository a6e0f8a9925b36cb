"""A handler of a connection that only hears."""

from collections.abc import Callable

from spatial_mqtt.link import Incoming


class Ear:
    """Handler that only hears.

    Args:
        hear: Called with each message.
        ready: Called when the broker has confirmed what is listened to.
    """

    def __init__(
        self,
        hear: Callable[[Incoming], object],
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        self._hear = hear
        self._ready = ready

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""

    def on_down(self, reason: str) -> None:
        """See `Handler`."""

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        self._hear(message)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""

    def on_subscribed(self) -> None:
        """See `Handler`."""
        self._ready()

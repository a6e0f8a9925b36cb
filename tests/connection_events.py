"""Handler of a connection that records its events, for tests."""

from dataclasses import dataclass, field

from spatial_mqtt.transport import IncomingMessage


@dataclass
class Recorder:
    """A handler that records its events."""

    ups: list[tuple[bool, int]] = field(default_factory=list)
    downs: list[str] = field(default_factory=list)
    messages: list[IncomingMessage] = field(default_factory=list)
    published: list[tuple[int, str | None]] = field(default_factory=list)
    subscribed: int = 0

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""
        self.ups.append((session_present, receive_maximum))

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""
        self.downs.append(reason)

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""
        self.messages.append(message)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""
        self.published.append((token, refused))

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""
        self.subscribed += 1

    def payloads(self) -> list[bytes]:
        """Payloads in order of arrival."""
        return [message.payload for message in self.messages]

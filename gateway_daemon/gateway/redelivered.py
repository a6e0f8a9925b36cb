"""Knows a nameless publication that was stored before it was acknowledged. No I/O.

A plain client's message gets its id here, so a second delivery of it would get another
one. But our broker tells: it delivers again, after a cut or our death, under the same
packet id and marked as a duplicate. What is stored and not acknowledged is therefore
remembered in the transaction that stores it, by packet id and checksum.

Source: MQTT 5.0 sections 3.3.1.1 and 4.4.
"""

from collections.abc import Iterable
from zlib import crc32

from spatial_mqtt.link import Incoming

UNACKNOWLEDGED = "front/unacknowledged"
"""Name of the value that a lane remembers."""


class Redelivered:
    """Publications that are stored and may come again."""

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}

    def recall(self, texts: Iterable[str]) -> None:
        """Remember what `text` said before our death."""
        for text in texts:
            for pair in text.split():
                mid, _, checksum = pair.partition(":")
                self._stored[int(mid)] = int(checksum)

    def forget(self) -> None:
        """The broker has forgotten our session: nothing comes again."""
        self._stored.clear()

    def is_stored(self, message: Incoming) -> bool:
        """Whether a publication that comes again is stored."""
        return message.is_again and self._stored.get(_mid(message)) == _sum(message)

    def text(self, messages: Iterable[Incoming]) -> str:
        """What to remember with some messages that are about to be stored."""
        marks = self._stored | {_mid(m): _sum(m) for m in messages}
        return " ".join(f"{mid}:{checksum}" for mid, checksum in marks.items())

    def store(self, messages: Iterable[Incoming]) -> None:
        """These are stored."""
        self._stored.update((_mid(m), _sum(m)) for m in messages)

    def acknowledge(self, messages: Iterable[Incoming]) -> None:
        """The broker was told so, and does not deliver them again."""
        for message in messages:
            self._stored.pop(_mid(message), None)


def _mid(message: Incoming) -> int:
    return message.delivery[1]


def _sum(message: Incoming) -> int:
    return crc32(message.payload, crc32(message.topic.encode(errors="replace")))

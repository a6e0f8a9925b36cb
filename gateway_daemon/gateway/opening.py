"""Opens what our own nodes pack: parcels and chunks become the messages in them.

What cannot be opened is no message; it is named in the log and let go, and its
sender, who gets no receipt, is asked for it no more than any silent one.
"""

import logging
from collections.abc import Iterable

from spatial_mqtt.errors import ParcelError
from spatial_mqtt.link import Incoming
from spatial_mqtt.parcel import Chunk, Joiner, decode_parcel
from spatial_mqtt.topics import CHUNK, PARCEL

log = logging.getLogger(__name__)

READS = (PARCEL, CHUNK)
"""Content types that a gateway offers to read."""


class Opener:
    """Remembers the pieces of large messages until they are whole."""

    def __init__(self) -> None:
        self._joiner = Joiner()

    def open(self, batch: Iterable[Incoming]) -> list[Incoming]:
        """The messages in some publications, in their order."""
        return [message for each in batch for message in self._opened(each)]

    def _opened(self, incoming: Incoming) -> list[Incoming]:
        try:
            if incoming.content == PARCEL:
                return [
                    incoming._replace(payload=i.payload, age_s=i.age_s, content=None)
                    for i in decode_parcel(incoming.payload)
                ]
            if incoming.content == CHUNK:
                chunk = Chunk.decode(incoming.payload)
                whole = self._joiner.add(incoming.topic, chunk)
                if whole is None:
                    return []
                return [incoming._replace(payload=whole, content=None)]
        except ParcelError as error:
            log.error("not opened on %s: %s", incoming.topic, error)  # noqa: TRY400
            return []
        return [incoming]

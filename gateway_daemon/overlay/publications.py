"""Publications on their way: each goes to several stretches, and ends when all have."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway_daemon.overlay.todo import Ended


@dataclass
class _Open:
    stretches: set[str]
    reached: int = 0
    is_whole: bool = True


class Publications:
    """What one gateway publishes."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def begin(self, message_id: str, stretches: Iterable[str]) -> None:
        """A message goes to these; one that is sent again begins anew."""
        self._open[message_id] = _Open(set(stretches))

    def end(
        self, message_id: str, stretch: str, reached: int, is_whole: bool
    ) -> Ended | None:
        """One stretch is done; what there is to tell when all are."""
        publication = self._open.get(message_id)
        if publication is None or stretch not in publication.stretches:
            return None
        publication.stretches.discard(stretch)
        publication.reached += reached
        publication.is_whole &= is_whole
        if publication.stretches:
            return None
        del self._open[message_id]
        return Ended(message_id, publication.reached, publication.is_whole)

"""A count that outlives the process, in the transaction of the reading it is in."""

import logging

from edge_agent.sensors.base import Hardware

_log = logging.getLogger(__name__)


class Tally:
    """Counts on from what the last stored reading told of.

    Attributes:
        count: So many by now.
        mark: Words of the pulses' own that were stored with the count.
    """

    def __init__(self, sensor: str, what: str, hardware: Hardware) -> None:
        self._key = f"sensor.{sensor}.{what}"
        self.count = self._restored(hardware)
        self.mark = hardware.recall(f"{self._key}.mark") or ""

    def state(self, mark: str) -> dict[str, str]:
        """What to store: the count, and the mark when there is one."""
        state = {self._key: str(self.count)}
        return state | {f"{self._key}.mark": mark} if mark else state

    def _restored(self, hardware: Hardware) -> int:
        stored = hardware.recall(self._key)
        if stored is None:
            return 0
        if not (stored.isascii() and stored.isdigit()):
            _log.warning(
                "%s must be a count, got %r; counting from 0", self._key, stored
            )
            return 0
        return int(stored)

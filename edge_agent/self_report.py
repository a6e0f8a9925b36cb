"""The node's word on itself, now and then, in a pack that goes out anyway.

A pack of its own would cost a commit, and a commit costs a card 74 KiB; so much
more text in a routine pack costs none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edge_agent.queue.base import Stats
from edge_agent.queue.words import waiting_words
from slope_science.levels import DANGER
from spatial_mqtt import self_report as names
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.envelope import Reading

URGENT: Final = DANGER

MOST_OF_WORDS: Final = 120
"""A pack has a price by the byte."""


@dataclass(frozen=True)
class Facts:
    """What is told.

    Attributes:
        stats: What the queue holds.
        oldest_s: Age of its oldest message; None when there is none.
        gateway: The gateway in use.
        battery_v: Voltage of the battery; None where there is none.
        update: How an update stands; None where there is none.
    """

    stats: Stats
    oldest_s: float | None
    gateway: Endpoint | None
    battery_v: float | None
    update: str | None = None

    def readings(self) -> list[Reading]:
        """The words of `spatial_mqtt.self_report`."""
        gateway = self.gateway
        where = names.NOTHING if gateway is None else str(gateway)
        dropped = sum(self.stats.dropped.values())
        told = [
            Reading(names.QUEUED, None, waiting_words(self.stats) or names.NOTHING),
            Reading(names.OLDEST, "s", float(round(self.oldest_s or 0.0))),
            Reading(names.GATEWAY, None, where),
            Reading(names.DROPPED, "count", float(dropped)),
        ]
        if self.battery_v is not None:
            told.append(Reading(names.BATTERY, "V", round(self.battery_v, 2)))
        if self.update is not None:
            told.append(Reading(names.UPDATE, None, self.update[:MOST_OF_WORDS]))
        return told


class SelfReport:
    """Says when it is time.

    Args:
        facts: What to tell.
        every_s: Time between two reports.
        mono_s: Monotonic time.
    """

    def __init__(
        self, facts: Callable[[], Facts], every_s: float, mono_s: Callable[[], float]
    ) -> None:
        self._facts = facts
        self._every_s = every_s
        self._mono_s = mono_s
        self._due_s = mono_s()

    def due(self, priority: int) -> list[Reading]:
        """What a pack of a priority should carry: mostly nothing.

        An urgent pack is kept short, unless there was none but urgent ones for so
        long that nobody would hear of the battery.
        """
        now_s = self._mono_s()
        patience_s = self._every_s if priority >= URGENT else 0.0
        if now_s < self._due_s + patience_s:
            return []
        self._due_s = now_s + self._every_s
        return self._facts().readings()

"""Drills: exercises of the alarm outputs, apart from the notices.

A drill switches an output only while nothing real does, with a rhythm of its own. It
changes neither level nor sampling, and is not stored: after a restart it goes on when
the broker sends its retained message again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from slope_science.findings import LOWEST
from spatial_mqtt.announcements import Drill, OpenNotice
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReceivedOrder:
    """A notice or drill as a node reports it.

    Attributes:
        level: Its level.
        at_s: Unix time of its creation.
        received_s: Unix time of its receipt, by the node's clock.
    """

    level: int
    at_s: float
    received_s: float

    def __str__(self) -> str:
        """As `senml.STATUS_NOTICE` has it."""
        return f"{self.level} {self.at_s:.3f} {self.received_s:.3f}"


class Drills:
    """The drills for a node, by the topic of their area.

    Args:
        wall_s: Unix time.
        verify: Checks the signature of a topic and payload and returns the JSON, or
            raises `NoticeError`; None where drills need no signature.

    Attributes:
        refused: Reason of the last refusal; None when none was refused.
    """

    def __init__(
        self, wall_s: Callable[[], float], verify: OpenNotice | None = None
    ) -> None:
        self._wall_s = wall_s
        self._verify = verify
        self._by_topic: dict[str, tuple[Drill, float]] = {}
        self.refused: str | None = None

    def on_message(self, incoming: IncomingMessage) -> None:
        """Apply a drill; an empty payload ends that of its topic."""
        topic = incoming.topic
        if not incoming.payload:
            if self._verify is None:
                self._by_topic.pop(topic, None)
            return
        try:
            verify = self._verify
            body = verify(topic, incoming.payload) if verify else incoming.payload
            drill = Drill.decode(body)
        except NoticeError as error:
            self.refused = f"on {topic}: {error}"
            log.warning("drill refused %s", self.refused)
            return
        known = self._by_topic.get(topic)
        if known is None or drill.at_s > known[0].at_s:
            self._by_topic[topic] = drill, self._wall_s()
            log.warning("DRILL on %s: %s", topic, drill)

    def current(self) -> ReceivedOrder | None:
        """The drill of the highest level in force; None without one."""
        now_s = self._wall_s()
        found = [
            ReceivedOrder(drill.level, drill.at_s, received_s)
            for drill, received_s in list(self._by_topic.values())
            if not drill.withdrawn and drill.at_s - MAX_AHEAD_S <= now_s < drill.until_s
        ]
        return max(found, key=lambda each: (each.level, each.at_s), default=None)

    def level(self) -> int:
        """Level of the drill in force; 1 without one."""
        drill = self.current()
        return LOWEST if drill is None else drill.level

    def summary(self) -> str | None:
        """The drill in force for a person; None without one."""
        drill = self.current()
        return None if drill is None else f"DRILL of level {drill.level}, not an alarm"


MAX_AHEAD_S = 900.0
"""A drill dated further ahead, by the node's clock, waits."""

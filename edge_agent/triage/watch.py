"""What watches one sensor for one rule."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from edge_agent.triage.claim import Claim
from edge_agent.triage.sample import Sample
from edge_agent.triage.stored import Json
from slope_science.criteria import Criteria


@dataclass(frozen=True)
class Scene:
    """What rules have to know beyond their own sensor.

    Attributes:
        now_s: Now, in triage's own time.
        criteria: Of the cell.
        r60_mm: Rain of the last 60 minutes, of the gauge that has most.
    """

    now_s: float
    criteria: Criteria
    r60_mm: float = 0.0


class Watch(Protocol):
    """A rule and its memory of one sensor."""

    @property
    def rule(self) -> str:
        """Name of the rule."""

    @property
    def sensor(self) -> str:
        """Name of the sensor."""

    def take(self, sample: Sample) -> None:
        """Remember what the sensor said."""

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """What the rule says now."""

    def notes(self) -> Iterable[str]:
        """Why the rule cannot be used as it should, if so."""

    def out(self) -> Json:
        """What must survive a restart, as JSON knows it; None for nothing."""

    def restore(self, entry: Json) -> None:
        """Go on from what `out` gave.

        Raises:
            LookupError, TypeError, ValueError: It is something else.
        """


class Lasting:
    """Since when each level has been reached without a break.

    Args:
        persist_s: How long before it counts.
    """

    TOLERANCE_S = 30.0
    """Samplings ten minutes apart come some seconds early or late."""

    def __init__(self, persist_s: float) -> None:
        self._persist_s = persist_s
        self._since_s: dict[int, float] = {}

    def take(self, level: int, levels: Iterable[int], now_s: float) -> int:
        """The highest level that has lasted; 1 for none.

        Args:
            level: The level that is reached now.
            levels: All the rule knows.
            now_s: Now.
        """
        reached = [each for each in levels if each <= level]
        self._since_s = {each: self._since_s.get(each, now_s) for each in reached}
        enough_s = self._persist_s - self.TOLERANCE_S
        lasted = [
            each
            for each, since_s in self._since_s.items()
            if now_s - since_s >= enough_s
        ]
        return max(lasted, default=1)

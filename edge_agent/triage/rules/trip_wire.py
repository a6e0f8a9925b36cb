"""A trip wire: a cut one means that a flow or a slide has occurred.

Animals and falling rock cut wires too (a deer, Hiroshima 2015), so the reason says
whether another sensor felt it within two minutes. A contact that flaps may be a
wire in moving debris: its level stays, and the reason says that it flaps.
"""

from collections import deque
from collections.abc import Iterable

from edge_agent.triage.detections import Claim, Scene, Sign
from edge_agent.triage.samples import Sample
from edge_agent.triage.settings import WireRules
from edge_agent.triage.snapshot import Json, time_of
from slope_science.findings import EMERGENCY
from slope_science.reasons import Reason, ReasonCode

_HOUR_S = 3600.0


class WireWatch:
    """One wire.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the wire.
    """

    rule = "wire"

    def __init__(self, sensor: str, rules: WireRules) -> None:
        self.sensor = sensor
        self._rules = rules
        self._cut_s: float | None = None
        self._cuts: deque[float] = deque(maxlen=60)

    def take(self, sample: Sample) -> None:
        """Remember since when it is cut."""
        if sample.is_suspect or not isinstance(sample.value, bool):
            return
        if not sample.value:
            self._cut_s = None
        elif self._cut_s is None:
            self._cut_s = sample.at_s
            self._cuts.append(sample.at_s)

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """That it is cut."""
        if self._cut_s is None:
            return
        cuts = sum(scene.now_s - at_s <= _HOUR_S for at_s in self._cuts)
        flaps = cuts if cuts > self._rules.flaps_per_h else None
        yield Claim(
            self.rule,
            self.sensor,
            EMERGENCY,
            Reason(ReasonCode.WIRE_CUT, sensor=self.sensor, cuts_per_h=flaps),
            alone_level=self._rules.alone_level,
            at_s=self._cut_s,
            signs=(Sign.MOVEMENT,),
            confirm_s=self._rules.confirm_s,
        )

    def notes(self) -> Iterable[Reason]:
        """Nothing: the driver tells of plugs and shorts."""
        return ()

    def out(self) -> Json:
        """For the snapshot."""
        return self._cut_s

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot."""
        self._cut_s = time_of(entry)

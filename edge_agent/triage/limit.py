"""A limit of the place's own, on one sensor."""

from collections.abc import Iterable

from edge_agent.triage.claim import Claim, Sign
from edge_agent.triage.limit_settings import LimitSettings
from edge_agent.triage.sample import Sample
from edge_agent.triage.stored import Json, time_of
from edge_agent.triage.watch import Scene


class LimitWatch:
    """One limit on one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    def __init__(self, sensor: str, limit: LimitSettings, number: int) -> None:
        self.sensor = sensor
        self.rule = f"limit {number}"
        self._limit = limit
        self._part = (limit.sensor or "").partition("/")[2]
        self._value: float | None = None
        self._since_s: float | None = None
        self._is_doubtful = False

    def take(self, sample: Sample) -> None:
        """Remember since when the value is beyond."""
        value = sample.parts.get(self._part) if self._part else sample.raw
        if value is None:
            return
        was = self._since_s is not None
        if not self._limit.counts_at(value, was=was):
            self._since_s = None
        elif not was or (self._is_doubtful and not sample.is_suspect):
            # what was only doubtful so far begins to count with a good reading
            self._since_s = sample.at_s
        self._value, self._is_doubtful = value, sample.is_suspect

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """That it has been beyond for long enough."""
        limit, since_s = self._limit, self._since_s
        if since_s is None or self._value is None:
            return
        lasted_s = scene.now_s - since_s
        if lasted_s < limit.for_s:
            return
        how = ">=" if limit.above is not None else "<="
        yield Claim(
            self.rule,
            self.sensor,
            limit.level,
            f"{limit.sensor or self.sensor} {self._value:g} {how} {limit.threshold:g}"
            f" for {lasted_s:.0f} s",
            alone_level=1 if self._is_doubtful else limit.alone_level,
            signs=() if self._is_doubtful else (Sign.MOVEMENT, Sign.WATER),
            confirm_s=limit.confirm_s,
        )

    def notes(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def out(self) -> Json:
        """For the snapshot."""
        return self._since_s

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot."""
        self._since_s = time_of(entry)

"""Readings in, a priority with its reasons out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from edge_agent.triage.claim import Claim, Signs
from edge_agent.triage.families import RULE_OF, watches
from edge_agent.triage.hold import Hold
from edge_agent.triage.in_force import InForce
from edge_agent.triage.rain import RainWatch
from edge_agent.triage.sample import Named, samples
from edge_agent.triage.settings import TriageSection
from edge_agent.triage.snapshot import Remembered, dumped, loaded
from edge_agent.triage.stored import SnapshotError
from edge_agent.triage.timeline import Instant, Timeline
from edge_agent.triage.watch import Scene
from edge_agent.triage.why import WHY_CHARS, joined
from slope_science.criteria import DEFAULT_CRITERIA, Criteria
from slope_science.levels import LOWEST, Finding, judge
from slope_science.soil_water import SoilWater
from spatial_mqtt.envelope import Reading
from spatial_mqtt.settings import read

__all__ = ["WHY_CHARS", "Assessment", "Triage"]

DEFAULTS = read(TriageSection, {})


@dataclass(frozen=True)
class Assessment:
    """What the node makes of its readings.

    Attributes:
        priority: For the message that carries them.
        why: The rules behind it with their numbers, most serious first; None at
            level 1.
        level: 1 to 5, as in `slope_science.levels`.
    """

    priority: int
    why: str | None
    level: int


class Triage:
    """Judges readings, remembering what the rules need.

    Attributes:
        in_force: What the soil water index is judged against.

    Args:
        sensors: The node's.
        section: Its rules.
        criteria: Those of the settings.
        soil: Water in the ground under a gauge that was never read.
    """

    def __init__(
        self,
        sensors: Sequence[Named],
        section: TriageSection = DEFAULTS,
        criteria: Criteria = DEFAULT_CRITERIA,
        soil: SoilWater | None = None,
    ) -> None:
        self._configured = criteria
        self.in_force = InForce(criteria)
        self._sensors = {sensor.name: sensor for sensor in sensors}
        self._section = section
        self._soil = soil or SoilWater()
        self._watches = watches(sensors, section, self._soil)
        self._timeline = Timeline()
        self._hold = Hold(self._hold_s)
        self._signs = Signs(section.confirm_s)

    def assess(self, readings: Sequence[Reading], at: Instant | float) -> Assessment:
        """Judge the slope with some new readings, of any sensors.

        Args:
            readings: Those of sensors that triage was not told of change nothing.
            at: When they were taken; a number is Unix time alone. Rain that is
                read late still counts.
        """
        instant = at if isinstance(at, Instant) else Instant(at)
        at_s = self._timeline.take(instant)
        told = samples(readings, self._sensors, at_s)
        for watch in self._watches:
            if watch.sensor in told:
                watch.take(told[watch.sensor])
        fired = self._fired()
        held = self._hold.take(fired, self._timeline.now_s)
        verdict = judge([finding for _, finding in fired] + list(held))
        why = joined(verdict.reasons) if verdict.level > LOWEST else None
        return Assessment(verdict.level, why, verdict.level)

    def notes(self) -> dict[str, str]:
        """Which rules cannot be used as they should, and why, by sensor."""
        told: dict[str, str] = {}
        for watch in self._watches:
            for note in watch.notes():
                before = f"{told[watch.sensor]}; " if watch.sensor in told else ""
                told[watch.sensor] = f"{before}rule {watch.rule} {note}"
        return told

    def soil_water_mm(self) -> dict[str, float]:
        """Soil water index by the name of the gauge."""
        return {gauge.sensor: gauge.index_mm for gauge in self._gauges}

    def snapshot(self) -> str:
        """What must survive a restart, as JSON.

        An hour of tilt is not in it: it would wear the card, and comes back.
        """
        past = {(watch.rule, watch.sensor): watch.out() for watch in self._watches}
        time, held = self._timeline.out(), self._hold.out()
        criteria, confirmed = self.in_force.out(), self._signs.out()
        return dumped(Remembered(time, held, past, criteria, confirmed))

    def restore(self, snapshot: str) -> None:
        """Go on from a snapshot; on an error nothing has changed.

        Raises:
            SnapshotError: It is damaged, or of another version.
        """
        fresh = watches(list(self._sensors.values()), self._section, self._soil)
        hold, timeline = Hold(self._hold_s), Timeline()
        in_force, signs = InForce(self._configured), Signs(self._section.confirm_s)
        try:
            remembered = loaded(snapshot)
            for watch in fresh:
                entry = remembered.past.get((watch.rule, watch.sensor))
                if entry is not None:
                    watch.restore(entry)
            hold.restore(remembered.held)
            timeline.restore(remembered.time)
            in_force.restore(remembered.criteria)
            signs.restore(remembered.confirmed)
        except (
            LookupError, TypeError, AttributeError, ValueError, RecursionError
        ) as error:  # fmt: skip
            raise SnapshotError(f"{type(error).__name__} {error}") from error
        self._watches, self._hold, self._timeline = fresh, hold, timeline
        self.in_force, self._signs = in_force, signs

    @property
    def _gauges(self) -> list[RainWatch]:
        return [watch for watch in self._watches if isinstance(watch, RainWatch)]

    def _fired(self) -> list[tuple[str, Finding]]:
        now_s = self._timeline.now_s
        r60_mm = max((gauge.r60_mm for gauge in self._gauges), default=0.0)
        scene = Scene(now_s, self.in_force.criteria, r60_mm)
        claims: list[Claim] = list(
            chain.from_iterable(watch.claims(scene) for watch in self._watches)
        )
        self._signs.see(claims, now_s)
        told = [(claim.rule, self._signs.finding(claim, now_s)) for claim in claims]
        return [(rule, finding) for rule, finding in told if finding]

    def _hold_s(self, rule: str) -> float:
        if rule.startswith("limit "):
            return self._section.limit[int(rule.removeprefix("limit ")) - 1].hold_s
        if rule not in RULE_OF.values():
            raise ValueError(f"a rule must be one of [triage.rules], got {rule!r}")
        hold_s: float = getattr(self._section.rules, rule).hold_s
        return hold_s

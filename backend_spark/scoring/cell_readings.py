"""Readings of one cell, grouped by rain and sensors."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backend_spark.scoring.cell_state import (
    MIN_STATE_AGE_S,
    ScoringState,
)
from backend_spark.scoring.evidence import NO_STATE, CellEvidence
from backend_spark.scoring.movement import MovementSensors, group_extensometers
from backend_spark.scoring.observation import (
    RAIN,
    RAIN_UNIT,
    STEP_S,
    Observation,
    step_end_s,
    step_ends,
)
from backend_spark.scoring.quality import FLAG_REACH_S
from backend_spark.scoring.rain import (
    MAX_CATCH_UP_S,
    Gauge,
    StepRain,
    cell_rain,
    gap_begins,
    last_hour,
    rain_reading,
    read_gauge,
)
from slope_science.evidence.settings import DEFAULT_EVIDENCE, EvidenceSettings
from slope_science.quality import NEIGHBOUR_S

DAY_S: Final = 86_400 + STEP_S


@dataclass(frozen=True)
class CellReadings:
    """Readings of one cell by kind.

    Attributes:
        ends_s: Ends of all steps from the first to the last reading.
        rain: Rain of each step.
        gauges: The gauges behind it.
        sensors: Sensors of movement.
        by_step: All readings of the steps to score, by step.
    """

    ends_s: Sequence[int]
    rain: Sequence[StepRain]
    sensors: MovementSensors
    by_step: Mapping[int, Sequence[Observation]]
    gauges: Sequence[Gauge] = ()

    def is_settled(self, at_s: float) -> bool:
        """Whether no catch-up can still change the rain before a moment.

        A gauge that was silent for longer than `MAX_CATCH_UP_S` may return, too: then
        its catch-up is spread over that time.
        """
        is_old = self.ends_s[-1] - at_s > MAX_CATCH_UP_S + MIN_STATE_AGE_S
        return is_old or not any(
            gauge.may_change(at_s, FLAG_REACH_S) for gauge in self.gauges
        )

    @classmethod
    def from_observations(
        cls,
        observations: Sequence[Observation],
        from_s: float = float("-inf"),
        past: ScoringState | None = None,
        settings: EvidenceSettings = DEFAULT_EVIDENCE,
        due: Collection[int] = (),
    ) -> "CellReadings":
        """Group readings.

        Args:
            observations: At least one reading, in any order; all of the cell, or those
                read in addition to a saved state.
            from_s: Start of the steps to score.
            past: Saved state; steps up to its end are left out.
            settings: Rules of movement and water.
            due: Ends of the steps at which the state of the rules is needed.
        """
        ends_s = list_steps(observations, past)
        spoken: dict[int, list[Observation]] = {}
        # The readings of a message have one time.
        by_time: dict[float, list[Observation]] = {}
        since_s = from_s - DAY_S
        for o in observations:
            at_s = o.at_s
            if at_s in by_time:
                by_time[at_s].append(o)
            elif at_s > since_s:
                in_step = spoken.setdefault(step_end_s(at_s), [])
                by_time[at_s] = in_step
                in_step.append(o)
        past_s = past.at_s if past else float("-inf")
        gauges = _reports_since(observations, past_s).values()
        found = [read_gauge(map(rain_reading, reports)) for reports in gauges]
        rain = cell_rain(found, ends_s)
        hours = list(zip(ends_s, _hourly_mm(rain, past), strict=True))
        signs = _signs(observations, hours, past, settings, due)
        return cls(ends_s, rain, signs, spoken, found)


def _reports_since(
    observations: Iterable[Observation], past_s: float
) -> dict[str, list[Observation]]:
    """Reports of each gauge after a moment, and the last one before.

    The rain of the others is in steps up to the moment.
    """
    last: dict[str, Observation] = {}
    later: dict[str, list[Observation]] = {}
    for o in observations:
        if not o.is_rain:
            continue
        if o.at_s > past_s:
            later.setdefault(o.node, []).append(o)
        elif o.node not in last or last[o.node].at_s <= o.at_s:
            last[o.node] = o
    return {
        node: [*([last[node]] if node in last else ()), *later.get(node, ())]
        for node in sorted({*last, *later})
    }


def list_steps(
    observations: Iterable[Observation], past: ScoringState | None
) -> Sequence[int]:
    """Ends of the steps from a saved state or the first reading to the last one."""
    times_s = [o.at_s for o in observations]
    first_s = past.at_s + STEP_S if past else step_end_s(min(times_s))
    return step_ends(first_s, step_end_s(max(times_s)))


def _hourly_mm(rain: Sequence[StepRain], past: ScoringState | None) -> Iterator[float]:
    """Rain of the hour up to each step."""
    before = past.rain.hour if past else ()
    steps = [*before, *rain]
    for at in range(len(before), len(steps)):
        yield sum(step.depth_mm for step in last_hour(steps, at))


def _signs(
    observations: Sequence[Observation],
    steps: Sequence[tuple[int, float]],
    past: ScoringState | None,
    settings: EvidenceSettings,
    due: Collection[int],
) -> MovementSensors:
    moved = [
        (f"{o.node} {o.name}", o.at_s, o.value)
        for o in observations
        if o.unit == RAIN_UNIT and o.name != RAIN and "/" not in o.name
        if o.counts and o.value is not None
    ]
    past_s = past.at_s if past else float("-inf")
    known = past.evidence if past else NO_STATE
    evidence = CellEvidence(
        observations, steps, settings, past=known, past_s=past_s, due=due
    )
    return MovementSensors(evidence, group_extensometers(moved))


def first_touched_s(
    changed: Iterable[Observation], touched_s: float | None
) -> float | None:
    """Unix time of the earliest new reading, or of rain that a catch-up confirms.

    Args:
        changed: Readings with a new flag.
        touched_s: Unix time of the earliest new reading; None for all.
    """
    if touched_s is None:
        return None
    far_s = touched_s - NEIGHBOUR_S  # later ones are in `FLAG_REACH_S`
    return min([touched_s, *(o.at_s for o in changed if o.at_s < far_s)])


def first_changed_s(
    observations: Iterable[Observation], touched_s: float | None
) -> float:
    """Unix time from which new readings can change rows.

    Includes the steps since the last older reading, which have no rows yet, and the
    step before, whose state may be that at its last report until the next one.
    """
    if touched_s is None:
        return float("-inf")
    earlier = [o.at_s for o in observations if o.at_s < touched_s]
    from_s = min(max(earlier, default=touched_s), touched_s - FLAG_REACH_S)
    begins_s = gap_begins(observations, touched_s - NEIGHBOUR_S)
    return min([from_s, *begins_s]) - STEP_S

"""Readings of one cell, grouped by rain and sensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backend_spark.scoring.cell_state import ScoringState
from backend_spark.scoring.movement import (
    MovementSensors,
    group_extensometers,
    group_tilt,
    group_wires,
)
from backend_spark.scoring.observation import (
    COUNT_UNIT,
    RAIN_UNIT,
    STEP_S,
    TEMPERATURE_UNIT,
    TILT_UNIT,
    WATER_LEVEL_UNIT,
    Observation,
    step_end_s,
    step_ends,
)
from backend_spark.scoring.rain import (
    MAX_CATCH_UP_S,
    Gauge,
    RainReading,
    StepRain,
    cell_rain,
    rain_reading,
    read_gauge,
)
from backend_spark.scoring.shocks_and_water import group_shocks, group_water_levels

DAY_S: Final = 86_400 + STEP_S
BOOLEAN_TEXTS: Final = {"true": True, "false": False}
TILT_PARTS: Final = {"x": TILT_UNIT, "y": TILT_UNIT, "temp": TEMPERATURE_UNIT}


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
        """Whether no catch-up can still change the rain before a moment."""
        is_old = self.ends_s[-1] - at_s > MAX_CATCH_UP_S + STEP_S
        return is_old or not any(
            gauge.may_change(at_s)
            for gauge in self.gauges
            if gauge.last_s and self.ends_s[-1] - gauge.last_s <= MAX_CATCH_UP_S
        )

    @classmethod
    def from_observations(
        cls,
        observations: Sequence[Observation],
        from_s: float = float("-inf"),
        past: ScoringState | None = None,
    ) -> "CellReadings":
        """Group readings.

        Args:
            observations: At least one reading, in any order; all of the cell, or those
                read in addition to a saved state.
            from_s: Start of the steps to score.
            past: Saved state; steps up to its end are left out.
        """
        times_s = [o.at_s for o in observations]
        first_s = past.at_s + STEP_S if past else step_end_s(min(times_s))
        ends_s = step_ends(first_s, step_end_s(max(times_s)))
        gauges: dict[str, list[RainReading]] = {}
        spoken: dict[int, list[Observation]] = {}
        for o in observations:
            if o.at_s > from_s - DAY_S:
                spoken.setdefault(step_end_s(o.at_s), []).append(o)
            if o.is_rain:
                gauges.setdefault(o.node, []).append(rain_reading(o))
        found = [read_gauge(reports) for reports in gauges.values()]
        signs = _signs(observations, past)
        return cls(ends_s, cell_rain(found, ends_s), signs, spoken, found)


def _signs(
    observations: Sequence[Observation], past: ScoringState | None
) -> MovementSensors:
    axes, moved, truths, counts, metres = [], [], [], [], []
    for o in observations:
        sensor, _, part = o.name.rpartition("/")
        if o.is_rain or not o.counts or o.value is None:
            continue
        if sensor and o.unit and o.unit == TILT_PARTS.get(part):
            axes.append((f"{o.node} {sensor}", part, o.at_s, o.value))
        elif o.unit == RAIN_UNIT and not sensor:
            moved.append((f"{o.node} {o.name}", o.at_s, o.value))
        elif o.text in BOOLEAN_TEXTS:
            truths.append((f"{o.node} {o.name}", o.at_s, BOOLEAN_TEXTS[o.text]))
        elif o.unit == COUNT_UNIT and not sensor:
            counts.append((f"{o.node} {o.name}", o.at_s, o.value))
        elif o.unit == WATER_LEVEL_UNIT and not sensor:
            metres.append((f"{o.node} {o.name}", o.at_s, o.value))
    learnt, learnt_s = (past.thermals, past.at_s) if past else ({}, 0.0)
    return MovementSensors(
        group_tilt(axes, learnt, learnt_s),
        group_extensometers(moved),
        group_wires(truths),
        group_shocks(counts),
        group_water_levels(metres),
    )

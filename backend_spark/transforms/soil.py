"""Rain run through the soil of a cell: a gap is never zero rain."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from backend_spark.transforms.rain import StepRain
from backend_spark.transforms.steps import STEP_S
from slope_science.outlook import STEPS_PER_HOUR
from slope_science.soil_water import TEN_MINUTES_H, SoilWater


@dataclass(frozen=True)
class RainState:
    """Rain and soil water at the end of a step.

    Attributes:
        r60_mm: Rain of the last hour; None when no step of it is known.
        tanks: Water in the soil; None before the first rain data.
        is_known: Whether the step's rain is known.
        is_lower_bound: Whether rain was missed since the start.
        gap_s: How long no rain data came.
        history_s: Time since the first rain data.
    """

    r60_mm: float | None = None
    tanks: SoilWater | None = None
    is_known: bool = False
    is_lower_bound: bool = False
    gap_s: int = 0
    history_s: int = 0


def rain_states(series: Iterable[StepRain]) -> Iterator[RainState]:
    """Run rain through the soil, one state for each step."""
    recent: list[StepRain] = []
    state = RainState()
    for rain in series:
        recent = [*recent[1 - STEPS_PER_HOUR :], rain]
        if state.tanks is None and not rain.is_known:
            yield state  # nothing to say before the first rain data
            continue
        tanks = state.tanks or SoilWater()
        any_known = any(step.is_known for step in recent)
        state = RainState(
            r60_mm=sum(step.depth_mm for step in recent) if any_known else None,
            tanks=tanks.after(rain.depth_mm, TEN_MINUTES_H),
            is_known=rain.is_known,
            is_lower_bound=state.is_lower_bound or not rain.is_known,
            gap_s=0 if rain.is_known else state.gap_s + STEP_S,
            history_s=state.history_s + STEP_S,
        )
        yield state


def sure_states(series: Sequence[StepRain]) -> Iterator[RainState | None]:
    """States without rain that only doubtful readings tell; None where all is sure."""
    if not any(step.doubted_mm for step in series):
        return iter([None] * len(series))
    sure = (
        StepRain(max(0.0, step.depth_mm - step.doubted_mm), step.is_known)
        for step in series
    )
    return rain_states(sure)

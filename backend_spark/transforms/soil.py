"""Rain run through the soil of a cell: a gap is never zero rain."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from backend_spark.transforms.rain import StepRain
from backend_spark.transforms.steps import STEP_S
from slope_science.outlook import STEPS_PER_HOUR
from slope_science.soil_water import TEN_MINUTES_H, SoilWater

FORGOTTEN_S: Final = 60 * 86_400
"""The tanks forget: so long after a gap the index is no lower bound any more."""


@dataclass(frozen=True)
class RainState:
    """Rain and soil water at the end of a step.

    Attributes:
        r60_mm: Rain of the last hour; None when no step of it is known.
        tanks: Water in the soil; None before the first rain data.
        is_known: Whether the step's rain is known.
        is_lower_bound: Whether rain was missed that the soil may still hold.
        gap_s: How long no rain data came.
        history_s: Time since the first rain data.
        missed_s: Time since rain was missed; None when it never was.
    """

    r60_mm: float | None = None
    tanks: SoilWater | None = None
    is_known: bool = False
    is_lower_bound: bool = False
    gap_s: int = 0
    history_s: int = 0
    missed_s: int | None = None


@dataclass(frozen=True)
class RainPast:
    """What of the rain up to a moment counts after it.

    Attributes:
        state: At the last step.
        sure: The same without doubtful rain; None when there never was any.
        short_mm: Effective rain with a half-life of 1.5 h.
        long_mm: With 72 h.
        depths_mm: Rain of each step of the last seven days, as far as there are data.
        known: Whether each of them is known.
        hour: Steps of the last hour.
    """

    state: RainState = RainState()
    sure: RainState | None = None
    short_mm: float = 0.0
    long_mm: float = 0.0
    depths_mm: tuple[float, ...] = ()
    known: tuple[bool, ...] = ()
    hour: tuple[StepRain, ...] = ()


NO_PAST: Final = RainPast()


def rain_states(
    series: Iterable[StepRain],
    state: RainState = RainState(),
    before: Sequence[StepRain] = (),
) -> Iterator[RainState]:
    """Run rain through the soil, one state for each step.

    Args:
        series: Rain of the steps.
        state: Before the first of them.
        before: Steps that led to it, the last hour of them at least.
    """
    recent = list(before)
    for rain in series:
        recent = [*recent[1 - STEPS_PER_HOUR :], rain]
        if state.tanks is None and not rain.is_known:
            yield state  # nothing to say before the first rain data
            continue
        tanks = state.tanks or SoilWater()
        any_known = any(step.is_known for step in recent)
        missed_s = _missed_s(state, rain)
        state = RainState(
            r60_mm=sum(step.depth_mm for step in recent) if any_known else None,
            tanks=tanks.after(rain.depth_mm, TEN_MINUTES_H),
            is_known=rain.is_known,
            is_lower_bound=missed_s is not None and missed_s < FORGOTTEN_S,
            gap_s=0 if rain.is_known else state.gap_s + STEP_S,
            history_s=state.history_s + STEP_S,
            missed_s=missed_s,
        )
        yield state


def sure_states(
    series: Sequence[StepRain], past: RainPast = NO_PAST
) -> Iterator[RainState | None]:
    """States without rain that only doubtful readings tell; None where all is sure."""
    if past.sure is None and not any(step.doubted_mm for step in series):
        return iter([None] * len(series))
    before = map(_sure, past.hour)
    start = past.sure or past.state
    return rain_states(map(_sure, series), start, list(before))


def _sure(step: StepRain) -> StepRain:
    return StepRain(max(0.0, step.depth_mm - step.doubted_mm), step.is_known)


def _missed_s(state: RainState, rain: StepRain) -> int | None:
    if not rain.is_known:
        return 0
    return None if state.missed_s is None else state.missed_s + STEP_S

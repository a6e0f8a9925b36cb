"""Sums and memories of rain.

Source: effective rainfall (実効雨量), half-lives 1.5 h and 72 h as used by NIED and
Hiroshima prefecture; antecedent rainfall index of NASA LHASA version 1.
"""

from collections.abc import Sequence

from slope_science.errors import ScienceError

SHORT_HALF_LIFE_H = 1.5
LONG_HALF_LIFE_H = 72.0
ANTECEDENT_DAYS = 7


def rain_60min(rain_mm: Sequence[float], step_h: float) -> list[float]:
    """Rain of the last 60 minutes at the end of each step, in mm.

    Args:
        rain_mm: Depth of rain in each step.
        step_h: Length of a step in hours; a whole number of steps makes an hour.

    Raises:
        ScienceError: An hour is not a whole number of steps.
    """
    steps = round(1.0 / step_h) if step_h > 0 else 0
    if steps < 1 or abs(steps * step_h - 1.0) > 1e-9:  # noqa: PLR2004 - rounding
        raise ScienceError("step_h", "a whole fraction of an hour", step_h)
    return [
        sum(rain_mm[max(0, end - steps) : end]) for end in range(1, len(rain_mm) + 1)
    ]


def effective_rain(
    rain_mm: Sequence[float],
    step_h: float,
    half_life_h: float,
    remembered_mm: float = 0.0,
) -> list[float]:
    """Rain that fades with a half-life, at the end of each step, in mm.

    Args:
        rain_mm: Depth of rain in each step.
        step_h: Length of a step in hours.
        half_life_h: After so long half of it counts.
        remembered_mm: What is remembered before the first step.
    """
    fade = 0.5 ** (step_h / half_life_h)
    remembered = remembered_mm
    series = []
    for depth_mm in rain_mm:
        remembered = depth_mm + fade * remembered
        series.append(remembered)
    return series


def antecedent_index(days_mm: Sequence[float]) -> float:
    """Mean of the rain of seven days, recent days weighing more, in mm a day.

    Args:
        days_mm: Rain of each of the last seven days, the last 24 hours first.

    Raises:
        ScienceError: They are not seven.

    Source:
        ARI = sum p_t w_t / sum w_t, w_t = (t + 1)^-2, t = 0 to 6.
    """
    if len(days_mm) != ANTECEDENT_DAYS:
        raise ScienceError("days_mm", f"{ANTECEDENT_DAYS} days", len(days_mm))
    weights = [(t + 1) ** -2 for t in range(ANTECEDENT_DAYS)]
    weighed = sum(p * w for p, w in zip(days_mm, weights, strict=True))
    return weighed / sum(weights)

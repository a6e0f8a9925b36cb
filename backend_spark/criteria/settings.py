"""Settings of the criteria."""

from dataclasses import dataclass

from service_runtime.settings import KeyRule, key
from slope_science.criteria import LOOK_AHEAD_H


@dataclass(frozen=True)
class RainCriteriaSection:
    """``[criteria]``: criteria for the soil water index."""

    warning_mm: float = key(
        KeyRule(
            "Warning criterion (level 3) for cells that no file covers.", "mm", 20, 1000
        ),
        150.0,
    )
    file: str | None = key(
        KeyRule(
            "Table of criteria by mesh as the prefecture or JMA publishes it (CSV), or "
            "a folder of such tables, which complete each other; absent uses planning "
            "defaults, which every reason marks as assumed. `backend-spark criteria` "
            "checks it."
        ),
        None,
    )
    changes: str | None = key(
        KeyRule(
            "CSV that the console writes when a chief changes thresholds, "
            "DATA/console/criteria.csv: its advisory, warning and special criteria and "
            "rates of tilt override those of the file and of [evidence]; the file's "
            "critical line counts by the percentage. Read again when it changes; need "
            "not exist yet."
        ),
        None,
    )
    telegrams: str | None = key(
        KeyRule(
            "Folder of JMA's warning telegrams (VPWW56 and others, *.xml); their level "
            "for the cell's municipality is stored beside the computed one. Needs "
            "municipality in the file."
        ),
        None,
    )
    look_ahead: bool = key(
        KeyRule(
            "Whether a level from 2 to 4 also applies when an official rain forecast "
            "reaches it within the look-ahead; the reason names the forecast."
        ),
        True,
    )
    look_ahead_same_rain: bool = key(
        KeyRule(
            "Whether, without a usable official forecast, the rain of the last hour "
            "continued counts as one. That is a forecast of ours, and forecasts for "
            "the public need a permit; the tables contain it in any case."
        ),
        False,
    )
    look_ahead_h: int = key(
        KeyRule(
            "Look-ahead of meshes whose table has no column LOOK_AHEAD_H: 2, or 3 in "
            "some prefectures.",
            "h",
            LOOK_AHEAD_H[0],
            LOOK_AHEAD_H[-1],
        ),
        LOOK_AHEAD_H[0],
    )

    rain_alone_level: int = key(
        KeyRule(
            "Highest level of rain of doubtful quality (above the limits, or "
            "contradicted by the gauges around) while no second gauge, stream or soil "
            "confirms it.",
            low=1,
            high=5,
        ),
        3,
    )

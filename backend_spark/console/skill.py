"""Skill of a season: levels in gold compared with the landslides that happened.

The level of the municipality is the highest of its cells. Days are counted in a
contingency table per level; hours in the duration matrix (EDuMaP), because a table of
days hides how long a level lasted. Steps without any level are counted as missing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, time
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.console.level_grid import MISSING
from backend_spark.scoring.observation import JST, STEP_S
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.store import Folder
from slope_science.findings import ADVISORY, EMERGENCY
from slope_science.skill import (
    EVENT_CLASSES,
    SCORES,
    Contingency,
    Slide,
    duration_matrix,
    lead_time,
    merge_slides,
)

DAY_S: Final = 86_400
_MICRO: Final = 1_000_000


@dataclass(frozen=True)
class SeasonLevels:
    """Levels of a municipality over some days.

    Attributes:
        ends_s: Unix time of the end of each step that has a level.
        levels: 1 to 5.
        steps: Number of steps in the days.
    """

    ends_s: Sequence[float]
    levels: Sequence[int]
    steps: int

    def report(self, slides: Sequence[Slide]) -> dict[str, Any]:
        """Scores of each level, hours by class of event, and lead times."""
        events = merge_slides(slides)
        levels = range(ADVISORY, EMERGENCY + 1)
        return {
            "days": len(self._days()),
            "events": [asdict(event) for event in events],
            "missing_h": (self.steps - len(self.levels)) * STEP_S / 3600,
            "scores": [self._scores(level, slides) for level in levels],
            "classes": EVENT_CLASSES,
            "hours": duration_matrix(self.ends_s, self.levels, events, STEP_S),
            "leads": [[self._lead(event, n) for n in levels] for event in events],
        }

    def _scores(self, level: int, slides: Sequence[Slide]) -> dict[str, Any]:
        days = self._days()
        happened = [_touches(day, slides) for day in days]
        highest = [float(n) for n in days.values()]
        cases = Contingency.from_threshold(highest, happened, level)
        return (
            {"level": level}
            | asdict(cases)
            | {name: getattr(cases, name) for name in SCORES}
        )

    def _lead(self, event: Slide, level: int) -> dict[str, Any] | None:
        lead = lead_time(self.ends_s, self.levels, event, level)
        return None if lead is None else asdict(lead)

    def _days(self) -> dict[date, int]:
        """Highest level of each day in Japan that has a level."""
        days: dict[date, int] = {}
        for end_s, level in zip(self.ends_s, self.levels, strict=True):
            # A step that ends at midnight belongs to the day before.
            day = datetime.fromtimestamp(end_s - 1, JST).date()
            days[day] = max(days.get(day, 0), level)
        return days


def read_season(tables: Folder, from_s: int, to_s: int) -> SeasonLevels:
    """Read the highest level of all cells in each step of some days.

    Args:
        tables: Folder of the tables.
        from_s: Unix time of the begin of the first day.
        to_s: Unix time of the end of the last day.
    """
    steps = (to_s - from_s) // STEP_S
    highest = np.full(steps, MISSING, np.int64)
    after, until = (
        pa.scalar(s * _MICRO, pa.timestamp("us", tz="UTC")) for s in (from_s, to_s)
    )
    wanted = (pc.field("at") > after) & (pc.field("at") <= until)
    source = DeltaTables(tables).dataset("levels")
    for batch in source.to_batches(columns=["at", "level"], filter=wanted):
        at_s = batch["at"].cast(pa.int64()).to_numpy() // _MICRO
        levels = batch["level"].fill_null(MISSING).to_numpy(zero_copy_only=False)
        np.maximum.at(highest, (at_s - from_s) // STEP_S - 1, levels)
    known = np.flatnonzero(highest)
    ends_s = [float(from_s + (step + 1) * STEP_S) for step in known]
    return SeasonLevels(ends_s, highest[known].tolist(), int(steps))


def _touches(day: date, slides: Sequence[Slide]) -> bool:
    begin_s = datetime.combine(day, time(), JST).timestamp()
    return any(s.from_s < begin_s + DAY_S and s.to_s >= begin_s for s in slides)

"""Routes of the skill page: levels of a season compared with landslides, entered here.

The level of the municipality is the highest of its cells. Days are counted in a
contingency table per level; hours in the duration matrix (EDuMaP), because a table of
days hides how long a level lasted. Steps without any level are counted as missing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, time
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Depends, HTTPException, Response

from backend_spark.console.dependencies import (
    Analyst,
    ConsoleServices,
    Services,
    viewer,
)
from backend_spark.console.events import Event
from backend_spark.console.http import json_body, json_response
from backend_spark.console.level_grid import MISSING, unix_seconds
from backend_spark.console.routes.time_travel import LAST_S
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.store import Folder
from service_runtime.errors import shortened
from slope_science import JST
from slope_science.levels import ADVISORY, EMERGENCY
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
        at_s = unix_seconds(batch["at"])
        levels = batch["level"].fill_null(MISSING).to_numpy(zero_copy_only=False)
        np.maximum.at(highest, (at_s - from_s) // STEP_S - 1, levels)
    known = np.flatnonzero(highest)
    ends_s = [float(from_s + (step + 1) * STEP_S) for step in known]
    return SeasonLevels(ends_s, highest[known].tolist(), int(steps))


def _touches(day: date, slides: Sequence[Slide]) -> bool:
    begin_s = datetime.combine(day, time(), JST).timestamp()
    return any(s.from_s < begin_s + DAY_S and s.to_s >= begin_s for s in slides)


MAX_DAYS: Final = 400
MAX_COUNT: Final = 10_000
MAX_TEXT_LENGTH: Final = 500

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


class LandslideBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a landslide; `time` is a moment, or a day if only that is known."""

    time: str
    count: int
    text: str = ""


@router.get("/landslides")
def landslides(services: Services) -> Response:
    """Landslides, newest first."""
    return json_response(_landslides(services))


@router.post("/landslides")
def add_landslide(
    visitor: Analyst,
    landslide: Annotated[LandslideBody, Depends(json_body(LandslideBody))],
    services: Services,
) -> Response:
    """Append a landslide."""
    body, name = _checked(landslide), visitor.account.name
    services.journal.write(services.clock(), "event", "", name, body)
    return json_response(_landslides(services))


@router.get("/skill")
def skill(services: Services, first: str, last: str) -> Response:
    """Scores of the levels from one date to another, both in Japan."""
    from_s, to_s = _span(first, last)
    slides = [
        slide
        for slide in map(_slide, _landslides(services))
        if slide.from_s < to_s and slide.to_s >= from_s
    ]
    return json_response(read_season(services.tables, from_s, to_s).report(slides))


def _landslides(services: ConsoleServices) -> list[dict[str, Any]]:
    """Landslides that were entered, and those of events whose slope failed."""
    entered = [
        {"who": e.who, "at_s": e.at_s, **e.body} for e in services.journal.read("event")
    ]
    failed = [_of_event(*each) for each in services.events.landslides()]
    return sorted(entered + failed, key=lambda slide: -float(slide["from_s"]))


def _of_event(event: Event, failed_s: tuple[float, float]) -> dict[str, Any]:
    from_s, to_s = failed_s
    found = {"from_s": from_s, "to_s": to_s, "count": 1, "text": event.text}
    return found | {"who": event.who, "at_s": event.state_s, "event": event.number}


def _checked(landslide: LandslideBody) -> dict[str, Any]:
    if not 1 <= landslide.count <= MAX_COUNT:
        rule = f"count must be between 1 and {MAX_COUNT}"
        raise HTTPException(422, f"{rule}, got {landslide.count}")
    if len(landslide.text) > MAX_TEXT_LENGTH:
        rule = f"text must be at most {MAX_TEXT_LENGTH} characters long"
        raise HTTPException(422, rule)
    try:
        at = datetime.fromisoformat(landslide.time).replace(tzinfo=JST)
    except ValueError as error:
        rule = "time must be a date or a time such as 2026-07-01T13:00"
        raise HTTPException(422, f"{rule}, got {shortened(landslide.time)}") from error
    is_day = len(landslide.time) <= len("2026-07-01")
    from_s = at.timestamp()
    if not 0 <= from_s <= LAST_S:
        rule = "time must be between the years 1970 and 2100"
        raise HTTPException(422, f"{rule}, got {shortened(landslide.time)}")
    to_s = from_s + DAY_S - 1 if is_day else from_s
    return {
        "from_s": from_s,
        "to_s": to_s,
        "count": landslide.count,
        "text": landslide.text,
    }


def _span(first: str, last: str) -> tuple[int, int]:
    try:
        days = [date.fromisoformat(text) for text in (first, last)]
    except ValueError as error:
        rule = "first and last must be dates such as 2026-07-01"
        raise HTTPException(422, rule) from error
    length = (days[1] - days[0]).days + 1
    if not 1 <= length <= MAX_DAYS:
        raise HTTPException(422, f"last must be up to {MAX_DAYS} days after first")
    begin = datetime(days[0].year, days[0].month, days[0].day, tzinfo=JST)
    return round(begin.timestamp()), round(begin.timestamp()) + length * DAY_S


def _slide(body: dict[str, Any]) -> Slide:
    return Slide(body["from_s"], body["to_s"], body["count"])

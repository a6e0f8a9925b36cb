"""Routes of the skill page: landslides that people enter, and scores of a season."""

from datetime import date, datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Response

from backend_spark.console.dependencies import (
    Analyst,
    ConsoleServices,
    Services,
    viewer,
)
from backend_spark.console.events import Event
from backend_spark.console.http import json_body, json_response
from backend_spark.console.routes.time_travel import LAST_S
from backend_spark.console.skill import DAY_S, read_season
from backend_spark.scoring.observation import JST
from service_runtime.errors import shortened
from slope_science.skill import Slide

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

"""Landslides that people enter, and the skill of a season."""

from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response

from backend_spark.console.audit_log import Entry, Journal
from backend_spark.console.auth import Gate
from backend_spark.console.http import json, refuse
from backend_spark.console.routes.session import body_of
from backend_spark.console.skill import DAY_S, JST_S, read_season
from slope_science.skill import Slide

JST: Final = timezone(timedelta(seconds=JST_S))
MOST_DAYS: Final = 400
MOST_COUNT: Final = 10_000
LONGEST_TEXT: Final = 500


class Event(msgspec.Struct, forbid_unknown_fields=True):
    """Landslides at a moment, or on a day when only that is known."""

    time: str
    count: int
    text: str = ""


def season_routes(
    journal: Journal, tables: Path, gate: Gate, clock: Callable[[], float]
) -> APIRouter:
    """Routes of the skill report."""
    routes = APIRouter(prefix="/api")

    @routes.get("/events")
    def events(request: Request) -> Response:
        gate.look(request)
        return json([_line(entry) for entry in journal.read("event")])

    @routes.post("/events")
    async def add(request: Request) -> Response:
        visitor = gate.change(request)
        event = await body_of(request, Event)
        body = _checked(event)
        journal.write(clock(), "event", "", visitor.account.name, body)
        return json([_line(entry) for entry in journal.read("event")])

    @routes.get("/skill")
    def skill(request: Request, first: str, last: str) -> Response:
        gate.look(request)
        from_s, to_s = _span(first, last)
        slides = [
            slide
            for slide in (_slide(e.body) for e in journal.read("event"))
            if slide.from_s < to_s and slide.to_s >= from_s
        ]
        return json(read_season(tables, from_s, to_s).report(slides))

    return routes


def _checked(event: Event) -> dict[str, Any]:
    if not 1 <= event.count <= MOST_COUNT:
        rule = f"count must be between 1 and {MOST_COUNT}"
        raise refuse(422, f"{rule}, got {event.count}")
    if len(event.text) > LONGEST_TEXT:
        raise refuse(422, f"text must be at most {LONGEST_TEXT} characters long")
    try:
        at = datetime.fromisoformat(event.time).replace(tzinfo=JST)
    except ValueError as error:
        rule = "time must be a date or a time such as 2026-07-01T13:00"
        raise refuse(422, f"{rule}, got {event.time!r}") from error
    is_day = len(event.time) <= len("2026-07-01")
    from_s = at.timestamp()
    to_s = from_s + DAY_S - 1 if is_day else from_s
    return {"from_s": from_s, "to_s": to_s, "count": event.count, "text": event.text}


def _span(first: str, last: str) -> tuple[int, int]:
    try:
        days = [date.fromisoformat(text) for text in (first, last)]
    except ValueError as error:
        raise refuse(422, "first and last must be dates such as 2026-07-01") from error
    length = (days[1] - days[0]).days + 1
    if not 1 <= length <= MOST_DAYS:
        raise refuse(422, f"last must be up to {MOST_DAYS} days after first")
    begin = datetime(days[0].year, days[0].month, days[0].day, tzinfo=JST)
    return round(begin.timestamp()), round(begin.timestamp()) + length * DAY_S


def _slide(body: dict[str, Any]) -> Slide:
    return Slide(body["from_s"], body["to_s"], body["count"])


def _line(entry: Entry) -> dict[str, Any]:
    return {"who": entry.who, "at_s": entry.at_s, **entry.body}

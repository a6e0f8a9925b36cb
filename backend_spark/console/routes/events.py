"""Routes of the events: list, decide, hand over with notes; their notifications."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Response
from fastapi.responses import HTMLResponse

from backend_spark.console.audit_log import Journal, JournalEntry
from backend_spark.console.dependencies import (
    Analyst,
    Chief,
    ConsoleServices,
    Services,
    viewer,
)
from backend_spark.console.events import (
    Event,
    EventBook,
    EventFilter,
    EventState,
    begin_s,
)
from backend_spark.console.http import json_body, json_response
from backend_spark.console.live_state import LiveState
from backend_spark.console.nodes import NodeState
from backend_spark.console.notifications.outbox import (
    NotificationOutbox,
    StoredNotification,
)
from backend_spark.console.places import Gazetteer
from backend_spark.console.report import TEMPLATES, describe_present, when
from backend_spark.console.routes.time_travel import LAST_S, UnixTime
from backend_spark.i18n import HANDOVER_WORDS, reasons_of, render_both, render_japanese
from service_runtime.errors import FieldError, shortened
from slope_science import JST
from slope_science.levels import EMERGENCY, LOWEST
from slope_science.reasons import render_english

MAX_NOTE_LENGTH: Final = 2000
MAX_NUMBER: Final = 2**63 - 1
"""Largest number of an SQLite row."""

MAX_PAGE: Final = 200
MAX_HISTORY: Final = 500
"""Newest entries of an event that are shown; an earlier release wrote many."""

MAX_DECIDED: Final = 1000
"""Events that one request may change."""

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])
page = APIRouter(dependencies=[Depends(viewer)])

MAX_NOTIFICATIONS: Final = 50


class NoteBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a note."""

    text: str


class DecisionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a decision about events.

    Attributes:
        events: Their numbers.
        state: The new state.
        text: Remark.
        time: Time of the landslide in Japan, if the slope failed and it is known.
        seen: `asked` of each event as the person saw it; without it the decision holds
            for what nobody may have seen.
    """

    events: list[int]
    state: str
    text: str = ""
    time: str = ""
    seen: list[int] = []


EventNumber = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
Offset = Annotated[int, Query(ge=0, le=MAX_NUMBER)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Level = Annotated[int, Query(ge=0, le=5)]
Words = Annotated[str, Query(max_length=100)]


def wanted_events(  # noqa: PLR0913 - FastAPI gives each field by name
    services: Services,
    *,
    state: Words = "",
    level: Level = 0,
    since: UnixTime = None,
    until: UnixTime = None,
    text: Words = "",
    cause: Words = "",
) -> EventFilter:
    """Filter of the query.

    Raises:
        HTTPException: 422 for a state that does not exist.
    """
    states = frozenset(map(_state, state.split(","))) if state else None
    found = (p for p in services.places.now.places if text.strip() in p.name)
    named = frozenset(cell for place in found for cell in place.cells)
    return EventFilter(states, level, since, until, text.strip(), named, cause)


Wanted = Annotated[EventFilter, Depends(wanted_events)]


@router.get("/events")
def events(
    services: Services, wanted: Wanted, offset: Offset = 0, limit: Limit = 50
) -> Response:
    """One page of the events, and how many there are in each state."""
    unjudged = last_judged(services.live_state)
    return json_response(event_page(services.events, wanted, offset, limit, unjudged))


@router.get("/events/{number}")
def event(number: EventNumber, services: Services) -> Response:
    """One event with its history."""
    found = services.events.get(number)
    if found is None:
        raise HTTPException(404, f"there is no event {number}")
    more = {
        "history": _history(found, services.journal),
        "notifications": lines_of_event(services.notifications.outbox, number),
    }
    return json_response(_row(found, last_judged(services.live_state)) | more)


@router.post("/events/state")
def decide(
    visitor: Analyst,
    decision: Annotated[DecisionBody, Depends(json_body(DecisionBody))],
    services: Services,
) -> Response:
    """Write a decision about one event or more."""
    now_s, name = services.clock(), visitor.account.name
    body: dict[str, Any] = {
        "state": _state(decision.state),
        "text": _checked(decision.text, min_length=0),
    }
    chosen = _chosen(decision, services)
    if decision.time and body["state"] != EventState.SLOPE_FAILED:
        raise HTTPException(422, "time must be given with slope_failed only")
    failed_s = _failure_time(decision.time, now_s) if decision.time else None
    with services.events.batch():
        _check_seen(chosen, decision)
        for each in chosen:
            times: dict[str, Any] = {}
            if body["state"] == EventState.SLOPE_FAILED:
                # The first sign may have the time of another clock, which is ahead.
                first_s = min(each.first_s, now_s)
                times["from_s"] = first_s if failed_s is None else failed_s
                times["to_s"] = now_s if failed_s is None else failed_s
            services.events.decide(each.number, name, now_s, body | times)
    services.count_events()
    unjudged = last_judged(services.live_state)
    return json_response({"events": [_row(each, unjudged) for each in chosen]})


@router.get("/notes")
def notes(services: Services, limit: Limit = 50) -> Response:
    """Hand-over notes, newest first."""
    return json_response(note_lines(services.journal, limit))


@router.post("/notes")
def write_note(
    visitor: Analyst,
    note: Annotated[NoteBody, Depends(json_body(NoteBody))],
    services: Services,
) -> Response:
    """Append a note."""
    body = {"text": _checked(note.text, min_length=1)}
    services.journal.write(services.clock(), "note", "", visitor.account.name, body)
    return json_response(note_lines(services.journal, 50))


def last_judged(live_state: LiveState) -> dict[str, int]:
    """Unix time of the last judgement of each cell that is not judged at present.

    0 if there was none. An event there may be over, or worse than its level.
    """
    now, tokens = live_state.snapshot(), live_state.cells()["tokens"]
    rows = zip(tokens, now["levels"], now["known_s"], strict=False)
    return {
        token: known_s
        for token, level, known_s in rows
        if not LOWEST <= level <= EMERGENCY
    }


def event_page(
    book: EventBook,
    wanted: EventFilter,
    offset: int,
    limit: int,
    unjudged: Mapping[str, int],
) -> dict[str, Any]:
    """Rows of some events; `total` counts all that the filter accepts.

    Args:
        book: All events.
        wanted: Which of them.
        offset: Rows before the page.
        limit: Rows of the page.
        unjudged: As of `last_judged`.
    """
    found = book.select(wanted)
    summary = book.summary()
    return {
        "revision": summary.revision,
        "open": summary.count,
        "total": len(found),
        "states": book.count_states(),
        "events": [_row(each, unjudged) for each in found[offset : offset + limit]],
    }


def _lost_s(event: Event, unjudged: Mapping[str, int]) -> int | None:
    """Time of the last judgement, if an event lasts in a cell that is not judged."""
    return unjudged.get(event.cell or "") if event.over_s is None else None


def _row(event: Event, unjudged: Mapping[str, int]) -> dict[str, Any]:
    return {
        "number": event.number,
        "cell": event.cell,
        "nodes": sorted(event.nodes),
        "first_s": event.first_s,
        "last_s": event.last_s,
        "over_s": event.over_s,
        "lost_s": _lost_s(event, unjudged),
        "peak": event.peak,
        "peak_s": event.peak_s,
        "measured_s": event.measured_s,
        "causes": sorted(event.causes),
        "messages": event.messages,
        "reasons": render_both(event.reasons),
        "state": event.state,
        "state_s": event.state_s,
        "who": event.who,
        "text": event.text,
        "asked": event.asked,
        "failed_s": event.failed_s,
    }


def _history(event: Event, journal: Journal) -> list[dict[str, Any]]:
    """What happened, newest first."""
    entries = map(journal.find, reversed(event.entries[-MAX_HISTORY:]))
    return [_line(entry) for entry in entries if entry is not None]


def _line(entry: JournalEntry) -> dict[str, Any]:
    body = entry.body
    line = {"at_s": entry.at_s, "who": entry.who}
    if entry.kind != "alert":
        state = body.get("state", EventState.ACKNOWLEDGED)
        return line | {"what": state, "text": body["text"]}
    reasons = reasons_of(body.get("reason_codes"), body.get("reasons", ()))
    return line | {
        "what": body["what"],
        "step_s": begin_s(entry),
        "level": body["level"],
        "node": body.get("node"),
        "measured_s": body.get("measured_s", 0),
        "reasons": render_both(reasons),
    }


def note_lines(journal: Journal, limit: int) -> list[dict[str, Any]]:
    """Notes, newest first."""
    return [
        {"at_s": e.at_s, "who": e.who, "text": e.body["text"]}
        for e in journal.read("note", limit=limit)
    ]


def _chosen(decision: DecisionBody, services: ConsoleServices) -> list[Event]:
    """Events of a decision.

    Raises:
        HTTPException: 422 for none or too many, 404 for one that does not exist.
    """
    if not 1 <= len(decision.events) <= MAX_DECIDED:
        rule = f"events must be 1 to {MAX_DECIDED} numbers"
        raise HTTPException(422, f"{rule}, got {len(decision.events)}")
    found = {n: services.events.get(n) for n in decision.events}
    missing = [n for n, each in found.items() if each is None]
    if missing:
        raise HTTPException(404, f"events: there is no event {missing[0]}")
    return [each for each in found.values() if each is not None]


def _check_seen(chosen: list[Event], decision: DecisionBody) -> None:
    """Refuse a decision about what has changed since the person saw it.

    Raises:
        HTTPException: 409, or 422 for another number of values.
    """
    if not decision.seen:
        return
    if len(decision.seen) != len(decision.events):
        rule = f"seen must have {len(decision.events)} numbers, one for each event"
        raise HTTPException(422, f"{rule}, got {len(decision.seen)}")
    seen = dict(zip(decision.events, decision.seen, strict=True))
    for each in chosen:
        if each.asked > seen[each.number]:
            problem = f"event {each.number} has risen, or somebody has decided about it"
            raise HTTPException(409, f"{problem}; look at it, and decide again")


def _state(text: str) -> EventState:
    try:
        return EventState(text)
    except ValueError as error:
        rule = f"state must be one of {', '.join(EventState)}"
        raise HTTPException(422, f"{rule}, got {shortened(text)}") from error


def _failure_time(text: str, now_s: float) -> float:
    rule = "time must be a time in Japan that has passed, such as 2026-07-01T13:00"
    try:
        at_s = datetime.fromisoformat(text).replace(tzinfo=JST).timestamp()
    except ValueError as error:
        raise HTTPException(422, f"{rule}, got {shortened(text)}") from error
    if not 0 <= at_s <= min(now_s, LAST_S):
        raise HTTPException(422, f"{rule}, got {shortened(text)}")
    return at_s


def _checked(text: str, min_length: int) -> str:
    text = text.strip()
    if not min_length <= len(text) <= MAX_NOTE_LENGTH:
        rule = f"text must be {min_length} to {MAX_NOTE_LENGTH} characters long"
        raise HTTPException(422, f"{rule}, got {len(text)}")
    return text


SHIFT_S: Final = 12 * 3600
HANDOVER_ROWS: Final = 60
"""Rows of each table of the hand-over page; more are counted."""


@page.get("/handover")
def handover(services: Services, lang: str = "") -> Response:
    """The page for the next shift: open events, decisions, notes and silent nodes."""
    language = lang if lang in HANDOVER_WORDS else services.settings.console.language
    content = render_handover(services, language)
    return HTMLResponse(content, headers={"Cache-Control": "no-store"})


def render_handover(services: ConsoleServices, language: str) -> str:
    """HTML of the page; names and notes are escaped.

    Args:
        services: Services of the console.
        language: ``ja`` or ``en``.
    """
    now_s = services.clock()
    everything = services.events.select(EventFilter())
    waiting = [e for e in everything if e.state is EventState.OPEN]
    decided = [e for e in everything if e.who and e.state_s >= now_s - SHIFT_S]
    notes = [
        (when(entry.at_s), entry.who, entry.body["text"])
        for entry in services.journal.read("note", limit=HANDOVER_ROWS)
        if entry.at_s >= now_s - SHIFT_S
    ]
    live, outbox = services.live_state.snapshot(), services.notifications.outbox
    unjudged, places = last_judged(services.live_state), services.places.now
    silent = _silent_nodes(services.live_state, places, live["now_s"])
    return TEMPLATES.get_template("handover.html").render(
        language=language,
        w=HANDOVER_WORDS[language],
        place=services.settings.console.place,
        exercise=live["exercise"],
        now=when(now_s),
        shift=when(now_s - SHIFT_S),
        tables=[
            ("open", *_table(waiting, language, places, unjudged)),
            ("decided", *_table(decided, language, places, unjudged)),
        ],
        notes=notes,
        nodes=live["nodes"],
        silent=silent[:HANDOVER_ROWS],
        more_silent=max(0, len(silent) - HANDOVER_ROWS),
        **describe_present(live, HANDOVER_WORDS[language]),
        late=len(outbox.overdue(now_s)) + len(outbox.given_up(now_s - SHIFT_S)),
    )


def _silent_nodes(
    live_state: LiveState, places: Gazetteer, now_s: float
) -> list[tuple[str, str, str]]:
    """Id, place and time of the last receipt of the silent nodes, the newest first."""
    with live_state.lock:
        found = [
            n for n in live_state.nodes.by_id.values() if n.state(now_s) == "silent"
        ]
    found.sort(key=lambda node: (-node.received_s, node.id))
    return [(n.id, _node_place(n, places), when(n.received_s)) for n in found]


def _node_place(node: NodeState, places: Gazetteer) -> str:
    place = places.of_node(node.id, node.cell, node.place())
    return place.name if place else ""


def _table(
    events: list[Event], language: str, places: Gazetteer, unjudged: Mapping[str, int]
) -> tuple[list[dict[str, Any]], int]:
    """Rows of a table, and how many more events there are."""
    lost = [_lost_s(event, unjudged) for event in events[:HANDOVER_ROWS]]
    rows = [
        _table_row(event, language, places)
        | {"is_lost": lost_s is not None, "lost": when(lost_s) if lost_s else ""}
        for event, lost_s in zip(events, lost, strict=False)
    ]
    return rows, len(events) - len(rows)


def _table_row(event: Event, language: str, places: Gazetteer) -> dict[str, Any]:
    render = render_japanese if language == "ja" else render_english
    return {
        "peak": when(event.peak_s) if event.peak_s > event.first_s else "",
        "level": event.peak,
        "place": _place_name(event, places),
        "first": when(event.first_s),
        "over": None if event.over_s is None else when(event.over_s),
        "end": "over" if event.cell else "quiet",
        "messages": event.messages,
        "why": render(event.reasons[0]) if event.reasons else "",
        "state": event.state.value,
        "who": event.who,
        "at": when(event.state_s),
        "text": event.text,
    }


def _place_name(event: Event, places: Gazetteer) -> str:
    if event.cell is None:
        return ", ".join(sorted(event.nodes))
    return f"{places.name(event.cell)} {event.cell}".strip()


class TestBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a test: the name of a rule."""

    rule: str


@router.get("/notifications")
def notifications(services: Services) -> Response:
    """Rules and the newest notifications."""
    return json_response(_notifications(services))


@router.post("/notifications/test")
def test(
    visitor: Chief,
    body: Annotated[TestBody, Depends(json_body(TestBody))],
    services: Services,
) -> Response:
    """Send a test to each address of a rule."""
    now_s = services.clock()
    try:
        count = services.notifications.test(body.rule, now_s)
    except FieldError as error:
        raise HTTPException(404, str(error)) from error
    entry = {"rule": body.rule, "addresses": count}
    services.journal.write(now_s, "notification_test", "", visitor.account.name, entry)
    return json_response(_notifications(services))


def _notifications(services: ConsoleServices) -> dict[str, Any]:
    sender = services.notifications
    unknown = sender.rules.unknown()
    rules = [
        {
            "name": rule.name,
            "from_level": rule.from_level,
            "unacknowledged_min": rule.unacknowledged_min,
            "addresses": len(rule.to),
            "unknown_districts": unknown.get(rule.name, []),
        }
        for rule in sender.rules.sections
    ]
    newest = sender.outbox.newest(MAX_NOTIFICATIONS)
    return {
        "rules": rules,
        "notifications": [_notification(sender.outbox, each) for each in newest],
    }


def lines_of_event(outbox: NotificationOutbox, number: int) -> list[dict[str, Any]]:
    """Notifications of an event with their attempts, oldest first."""
    return [_notification(outbox, each) for each in outbox.of_event(number)]


def _notification(
    outbox: NotificationOutbox, each: StoredNotification
) -> dict[str, Any]:
    return {
        "id": each.id,
        "event": each.event,
        "rule": each.target.rule,
        "to": each.shown,
        "level": each.level,
        "state": each.state,
        "created_s": each.created_s,
        "due_s": each.due_s,
        "attempts": outbox.attempts(each.id),
    }

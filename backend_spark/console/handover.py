"""Hand-over page: open events, decisions, notes and silent nodes for the next shift."""

from typing import Any, Final

from backend_spark.console.dependencies import ConsoleServices
from backend_spark.console.events import Event, EventFilter, EventState
from backend_spark.console.places import Gazetteer
from backend_spark.console.report import TEMPLATES, when
from backend_spark.i18n import HANDOVER_WORDS, render_japanese
from slope_science.reason_text import render_english

SHIFT_S: Final = 12 * 3600
MAX_ROWS: Final = 60
"""Rows of each table; more are counted."""


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
        for entry in services.journal.read("note", limit=MAX_ROWS)
        if entry.at_s >= now_s - SHIFT_S
    ]
    live, outbox = services.live_state.snapshot(), services.notifications.outbox
    return TEMPLATES.get_template("handover.html").render(
        language=language,
        w=HANDOVER_WORDS[language],
        place=services.settings.console.place,
        exercise=live["exercise"],
        now=when(now_s),
        since=when(now_s - SHIFT_S),
        tables=[
            ("open", *_rows(waiting, language, services.places.now)),
            ("decided", *_rows(decided, language, services.places.now)),
        ],
        notes=notes,
        nodes=live["nodes"],
        late=len(outbox.overdue(now_s)) + len(outbox.given_up(now_s - SHIFT_S)),
    )


def _rows(
    events: list[Event], language: str, places: Gazetteer
) -> tuple[list[dict[str, Any]], int]:
    """Rows of a table, and how many more events there are."""
    rows = [_row(event, language, places) for event in events[:MAX_ROWS]]
    return rows, len(events) - len(rows)


def _row(event: Event, language: str, places: Gazetteer) -> dict[str, Any]:
    render = render_japanese if language == "ja" else render_english
    return {
        "level": event.peak,
        "place": _place(event, places),
        "first": when(event.first_s),
        "over": None if event.over_s is None else when(event.over_s),
        "messages": event.messages,
        "why": render(event.reasons[0]) if event.reasons else "",
        "state": event.state.value,
        "who": event.who,
        "at": when(event.state_s),
        "text": event.text,
    }


def _place(event: Event, places: Gazetteer) -> str:
    if event.cell is None:
        return ", ".join(sorted(event.nodes))
    return f"{places.name(event.cell)} {event.cell}".strip()

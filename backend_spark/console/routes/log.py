"""Routes of the alert log: read it, acknowledge an alert, write a hand-over note."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Response

from backend_spark.console.audit_log import Journal, JournalEntry
from backend_spark.console.dependencies import Analyst, Services, viewer
from backend_spark.console.http import json_body, json_response
from backend_spark.i18n import reasons_of, render_both

MAX_NOTE_LENGTH: Final = 2000
MAX_ENTRY: Final = 2**63 - 1
"""Largest number of an SQLite row."""

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


class NoteBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a note or of an acknowledgement's remark."""

    text: str


EntryNumber = Annotated[int, Path(ge=1, le=MAX_ENTRY)]
Note = Annotated[NoteBody, Depends(json_body(NoteBody))]


@router.get("/log")
def log(services: Services) -> Response:
    """Alerts and notes."""
    return json_response(log_view(services.journal))


@router.post("/log/note")
def write_note(visitor: Analyst, note: Note, services: Services) -> Response:
    """Append a note."""
    body = {"text": _checked(note, min_length=1)}
    name = visitor.account.name
    services.journal.write(services.clock(), "note", "", name, body)
    return json_response(log_view(services.journal))


@router.post("/log/{number}/acknowledge")
def acknowledge(
    number: EntryNumber, visitor: Analyst, note: Note, services: Services
) -> Response:
    """Acknowledge an alert, with an optional remark."""
    text = _checked(note, min_length=0)
    journal = services.journal
    alert = journal.find(number)
    if alert is None or alert.kind != "alert":
        raise HTTPException(404, f"there is no alert {number}")
    body = {"alert": number, "text": text}
    name = visitor.account.name
    journal.write(services.clock(), "acknowledge", alert.subject, name, body)
    services.count_alerts()
    return json_response(log_view(journal))


def log_view(journal: Journal) -> dict[str, Any]:
    """Alerts with their acknowledgements, and notes; newest first."""
    seen: dict[int, list[dict[str, Any]]] = {}
    for entry in journal.read("acknowledge", limit=5000):
        seen.setdefault(entry.body["alert"], []).insert(0, _line(entry))
    alerts = []
    for entry in journal.read("alert"):
        alert = dict(entry.body)
        codes = alert.pop("reason_codes", None)
        alert["reasons"] = render_both(reasons_of(codes, alert["reasons"]))
        line = {"id": entry.id, "at_s": entry.at_s, "seen": seen.get(entry.id, [])}
        alerts.append(alert | line)
    return {"alerts": alerts, "notes": [_line(e) for e in journal.read("note")]}


def _line(entry: JournalEntry) -> dict[str, Any]:
    return {"at_s": entry.at_s, "who": entry.who, "text": entry.body["text"]}


def _checked(note: NoteBody, min_length: int) -> str:
    text = note.text.strip()
    if not min_length <= len(text) <= MAX_NOTE_LENGTH:
        rule = f"text must be {min_length} to {MAX_NOTE_LENGTH} characters long"
        raise HTTPException(422, f"{rule}, got {len(text)}")
    return text

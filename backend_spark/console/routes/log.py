"""The alert log: read it, acknowledge, hand over."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response

from backend_spark.console.audit_log import Entry, Journal
from backend_spark.console.auth import Gate
from backend_spark.console.http import json, refuse
from backend_spark.console.routes.session import body_of
from backend_spark.i18n import both, reasons_of

LONGEST_NOTE: Final = 2000


class Words(msgspec.Struct, forbid_unknown_fields=True):
    """What a person writes."""

    text: str


def log_routes(
    journal: Journal,
    gate: Gate,
    clock: Callable[[], float],
    changed: Callable[[], None],
) -> APIRouter:
    """Routes of the log.

    Args:
        journal: The log.
        gate: Who comes in.
        clock: Unix time.
        changed: Called when an alert was acknowledged.
    """
    routes = APIRouter(prefix="/api")

    @routes.get("/log")
    def log(request: Request) -> Response:
        gate.look(request)
        return json(told(journal))

    @routes.post("/log/note")
    async def note(request: Request) -> Response:
        visitor = gate.change(request)
        text = _checked(await body_of(request, Words), least=1)
        body = {"text": text}
        journal.write(clock(), "note", "", visitor.account.name, body)
        return json(told(journal))

    @routes.post("/log/{number}/acknowledge")
    async def acknowledge(request: Request, number: int) -> Response:
        visitor = gate.change(request)
        text = _checked(await body_of(request, Words), least=0)
        alert = journal.one(number)
        if alert is None or alert.kind != "alert":
            raise refuse(404, f"there is no alert {number}")
        body = {"alert": number, "text": text}
        name = visitor.account.name
        journal.write(clock(), "acknowledge", alert.subject, name, body)
        changed()
        return json(told(journal))

    return routes


def told(journal: Journal) -> dict[str, Any]:
    """Alerts with who has seen them, and notes; newest first."""
    seen: dict[int, list[dict[str, Any]]] = {}
    for entry in journal.read("acknowledge", most=5000):
        seen.setdefault(entry.body["alert"], []).insert(0, _line(entry))
    alerts = []
    for entry in journal.read("alert"):
        alert = dict(entry.body)
        codes = alert.pop("reason_codes", None)
        alert["reasons"] = both(reasons_of(codes, alert["reasons"]))
        line = {"id": entry.id, "at_s": entry.at_s, "seen": seen.get(entry.id, [])}
        alerts.append(alert | line)
    return {"alerts": alerts, "notes": [_line(e) for e in journal.read("note")]}


def _line(entry: Entry) -> dict[str, Any]:
    return {"at_s": entry.at_s, "who": entry.who, "text": entry.body["text"]}


def _checked(words: Words, least: int) -> str:
    text = words.text.strip()
    if not least <= len(text) <= LONGEST_NOTE:
        rule = f"text must be {least} to {LONGEST_NOTE} characters long"
        raise refuse(422, f"{rule}, got {len(text)}")
    return text

"""Routes of the notifications: rules, delivery log, test."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Response

from backend_spark.console.dependencies import (
    Chief,
    ConsoleServices,
    Services,
    viewer,
)
from backend_spark.console.http import json_body, json_response
from backend_spark.console.notifications.outbox import (
    NotificationOutbox,
    StoredNotification,
)
from service_runtime.errors import FieldError

MAX_LINES: Final = 50

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


class TestBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a test: the name of a rule."""

    rule: str


@router.get("/notifications")
def notifications(services: Services) -> Response:
    """Rules and the newest notifications."""
    return json_response(_view(services))


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
    return json_response(_view(services))


def _view(services: ConsoleServices) -> dict[str, Any]:
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
    newest = sender.outbox.newest(MAX_LINES)
    return {
        "rules": rules,
        "notifications": [_line(sender.outbox, each) for each in newest],
    }


def lines_of_event(outbox: NotificationOutbox, number: int) -> list[dict[str, Any]]:
    """Notifications of an event with their attempts, oldest first."""
    return [_line(outbox, each) for each in outbox.of_event(number)]


def _line(outbox: NotificationOutbox, each: StoredNotification) -> dict[str, Any]:
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

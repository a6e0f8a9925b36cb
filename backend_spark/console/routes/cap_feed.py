"""Routes of CAP messages: the feed for other programs, and the page's buttons."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Response

from backend_spark.console.cap_messages import (
    ATOM_TYPE,
    CAP_TYPE,
    atom_feed,
    page_view,
)
from backend_spark.console.dependencies import (
    Analyst,
    ConsoleServices,
    Services,
    Viewer,
    client,
)
from backend_spark.console.http import json_body, json_response, service_root
from backend_spark.console.panels import utc_time
from backend_spark.errors import ExportError
from backend_spark.exports import cap
from backend_spark.exports.cell_states import CellState, read_cell_states
from backend_spark.tables.reader import DeltaTables
from service_runtime.errors import shortened

ROOT: Final = "/cap"
_HEADERS: Final = {"Cache-Control": "no-store"}
OF_LEVELS: Final = {"levels", "--at"}
"""Fields of errors that the levels cause; the page has a text of its own for them."""

router = APIRouter()
page = APIRouter(prefix="/api")

Root = Annotated[str, Depends(service_root(ROOT))]


class CapOrder(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request to make a message.

    Attributes:
        type: What the message does.
        replaces: Identifier of the message that is shown as in force; None for any.
    """

    type: cap.CapMessageType
    replaces: str | None = None


@router.get(f"{ROOT}/feed.atom", dependencies=[Depends(client)])
def feed(root: Root, services: Services) -> Response:
    """The newest messages as an Atom feed."""
    title = f"Yamamori {services.settings.console.place} CAP".replace("  ", " ")
    now = utc_time(services.clock())
    content = atom_feed(services.standards.cap_messages.newest(), root, title, now)
    return Response(content, headers=_HEADERS, media_type=ATOM_TYPE)


# A path, because the sender in an identifier may be a URL.
@router.get(f"{ROOT}/{{identifier:path}}.xml", dependencies=[Depends(client)])
def message(identifier: str, services: Services) -> Response:
    """One message."""
    content = services.standards.cap_messages.read(identifier)
    if content is None:
        raise HTTPException(404, f"there is no message {shortened(identifier)}")
    return Response(content, headers=_HEADERS, media_type=CAP_TYPE)


@page.get("/cap")
def messages(visitor: Viewer, services: Services) -> Response:
    """The newest messages, for the page."""
    may_edit = visitor.account.has_role("analyst")
    kept = services.standards.cap_messages
    return json_response(page_view(kept, _status(services), may_edit))


@page.post("/cap")
def make(
    visitor: Analyst,
    order: Annotated[CapOrder, Depends(json_body(CapOrder))],
    services: Services,
) -> Response:
    """Make a draft, or update or cancel the one in force."""
    console = services.settings.console
    status = _status(services)
    sender_name = console.place or console.sender
    now = utc_time(services.clock())
    states: list[CellState] = []
    try:
        header = cap.CapHeader(console.sender, sender_name, now, status)
        if order.type is not cap.CapMessageType.CANCEL:
            states = _states(services)
        name = visitor.account.name
        services.standards.cap_messages.make(
            order.type, states, header, name, order.replaces
        )
    except ExportError as error:
        if error.field in OF_LEVELS:
            return refusal(error, states, 409)
        status_code = 412 if error.field == "replaces" else 409
        raise HTTPException(status_code, str(error)) from error
    kept = services.standards.cap_messages
    return json_response(page_view(kept, status, may_edit=True))


def refusal(
    error: ExportError, states: Sequence[CellState], status_code: int
) -> Response:
    """Answer that the present levels make no message, with a word for the page.

    Args:
        error: Its field is one of `OF_LEVELS`.
        states: The levels; none if they could not be read.
        status_code: HTTP status.
    """
    needs = "level" if any(s.is_judged for s in states) else "judgement"
    return json_response({"detail": error.problem, "needs": needs}, status_code)


def _status(services: ConsoleServices) -> cap.CapStatus:
    """Status of the messages that the console makes."""
    is_exercise = services.settings.console.exercise
    return cap.CapStatus.EXERCISE if is_exercise else cap.CapStatus.DRAFT


def _states(services: ConsoleServices) -> list[CellState]:
    live_state = services.live_state
    return read_cell_states(
        DeltaTables(services.tables),
        utc_time(live_state.now_s()),
        None,
        live_state.limits,
        services.places.now,
    )[1]


router.include_router(page)

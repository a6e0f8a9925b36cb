"""Dependencies of the routes: the console's services, and the sender's role."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends, HTTPException, Request

from backend_spark.config import BackendSettings
from backend_spark.console.accounts import Account
from backend_spark.console.audit_log import Journal
from backend_spark.console.auth import PROOF_HEADER, Authenticator, Visitor
from backend_spark.console.cap_messages import CapMessages
from backend_spark.console.databases import is_full
from backend_spark.console.event_detector import EventDetector
from backend_spark.console.events import EventBook
from backend_spark.console.features import CellFeatures
from backend_spark.console.live_state import LiveState
from backend_spark.console.notifications.sender import NotificationSender
from backend_spark.console.overlays import Overlays
from backend_spark.console.panels import PanelReader, WayBack
from backend_spark.console.places import StoredPlaces
from backend_spark.console.previews import PastPreview
from backend_spark.console.reviews import ReviewBook
from backend_spark.console.thresholds import Thresholds
from backend_spark.errors import StandardsRequestError
from backend_spark.sensorthings.service import SensorThingsService
from backend_spark.tables.bounded_answers import AnswerLimits
from backend_spark.tables.store import Folder
from backend_spark.tile_packs import TilePack

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StandardServices:
    """Services for other programs, which share the limits of their work.

    Attributes:
        limits: Of the work for answers.
        things: Readings, by SensorThings.
        features: Cells and levels, by OGC API Features.
        cap_messages: CAP messages that analysts made.
    """

    limits: AnswerLimits
    things: SensorThingsService
    features: CellFeatures
    cap_messages: CapMessages


@dataclass(frozen=True)
class ConsoleServices:
    """Services that the routes use, from several threads.

    Attributes:
        settings: All settings.
        live_state: Live state.
        panels: Data of the panels.
        auth: Authenticates requests.
        journal: Events, notes, thresholds, landslides.
        events: Events of the slopes.
        event_detector: Detects events.
        thresholds: Criteria of the cells.
        preview: Judges the past with other thresholds.
        reviews: Decisions about readings.
        notifications: Sends notifications.
        packs: Ground of the map, the lowest first.
        overlays: Overlays of the map.
        standards: Services for other programs.
        replays: Limits of replays, which may take minutes.
        clock: Unix time.
        places: Names of cells and nodes.
        way_back: Notices, receipts and alarms of cells.
    """

    settings: BackendSettings
    live_state: LiveState
    panels: PanelReader
    auth: Authenticator
    journal: Journal
    events: EventBook
    event_detector: EventDetector
    thresholds: Thresholds
    preview: PastPreview
    reviews: ReviewBook
    notifications: NotificationSender
    packs: tuple[TilePack, ...]
    overlays: Overlays
    standards: StandardServices
    replays: AnswerLimits
    clock: Callable[[], float]
    places: StoredPlaces
    way_back: WayBack
    _counting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def tables(self) -> Folder:
        """Folder of the tables."""
        return self.live_state.tables

    def refresh(self) -> None:
        """Read new rows of the tables, and detect events."""
        self.live_state.refresh()
        with self._saving("logins"):
            self.auth.logins.log.write_waiting()
        with self._saving("events"):
            self.event_detector.detect()
        self.count_events()

    def notify(self) -> None:
        """Plan notifications, and begin the deliveries that are due."""
        with self._saving("notifications"):
            self.notifications.step()

    @contextmanager
    def _saving(self, what: str) -> Iterator[None]:
        """Continue without saving on a full disk; every page then shows a warning."""
        unsaved = self.live_state.unsaved
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if not is_full(error):
                raise
            if what not in unsaved:
                log.error("%s are not saved: %s", what, error)  # noqa: TRY400
            unsaved.add(what)
        else:
            if what in unsaved:
                log.warning("%s are saved again", what)
            unsaved.discard(what)

    @contextmanager
    def turn(self, limits: AnswerLimits | None = None) -> Iterator[None]:
        """Wait for a place among the answers that are computed at once.

        Args:
            limits: Of the kind of answers; those of the standards by default.

        Raises:
            HTTPException: 503 if none became free in time.
        """
        try:
            with (limits or self.standards.limits).turn():
                yield
        except StandardsRequestError as error:
            raise HTTPException(error.status, str(error), error.headers) from error

    def count_events(self) -> None:
        """Update the summary of the open events that every page shows."""
        # Without the lock an older summary could overwrite a newer one.
        with self._counting:
            self.live_state.events = self.events.summary()


async def get_services(request: Request) -> ConsoleServices:
    """Services of the app that serves a request."""
    services: ConsoleServices = request.app.state.services
    return services


Services = Annotated[ConsoleServices, Depends(get_services)]


def viewer(request: Request, services: Services) -> Visitor:
    """Sender of a request, who may view.

    Raises:
        HTTPException: 401 if the sender is not logged in.
    """
    visitor = services.auth.visitor(request)
    if visitor is None:
        raise HTTPException(401, "log in first")
    return visitor


Viewer = Annotated[Visitor, Depends(viewer)]


CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="Yamamori", charset="UTF-8"'}


def client(request: Request, services: Services) -> Account:
    """Account that reads by an interface for programs.

    Raises:
        HTTPException: 401 without a session and without a token.
    """
    account = services.auth.reader(request)
    if account is None:
        remedy = "send an account's token (console-account token) by HTTP Basic"
        raise HTTPException(401, f"log in first, or {remedy}", CHALLENGE)
    return account


def editor(role: str) -> Callable[[Request, Visitor, ConsoleServices], Visitor]:
    """Make a dependency for routes that change something.

    Args:
        role: Lowest role that may.

    Raises:
        HTTPException: 401 if the sender is not logged in; 403 without the role, or
            without the page's proof against forged requests. Raised by the dependency.
    """

    def check_editor(request: Request, visitor: Viewer, services: Services) -> Visitor:
        if not visitor.account.has_role(role):
            name = visitor.account.name or "a guest"
            raise HTTPException(
                403, f"the account must have the role {role}, got {name!r}"
            )
        proof = request.headers.get(PROOF_HEADER, "")
        if not services.auth.logins.is_proven(visitor.session, proof):
            raise HTTPException(403, "the page is old: load it again")
        return visitor

    return check_editor


Analyst = Annotated[Visitor, Depends(editor("analyst"))]
Chief = Annotated[Visitor, Depends(editor("chief"))]

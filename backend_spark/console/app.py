"""Console: the FastAPI app, its services, and the program that serves it."""

import gc
import logging
import mimetypes
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import HTMLResponse

from backend_spark.config import CONSOLE_FOLDER, BackendSettings
from backend_spark.console import nodes
from backend_spark.console.accounts import AccountsFile
from backend_spark.console.audit_log import AccessLog, Journal
from backend_spark.console.auth import Authenticator, LoginService
from backend_spark.console.cap_messages import CapMessages
from backend_spark.console.databases import (
    JOURNAL_FILE,
    NOTIFICATIONS_FILE,
    fault_handler,
    naming_damage,
)
from backend_spark.console.dependencies import (
    ConsoleServices,
    Services,
    StandardServices,
    viewer,
)
from backend_spark.console.event_detector import EventDetector
from backend_spark.console.events import EventBook
from backend_spark.console.features import CellFeatures
from backend_spark.console.http import (
    BACKLOG,
    MAX_HEAD_BYTES,
    BoundedProtocol,
    HeadersMiddleware,
    Packed,
    ProxyMiddleware,
    security_headers,
    validation_error,
)
from backend_spark.console.live_state import Clock, LiveState, is_judged
from backend_spark.console.logins import SessionStore
from backend_spark.console.metrics import ConsoleMetrics
from backend_spark.console.notifications.outbox import NotificationOutbox
from backend_spark.console.notifications.rules import NotificationRules
from backend_spark.console.notifications.sender import (
    NotificationSender,
    check_addresses,
)
from backend_spark.console.openid import OidcSignIn
from backend_spark.console.overlays import Overlays
from backend_spark.console.panels import PanelReader, WayBack
from backend_spark.console.places import StoredPlaces
from backend_spark.console.previews import CellBench, PastPreview, ReviewPreview
from backend_spark.console.report import SituationReport, inline_assets
from backend_spark.console.reviews import ReviewBook
from backend_spark.console.routes import accounts as account_routes
from backend_spark.console.routes import (
    events,
    exports,
    levels,
    reviews,
    skill,
    standards,
    thresholds,
    time_travel,
)
from backend_spark.console.routes import map as map_routes
from backend_spark.console.settings import ConsoleSection
from backend_spark.console.thresholds import Thresholds
from backend_spark.criteria.cell_rules import make_cell_rules
from backend_spark.errors import CalibrationError, DamagedDatabaseError
from backend_spark.evaluation.calibration_file import Calibration, read_calibration
from backend_spark.i18n import REPORT_WORDS
from backend_spark.scoring.holds import HoldLimits
from backend_spark.sensorthings.service import SensorThingsService
from backend_spark.tables.bounded_answers import AnswerLimits
from backend_spark.tables.store import tables_folder
from backend_spark.tile_packs import open_pack
from service_runtime.errors import FieldError, shortened
from service_runtime.lifecycle import (
    EXIT_USAGE_DATA,
    LogLimit,
    SystemdSupervisor,
    exit_on_thread_error,
    start_watched_loop,
)
from service_runtime.metrics import MetricsSection, make_metrics_servers
from service_runtime.settings import Problem, SettingsError
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Heartbeat, LoopWatchdog
from spatial_mqtt.client import fetch_all_retained
from spatial_mqtt.topics import GATEWAY_INFO, GATEWAY_LOCATIONS

log = logging.getLogger(__name__)

STATIC: Final = files("backend_spark.console") / "static"
SESSIONS_FILE: Final = "sessions.sqlite"
CRITERIA_FILE: Final = "criteria.csv"
REVIEWS_FILE: Final = "reviews.json"
OVERLAYS_FOLDER: Final = "overlays"
CAP_FOLDER: Final = "cap"

RENEW_INTERVAL_S: Final = 1.0
RENEW_TIMEOUT_S: Final = 120.0
"""Maximum time of one reading of the tables; after it the loop counts as hung."""

MANAGER_ANSWER_S: Final = 5.0
MANAGERS_TIMEOUT_S: Final = 300.0
"""Maximum time for asking all Managers, if none answers."""

pages = APIRouter()


@pages.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """The web page; it fetches its data by the API."""
    return read_files()["index.html"].response(request)


@pages.api_route("/static/{name}", methods=["GET", "HEAD"])
async def file(request: Request, name: str) -> Response:
    """A file of the page; browsers keep it and ask whether it has changed."""
    found = read_files().get(name)
    if found is None:
        raise HTTPException(404, f"there is no file {shortened(name)}")
    return found.response(request)


@cache
def read_files() -> dict[str, Packed]:
    """All files of the page by name, which are read and compressed once."""
    return {
        each.name: Packed(
            each.read_bytes(), mimetypes.guess_type(each.name)[0] or "text/plain"
        )
        for each in STATIC.iterdir()
        if not each.name.startswith(".")
    }


@pages.get("/report", dependencies=[Depends(viewer)])
def report(services: Services, lang: str = "") -> Response:
    """The one-page report of the present."""
    console = services.settings.console
    assumed = services.thresholds.for_cell("none of them").assumed
    made = SituationReport(
        services.live_state,
        services.journal,
        console.place,
        assumed,
        services.places.now,
    )
    language = lang if lang in REPORT_WORDS else console.language
    return HTMLResponse(made.render(language), headers={"Cache-Control": "no-store"})


def make_app(services: ConsoleServices) -> FastAPI:
    """The app, ready to serve."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = services
    read_files()
    app.add_exception_handler(RequestValidationError, validation_error)
    folder, limit = _folder(services.settings), LogLimit(time.monotonic)
    for kind in (OSError, sqlite3.Error):
        app.add_exception_handler(kind, fault_handler(folder, limit))
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)
    app.include_router(pages)
    app.include_router(events.page)
    for routes in (
        # Looked through in this order: what open pages fetch comes first.
        account_routes,
        levels,
        events,
        thresholds,
        reviews,
        time_travel,
        skill,
        map_routes,
    ):
        app.include_router(routes.router)
    app.include_router(account_routes.provider)
    app.include_router(standards.sta_router)
    app.include_router(standards.ogc_router)
    app.include_router(exports.router)
    headers = security_headers(_origin(services.settings.console.tiles))
    app.add_middleware(HeadersMiddleware, headers=headers)
    proxies = list(services.settings.console.proxies)
    app.add_middleware(ProxyMiddleware, trusted_hosts=proxies)
    return app


def _origin(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def run(settings: BackendSettings) -> None:
    """Serve the pages until SIGTERM or SIGINT.

    Raises:
        SettingsError: The accounts cannot be read, or are missing although the
            console listens to a network.
        DamagedDatabaseError: A database is damaged.
    """
    with naming_damage(_folder(settings)):
        services = make_services(settings)
        _read_first(services)
    _serve(services)


def _read_first(services: ConsoleServices) -> None:
    # The first reading covers three days; what it stores stays. A collection would go
    # through all of it each time: 0.15 s, in which no page is answered.
    gc.disable()
    services.refresh()
    gc.freeze()
    gc.enable()
    pa.default_memory_pool().release_unused()


def _serve(services: ConsoleServices) -> None:
    settings, console = services.settings, services.settings.console
    exit_on_thread_error({DamagedDatabaseError: EXIT_USAGE_DATA})
    pulse = LoopWatchdog(time.monotonic)
    supervision = SystemdSupervisor.from_environment(
        os.environ,
        os.getpid(),
        pulse,
        lambda: f"{len(services.live_state.grid.tokens)} cells",
    )

    for name, step in (
        ("renew", services.refresh),
        ("notify", services.notify),
    ):
        loop = _each_second(step, _folder(settings))
        start_watched_loop(pulse, name, RENEW_TIMEOUT_S, loop)
    _start_manager_loop(services, settings, pulse)
    section = MetricsSection(listen=console.metrics)
    collect = ConsoleMetrics(services.live_state, pulse, services.notifications).collect
    metrics = make_metrics_servers(section, collect, settings.tls, "console.metrics")
    for server in metrics:
        server.start()
    web = uvicorn.Server(server_config(services))
    supervision.report_ready()
    log.info("console at http://%s:%d/", console.host, console.port)
    web.run()
    services.notifications.close()
    for server in metrics:
        server.stop()
    supervision.close()


def _each_second(step: Callable[[], None], folder: Path) -> Callable[[Heartbeat], None]:
    """A loop that takes a step every second, with the databases of a folder."""

    def loop(beat: Heartbeat) -> None:
        while True:
            beat()
            with naming_damage(folder):
                step()
            time.sleep(RENEW_INTERVAL_S)

    return loop


def _start_manager_loop(
    services: ConsoleServices, settings: BackendSettings, pulse: LoopWatchdog
) -> None:
    """Fetch the list of gateways from the Managers periodically.

    Not in an exercise: its gateways belong to the past.
    """
    if not settings.console.managers or settings.console.exercise:
        return
    managers = [Endpoint.parse(url) for url in settings.console.managers]
    client_id = f"console-{secrets.token_hex(4)}"

    def fetch(manager: Endpoint) -> dict[str, bytes]:
        topics = (GATEWAY_INFO, GATEWAY_LOCATIONS)
        return fetch_all_retained(
            manager, topics, client_id, MANAGER_ANSWER_S, settings.tls
        )

    def fetch_gateways(beat: Heartbeat) -> None:
        live_state = services.live_state
        while True:
            beat()
            live_state.gateways.fetch_list(managers, fetch, live_state.now_s())
            time.sleep(nodes.FETCH_INTERVAL_S)

    start_watched_loop(pulse, "gateways", MANAGERS_TIMEOUT_S, fetch_gateways)


def server_config(services: ConsoleServices) -> uvicorn.Config:
    """Settings of the web server, with its limits."""
    console = services.settings.console
    return uvicorn.Config(
        make_app(services),
        host=console.host,
        port=console.port,
        http=BoundedProtocol,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `ProxyMiddleware` reads them
        timeout_graceful_shutdown=1,
    )


def make_services(
    settings: BackendSettings, clock: Clock = time.time
) -> ConsoleServices:
    """Open the services of a data folder.

    Args:
        settings: All settings.
        clock: Unix time.

    Raises:
        SettingsError: See `run`.
    """
    console, folder = settings.console, _folder(settings)
    live_state = LiveState(
        tables_folder(settings.backend),
        clock,
        console.exercise,
        HoldLimits(settings.score.hold_s),
    )
    journal = Journal(folder / JOURNAL_FILE)
    try:
        logins = _open_logins(console, folder, journal, clock)
        _check_access(console)
        calibration = _open_calibration(console)
        check_addresses(console)
        packs = tuple(open_pack(Path(path)) for path in console.map_packs)
    except FieldError as error:
        raise SettingsError([Problem.of(error)]) from error
    book = EventBook(journal)
    thresholds = _open_thresholds(settings, journal)
    places = StoredPlaces(Path(settings.backend.data))
    live_state.criteria = thresholds.lookup
    return ConsoleServices(
        settings=settings,
        live_state=live_state,
        panels=PanelReader(live_state, live_state.tables, calibration),
        auth=Authenticator(console, logins, clock),
        journal=journal,
        events=book,
        event_detector=EventDetector(live_state, book, live_state.tables),
        thresholds=thresholds,
        preview=PastPreview(thresholds, CellBench(live_state.tables, settings.score)),
        reviews=_open_reviews(settings, journal, thresholds),
        notifications=make_sender(settings, journal, book, live_state),
        packs=packs,
        overlays=Overlays(folder / OVERLAYS_FOLDER, journal),
        standards=_open_standards(live_state, places, journal, folder),
        replays=AnswerLimits(time.monotonic),
        clock=clock,
        places=places,
        way_back=WayBack.open(Path(settings.backend.data)),
    )


def _open_logins(
    console: ConsoleSection, folder: Path, journal: Journal, clock: Clock
) -> LoginService:
    accounts = AccountsFile(Path(console.accounts) if console.accounts else None)
    sessions = SessionStore(folder / SESSIONS_FILE)
    key = sessions.signing_key(lambda: secrets.token_bytes(32))
    access = AccessLog(journal)
    logins = LoginService(accounts, secrets.token_urlsafe, key, sessions, access)
    if console.oidc is not None:
        logins.provider = OidcSignIn.open(
            console.oidc,
            console.address,
            key,
            secrets.token_urlsafe,
            LogLimit(time.monotonic),
        )
    accounts.subscribe(lambda now, who: access.accounts(now, clock(), who))
    return logins


def _folder(settings: BackendSettings) -> Path:
    """Folder of the console's own files."""
    return Path(settings.backend.data) / CONSOLE_FOLDER


def outbox_path(settings: BackendSettings) -> Path:
    """File of the notifications."""
    return _folder(settings) / NOTIFICATIONS_FILE


def make_sender(
    settings: BackendSettings, journal: Journal, book: EventBook, live_state: LiveState
) -> NotificationSender:
    """The sender of the notifications."""
    console, places = settings.console, StoredPlaces(Path(settings.backend.data))

    def districts_of(cell: str) -> frozenset[str]:
        return frozenset(place.district for place in places.now.in_cell(cell))

    def name_of(cell: str) -> str:
        return places.now.name(cell)

    return NotificationSender(
        console=console,
        rules=NotificationRules(
            console.notifications,
            console.exercise,
            districts_of,
            lambda: places.now.districts,
        ),
        journal=journal,
        events=book,
        outbox=NotificationOutbox(outbox_path(settings)),
        clock=live_state.clock,
        present=live_state.now_s,
        # The heartbeat ends at once while nothing is saved: no notification is sent.
        read_s=lambda: 0.0 if live_state.unsaved else live_state.read_s,
        is_judged=lambda: is_judged(live_state.snapshot()),
        name_of=name_of,
    )


def render_report(settings: BackendSettings, language: str) -> str:
    """The report of the present as a single HTML file.

    The console may run or not. No table is written.

    Args:
        settings: All settings.
        language: ``ja`` or ``en``.

    Raises:
        DamagedDatabaseError: The journal is damaged.
    """
    with naming_damage(_folder(settings)):
        return _render_report(settings, language)


def _render_report(settings: BackendSettings, language: str) -> str:
    data, console = Path(settings.backend.data), settings.console
    limits = HoldLimits(settings.score.hold_s)
    live_state = LiveState(
        tables_folder(settings.backend), time.time, console.exercise, limits
    )
    journal = Journal(_folder(settings) / JOURNAL_FILE)
    thresholds = _open_thresholds(settings, journal)
    live_state.criteria = thresholds.lookup
    live_state.refresh()
    assumed = thresholds.for_cell("none of them").assumed
    places = StoredPlaces(data).now
    return inline_assets(
        SituationReport(live_state, journal, console.place, assumed, places).render(
            language
        )
    )


def _open_thresholds(settings: BackendSettings, journal: Journal) -> Thresholds:
    changes = _folder(settings) / CRITERIA_FILE
    rules = replace(make_cell_rules(settings), changes=changes)
    thresholds = Thresholds(journal, rules)
    thresholds.write_table()  # a table of an earlier release lacks columns
    return thresholds


def _open_reviews(
    settings: BackendSettings, journal: Journal, thresholds: Thresholds
) -> ReviewBook:
    path = _folder(settings) / REVIEWS_FILE
    bench = CellBench(tables_folder(settings.backend), settings.score)
    preview = ReviewPreview(thresholds.rules, bench)
    book = ReviewBook(journal, path, preview)
    book.write_file()  # lost between the journal and the file, if the process died
    return book


def _open_standards(
    live_state: LiveState, places: StoredPlaces, journal: Journal, folder: Path
) -> StandardServices:
    limits = AnswerLimits(time.monotonic)
    things = SensorThingsService(
        live_state.tables, live_state.clock, time.monotonic, limits
    )
    cells = CellFeatures(live_state, limits, places)
    messages = CapMessages(journal, folder / CAP_FOLDER)
    return StandardServices(limits, things, cells, messages)


def _open_calibration(console: ConsoleSection) -> Calibration | None:
    if console.calibration is None:
        return None
    try:
        return read_calibration(Path(console.calibration))
    except CalibrationError as error:
        raise FieldError(
            "console.calibration",
            "a file of evaluate --calibrate for the console",
            console.calibration,
            str(error),
        ) from error


def _check_access(console: ConsoleSection) -> None:
    """Refuse to serve a network without accounts or a proxy that authenticates."""
    if console.accounts is not None or console.proxy_header is not None:
        return
    try:
        is_local = console.host == "localhost" or ip_address(console.host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise FieldError(
            "console.host",
            "an address of this machine, such as 127.0.0.1, without accounts",
            console.host,
            "make accounts with console-account and set console.accounts",
        )

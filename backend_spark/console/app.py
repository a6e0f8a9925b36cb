"""Console: the FastAPI app, its services, and the program that serves it."""

import logging
import os
import secrets
import time
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles

from backend_spark.config import TABLES_FOLDER, ConsoleSettings, Settings
from backend_spark.console import auth, nodes
from backend_spark.console.alert_detector import Watch
from backend_spark.console.audit_log import Journal
from backend_spark.console.auth import Authenticator, LoginService, SessionStore
from backend_spark.console.dependencies import ConsoleServices, Services, viewer
from backend_spark.console.http import HeadersMiddleware, security_headers
from backend_spark.console.live_state import Board, Clock
from backend_spark.console.metrics import Measures
from backend_spark.console.panels import Series
from backend_spark.console.report import Report, standalone
from backend_spark.console.routes import levels, session, skill, thresholds, time_travel
from backend_spark.console.routes import log as alert_log
from backend_spark.console.thresholds import Thresholds
from backend_spark.criteria.cell_rules import Judging
from backend_spark.i18n import WORDS
from service_runtime.errors import FieldError
from service_runtime.lifecycle import Supervision, die_on_unknown_errors, start_loop
from service_runtime.metrics import MetricsSection, serve_metrics
from service_runtime.settings import Problem, SettingsError
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Beat, Pulse
from spatial_mqtt.retained import fetch_several
from spatial_mqtt.topics import GATEWAY_INFO, GATEWAY_PLACES

log = logging.getLogger(__name__)

STATIC: Final = files("backend_spark.console") / "static"
CONSOLE_FOLDER: Final = "console"
JOURNAL: Final = "journal.sqlite"
SESSIONS: Final = "sessions.sqlite"
CRITERIA_TABLE: Final = "criteria.csv"

RENEW_INTERVAL_S: Final = 1.0
RENEW_TIMEOUT_S: Final = 120.0
"""Longest reading of the tables; beyond that the loop hangs."""

MANAGER_ANSWER_S: Final = 5.0
MANAGERS_TIMEOUT_S: Final = 300.0
"""Longest round through all Managers when none answers."""

pages = APIRouter()


@pages.get("/")
def page() -> FileResponse:
    """The page, which holds no data."""
    return FileResponse(str(STATIC / "index.html"), media_type="text/html")


@pages.get("/report", dependencies=[Depends(viewer)])
def report(services: Services, lang: str = "") -> Response:
    """The one-page report of the present."""
    console = services.settings.console
    assumed = services.thresholds.for_cell("none of them").assumed
    made = Report(services.live_state, services.journal, console.place, assumed)
    language = lang if lang in WORDS else console.language
    return HTMLResponse(made.render(language), headers={"Cache-Control": "no-store"})


def make_app(services: ConsoleServices) -> FastAPI:
    """The app, ready to serve."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = services
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)
    app.include_router(pages)
    for routes in (session, levels, alert_log, thresholds, time_travel, skill):
        app.include_router(routes.router)
    app.mount("/static", StaticFiles(directory=str(STATIC)), "static")
    headers = security_headers(_origin(services.settings.console.tiles))
    app.add_middleware(HeadersMiddleware, headers=headers)
    return app


def _origin(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def run(settings: Settings) -> None:
    """Serve the pages until SIGTERM or SIGINT.

    Raises:
        SettingsError: The accounts cannot be read, or are missing although the
            console listens to a network.
    """
    console = settings.console
    services = make_services(settings)
    services.refresh()
    # The first reading covers three days; return the memory that it took.
    pa.default_memory_pool().release_unused()
    die_on_unknown_errors()
    pulse = Pulse(time.monotonic)
    supervision = Supervision.from_environment(
        os.environ,
        os.getpid(),
        pulse,
        lambda: f"{len(services.live_state.grid.tokens)} cells",
    )

    def renew(beat: Beat) -> None:
        while True:
            beat()
            services.refresh()
            time.sleep(RENEW_INTERVAL_S)

    start_loop(pulse, "renew", RENEW_TIMEOUT_S, renew)
    _start_manager_loop(services, settings, pulse)
    section = MetricsSection(listen=console.metrics)
    collect = Measures(services.live_state, pulse).collect
    metrics = serve_metrics(section, collect, settings.tls, "console.metrics")
    for server in metrics:
        server.start()
    web = _web_server(services, console)
    supervision.report_ready()
    log.info("console at http://%s:%d/", console.host, console.port)
    web.run()
    for server in metrics:
        server.stop()
    supervision.close()


def _start_manager_loop(
    services: ConsoleServices, settings: Settings, pulse: Pulse
) -> None:
    """Fetch the list of gateways from the Managers again and again.

    Not in an exercise: its gateways belong to the past.
    """
    if not settings.console.managers or settings.console.exercise:
        return
    managers = [Endpoint.parse(url) for url in settings.console.managers]
    client_id = f"console-{secrets.token_hex(4)}"

    def fetch(manager: Endpoint) -> dict[str, bytes]:
        topics = (GATEWAY_INFO, GATEWAY_PLACES)
        return fetch_several(manager, topics, client_id, MANAGER_ANSWER_S, settings.tls)

    def fetch_gateways(beat: Beat) -> None:
        live_state = services.live_state
        while True:
            beat()
            live_state.gateways.fetch_list(managers, fetch, live_state.now_s())
            time.sleep(nodes.EVERY_S)

    start_loop(pulse, "gateways", MANAGERS_TIMEOUT_S, fetch_gateways)


def _web_server(services: ConsoleServices, console: ConsoleSettings) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            make_app(services),
            host=console.host,
            port=console.port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
    )


def make_services(settings: Settings, clock: Clock = time.time) -> ConsoleServices:
    """Open the services of a data folder.

    Args:
        settings: All settings.
        clock: Unix time.

    Raises:
        SettingsError: See `run`.
    """
    console = settings.console
    folder = Path(settings.backend.data) / CONSOLE_FOLDER
    live_state = Board(
        Path(settings.backend.data) / TABLES_FOLDER, clock, console.exercise
    )
    try:
        accounts = auth.read(Path(console.accounts)) if console.accounts else {}
        _check_access(console)
    except FieldError as error:
        raise SettingsError([Problem.of(error)]) from error
    sessions = SessionStore(folder / SESSIONS)
    key = sessions.signing_key(lambda: secrets.token_bytes(32))
    logins = LoginService(accounts, secrets.token_urlsafe, key, sessions)
    journal = Journal(folder / JOURNAL)
    thresholds = _open_thresholds(settings, journal)
    if thresholds.table.exists():
        thresholds.write_table()  # a table of an earlier release lacks unknown cells
    return ConsoleServices(
        settings=settings,
        live_state=live_state,
        panels=Series(live_state, live_state.tables),
        auth=Authenticator(console, logins, clock),
        journal=journal,
        alert_detector=Watch(live_state, journal, live_state.tables),
        thresholds=thresholds,
        clock=clock,
    )


def report_of(settings: Settings, language: str, clock: Clock = time.time) -> str:
    """The report of the present as a single HTML file.

    The console may run or not. No table is written.

    Args:
        settings: All settings.
        language: ``ja`` or ``en``.
        clock: Unix time.
    """
    data, console = Path(settings.backend.data), settings.console
    live_state = Board(data / TABLES_FOLDER, clock, console.exercise)
    live_state.refresh()
    journal = Journal(data / CONSOLE_FOLDER / JOURNAL)
    assumed = _open_thresholds(settings, journal).for_cell("none of them").assumed
    return standalone(
        Report(live_state, journal, console.place, assumed).render(language)
    )


def _open_thresholds(settings: Settings, journal: Journal) -> Thresholds:
    base = Judging.from_settings(settings.criteria).table
    folder = Path(settings.backend.data) / CONSOLE_FOLDER
    return Thresholds(journal, base, folder / CRITERIA_TABLE)


def _check_access(console: ConsoleSettings) -> None:
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

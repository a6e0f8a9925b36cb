"""The web app: pages, live levels, panels. The one place that knows FastAPI's app.

Composition of the console: clocks, chance, its server.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import FileResponse, HTMLResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles

from backend_spark.config import TABLES_FOLDER, ConsoleSettings, Settings
from backend_spark.console import auth, nodes
from backend_spark.console.alert_detector import Watch
from backend_spark.console.audit_log import Journal
from backend_spark.console.auth import Doors, Gate, Sessions
from backend_spark.console.http import Headed, json, ready, refuse, safe_headers
from backend_spark.console.live_state import Board, Clock
from backend_spark.console.metrics import Measures
from backend_spark.console.node_table import board_of
from backend_spark.console.panels import Series
from backend_spark.console.report import Report, standalone
from backend_spark.console.routes import levels
from backend_spark.console.routes.levels import download_routes
from backend_spark.console.routes.log import log_routes
from backend_spark.console.routes.session import visit_routes
from backend_spark.console.routes.skill import season_routes
from backend_spark.console.routes.thresholds import judge_routes
from backend_spark.console.routes.time_travel import replay_routes
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

STATIC: Final = files("backend_spark.console") / "static"


@dataclass(frozen=True)
class Parts:
    """What the routes work with.

    Attributes:
        settings: All settings.
        board: The present.
        series: Panels.
        gate: Who comes in.
        journal: Alerts, notes, thresholds.
        watch: Writes alerts.
        thresholds: What cells are judged against.
        clock: Unix time.
    """

    settings: Settings
    board: Board
    series: Series
    gate: Gate
    journal: Journal
    watch: Watch
    thresholds: Thresholds
    clock: Callable[[], float]

    def renew(self) -> None:
        """Take what is new in the tables, and tell of it."""
        self.board.refresh()
        if self.watch.look() or self.board.alerts is None:
            self.count_alerts()

    def count_alerts(self) -> None:
        """Let every page know how many alerts wait."""
        self.board.alerts = self.journal.waiting()


def make_app(parts: Parts) -> FastAPI:
    """The app, ready to serve."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)
    app.include_router(page_routes(parts))
    app.include_router(visit_routes(parts.settings.console, parts.gate))
    app.include_router(look_routes(parts))
    app.include_router(course_routes(parts))
    app.include_router(panel_routes(parts))
    app.include_router(
        log_routes(parts.journal, parts.gate, parts.clock, parts.count_alerts)
    )
    app.include_router(
        judge_routes(parts.board, parts.thresholds, parts.gate, parts.clock)
    )
    tables = parts.board.tables
    app.include_router(replay_routes(tables, parts.thresholds, parts.gate))
    app.include_router(season_routes(parts.journal, tables, parts.gate, parts.clock))
    console = parts.settings.console
    app.include_router(download_routes(console, tables, parts.gate, parts.clock))
    app.mount("/static", StaticFiles(directory=str(STATIC)), "static")
    headers = safe_headers(_origin(parts.settings.console.tiles))
    app.add_middleware(Headed, headers=headers)
    return app


def page_routes(parts: Parts) -> APIRouter:
    """The page itself, which holds no data, and the mayor's report, which does."""
    routes = APIRouter()

    @routes.get("/")
    def page() -> FileResponse:
        return FileResponse(str(STATIC / "index.html"), media_type="text/html")

    @routes.get("/report")
    def report(request: Request, lang: str = "") -> Response:
        parts.gate.look(request)
        console = parts.settings.console
        assumed = parts.thresholds.of("none of them").assumed
        made = Report(parts.board, parts.journal, console.place, assumed)
        language = lang if lang in WORDS else console.language
        return HTMLResponse(made.page(language), headers={"Cache-Control": "no-store"})

    return routes


def look_routes(parts: Parts) -> APIRouter:
    """What one may look at."""
    routes = APIRouter(prefix="/api")
    board, gate = parts.board, parts.gate

    @routes.get("/cells")
    def cells(request: Request) -> Response:
        gate.look(request)
        return ready(board.cells_said())

    @routes.get("/nodes")
    def nodes(request: Request) -> Response:
        gate.look(request)
        return ready(board.nodes_said())

    @routes.get("/gateways")
    def gateways(request: Request) -> Response:
        gate.look(request)
        return json(board.gateway_list())

    @routes.get("/health")
    def health(request: Request) -> Response:
        gate.look(request)
        return json(board_of(board))

    return routes


def course_routes(parts: Parts) -> APIRouter:
    """How it came to this, and how it goes on."""
    routes = APIRouter(prefix="/api")
    board, gate = parts.board, parts.gate

    @routes.get("/history")
    def history(request: Request) -> Response:
        gate.look(request)
        begin_s, levels = board.history()
        return Response(
            levels,
            media_type="application/octet-stream",
            headers={"X-Begin": str(begin_s), "Cache-Control": "no-store"},
        )

    @routes.get("/live")
    def events(request: Request) -> StreamingResponse:
        gate.look(request)
        return StreamingResponse(
            levels.events(board.now),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return routes


def panel_routes(parts: Parts) -> APIRouter:
    """One cell or one node."""
    routes = APIRouter(prefix="/api")
    gate = parts.gate

    @routes.get("/cell/{token}")
    def cell(request: Request, token: str) -> Response:
        gate.look(request)
        return _found(
            parts.series.cell(
                token,
                parts.thresholds.of(token),
                is_gold_right=not parts.thresholds.is_changed(token),
            ),
            "cell",
            token,
        )

    @routes.get("/node/{node_id}")
    def node(request: Request, node_id: str) -> Response:
        gate.look(request)
        return _found(parts.series.node(node_id), "node", node_id)

    return routes


def _found(told: dict[str, Any] | None, kind: str, name: str) -> Response:
    if told is None:
        raise refuse(404, f"there is no {kind} {name!r}")
    return json(told)


def _origin(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
CONSOLE_FOLDER: Final = "console"
JOURNAL: Final = "journal.sqlite"
SESSIONS: Final = "sessions.sqlite"
CRITERIA_TABLE: Final = "criteria.csv"
ANSWER_S: Final = 5.0
ASKING_S: Final = 300.0
"""What a round through all Managers may take while none answers."""

SILENCE_S: Final = 120.0
"""What one look at the tables may take; beyond that it hangs."""


def run(settings: Settings) -> None:
    """Serve the pages until SIGTERM or SIGINT.

    Raises:
        SettingsError: The accounts cannot be read, or strangers could come in.
    """
    console = settings.console
    parts = make_parts(settings)
    parts.renew()
    # The first look reads three days; what it took goes back to the machine.
    pa.default_memory_pool().release_unused()
    die_on_unknown_errors()
    pulse = Pulse(time.monotonic)
    supervision = Supervision.of(
        os.environ, os.getpid(), pulse, lambda: f"{len(parts.board.grid.tokens)} cells"
    )

    def renew(beat: Beat) -> None:
        while True:
            beat()
            parts.renew()
            time.sleep(EVERY_S)

    start_loop(pulse, "renew", SILENCE_S, renew)
    _ask_managers(parts, settings, pulse)
    asked = MetricsSection(listen=console.metrics)
    measures = Measures(parts.board, pulse)
    told = serve_metrics(asked, measures.collect, settings.tls, "console.metrics")
    for each in told:
        each.start()
    server = _server(parts, console)
    supervision.ready()
    log.info("the console is up on http://%s:%d/", console.host, console.port)
    server.run()
    for each in told:
        each.stop()
    supervision.close()


def _ask_managers(parts: Parts, settings: Settings, pulse: Pulse) -> None:
    """Keep asking the Managers for their gateways; those of an exercise are past."""
    if not settings.console.managers or settings.console.exercise:
        return
    managers = [Endpoint.parse(url) for url in settings.console.managers]
    client_id = f"console-{secrets.token_hex(4)}"

    def fetch(manager: Endpoint) -> dict[str, bytes]:
        wanted = (GATEWAY_INFO, GATEWAY_PLACES)
        return fetch_several(manager, wanted, client_id, ANSWER_S, settings.tls)

    def ask(beat: Beat) -> None:
        while True:
            beat()
            parts.board.gateways.ask(managers, fetch, parts.board.now_s())
            time.sleep(nodes.EVERY_S)

    start_loop(pulse, "gateways", ASKING_S, ask)


def _server(parts: Parts, console: ConsoleSettings) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            make_app(parts),
            host=console.host,
            port=console.port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
    )


def make_parts(settings: Settings, clock: Clock = time.time) -> Parts:
    """The parts of a data folder.

    Args:
        settings: All settings.
        clock: Unix time.

    Raises:
        SettingsError: See `run`.
    """
    console = settings.console
    tables = Path(settings.backend.data) / TABLES_FOLDER
    board = Board(tables, clock, console.exercise)
    try:
        known = auth.read(Path(console.accounts)) if console.accounts else {}
        _check_open(console)
    except FieldError as error:
        raise SettingsError([Problem.of(error)]) from error
    folder = Path(settings.backend.data) / CONSOLE_FOLDER
    sessions = Sessions(folder / SESSIONS)
    seal = sessions.seal(lambda: secrets.token_bytes(32))
    gate = Gate(console, Doors(known, secrets.token_urlsafe, seal, sessions), clock)
    journal = Journal(folder / JOURNAL)
    base = Judging.by(settings.criteria).table
    thresholds = Thresholds(journal, base, folder / CRITERIA_TABLE)
    if thresholds.table.exists():
        thresholds.export()  # that of an earlier program names known cells only
    watch = Watch(board, journal, tables)
    series = Series(board, tables)
    return Parts(settings, board, series, gate, journal, watch, thresholds, clock)


def report_of(settings: Settings, language: str, clock: Clock = time.time) -> str:
    """The report of the present as a page that stands alone.

    The console may run or not; nothing is written.

    Args:
        settings: All settings.
        language: ``ja`` or ``en``.
        clock: Unix time.
    """
    data, console = Path(settings.backend.data), settings.console
    board = Board(data / TABLES_FOLDER, clock, console.exercise)
    board.refresh()
    journal = Journal(data / CONSOLE_FOLDER / JOURNAL)
    base = Judging.by(settings.criteria).table
    thresholds = Thresholds(journal, base, data / CONSOLE_FOLDER / CRITERIA_TABLE)
    assumed = thresholds.of("none of them").assumed
    return standalone(Report(board, journal, console.place, assumed).page(language))


def _check_open(console: ConsoleSettings) -> None:
    """Refuse to show pages to a network without asking who is there."""
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

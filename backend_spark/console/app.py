"""The web app: pages, live levels, panels. The one place that knows FastAPI's app."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import FileResponse, HTMLResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles

from backend_spark.config import Settings
from backend_spark.console import live
from backend_spark.console.answers import Headed, json, ready, refuse, safe_headers
from backend_spark.console.board import Board
from backend_spark.console.download_routes import download_routes
from backend_spark.console.gate import Gate
from backend_spark.console.health import board_of
from backend_spark.console.journal import Journal
from backend_spark.console.judge_routes import judge_routes
from backend_spark.console.log_routes import log_routes
from backend_spark.console.replay_routes import replay_routes
from backend_spark.console.report import Report
from backend_spark.console.report_words import WORDS
from backend_spark.console.season_routes import season_routes
from backend_spark.console.series import Series
from backend_spark.console.thresholds import Thresholds
from backend_spark.console.visits import visit_routes
from backend_spark.console.watch import Watch

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
            live.events(board.now),
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

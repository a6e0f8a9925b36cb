"""Composition of the console: clocks, chance, its server."""

import logging
import os
import secrets
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pyarrow as pa
import uvicorn

from backend_spark.config import TABLES_FOLDER, Settings
from backend_spark.console import accounts, gateways
from backend_spark.console.app import Parts, make_app
from backend_spark.console.board import Board, Clock
from backend_spark.console.doors import Doors
from backend_spark.console.gate import Gate
from backend_spark.console.journal import Journal
from backend_spark.console.measures import Measures
from backend_spark.console.report import Report, standalone
from backend_spark.console.series import Series
from backend_spark.console.sessions import Sessions
from backend_spark.console.thresholds import Thresholds
from backend_spark.console.watch import Watch
from backend_spark.criteria.judging import Judging
from backend_spark.sections import ConsoleSettings
from spatial_mqtt.daemon import die_on_unknown_errors, start_loop
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.errors import FieldError
from spatial_mqtt.metrics import MetricsSection, serve_metrics
from spatial_mqtt.pulse import Beat, Pulse
from spatial_mqtt.retained import fetch_several
from spatial_mqtt.settings import SettingsError
from spatial_mqtt.supervision import Supervision
from spatial_mqtt.topics import GATEWAY_INFO, GATEWAY_PLACES

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
            time.sleep(gateways.EVERY_S)

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
        known = accounts.read(Path(console.accounts)) if console.accounts else {}
        _check_open(console)
    except FieldError as error:
        raise SettingsError([str(error)]) from error
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

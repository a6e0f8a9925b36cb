"""Composition of ``backend-spark notify``: its clocks, its key, its brokers."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from backend_spark.config import Settings
from backend_spark.ingest.lock import hold
from backend_spark.notify.board import Board, Terms
from backend_spark.notify.levels import current_levels
from backend_spark.notify.service import Connect, Notify, Seal
from backend_spark.tables import open_tables
from spatial_mqtt.connection import Connection
from spatial_mqtt.daemon import die_on_unknown_errors
from spatial_mqtt.endpoint import Endpoint, TlsFiles
from spatial_mqtt.errors import FieldError
from spatial_mqtt.link import Handler, Session
from spatial_mqtt.pulse import Pulse
from spatial_mqtt.settings import SettingsError
from spatial_mqtt.signature import Signer
from spatial_mqtt.supervision import Supervision, serve

SILENCE_S = 120.0
"""One look at the levels of a large table."""


@dataclass(frozen=True)
class Process:
    """The loop, as systemd sees it."""

    notify: Notify
    pulse: Pulse

    def run(self) -> None:
        """Work until `stop`."""
        with self.pulse.expects("notify", SILENCE_S) as beat:
            self.notify.run(beat)

    def stop(self) -> None:
        """End `run`."""
        self.notify.stop()


def run(settings: Settings) -> None:
    """Publish notices until SIGTERM or SIGINT.

    Raises:
        SettingsError: No broker is set, or the key cannot be used.
        AlreadyRunningError: Another process notifies from this data folder.
    """
    section = settings.notify
    if not section.brokers:
        remedy = "write brokers = ['mqtt://manager:port'], those of the Managers"
        raise SettingsError([str(FieldError("notify.brokers", "given", [], remedy))])
    seal = _seal(section.key_file)
    die_on_unknown_errors()
    data = Path(settings.backend.data)
    lock = hold(data / ".lock-notify")
    tables, pulse = open_tables(data), Pulse(time.monotonic)
    terms = Terms(section.from_level, section.hold_s, section.calm_s)
    notify = Notify(
        Board(terms, data / "notices.json"),
        lambda now_s: current_levels(tables, now_s, section.max_age_s),
        seal,
        wall_s=time.time,
        mono_s=time.monotonic,
        every_s=section.every_s,
    )
    session = Session(section.id, keepalive_s=10)
    notify.attach(session, [_connect(u, settings.tls, pulse) for u in section.brokers])
    made = Process(notify, pulse)
    serve(made, Supervision.of(os.environ, os.getpid(), pulse, notify.status))
    os.close(lock)


def _seal(key_file: str | None) -> Seal:
    if key_file is None:
        return lambda _topic, body: body
    try:
        return Signer(key_file).seal
    except FieldError as error:
        raise SettingsError([f"notify.key_file: {error}"]) from error


def _connect(url: str, tls: TlsFiles, pulse: Pulse) -> Connect:
    def connect(session: Session, handler: Handler) -> Connection:
        return Connection(Endpoint.parse(url), session, handler, tls, pulse=pulse)

    return connect

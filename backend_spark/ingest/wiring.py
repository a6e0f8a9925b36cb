"""Composition of the ingest process: its clock, its disk, its broker, its signals."""

import logging
import math
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from backend_spark.config import (
    CHECKPOINTS_FOLDER,
    LOG_FOLDER,
    QUARANTINE_FOLDER,
    Settings,
    broker_of,
)
from backend_spark.ingest.batch import Batch
from backend_spark.ingest.inbox import Inbox
from backend_spark.ingest.log import SegmentWriter
from backend_spark.ingest.measures import Measures
from backend_spark.ingest.past import past_path
from backend_spark.ingest.patience import Patience
from backend_spark.ingest.places import Places
from backend_spark.ingest.process import Mailbox, Process
from backend_spark.ingest.retention import DAY_S, Limits, Quarantined, Retention
from backend_spark.ingest.scored import committed
from backend_spark.ingest.seen import SeenIds
from backend_spark.ingest.service import Ingest
from backend_spark.ingest.standby import Turn
from backend_spark.sections import IngestSettings
from spatial_mqtt.backoff import Backoff
from spatial_mqtt.connection import Connection
from spatial_mqtt.daemon import EXIT_CRASH, die_on_unknown_errors
from spatial_mqtt.endpoint import Endpoint
from spatial_mqtt.link import Session
from spatial_mqtt.metrics import serve_metrics
from spatial_mqtt.pulse import Pulse
from spatial_mqtt.supervision import Supervision, serve

RETRY_CAP_S = 3.0
log = logging.getLogger(__name__)


def run(settings: Settings, *, standby: bool = False) -> None:
    """Ingest until SIGTERM or SIGINT.

    Args:
        settings: All settings.
        standby: Whether to wait while another process ingests under this id here.

    Raises:
        SettingsError: No broker is set.
        AlreadyRunningError: One does, and we are not to wait.
        SegmentError: The log is damaged.
    """
    endpoint = broker_of(settings.ingest)
    die_on_unknown_errors()
    sys.excepthook = _die
    made = _process(settings, endpoint, standby=standby)
    pulse = made.link.pulse
    serve(made, Supervision.of(os.environ, os.getpid(), pulse, made.status))


def _process(settings: Settings, endpoint: Endpoint, *, standby: bool) -> Process:
    ours, data = settings.ingest, Path(settings.backend.data)
    stopped = threading.Event()
    turn = Turn(
        data / LOG_FOLDER / f".lock-{ours.id}",
        ours.takeover_s if standby else None,
        time.monotonic,
        stopped.wait,
    )
    inbox = Inbox(ours.buffer_bytes, stopped.wait)
    mailbox = Mailbox(ours, inbox, lambda: time.time_ns() // 1000)
    link = _link(settings, endpoint, mailbox)
    ingest = _ingest(data, ours, link, Patience(stopped.wait))
    scored = partial(committed, data / CHECKPOINTS_FOLDER)
    measures = Measures(ingest, inbox, link.pulse, scored, lambda: link.is_up)
    return Process(
        link,
        ingest,
        inbox,
        _retentions(data, ours, scored),
        turn,
        partial(serve_metrics, settings.metrics, measures.collect, settings.tls),
        time.time,
        stopped,
    )


def _link(settings: Settings, endpoint: Endpoint, mailbox: Mailbox) -> Connection:
    session = Session(
        client_id=settings.ingest.id,
        filters=[(topic_filter, 1) for topic_filter in settings.ingest.filters],
        expiry_s=settings.ingest.session_expiry_s,
        manual_ack=True,
        receive_maximum=settings.ingest.receive_maximum,
    )
    # Alarms wait for us; one ingest hurts no broker, a thousand nodes would.
    backoff = Backoff(random.Random(), cap_s=RETRY_CAP_S)  # noqa: S311 - jitter
    link = Connection(
        endpoint, session, mailbox, settings.tls, backoff, pulse=Pulse(time.monotonic)
    )
    mailbox.beat = link.beat
    return link


def _ingest(
    data: Path, settings: IngestSettings, link: Connection, patience: Patience
) -> Ingest:
    name = settings.id
    # Sortable by start, and unique even when a clock jumps back.
    stream = f"{name}.{time.time_ns():016x}{secrets.token_hex(4)}"
    return Ingest(
        name=name,
        filters=settings.filters,
        link=link,
        batch=Batch(settings.flush_ms / 1000),
        writer=SegmentWriter(data / LOG_FOLDER, stream),
        quarantine=SegmentWriter(data / QUARANTINE_FOLDER, stream),
        seen=SeenIds(),
        monotonic_s=time.monotonic,
        patience=patience,
        places=Places(Path(settings.places) if settings.places else None),
    )


def _retentions(
    data: Path, settings: IngestSettings, scored: Callable[[], dict[str, int]]
) -> tuple[Retention, ...]:
    limits = Limits(
        settings.keep_days * DAY_S, settings.keep_bytes, settings.keep_segments
    )
    logged, aside = data / LOG_FOLDER, data / QUARANTINE_FOLDER
    return (
        Retention(
            logged,
            settings.id,
            limits,
            scored,
            past_path(logged, settings.id),
        ),
        Retention(
            aside,
            settings.id,
            Limits(math.inf, settings.quarantine_bytes, sys.maxsize),
            Quarantined(aside),
            None,
        ),
    )


def _die(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """End as `die_on_unknown_errors` does, for the main thread."""
    log.critical("unknown error: ending", exc_info=(kind, error, trace))
    logging.shutdown()
    os._exit(EXIT_CRASH)

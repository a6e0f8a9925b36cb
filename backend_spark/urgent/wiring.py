"""Composition of the alerts process: its clock, its lock, its signals."""

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from backend_spark.config import CHECKPOINTS_FOLDER, LOG_FOLDER, TABLES_FOLDER, Settings
from backend_spark.ingest.lock import hold
from backend_spark.sinks.commits import make_tables
from backend_spark.sinks.trim import trim
from backend_spark.tables import open_tables
from backend_spark.urgent.progress import Progress
from backend_spark.urgent.service import Alerts, known_ids, read_offset
from backend_spark.urgent.tail import LogTail
from spatial_mqtt.daemon import die_on_unknown_errors
from spatial_mqtt.pulse import Pulse
from spatial_mqtt.supervision import Supervision, serve

SILENCE_S: Final = 60.0
"""What a sick disk may take for one commit; beyond that it hangs."""

TABLE: Final = "alerts"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Process:
    """The loop, as systemd sees it.

    Attributes:
        alerts: The loop.
        pulse: Listens to it.
        stopping: Ends it.
    """

    alerts: Alerts
    pulse: Pulse
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Work until `stop`."""
        with self.pulse.expects("alerts", SILENCE_S) as beat:
            self.alerts.run(self.stopping, beat)

    def stop(self) -> None:
        """End `run`."""
        self.stopping.set()


def run(settings: Settings) -> None:
    """Write alerts until SIGTERM or SIGINT.

    Raises:
        AlreadyRunningError: Another process writes these alerts.
        SegmentError: The log is damaged.
    """
    die_on_unknown_errors()
    data = Path(settings.backend.data)
    lock = hold(data / TABLES_FOLDER / f".lock-{TABLE}")
    folder = data / LOG_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    make_tables(data / TABLES_FOLDER, [TABLE])
    table = data / TABLES_FOLDER / TABLE
    tail = LogTail(folder, time.monotonic, read_offset(table, folder))

    def trim_alerts() -> None:
        trim(data / TABLES_FOLDER, [TABLE], settings.keep, time.time())

    known = known_ids(open_tables(data))
    progress = Progress(data / CHECKPOINTS_FOLDER / TABLE)
    progress.tell(tail.offset)
    loop = Alerts(table, tail, known, time.monotonic, trim_alerts, progress)
    log.info(
        "%d alerts known, %d streams of the log", loop.seen.count(), len(tail.offset)
    )
    pulse = Pulse(time.monotonic)
    made = Process(loop, pulse)
    serve(made, Supervision.of(os.environ, os.getpid(), pulse, loop.status))
    os.close(lock)

"""Requests for drills: written by the console, published by ``backend-spark notify``.

One file holds the newest request of each cell. The publisher reads it in each round; it
alone has the key and the connections to the Managers.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import FieldError
from service_runtime.files import write_atomic
from slope_science.findings import LOWEST
from spatial_mqtt.announcements import MAX_DRILL_S, Drill
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, drill_topic

log = logging.getLogger(__name__)

DRILLS_FILE: Final = "drills.json"
MIN_DRILL_LEVEL: Final = 2


def topic_of_drill(cell: str) -> str:
    """Topic of the drill of a cell.

    Raises:
        FieldError: The token is not that of a cell.
    """
    return drill_topic(cell_topic(Cell.from_token(cell)))


@dataclass(frozen=True)
class DrillRequests:
    """The file of the requests.

    Attributes:
        path: The file; it need not exist.
    """

    path: Path
    _warned: list[str] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def read(self) -> dict[str, Drill]:
        """The newest request of each cell; those of a damaged file are ignored."""
        try:
            return decode_json(self.path.read_bytes(), dict[str, Drill])
        except FileNotFoundError:
            return {}
        except (OSError, *DECODE_ERRORS) as error:
            if str(error) not in self._warned:
                self._warned[:] = [str(error)]
                log.error("%s: no drill is published: %s", self.path, error)  # noqa: TRY400
            return {}

    def start(self, cell: str, level: int, duration_s: float, now_s: float) -> Drill:
        """Request a drill of a cell.

        Raises:
            FieldError: Level, duration or cell are out of range; nothing is written.
        """
        topic_of_drill(cell)
        if level < MIN_DRILL_LEVEL:
            raise FieldError("level", f"{MIN_DRILL_LEVEL} or more", level)
        if not 1 <= duration_s <= MAX_DRILL_S:
            raise FieldError("duration_s", f"1 to {MAX_DRILL_S:g}", duration_s)
        try:
            drill = Drill(level, now_s + duration_s, now_s)
        except ValueError as error:
            rule = f"a level of the ladder from {MIN_DRILL_LEVEL}"
            raise FieldError("level", rule, level, str(error)) from error
        self._write(cell, drill, now_s)
        return drill

    def end(self, cell: str, now_s: float) -> Drill:
        """End the drill of a cell before its time."""
        drill = Drill(LOWEST, now_s, now_s, withdrawn=True)
        self._write(cell, drill, now_s)
        return drill

    def _write(self, cell: str, drill: Drill, now_s: float) -> None:
        with self._lock:  # two requests at once must not replace one another
            known = self.read()
            kept = {c: d for c, d in known.items() if now_s - d.at_s <= KEPT_S}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, msgspec.json.encode({**kept, cell: drill}))


KEPT_S: Final = 7 * 86_400.0
"""How long an ended drill is shown."""


def due_drills(requests: DrillRequests, now_s: float) -> dict[str, Drill]:
    """Drills to publish by their topic: those that have not ended, or end another."""
    found = {}
    for cell, drill in requests.read().items():
        is_fresh = drill.withdrawn and now_s - drill.at_s < MAX_DRILL_S
        if is_fresh or now_s < drill.until_s:
            found[topic_of_drill(cell)] = drill
    return found

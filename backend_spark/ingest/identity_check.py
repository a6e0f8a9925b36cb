"""Where each name may speak from, as the authority's certificates say.

A broker tells nobody who published, but a message tells its node and its place. A
gateway that invents messages cannot use the name of a node elsewhere: its certificate
bounds where it may publish, and this file bounds the name to its place.
"""

import logging
from pathlib import Path

import msgspec

from backend_spark.ingest.messages import Arrival
from service_runtime.errors import MAX_SHOWN_CHARS
from service_runtime.settings import Problem, SettingsError
from spatial_mqtt.topics import covers

log = logging.getLogger(__name__)

Areas = dict[str, tuple[str, ...]]
_UNUSABLE = (OSError, msgspec.MsgspecError, ValueError, RecursionError)
"""Not there, no JSON, no UTF-8, lists in lists without end."""


class Places:
    """The file that ``gateway-daemon ca places`` writes, read anew when it changes.

    Args:
        path: The file; None lets everybody speak from everywhere.

    Raises:
        SettingsError: It cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._mark: tuple[int, int] | None = None
        self._areas: Areas = {}
        if path is None:
            return
        try:
            self._read(path)
        except _UNUSABLE as error:
            remedy = "write it with gateway-daemon ca places --out"
            rule = f"cannot be used: {error}"
            problem = Problem("ingest.places", rule, remedy=remedy, part=str(path))
            raise SettingsError([problem]) from error

    def look(self) -> None:
        """Read the file if it has changed; what cannot be used changes nothing."""
        if self._path is None:
            return
        try:
            self._read(self._path)
        except _UNUSABLE as error:
            log.warning("%s is not taken: %s", self._path, error)

    def judged(self, arrival: Arrival) -> Arrival:
        """A message; on its way to quarantine when its name belongs elsewhere.

        A name that is not in the file is believed: its certificate may be new.
        """
        if arrival.id is None:
            return arrival
        areas = self._areas.get(arrival.id.node)
        topic = arrival.message.topic
        if areas is None or any(covers(area, topic) for area in areas):
            return arrival
        name, shown = arrival.id.node, topic[:MAX_SHOWN_CHARS]
        return arrival.put_aside(
            f"topic must be in {', '.join(areas)}, where the certificate of {name} "
            f"lets it speak, got {shown!r}"
        )

    def _read(self, path: Path) -> None:
        found = path.stat()
        mark = found.st_mtime_ns, found.st_ino
        if mark == self._mark:
            return
        self._areas = msgspec.json.decode(path.read_bytes(), type=Areas)
        self._mark = mark
        log.info("%s: places of %d names", path, len(self._areas))

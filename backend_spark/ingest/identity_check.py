"""Identity check: from which areas each node id may publish.

A broker does not forward the publisher's identity, but a message contains its node id
and its topic the cell. The gateway's certificate limits where it may publish; this file
limits each node id to its area, so a compromised gateway cannot publish under the id of
a node elsewhere.
"""

import logging
from pathlib import Path

from backend_spark.ingest.messages import ClassifiedMessage
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import MAX_SHOWN_CHARS
from service_runtime.settings import Problem, SettingsError
from spatial_mqtt.topics import covers

log = logging.getLogger(__name__)

NodeAreas = dict[str, tuple[str, ...]]
_UNUSABLE = (OSError, *DECODE_ERRORS)
"""Missing, not JSON, not UTF-8, or nested too deeply."""


class PublisherAreaCheck:
    """Areas of node ids, from the file that ``gateway-daemon ca places`` writes.

    Args:
        path: The file; None allows every node id everywhere.

    Raises:
        SettingsError: The file cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._areas: NodeAreas = {}
        if path is None:
            return
        try:
            self._read(path)
        except _UNUSABLE as error:
            remedy = "write it with gateway-daemon ca places --out"
            rule = f"cannot be used: {error}"
            problem = Problem("ingest.places", rule, remedy=remedy, part=str(path))
            raise SettingsError([problem]) from error

    def reload_if_changed(self) -> None:
        """Read the file if it has changed; an unusable file is logged and ignored."""
        if self._path is None:
            return
        try:
            self._read(self._path)
        except _UNUSABLE as error:
            log.warning("%s is ignored: %s", self._path, error)

    def check(self, arrival: ClassifiedMessage) -> ClassifiedMessage:
        """The message, marked for quarantine if its node id belongs to another area.

        An id that is not in the file is accepted: its certificate may be new.
        """
        if arrival.id is None:
            return arrival
        areas = self._areas.get(arrival.id.node)
        topic = arrival.message.topic
        if areas is None or any(covers(area, topic) for area in areas):
            return arrival
        return arrival.to_quarantine(
            f"topic must be in {', '.join(areas)}, where the certificate of "
            f"{arrival.id.node} lets it publish, got {topic[:MAX_SHOWN_CHARS]!r}"
        )

    def _read(self, path: Path) -> None:
        status = path.stat()
        version = status.st_mtime_ns, status.st_ino
        if version == self._version:
            return
        self._areas = decode_json(path.read_bytes(), NodeAreas)
        self._version = version
        log.info("%s: areas of %d node ids", path, len(self._areas))

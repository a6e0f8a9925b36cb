"""Checks of arriving messages: the area of a node id, and the clock of the receipt.

A broker does not forward the publisher's identity, but a message contains its node id
and its topic the cell. The gateway's certificate limits where it may publish; a file
limits each node id to its area, so a compromised gateway cannot publish under the id of
a node elsewhere.

A reading that is dated after its receipt is not scored, because one node's clock may
run ahead. If the clock of the ingester is behind, that concerns every node: all
readings of a town would fail for good. No delay makes a reading newer than its receipt,
so nodes that agree are right.

Leads are kept over the monotonic clock, so that they are right at once when this clock
is set. Otherwise the next times of receipt would be ahead by the old lead, and with
them the readings of nodes without a set clock, whose times are those of their receipt.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from backend_spark.ingest.messages import ClassifiedMessage
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import MAX_SHOWN_CHARS
from service_runtime.settings import Problem, SettingsError
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.senml import decode_time
from spatial_mqtt.topics import covers

log = logging.getLogger(__name__)

NodeAreas = dict[str, tuple[str, ...]]
_UNUSABLE = (OSError, *DECODE_ERRORS)
"""Missing, not JSON, not UTF-8, or nested too deeply."""

MIN_NODES: Final = 3
"""Nodes that must have sent a time: fewer do not show which clock is wrong."""

MIN_LEAD_S: Final = 300.0
"""Lead of the nodes' clocks that is corrected; smaller ones harm nothing."""

NODE_EVERY_S: Final = 60.0
FORGET_S: Final = 3600.0
MAX_NODES: Final = 1000
"""The node that was read longest ago is forgotten first."""


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


@dataclass
class ClockCorrection:
    """Lead of the nodes' clocks over that of the ingester.

    Attributes:
        offset_s: What is added to times of receipt: the median lead, if the clocks of
            more than half of the nodes are ahead by `MIN_LEAD_S`; otherwise 0.
    """

    offset_s: float = 0.0
    _leads: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    _middle_s: float | None = None

    def correct(self, arrival: ClassifiedMessage, now_s: float) -> ClassifiedMessage:
        """Read the time of a message if that is due, and correct its receipt.

        Args:
            arrival: The message.
            now_s: Monotonic time of its receipt.
        """
        row = arrival.row
        if row.node is not None and self._is_due(row.node, now_s):
            self._observe(row.node, row.payload, now_s)
        self._update(row.received_us / 1e6 - now_s)
        if not self.offset_s:
            return arrival
        received_us = row.received_us + round(self.offset_s * 1e6)
        return arrival._replace(row=row._replace(received_us=received_us))

    def _is_due(self, node: str, now_s: float) -> bool:
        at_s, _ = self._leads.get(node, (float("-inf"), 0.0))
        return now_s - at_s >= NODE_EVERY_S

    def _observe(self, node: str, payload: bytes, now_s: float) -> None:
        try:
            time_s = decode_time(payload)
        except EnvelopeError:
            return
        if time_s is None:
            return
        self._leads[node] = now_s, time_s - now_s
        self._leads.move_to_end(node)
        while len(self._leads) > MAX_NODES or self._oldest_s() < now_s - FORGET_S:
            self._leads.popitem(last=False)
        leads = [lead for _, lead in self._leads.values()]
        self._middle_s = median(leads) if len(leads) >= MIN_NODES else None

    def _oldest_s(self) -> float:
        return next(iter(self._leads.values()))[0]

    def _update(self, clock_s: float) -> None:
        """Update the offset by the lead of this machine's clock over the monotonic."""
        middle = 0.0 if self._middle_s is None else self._middle_s - clock_s
        offset_s = middle if middle >= MIN_LEAD_S else 0.0
        if bool(offset_s) != bool(self.offset_s):
            log.error(
                "the clocks of most of %d nodes are %.0f s ahead of this machine's; "
                "times of receipt are %s",
                len(self._leads),
                middle,
                "corrected by that: set this clock" if offset_s else "not corrected",
            )
        self.offset_s = offset_s

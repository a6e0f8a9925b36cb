"""Record of the notices and drills that the Managers' brokers accepted.

The publisher writes it; the console reads it for the way back of each cell.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from service_runtime.files import read_json_or, write_best_effort

SENT_FILE: Final = "notices-sent.json"
MAX_TOPICS: Final = 50_000


class SentOrder(msgspec.Struct):
    """The newest notice or drill of a topic that a broker accepted.

    Attributes:
        at_s: `Notice.at_s` or `Drill.at_s`.
        accepted: Unix time of the acceptance (PUBACK) of each broker, by ``host:port``.
    """

    at_s: float
    accepted: dict[str, float] = {}


def read_sent(data: Path) -> dict[str, SentOrder]:
    """The record in a data folder, by topic; empty without one."""
    return read_json_or(data / SENT_FILE, dict[str, SentOrder], {})


@dataclass
class DeliveryRecord:
    """The publisher's side.

    Attributes:
        data: The data folder.
    """

    data: Path
    _sent: dict[str, SentOrder] = field(default_factory=dict)
    _is_new: bool = False

    def __post_init__(self) -> None:
        """Go on from the record of the last run."""
        self._sent = read_sent(self.data)

    def accept(self, topic: str, at_s: float, broker: str, now_s: float) -> None:
        """A broker has accepted a notice or drill; only the first time counts."""
        known = self._sent.get(topic)
        if known is None or known.at_s < at_s:
            known = self._sent[topic] = SentOrder(at_s)
        if known.at_s == at_s and broker not in known.accepted:
            known.accepted[broker] = now_s
            self._is_new = True

    def save(self) -> None:
        """Write the record if it is new; the oldest topics are dropped.

        If it cannot be written, the next call tries again.
        """
        if not self._is_new:
            return
        newest = sorted(self._sent.items(), key=lambda each: -each[1].at_s)
        self._sent = dict(newest[:MAX_TOPICS])
        rows = msgspec.to_builtins(self._sent)
        path = self.data / SENT_FILE
        self._is_new = not write_best_effort(path, json.dumps(rows).encode())

"""Who says another's name: put aside, counted, and never given a receipt.

The broker lets a certificate publish under ``/from/<its own name>/`` only, so what
comes there is from whom it says. A message's id names a node, too; when the two differ
somebody speaks for another, or a node's settings and its certificate do not belong
together. Its sender, if it is one of ours, keeps the message. What has no id of its
own gets the gateway's, and may come from anybody who may publish there.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from gateway_daemon.gateway.intake import Taken

log = logging.getLogger(__name__)

MOST_BYTES = 16 * 2**20
"""Of one file; the one before it is kept, too."""

TELL_EVERY_S = 60.0


class Impostors:
    """Keeps what came under a false name, for whoever looks into it.

    Args:
        path: File of one JSON object a line: when, on which topic, under which id,
            and the payload in base64.
        wall_s: Unix time.
        has_names: Whether our broker's clients have certificates. Without, nobody's
            name is known and every id is believed.

    Attributes:
        count: Messages that were turned away, since our start.
    """

    def __init__(
        self, path: Path, wall_s: Callable[[], float], *, has_names: bool
    ) -> None:
        self._path = path
        self._wall_s = wall_s
        self._has_names = has_names
        self._told_s: float | None = None
        self.count = 0

    def turn_away(self, arrived: Iterable[Taken]) -> list[Taken]:
        """What may be stored; the rest is kept aside."""
        genuine: list[Taken] = []
        false: list[Taken] = []
        for taken in arrived:
            (genuine if self._is_genuine(taken) else false).append(taken)
        if false:
            self._keep(false)
        return genuine

    def _is_genuine(self, taken: Taken) -> bool:
        claimed = taken.draft.id
        if claimed is None:
            return True
        if taken.by is None:
            return not self._has_names
        return claimed.node == taken.by

    def _keep(self, false: list[Taken]) -> None:
        self.count += len(false)
        now_s = self._wall_s()
        if self._told_s is None or abs(now_s - self._told_s) >= TELL_EVERY_S:
            self._told_s = now_s
            log.warning(
                "%s says it is %s; put aside without a receipt in %s (%d so far)",
                false[0].by or "somebody without a name in the topic",
                false[0].draft.id,
                self._path,
                self.count,
            )
        lines = b"".join(_line(taken, now_s) for taken in false)
        try:
            self._append(lines)
        except OSError as error:  # evidence; no reason to hold up the others
            log.warning("%s is not written: %s", self._path, error)

    def _append(self, lines: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        with self._path.open("ab") as file:
            file.write(lines)


def _line(taken: Taken, now_s: float) -> bytes:
    told = {
        "at": now_s,
        "topic": taken.incoming.topic,
        "id": str(taken.draft.id),
        "payload": taken.incoming.payload,
    }
    return msgspec.json.encode(told) + b"\n"

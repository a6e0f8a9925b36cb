"""State of the published notices, in a file, and the current level of each cell."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset as ds

from backend_spark.tables.reader import DeltaTables
from service_runtime.errors import FieldError
from service_runtime.files import write_atomic
from spatial_mqtt.announcements import Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, notice_topic

log = logging.getLogger(__name__)

AHEAD_S = 600.0
"""The time of a step is its end, which may be ahead of now."""

_TICK_S = 0.001


@dataclass(frozen=True)
class NoticePolicy:
    """When a level is published.

    Attributes:
        from_level: Lowest level that is published.
        hold_s: How long a notice is valid; it is renewed after half of that.
        calm_s: How long a level must have been lower before the notice is lowered.
    """

    from_level: int
    hold_s: float
    calm_s: float = 0.0


class NoticeState:
    """Published notices by topic.

    Args:
        policy: When a level is published.
        path: File of the notices, so that their times never go back after a restart.
    """

    def __init__(self, policy: NoticePolicy, path: Path) -> None:
        self._terms = policy
        self._path = path
        self.notices: dict[str, Notice] = _read_notices(path)
        self._last_at_s: dict[str, dict[int, float]] = {}

    def update(self, levels: Mapping[str, int], now_s: float) -> dict[str, Notice]:
        """Update the notices from the current levels.

        A cell without a level keeps its notice until that expires, because unknown is
        not safe. A rise is published at once, a fall after `calm_s`, so that a
        fluctuating level does not switch sirens on and off.

        Args:
            levels: Level by cell token.
            now_s: Unix time.

        Returns:
            New notices by topic; they are in the file.
        """
        new: dict[str, Notice] = {}
        for token, level in levels.items():
            try:
                topic = notice_topic(cell_topic(Cell.from_token(token)))
            except FieldError as error:
                log.error("the levels table has an invalid cell: %s", error)  # noqa: TRY400
                continue
            held = self._highest_recent(topic, level, now_s)
            notice = self._next_notice(self.notices.get(topic), held, now_s)
            if notice is not None:
                new[topic] = notice
        self.notices.update(new)
        expired = [t for t, n in self.notices.items() if self._is_expired(n, now_s)]
        for topic in expired:
            del self.notices[topic]
            self._last_at_s.pop(topic, None)
        if new or expired:
            self._write()
        return new

    def _highest_recent(self, topic: str, level: int, now_s: float) -> int:
        """The highest level of the last `calm_s`.

        After a restart the published level counts as current, so that it is held for
        too long rather than too short.
        """
        known = self.notices.get(topic)
        if topic not in self._last_at_s:
            is_in_force = known is not None and not known.withdrawn
            initial = {known.level: now_s} if known and is_in_force else {}
            self._last_at_s[topic] = initial
        last_at_s = self._last_at_s[topic]
        last_at_s[level] = now_s
        for each, at_s in list(last_at_s.items()):
            # A clock that was set back must not hold a level for longer.
            last_at_s[each] = min(at_s, now_s)
            if now_s - at_s > self._terms.calm_s:
                del last_at_s[each]
        return max(last_at_s)

    def _next_notice(
        self, known: Notice | None, level: int, now_s: float
    ) -> Notice | None:
        terms = self._terms
        # A clock that was set back must not make the notice older than the last one.
        at_s = now_s if known is None else max(now_s, known.at_s + _TICK_S)
        if level < terms.from_level:
            if known is None or known.withdrawn:
                return None
            return Notice(at_s=at_s, withdrawn=True)
        is_same = known is not None and known.level == level
        if known is not None and is_same and known.until_s - now_s > terms.hold_s / 2:
            return None
        return Notice(level, now_s + terms.hold_s, at_s=at_s)

    def _is_expired(self, notice: Notice, now_s: float) -> bool:
        """Whether a notice is neither in force nor needed to compare times with."""
        return now_s - max(notice.until_s, notice.at_s) > 2 * self._terms.hold_s

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        texts = {topic: n.encode().decode() for topic, n in self.notices.items()}
        write_atomic(self._path, json.dumps(texts).encode())


def _read_notices(path: Path) -> dict[str, Notice]:
    try:
        texts = json.loads(path.read_text())
        return {t: Notice.decode(text.encode()) for t, text in texts.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        log.warning("cannot read the notices published before: %s", error)
        return {}


def read_current_levels(
    tables: DeltaTables, now_s: float, max_age_s: float
) -> Mapping[str, int]:
    """Current level of each cell, by token.

    Args:
        tables: The tables.
        now_s: Unix time.
        max_age_s: Age from which a level is not current.

    Returns:
        Cells whose newest step has a level; a cell without one is not level 1.
    """
    begin, end = (
        datetime.fromtimestamp(at_s, UTC)
        for at_s in (now_s - max_age_s, now_s + AHEAD_S)
    )
    is_current = (ds.field("at") >= begin) & (ds.field("at") <= end)
    rows = tables.dataset("levels").to_table(
        columns=["cell", "at", "level", "notice_level"], filter=is_current
    )
    newest: dict[str, tuple[datetime, int | None]] = {}
    for row in rows.to_pylist():
        known = newest.get(row["cell"])
        if known is None or row["at"] > known[0]:
            capped = row["notice_level"]
            newest[row["cell"]] = row["at"], row["level"] if capped is None else capped
    return {cell: level for cell, (_, level) in newest.items() if level is not None}

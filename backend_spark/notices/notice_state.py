"""What the notices should say, and what they said before. Pure but for its file.

What the level of each cell is now, from the levels table.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset as ds

from backend_spark.tables.reader import Tables
from service_runtime.errors import FieldError
from service_runtime.files import fsync_file, fsync_folder
from spatial_mqtt.announcements import Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, notice_topic

log = logging.getLogger(__name__)

LOWEST = 1
_TICK_S = 0.001


@dataclass(frozen=True)
class Terms:
    """When a level is told.

    Attributes:
        from_level: The lowest level that has a notice.
        hold_s: How long a notice holds; it is renewed after half of that.
        calm_s: How long a level must have been lower before it is told lower.
    """

    from_level: int
    hold_s: float
    calm_s: float = 0.0


class Board:
    """The notices that are out.

    Args:
        terms: When a level is told.
        path: File that keeps them, so that times never go back.
    """

    def __init__(self, terms: Terms, path: Path) -> None:
        self._terms = terms
        self._path = path
        self.notices: dict[str, Notice] = _restored(path)
        self._reached: dict[str, dict[int, float]] = {}

    def update(self, levels: Mapping[str, int], now_s: float) -> dict[str, Notice]:
        """Take the levels of now.

        A cell without a judgement keeps its notice until it ends: what is not known
        is not safe. A rise is told at once; a fall when it has lasted, so that a
        level that wavers switches no siren on and off.

        Args:
            levels: By the cells' tokens.
            now_s: Unix time.

        Returns:
            The notices that are new, by topic; they are in the file.
        """
        fresh: dict[str, Notice] = {}
        for token, level in levels.items():
            try:
                topic = notice_topic(cell_topic(Cell.from_token(token)))
            except FieldError as error:
                log.error("levels name a cell that is none: %s", error)  # noqa: TRY400
                continue
            held = self._held(topic, level, now_s)
            notice = self._due(self.notices.get(topic), held, now_s)
            if notice is not None:
                fresh[topic] = notice
        self.notices.update(fresh)
        over = [t for t, n in self.notices.items() if self._is_over(n, now_s)]
        for topic in over:
            del self.notices[topic]
            self._reached.pop(topic, None)
        if fresh or over:
            self._keep()
        return fresh

    def _held(self, topic: str, level: int, now_s: float) -> int:
        """The highest level of the last `calm_s`.

        After a restart what was told counts as just reached: longer rather than
        shorter.
        """
        known = self.notices.get(topic)
        if topic not in self._reached:
            is_out = known is not None and not known.withdrawn
            self._reached[topic] = {known.level: now_s} if known and is_out else {}
        reached = self._reached[topic]
        reached[level] = now_s
        for each, last_s in list(reached.items()):
            # a clock that was set back must not hold a level for longer
            reached[each] = min(last_s, now_s)
            if now_s - last_s > self._terms.calm_s:
                del reached[each]
        return max(reached)

    def _due(self, known: Notice | None, level: int, now_s: float) -> Notice | None:
        terms = self._terms
        # a clock that was set back must not make the notice an old one
        at_s = now_s if known is None else max(now_s, known.at_s + _TICK_S)
        if level < terms.from_level:
            if known is None or known.withdrawn:
                return None
            return Notice(at_s=at_s, withdrawn=True)
        is_same = known is not None and known.level == level
        if known is not None and is_same and known.until_s - now_s > terms.hold_s / 2:
            return None
        return Notice(level, now_s + terms.hold_s, at_s=at_s)

    def _is_over(self, notice: Notice, now_s: float) -> bool:
        """Whether nobody remembers it: neither in force nor to be compared with."""
        return now_s - max(notice.until_s, notice.at_s) > 2 * self._terms.hold_s

    def _keep(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        told = {topic: n.encode().decode() for topic, n in self.notices.items()}
        fresh.write_text(json.dumps(told))
        fsync_file(fresh)
        fresh.replace(self._path)
        fsync_folder(self._path.parent)


def _restored(path: Path) -> dict[str, Notice]:
    try:
        told = json.loads(path.read_text())
        return {t: Notice.decode(text.encode()) for t, text in told.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        log.warning("notices of before are not known: %s", error)
        return {}


AHEAD_S = 600.0
"""A step is named by its end."""


def current_levels(tables: Tables, now_s: float, max_age_s: float) -> Mapping[str, int]:
    """The newest judgement of each cell, by its token.

    Args:
        tables: The tables.
        now_s: Unix time.
        max_age_s: An older judgement says nothing of now.

    Returns:
        Cells whose newest step has a level; "no judgement" is not among them, and is
        no level 1.
    """
    begin, end = (
        datetime.fromtimestamp(at_s, UTC)
        for at_s in (now_s - max_age_s, now_s + AHEAD_S)
    )
    is_now = (ds.field("at") >= begin) & (ds.field("at") <= end)
    rows = tables.dataset("levels").to_table(
        columns=["cell", "at", "level"], filter=is_now
    )
    newest: dict[str, tuple[datetime, int | None]] = {}
    for row in rows.to_pylist():
        known = newest.get(row["cell"])
        if known is None or row["at"] > known[0]:
            newest[row["cell"]] = row["at"], row["level"]
    return {cell: level for cell, (_, level) in newest.items() if level is not None}

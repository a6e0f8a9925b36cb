"""Changes by messages and reviews: which cells to score, and why their rows change."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from backend_spark.scoring import node_summary
from backend_spark.scoring.nearby_gauges import CellPlaces
from backend_spark.scoring.reviews import ReadingReview
from backend_spark.scoring.revisions import NewReadings, add_news, merge_news

log = logging.getLogger(__name__)

_MICRO = 1_000_000


@dataclass(frozen=True)
class ReceivedChanges:
    """Cells and nodes that new messages change.

    Attributes:
        earliest_us: For each cell the Unix time, in microseconds, of its earliest
            new reading.
        rejected: Number of packs that cannot be decoded.
        news: For each cell the messages of its nodes, as causes of revisions.
        node_rows: Newest `node_summary` row of each node.
    """

    earliest_us: dict[str, int]
    rejected: int
    news: dict[str, list[NewReadings]]
    node_rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_rows(
        cls, rows: Iterable[dict[str, Any]], words: Iterable[node_summary.Row] = ()
    ) -> "ReceivedChanges":
        """Merge rows of schemas.TOUCHED and of `node_summary`."""
        earliest_us: dict[str, int] = {}
        news: dict[str, dict[str, NewReadings]] = {}
        rejected = 0
        newest: dict[str, node_summary.Row] = {}
        node_summary.merge_into(newest, words)
        for row in rows:
            cell, at_us = row.pop("cell"), row.pop("earliest_us")
            rejected += row.pop("rejected")
            if cell is not None and at_us is not None:
                earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
                add_news(news.setdefault(cell, {}), NewReadings(**row))
        news_of = {cell: list(by_node.values()) for cell, by_node in news.items()}
        return cls(earliest_us, rejected, news_of, newest)

    def within_horizon(
        self, newest_us: Mapping[str, int], horizon_us: int
    ) -> "ReceivedChanges":
        """Without what is older than the horizon, as after a clock that was set wrong.

        Such a reading stays in silver. No level follows from it: the rain before it is
        not known any more, and what was published then would be replaced by less.

        Args:
            newest_us: Unix time of the newest reading of each cell.
            horizon_us: Its greatest age beside a reading that counts.
        """
        earliest_us = {}
        for cell, at_us in self.earliest_us.items():
            earliest_us[cell] = max(at_us, newest_us.get(cell, at_us) - horizon_us)
            if earliest_us[cell] > at_us:
                log.warning(
                    "cell %s: a reading %.1f days before its newest one is not scored",
                    cell,
                    (newest_us[cell] - at_us) / 86_400e6,
                )
        return replace(self, earliest_us=earliest_us)

    def with_reviews(
        self, causes: Iterable[tuple[ReadingReview, NewReadings]]
    ) -> "ReceivedChanges":
        """With the cells of reviews that begin or cease to count, and the causes."""
        earliest_us, news = dict(self.earliest_us), dict(self.news)
        for review, cause in causes:
            cell, at_us = review.cell, round(review.from_s * _MICRO)
            earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
            news[cell] = merge_news([*news.get(cell, ()), cause])
        return replace(self, earliest_us=earliest_us, news=news)

    def groups(
        self, max_cost: Callable[[], float], cost_of: Callable[[str], float]
    ) -> Iterator["ReceivedChanges"]:
        """Cells sorted by token, in groups with a limit of their cost.

        Args:
            max_cost: Gives the cost of the next group, if it has several cells.
            cost_of: Gives the cost of a cell.
        """
        group: list[str] = []
        cost, most = 0.0, max_cost()
        for cell in sorted(self.earliest_us):
            cost += cost_of(cell)
            if group and cost > most:
                yield self._only(group)
                group, cost, most = [], cost_of(cell), max_cost()
            group.append(cell)
        if group:
            yield self._only(group)

    def _only(self, cells: Sequence[str]) -> "ReceivedChanges":
        earliest_us = {cell: self.earliest_us[cell] for cell in cells}
        return ReceivedChanges(earliest_us, 0, {c: self.news[c] for c in cells})


@dataclass(frozen=True)
class PassCells:
    """Cells of a pass.

    Attributes:
        places: Cells with a node.
        changes: Changes that the pass scores.
        reviews: Reviews of readings that count.
    """

    places: CellPlaces
    changes: ReceivedChanges
    reviews: Sequence[ReadingReview] = ()


@dataclass
class UnscoredChanges:
    """Changes by batches that no pass has scored yet.

    Attributes:
        changes: Changed cells and nodes.
        batch_id: Last of the batches; None without any.
        files: Files of silver from these batches.
        lock: Held while a batch is committed and added, and while a pass takes all.
    """

    changes: ReceivedChanges = field(default_factory=lambda: ReceivedChanges({}, 0, {}))
    batch_id: int | None = None
    files: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    def take_all(self) -> "UnscoredChanges":
        """Remove and return all changes; later ones are for the next pass."""
        with self.lock:
            pending = UnscoredChanges(self.changes, self.batch_id, self.files)
            self.changes, self.batch_id, self.files = (
                ReceivedChanges({}, 0, {}),
                None,
                set(),
            )
        return pending

    def add(self, touched: ReceivedChanges, batch_id: int) -> None:
        """Add the changes by a batch."""
        earliest_us, news = self.changes.earliest_us, self.changes.news
        for cell, at_us in touched.earliest_us.items():
            earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
            news[cell] = merge_news([*news.get(cell, ()), *touched.news[cell]])
        node_summary.merge_into(self.changes.node_rows, touched.node_rows.values())
        self.batch_id = max(batch_id, -1 if self.batch_id is None else self.batch_id)

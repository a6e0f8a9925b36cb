"""Bounded answers to other programs: limits of their work, and pages of rows by time.

A walk goes through a table of any size in intervals of time that become longer, one
query each, until the page is full. A page ends where its time is over; the position of
the last row continues it. So neither years of rows nor a rare condition fill the memory
or keep a processor.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backend_spark.errors import StandardsRequestError
from backend_spark.tables.reader import DeltaTables, sql_literal

ANSWER_S: Final = 10.0
MAX_AT_ONCE: Final = 2
WAIT_S: Final = 5.0
"""Maximum time that a request waits for others to end."""

MAX_ENTITIES: Final = 10_000
"""Entities of one answer, with those inside of others."""

Row = dict[str, Any]

FIRST_SPAN: Final = timedelta(days=1)
SPAN_GROWTH: Final = 4
CHUNK_ROWS: Final = 10_000
"""Rows that are in memory at once while they are checked one by one."""

MAX_COUNTED: Final = 50_000_000
"""Rows of the files that one count reads."""

_FIRST_TIME: Final = datetime(1678, 1, 1, tzinfo=UTC)
_LAST_TIME: Final = datetime(2261, 12, 31, tzinfo=UTC)
"""Limits of a time with nanoseconds, as the queries have."""

_POSITION: Final = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,9})")
_TICK: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class AnswerBudget:
    """Work that one answer may still do.

    Attributes:
        until_s: When its time is over.
        monotonic: The clock.
        entities: Entities that it may still hold.
    """

    until_s: float
    monotonic: Callable[[], float]
    entities: int = MAX_ENTITIES

    def is_over(self) -> bool:
        """Whether time or entities are used up."""
        return self.entities <= 0 or self.monotonic() > self.until_s


class AnswerLimits:
    """Places in which answers are computed; for several threads.

    Args:
        monotonic: Clock for the time of an answer.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._places = threading.Semaphore(MAX_AT_ONCE)

    @contextmanager
    def turn(self) -> Iterator[AnswerBudget]:
        """Wait for a place; the answer's time begins then.

        Raises:
            StandardsRequestError: None became free in time.
        """
        if not self._places.acquire(timeout=WAIT_S):
            rule = f"sent again later: {MAX_AT_ONCE} others are being answered"
            raise StandardsRequestError("request", rule, "one more", status=503)
        try:
            yield AnswerBudget(self._monotonic() + ANSWER_S, self._monotonic)
        finally:
            self._places.release()


@dataclass(frozen=True)
class WalkPosition:
    """Where a page ended.

    Attributes:
        at: Time of the last row.
        seen: Rows of that time which are behind.
    """

    at: datetime
    seen: int

    @classmethod
    def parse(cls, text: str, field: str = "position") -> "WalkPosition":
        """Parse the text of a position.

        Args:
            text: The text.
            field: Name of the option that holds it.

        Raises:
            StandardsRequestError: It is none.
        """
        match = _POSITION.fullmatch(text)
        rule = "that of a link to a next page"
        if match is None:
            raise StandardsRequestError(field, rule, text)
        try:
            at = _EPOCH + timedelta(microseconds=int(match[1]))
        except OverflowError as error:
            raise StandardsRequestError(field, rule, text) from error
        return cls(at, int(match[2]))

    def __str__(self) -> str:
        """Unix time in microseconds, a point, and the rows behind."""
        return f"{(self.at - _EPOCH) // _TICK}.{self.seen}"


@dataclass(frozen=True)
class RowQuery:
    """Rows that are wanted, in the order of their times.

    Attributes:
        table: Name of the table, which has a column ``at``.
        columns: Columns to read, among them ``at`` and those of `ties`.
        ties: Columns that order rows of the same time.
        conditions: Conditions in SQL, all of which hold.
        begin: First time; None: from the first row.
        end: Last time; None: to the last row.
        is_descending: Whether the newest row comes first.
        accepts: Check of each row beyond the conditions in SQL; None accepts all.
    """

    table: str
    columns: tuple[str, ...]
    ties: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    begin: datetime | None = None
    end: datetime | None = None
    is_descending: bool = True
    accepts: Callable[[Row], bool] | None = None


@dataclass(frozen=True)
class RowPage:
    """One page.

    Attributes:
        rows: Its rows.
        end: Where the next page begins; None if there is none.
    """

    rows: list[Row]
    end: WalkPosition | None


@dataclass(frozen=True)
class TimeWalk:
    """Reads pages of a table.

    Attributes:
        tables: The tables.
        is_over: Whether the time for the answer is over.
    """

    tables: DeltaTables
    is_over: Callable[[], bool]

    def read_page(
        self, query: RowQuery, limit: int, skip: int = 0, start: str | None = None
    ) -> RowPage:
        """Read one page.

        It has fewer rows than `limit`, perhaps none, where its time was over before.

        Args:
            query: Rows that are wanted.
            limit: Most rows of the page.
            skip: Rows to leave out before it.
            start: Position at the end of the page before; None for the first page.
        """
        rows: list[Row] = []
        position = None if start is None else WalkPosition.parse(start)
        end = position
        for row, after in self._walk(query, position, limit + skip + 1):
            if row is not None and len(rows) == limit + skip:
                return RowPage(rows[skip:], end)
            if row is not None:
                rows.append(row)
            end = after
            if row is None and self.is_over():
                return RowPage(rows[skip:], end)
        return RowPage(rows[skip:], None)

    def count(self, query: RowQuery) -> int:
        """Number of rows that are wanted.

        Raises:
            StandardsRequestError: Too many rows would be read, or the time is over.
        """
        if query.accepts is None:
            return self._count_by_sql(query)
        found = 0
        for row, _after in self._walk(query, None, CHUNK_ROWS):
            found += row is not None
            if row is None and self.is_over():
                raise _too_broad("counted in time")
        return found

    def _count_by_sql(self, query: RowQuery) -> int:
        extent = self.tables.extent(query.table, query.begin, query.end)
        is_all = not query.conditions and query.begin is None and query.end is None
        if extent is None or is_all:
            return extent[2] if extent else 0
        if extent[2] > MAX_COUNTED:
            raise _too_broad(f"in files of at most {MAX_COUNTED} rows")
        return self.tables.count(query.table, [*query.conditions, *_bounds(query)])

    def _walk(
        self, query: RowQuery, start: WalkPosition | None, wanted: int
    ) -> Iterator[tuple[Row | None, WalkPosition]]:
        """Rows with the position after each; no row where the page can end.

        That is after each query, and where the check of a row used up the time. The
        rows of a query that itself used it up are checked, else no page would lead on.
        """
        limits = self._limits(query)
        if limits is None:
            return
        sign = -1 if query.is_descending else 1
        first, last = limits if sign > 0 else limits[::-1]
        at, seen, span = first, 0, FIRST_SPAN
        if start is not None and (start.at - first) * sign >= timedelta(0):
            at, seen = start.at, self._rows_behind(query, start)
        while (at - last) * sign <= timedelta(0):
            far = _limited(at, span * sign, last)
            size = CHUNK_ROWS if query.accepts else min(wanted, CHUNK_ROWS)
            rows = self._read(query, (at, far), (size, seen))
            may_end = query.accepts is not None and not self.is_over()
            for row in rows:
                seen = seen + 1 if row["at"] == at else 1
                at = row["at"]
                if query.accepts is None or query.accepts(row):
                    yield row, WalkPosition(at, seen)
                if may_end and self.is_over():
                    yield None, WalkPosition(at, seen)
            if len(rows) < size:
                at, seen, span = far + _TICK * sign, 0, span * SPAN_GROWTH
            yield None, WalkPosition(at, seen)

    def _rows_behind(self, query: RowQuery, start: WalkPosition) -> int:
        """Rows of a position's time to leave out, at most those that there are.

        They are sorted in memory, and the position may be forged.
        """
        if start.seen <= CHUNK_ROWS or not fits_sql(start.at):
            return start.seen
        conditions = [*query.conditions, f"at = {sql_literal(start.at)}"]
        return min(start.seen, self.tables.count(query.table, conditions))

    def _read(
        self,
        query: RowQuery,
        between: tuple[datetime, datetime],
        limit: tuple[int, int],
    ) -> list[Row]:
        direction = "DESC" if query.is_descending else "ASC"
        conditions = [
            *query.conditions,
            f"at >= {sql_literal(min(between))}",
            f"at <= {sql_literal(max(between))}",
        ]
        order = ", ".join([f"at {direction}", *query.ties])
        found = self.tables.select(query.table, query.columns, conditions, order, limit)
        return list(found.to_pylist())

    def _limits(self, query: RowQuery) -> tuple[datetime, datetime] | None:
        """First and last time that is read; None without any."""
        extent = self.tables.extent(query.table)
        if extent is None:
            return None
        first = max(extent[0], query.begin or extent[0], _FIRST_TIME)
        last = min(extent[1], query.end or extent[1], _LAST_TIME)
        return (first, last) if first <= last else None


def _bounds(query: RowQuery) -> list[str]:
    times = ((">=", query.begin), ("<=", query.end))
    return [f"at {sign} {sql_literal(at)}" for sign, at in times if at and fits_sql(at)]


def _too_broad(rule: str) -> StandardsRequestError:
    remedy = "limit the times, or leave out $count"
    return StandardsRequestError("$count", rule, "more", remedy)


def _limited(at: datetime, span: timedelta, last: datetime) -> datetime:
    """A time that lies a span from another, but not beyond the last."""
    return last if abs(last - at) <= abs(span) else at + span


def fits_sql(at: datetime) -> bool:
    """Whether a time can be written into a query."""
    return _FIRST_TIME <= at <= _LAST_TIME

"""Readings as observations: a filter in SQL, where it can be one, and the rest by row.

What is written in SQL selects all rows that the filter accepts, and perhaps more;
`ReadingFilter.is_exact` says whether it selects only these.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from backend_spark.errors import StandardsRequestError
from backend_spark.sensorthings.catalogue import Catalogue, Series
from backend_spark.sensorthings.entities import ENTITY_SETS, OBSERVATIONS, PathResolver
from backend_spark.sensorthings.expressions import (
    Expression,
    Literal,
    Operation,
    PropertyPath,
    compile_expression,
    holds,
)
from backend_spark.sensorthings.request_syntax import SortKey
from backend_spark.tables.bounded_answers import RowQuery, fits_sql
from backend_spark.tables.reader import sql_literal

COLUMNS: Final = (
    "node",
    "boot",
    "seq",
    "pri",
    "cell",
    "name",
    "unit",
    "value",
    "value_text",
    "sum",
    "at",
    "received_at",
    "synchronised",
    "why",
    "flag",
    "flag_why",
)
TIES: Final = ("node", "boot", "seq", "name")

MAX_SERIES: Final = 500
"""Series that one query names."""

_NUMBER: Final = (
    'round(CASE WHEN value_text IS NULL THEN coalesce(value, "sum") END, 6)'
)
SQL_COLUMNS: Final = {
    "phenomenonTime": "at",
    "resultTime": "received_at",
    "result": _NUMBER,
    "resultQuality": "flag",
}
"""What a property is in SQL; a result only where it is a number."""

_TIMES: Final = {"phenomenonTime", "resultTime"}
_SIGNS: Final = {"eq": "=", "ne": "<>", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_TURNED: Final = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
_DATASTREAM: Final = "Datastream"


@dataclass(frozen=True)
class ReadingFilter:
    """Filter of readings.

    Attributes:
        conditions: In SQL, all of which hold.
        is_exact: Whether SQL selects only what the filter accepts.
        begin: First time; None for any.
        end: Last time; None for any.
    """

    conditions: tuple[str, ...] = ()
    is_exact: bool = True
    begin: datetime | None = None
    end: datetime | None = None

    def and_also(self, other: "ReadingFilter") -> "ReadingFilter":
        """Both filters."""
        begins = [at for at in (self.begin, other.begin) if at is not None]
        ends = [at for at in (self.end, other.end) if at is not None]
        return ReadingFilter(
            self.conditions + other.conditions,
            self.is_exact and other.is_exact,
            max(begins, default=None),
            min(ends, default=None),
        )


INEXACT: Final = ReadingFilter(is_exact=False)
NOTHING: Final = ReadingFilter(("FALSE",))


def series_filter(series: list[Series]) -> ReadingFilter:
    """Filter for the readings of some series."""
    if not series:
        return NOTHING
    pairs = " OR ".join(
        f"(node = {sql_literal(one.node)} AND name = {sql_literal(one.name)}"
        f" AND coalesce(unit, '') = {sql_literal(one.unit)})"
        for one in series
    )
    conditions = [f"({pairs})"]
    cells = {cell for one in series for cell in one.cells}
    if len(cells) == 1:  # excludes files and row groups by their statistics
        cell = sql_literal(cells.pop())
        conditions.append(f"(cell = {cell} OR cell IS NULL)")
    # No end: newer readings than those of the catalogue may be there already.
    return ReadingFilter(tuple(conditions), begin=min(one.first for one in series))


def cell_filter(cell: str) -> ReadingFilter:
    """Filter for the readings of a cell."""
    return ReadingFilter((f"cell = {sql_literal(cell)}",))


@dataclass(frozen=True)
class ReadingScope:
    """What a filter of readings is seen against.

    Attributes:
        catalogue: Nodes and series.
        now: The present.
        in_time: Iterates, and raises an error when the time for the answer is over.
    """

    catalogue: Catalogue
    now: datetime
    in_time: Callable[[Iterable[Series]], Iterator[Series]]


def reading_query(
    condition: Expression | None,
    within: ReadingFilter,
    scope: ReadingScope,
    order: tuple[SortKey, ...] = (),
) -> RowQuery:
    """Query for readings.

    Args:
        condition: Condition of the request; None without one.
        within: Filter by the resource path.
        scope: What the condition is seen against.
        order: Order of the request; readings are sorted by their time only.

    Raises:
        StandardsRequestError: The order is another.
    """
    found = within
    accepts = None
    if condition is not None:
        found = within.and_also(_Translator(scope).translate(condition))
        accepts = None if found.is_exact else row_check(condition, scope)
    return RowQuery(
        "silver",
        COLUMNS,
        TIES,
        found.conditions,
        found.begin,
        found.end,
        is_descending=_is_descending(order),
        accepts=accepts,
    )


def row_check(
    condition: Expression, scope: ReadingScope
) -> Callable[[dict[str, Any]], bool]:
    """Check of a single row."""
    evaluate = compile_expression(condition, scope.now)
    readings = ENTITY_SETS[OBSERVATIONS]

    def accepts(row: dict[str, Any]) -> bool:
        return holds(evaluate(PathResolver(readings, row, scope.catalogue)))

    return accepts


def _is_descending(order: tuple[SortKey, ...]) -> bool:
    """Direction of time; the newest comes first by default."""
    for key in order:
        if key.text not in {"phenomenonTime", "id", "@iot.id"}:
            rule = "phenomenonTime for Observations"
            remedy = "sort by another property in the client"
            raise StandardsRequestError("$orderby", rule, key.text, remedy)
    return order[0].is_descending if order else True


class _Translator:
    """Translates conditions to SQL; one that it does not know accepts every row."""

    def __init__(self, scope: "ReadingScope") -> None:
        self._scope = scope

    def translate(self, condition: Expression) -> ReadingFilter:
        """Filter of a condition."""
        if _paths_begin_with(condition, _DATASTREAM):
            return self._by_series(condition)
        if not isinstance(condition, Operation):
            return INEXACT
        if condition.name in {"and", "or"}:
            left, right = map(self.translate, condition.arguments)
            is_both = condition.name == "and"
            return left.and_also(right) if is_both else _either(left, right)
        if condition.name not in _SIGNS:
            return INEXACT
        return _comparison(condition, self._scope.now)

    def _by_series(self, condition: Expression) -> ReadingFilter:
        """Find the series first; then only their readings are read."""
        scope, streams = self._scope, ENTITY_SETS["Datastreams"]
        evaluate = compile_expression(_without_first(condition), scope.now)
        found = [
            series
            for series in scope.in_time(scope.catalogue.series.values())
            if holds(evaluate(PathResolver(streams, series, scope.catalogue)))
        ]
        if len(found) > MAX_SERIES:
            return INEXACT
        return series_filter(found)


def _either(left: ReadingFilter, right: ReadingFilter) -> ReadingFilter:
    parts = []
    for each in (left, right):
        bounds = [
            f"at {sign} {sql_literal(at)}"
            for sign, at in ((">=", each.begin), ("<=", each.end))
            if at is not None
        ]
        conditions = [*each.conditions, *bounds]
        if not conditions:
            return INEXACT
        parts.append(" AND ".join(conditions))
    both = f"(({parts[0]}) OR ({parts[1]}))"
    return ReadingFilter((both,), left.is_exact and right.is_exact)


def _comparison(condition: Operation, now: datetime) -> ReadingFilter:
    left, right = (_folded(each, now) for each in condition.arguments)
    name = condition.name
    if isinstance(left, Literal):
        left, right, name = right, left, _TURNED.get(name, name)
    if not isinstance(left, PropertyPath) or not isinstance(right, Literal):
        return INEXACT
    path, value = str(left), right.value
    if path in {"FeatureOfInterest/id", "FeatureOfInterest/@iot.id"}:
        is_cell = name == "eq" and isinstance(value, str)
        return cell_filter(str(value)) if is_cell else INEXACT
    if path in _TIMES and isinstance(value, datetime) and fits_sql(value):
        return _time_filter(path, name, value)
    is_number = isinstance(value, float) and math.isfinite(value)
    if is_number and path in {"result", "resultQuality"}:
        return ReadingFilter((f"{SQL_COLUMNS[path]} {_SIGNS[name]} {value!r}",))
    return INEXACT


def _folded(expression: Expression, now: datetime) -> Expression:
    """The value of an operation without properties, such as a time before now."""
    if not isinstance(expression, Operation) or any(_paths(expression)):
        return expression
    return Literal(compile_expression(expression, now)(lambda _steps: None))


def _time_filter(path: str, name: str, value: datetime) -> ReadingFilter:
    condition = f"{SQL_COLUMNS[path]} {_SIGNS[name]} {sql_literal(value)}"
    found = ReadingFilter((condition,))
    if path != "phenomenonTime" or name == "ne":
        return found
    begin = value if name in {"gt", "ge", "eq"} else None
    end = value if name in {"lt", "le", "eq"} else None
    return replace(found, begin=begin, end=end)


def _paths(expression: Expression) -> Iterator[PropertyPath]:
    if isinstance(expression, PropertyPath):
        yield expression
    elif isinstance(expression, Operation):
        for each in expression.arguments:
            yield from _paths(each)


def _paths_begin_with(expression: Expression, name: str) -> bool:
    paths = list(_paths(expression))
    return bool(paths) and all(p.steps[0] == name and len(p.steps) > 1 for p in paths)


def _without_first(expression: Expression) -> Expression:
    if isinstance(expression, PropertyPath):
        return PropertyPath(expression.steps[1:])
    if isinstance(expression, Operation):
        return replace(
            expression, arguments=tuple(map(_without_first, expression.arguments))
        )
    return expression

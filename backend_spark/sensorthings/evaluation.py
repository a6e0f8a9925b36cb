"""Evaluation of expressions on entities.

An unknown value (null) makes every comparison with it false, except with ``null``
itself. A path through several entities, such as the datastreams of a thing, holds a
list of values; a comparison holds if it does for one of them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from itertools import product
from typing import Any, Final

import shapely

from backend_spark.errors import StandardsRequestError
from backend_spark.sensorthings.expressions import (
    Expression,
    Literal,
    Operation,
    PropertyPath,
    parse_time,
)

Resolver = Callable[[tuple[str, ...]], Any]
"""Value of a path, or a list of values."""

Evaluator = Callable[[Resolver], Any]

MAX_COMBINATIONS: Final = 50_000
"""Pairs of values of lists that a filter combines for one entity, in all."""

FIRST_TIME: Final = datetime.min.replace(tzinfo=UTC)
LAST_TIME: Final = datetime.max.replace(tzinfo=UTC)


def compile_expression(expression: Expression, now: datetime) -> Evaluator:
    """Make a function of an expression.

    Args:
        expression: The expression.
        now: Value of ``now()``.
    """
    pairs = _PairCount()
    evaluate = _compile(expression, now, pairs)

    def evaluate_one(resolve: Resolver) -> Any:  # noqa: ANN401 - of any type
        pairs.count = 0
        return evaluate(resolve)

    return evaluate_one


def _compile(expression: Expression, now: datetime, pairs: "_PairCount") -> Evaluator:
    if isinstance(expression, Literal):
        value = expression.value
        return lambda _resolve: value
    if isinstance(expression, PropertyPath):
        steps = expression.steps
        return lambda resolve: resolve(steps)
    if expression.name == "now":
        return lambda _resolve: now
    parts = [_compile(each, now, pairs) for each in expression.arguments]
    return _compile_operation(expression, parts, pairs)


def _compile_operation(
    operation: Operation, parts: list[Evaluator], pairs: "_PairCount"
) -> Evaluator:
    name = operation.name
    if name in {"and", "or"}:
        combine = all if name == "and" else any
        return lambda resolve: combine(holds(part(resolve)) for part in parts)
    if name == "not":
        return lambda resolve: not holds(parts[0](resolve))
    if name in _COMPARISONS and Literal(None) in operation.arguments:
        is_equal = name in {"eq", "ge", "le"}
        return lambda resolve: (parts[0](resolve) == parts[1](resolve)) is is_equal
    work = _comparison(name) if name in _COMPARISONS else _FUNCTIONS[name]
    return lambda resolve: pairs.apply(work, [part(resolve) for part in parts])


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    compare = _COMPARISONS[name]
    return lambda left, right: _compared(compare, left, right)


def holds(value: object) -> bool:
    """Whether the value of a condition is true."""
    return any(each is True for each in _each(value))


@dataclass
class _PairCount:
    """Applies functions, and limits the pairs of values of one entity.

    Attributes:
        count: Pairs since the entity began.
    """

    count: int = 0

    def apply(self, work: Callable[..., Any], values: list[Any]) -> Any:  # noqa: ANN401 - of any type
        """Apply a function to single values, or to each combination of lists."""
        if not any(isinstance(value, list) for value in values):
            return _applied(work, values)
        lists = [list(_each(value)) for value in values]
        self.count += math.prod(map(len, lists))
        if self.count > MAX_COMBINATIONS:
            rule = f"comparisons of at most {MAX_COMBINATIONS} pairs of values"
            raise StandardsRequestError("$filter", rule, "more for one entity")
        return [_applied(work, list(each)) for each in product(*lists)]


def _applied(work: Callable[..., Any], values: list[Any]) -> Any:  # noqa: ANN401 - of any type
    if any(value is None for value in values):
        return None
    try:
        return work(*values)
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError):
        return None  # a value of another type is unknown here
    except shapely.errors.ShapelyError:
        return None


def _each(value: object) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _each(each)
    else:
        yield value


def _compared(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> Any:  # noqa: ANN401 - of any type
    left, right = _like(left, right), _like(right, left)
    if isinstance(left, bool) is not isinstance(right, bool):
        return None
    if isinstance(left, str) is not isinstance(right, str):
        return None
    return compare(left, right)


def _like(value: Any, other: Any) -> Any:  # noqa: ANN401 - of any type
    """A text as a time, or as an interval, if it is compared with one."""
    is_time = isinstance(other, datetime | tuple)
    if isinstance(value, str) and is_time:
        first, _, last = value.partition("/")
        return (parse_time(first), parse_time(last)) if last else parse_time(first)
    return value


def _begin(value: Any) -> Any:  # noqa: ANN401 - of any type
    return value[0] if isinstance(value, tuple) else value


def _end(value: Any) -> Any:  # noqa: ANN401 - of any type
    return value[1] if isinstance(value, tuple) else value


def _equal(left: Any, right: Any) -> bool:  # noqa: ANN401 - of any type
    return bool(_begin(left) == _begin(right) and _end(left) == _end(right))


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": _equal,
    "ne": lambda left, right: not _equal(left, right),
    "gt": lambda left, right: _begin(left) > _end(right),
    "ge": lambda left, right: _begin(left) >= _begin(right),
    "lt": lambda left, right: _end(left) < _begin(right),
    "le": lambda left, right: _end(left) <= _end(right),
}


def _as_time(value: Any) -> datetime:  # noqa: ANN401 - of any type
    found = _begin(_like(value, FIRST_TIME))
    if not isinstance(found, datetime):
        raise TypeError
    return found


def _plus(left: Any, right: Any) -> Any:  # noqa: ANN401 - of any type
    return _operand(left, right) + _operand(right, left)


def _minus(left: Any, right: Any) -> Any:  # noqa: ANN401 - of any type
    return _operand(left, right) - _operand(right, left)


def _operand(value: Any, other: Any) -> Any:  # noqa: ANN401 - of any type
    is_calendar = isinstance(other, timedelta | datetime)
    found = _begin(_like(value, FIRST_TIME)) if is_calendar else value
    if isinstance(found, str):
        raise TypeError  # `add` is for numbers; texts are joined by `concat`
    return found


def _times(left: Any, right: Any) -> Any:  # noqa: ANN401 - of any type
    if isinstance(left, str) or isinstance(right, str):
        raise TypeError  # "a" times a billion would fill the memory
    return left * right


def _concat(left: str, right: str) -> str:
    if not isinstance(left, str):
        raise TypeError
    return left + right


def _substring(text: str, begin: float, length: float | None = None) -> str:
    end = None if length is None else int(begin) + int(length)
    return text[int(begin) : end]


@lru_cache(maxsize=4096)
def _point(longitude: float, latitude: float) -> shapely.Geometry:
    return shapely.Point(longitude, latitude)


def geometry_of(value: Any) -> shapely.Geometry:  # noqa: ANN401 - of any type
    """Geometry of a GeoJSON object or feature.

    Raises:
        TypeError: The value is none.
    """
    if isinstance(value, shapely.Geometry):
        return value
    if not isinstance(value, dict):
        raise TypeError
    found = value.get("geometry", value)
    if found["type"] == "Point":
        return _point(*found["coordinates"][:2])
    return shapely.geometry.shape(found)


def _spatial(work: Callable[..., Any]) -> Callable[..., Any]:
    def on_geometries(*values: Any) -> Any:  # noqa: ANN401 - of any type
        made = [geometry_of(value) for value in values[:2]]
        return work(*made, *values[2:]).item()  # from a number of numpy

    return on_geometries


def _number(work: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value: float(work(value))


def _rounded(value: float) -> Decimal:
    """The nearest whole number, a half away from zero, as OData rounds."""
    return Decimal(value).to_integral_value(ROUND_HALF_UP)


def _time_part(work: Callable[[datetime], Any]) -> Callable[..., Any]:
    return lambda value: work(_as_time(value))


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": _plus,
    "sub": _minus,
    "mul": _times,
    "div": lambda left, right: left / right,
    "mod": math.fmod,
    "neg": lambda value: -value,
    "substringof": lambda part, text: part in text,
    "endswith": lambda text, part: text.endswith(part),
    "startswith": lambda text, part: text.startswith(part),
    "length": _number(len),
    "indexof": lambda text, part: float(text.find(part)),
    "substring": _substring,
    "tolower": lambda text: text.lower(),
    "toupper": lambda text: text.upper(),
    "trim": lambda text: text.strip(),
    "concat": _concat,
    "year": _time_part(lambda at: float(at.year)),
    "month": _time_part(lambda at: float(at.month)),
    "day": _time_part(lambda at: float(at.day)),
    "hour": _time_part(lambda at: float(at.hour)),
    "minute": _time_part(lambda at: float(at.minute)),
    "second": _time_part(lambda at: float(at.second)),
    "fractionalseconds": _time_part(lambda at: at.microsecond / 1e6),
    "date": _time_part(lambda at: at.date().isoformat()),
    "time": _time_part(lambda at: at.time().isoformat()),
    "totaloffsetminutes": _time_part(lambda _at: 0.0),
    "mindatetime": lambda: FIRST_TIME,
    "maxdatetime": lambda: LAST_TIME,
    "round": _number(_rounded),
    "floor": _number(math.floor),
    "ceiling": _number(math.ceil),
    "geo.distance": _spatial(shapely.distance),
    "geo.length": _spatial(shapely.length),
    "geo.intersects": _spatial(shapely.intersects),
    "st_equals": _spatial(shapely.equals),
    "st_disjoint": _spatial(shapely.disjoint),
    "st_touches": _spatial(shapely.touches),
    "st_within": _spatial(shapely.within),
    "st_overlaps": _spatial(shapely.overlaps),
    "st_crosses": _spatial(shapely.crosses),
    "st_intersects": _spatial(shapely.intersects),
    "st_contains": _spatial(shapely.contains),
    "st_relate": _spatial(shapely.relate_pattern),
}


def check_condition(expression: Expression) -> None:
    """Check that a ``$filter`` can be true or false.

    Raises:
        StandardsRequestError: It is a number, a text or a time.
    """
    if isinstance(expression, Operation) and (
        expression.name in _COMPARISONS or expression.name in _CONDITIONS
    ):
        return
    if isinstance(expression, PropertyPath):
        return
    if isinstance(expression, Literal) and isinstance(expression.value, bool):
        return
    raise StandardsRequestError(
        "$filter", "a condition", "a value without a comparison"
    )


_CONDITIONS: Final = {
    "and", "or", "not", "substringof", "endswith", "startswith", "geo.intersects",
    "st_equals", "st_disjoint", "st_touches", "st_within", "st_overlaps",
    "st_crosses", "st_intersects", "st_contains", "st_relate",
}  # fmt: skip

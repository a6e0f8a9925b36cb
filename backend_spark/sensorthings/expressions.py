"""Expressions of ``$filter`` and ``$orderby``: parsed, and evaluated on entities.

Source: OGC SensorThings API part 1 (18-088), section 9.3.3.5, which takes the grammar
from OData 4.0. Length, depth and size of an expression are limited, so that no request
makes the parser work long.

An unknown value (null) makes every comparison with it false, except with ``null``
itself. A path through several entities, such as the datastreams of a thing, holds a
list of values; a comparison holds if it does for one of them.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache, partial
from itertools import product
from typing import Any, Final

import shapely

from backend_spark.errors import StandardsRequestError

MAX_CHARACTERS: Final = 8000
MAX_DEPTH: Final = 24
MAX_NODES: Final = 250
MAX_POINTS: Final = 500
"""Points of one geometry; each is compared with those of every entity."""

Value = Any
"""None, bool, float, str, datetime, timedelta, an interval or a geometry."""


@dataclass(frozen=True)
class Literal:
    """A constant.

    Attributes:
        value: Its value; None is ``null``.
    """

    value: Value


@dataclass(frozen=True)
class PropertyPath:
    """A property, of the entity itself or of one that it is related to.

    Attributes:
        steps: Names on the way; the last is the property.
    """

    steps: tuple[str, ...]

    def __str__(self) -> str:
        """The path as in the request."""
        return "/".join(self.steps)


@dataclass(frozen=True)
class Operation:
    """An operator or a function with its arguments.

    Attributes:
        name: Such as ``eq``, ``and`` or ``geo.intersects``.
        arguments: Its arguments.
    """

    name: str
    arguments: tuple["Expression", ...]


Expression = Literal | PropertyPath | Operation

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)"
_TOKENS: Final = re.compile(
    rf"""\s*(?:
      (?P<times>{_TIME}(?:/{_TIME})?)
    | (?P<date>\d{{4}}-\d\d-\d\d)
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d{{1,4}})?)
    | (?P<typed>(?:geography|geometry|duration)'(?:[^']|'')*')
    | (?P<text>'(?:[^']|'')*')
    | (?P<name>[@A-Za-z_][\w.@]*(?:/[@A-Za-z_][\w.@]*)*)
    | (?P<sign>[(),-])
    )""",
    re.VERBOSE,
)
_DURATION: Final = re.compile(
    r"(-?)P(?:(\d{1,6})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,6})S)?)?"
)

OPERATORS: Final = (
    ("or",),
    ("and",),
    ("not",),
    ("eq", "ne", "gt", "ge", "lt", "le"),
    ("add", "sub"),
    ("mul", "div", "mod"),
)
"""From the weakest binding to the strongest."""

_WORDS: Final = {name for names in OPERATORS for name in names}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


def parse_expression(text: str, option: str = "$filter") -> Expression:
    """Parse an expression.

    Args:
        text: The expression.
        option: Name of the query option, for errors.

    Raises:
        StandardsRequestError: It has no such form, or is too large.
    """
    if len(text) > MAX_CHARACTERS:
        rule = f"at most {MAX_CHARACTERS} characters long"
        raise StandardsRequestError(option, rule, f"{len(text)} characters")
    parser = _Parser(_tokens(text, option), option)
    found = parser.operators(0, 0)
    parser.expect_end()
    return found


def _tokens(text: str, option: str) -> list[tuple[str, str]]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKENS.match(text, at)
        if match is None:
            rest = text[at:].strip()
            raise StandardsRequestError(option, f"understood at character {at}", rest)
        found.append((match.lastgroup or "", match[match.lastgroup or 0]))
        at = match.end()
    return found


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, tokens: list[tuple[str, str]], option: str) -> None:
        self._tokens = tokens
        self._option = option
        self._at = 0
        self._nodes = 0

    def operators(self, weakest: int, depth: int) -> Expression:
        """Parse operators that bind at least as strongly as a row of `OPERATORS`."""
        if weakest == len(OPERATORS):
            return self._operand(depth)
        names = OPERATORS[weakest]
        if names == ("not",):
            if self._take_name(names) is None:
                return self.operators(weakest + 1, depth)
            self._check(depth)
            return self._make("not", (self.operators(weakest, depth + 1),))
        found = self.operators(weakest + 1, depth)
        while (name := self._take_name(names)) is not None:
            found = self._make(name, (found, self.operators(weakest + 1, depth)))
        return found

    def expect_end(self) -> None:
        """Check that no token is left."""
        if self._at < len(self._tokens):
            raise self._error("an operator or the end", self._tokens[self._at][1])

    def _operand(self, depth: int) -> Expression:
        self._check(depth)
        kind, text = self._next()
        if text == "(":
            found = self.operators(0, depth + 1)
            self._expect(")")
            return found
        if text == "-":
            return self._make("neg", (self._operand(depth + 1),))
        if kind == "name" and self._peek() == "(":
            return self._function(text, depth)
        if kind == "name" and text not in _CONSTANTS:
            return self._path(text)
        return self._literal(kind, text)

    def _path(self, text: str) -> Expression:
        if text in _WORDS:
            raise self._error("a property or a value", text)
        self._count()
        return PropertyPath(tuple(text.split("/")))

    def _function(self, name: str, depth: int) -> Expression:
        if name not in FUNCTIONS:
            raise self._error("a function of the standard", name)
        self._expect("(")
        arguments: list[Expression] = []
        while self._peek() != ")":
            if arguments:
                self._expect(",")
            arguments.append(self.operators(0, depth + 1))
        self._expect(")")
        low, high, _ = FUNCTIONS[name]
        if not low <= len(arguments) <= high:
            rule = f"{name} with {low} to {high} arguments"
            raise self._error(rule, f"{len(arguments)}")
        return self._make(name, tuple(arguments))

    def _literal(self, kind: str, text: str) -> Expression:
        self._count()
        if text in _CONSTANTS:
            return Literal(_CONSTANTS[text])
        try:
            value = _value_of(kind, text)
        except (ValueError, OverflowError, shapely.errors.GEOSException) as error:
            raise self._error("a valid value", text) from error
        return Literal(value)

    def _make(self, name: str, arguments: tuple[Expression, ...]) -> Operation:
        self._count()
        return Operation(name, arguments)

    def _check(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error(f"nested at most {MAX_DEPTH} deep", "a deeper one")

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            rule = f"at most {MAX_NODES} operators, properties and values"
            raise self._error(rule, "more")

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise self._error("a property or a value", "the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str | None:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else None

    def _take_name(self, names: tuple[str, ...]) -> str | None:
        found = self._peek()
        if found not in names:
            return None
        self._at += 1
        return found

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._error(f"{sign!r} here", self._peek() or "the end")
        self._at += 1

    def _error(self, rule: str, got: str) -> StandardsRequestError:
        return StandardsRequestError(self._option, rule, got)


def _value_of(kind: str, text: str) -> Value:
    if kind == "number" and math.isfinite(float(text)):
        return float(text)
    if kind == "text":
        return unquote_text(text)
    if kind in {"times", "date"}:
        return _parse_times(text)
    if kind == "typed":
        name, _, quoted = text.partition("'")
        inner = unquote_text(f"'{quoted}")
        return _duration(inner) if name == "duration" else _geometry(inner)
    raise ValueError(text)


def unquote_text(text: str) -> str:
    """Text of a quoted literal; a quotation mark in it is doubled."""
    return text[1:-1].replace("''", "'")


def parse_time(text: str) -> datetime:
    """Time of ISO 8601 with its zone, in UTC; the begin of a plain date.

    Raises:
        ValueError: It is none.
    """
    found = datetime.fromisoformat(text)
    if len(text) == len("2026-10-25"):
        return found.replace(tzinfo=UTC)
    if found.tzinfo is None:
        raise ValueError(text)
    return found.astimezone(UTC)


def _parse_times(text: str) -> Value:
    """A time, or an interval with a slash between its ends."""
    first, _, last = text.partition("/")
    return (parse_time(first), parse_time(last)) if last else parse_time(first)


def _duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    found = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return -found if match[1] else found


def _geometry(text: str) -> shapely.Geometry:
    found = shapely.from_wkt(text.partition(";")[2] if ";" in text else text)
    if shapely.get_num_coordinates(found) > MAX_POINTS:
        raise ValueError(text)
    shapely.prepare(found)
    return found


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

    def evaluate_one(resolve: Resolver) -> Value:
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
    if name in _COMPARISONS:
        work: Callable[..., Any] = partial(_compared, _COMPARISONS[name])
    else:
        work = _ARITHMETIC[name] if name in _ARITHMETIC else FUNCTIONS[name][2]
    return lambda resolve: pairs.apply(work, [part(resolve) for part in parts])


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

    def apply(self, work: Callable[..., Any], values: list[Any]) -> Value:
        """Apply a function to single values, or to each combination of lists."""
        if not any(isinstance(value, list) for value in values):
            return _applied(work, values)
        lists = [list(_each(value)) for value in values]
        self.count += math.prod(map(len, lists))
        if self.count > MAX_COMBINATIONS:
            rule = f"comparisons of at most {MAX_COMBINATIONS} pairs of values"
            raise StandardsRequestError("$filter", rule, "more for one entity")
        return [_applied(work, list(each)) for each in product(*lists)]


def _applied(work: Callable[..., Any], values: list[Any]) -> Value:
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


def _compared(compare: Callable[[Any, Any], bool], left: Value, right: Value) -> Value:
    left, right = _like(left, right), _like(right, left)
    if isinstance(left, bool) is not isinstance(right, bool):
        return None
    if isinstance(left, str) is not isinstance(right, str):
        return None
    return compare(left, right)


def _like(value: Value, other: Value) -> Value:
    """A text as a time, or as an interval, if it is compared with one."""
    is_time = isinstance(other, datetime | tuple)
    return _parse_times(value) if isinstance(value, str) and is_time else value


def _begin(value: Value) -> Value:
    return value[0] if isinstance(value, tuple) else value


def _end(value: Value) -> Value:
    return value[1] if isinstance(value, tuple) else value


def _equal(left: Value, right: Value) -> bool:
    return bool(_begin(left) == _begin(right) and _end(left) == _end(right))


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": _equal,
    "ne": lambda left, right: not _equal(left, right),
    "gt": lambda left, right: _begin(left) > _end(right),
    "ge": lambda left, right: _begin(left) >= _begin(right),
    "lt": lambda left, right: _end(left) < _begin(right),
    "le": lambda left, right: _end(left) <= _end(right),
}


def _as_time(value: Value) -> datetime:
    found = _begin(_like(value, FIRST_TIME))
    if not isinstance(found, datetime):
        raise TypeError
    return found


def _calculated(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: work(_operand(left, right), _operand(right, left))


def _operand(value: Value, other: Value) -> Value:
    is_calendar = isinstance(other, timedelta | datetime)
    found = _begin(_like(value, FIRST_TIME)) if is_calendar else value
    if isinstance(found, str):
        raise TypeError  # `add` is for numbers; texts are joined by `concat`
    return found


def _times(left: Value, right: Value) -> Value:
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


def geometry_of(value: Value) -> shapely.Geometry:
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
    def on_geometries(*values: Value) -> Value:
        made = [geometry_of(value) for value in values[:2]]
        return work(*made, *values[2:]).item()  # from a number of numpy

    return on_geometries


def _rounded(value: float) -> float:
    """The nearest whole number, a half away from zero, as OData rounds."""
    return float(Decimal(value).to_integral_value(ROUND_HALF_UP))


def _number_in(name: str, at: datetime) -> float:
    return float(getattr(at, name))


def _time_part(work: Callable[[datetime], Any]) -> Callable[..., Any]:
    return lambda value: work(_as_time(value))


_TIME_PARTS: Final = ("year", "month", "day", "hour", "minute", "second")
_RELATIONS: Final = (
    shapely.equals, shapely.disjoint, shapely.touches, shapely.within,
    shapely.overlaps, shapely.crosses, shapely.intersects, shapely.contains,
)  # fmt: skip

_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "add": _calculated(operator.add),
    "sub": _calculated(operator.sub),
    "mul": _times,
    "div": operator.truediv,
    "mod": math.fmod,
    "neg": operator.neg,
}
FUNCTIONS: Final[dict[str, tuple[int, int, Callable[..., Any]]]] = {
    "substringof": (2, 2, lambda part, text: part in text),
    "endswith": (2, 2, lambda text, part: text.endswith(part)),
    "startswith": (2, 2, lambda text, part: text.startswith(part)),
    "length": (1, 1, lambda value: float(len(value))),
    "indexof": (2, 2, lambda text, part: float(text.find(part))),
    "substring": (2, 3, _substring),
    "tolower": (1, 1, lambda text: text.lower()),
    "toupper": (1, 1, lambda text: text.upper()),
    "trim": (1, 1, lambda text: text.strip()),
    "concat": (2, 2, _concat),
    **{name: (1, 1, _time_part(partial(_number_in, name))) for name in _TIME_PARTS},
    "fractionalseconds": (1, 1, _time_part(lambda at: at.microsecond / 1e6)),
    "date": (1, 1, _time_part(lambda at: at.date().isoformat())),
    "time": (1, 1, _time_part(lambda at: at.time().isoformat())),
    "totaloffsetminutes": (1, 1, _time_part(lambda _at: 0.0)),
    "now": (0, 0, lambda: None),  # of the request, see `_compile`
    "mindatetime": (0, 0, lambda: FIRST_TIME),
    "maxdatetime": (0, 0, lambda: LAST_TIME),
    "round": (1, 1, _rounded),
    "floor": (1, 1, lambda value: float(math.floor(value))),
    "ceiling": (1, 1, lambda value: float(math.ceil(value))),
    "geo.distance": (2, 2, _spatial(shapely.distance)),
    "geo.length": (1, 1, _spatial(shapely.length)),
    "geo.intersects": (2, 2, _spatial(shapely.intersects)),
    **{f"st_{work.__name__}": (2, 2, _spatial(work)) for work in _RELATIONS},
    "st_relate": (3, 3, _spatial(shapely.relate_pattern)),
}
"""Functions with their least and greatest number of arguments."""

_CONDITIONS: Final = {
    "and", "or", "not", "substringof", "endswith", "startswith", "geo.intersects",
    *_COMPARISONS, *(name for name in FUNCTIONS if name.startswith("st_")),
}  # fmt: skip


def check_condition(expression: Expression) -> None:
    """Check that a ``$filter`` can be true or false.

    Raises:
        StandardsRequestError: It is a number, a text or a time.
    """
    if isinstance(expression, Operation):
        is_condition = expression.name in _CONDITIONS
    elif isinstance(expression, Literal):
        is_condition = isinstance(expression.value, bool)
    else:
        is_condition = True
    if not is_condition:
        got = "a value without a comparison"
        raise StandardsRequestError("$filter", "a condition", got)

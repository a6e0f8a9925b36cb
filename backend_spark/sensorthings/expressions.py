"""Expressions of ``$filter`` and ``$orderby``: text to a syntax tree.

Source: OGC SensorThings API part 1 (18-088), section 9.3.3.5, which takes the grammar
from OData 4.0. Length, depth and size of an expression are limited, so that no request
makes the parser work long.
"""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import shapely

from backend_spark.errors import StandardsRequestError

MAX_CHARACTERS: Final = 8000
MAX_DEPTH: Final = 24
MAX_NODES: Final = 250
MAX_POINTS: Final = 500
"""Points of one geometry; each is compared with those of every entity."""

Interval = tuple[datetime, datetime]
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

FUNCTIONS: Final = {
    "substringof": (2, 2), "endswith": (2, 2), "startswith": (2, 2),
    "length": (1, 1), "indexof": (2, 2), "substring": (2, 3), "tolower": (1, 1),
    "toupper": (1, 1), "trim": (1, 1), "concat": (2, 2),
    "year": (1, 1), "month": (1, 1), "day": (1, 1), "hour": (1, 1),
    "minute": (1, 1), "second": (1, 1), "fractionalseconds": (1, 1),
    "date": (1, 1), "time": (1, 1), "totaloffsetminutes": (1, 1), "now": (0, 0),
    "mindatetime": (0, 0), "maxdatetime": (0, 0),
    "round": (1, 1), "floor": (1, 1), "ceiling": (1, 1),
    "geo.distance": (2, 2), "geo.length": (1, 1), "geo.intersects": (2, 2),
    "st_equals": (2, 2), "st_disjoint": (2, 2), "st_touches": (2, 2),
    "st_within": (2, 2), "st_overlaps": (2, 2), "st_crosses": (2, 2),
    "st_intersects": (2, 2), "st_contains": (2, 2), "st_relate": (3, 3),
}  # fmt: skip
"""Functions with their least and greatest number of arguments."""


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
        low, high = FUNCTIONS[name]
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
    if kind == "number":
        return _finite(float(text))
    if kind == "text":
        return unquote_text(text)
    if kind in {"times", "date"}:
        first, _, last = text.partition("/")
        return (parse_time(first), parse_time(last)) if last else parse_time(first)
    if kind == "typed":
        name, _, quoted = text.partition("'")
        inner = unquote_text(f"'{quoted}")
        return _duration(inner) if name == "duration" else _geometry(inner)
    raise ValueError(text)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError
    return number


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

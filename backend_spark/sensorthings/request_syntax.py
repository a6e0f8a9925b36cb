"""Requests: resource paths such as ``Things('otani-1')/Datastreams``, query options.

Source: OGC SensorThings API part 1 (18-088), sections 9.2 and 9.3.3.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

from backend_spark.errors import StandardsRequestError
from backend_spark.sensorthings.expressions import (
    Expression,
    check_condition,
    parse_expression,
    unquote_text,
)
from backend_spark.tables.bounded_answers import WalkPosition

MAX_TOP: Final = 1000
"""Entities of one page; a larger ``$top`` gives pages of this size."""

DEFAULT_TOP: Final = 100
MAX_EXPAND_DEPTH: Final = 4
MAX_EXPANDS: Final = 20
"""Relations that one request expands, with those inside of others."""

MAX_ORDERS: Final = 5
_COUNT: Final = re.compile(r"[0-9]{1,18}")
_OPTIONS: Final = (
    "$filter",
    "$expand",
    "$select",
    "$orderby",
    "$top",
    "$skip",
    "$count",
    "$skiptoken",
)


@dataclass(frozen=True)
class SortKey:
    """An expression to sort by.

    Attributes:
        text: As in the request.
        expression: The expression.
        is_descending: Whether the largest value comes first.
    """

    text: str
    expression: Expression
    is_descending: bool


@dataclass(frozen=True)
class QueryOptions:
    """Options of one collection.

    Attributes:
        condition: Which entities; None for all.
        expand: Options of each relation that is written into its entity.
        select: Properties to write; empty for all.
        order: Keys to sort by, the first one first.
        top: Entities in a page.
        skip: Entities to leave out before it.
        count: Whether the number of all entities is wanted.
        token: Where the page before ended, for readings.
        raw: The options as in the request.
    """

    condition: Expression | None = None
    expand: dict[str, "QueryOptions"] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    order: tuple[SortKey, ...] = ()
    top: int = DEFAULT_TOP
    skip: int = 0
    count: bool = False
    token: str | None = None
    raw: tuple[tuple[str, str], ...] = ()

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values of the options, for links.

        What is expanded may come from several parts of the request, so that it is not
        in `raw`.
        """
        given = [pair for pair in self.raw if pair[0] != "$expand"]
        if self.expand:
            given.append(("$expand", ",".join(map(_item_text, self.expand.items()))))
        return given


def _item_text(item: tuple[str, QueryOptions]) -> str:
    name, options = item
    inner = ";".join(map("=".join, options.pairs()))
    return f"{name}({inner})" if inner else name


def parse_options(pairs: Iterable[tuple[str, str]]) -> QueryOptions:
    """Parse the query of a request.

    Args:
        pairs: Names and values of the query.

    Raises:
        StandardsRequestError: An option is unknown, repeated or invalid.
    """
    found = _parse(pairs, 0)
    if _count_expands(found) > MAX_EXPANDS:
        rule = f"at most {MAX_EXPANDS} relations in all"
        raise StandardsRequestError("$expand", rule, _count_expands(found))
    return found


def _count_expands(options: QueryOptions) -> int:
    return sum(1 + _count_expands(inner) for inner in options.expand.values())


def _parse(pairs: Iterable[tuple[str, str]], depth: int) -> QueryOptions:
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in _OPTIONS:
            rule = f"one of {', '.join(_OPTIONS)}"
            raise StandardsRequestError("query option", rule, name)
        if name in given:
            raise StandardsRequestError(name, "given once", value)
        given[name] = value
    condition = _condition(given["$filter"]) if "$filter" in given else None
    return QueryOptions(
        condition=condition,
        expand=_expand(given.get("$expand", ""), depth),
        select=_select(given["$select"]) if "$select" in given else (),
        order=_order(given["$orderby"]) if "$orderby" in given else (),
        top=min(_number("$top", given.get("$top", f"{DEFAULT_TOP}")), MAX_TOP),
        skip=_number("$skip", given.get("$skip", "0")),
        count=_boolean("$count", given.get("$count", "false")),
        token=_token(given.get("$skiptoken")),
        raw=tuple(given.items()),
    )


def _condition(text: str) -> Expression:
    found = parse_expression(text)
    check_condition(found)
    return found


def _number(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise StandardsRequestError(name, "a whole number from 0 on", text)
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise StandardsRequestError(name, "true or false", text)
    return text.lower() == "true"


def _token(text: str | None) -> str | None:
    if text is not None:
        WalkPosition.parse(text, "$skiptoken")
    return text


def _select(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in split_outside(text, ","))


def _order(text: str) -> tuple[SortKey, ...]:
    parts = split_outside(text, ",")
    if len(parts) > MAX_ORDERS:
        raise StandardsRequestError("$orderby", f"at most {MAX_ORDERS} keys", text)
    return tuple(_sort_key(part.strip()) for part in parts)


def _sort_key(text: str) -> SortKey:
    words = text.rsplit(maxsplit=1)
    is_directed = len(words) > 1 and words[-1].lower() in {"asc", "desc"}
    key = words[0] if is_directed else text
    is_descending = is_directed and words[-1].lower() == "desc"
    return SortKey(key, parse_expression(key, "$orderby"), is_descending)


def _expand(text: str, depth: int) -> dict[str, QueryOptions]:
    if not text.strip():
        return {}
    if depth >= MAX_EXPAND_DEPTH:
        rule = f"nested at most {MAX_EXPAND_DEPTH} deep"
        raise StandardsRequestError("$expand", rule, text)
    found: dict[str, QueryOptions] = {}
    for part in split_outside(text, ","):
        path, options = _expand_item(part.strip(), depth)
        _merge(found, path, options, depth)
    return found


def _expand_item(text: str, depth: int) -> tuple[list[str], QueryOptions]:
    """Path of relations, and the options in parentheses after it."""
    names, has_options, rest = text.partition("(")
    path = names.strip().split("/")
    if not has_options:
        return path, QueryOptions()
    if not rest.endswith(")"):
        raise StandardsRequestError("$expand", "closed with a parenthesis", text)
    pairs = []
    for part in split_outside(rest[:-1], ";"):
        name, has_value, value = part.strip().partition("=")
        if not has_value:
            raise StandardsRequestError("$expand", "options such as $top=5", part)
        pairs.append((name, value))
    return path, _parse(pairs, depth + len(path))


def _merge(
    found: dict[str, QueryOptions], path: list[str], options: QueryOptions, depth: int
) -> None:
    """Add a path such as ``Datastreams/Observations`` to what is expanded."""
    if depth + len(path) > MAX_EXPAND_DEPTH:
        rule = f"nested at most {MAX_EXPAND_DEPTH} deep"
        raise StandardsRequestError("$expand", rule, "/".join(path))
    first, *rest = path
    if not rest:
        known = found.get(first)
        inner = {**known.expand, **options.expand} if known else options.expand
        found[first] = replace(options, expand=inner)
        return
    known = found.get(first, QueryOptions())
    inner = dict(known.expand)
    _merge(inner, rest, options, depth + 1)
    found[first] = replace(known, expand=inner)


def split_outside(text: str, sign: str) -> Sequence[str]:
    """Split a text at a sign that is outside of parentheses and quoted texts."""
    parts, begin, depth, is_quoted = [], 0, 0, False
    for at, each in enumerate(text):
        if each == "'":
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (each == "(") - (each == ")")
            if each == sign and depth == 0:
                parts.append(text[begin:at])
                begin = at + 1
    return [*parts, text[begin:]]


MAX_SEGMENTS: Final = 8
_SEGMENT: Final = re.compile(
    r"([$A-Za-z@][\w.@]*)(?:\(('(?:[^']|'')*'|[0-9]+)\))?(?:/|$)"
)


@dataclass(frozen=True)
class PathSegment:
    """One part of a path.

    Attributes:
        name: Of an entity set, a relation or a property.
        key: Identifier in parentheses; None without one.
    """

    name: str
    key: str | None = None


def parse_path(path: str) -> list[PathSegment]:
    """Parse a path, with its escapes decoded; an identifier may contain a slash.

    Raises:
        StandardsRequestError: It is none, or too long.
    """
    found: list[PathSegment] = []
    at, text = 0, path.strip("/")
    while at < len(text):
        match = _SEGMENT.match(text, at)
        if match is None or len(found) == MAX_SEGMENTS:
            rule = f"at most {MAX_SEGMENTS} names, such as Things('id')/Datastreams"
            raise StandardsRequestError("path", rule, text, status=404)
        key = match[2]
        if key is not None and key.startswith("'"):
            key = unquote_text(key)
        found.append(PathSegment(match[1], key))
        at = match.end()
    if not found:
        raise StandardsRequestError("path", "that of an entity set", path, status=404)
    return found


def entity_link(base: str, set_name: str, key: str) -> str:
    """Address of an entity."""
    doubled = key.replace("'", "''")
    return f"{base}/{set_name}('{quote(doubled, safe='')}')"

"""Filters of SensorThings: what they accept, and what they refuse."""

from datetime import UTC, datetime
from typing import Any

import pytest

from backend_spark.errors import StandardsRequestError
from backend_spark.sensorthings.expressions import (
    MAX_COMBINATIONS,
    MAX_DEPTH,
    compile_expression,
    holds,
    parse_expression,
)
from backend_spark.sensorthings.request_syntax import (
    MAX_TOP,
    parse_options,
    split_outside,
)

SQUARE = "POLYGON((133 33, 134 33, 134 34, 133 34, 133 33))"
ENTITY: dict[tuple[str, ...], Any] = {
    ("name",): "otani's tilt",
    ("result",): 4.5,
    ("flag",): True,
    ("missing",): None,
    ("phenomenonTime",): "2026-10-26T07:40:00.000Z",
    ("span",): "2026-10-25T00:00:00Z/2026-10-26T00:00:00Z",
    ("location",): {"type": "Point", "coordinates": [133.5, 33.5]},
    ("properties",): {"cell": "3551e244"},
    ("sketch",): {"type": "Blob", "coordinates": [1, 2]},
    ("Datastreams", "name"): ["rain", "tilt/x"],
}

TRUE = (
    "name eq 'otani''s tilt'",
    "result gt 4 and result le 4.5",
    "not (result lt 4) and -result lt 0",
    "result add 1 mul 2 eq 6.5",
    "result eq 1 or flag eq true or missing gt 1",
    "missing eq null and result ne null",
    "phenomenonTime gt 2026-10-26T16:00:00+09:00",
    "phenomenonTime sub duration'PT40M' eq 2026-10-26T07:00:00Z",
    "2026-10-26T07:40:00Z eq phenomenonTime",
    "year(phenomenonTime) eq 2026 and hour(phenomenonTime) eq 7",
    "span lt 2026-10-26T01:00:00Z and span gt 2026-10-24T00:00:00Z",
    "now() gt phenomenonTime and phenomenonTime lt maxdatetime()",
    "date(phenomenonTime) eq 2026-10-26 and date(phenomenonTime) ne 2026-10-25",
    "date(phenomenonTime) gt 2026-10-25 and 2026-10-27 gt date(phenomenonTime)",
    "date(phenomenonTime) eq '2026-10-26' and year('2026-10-26') eq 2026",
    "indexof(name, 'zz') eq -1 and indexof(name, '') eq 0",
    "round(result) eq 5 and round(2.5) eq 3 and round(-2.5) eq -3",
    "round(2.4) eq 2 and round(1e300) eq 1e300",
    "startswith(name,'otani') and substringof('tilt', name) and length(name) eq 12",
    "toupper(substring(name, 0, 5)) eq 'OTANI' and indexof(name, 'a') eq 2",
    f"st_within(location, geography'{SQUARE}')",
    f"geo.intersects(location, geography'SRID=4326;{SQUARE}')",
    "geo.distance(location, geography'POINT(133.5 34.5)') lt 1.1",
    "Datastreams/name eq 'tilt/x'",
    "Datastreams/name ne 'tilt/x'",
)

FALSE = (
    "missing gt 1",
    "missing lt 1",
    "name gt 5",
    "flag gt 0",
    "result eq '4.5'",
    "Datastreams/name eq 'wire'",
    "st_within(name, geography'POINT(1 1)')",
    "geo.intersects(properties, geography'POINT(0 0)')",
    "geo.distance(sketch, geography'POINT(0 0)') ge 0",
    "result div 0 gt 1",
    "date(phenomenonTime) eq 2026-10-25",
    "date(phenomenonTime) ne 2026-10-26",
    "name ne 2026-10-26",
    "st_disjoint(location, geography'POINT EMPTY') and 1 eq 2",
)

REFUSED = (
    "name eq",
    "name eq 'open",
    "name equals 'x'",
    "drop(name)",
    "(name eq 'x'",
    "name eq 'x')",
    "name eq 'x'; drop table t",
    "length() eq 1",
    "result gt 1e9999",
    "name eq 2026-13-45T00:00:00Z",
    "st_within(location, geography'POLYGON((1 1')",
    "result add 1",
    "'x'",
    "and and and",
    "()",
    "",
    "\x00",
)


def is_accepted(text: str) -> bool:
    """Whether a filter accepts `ENTITY`."""
    now = datetime(2026, 10, 26, 8, tzinfo=UTC)
    return holds(compile_expression(parse_expression(text), now)(ENTITY.__getitem__))


@pytest.mark.parametrize("text", TRUE)
def test_filter_accepts(text: str) -> None:
    """Comparisons, logic, arithmetic, texts, times and geometry."""
    assert is_accepted(text)


@pytest.mark.parametrize("text", FALSE)
def test_filter_does_not_accept(text: str) -> None:
    """An unknown value, and one of another type, fulfil nothing."""
    assert not is_accepted(text)


def test_pairs_of_values_are_counted_for_each_entity() -> None:
    """Over all comparisons of a filter, and again from 0 for the next entity."""
    now, values = datetime(2026, 10, 26, 8, tzinfo=UTC), [*map(float, range(200))]
    once, twice = (
        compile_expression(parse_expression(" and ".join(["a eq b"] * n)), now)
        for n in (1, 2)
    )

    def resolve(_steps: tuple[str, ...]) -> list[float]:
        return values

    assert len(values) ** 2 < MAX_COMBINATIONS < 2 * len(values) ** 2
    assert [holds(once(resolve)) for _ in range(3)] == [True] * 3
    with pytest.raises(StandardsRequestError, match=f"at most {MAX_COMBINATIONS}"):
        twice(resolve)


@pytest.mark.parametrize("text", REFUSED)
def test_malformed_filter_is_refused(text: str) -> None:
    """With an error that names the option."""
    with pytest.raises(StandardsRequestError, match=r"^\$filter must be"):
        parse_options([("$filter", text)])


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "1 eq 1" + ")" * 5000,
        "not " * 1500 + "1 eq 1",
        "-" * 5000 + "1 eq 1",
        " or ".join(["1 eq 1"] * 700),
        "name eq '" + "x" * 9000 + "'",
        f"st_within(location, geography'LINESTRING({', '.join(['1 1'] * 600)})')",
    ],
    ids=["parentheses", "not", "signs", "or", "text", "geometry"],
)
@pytest.mark.attack(
    "console: a filter that is deep, long or large", "no such interface"
)
def test_large_filter_is_refused(text: str) -> None:
    """Before it costs time or a stack."""
    with pytest.raises(StandardsRequestError, match=r"^\$filter must be"):
        parse_options([("$filter", text)])


def test_expand_is_parsed_with_its_options() -> None:
    """Also as a path; two paths with the same beginning are merged."""
    text = (
        "Thing($select=name,@iot.id),"
        "Observations($top=1;$orderby=phenomenonTime desc;$filter=result gt 1),"
        "Thing/Locations($select=location)"
    )
    expand = parse_options([("$expand", text)]).expand

    assert set(expand) == {"Thing", "Observations"}
    assert expand["Thing"].select == ("name", "@iot.id")
    assert expand["Thing"].expand["Locations"].select == ("location",)
    assert expand["Observations"].top == 1
    assert expand["Observations"].order[0].is_descending


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("Datastreams/Observations", "Observations"),
        (
            "Datastreams($expand=Thing;$top=2),Datastreams/Observations($top=1)",
            "Thing,Observations($top=1)",
        ),
        (
            "Datastreams/Observations($filter=result gt 1;$top=3),Datastreams/Thing",
            "Observations($filter=result gt 1;$top=3),Thing",
        ),
        (
            "Datastreams/Thing/Locations,Datastreams($top=2)",
            "Thing($expand=Locations)",
        ),
    ],
)
def test_link_to_an_expanded_relation_has_all_that_is_expanded_in_it(
    text: str, inner: str
) -> None:
    """Also where that was a path, or several parts of the request."""
    streams = parse_options([("$expand", text)]).expand["Datastreams"]
    pairs = streams.pairs()

    assert dict(pairs)["$expand"] == inner
    assert dict(pairs).get("$top") == ("2" if "$top=2" in text else None)
    assert parse_options(pairs).pairs() == pairs


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("$expand", "/".join(["Datastreams", "Thing"] * 4)),
        ("$expand", "A($expand=B($expand=C($expand=D($expand=E))))"),
        ("$expand", "A/B/C($expand=D/E)"),
        ("$expand", ",".join(f"R{n}" for n in range(30))),
        ("$expand", "Datastreams($top=1"),
        ("$expand", "Datastreams($top)"),
        ("$top", "-1"),
        ("$top", "9" * 5000),
        ("$skip", "١"),
        ("$count", "yes"),
        ("$skiptoken", "1793000400000000.1; drop"),
        ("$skiptoken", "9" * 18 + ".1"),
        ("$orderby", ",".join(["name"] * 9)),
        ("$format", "json"),
    ],
)
def test_invalid_option_is_refused(option: str, value: str) -> None:
    """With an error that names it."""
    with pytest.raises(StandardsRequestError, match="must be") as refused:
        parse_options([(option, value)])

    assert refused.value.status == 400
    assert refused.value.field in {option, "query option"}
    assert len(str(refused.value)) < 500


def test_top_is_limited_and_not_refused() -> None:
    """By the standard a server may return smaller pages."""
    assert parse_options([("$top", "1000000000")]).top == MAX_TOP


def test_text_is_split_outside_of_quotes_and_parentheses() -> None:
    """A sign in a text or in inner options does not count."""
    assert split_outside("a(b,c),'d,e',f", ",") == ["a(b,c)", "'d,e'", "f"]
    assert MAX_DEPTH < 100

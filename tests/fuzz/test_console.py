"""Fuzzes every route of the console: no request causes a server error."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import msgspec
import pytest
from conftest import free_port
from console_tables import write_tables
from console_workspace import (
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
    serve,
)
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend_spark.console.app import make_app
from spatial_mqtt.cells import Cell

CASES = max(400, int(os.environ.get("FUZZ_CASES", "0")) // 100)
"""A request takes a hundred times as long as a parser."""

ENDLESS = "/api/live"
TOKEN = Cell.at(SLOPES[0].latitude, SLOPES[0].longitude, 13).token
KNOWN = {
    "cell": TOKEN, "advisory_mm": 100.0, "warning_mm": 130.0,
    "special_mm": 200.0, "why": "x", "mm_per_h": 30.0, "hours": 3, "text": "x",
    "time": "2026-07-01T13:00", "count": 1, "name": "a-chief", "password": "x",
}  # fmt: skip
FORMS: tuple[dict[str, object], ...] = (
    *(
        {name: KNOWN[name] for name in names}
        for names in (
            ("cell", "advisory_mm", "warning_mm", "special_mm", "why"),
            ("mm_per_h", "hours"),
            ("text",),
            ("time", "count", "text"),
            ("name", "password"),
        )
    ),
    {
        "node": SLOPES[0].node, "name": "rain", "from_s": NOW_S - 3600.0,
        "to_s": NOW_S, "verdict": "bad", "codes": [], "why": "x",
    },
    {"review": 1, "why": "x"},
)  # fmt: skip
NUMBERS = ("0", "-1", "1", str(2**63), "9" * 400, "1793000400", "1e9", "nan", "")
DATES = ("0001-01-01", "9999-12-31", "2026-10-26", "2026-02-30", "26-1-1", "")
MORE = ("now", "then", "..", "%00", "/")
EDGES = st.sampled_from((*NUMBERS, *DATES, *map(str, KNOWN.values()), *MORE))
TEXTS = EDGES | st.text(max_size=20)
METHODS = ("GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD")
HEADERS: tuple[dict[str, str], ...] = (
    {}, {}, {"Cookie": "yamamori-session=\x7f; ="}, {"Cookie": ";" * 5000},
    {"Content-Type": "multipart/form-data"}, {"X-Yamamori-Proof": "x"},
)  # fmt: skip
PARAM_NAMES = ("at", "first", "last", "lang", "from_s", "to_s", "known")
PARAMS = st.dictionaries(st.sampled_from(PARAM_NAMES), TEXTS)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.sampled_from(("0001-01-01", "9999-12-31T23:59", "2026-07-01T13:00:00+25:00")),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A valid form with some values replaced, or arbitrary bytes."""
    form: dict[str, object] = {
        name: draw(VALUES) if draw(st.integers(0, 2)) == 0 else value
        for name, value in draw(st.sampled_from(FORMS)).items()
    }
    good = msgspec.json.encode(form, enc_hook=str) if _is_small(form) else b"{}"
    no_text = good.replace(b'"x"', b'"\xff"')
    deep = st.sampled_from((b"[" * 9000, b'{"text":' * 9000))
    return draw(st.just(good) | st.just(no_text) | st.binary(max_size=60) | deep)


def _is_small(form: dict[str, object]) -> bool:
    """Whether all integers can be encoded; larger ones are in `NUMBERS` as text."""
    wide = (v for v in form.values() if type(v) is int and abs(v) >= 2**63)
    return not any(wide)


@dataclass
class Console:
    """A console with tables.

    Attributes:
        routes: Its paths, without the endless one.
        clients: An anonymous client, and one logged in as chief.
    """

    routes: list[str]
    clients: list[httpx.Client]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console on a real port."""
    house, clock = Workspace(tmp_path_factory.mktemp("console"), free_port()), Clock()
    write_tables(house.data, SLOPES, NOW_S)
    parts = make_test_services(house, clock, house.with_accounts())
    parts.refresh()
    paths = [r.path for r in make_app(parts).routes if isinstance(r, APIRoute)]
    with serve(parts, house.port) as anonymous, httpx.Client(timeout=60) as chief:
        anonymous.timeout = chief.timeout
        chief.base_url = anonymous.base_url
        chief.headers.update(log_in(chief, "a-chief"))
        known = [path for path in paths if path != ENDLESS]
        yield Console([*known, "/static/x", "/nothing"], [anonymous, chief])


@settings(
    max_examples=CASES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_request_causes_a_server_error(
    console: Console, data: st.DataObject
) -> None:
    """Every status is below 500, and no response contains a traceback."""
    client = data.draw(st.sampled_from(console.clients))
    path = data.draw(st.sampled_from(console.routes))
    for name in re.findall(r"{\w+}", path):
        path = path.replace(name, _quoted(data.draw(TEXTS)))
    method = data.draw(st.sampled_from(METHODS))
    params = data.draw(PARAMS)
    body = data.draw(bodies())
    headers = data.draw(st.sampled_from(HEADERS))
    try:
        answer = client.request(
            method, path, params=_writable(params), content=body, headers=headers
        )
    except (httpx.InvalidURL, httpx.LocalProtocolError):
        return  # httpx cannot send this request

    assert answer.status_code < 500, (method, path, params, body)
    assert "Traceback" not in answer.text


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode(errors="replace")) or "%20"


def _writable(params: dict[str, str]) -> dict[str, str]:
    return {k: v.encode(errors="replace").decode() for k, v in params.items()}

"""SensorThings API of a running console, read by an independent client and by QGIS."""

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import frost_sta_client as frost
import httpx
import pyarrow as pa
import pytest
from attack_table import timed
from conftest import free_port
from console_workspace import (
    HOSTILE,
    SLOPES,
    Clock,
    Workspace,
    make_test_services,
    serve,
)
from frost_sta_client.service.auth_handler import AuthHandler

from backend_spark.console import accounts
from backend_spark.console.audit_log import ACCESS_KINDS, read_journal
from backend_spark.console.nodes import cell_center
from backend_spark.errors import StandardsRequestError
from backend_spark.exports.cell_states import cell_ring
from backend_spark.sensorthings.request_syntax import parse_options
from backend_spark.sensorthings.service import SensorThingsService
from backend_spark.tables.bounded_answers import AnswerLimits
from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.schemas import SILVER, TABLES

TOKEN = "t0ken-" + "x" * 37
ROOT = "/sta/v1.1"
STREAM = f"{ROOT}/Datastreams('otani-1/tilt/x')"
AREA = "Polygon ((133.49 33.57, 133.53 33.57, 133.53 33.6, 133.49 33.6, 133.49 33.57))"


@pytest.fixture(scope="module")
def workspace_with_token(
    tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Workspace:
    """A workspace whose viewer has a token."""
    workspace = Workspace(tmp_path_factory.mktemp("things"), free_port())
    shutil.copytree(tables, workspace.data)
    workspace.with_accounts()
    path = workspace.folder / "accounts"
    found = accounts.read_accounts(path)
    viewer = replace(found["a-viewer"], token_digest=accounts.digest_token(TOKEN))
    accounts.write_accounts(path, found | {"a-viewer": viewer})
    return workspace


@pytest.fixture(scope="module")
def client(workspace_with_token: Workspace) -> Iterator[httpx.Client]:
    """A program that reads with the token."""
    workspace = workspace_with_token
    with ExitStack() as stack:
        more = f'accounts = "{workspace.folder / "accounts"}"'
        parts = make_test_services(workspace, Clock(), more)
        parts.refresh()
        client = stack.enter_context(serve(parts, workspace.port))
        client.auth, client.timeout = ("a-viewer", TOKEN), httpx.Timeout(60)
        yield client


def get(client: httpx.Client, path: str, **options: str) -> dict[str, Any]:
    """JSON of an answer; the options without their dollar signs."""
    query = {f"${name}": value for name, value in options.items()}
    answer = client.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.filterwarnings("ignore:furl.pathstr is deprecated")  # of its own use
def test_independent_client_reads_the_console(client: httpx.Client) -> None:
    """All entity sets, relations and pages, by the client library of FROST."""
    auth = AuthHandler("a-viewer", TOKEN)
    service = frost.SensorThingsService(f"{client.base_url}{ROOT}")
    service._auth_handler = auth  # noqa: SLF001 - its own setter does not accept one
    things = service.things().query().count().orderby("name", "asc").list()
    node = service.things().find("otani-1")
    (place,) = node.get_locations().query().list().entities
    streams = node.get_datastreams().query().expand("ObservedProperty").list()
    tilt = service.datastreams().find("otani-1/tilt/x")
    query = tilt.get_observations().query().top(50)
    readings = list(query.filter("result gt 0.2").orderby("phenomenonTime").list())

    assert things.count == len(SLOPES)
    assert HOSTILE in {thing.name for thing in things}
    assert place.location["coordinates"] == pytest.approx([133.5, 33.575], abs=0.001)
    assert [s.observed_property.name for s in streams] == ["rain", "tilt/x", "tilt/y"]
    assert [r.result for r in readings] == pytest.approx([
        0.001 * n for n in range(287, 200, -1)
    ])


def test_requests_of_qgis(client: httpx.Client) -> None:
    """Its list of sets, geometry types, count in an area, and pages."""
    sets = {each["name"]: each["url"] for each in get(client, ROOT)["value"]}
    of_type = "location/type eq 'Point' or location/geometry/type eq 'Point'"
    area = f"geo.intersects(location, geography'{AREA}')"
    count = get(client, sets["Locations"], top="0", count="true", filter=of_type)
    found = get(
        client,
        sets["Locations"],
        top="200",
        count="false",
        filter=f"({of_type}) and ({area})",
        expand="Things($expand=Datastreams($expand=Observations($top=2)))",
    )
    page = get(client, sets["Things"], top="2", count="false")

    assert count == {"@iot.count": len(SLOPES), "value": []}
    assert [each["@iot.id"] for each in found["value"]] == ["otani-1", "otani-2"]
    (thing,) = found["value"][0]["Things"]
    assert [len(each["Observations"]) for each in thing["Datastreams"]] == [2, 2, 2]
    assert "$top=2" in page["@iot.nextLink"]
    assert len(get(client, page["@iot.nextLink"])["value"]) == 2


def test_relations_lead_back(client: httpx.Client) -> None:
    """From every set over every relation, one and many."""
    for each in get(client, ROOT)["value"]:
        entity = get(client, each["url"], top="1")["value"][0]
        links = {name: url for name, url in entity.items() if name.endswith("Link")}
        assert get(client, links.pop("@iot.selfLink")) == entity
        assert links or each["name"] == "Nothing"
        for name, link in links.items():
            found = get(client, link)
            expanded = get(client, entity["@iot.selfLink"], expand=name.split("@")[0])
            assert expanded[name.split("@")[0]] == found.get("value", found)


def test_filters_of_readings(client: httpx.Client) -> None:
    """In SQL, or row by row, they accept the same."""
    path = f"{ROOT}/Observations"
    day = "phenomenonTime ge 2026-10-26T06:00:00Z"
    exact = f"{day} and Datastream/name eq 'tilt/x' and result gt 0.28"
    by_row = f"{day} and endswith(Datastream/name, '/x') and result mul 1 gt 0.28"
    other = (
        f"({exact}) or (FeatureOfInterest/id eq '{SLOPES[0].cell.token}' and "
        "result lt 0 and phenomenonTime lt 2026-10-26T06:00:00Z)"
    )
    found = [get(client, path, filter=f, count="true") for f in (exact, by_row, other)]

    assert [page["@iot.count"] for page in found] == [7, 7, 7]
    assert found[0] == found[1] == found[2]
    assert {each["result"] for each in found[0]["value"]} == {
        round(0.001 * n, 6) for n in range(281, 288)
    }


def test_pages_of_readings(client: httpx.Client) -> None:
    """Follow each other without a gap, in both directions."""
    forward, back = [], []
    for order, found in (("desc", back), ("asc", forward)):
        query = quote(f"$orderby=phenomenonTime {order}&$top=100", safe="$=&")
        link: str | None = f"{STREAM}/Observations?{query}&$select=phenomenonTime"
        while link is not None:
            page = get(client, link)
            found += [each["phenomenonTime"] for each in page["value"]]
            link = page.get("@iot.nextLink")

    assert len(set(forward)) == len(forward) == 288
    assert forward == sorted(forward) == back[::-1]


def test_properties_and_references(client: httpx.Client) -> None:
    """Of one entity, as JSON and as text."""
    assert get(client, f"{STREAM}/name") == {"name": "tilt/x"}
    assert client.get(f"{STREAM}/name/$value").text == "tilt/x"
    reference = get(client, f"{STREAM}/Thing/Datastreams/$ref")
    assert [set(each) for each in reference["value"]] == [{"@iot.selfLink"}] * 3


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 404),
        ("Nothings", 404),
        ("Things('nobody')", 404),
        ("Things('otani-1')/Observations", 404),
        ("Observations('a/b/1/99999999999999999/rain')", 404),
        ("Observations('a/b/9999999999999999999/1/rain')", 404),
        ("Datastreams('otani-1/rain')/Thing/Datastreams('otani-2/rain')", 404),
        ("Things('otani-1')/Datastreams/" + "Thing/Datastreams/" * 5, 404),
        ("Things?$select=nothing", 400),
        ("Things?$expand=Nothing", 400),
        ("Things?$filter=Datastreams/Observations/result gt 1", 400),
        ("Things?$filter=Datastreams eq 1", 400),
        ("Observations?$orderby=result", 400),
        ("Observations?$skip=99999999999999", 400),
    ],
)
def test_errors_have_the_form_of_the_standard(
    client: httpx.Client, path: str, status: int
) -> None:
    """Code, type and a message that names field, rule and value."""
    answer = client.get(f"{ROOT}/{path}" if path else f"{ROOT}//")

    assert answer.status_code == status
    assert answer.json()["code"] == status
    assert " must be " in answer.json()["message"]


T0 = datetime(2026, 11, 27, 3, 0, tzinfo=UTC)


def ask_readings(
    folder: Path, rows: list[dict[str, Any]]
) -> Callable[..., dict[str, Any]]:
    """Function that answers a path over a table of readings, one each ten minutes."""
    create_tables(folder, TABLES)
    usual = {"node": "n1", "boot": "b", "pri": 2, "unit": "mm", "flag": 1}
    made = [
        dict.fromkeys(SILVER.names)
        | usual
        | {"seq": seq, "at": T0 + timedelta(minutes=10 * seq), "received_at": T0}
        | row
        for seq, row in enumerate(rows)
    ]
    append_rows(folder / "silver", pa.Table.from_pylist(made, SILVER))
    clock = T0.timestamp
    limits = AnswerLimits(time.monotonic)
    service = SensorThingsService(folder, clock, time.monotonic, limits)

    def ask(path: str, **options: str) -> dict[str, Any]:
        pairs = [(f"${name}", value) for name, value in options.items()]
        found: dict[str, Any] = service.answer("http://x", path, parse_options(pairs))
        return found

    return ask


def test_links_to_next_pages_keep_what_is_expanded(tmp_path: Path) -> None:
    """Given as a path, or in several parts; references stay references."""
    ask = ask_readings(tmp_path, [{"name": name, "value": 1.0} for name in "abc"])

    def follow(link: str) -> list[dict[str, Any]]:
        path, _, query = link.removeprefix("http://x/").partition("?")
        options = {name[1:]: value for name, value in parse_qsl(query)}
        page = ask(unquote(path), **options)
        more = page.get("@iot.nextLink")
        return page["value"] + (follow(more) if more else [])

    for text in (
        "Datastreams($top=1),Datastreams/Observations",
        "Datastreams/Observations,Datastreams($top=1;$expand=Thing)",
        "Datastreams($top=1;$expand=Thing),Datastreams/Observations($count=true)",
    ):
        thing = ask("Things('n1')", expand=text)
        streams = thing["Datastreams"] + follow(thing["Datastreams@iot.nextLink"])
        assert [len(each["Observations"]) for each in streams] == [1, 1, 1]
        assert all(("Thing" in each) is ("Thing" in text) for each in streams)
    references = follow("http://x/Things('n1')/Datastreams/$ref?$top=1")
    assert [set(each) for each in references] == [{"@iot.selfLink"}] * 3


def test_property_says_where_the_counter_is(tmp_path: Path) -> None:
    """A gauge sends depth and counter, or its counter only; both give the same rain."""
    both = [{"name": "rain", "value": 5.0, "sum": 10.0 + 5 * n} for n in range(6)]
    only = [each | {"node": "n2", "value": None} for each in both]
    tilt = [{"name": "tilt/x", "unit": "deg", "value": 0.1}]
    ask = ask_readings(tmp_path, both + only + tilt)
    gauges = ask(
        "Datastreams",
        filter="name eq 'rain'",
        expand="Observations($orderby=phenomenonTime)",
    )["value"]
    counters = [gauge["properties"] for gauge in gauges]
    results = [[each["result"] for each in gauge["Observations"]] for gauge in gauges]
    sums = [each["parameters"]["sum"] for each in gauges[0]["Observations"]]
    (rain, _) = ask("ObservedProperties")["value"]

    assert counters == [
        {"is_counted": False, "counter": "parameters/sum"},
        {"is_counted": True, "counter": "result"},
    ]
    assert sum(results[0][1:]) == sums[-1] - sums[0] == 25.0
    assert results[1][-1] - results[1][0] == 25.0
    assert "since the reading before" in gauges[0]["description"]
    assert "take differences" in gauges[1]["description"]
    assert "see the datastream" in rain["description"]
    assert ask("Datastreams('n1/tilt/x')/properties") == {
        "properties": {"is_counted": False, "counter": None}
    }


def test_readings_keep_their_unit(tmp_path: Path) -> None:
    """The newest unit of a name has the usual datastream, an older one its own."""
    units = (("n1", None, 7.0), ("n1", "m", 0.512), ("n1", "mm", 513.0))
    ask = ask_readings(
        tmp_path,
        [
            {"node": node, "name": "span", "unit": unit, "value": value}
            for node, unit, value in (*units, ("n2", "m", 0.2))
        ],
    )
    streams = {
        each["@iot.id"]: (
            each["unitOfMeasurement"]["symbol"],
            [reading["result"] for reading in each["Observations"]],
        )
        for each in ask("Datastreams", expand="Observations")["value"]
    }
    readings = ask("Observations", expand="Datastream")["value"]
    in_m = ask(
        "Observations",
        filter="Datastream/unitOfMeasurement/symbol eq 'm'",
        count="true",
    )

    assert streams == {
        "n1/span": ("mm", [513.0]),
        "n1/span@": (None, [7.0]),
        "n1/span@m": ("m", [0.512]),
        "n2/span": ("m", [0.2]),
    }
    assert [
        (each["result"], each["Datastream"]["@iot.id"]) for each in readings[::-1]
    ] == [(7.0, "n1/span@"), (0.512, "n1/span@m"), (513.0, "n1/span"), (0.2, "n2/span")]
    assert [each["result"] for each in in_m["value"]] == [0.2, 0.512]
    assert in_m["@iot.count"] == 2
    assert ask("Datastreams('n1/span@m')/Observations")["value"][0]["result"] == 0.512
    (sensor, _) = ask("Sensors")["value"]
    assert sensor["metadata"] == "span"
    (span,) = ask("ObservedProperties")["value"]
    assert span["properties"] == {"unit": None}


def test_node_that_moved_is_where_its_newest_reading_is(tmp_path: Path) -> None:
    """Also in a cell whose token sorts before; the area of a series has all cells."""
    old, new = "355a9c54", "355a9c44"
    reading = {"name": "tilt/x", "unit": "deg", "value": 0.1}
    ask = ask_readings(
        tmp_path, [reading | {"cell": old}, reading | {"cell": new}, reading]
    )
    thing = ask("Things('n1')", expand="Locations")
    (location,) = thing["Locations"]
    stream = ask("Datastreams('n1/tilt/x')")
    (west, south), (east, north) = (
        (pick(each[0] for each in corners), pick(each[1] for each in corners))
        for pick, corners in (
            (min, [*cell_ring(old), *cell_ring(new)]),
            (max, [*cell_ring(old), *cell_ring(new)]),
        )
    )

    assert thing["properties"] == {"cell": new}
    latitude, longitude = cell_center(new) or (0.0, 0.0)
    assert location["location"]["coordinates"] == [
        round(longitude, 6),
        round(latitude, 6),
    ]
    assert stream["observedArea"] == {
        "type": "Polygon",
        "coordinates": [
            [[west, south], [east, south], [east, north], [west, north], [west, south]]
        ],
    }
    inside = f"st_within(observedArea, geography'{AREA}')"
    assert ask("Datastreams", filter=inside)["value"] == []


def test_bounds_that_are_computed_limit_what_is_read(tmp_path: Path) -> None:
    """A file of readings outside of them is not opened; page after page."""
    reading = {"name": "tilt/x", "unit": "deg", "value": 0.1}
    old = {"at": T0 - timedelta(days=900)}
    ask_readings(tmp_path, [reading | old])
    (file,) = (tmp_path / "silver").rglob("*.parquet")
    new = [{"at": T0 - timedelta(minutes=n)} for n in range(90)]
    ask = ask_readings(tmp_path, [reading | each for each in new])
    assert len(ask("Observations")["value"]) == 91
    file.write_bytes(b"")  # the catalogue has read it
    condition = "phenomenonTime gt now() sub duration'PT1H'"
    times = []
    page = ask("Observations", filter=condition, top="40", count="true")
    count = page["@iot.count"]
    while True:
        times += [each["phenomenonTime"] for each in page["value"]]
        if "@iot.nextLink" not in page:
            break
        token = dict(parse_qsl(page["@iot.nextLink"]))["$skiptoken"]
        page = ask("Observations", filter=condition, top="40", skiptoken=token)

    assert len(set(times)) == len(times) == count == 60
    recent = "phenomenonTime gt 2026-11-27T02:00:00Z"
    for always in ("1e308 mul 10", "1 sub -1"):
        page = ask("Observations", filter=f"{recent} and result lt {always}", top="9")
        assert len(page["value"]) == 9


@pytest.mark.parametrize("option", ["filter", "orderby"])
def test_time_is_looked_at_for_each_entity(tmp_path: Path, option: str) -> None:
    """A filter with lists may take long for one."""
    ask_readings(tmp_path, [{"name": "a", "node": f"n{n}"} for n in range(40)])
    seconds = itertools.count()
    limits = AnswerLimits(lambda: float(next(seconds)))
    service = SensorThingsService(tmp_path, T0.timestamp, time.monotonic, limits)
    options = parse_options([(f"${option}", "name eq 'n1'")])

    with pytest.raises(
        StandardsRequestError, match="more than 10 s, got '10 entities'"
    ):
        service.answer("http://x", "Things", options)


DEEP = "Datastreams($expand=Thing($expand=Datastreams($expand=Observations)))"
MANY = " or ".join(["substringof('a', concat(name, description))"] * 35)
EVERY = " or ".join(["result mul 1 eq 1e300"] * 12)
HEAVY = (
    f"Things?$top=999999999&$expand={DEEP}",
    f"Things?$filter={MANY}&$orderby=description,name desc",
    f"Observations?$top=999999999&$filter={EVERY}",
    f"Observations?$count=true&$filter={EVERY}",
    "ObservedProperties?$filter=Datastreams/Thing/Datastreams/name eq Datastreams/name",
    "Observations?$top=1000&$skip=9999&$expand=Datastream,FeatureOfInterest",
)


@pytest.mark.attack("console: SensorThings queries that ask for much", "no such route")
def test_heavy_queries_keep_nobody_waiting(
    client: httpx.Client, report: Callable[..., None]
) -> None:
    """At once: an answer or a refusal each, while a page is served as always."""
    statuses: list[int] = []

    def send(path: str) -> None:
        answer = httpx.get(
            f"{client.base_url}{ROOT}/{path}", auth=client.auth, timeout=60
        )
        statuses.append(answer.status_code)
        assert len(answer.content) < 20_000_000

    senders = [threading.Thread(target=send, args=(each,)) for each in HEAVY]
    for sender in senders:
        sender.start()
    waits_s = []
    while any(sender.is_alive() for sender in senders):
        waits_s += timed(lambda: client.get("/api/session").raise_for_status())
        time.sleep(0.05)
    report(bystander_s=waits_s)

    assert len(statuses) == len(senders)
    assert set(statuses) <= {200, 400, 503}
    assert max(waits_s) < 5


def test_token_reads_and_changes_nothing(
    client: httpx.Client, workspace_with_token: Workspace
) -> None:
    """By HTTP Basic or as a Bearer token; a page and a change need a login."""
    bare = httpx.Client(base_url=client.base_url, timeout=60)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    challenge = bare.get(ROOT)

    assert challenge.status_code == 401
    assert challenge.headers["www-authenticate"].startswith("Basic ")
    assert bare.get(ROOT, headers=bearer).status_code == 200
    assert bare.get("/api/cells", headers=bearer).status_code == 401
    note = bare.post("/api/notes", headers=bearer, json={"text": "x"})
    assert note.status_code == 401


@pytest.mark.attack("console: guesses at a token", "no tokens")
def test_wrong_token_is_refused_and_logged(
    client: httpx.Client,
    workspace_with_token: Workspace,
    report: Callable[..., None],
) -> None:
    """Guesses keep nobody waiting; the journal counts them."""
    bare = httpx.Client(base_url=client.base_url, timeout=60)
    wrong = [
        ("a-viewer", "wrong"),
        ("a-viewer", ""),
        ("a-viewer", TOKEN + "x"),
        ("a-chief", TOKEN),
        ("a-chief", ""),
        ("", ""),
    ]
    right, waits_s = [], []
    for auth in wrong * 5:
        assert bare.get(ROOT, auth=auth).status_code == 401
        waits_s += timed(lambda: right.append(client.get(ROOT).status_code))
    report(bystander_s=waits_s)
    for header in ("Bearer", "Bearer x", "Basic !", "Basic /w==", "Digest x"):
        headers = {"Authorization": header}
        assert bare.get(ROOT, headers=headers).status_code == 401

    assert set(right) == {200}
    journal = workspace_with_token.data / "console" / "journal.sqlite"
    entries = read_journal(journal, *ACCESS_KINDS, limit=100)
    assert any(entry.kind == "login_failed" for entry in entries)

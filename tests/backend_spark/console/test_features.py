"""OGC API Features of a running console, by the published schemas and a client."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from conftest import free_port
from console_workspace import (
    HIGHEST,
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    make_test_services,
    serve,
)
from openapi_spec_validator import validate
from owslib.ogcapi.features import Features

ROOT = "/ogc"
CELLS = f"{ROOT}/collections/cells/items"
LEVELS = f"{ROOT}/collections/levels/items"
AREA = (133.49, 33.57, 133.503, 33.58)
NOW = datetime.fromtimestamp(NOW_S, UTC)
SCHEMAS = json.loads(
    (Path(__file__).parent / "ogcapi-features-1.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def client(
    tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """Client of a console without accounts."""
    workspace = Workspace(tmp_path_factory.mktemp("features"), free_port())
    shutil.copytree(tables, workspace.data)
    with ExitStack() as stack:
        parts = make_test_services(workspace, Clock())
        parts.refresh()
        client = stack.enter_context(serve(parts, workspace.port))
        client.timeout = httpx.Timeout(60)
        yield client


def get(client: httpx.Client, path: str, schema: str, **query: object) -> Any:  # noqa: ANN401 - JSON
    """JSON of an answer that has a form of the standard."""
    params = {key: str(value) for key, value in query.items()}
    answer = client.get(path, params=params or None)
    assert answer.status_code == 200, answer.text
    check_schema(answer, schema)
    return answer.json()


def check_schema(answer: httpx.Response, schema: str) -> None:
    """Check an answer by a published schema."""
    form = {"$ref": f"#/definitions/{schema}", "definitions": SCHEMAS["definitions"]}
    jsonschema.validate(answer.json(), form)


def test_documents_have_the_published_forms(client: httpx.Client) -> None:
    """Landing page, conformance, collections, OpenAPI; each link leads somewhere."""
    landing = get(client, ROOT, "landingPage")
    links = {link["rel"]: link for link in landing["links"]}
    described = client.get(links["service-desc"]["href"])
    classes = get(client, links["conformance"]["href"], "confClasses")["conformsTo"]
    found = get(client, links["data"]["href"], "collections")["collections"]

    validate(described.json())
    assert described.headers["content-type"] == links["service-desc"]["type"]
    assert {each.rsplit("/", 1)[1] for each in classes} == {"core", "oas30", "geojson"}
    assert [each["id"] for each in found] == ["cells", "levels"]
    for each in found:
        assert get(client, f"{ROOT}/collections/{each['id']}", "collection") == each
        (items,) = (link for link in each["links"] if link["rel"] == "items")
        page = client.get(items["href"])
        assert page.headers["content-type"] == items["type"] == "application/geo+json"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of OWSLib's libraries
def test_independent_client_reads_the_console(client: httpx.Client) -> None:
    """OWSLib finds collections, and features by area, time and page."""
    service = Features(f"{client.base_url}{ROOT}")
    inside = service.collection_items("cells", bbox=list(AREA))
    then = service.collection_items(
        "levels", datetime_="2026-10-26T07:00:00Z", limit=50
    )
    (feature,) = inside["features"]
    same = service.collection_item("cells", feature["id"])

    assert service.feature_collections() == ["cells", "levels"]
    assert service.api()["openapi"].startswith("3.0")
    assert feature["properties"]["level"] == HIGHEST
    assert same["properties"] == feature["properties"]
    assert {each["properties"]["valid_time"] for each in then["features"]} >= {
        "2026-10-26T07:00:00+00:00"
    }


def test_cells_by_area_and_page(client: httpx.Client) -> None:
    """All cells on pages of two, each once."""
    form, found = "featureCollectionGeoJSON", []
    link: str | None = f"{CELLS}?limit=2"
    while link is not None:
        page = get(client, link, form)
        assert page["numberMatched"] == len(SLOPES)
        found += [feature["id"] for feature in page["features"]]
        link = next((x["href"] for x in page["links"] if x["rel"] == "next"), None)

    assert sorted(found) == sorted(slope.cell.token for slope in SLOPES)
    across = get(client, CELLS, form, bbox="170,-90,134,90")
    assert across["numberMatched"] == len(SLOPES)
    assert get(client, CELLS, form, bbox="0,0,1,1")["features"] == []


def test_cell_without_data_is_not_called_current(client: httpx.Client) -> None:
    """A silent cell says since when; of now only the others are valid."""
    silent = SLOPES[3].cell.token
    feature = get(client, f"{CELLS}/{silent}", "featureGeoJSON")
    now = get(
        client, CELLS, "featureCollectionGeoJSON", datetime=f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
    )

    assert feature["properties"]["state"] == "held"
    assert feature["properties"]["known_until"] is not None
    assert silent not in {each["id"] for each in now["features"]}
    assert now["numberMatched"] == len(SLOPES) - 1


def test_cells_stay_listed_when_their_holds_have_ended(
    open_app: Callable[..., httpx.Client], clock: Clock
) -> None:
    """As unknown, in the features and in the download, also if it is all cells."""
    clock.now_s += 9 * 86_400
    client = open_app()
    page = get(client, CELLS, "featureCollectionGeoJSON")
    download = client.get("/api/download/levels.geojson").json()

    for found in (page, download):
        states = {
            each["id"]: (each["properties"]["level"], each["properties"]["state"])
            for each in found["features"]
        }
        assert states == {slope.cell.token: (None, "unknown") for slope in SLOPES}


def test_exercise_is_marked(
    open_app: Callable[..., httpx.Client], clock: Clock
) -> None:
    """In each title, collection and feature; otherwise none has the mark."""
    clock.now_s += 90 * 86_400
    client, form = open_app("exercise = true"), "featureCollectionGeoJSON"
    titles = [
        get(client, ROOT, "landingPage")["title"],
        client.get(f"{ROOT}/api").json()["info"]["title"],
    ]
    collections = get(client, f"{ROOT}/collections", "collections")["collections"]
    pages = [get(client, path, form) for path in (CELLS, LEVELS)]
    one = get(client, f"{CELLS}/{SLOPES[0].cell.token}", "featureGeoJSON")
    download = client.get("/api/download/levels.geojson").json()
    features = [each for page in (*pages, download) for each in page["features"]]

    assert (one["properties"]["level"], one["properties"]["state"]) == (
        HIGHEST,
        "judged",
    )
    assert len(features) == 100 + 2 * len(SLOPES)
    assert all(each["properties"]["exercise"] is True for each in [one, *features])
    assert all(each["exercise"] is True for each in [*pages, download, *collections])
    for title in [*titles, *(each["title"] for each in collections)]:
        assert title.startswith("【訓練】[EXERCISE] "), title


def test_present_is_not_marked_as_an_exercise(client: httpx.Client) -> None:
    paths = (
        ROOT,
        f"{ROOT}/collections",
        CELLS,
        LEVELS,
        "/api/download/levels.geojson",
    )
    for path in paths:
        text = client.get(path).text
        assert "exercise" not in text.lower(), path


@pytest.mark.parametrize("more", [{}, {"bbox": ",".join(map(str, AREA))}])
def test_history_by_time_and_page(client: httpx.Client, more: dict[str, str]) -> None:
    """Each step of each cell once, newest first; every feature by its id."""
    form, found = "featureCollectionGeoJSON", []
    times = "2026-10-26T03:00:00Z/2026-10-26T03:59:59Z"
    page = get(client, LEVELS, form, datetime=times, limit=7, **more)
    while True:
        found += page["features"]
        link = next((x["href"] for x in page["links"] if x["rel"] == "next"), None)
        if link is None:
            break
        page = get(client, link, form)

    cells = 1 if more else len(SLOPES)
    ids = [feature["id"] for feature in found]
    assert len(ids) == len(set(ids)) == 7 * cells
    assert get(client, f"{LEVELS}/{ids[0]}", "featureGeoJSON")["id"] == ids[0]
    moments = [feature["properties"]["valid_time"] for feature in found]
    assert moments == sorted(moments, reverse=True)


@pytest.mark.parametrize(
    "query",
    [
        "unknown=1",
        "limit=0",
        "limit=-1",
        "limit=" + "9" * 400,
        "limit=1&limit=2",
        "bbox=1,2,3",
        "bbox=1,2,3,nan",
        "bbox=1,50,2,40",
        "bbox=" + ",".join(["1"] * 500),
        "datetime=yesterday",
        "datetime=../..",
        "datetime=2026-10-27T00:00:00Z/2026-10-26T00:00:00Z",
        "datetime=0001-01-01T00:00:00%2B14:00",
        "start=x",
        "start=1793000400000000.-5",
        f"start=1793000400000000.{2**63}",
        "f=html",
    ],
)
def test_invalid_query_is_refused(client: httpx.Client, query: str) -> None:
    """In the published form of an exception, which names the parameter."""
    for path in (CELLS, LEVELS):
        answer = client.get(f"{path}?{query}")
        assert answer.status_code == 400, answer.text
        check_schema(answer, "exception")
        assert "must be" in answer.json()["description"]
        assert len(answer.text) < 500


def test_extreme_times_select_nothing(client: httpx.Client) -> None:
    """Without an error of the server."""
    for times in ("9999-12-31T23:59:59Z", "../0001-01-01", "9999-12-31/.."):
        for path in (CELLS, LEVELS):
            answer = client.get(path, params={"datetime": times})
            assert answer.json()["features"] == [], times


@pytest.mark.parametrize(
    "path",
    [
        "collections/none",
        "collections/none/items",
        "collections/cells/items/none",
        "collections/levels/items/none",
        "collections/levels/items/x@99999999999999999",
        "collections/levels/items/x'%20or%201=1@1793000400",
    ],
)
def test_what_does_not_exist(client: httpx.Client, path: str) -> None:
    """Status 404."""
    answer = client.get(f"{ROOT}/{path}")

    assert answer.status_code == 404
    check_schema(answer, "exception")


def test_features_need_a_login(
    open_app: Callable[..., httpx.Client], workspace: Workspace
) -> None:
    """Or a token, where there are accounts."""
    client = open_app(workspace.with_accounts())

    for path in (ROOT, CELLS, f"{ROOT}/api"):
        assert client.get(path).status_code == 401

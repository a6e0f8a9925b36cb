"""Downloads of the console: GeoJSON and a CAP draft."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx
import pyarrow.parquet as pq
import pytest
import xmlschema
from console_workspace import HIGHEST, NOW_S, SLOPES, Workspace

from backend_spark.exports.cap import NAMESPACE

OpenApp = Callable[..., httpx.Client]
CAP = f"{{{NAMESPACE}}}"
SCHEMA = Path(__file__).parents[1] / "exports" / "cap-1.2.xsd"


def test_levels_are_downloaded_as_geojson(open_app: OpenApp) -> None:
    """All cells, with a file name in the header."""
    answer = open_app().get("/api/download/levels.geojson")

    assert answer.headers["content-disposition"].endswith('.geojson"')
    features = json.loads(answer.text)["features"]
    assert {f["id"] for f in features} == {slope.cell.token for slope in SLOPES}
    assert max(f["properties"]["level"] or 0 for f in features) == HIGHEST


def test_cap_download_has_status_draft(open_app: OpenApp) -> None:
    """It is valid by the CAP 1.2 schema, and receivers must ignore a draft."""
    draft = open_app().get("/api/download/draft.xml").content
    xmlschema.XMLSchema(SCHEMA).validate(io.BytesIO(draft))

    assert b"<status>Draft</status>" in draft
    assert f"<areaDesc>大谷町 S2 {SLOPES[0].cell.token}".encode() in draft


def test_cap_download_of_an_exercise_has_status_exercise(open_app: OpenApp) -> None:
    """Its Japanese description has the reasons of the console."""
    client = open_app('sender = "bosai@otani.example"\nexercise = true')
    draft = client.get("/api/download/draft.xml").content
    xmlschema.XMLSchema(SCHEMA).validate(io.BytesIO(draft))
    alert = ET.fromstring(draft)  # noqa: S314

    assert alert.findtext(f"{CAP}status") == "Exercise"
    assert alert.findtext(f"{CAP}sender") == "bosai@otani.example"
    assert "土壌雨量指数" in (alert.findtext(f".//{CAP}description") or "")


def test_time_without_levels_is_rejected(open_app: OpenApp) -> None:
    """404 for a time without levels, 422 for a value that is no time."""
    client = open_app()

    assert client.get("/api/download/levels.geojson?at=1").status_code == 404
    assert client.get(f"/api/download/draft.xml?at={10**30}").status_code == 422
    assert client.get("/api/download/draft.xml?at=now").status_code == 422
    earlier = client.get(f"/api/download/levels.geojson?at={int(NOW_S) - 7200}")
    assert earlier.status_code == 200


def test_damaged_table_is_named_in_the_answer(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A traceback would close the connection without a word."""
    client = open_app()
    for path in workspace.data.glob("tables/levels/**/*.parquet"):
        path.write_bytes(path.read_bytes()[:100])

    answer = client.get("/api/download/levels.geojson")
    assert answer.status_code == 404
    assert "Parquet" in answer.json()["detail"]


WEEK = {"from_s": int(NOW_S) - 7 * 86_400, "to_s": int(NOW_S)}


def test_cell_of_a_week_is_downloaded_as_a_table(open_app: OpenApp) -> None:
    """All its steps in Japan time; the rows of no other cell."""
    token = SLOPES[0].cell.token
    query = {**WEEK, "cell": token, "zone": "JST"}
    answer = open_app().get("/api/download/rows.csv", params=query)
    lines = list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))

    assert answer.headers["content-disposition"].endswith('.csv"')
    assert {line["cell"] for line in lines} == {token}
    assert len(lines) == 288
    assert lines[-1]["at"] == "2026-10-26T16:40:00+09:00"


def test_readings_of_a_node_are_downloaded_as_parquet(open_app: OpenApp) -> None:
    """With the zone in the type of the times."""
    client, query = open_app(), {**WEEK, "node": "otani-1", "table": "silver"}
    for zone, name in (("JST", "Asia/Tokyo"), ("UTC", "UTC")):
        answer = client.get("/api/download/rows.parquet", params=query | {"zone": zone})
        found = pq.read_table(io.BytesIO(answer.content))
        assert found.schema.field("at").type.tz == name
        assert found.num_rows == 3 * 288
        assert set(found["node"].to_pylist()) == {"otani-1"}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "cell must be given"),
        ({"cell": "x", "table": "bronze"}, "table"),
        ({"node": "otani-1", "table": "levels"}, "--node must be given for"),
        ({"cell": "x", "from_s": -1}, "from_s"),
        ({"cell": "x", "to_s": 10**30}, "to_s"),
        ({"cell": "x" * 5000}, "cell"),
        ({"cell": "x", "zone": "PST"}, "zone"),
        ({"cell": "x", "limit": 1}, "limit"),
    ],
)
def test_invalid_rows_are_refused(
    open_app: OpenApp, query: dict[str, str], field: str
) -> None:
    """With an error that names the field."""
    answer = open_app().get("/api/download/rows.csv", params={**WEEK, **query})

    assert answer.status_code == 422
    assert field in answer.json()["detail"]


def test_hostile_names_in_rows_select_nothing(open_app: OpenApp) -> None:
    """They are values, not SQL."""
    query = {**WEEK, "cell": "' OR 1 = 1 --"}
    answer = open_app().get("/api/download/rows.csv", params=query)

    assert len(answer.content.decode().splitlines()) == 1


def test_downloads_require_login(open_app: OpenApp, workspace: Workspace) -> None:
    """The answer is 401 without a session."""
    client = open_app(workspace.with_accounts())

    for name in ("levels.geojson", "draft.xml", "rows.csv?from_s=1&to_s=2&cell=x"):
        assert client.get(f"/api/download/{name}").status_code == 401

"""Downloads of the console: GeoJSON and a CAP draft."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx
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


def test_downloads_require_login(open_app: OpenApp, workspace: Workspace) -> None:
    """The answer is 401 without a session."""
    client = open_app(workspace.with_accounts())

    for name in ("levels.geojson", "draft.xml"):
        assert client.get(f"/api/download/{name}").status_code == 401

"""Files that analysts take along."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx
import xmlschema
from console_house import HIGHEST, NOW_S, SLOPES, House

from backend_spark.exports.cap import NAMESPACE

Open = Callable[..., httpx.Client]
CAP = f"{{{NAMESPACE}}}"
SCHEMA = Path(__file__).parents[1] / "exports" / "cap-1.2.xsd"


def test_levels_come_as_geojson(open_app: Open) -> None:
    """Every cell, with a name for the file."""
    answer = open_app().get("/api/download/levels.geojson")

    assert answer.headers["content-disposition"].endswith('.geojson"')
    features = json.loads(answer.text)["features"]
    assert {f["id"] for f in features} == {slope.cell.token for slope in SLOPES}
    assert max(f["properties"]["level"] or 0 for f in features) == HIGHEST


def test_draft_is_a_draft(open_app: Open) -> None:
    """Valid by the standard's schema, and nothing that anybody would pass on."""
    draft = open_app().get("/api/download/draft.xml").content
    xmlschema.XMLSchema(SCHEMA).validate(io.BytesIO(draft))

    assert b"<status>Draft</status>" in draft
    assert f"<areaDesc>大谷町 S2 {SLOPES[0].cell.token}".encode() in draft


def test_an_exercise_says_so_in_its_draft(open_app: Open) -> None:
    """In Japanese with the reasons of the console."""
    client = open_app('sender = "bosai@otani.example"\nexercise = true')
    draft = client.get("/api/download/draft.xml").content
    xmlschema.XMLSchema(SCHEMA).validate(io.BytesIO(draft))
    alert = ET.fromstring(draft)  # noqa: S314

    assert alert.findtext(f"{CAP}status") == "Exercise"
    assert alert.findtext(f"{CAP}sender") == "bosai@otani.example"
    assert "土壌雨量指数" in (alert.findtext(f".//{CAP}description") or "")


def test_moment_without_levels_is_named(open_app: Open) -> None:
    """Long ago, or no time at all."""
    client = open_app()

    assert client.get("/api/download/levels.geojson?at=1").status_code == 404
    assert client.get(f"/api/download/draft.xml?at={10**30}").status_code == 404
    assert client.get("/api/download/draft.xml?at=now").status_code == 422
    earlier = client.get(f"/api/download/levels.geojson?at={int(NOW_S) - 7200}")
    assert earlier.status_code == 200


def test_files_ask_who_is_there(open_app: Open, house: House) -> None:
    """They hold data, so nobody unknown may have them."""
    client = open_app(house.with_accounts())

    for name in ("levels.geojson", "draft.xml"):
        assert client.get(f"/api/download/{name}").status_code == 401

"""Overlays of the map: what is accepted, who may add, and what is found by name."""

import zipfile
from collections.abc import Callable
from io import BytesIO

import httpx
import pytest
from console_workspace import Workspace, log_in
from overlay_data import PLANE, SQUARE, ZONE, geojson, zones_shapefile

from backend_spark.console import overlays
from backend_spark.console.audit_log import read_journal
from backend_spark.console.overlays import MAX_FILE_BYTES, read_overlay
from service_runtime.errors import FieldError

Open = Callable[..., httpx.Client]
ADDRESSES = (
    "市区町村名,大字・丁目名,街区符号・地番,緯度,経度\n"
    "大谷町,大谷,12-3,33.5752,133.5011\n"
)


def summary(collection: dict) -> list[tuple[str, str, str]]:
    """Type, kind and name of each feature."""
    return [
        (
            each["geometry"]["type"],
            each["properties"]["kind"],
            each["properties"]["name"],
        )
        for each in collection["features"]
    ]


@pytest.mark.parametrize("encoding", ["cp932", "utf-8"])
def test_published_zones_are_split_by_their_code(encoding: str) -> None:
    """A Shapefile of A33 has both kinds; names are Japanese in both encodings."""
    found = read_overlay(zones_shapefile(encoding=encoding), "warning_zone")

    assert summary(found) == [
        ("Polygon", "warning_zone", "大谷川"),
        ("Polygon", "special_zone", "大谷川（特）"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp932"])
def test_list_of_addresses_is_read(encoding: str) -> None:
    """The columns of the address data of MLIT make one name."""
    found = read_overlay(ADDRESSES.encode(encoding), "place")

    assert summary(found) == [("Point", "place", "大谷町大谷12-3")]
    assert found["features"][0]["geometry"]["coordinates"] == [133.5011, 33.5752]


def test_heights_and_other_columns_are_left_out() -> None:
    """Only name, kind and place are kept; a district gets a point for its name."""
    ring = [[*place, 120.5] for place in SQUARE]
    raw = geojson(("Polygon", [ring], {"name": "大谷", "owner": "<script>"}))
    zone, label = read_overlay(raw, "district")["features"]

    assert zone["geometry"]["coordinates"] == [SQUARE]
    assert zone["properties"] == {"name": "大谷", "kind": "district"}
    assert label["geometry"]["coordinates"] == (133.505, 33.575)


def _zip_of(*names: str) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return file.getvalue()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "GeoJSON file, a zipped Shapefile, or a CSV"),
        (b"%PDF-1.7\n1 0 obj", "CSV"),
        (b'{"type": "Feature"}', "FeatureCollection"),
        (b'{"type": "FeatureCollection", "features": 3}', "save it as UTF-8 GeoJSON"),
        (b'{"features": [' + b"[" * 5000, "GeoJSON"),
        (geojson(), "at least one feature"),
        (geojson(("Point", [-56_000.0, 12_000.0], {})), "ogr2ogr"),
        (geojson(("Point", ["east", "33"], {})), "in degrees"),
        (geojson(("Point", [133.5], {})), "in degrees"),
        (geojson(("Curve", [], {})), "geometries of the types"),
        (geojson(("Polygon", [133, 33], {})), "lists of coordinates"),
        (geojson(("Point", [float("1e300"), 33], {})), "in degrees"),
        (zones_shapefile(PLANE), "ogr2ogr"),
        (zones_shapefile()[:-200], "zip it anew"),
        (_zip_of("a.txt"), "zip file with one Shapefile"),
        (_zip_of("a.shp", "b.shp"), "zip each one by itself"),
        (_zip_of("a.shp"), "no .dbf"),
        (_zip_of("a.shp", "a.dbf"), "zip the Shapefile anew"),
        (b"name,lat,lon\nx,33.5,north\n", "line 2"),
        (b" " * (MAX_FILE_BYTES + 1), "at most 20000000 bytes"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "file",
)
def test_unusable_file_is_refused_with_the_remedy(raw: bytes, words: str) -> None:
    """The error names field, rule, value and remedy."""
    with pytest.raises(FieldError, match="file must be") as caught:
        read_overlay(raw, "road")

    assert words in str(caught.value)


def test_number_of_points_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all features of a file, so that a phone can draw it."""
    monkeypatch.setattr(overlays, "MAX_POINTS", 100)
    many = ("MultiPoint", [[133, 33]] * 60, {})

    assert read_overlay(geojson(many), "road")
    with pytest.raises(FieldError, match="at most 100 points"):
        read_overlay(geojson(many, many), "road")


def test_zip_that_unpacks_to_gigabytes_is_refused() -> None:
    """It is unpacked up to the limit only."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("a.shp", "a.dbf"):
            archive.writestr(name, bytes(60_000_000))

    with pytest.raises(FieldError, match="when unpacked"):
        read_overlay(file.getvalue(), "road")


def add(client: httpx.Client, raw: bytes, kind: str, proof: dict[str, str]) -> int:
    """Upload a file; returns the status."""
    query = {"title": "区域", "kind": kind}
    answer = client.post("/api/overlays", params=query, content=raw, headers=proof)
    return answer.status_code


def test_chief_adds_and_removes_an_overlay(
    open_app: Open, workspace: Workspace
) -> None:
    """Name and time are recorded; the journal keeps what was removed."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    assert add(client, ZONE, "warning_zone", proof) == 200
    (overlay,) = client.get("/api/overlays").json()
    content = client.get(f"/api/overlays/{overlay['id']}.geojson")

    assert (overlay["who"], overlay["kinds"]) == ("a-chief", ["warning_zone"])
    assert overlay["at_s"] > 0
    assert summary(content.json()) == [("Polygon", "warning_zone", "大谷一号")]
    assert "immutable" in content.headers["cache-control"]
    removed = client.post(f"/api/overlays/{overlay['id']}/remove", headers=proof)
    assert removed.json() == []
    assert client.get(f"/api/overlays/{overlay['id']}.geojson").status_code == 404
    entries = read_journal(
        workspace.data / "console/journal.sqlite", "overlay", limit=9
    )
    assert [entry.body["is_there"] for entry in entries] == [False, True]


def test_only_a_chief_with_the_page_may_change(
    open_app: Open, workspace: Workspace
) -> None:
    """Neither a guest nor an analyst, nor a forged request of another site."""
    client = open_app(workspace.with_accounts())
    assert add(client, ZONE, "road", {}) == 401
    assert client.get("/api/overlays").status_code == 401
    assert client.get("/api/search", params={"q": "大"}).status_code == 401
    assert add(client, ZONE, "road", log_in(client, "a-analyst")) == 403
    log_in(client, "a-chief")
    assert add(client, ZONE, "road", {}) == 403
    assert client.get("/api/overlays").json() == []


def test_wrong_upload_is_answered_with_the_rule(
    open_app: Open, workspace: Workspace
) -> None:
    """Kind, title and size; a body that is too long is cut off."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")

    assert add(client, ZONE, "volcano", proof) == 422
    assert add(client, b"GIF89a", "road", proof) == 422
    assert add(client, bytes(MAX_FILE_BYTES + 1), "road", proof) == 413
    empty = {"title": " ", "kind": "road"}
    answer = client.post("/api/overlays", params=empty, content=ZONE, headers=proof)
    assert "title must be" in answer.json()["detail"]


def test_file_changed_beside_the_journal_is_not_served(
    open_app: Open, workspace: Workspace
) -> None:
    """Its hash is in the journal."""
    client = open_app(workspace.with_accounts())
    add(client, ZONE, "special_zone", log_in(client, "a-chief"))
    (overlay,) = client.get("/api/overlays").json()
    path = workspace.data / "console" / "overlays" / f"{overlay['id']}.geojson.gz"
    path.write_bytes(b"\x1f\x8bdamaged")

    assert client.get(f"/api/overlays/{overlay['id']}.geojson").status_code == 503
    assert client.get("/api/search", params={"q": "大谷"}).json() == []


def test_places_are_found_by_part_of_their_name(
    open_app: Open, workspace: Workspace
) -> None:
    """Width of letters and case do not matter; the nearest name comes first."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    rows = "名称,緯度,経度\n旧大谷分校,33.6,133.5\n大谷小学校Ａ棟,33.5752,133.5011\n"
    add(client, rows.encode(), "shelter", proof)
    found = client.get("/api/search", params={"q": "大谷"}).json()

    assert [each["name"] for each in found] == ["大谷小学校Ａ棟", "旧大谷分校"]
    assert (found[0]["longitude"], found[0]["latitude"]) == (133.5011, 33.5752)
    wide = client.get("/api/search", params={"q": "小学校 a棟"}).json()
    assert [each["kind"] for each in wide] == ["shelter"]
    assert client.get("/api/search", params={"q": "  "}).json() == []
    assert client.get("/api/search", params={"q": "x" * 61}).status_code == 422

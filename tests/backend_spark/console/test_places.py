"""Places: import from CSV and GeoJSON, names on pages, report and exports."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx
import pytest
from click.testing import CliRunner, Result
from console_workspace import SLOPES, Workspace

from backend_spark.cli import cli
from backend_spark.console.places import Gazetteer, Place, StoredPlaces
from backend_spark.exports.cap import NAMESPACE

OpenApp = Callable[..., httpx.Client]
WET, DAMP, DRY, SILENT, _ = (slope.cell.token for slope in SLOPES)
HEAD = "市町村名,地区名,斜面名,世帯数,避難所,連絡先,緯度,経度"
TABLE = f"""{HEAD}
大谷町,大谷,一ノ沢,42,大谷小学校,区長 0887-00-0001,33.575,133.500
大谷町,大谷,二ノ沢,７,大谷小学校,,33.590,133.520
大谷町,西谷,奥,3,西谷集会所,,33.630,133.560
"""


HUGE = json.dumps({
    "type": "FeatureCollection",
    "features": [
        {"geometry": {"type": "Polygon", "coordinates": [[[130,30],[140,40], [1,9]]]}}
    ],
}).encode()  # fmt: skip


@pytest.fixture
def load(workspace: Workspace) -> Callable[[bytes], Result]:
    """Function that runs `places load` on a file with some bytes."""

    def run(content: bytes) -> Result:
        path = workspace.folder / "places.csv"
        path.write_bytes(content)
        config = str(workspace.config())
        return CliRunner().invoke(
            cli, ["places", "load", "--config", config, str(path)]
        )

    return run


Load = Callable[[bytes], Result]


def stored(workspace: Workspace) -> Gazetteer:
    return StoredPlaces(workspace.data).now


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp932"])
def test_table_of_a_municipality_is_joined_to_cells(
    load: Load, workspace: Workspace, encoding: str
) -> None:
    """By coordinates, in the encodings that spreadsheets write."""
    done = load(TABLE.encode(encoding))

    assert done.output == "3 places in 3 cells\n"
    places = stored(workspace)
    assert places.name(WET) == "大谷 一ノ沢"
    assert places.households(DAMP) == 7
    assert places.in_cell(SILENT)[0].shelter == "西谷集会所"
    assert places.name(DRY) == ""


def test_polygon_is_joined_to_every_cell_that_it_touches(
    load: Load, workspace: Workspace
) -> None:
    """A small one within a cell, and one over two slopes."""
    ring = [[133.49, 33.57], [133.53, 33.57], [133.53, 33.595], [133.49, 33.595]]
    small = [[x, y] for x, y in ((133.50, 33.574), (133.501, 33.574), (133.5, 33.575))]
    features = [
        {"type": "Feature", "properties": {"地区名": "大谷", "世帯数": 42.0},
         "geometry": {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}},
        {"type": "Feature", "properties": {"district": "小谷", "fid": 1},
         "geometry": {"type": "MultiPolygon", "coordinates": [[small]]}},
        {"type": "Feature", "properties": {"district": "西谷"},
         "geometry": {"type": "Point", "coordinates": [133.56, 33.63]}},
    ]  # fmt: skip
    collection = {"type": "FeatureCollection", "features": features}
    done = load(json.dumps(collection).encode())

    assert done.exit_code == 0, done.output
    assert "columns that are not used: fid" in done.output
    places = stored(workspace)
    assert {WET, DAMP} <= set(places.places[0].cells)
    assert DRY not in places.places[0].cells
    assert places.places[1].cells == (WET,)
    assert places.name(WET) == "大谷 +1"
    assert places.name(SILENT) == "西谷"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (",大谷,,12戸半,,,33.5,133.5", "row 2: 世帯数 (households) must be a whole"),
        (",大谷,,3,,,133.5,33.5", "are latitude and longitude swapped?"),
        (",大谷,,3,,,33度30分,133.5", "緯度 (latitude) must be degrees with decimals"),
        (",大谷,,3,,,nan,133.5", "row 2: latitude must be between -90 and 90"),
        (",,,3,,,33.5,133.5", "row 2: 地区名 (district) must be given, got 'nothing'"),
        (f",{'大' * 300},,3,,,33.5,133.5", "must be at most 200 long"),
    ],
)  # fmt: skip
def test_error_names_row_field_rule_value_and_nothing_changes(
    load: Load, workspace: Workspace, row: str, message: str
) -> None:
    """The places before stay in force."""
    assert load(TABLE.encode()).exit_code == 0
    done = load(f"{HEAD}\n{row}\n".encode())

    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert stored(workspace).name(WET) == "大谷 一ノ沢"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "columns must be"),
        ("地区名,世帯数\n大谷,3\n".encode(), "columns must be 地区名 (district), and"),
        ("地区名,地区,緯度,経度\n".encode(), "column district must be there once"),
        (f"{HEAD}\n".encode(), "rows must be at least one"),
        (b"\xff\xfe\x00\xd8\x81\x00", "must be UTF-8 or cp932"),
        (b'{"type": "Point"}', "type must be FeatureCollection"),
        (b'{"type": "FeatureCollection"}', "type must be FeatureCollection"),
        (b"{" * 100_000, "file must be JSON"),
        (
            b'{"type":"FeatureCollection","features":[7]}',
            "feature 1: geometry must be a Point, Polygon or MultiPolygon",
        ),
        (
            b'{"type":"FeatureCollection","crs":{"name":"EPSG:2446"},"features":[]}',
            "crs must be WGS 84 or JGD2011 in degrees",
        ),
        (
            HUGE,
            "area must be a rectangle of at most 2000 cells",
        ),
    ],
)  # fmt: skip
def test_file_of_another_form_is_rejected(
    load: Load, content: bytes, message: str
) -> None:
    """With the rule that it breaks, and without a traceback."""
    done = load(content)

    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_running_console_shows_new_places_at_once(
    open_app: OpenApp, load: Load
) -> None:
    """On its pages, in the report, and in exports."""
    client = open_app()
    assert client.get("/api/places").json() == {"places": [], "nodes": {}}
    load(TABLE.encode())

    found = client.get("/api/places").json()
    assert [place["slope"] for place in found["places"]] == ["一ノ沢", "二ノ沢", "奥"]
    assert found["nodes"] == {"otani-1": 0, "otani-2": 1, "nishi-2": 2}
    report = client.get("/report?lang=ja").text
    assert "<b>大谷 一ノ沢</b> 42世帯" in report
    assert "避難所 大谷小学校" in report
    draft = client.get("/api/download/draft.xml").content
    areas = ET.fromstring(draft).iter(f"{{{NAMESPACE}}}areaDesc")  # noqa: S314 - our own
    assert f"大谷町 大谷 一ノ沢 S2 {WET}" in {area.text for area in areas}
    features = client.get("/api/download/levels.geojson").json()["features"]
    names = {f["id"]: f["properties"]["place"] for f in features}
    assert (names[DAMP], names[DRY]) == ("大谷 二ノ沢", None)


def test_places_require_login(open_app: OpenApp, workspace: Workspace) -> None:
    """They have telephone numbers."""
    client = open_app(workspace.with_accounts())

    assert client.get("/api/places").status_code == 401


def test_damaged_store_keeps_the_places_before(
    load: Load, workspace: Workspace
) -> None:
    """Names do not vanish in a storm because of a damaged file."""
    load(TABLE.encode())
    places = StoredPlaces(workspace.data)
    assert places.now.name(WET) == "大谷 一ノ沢"
    path = Path(workspace.data / "console" / "places.json")
    for damaged in (b'[{"district":', b'[{"x":' + b"[" * 100_000):
        path.write_bytes(damaged)

        assert places.now.name(WET) == "大谷 一ノ沢"


def test_node_has_the_place_that_names_it_or_the_nearest() -> None:
    """A cell of 0.86 km2 may have several slopes."""
    near = Place(district="大谷", slope="近", cells=(WET,), position=(33.575, 133.5))
    far = Place(district="大谷", slope="遠", cells=(WET,), position=(33.579, 133.505))
    own = Place(district="西谷", cells=(DRY,), node="n1")
    gazetteer = Gazetteer([far, near, own])

    assert gazetteer.of_node("n2", WET, (33.5751, 133.5001)) == near
    assert gazetteer.of_node("n1", WET, (33.5751, 133.5001)) == own
    assert gazetteer.of_node("n3", DRY, None) is None


def test_districts_have_their_highest_level_and_its_households() -> None:
    """Each place counts once, also one in several cells."""
    places = (
        Place(district="A", slope="1", cells=(WET, DAMP), households=10),
        Place(district="A", slope="2", cells=(DRY,), households=5),
        Place(district="B", cells=(DRY,), households=50),
        Place(district="C", cells=(SILENT,), households=1),
    )
    rows = Gazetteer(places).roll_up({WET: 5, DAMP: 5, DRY: 3, SILENT: 15})

    assert [(row.name, row.level, row.households) for row in rows] == [
        ("A", 5, 10),
        ("C", 15, 1),
        ("B", 3, 50),
    ]

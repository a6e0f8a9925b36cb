"""The command `export` over real tables."""

import csv
import io
import itertools
import json
import tracemalloc
from collections.abc import Callable
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
import shapely.geometry
import xmlschema
from click.testing import CliRunner, Result
from deltalake import write_deltalake
from soak.disk import fill, mounted

from backend_spark.cli import cli
from backend_spark.exports.cap import NAMESPACE
from backend_spark.exports.formats import MAX_READINGS, csv_value
from backend_spark.tables.schemas import SILVER, TABLES, UTC_TIME
from slope_science.reasons import reason_from_json, render_english

NOON = datetime(2026, 7, 1, 3, 0, tzinfo=UTC)  # in Japan
HIGH, LOW, SILENT = "355a9c44", "355a9c4c", "355a9c54"
SCHEMA = Path(__file__).parent / "cap-1.2.xsd"
CAP = f"{{{NAMESPACE}}}"
HOSTILE_TEXT = '=HYPERLINK("x")<b>&\x07'

Export = Callable[..., Result]


def append(folder: Path, table: str, *rows: dict[str, Any]) -> None:
    empty = dict.fromkeys(TABLES[table].names)
    made = pa.Table.from_pylist([{**empty, **row} for row in rows], TABLES[table])
    write_deltalake(str(folder / "tables" / table), made, mode="append")


def level(cell: str, level: int | None, at: datetime, reason: str) -> dict[str, Any]:
    return {"cell": cell, "at": at, "level": level, "reasons": [reason], "assumed": [],
            "r60_mm": 42.5, "swi_mm": 181.0, "margin_mm": float("nan"), "n_nodes": 2,
            "lower_bound": False}  # fmt: skip


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """Function that runs the command over a folder with three cells."""
    data = tmp_path / "data"
    append(
        data, "levels",
        level(HIGH, 2, NOON - timedelta(minutes=10), "before"),
        level(HIGH, 4, NOON, HOSTILE_TEXT),
        level(LOW, 1, NOON, "nothing fired"),
        level(SILENT, 5, NOON - timedelta(hours=2), "old"),
    )  # fmt: skip
    reading = {"node": "n1", "boot": "b", "seq": 1, "pri": 2, "cell": HIGH, "at": NOON,
               "received_at": NOON, "flag": 1}  # fmt: skip
    append(
        data, "silver",
        {**reading, "name": "rain", "unit": "mm", "sum": 12.5},
        {**reading, "name": "wire", "value": 1.0, "value_text": "true", "flag": 4},
        {**reading, "name": "note", "value_text": "only words"},
    )  # fmt: skip
    config = tmp_path / "backend.toml"
    config.write_text(f'[backend]\ndata = "{data}"\n', encoding="utf-8")

    def run(*args: str | Path) -> Result:
        return CliRunner().invoke(
            cli, ["export", "--config", str(config), *map(str, args)]
        )

    return run


def cap(
    export: Export, path: Path, *args: str | Path, at: datetime = NOON
) -> ET.Element:
    """Export a CAP message and validate it by the CAP 1.2 schema."""
    done = export(
        "--format", "cap", "--sender", "bosai@a.example", "--out", path,
        "--status", "Test", "--at", at.isoformat(), *args,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    xmlschema.XMLSchema(SCHEMA).validate(path)
    return ET.fromstring(path.read_bytes())  # noqa: S314 - our own file


def test_message_has_levels_and_areas_in_two_languages(
    export: Export, tmp_path: Path
) -> None:
    """Cells without data and low levels are left out."""
    alert = cap(export, tmp_path / "a.xml")

    infos = alert.findall(f"{CAP}info")
    assert [i.findtext(f"{CAP}language") for i in infos] == ["ja-JP", "en"] * 2
    held, judged = infos[:2], infos[2:]
    assert "レベル4相当" in (judged[0].findtext(f"{CAP}headline") or "")
    assert {i.findtext(f"{CAP}certainty") for i in held} == {"Unknown"}
    assert {i.findtext(f"{CAP}certainty") for i in judged} == {"Likely"}
    for info in judged:
        assert info.findtext(f"{CAP}severity") == "Severe"
        assert [g.text for g in info.iterfind(f".//{CAP}geocode/{CAP}value")] == [HIGH]
        assert info.findtext(f"{CAP}effective") == "2026-07-01T12:00:00+09:00"
    assert {i.findtext(f"{CAP}severity") for i in held} == {"Unknown"}
    assert alert.findtext(f"{CAP}status") == "Test"
    points = (infos[0].findtext(f".//{CAP}polygon") or "").split()
    assert len(points) == 5
    assert points[0] == points[-1]
    latitude, longitude = map(float, points[0].split(","))
    assert (34 < latitude < 35, 132 < longitude < 133) == (True, True)


def test_held_level_has_its_last_time_and_is_never_called_likely(
    export: Export, tmp_path: Path
) -> None:
    """The present of a silent cell is unknown; the message says since when."""
    alert = cap(export, tmp_path / "a.xml", at=NOON + timedelta(days=2))

    infos = alert.findall(f"{CAP}info")
    assert {i.findtext(f"{CAP}certainty") for i in infos} == {"Unknown"}
    assert {i.findtext(f"{CAP}severity") for i in infos} == {"Unknown"}
    names = {i.findtext(f"{CAP}parameter/{CAP}valueName") for i in infos}
    assert names == {"yamamori:last-level"}
    assert [i.findtext(f"{CAP}parameter/{CAP}value") for i in infos] == list("5544")
    assert infos[0].findtext(f"{CAP}effective") == "2026-07-03T12:00:00+09:00"
    assert "判定できない区画" in (infos[0].findtext(f"{CAP}headline") or "")
    assert (
        f"{SILENT}：判定不能（最終 レベル5相当 2026-07-01 10:00、以後データなし）"
        in (infos[0].findtext(f"{CAP}description") or "")
    )
    done = export("--format", "geojson", "--at", (NOON + timedelta(days=7)).isoformat())
    states = {
        f["id"]: (f["properties"]["level"], f["properties"]["state"])
        for f in json.loads(done.stdout)["features"]
    }
    unknown = (None, "unknown")
    assert states == {HIGH: (4, "held"), LOW: unknown, SILENT: unknown}


def geocode(cell: str) -> str:
    """A cell as a message names it."""
    return f"<geocode><valueName>s2:token</valueName><value>{cell}</value></geocode>"


def test_cell_whose_hold_has_ended_is_unknown_and_not_left_out(
    export: Export, tmp_path: Path
) -> None:
    """Their last rows are months old; an update still names the danger of the alert."""
    now = datetime.now(UTC)
    ended = level("355a9c5c", None, now, "x") | {
        "reason_codes": ['["hold_ended",3,1793000400]'],
        "state": "unknown",
        "known_until": NOON,
    }
    append(tmp_path / "data", "levels", level("355a9c64", 2, now, "x"), ended)
    made = json.loads(export("--format", "geojson").stdout)
    states = {each["id"]: each["properties"] for each in made["features"]}
    first, second = tmp_path / "1.xml", tmp_path / "2.xml"
    draft = ("--format", "cap", "--sender", "a@b.example")
    assert export(*draft, "--out", first).exit_code == 0
    areas = "".join(f"<area>{geocode(cell)}</area>" for cell in (HIGH, SILENT))
    first.write_text(first.read_text().replace("</info>", f"{areas}</info>", 1))
    assert export(*draft, "--out", second, "--updates", first).exit_code == 0
    xmlschema.XMLSchema(SCHEMA).validate(second)
    alert, update = (ET.fromstring(each.read_bytes()) for each in (first, second))  # noqa: S314

    for cell, known_until in ((HIGH, NOON), (SILENT, NOON - timedelta(hours=2))):
        found = states[cell]
        assert (found["level"], found["state"]) == (None, "unknown")
        assert found["known_until"] == known_until.isoformat()
    assert [len(each.findall(f"{CAP}info")) for each in (alert, update)] == [2, 6]
    infos = update.findall(f"{CAP}info")[::2]
    parameters = [
        [value.text for value in info.iterfind(f"{CAP}parameter/{CAP}value")]
        for info in infos
    ]
    assert parameters == [["2", "judged"], ["5", "unknown"], ["4", "unknown"]]
    for info, cell in zip(infos[1:], (SILENT, HIGH), strict=True):
        assert info.findtext(f"{CAP}certainty") == "Unknown"
        assert info.findtext(f"{CAP}effective") == update.findtext(f"{CAP}sent")
        assert info.findtext(f"{CAP}area/{CAP}geocode/{CAP}value") == cell
        assert "判定不能" in (info.findtext(f"{CAP}description") or "")


@pytest.mark.parametrize(
    ("level_now", "code", "certainty"),
    [
        (5, '["confirmed",["wire_cut","n1 wire"],"n2 vib"]', "Observed"),
        (5, '["unconfirmed",["wire_cut","n1 wire"]]', "Possible"),
        (5, '["soil_water",300,277.1,"special"]', "Likely"),
        (5, '["soil_water",300,277,"special",null,["assumed_criterion"]]', "Possible"),
        (4, '["soil_water",221.7,221.6,"line",40]', "Likely"),
        (4, '["soil_water",221.7,221.6,"line",40,["assumed_line"]]', "Possible"),
        (4, '["ahead_same_rain",50,["soil_water",160,150,"line",40]]', "Possible"),
        (3, '["soil_water",160,150,"warning",null,["assumed_criteria"]]', "Possible"),
        (2, '["soil_water",112.5,112.5,"advisory"]', "Possible"),
    ],
)  # fmt: skip
def test_assumptions_are_never_called_observed(
    export: Export, tmp_path: Path, level_now: int, code: str, certainty: str
) -> None:
    """Observed is only a flow that a second sensor confirmed."""
    row = level("355a9c5c", level_now, NOON, render_english(reason_from_json(code)))
    append(tmp_path / "data", "levels", row | {"reason_codes": [code]})
    alert = cap(export, tmp_path / "a.xml")

    found = {
        info.findtext(f"{CAP}certainty")
        for info in alert.iterfind(f"{CAP}info")
        if "355a9c5c" in (info.findtext(f"{CAP}description") or "")
    }
    assert found == {certainty}


def test_message_without_a_cell_of_the_level_is_rejected(
    export: Export, tmp_path: Path
) -> None:
    """Neither judged nor held."""
    append(tmp_path / "data", "levels", level(SILENT, 1, NOON, "calm again"))
    done = export(
        "--format", "cap", "--sender", "a", "--min-level", "5", "--status", "Test",
        "--at", NOON.isoformat(),
    )  # fmt: skip

    assert done.exit_code == 2
    assert "a cell of level 5" in " ".join(done.output.split())


def test_update_and_cancel_reference_the_earlier_message(
    export: Export, tmp_path: Path
) -> None:
    """So that a receiver finds the message that they replace."""
    first, second = tmp_path / "a.xml", tmp_path / "b.xml"
    before = cap(export, first)
    update = cap(export, second, "--updates", first)
    cancel = cap(export, tmp_path / "c.xml", "--cancels", second)

    names = ("sender", "identifier", "sent")
    name = ",".join(before.findtext(f"{CAP}{n}") or "" for n in names)
    assert update.findtext(f"{CAP}msgType") == "Update"
    assert update.findtext(f"{CAP}references") == name
    assert cancel.findtext(f"{CAP}msgType") == "Cancel"
    assert cancel.find(f"{CAP}info") is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--format", "cap"], "--sender must be given for cap"),
        (["--format", "cap", "--min-level", "1"], "1 is not in the range 2<=x<=5"),
        (["--format", "cap", "--sender", "a b"], "must be a name without blanks"),
        (["--format", "geojson"], "give --at for the past"),
        (["--format", "cap", "--sender", "a"], "give --at for the past"),
        (["--format", "geojson", "--at", "2026-07-01"], "ISO 8601 with a zone"),
        (["--format", "geojson", "--at", "2020-07-01T00:00Z"], "computed for"),
        (["--format", "parquet"], "--out must be a file"),
        (["--format", "csv", "--out", "/nowhere/x.csv"], "--out must be writable"),
        (["--format", "cap", "--sender", "a", "--updates", "/nowhere"], "readable"),
    ],
)  # fmt: skip
def test_invalid_option_is_rejected(
    export: Export, args: list[str], message: str
) -> None:
    """The error names the option and the rule."""
    done = export(*args)

    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


@pytest.mark.parametrize(
    "message", [b"", b"<a/>", b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', b"\xff"]
)
def test_file_that_is_no_cap_message_is_rejected(
    export: Export, tmp_path: Path, message: bytes
) -> None:
    """Entities of a DTD are not resolved."""
    path = tmp_path / "no.xml"
    path.write_bytes(message)

    done = export("--format", "cap", "--sender", "a", "--updates", path)

    assert done.exit_code == 2
    assert "CAP file must be a CAP 1.2 message" in " ".join(done.output.split())


def test_draft_states_the_present_only(export: Export, tmp_path: Path) -> None:
    """Not levels of months ago, nor the last levels of cells that are all silent."""
    draft = ("--format", "cap", "--sender", "a@b.example")
    past = export(*draft, "--at", NOON.isoformat())
    assert past.exit_code == 2
    assert "--at must be the present for a draft" in " ".join(past.output.split())

    now = datetime.now(UTC)
    three_hours = now - timedelta(hours=3)
    append(tmp_path / "data", "levels", level(HIGH, 5, three_hours, "x"))
    silent = export(*draft)
    assert silent.exit_code == 2
    assert "must be judged now in one cell at least" in " ".join(silent.output.split())

    append(tmp_path / "data", "levels", level(LOW, 4, now, "x"))
    fresh = export(*draft)
    assert fresh.exit_code == 0, fresh.output
    infos = ET.fromstring(fresh.stdout.encode()).findall(f"{CAP}info")  # noqa: S314 - our own
    severities = [i.findtext(f"{CAP}severity") for i in infos]
    assert severities == ["Unknown", "Unknown", "Severe", "Severe"]


def test_message_is_valid_from_when_it_is_sent(export: Export, tmp_path: Path) -> None:
    """The row of the present step is of its end, which lies ahead."""
    now = datetime.now(UTC)
    append(tmp_path / "data", "levels", level(LOW, 5, now + timedelta(minutes=9), "x"))
    done = export("--format", "cap", "--sender", "a@b.example")
    assert done.exit_code == 0, done.output
    alert = ET.fromstring(done.stdout.encode())  # noqa: S314 - our own

    info = next(i for i in alert.iterfind(f"{CAP}info"))
    sent = datetime.fromisoformat(alert.findtext(f"{CAP}sent") or "")
    assert info.findtext(f"{CAP}urgency") == "Immediate"
    assert info.findtext(f"{CAP}effective") == alert.findtext(f"{CAP}sent")
    expires = datetime.fromisoformat(info.findtext(f"{CAP}expires") or "")
    assert expires - sent == timedelta(hours=1)


def test_geojson_follows_rfc_7946(export: Export) -> None:
    """Longitude first, rings counter-clockwise and closed; unknown values are null."""
    at = NOON.isoformat()
    made = json.loads(export("--format", "geojson", "--at", at).stdout)

    assert [f["id"] for f in made["features"]] == [HIGH, LOW, SILENT]
    high, _, silent = made["features"]
    assert (high["properties"]["level"], high["properties"]["state"]) == (4, "judged")
    assert high["properties"]["known_until"] is None
    assert (silent["properties"]["level"], silent["properties"]["state"]) == (5, "held")
    assert silent["properties"]["known_until"] == "2026-07-01T01:00:00+00:00"
    assert silent["properties"]["level_name"] == "unknown (last level 5)"
    assert high["properties"]["cl_margin_mm"] is None
    (ring,) = high["geometry"]["coordinates"]
    assert ring[0] == ring[-1]
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in itertools.pairwise(ring))
    assert area > 0
    assert 132 < ring[0][0] < 133


def test_export_of_an_earlier_time_ignores_later_rows(export: Export) -> None:
    """Only rows up to `--at` are used."""
    at = (NOON - timedelta(minutes=5)).isoformat()
    made = json.loads(export("--format", "geojson", "--at", at).stdout)

    levels = {f["id"]: f["properties"]["level"] for f in made["features"]}
    assert levels == {HIGH: 2, SILENT: 5}


def test_geoparquet_has_the_polygons_of_geojson(export: Export, tmp_path: Path) -> None:
    """By the specification 1.1, with the same values and the times as times."""
    path = tmp_path / "levels.parquet"
    at = ("--at", NOON.isoformat())
    done = export("--format", "geoparquet", "--out", path, *at)
    assert done.exit_code == 0, done.output
    features = json.loads(export("--format", "geojson", *at).stdout)["features"]
    table = pq.read_table(path)
    geo = json.loads(table.schema.metadata[b"geo"])
    column = geo["columns"][geo["primary_column"]]
    polygons = shapely.from_wkb(table["geometry"].to_pylist())

    assert geo["version"] == "1.1.0"
    assert (column["encoding"], column["geometry_types"]) == ("WKB", ["Polygon"])
    assert column["bbox"] == shapely.total_bounds(polygons).tolist()
    assert "crs" not in column, "longitude before latitude, WGS 84"
    assert all(shapely.is_ccw(polygon.exterior) for polygon in polygons)
    rows = table.drop_columns(["geometry"]).to_pylist()
    for feature, row, polygon in zip(features, rows, polygons, strict=True):
        properties = feature["properties"]
        for name in ("valid_time", "known_until"):
            properties[name] = row[name] and datetime.fromisoformat(properties[name])
        assert row == properties
        assert shapely.equals(polygon, shapely.geometry.shape(feature["geometry"]))


def test_geoparquet_needs_a_file(export: Export) -> None:
    """It is no text, and its folder must exist."""
    assert "--out must be a file" in export("--format", "geoparquet").output
    at = ("--at", NOON.isoformat(), "--out", "/nowhere/levels.parquet")
    assert "--out must be writable" in export("--format", "geoparquet", *at).output


@pytest.mark.parametrize("form", ["parquet", "geoparquet", "csv"])
@pytest.mark.parametrize(
    ("out", "rule"),
    [
        ("nowhere/x", "--out must be writable, got nowhere/x; "),
        ("backend.toml/x", "--out must be writable, got backend.toml/x; "),
        ("full/x", "--out must be writable, got full/x; "),
        ("data", "'data' is a directory"),
        ("", "--out must be the name of a file"),
    ],
)
def test_unwritable_file_is_named(
    export: Export, tmp_path: Path, form: str, out: str, rule: str
) -> None:
    """No traceback, status 2, and nothing is left."""
    with chdir(tmp_path), mounted(tmp_path / "full", "4k") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        fill(disk)
        before = sorted(tmp_path.rglob("*"))
        more = ["--at", NOON.isoformat()] if form == "geoparquet" else []
        done = export("--format", form, "--out", out, *more)
        if out == "full/x":
            left = [disk / "x", disk / ".x.unfinished"]
            assert not any(each.exists() for each in left)
        else:
            assert sorted(tmp_path.rglob("*")) == before
    assert done.exit_code == 2, done.exception
    assert rule in " ".join(done.output.split())


def test_csv_contains_no_formulas(export: Export) -> None:
    """A reason that starts with "=" is quoted for spreadsheets."""
    text = export("--format", "csv", "--from", NOON.isoformat()).stdout

    assert text.startswith("\ufeffcell,at,")
    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))
    assert {row["cell"]: row["level"] for row in rows} == {HIGH: "4", LOW: "1"}
    reasons = {row["cell"]: row["reasons"] for row in rows}
    assert reasons[HIGH].startswith("'=")
    assert csv_value("＝1+1") == "'＝1+1", "a Japanese Excel computes it"
    assert rows[0]["at"] == "2026-07-01T03:00:00+00:00"


def test_parquet_is_read_by_other_programs(export: Export, tmp_path: Path) -> None:
    """DuckDB and pandas read the same rows and types."""
    path = tmp_path / "levels.parquet"
    until = NOON.isoformat()

    done = export("--format", "parquet", "--out", path, "--to", until)

    assert done.exit_code == 0, done.output
    frame = pd.read_parquet(path)
    assert sorted(frame["cell"]) == [HIGH, SILENT]
    assert duckdb.read_parquet(str(path)).max("level").fetchall() == [(5,)]
    assert list(tmp_path.glob(".*unfinished")) == []


def test_rows_of_a_cell_or_a_node_in_japan_time(export: Export, tmp_path: Path) -> None:
    """The same moments; a table without nodes refuses one."""
    done = export("--format", "csv", "--cell", HIGH, "--tz", "JST")
    rows = list(csv.DictReader(io.StringIO(done.stdout.removeprefix("\ufeff"))))
    path = tmp_path / "n1.parquet"
    options = ("--table", "silver", "--node", "n1", "--tz", "JST", "--out", path)
    readings = export("--format", "parquet", *options)
    refused = export("--format", "csv", "--node", "n1")

    assert {row["cell"] for row in rows} == {HIGH}
    assert rows[-1]["at"] == "2026-07-01T12:00:00+09:00"
    assert readings.exit_code == 0, readings.output
    frame = pd.read_parquet(path)
    assert set(frame["node"]) == {"n1"}
    assert str(frame["at"].dt.tz) == "Asia/Tokyo"
    assert refused.exit_code == 2
    assert "--node must be given for a table with nodes" in refused.output


def test_readings_are_exported_as_sensorthings(export: Export) -> None:
    """By node and quantity, with unit, flag and cell; plain text is left out."""
    made = json.loads(export("--format", "sensorthings").stdout)

    (thing,) = made["value"]
    rain, wire = thing["Datastreams"]
    assert (thing["name"], rain["name"], wire["name"]) == ("n1", "rain", "wire")
    assert rain["unitOfMeasurement"]["symbol"] == "mm"
    assert "take differences" in rain["description"]
    assert "take differences" not in wire["ObservedProperty"]["description"]
    (observation,) = rain["Observations"]
    assert (observation["result"], observation["resultQuality"]) == (12.5, 1)
    assert observation["FeatureOfInterest"]["name"] == HIGH
    assert wire["observationType"].endswith("OM_TruthObservation")
    (observed,) = wire["Observations"]
    assert (observed["result"], observed["resultQuality"]) == (True, 4)
    assert rain["properties"] == {"is_counted": True, "counter": "result"}


def test_sensorthings_says_where_the_counter_is(export: Export, tmp_path: Path) -> None:
    """The result of a gauge that sends both is the depth."""
    reading = {"node": "n2", "boot": "b", "seq": 1, "pri": 2, "cell": HIGH,
               "at": NOON, "received_at": NOON, "flag": 1, "name": "rain",
               "unit": "mm"}  # fmt: skip
    both = reading | {"value": 5.0, "sum": 1500.0}
    append(tmp_path / "data", "silver", both)
    made = json.loads(export("--format", "sensorthings", "--node", "n2").stdout)

    (rain,) = made["value"][0]["Datastreams"]
    (observation,) = rain["Observations"]
    assert observation["result"] == 5.0
    assert observation["parameters"]["sum"] == 1500.0
    assert rain["properties"] == {"is_counted": False, "counter": "parameters/sum"}
    for text in (rain["description"], rain["ObservedProperty"]["description"]):
        assert "since the reading before" in text
        assert "take differences" not in text


def test_sensorthings_keep_the_unit_of_each_reading(
    export: Export, tmp_path: Path
) -> None:
    """The newest unit of a name has the usual datastream, an older one its own."""
    reading = {"node": "n2", "boot": "b", "pri": 2, "flag": 1, "name": "span"}
    rows = [
        reading | {"seq": seq, "unit": unit, "value": value}
        | {"at": NOON + timedelta(hours=seq), "received_at": NOON}
        for seq, unit, value in ((2, "mm", 513.0), (1, "m", 0.512), (3, "mm", 514.0))
    ]  # fmt: skip
    append(tmp_path / "data", "silver", *rows)
    made = json.loads(export("--format", "sensorthings", "--node", "n2").stdout)

    (thing,) = made["value"]
    found = {
        stream["@iot.id"]: (
            stream["unitOfMeasurement"]["symbol"],
            [each["result"] for each in stream["Observations"]],
        )
        for stream in thing["Datastreams"]
    }
    assert found == {"n2/span": ("mm", [513.0, 514.0]), "n2/span@m": ("m", [0.512])}


def append_readings(folder: Path, count: int) -> None:
    """Readings of one node, one a second from `NOON` on."""
    from_us = round(NOON.timestamp()) * 1_000_000
    at = pa.array(range(from_us, from_us + count * 1_000_000, 1_000_000), UTC_TIME)
    known = {
        "node": pa.repeat("n3", count),
        "boot": pa.repeat("b", count),
        "seq": pa.array(range(count)),
        "name": pa.repeat("tilt/x", count),
        "value": pa.repeat(0.123456, count),
        "at": at,
        "received_at": at,
        "cell": pa.repeat(HIGH, count),
    }
    nulls = {field.name: pa.nulls(count, field.type) for field in SILVER}
    rows = pa.table(nulls | known).cast(SILVER)
    write_deltalake(str(folder / "tables" / "silver"), rows, mode="append")


def test_csv_is_written_part_by_part(export: Export, tmp_path: Path) -> None:
    """A table of years would fill the memory of the machine that scores."""
    append_readings(tmp_path / "data", 40_000)
    path = tmp_path / "readings.csv"
    tracemalloc.start()
    try:
        done = export("--format", "csv", "--table", "silver", "--out", path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.exit_code == 0, done.output
    with path.open(encoding="utf-8-sig", newline="") as file:
        numbers = [row["seq"] for row in csv.DictReader(file) if row["node"] == "n3"]

    assert sorted(map(int, numbers)) == list(range(40_000))
    assert peak < 20e6, "40 MB are all rows as text, twice"


def test_sensorthings_of_too_many_readings_are_refused(
    export: Export, tmp_path: Path
) -> None:
    """They are one document; the message names how to make several."""
    append_readings(tmp_path / "data", MAX_READINGS)
    refused = export("--format", "sensorthings")
    minute = (NOON + timedelta(minutes=1)).isoformat()
    made = json.loads(export("--format", "sensorthings", "--to", minute).stdout)

    assert refused.exit_code == 2
    text = " ".join(refused.output.split())
    assert f"at most {MAX_READINGS} readings, got {MAX_READINGS + 3}; give" in text
    assert "--from" in text
    (stream,) = made["value"][1]["Datastreams"]
    assert len(stream["Observations"]) == 60
    assert made["@iot.count"] == 2
    node = export("--format", "sensorthings", "--node", "n1")
    assert [each["name"] for each in json.loads(node.stdout)["value"]] == ["n1"]


def test_export_without_levels_names_the_remedy(tmp_path: Path) -> None:
    """For a data folder without tables."""
    config = tmp_path / "backend.toml"
    config.write_text(f'[backend]\ndata = "{tmp_path}"\n', encoding="utf-8")

    done = CliRunner().invoke(
        cli, ["export", "--config", str(config), "--format", "geojson"]
    )

    assert done.exit_code == 2
    assert "score first" in done.output

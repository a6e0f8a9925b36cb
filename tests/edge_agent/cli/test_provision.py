"""Provisioning: from a spreadsheet to a settings file and a label for each node."""

import stat
from pathlib import Path

import pytest
import segno
from click.testing import CliRunner, Result

from edge_agent.cli import cli
from edge_agent.cli.provision import (
    MAX_SENSORS,
    Label,
    format_label_sheet,
    make_qr_payload,
)
from edge_agent.config import read_node_settings

HEADER = "id,place,latitude,longitude,managers,uplink.rate_bytes_per_s,sensor.rain"
FIRST = "kochi-0001,大谷川 左岸,33.5588,133.5312,mqtts://a:1883 mqtts://b,6250,"
ROWS = (
    FIRST + "rain-gauge pin=17 mm_per_tip=0.5",
    "kochi-0002,,33.5601,133.5339,mqtts://a:1883,,rain-gauge pin=17",
)
FLEET = "\n".join((HEADER, *ROWS)) + "\n"


def provision(folder: Path, raw: bytes, *more: str) -> Result:
    path = folder / "fleet.csv"
    path.write_bytes(raw)
    arguments = ["provision", str(path), "--out", str(folder / "out"), *more]
    return CliRunner().invoke(cli, arguments)


def test_each_line_gives_a_valid_settings_file(tmp_path: Path) -> None:
    """With the values of the cells, readable only by the owner, and a label sheet."""
    result = provision(tmp_path, FLEET.encode())
    first = tmp_path / "out" / "kochi-0001" / "node.toml"
    node = read_node_settings(first)
    second = read_node_settings(tmp_path / "out" / "kochi-0002" / "node.toml")

    assert result.exit_code == 0, result.output
    assert node.settings.node.longitude == 133.5312
    assert node.settings.uplink.managers == ("mqtts://a:1883", "mqtts://b")
    assert node.settings.uplink.rate_bytes_per_s == 6250
    assert second.settings.uplink.rate_bytes_per_s is None
    assert node.sensors[0].claims == ("GPIO17",)
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert "大谷川 左岸" in (tmp_path / "out" / "labels.html").read_text()


@pytest.mark.parametrize(
    "raw",
    [
        FLEET.encode("utf-8-sig"),
        FLEET.encode("cp932"),
        FLEET.encode("utf-16"),
        FLEET.replace("\n", "\r\n").encode(),
        FLEET.replace(",", ";").encode(),
        FLEET.replace(",", "\t").encode(),
        FLEET.replace("33.5588", " ３３．５５８８　").encode(),
        FLEET.replace("pin=17", "pin＝１７").encode(),
        FLEET.replace("id,", "ID ,").encode(),
        (FLEET + ",,,,,,\n\n").encode(),
    ],
    ids=[
        "bom",
        "cp932",
        "utf-16",
        "crlf",
        "semicolon",
        "tab",
        "full-width",
        "equals",
        "header",
        "empty",
    ],
)
def test_spreadsheet_variants_are_accepted(tmp_path: Path, raw: bytes) -> None:
    """Encodings, line ends, separators, full-width characters and empty rows."""
    result = provision(tmp_path, raw)
    plain = tmp_path / "plain"
    plain.mkdir()
    provision(plain, FLEET.encode())

    assert result.exit_code == 0, result.output
    for name in ("kochi-0001", "kochi-0002"):
        expected_settings = read_node_settings(plain / "out" / name / "node.toml")
        assert (
            read_node_settings(tmp_path / "out" / name / "node.toml")
            == expected_settings
        )


def test_all_mistakes_are_reported_and_nothing_is_written(tmp_path: Path) -> None:
    """Line, column, rule, value and remedy."""
    text = (
        "id;latitude;longtude;longitude;managers;sensor.rain;sensor.span\n"
        "kochi-0001;95;;133,53;mqtts://a;rain-gauge pin=17 oops;wire pin=17\n"
        "kochi-0001;33.5;;133.5;;rain-gaug pin=17;\n"
        "k/2;33.5;;133.5;mqtts://b;rain-gauge pin=99;wire;extra\n"
    )
    result = provision(tmp_path, text.encode())
    expected_lines = (
        "line 1, column 'longtude' is not known; did you mean 'longitude'?",
        "line 2, column 'latitude': node.latitude must be between -90 and 90 degrees,",
        "without quotes and without a unit; write a point, not a comma",
        "line 2, column 'sensor.rain': must be a kind and key=value pairs, got 'oops'",
        "line 2, column 'sensor.span': sensor.span.pin must be a pin of its own,",
        "line 3, column 'id': must be unique, got 'kochi-0001', which line 2 has",
        "line 3, column 'managers': uplink: managers or gateway must be given",
        "line 3, column 'sensor.rain': sensor.rain.kind must be one of",
        "line 4 must have at most 7 cells, got 'extra' beyond them",
        "line 4, column 'id': node.id: id must be 1 to 63 of",
        "line 4, column 'sensor.rain': sensor.rain.pin must be between 0 and 27",
        "line 4, column 'sensor.span': sensor.span.pin must be given",
    )

    assert result.exit_code == 65
    assert [
        expected for expected in expected_lines if expected not in result.output
    ] == []
    assert len(result.output.splitlines()) == len(expected_lines)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must have a column 'id'"),
        ("id,latitude\nx,1\n", "must have a column 'longitude'"),
        (HEADER + "\n", "must have a line for each node"),
        (
            HEADER.replace("place", "id") + "\nx,x,1,1,mqtts://a,,wire pin=1\n",
            "there once",
        ),
    ],
)
def test_file_without_nodes_is_refused(
    tmp_path: Path, text: str, expected: str
) -> None:
    """A header and a line are needed."""
    result = provision(tmp_path, text.encode())

    assert result.exit_code == 65
    assert expected in result.output


def test_second_run_writes_nothing_and_a_change_needs_force(tmp_path: Path) -> None:
    """A file edited by hand is not overwritten by accident."""
    provision(tmp_path, FLEET.encode())
    edited = tmp_path / "out" / "kochi-0002" / "node.toml"
    again = provision(tmp_path, FLEET.encode())
    edited.write_text(edited.read_text() + "# by hand\n")
    other = FLEET.replace("33.5588", "33.5599")
    refused = provision(tmp_path, other.encode())
    kept = (tmp_path / "out" / "kochi-0001" / "node.toml").read_text()
    forced = provision(tmp_path, other.encode(), "--force")

    assert "2 nodes: 0 files written" in again.output
    assert refused.exit_code == 1
    assert refused.output.count("has other content; use --force") == 2
    assert "33.5588" in kept
    assert "2 nodes: 2 files written" in forced.output
    assert "by hand" not in edited.read_text()


def test_label_code_is_a_geo_uri() -> None:
    """A geo URI with the node's id; the sheet contains its code and escapes names."""
    sensors = [(f"s{n}", "wire", f"GPIO{n}") for n in range(MAX_SENSORS + 2)]
    label = Label("kochi-0001", "<b>Otani", 33.5588, 133.5312, "/1/2", sensors)
    page = format_label_sheet([label])
    code = segno.make(make_qr_payload(label), error="m", micro=False)

    assert make_qr_payload(label) == (
        "geo:33.558800,133.531200?q=33.558800,133.531200(kochi-0001)"
    )
    assert code.svg_inline(border=2, omitsize=True) in page
    assert "&lt;b&gt;Otani" in page
    assert "and 2 more" in page
    assert "http://www" not in page

"""From a spreadsheet to one file and one label for each node."""

import stat
from pathlib import Path

import pytest
import segno
from click.testing import CliRunner, Result

from edge_agent.cli import cli
from edge_agent.commissioning.labels import (
    MAX_SENSORS,
    Label,
    format_label_sheet,
    make_qr_payload,
)
from edge_agent.config import read_node_settings

HEAD = "id,place,latitude,longitude,managers,uplink.rate_bytes_per_s,sensor.rain"
FIRST = "kochi-0001,大谷川 左岸,33.5588,133.5312,mqtt://a:1883 mqtt://b,6250,"
ROWS = (
    FIRST + "rain-gauge pin=17 mm_per_tip=0.5",
    "kochi-0002,,33.5601,133.5339,mqtt://a:1883,,rain-gauge pin=17",
)
FLEET = "\n".join((HEAD, *ROWS)) + "\n"


def provision(folder: Path, raw: bytes, *more: str) -> Result:
    path = folder / "fleet.csv"
    path.write_bytes(raw)
    arguments = ["provision", str(path), "--out", str(folder / "out"), *more]
    return CliRunner().invoke(cli, arguments)


def test_each_line_becomes_a_file_that_is_accepted(tmp_path: Path) -> None:
    """With what the cells say, readable by its owner only, and a sheet of labels."""
    done = provision(tmp_path, FLEET.encode())
    first = tmp_path / "out" / "kochi-0001" / "node.toml"
    node = read_node_settings(first)
    second = read_node_settings(tmp_path / "out" / "kochi-0002" / "node.toml")

    assert done.exit_code == 0, done.output
    assert node.settings.node.longitude == 133.5312
    assert node.settings.uplink.managers == ("mqtt://a:1883", "mqtt://b")
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
def test_habits_of_spreadsheets_are_understood(tmp_path: Path, raw: bytes) -> None:
    """What a person meant is clear."""
    done = provision(tmp_path, raw)
    plain = tmp_path / "plain"
    plain.mkdir()
    provision(plain, FLEET.encode())

    assert done.exit_code == 0, done.output
    for name in ("kochi-0001", "kochi-0002"):
        wanted = read_node_settings(plain / "out" / name / "node.toml")
        assert read_node_settings(tmp_path / "out" / name / "node.toml") == wanted


def test_all_mistakes_are_told_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    """Line, column, rule, value and remedy."""
    text = (
        "id;latitude;longtude;longitude;managers;sensor.rain;sensor.span\n"
        "kochi-0001;95;;133,53;mqtt://a;rain-gauge pin=17 oops;wire pin=17\n"
        "kochi-0001;33.5;;133.5;;rain-gaug pin=17;\n"
        "k/2;33.5;;133.5;mqtt://b;rain-gauge pin=99;wire;extra\n"
    )
    done = provision(tmp_path, text.encode())
    wanted = (
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

    assert done.exit_code == 65
    assert [words for words in wanted if words not in done.output] == []
    assert len(done.output.splitlines()) == len(wanted)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have a column 'id'"),
        ("id,latitude\nx,1\n", "must have a column 'longitude'"),
        (HEAD + "\n", "must have a line for each node"),
        (
            HEAD.replace("place", "id") + "\nx,x,1,1,mqtt://a,,wire pin=1\n",
            "there once",
        ),
    ],
)
def test_file_without_nodes_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """A header is needed, and a line."""
    done = provision(tmp_path, text.encode())

    assert done.exit_code == 65
    assert words in done.output


def test_second_run_writes_nothing_and_a_change_needs_force(tmp_path: Path) -> None:
    """What somebody edited by hand is not overwritten by accident."""
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


def test_code_of_a_label_opens_the_place_on_a_phone() -> None:
    """A geo URI with the node's id; the sheet holds its code and escapes names."""
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

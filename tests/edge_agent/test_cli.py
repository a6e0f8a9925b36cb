"""The commands of the edge agent."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from programs import run_command

from edge_agent.queue.sqlite_queue import SqliteQueue

GOOD = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtt://127.0.0.1:1883"]
rate_bytes_per_s = 6250
[queue]
path = "{folder}/queue.db"
max_bytes = 200_000_000
[simulation]
start = "2026-07-01T00:00:00+09:00"
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
mm_per_tip = 0.5
[[sensor]]
kind = "wire"
name = "span"
pin = 27
"""


def run(
    folder: Path, *arguments: str, text: str = GOOD, given: str = ""
) -> subprocess.CompletedProcess[str]:
    words = with_settings(folder, arguments, text)
    return run_command("edge_agent", *words, given=given)


def run_program(
    folder: Path, *arguments: str, text: str = GOOD
) -> subprocess.CompletedProcess[str]:
    words = with_settings(folder, arguments, text)
    program = [sys.executable, "-m", "edge_agent"]
    return subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False
    )


def with_settings(folder: Path, arguments: Sequence[str], text: str) -> list[str]:
    path = folder / "node.toml"
    path.write_text(text.format(folder=folder))
    return [*arguments, "--config", str(path)]


def test_check_of_good_settings_reads_every_sensor(tmp_path: Path) -> None:
    """The output shows each sensor with unit and pin."""
    result = run(tmp_path, "check")

    assert result.returncode == 0, result.stderr
    assert re.search(r"rain 0 mm .* 0\.\.990 mm +any +good +GPIO17 +ok", result.stdout)
    assert "| PASS  kochi-0001" in result.stdout
    assert "2 of 2 well" in result.stdout


def test_check_shows_the_local_time_of_the_periods(tmp_path: Path) -> None:
    """On a card whose zone is UTC, a link that closes at night was closed at noon."""
    period = '[[uplink.period]]\nstart = "22:00"\nend = "05:00"\nrate_bytes_per_s = 0\n'
    zoned = GOOD.replace("[queue]", f'time_zone = "Asia/Tokyo"\n{period}[queue]')
    note = r"note: periods are in local time, now 00:00 JST \(UTC\+0900\)"

    assert re.search(note, run(tmp_path, "check", text=zoned).stdout)


def test_json_of_check_has_verdict_node_and_sensors(
    tmp_path: Path,
) -> None:
    """One JSON object."""
    result = run(tmp_path, "check", "--json", "--live", "--seconds", "1")
    output = json.loads(result.stdout)

    assert output["verdict"] == "pass"
    assert output["node"] == "kochi-0001"
    assert [(s["name"], s["wiring"], s["health"]) for s in output["sensors"]] == [
        ("rain", ["GPIO17"], "ok"), ("span", ["GPIO27"], "ok"),
    ]  # fmt: skip


def test_report_file_of_check_contains_the_printed_lines(tmp_path: Path) -> None:
    """The report has Windows line ends; a missing folder is an error."""
    path = tmp_path / "check.txt"
    result = run(tmp_path, "check", "--report", str(path))
    lost = run(tmp_path, "check", "--report", str(tmp_path / "no" / "check.txt"))
    lines = path.read_bytes().decode("utf-8-sig").split("\r\n")

    assert [line for line in lines if line not in result.stdout.splitlines()] == [""]
    assert any("| PASS  kochi-0001" in line for line in lines)
    assert lost.returncode == 1
    assert "edge-agent: [Errno 2] No such file or directory" in lost.stderr


@pytest.mark.skipif(
    Path("/proc/device-tree/model").exists(), reason="this machine may have pins"
)
def test_run_on_a_machine_without_pins_is_an_error(tmp_path: Path) -> None:
    """Settings with real pins on another machine: an error message and no traceback."""
    pins = re.sub(r"\[simulation\]\nstart.*\n", "", GOOD)
    result = run_program(tmp_path, "run", text=pins)

    assert result.returncode == 1
    assert "this machine has no pins" in result.stderr
    assert "Traceback" not in result.stderr


def test_live_check_prints_each_tip_of_a_storm(tmp_path: Path) -> None:
    """Without a terminal, each event is one line."""
    text = GOOD.replace("[[sensor]]", "speedup = 5000\n[[sensor]]", 1)
    result = run(tmp_path, "check", "--live", "--seconds", "5", text=text)

    assert result.returncode == 0
    assert re.search(r"\n +\d\.\d s  rain \+0\.5 mm \(sum 0\.5 mm\)", result.stdout)
    assert re.search(r"ok   rain: .* moved \d+x \[GPIO17\]", result.stdout)


def test_check_reads_no_sensors_while_the_agent_runs(tmp_path: Path) -> None:
    """The output gives the process that holds the pins and the remedy."""
    queue = SqliteQueue(str(tmp_path / "queue.db"), "kochi-0001", "boot", 1_000_000)
    result = run_program(tmp_path, "check")
    left = run_program(tmp_path, "check", "--no-sensors")
    queue.close()

    assert result.returncode == 1
    assert f"process {os.getpid()}" in result.stdout
    assert "systemctl stop edge-agent" in result.stdout
    assert "not checked" in result.stdout
    assert left.returncode == 0


def damage_page(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[4096 * 2 : 4096 * 3] = random.Random(1).randbytes(4096)
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda file: file.write_bytes(b""), "the file is empty"),
        (lambda file: file.write_bytes(b"\xa5" * 60_000), "not a database"),
        (damage_page, "btreeInitPage"),
        (lambda file: Path(f"{file}-wal").write_bytes(b"log"), None),
    ],
)
def test_check_names_a_damaged_queue_file(
    tmp_path: Path, damage: Callable[[Path], object], expected: str | None
) -> None:
    """It only reads: the next start recovers the messages."""
    file = tmp_path / "queue.db"
    SqliteQueue(file, "kochi-0001", "boot", 1_000_000).close()
    sound = run(tmp_path, "check", "--no-sensors")
    damage(file)
    before = {path: path.read_bytes() for path in tmp_path.glob("queue.db*")}
    result = run(tmp_path, "check", "--no-sensors", "--json")
    problems = " ".join(json.loads(result.stdout)["problems"])

    assert sound.returncode == 0
    assert {path: path.read_bytes() for path in before} == before
    assert (result.returncode, bool(problems)) == (
        (1, True) if expected else (0, False)
    )
    assert (expected or "") in problems
    assert ("queue.path must be sound" in problems) == bool(expected)


@pytest.mark.parametrize("command", ["stats", "peek", "export", "check"])
def test_queue_commands_name_the_remedy_for_a_damaged_file(
    tmp_path: Path, command: str
) -> None:
    file = tmp_path / "queue.db"
    SqliteQueue(file, "kochi-0001", "boot", 1_000_000).close()
    file.write_bytes(b"\xa5" * 60_000)
    result = run(tmp_path, "queue", command)

    assert result.returncode == 1
    assert "edge-agent queue repair" in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "rate_bytes_per_s = 6250",
            "rate_byte_per_s = 6250",
            "rate_byte_per_s is not a known key; did you mean 'rate_bytes_per_s'?",
        ),
        (
            "mm_per_tip = 0.5",
            'mm_per_tip = "0.02 inch"',
            "rain.mm_per_tip must be a number in mm, got '0.02 inch'; write the bare",
        ),
        (
            "mm_per_tip = 0.5",
            'unit = "inch"',
            "sensor.rain.unit must be 'mm', got 'inch'",
        ),
        ("pin = 27", "pin = 17", "sensor.span.pin must be a pin of its own, got 17"),
        (
            "latitude = 33.5588",
            "latitude = 95",
            "node.latitude must be between -90 and 90 degrees, got 95",
        ),
        ('kind = "wire"', 'kind = "wyre"', "did you mean 'wire'?"),
        ('id = "kochi-0001"', 'id = "kochi/1"', "node.id"),
        (
            'managers = ["mqtt://127.0.0.1:1883"]',
            "",
            "managers or gateway must be given, and not both, got 'neither'",
        ),
        ("[node]", "[node", "node.toml: line 2, column 6 must be TOML (Expected ']'"),
    ],
)
def test_bad_settings_are_reported_and_no_queue_is_created(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    """Field, rule, value and remedy; exit status 78, which systemd does not restart."""
    assert old in GOOD
    result = run(tmp_path, "check", text=GOOD.replace(old, new))

    assert result.returncode == 78
    assert expected in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["node.toml"]


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """One line each, so that one visit to the node is enough."""
    text = GOOD.replace("33.5588", "95").replace("pin = 27", "pin = 17")
    text = text.replace("mm_per_tip", "mm_per_tipp")
    result = run_program(tmp_path, "run", text=text)

    assert result.returncode == 78
    assert len(result.stderr.splitlines()) == 3


def test_send_queues_good_lines_and_reports_bad_ones(tmp_path: Path) -> None:
    """A bad line does not stop the others."""
    lines = [
        '{"pri":5,"e":[{"n":"test","u":"mm","v":1.0}]}',
        "not json",
        '{"pri":7,"e":[{"n":"test","v":1.0}]}',
        '{"e":[{"n":"test","v":"text"}]}',
        '{"e":[]}',
        '{"prio":5,"e":[{"n":"test","v":1.0}]}',
        "",
        '{"e":[{"n":"test","v":2.0}]}',
    ]
    result = run(tmp_path, "send", given="\n".join(lines))

    assert result.returncode == 65
    ids = result.stdout.split()
    assert [i.split(":")[0] for i in ids] == ["kochi-0001"] * 2
    assert [i.split(":")[2] for i in ids] == ["1", "2"]
    for expected in (
        "line 2: line must be a JSON object",
        "line 3: pri must be an integer between 1 and 5, got 7",
        "line 4: record 0 v must be a finite number, got 'text'",
        "line 5: e must be a list of SenML records, got []",
        "line 6: keys must be among e, pri, why, got ['prio']; remove the others",
    ):
        assert expected in result.stderr


def test_queue_stats_prints_depth_per_priority(tmp_path: Path) -> None:
    """Most urgent first, as text and as JSON."""
    run(
        tmp_path,
        "send",
        given='{"pri":5,"e":[{"n":"t","v":1}]}\n{"e":[{"n":"t","v":1}]}',
    )
    stats = run(tmp_path, "queue", "stats", "--json")

    output = json.loads(stats.stdout)["priorities"]

    assert {p: row["rows"] for p, row in output.items()} == {
        "5": 1, "4": 0, "3": 0, "2": 0, "1": 1,
    }  # fmt: skip


def test_queue_stats_without_a_queue_fails_and_creates_none(tmp_path: Path) -> None:
    """Reading statistics has no side effect."""
    run(tmp_path, "check")
    result = run(tmp_path, "queue", "stats")

    assert result.returncode == 1
    assert "there is no such file; has the agent run yet?" in result.stderr
    assert not (tmp_path / "queue.db").exists()

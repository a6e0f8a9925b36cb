"""The edge agent's commands, as an installer types them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    path = folder / "node.toml"
    path.write_text(text.format(folder=folder))
    return subprocess.run(
        [sys.executable, "-m", "edge_agent", *arguments, "--config", str(path)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


def test_check_of_good_settings_reads_every_sensor(tmp_path: Path) -> None:
    """The installer sees each sensor with unit and pin."""
    done = run(tmp_path, "check")

    assert done.returncode == 0, done.stderr
    assert re.search(r"rain 0 mm .* 0\.\.200 mm +any +good +GPIO17 +ok", done.stdout)
    assert "| PASS  kochi-0001" in done.stdout
    assert "2 of 2 well" in done.stdout


def test_check_told_to_a_program_has_everything_of_the_photograph(
    tmp_path: Path,
) -> None:
    """One JSON object, whatever else is asked for."""
    done = run(tmp_path, "check", "--json", "--live", "--seconds", "1")
    told = json.loads(done.stdout)

    assert told["verdict"] == "pass"
    assert told["node"] == "kochi-0001"
    assert [(s["name"], s["wiring"], s["health"]) for s in told["sensors"]] == [
        ("rain", ["GPIO17"], "ok"), ("span", ["GPIO27"], "ok"),
    ]  # fmt: skip


def test_report_of_a_check_is_for_a_laptop(tmp_path: Path) -> None:
    """The same lines, as Windows ends them; a folder that is not there is told."""
    path = tmp_path / "check.txt"
    done = run(tmp_path, "check", "--report", str(path))
    lost = run(tmp_path, "check", "--report", str(tmp_path / "no" / "check.txt"))
    lines = path.read_bytes().decode("utf-8-sig").split("\r\n")

    assert [line for line in lines if line not in done.stdout.splitlines()] == [""]
    assert any("| PASS  kochi-0001" in line for line in lines)
    assert lost.returncode == 1
    assert "edge-agent: [Errno 2] No such file or directory" in lost.stderr


@pytest.mark.skipif(
    Path("/proc/device-tree/model").exists(), reason="this machine may have pins"
)
def test_run_on_a_machine_without_pins_says_so(tmp_path: Path) -> None:
    """Settings of a real node on a laptop: a sentence and no traceback."""
    pins = re.sub(r"\[simulation\]\nstart.*\n", "", GOOD)
    done = run(tmp_path, "run", text=pins)

    assert done.returncode == 1
    assert "this machine has no pins" in done.stderr
    assert "Traceback" not in done.stderr


def test_live_check_tells_each_tip_of_a_storm(tmp_path: Path) -> None:
    """Without a terminal: one line for what happens."""
    text = GOOD.replace("[[sensor]]", "speedup = 5000\n[[sensor]]", 1)
    done = run(tmp_path, "check", "--live", "--seconds", "5", text=text)

    assert done.returncode == 0
    assert re.search(r"\n +\d\.\d s  rain \+0\.5 mm \(sum 0\.5 mm\)", done.stdout)
    assert re.search(r"ok   rain: .* moved \d+x \[GPIO17\]", done.stdout)


def test_check_leaves_the_pins_to_a_running_agent(tmp_path: Path) -> None:
    """It says who has them and what to do, and reads none."""
    queue = SqliteQueue(str(tmp_path / "queue.db"), "kochi-0001", "boot", 1_000_000)
    done = run(tmp_path, "check")
    left = run(tmp_path, "check", "--no-sensors")
    queue.close()

    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stdout
    assert "systemctl stop edge-agent" in done.stdout
    assert "not checked" in done.stdout
    assert left.returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
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
        ("[node]", "[node", "the file must be TOML"),
    ],
)
def test_bad_settings_name_the_mistake_and_touch_no_queue(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    """Field, rule, value and remedy; status 78, which systemd does not restart."""
    assert old in GOOD
    done = run(tmp_path, "check", text=GOOD.replace(old, new))

    assert done.returncode == 78
    assert said in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["node.toml"]


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    """One trip up the slope, not four."""
    text = GOOD.replace("33.5588", "95").replace("pin = 27", "pin = 17")
    text = text.replace("mm_per_tip", "mm_per_tipp")
    done = run(tmp_path, "run", text=text)

    assert done.returncode == 78
    assert len(done.stderr.splitlines()) == 3


def test_send_queues_good_lines_and_names_bad_ones(tmp_path: Path) -> None:
    """A typing error costs its own line only."""
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
    done = run(tmp_path, "send", given="\n".join(lines))

    assert done.returncode == 65
    ids = done.stdout.split()
    assert [i.split(":")[0] for i in ids] == ["kochi-0001"] * 2
    assert [i.split(":")[2] for i in ids] == ["1", "2"]
    for words in (
        "line 2: line must be a JSON object",
        "line 3: pri must be an integer between 1 and 5, got 7",
        "line 4: record 0 v must be a finite number, got 'text'",
        "line 5: e must be a list of SenML records, got []",
        "line 6: keys must be among e, pri, why, got ['prio']; remove the others",
    ):
        assert words in done.stderr


def test_queue_stats_prints_depth_per_priority(tmp_path: Path) -> None:
    """What waits, most urgent first, for people and for programs."""
    run(
        tmp_path,
        "send",
        given='{"pri":5,"e":[{"n":"t","v":1}]}\n{"e":[{"n":"t","v":1}]}',
    )
    path = tmp_path / "node.toml"
    stats = subprocess.run(
        [
            sys.executable,
            "-m",
            "edge_agent",
            "queue",
            "stats",
            "--config",
            str(path),
            "--json",
        ],
        capture_output=True,
        check=True,
    )

    told = json.loads(stats.stdout)["priorities"]

    assert {p: row["rows"] for p, row in told.items()} == {
        "5": 1, "4": 0, "3": 0, "2": 0, "1": 1,
    }  # fmt: skip


def test_queue_stats_without_a_queue_says_so_and_makes_none(tmp_path: Path) -> None:
    """Looking changes nothing."""
    run(tmp_path, "check")
    path = tmp_path / "node.toml"
    done = subprocess.run(
        [sys.executable, "-m", "edge_agent", "queue", "stats", "--config", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "there is no such file; has the agent run yet?" in done.stderr
    assert not (tmp_path / "queue.db").exists()

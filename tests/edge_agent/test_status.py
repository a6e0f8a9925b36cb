"""The status line and the `status` command."""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge_agent.cli import cli
from edge_agent.clock import SystemClock
from edge_agent.queue.base import Depth, QueueStats, format_depth
from edge_agent.status import StatusInputs, make_status, save_status
from edge_agent.uplink.settings import format_link
from service_runtime import tls
from service_runtime.tls import Endpoint

GATEWAY = Endpoint("gw", 1884)


@dataclass
class Link:
    """Fields of an uplink that the status line needs."""

    endpoint: Endpoint | None = GATEWAY
    down_since_s: float | None = None
    unserved_since_s: float | None = None
    gives_receipts: bool = True
    held_count: int = 0
    withheld_count: int = 0


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (Link(), "gw:1884 is up"),
        (Link(down_since_s=88.0, unserved_since_s=88.0), "gw:1884 is down for 12 s"),
        (Link(unserved_since_s=95.0), "gw:1884 takes nothing for 5 s"),
        (Link(None, down_since_s=0.0), "no gateway is known"),
        (Link(gives_receipts=False), "gw:1884 is up, gives no receipts"),
        (
            Link(gives_receipts=False, held_count=2),
            "gw:1884 is up, gives no receipts, 2 urgent held until a gateway does",
        ),
        (
            Link(withheld_count=7),
            "gw:1884 is up, 7 of another node not sent (queue export)",
        ),
    ],
)
def test_link_state_is_formatted(link: Link, expected: str) -> None:
    """Up, down, up without custody, or without a gateway."""
    assert format_link(link, 100.0) == expected


def test_link_state_names_a_shared_client_id() -> None:
    """A node has no metrics; a copied card is found by this line."""
    link = Link()
    assert link.endpoint is not None
    tls.note_client_id(link, link.endpoint, lambda: True)
    try:
        up = format_link(link, 100.0)
        down = format_link(replace(link, down_since_s=99.0), 100.0)
    finally:
        tls.forget_link(link)
    assert up == "gw:1884 is up, another program may use our client id"
    assert down == "gw:1884 is down for 1 s, another program may use our client id"
    assert format_link(link, 100.0) == "gw:1884 is up"


def test_depth_is_formatted_urgent_first_with_drops() -> None:
    """Empty priorities are left out."""
    stats = QueueStats({p: Depth(rows) for p, rows in {1: 12, 3: 0, 5: 2}.items()})

    assert format_depth(stats, 35.4) == "14 queued (5:2 1:12), oldest 35 s"
    assert (
        format_depth(QueueStats({}, dropped={1: 7}), None) == "0 queued, 7 ever dropped"
    )


def make_inputs(link: Link | None = None, **problems: str) -> StatusInputs:
    stats = QueueStats({5: Depth(2), 1: Depth(12)}, dropped={1: 7})
    return StatusInputs(link or Link(), 100.0, stats, 35.4, problems, 9)


def save(folder: Path, inputs: StatusInputs, age_s: float, *silent: str) -> None:
    mono_s = SystemClock().mono_s() - age_s
    save_status(make_status(inputs, 3, silent, 1_800_000_000.0, mono_s), folder)


def run_status(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(cli, ["status", "--run", str(folder), *more])


def test_failing_sensors_are_listed() -> None:
    """The status line ends with their number and names."""
    status = make_status(
        make_inputs(tilt="does not return", soil="EIO"), 1, (), 0.0, 0.0
    )

    assert status.line.startswith("level 1; gw:1884 is up; 14 queued (5:2 1:12)")
    assert status.line.endswith("; 2 of 9 sensors fail: tilt, soil")


def test_clock_that_is_not_set_is_shown() -> None:
    """By such a clock notices may end too early or too late."""
    status = make_status(
        replace(make_inputs(), notice="LEVEL UNKNOWN", is_clock_set=False),
        1,
        (),
        0.0,
        0.0,
    )

    start = "level 1; LEVEL UNKNOWN; the clock is not set; gw:1884 is up"
    assert status.line.startswith(start)


def test_safe_mode_is_shown_first(tmp_path: Path) -> None:
    """The output shows which field of the file to correct."""
    mistakes = ("sensor.span.pin must be a pin of its own",)
    save(tmp_path, replace(make_inputs(), mistakes=mistakes), 3.0)
    result = run_status(tmp_path)

    start = "level 3; safe mode: 1 mistake in the settings; gw:1884 is up"
    assert result.output.startswith(start)
    assert "  SETTINGS: sensor.span.pin must be a pin of its own" in result.output
    assert result.exit_code == 1


def test_status_of_a_healthy_node_exits_with_0(tmp_path: Path) -> None:
    """The exit status is for scripts, the text for people."""
    save(tmp_path, make_inputs(), 3.0)
    result = run_status(tmp_path)

    assert result.output.startswith("level 3; gw:1884 is up; 14 queued")
    assert re.search(r"\d\d:\d\d \S+, 3 s ago", result.output)
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("inputs", "age_s", "silent", "expected"),
    [
        (
            make_inputs(tilt="sensor tilt does not return"),
            3,
            (),
            "tilt: sensor tilt does",
        ),
        (make_inputs(Link(unserved_since_s=9.0)), 3, (), "takes nothing for 91 s"),
        (make_inputs(Link(withheld_count=7)), 3, (), "7 of another node not sent"),
        (make_inputs(), 300, (), "300 s ago: the agent hangs or is gone"),
        (make_inputs(), 3, ("uplink is silent for 75 s",), "HANGS: uplink is silent"),
    ],
    ids=["sensor", "gateway", "withheld", "old", "loop"],
)
def test_status_of_a_failing_node_gives_the_reason(
    tmp_path: Path,
    inputs: StatusInputs,
    age_s: float,
    silent: tuple[str, ...],
    expected: str,
) -> None:
    """The output gives the part that fails; exit status 1."""
    save(tmp_path, inputs, age_s, *silent)
    result = run_status(tmp_path)

    assert expected in result.output
    assert result.exit_code == 1


def test_status_as_json(tmp_path: Path) -> None:
    """Every number has a key."""
    save(tmp_path, make_inputs(), 3.0)
    output = json.loads(run_status(tmp_path, "--json").output)

    assert (output["queued"], output["dropped"]) == ({"5": 2, "1": 12}, {"1": 7})
    assert (output["level"], output["gateway"], output["is_served"]) == (
        3,
        "gw:1884",
        True,
    )
    assert output["age_s"] == pytest.approx(3.0, abs=2.0)


def test_status_without_an_agent_is_an_error(tmp_path: Path) -> None:
    """The output must not look like that of a healthy node."""
    result = run_status(tmp_path)

    assert "No such file or directory; is edge-agent started?" in result.output
    assert result.exit_code == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user, which needs root")
def test_status_that_this_user_may_not_read_names_sudo() -> None:
    """The agent may well be started."""
    code = (
        "import os, sys; from edge_agent.cli.status import status_command as command; "
        "os.setuid(12345); command(['--run', sys.argv[1]])"
    )
    with tempfile.TemporaryDirectory() as folder:  # of root, mode 700
        done = subprocess.run(
            [sys.executable, "-c", code, folder],
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 1
    assert "Permission denied; run it with sudo" in done.stderr

"""The status line says what is, in words that a person understands."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge_agent.cli import cli
from edge_agent.clock import SystemClock
from edge_agent.queue.base import Depth, QueueStats
from edge_agent.queue.inspection import format_depth
from edge_agent.status import StatusInputs, make_status, save_status
from edge_agent.uplink.settings import format_link
from service_runtime.tls import Endpoint

GATEWAY = Endpoint("gw", 1884)


@dataclass
class Link:
    """An uplink, as far as words need one."""

    endpoint: Endpoint | None = GATEWAY
    down_since_s: float | None = None
    unserved_since_s: float | None = None


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (Link(), "gw:1884 is up"),
        (Link(down_since_s=88.0, unserved_since_s=88.0), "gw:1884 is down for 12 s"),
        (Link(unserved_since_s=95.0), "gw:1884 takes nothing for 5 s"),
        (Link(None, down_since_s=0.0), "no gateway is known"),
    ],
)
def test_link_is_never_called_better_than_it_is(link: Link, expected: str) -> None:
    """Up, down, up without a store behind it, or nowhere to go."""
    assert format_link(link, 100.0) == expected


def test_depth_names_the_urgent_first_and_what_was_dropped() -> None:
    """Empty priorities are left out."""
    stats = QueueStats({p: Depth(rows) for p, rows in {1: 12, 3: 0, 5: 2}.items()})

    assert format_depth(stats, 35.4) == "14 queued (5:2 1:12), oldest 35 s"
    assert (
        format_depth(QueueStats({}, dropped={1: 7}), None) == "0 queued, 7 ever dropped"
    )


def parts(link: Link | None = None, **problems: str) -> StatusInputs:
    stats = QueueStats({5: Depth(2), 1: Depth(12)}, dropped={1: 7})
    return StatusInputs(link or Link(), 100.0, stats, 35.4, problems, 9)


def saved(folder: Path, of: StatusInputs, age_s: float, *silent: str) -> None:
    mono_s = SystemClock().mono_s() - age_s
    save_status(make_status(of, 3, silent, 1_800_000_000.0, mono_s), folder)


def asked(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(cli, ["status", "--run", str(folder), *more])


def test_failing_sensors_are_named() -> None:
    """A person knows where to go before going there."""
    said = make_status(parts(tilt="does not return", soil="EIO"), 1, (), 0.0, 0.0)

    assert said.line.startswith("gw:1884 is up; 14 queued (5:2 1:12), oldest 35 s")
    assert said.line.endswith("; 2 of 9 sensors fail: tilt, soil")


def test_safe_mode_is_the_first_thing_said(tmp_path: Path) -> None:
    """A person at the terminal sees which line of the file to mend."""
    wrong = ("sensor.span.pin must be a pin of its own",)
    saved(tmp_path, replace(parts(), mistakes=wrong), 3.0)
    done = asked(tmp_path)

    begin = "level 3; safe mode: 1 mistake in the settings; gw:1884 is up"
    assert done.output.startswith(begin)
    assert "  SETTINGS: sensor.span.pin must be a pin of its own" in done.output
    assert done.exit_code == 1


def test_node_that_is_well_ends_with_0(tmp_path: Path) -> None:
    """For people at a terminal and for scripts."""
    saved(tmp_path, parts(), 3.0)
    done = asked(tmp_path)

    assert done.output.startswith("level 3; gw:1884 is up; 14 queued")
    assert "3 s ago" in done.output
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("of", "age_s", "silent", "words"),
    [
        (parts(tilt="sensor tilt does not return"), 3, (), "tilt: sensor tilt does"),
        (parts(Link(unserved_since_s=9.0)), 3, (), "takes nothing for 91 s"),
        (parts(), 300, (), "300 s ago: the agent hangs or is gone"),
        (parts(), 3, ("uplink is silent for 75 s",), "HANGS: uplink is silent"),
    ],
    ids=["sensor", "gateway", "old", "loop"],
)
def test_node_that_is_not_well_says_why(
    tmp_path: Path, of: StatusInputs, age_s: float, silent: tuple[str, ...], words: str
) -> None:
    """One look tells what to mend."""
    saved(tmp_path, of, age_s, *silent)
    done = asked(tmp_path)

    assert words in done.output
    assert done.exit_code == 1


def test_status_for_programs_is_json(tmp_path: Path) -> None:
    """Every number by its name."""
    saved(tmp_path, parts(), 3.0)
    told = json.loads(asked(tmp_path, "--json").output)

    assert (told["queued"], told["dropped"]) == ({"5": 2, "1": 12}, {"1": 7})
    assert (told["level"], told["gateway"], told["is_served"]) == (3, "gw:1884", True)
    assert told["age_s"] == pytest.approx(3.0, abs=2.0)


def test_no_agent_is_said_so(tmp_path: Path) -> None:
    """Nothing that looks like a healthy node."""
    done = asked(tmp_path)

    assert "No such file or directory; is edge-agent started?" in done.output
    assert done.exit_code == 1

"""The patterns of the green LED."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from edge_agent.status import NodeStatus, save_status

LED = Path(__file__).parents[2] / "image/files/usr/lib/yamamori/led"


def shown(folder: Path, agent: str) -> tuple[str, ...]:
    """Trigger and times that the script sets for an agent in that state."""
    led = folder / "leds/ACT"
    led.mkdir(parents=True)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(f"#!/bin/sh\necho {agent}\n")
    (programs / "systemctl").chmod(0o755)
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "YAMAMORI_STATUS": str(folder / "status.json"),
        "YAMAMORI_REPORT": str(folder / "node-report.txt"),
    }
    subprocess.run([LED, folder / "leds", "once"], check=True, env=environ)
    names = ("trigger", "delay_on", "delay_off")
    return tuple((led / n).read_text().strip() for n in names if (led / n).exists())


def write_status(
    folder: Path,
    *,
    is_served: bool,
    silent: Sequence[str] = (),
    disk: str | None = None,
    **problems: str,
) -> None:
    """Write a status file as the agent does."""
    status = NodeStatus(
        line="",
        at_s=0,
        mono_s=0,
        level=1,
        gateway=None,
        is_up=is_served,
        is_served=is_served,
        queued={},
        oldest_s=None,
        dropped={},
        sensors=1,
        problems=problems,
        silent=silent,
        mistakes=(),
        alarms={},
        notice=None,
        refused=None,
        disk=disk,
    )
    save_status(status, folder)


def test_heartbeat_when_a_gateway_accepts_messages(tmp_path: Path) -> None:
    """The LED shows it as a heartbeat."""
    write_status(tmp_path, is_served=True)
    assert shown(tmp_path, "active") == ("heartbeat",)


def test_slow_blink_without_a_gateway(tmp_path: Path) -> None:
    """The node samples and queues its messages."""
    write_status(tmp_path, is_served=False)
    assert shown(tmp_path, "active") == ("timer", "1000", "1000")


def test_short_flash_when_a_sensor_fails(tmp_path: Path) -> None:
    """It has precedence over the link, because the installer can repair a sensor."""
    write_status(tmp_path, is_served=False, tilt="no answer")
    assert shown(tmp_path, "active") == ("timer", "100", "1900")


@pytest.mark.parametrize("is_served", [True, False])
def test_short_gap_when_the_card_cannot_be_written(
    tmp_path: Path, is_served: bool
) -> None:
    """The pattern without a gateway would say that nothing is lost."""
    write_status(tmp_path, is_served=is_served, disk="disk I/O error", tilt="none")
    assert shown(tmp_path, "active") == ("timer", "1900", "100")


def test_short_gap_when_a_loop_hangs(tmp_path: Path) -> None:
    """The heartbeat would say that the node is well."""
    write_status(tmp_path, is_served=True, silent=["sampling is silent for 90 s"])
    assert shown(tmp_path, "active") == ("timer", "1900", "100")


@pytest.mark.parametrize("agent", ["activating", "inactive", "active"])
def test_steady_while_it_starts(tmp_path: Path, agent: str) -> None:
    """There is no status file yet."""
    assert shown(tmp_path, agent) == ("default-on",)


def test_flicker_without_settings(tmp_path: Path) -> None:
    """The agent has exited because the settings are missing."""
    assert shown(tmp_path, "failed") == ("timer", "100", "100")


def test_flicker_in_safe_mode(tmp_path: Path) -> None:
    """The agent runs, but the report says that the settings were refused."""
    write_status(tmp_path, is_served=True)
    (tmp_path / "node-report.txt").write_bytes(b"RESULT: REFUSED\r\n")
    assert shown(tmp_path, "active") == ("timer", "100", "100")

"""Unit files, read as text."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "systemd").glob("*.service"))
MODULES = {
    "edge-agent": "edge_agent",
    "gateway-daemon": "gateway_daemon",
    "backend-spark": "backend_spark",
}


def service(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser["Service"]


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_unit_starts_a_command_that_exists(path: Path) -> None:
    """`ExecStart` names an installed command and one of its subcommands."""
    match = re.fullmatch(
        r"/usr/bin/([a-z-]+) ([a-z]+) --config /etc/yamamori/[a-z]+\.toml",
        service(path)["ExecStart"],
    )
    assert match
    done = subprocess.run(
        [sys.executable, "-m", MODULES[match[1]], match[2], "--help"],
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_unit_is_not_restarted_on_a_bad_config(path: Path) -> None:
    """Status 78 is for a person; everything else is tried again, for ever."""
    assert service(path)["Restart"] == "on-failure"
    assert service(path)["RestartPreventExitStatus"] == "78"
    assert "StartLimitIntervalSec=0" in path.read_text(encoding="utf-8")

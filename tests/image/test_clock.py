"""An image's time zone; a gateway's clock after a power cut: the time saved last."""

import os
import subprocess
from pathlib import Path

import pytest

IMAGE = Path(__file__).parents[2] / "image"
CLOCK = IMAGE / "roles/gateway/usr/lib/yamamori/clock"
SAVED_S = 1_790_000_000


def run(root: Path, command: str, now_s: int) -> str:
    """Run the script once at a time; returns the time that it sets, or nothing."""
    programs = root / "bin"
    programs.mkdir()
    out = root / "set"
    for name, text in {
        "date": f'case $1 in -s) echo "$2" > {out} ;; *) echo {now_s} ;; esac',
        "sleep": f"echo $1 > {root}/pause; kill $PPID",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    env = {"PATH": path, "YAMAMORI_ROOT": str(root)}
    subprocess.run([CLOCK, command], env=env, check=command == "restore")
    return out.read_text().strip() if out.exists() else ""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The file of a gateway that saved its time before the power cut."""
    path = tmp_path / "var/lib/yamamori-clock/clock"
    path.parent.mkdir(parents=True)
    path.touch()
    os.utime(path, (SAVED_S, SAVED_S))
    return path


@pytest.mark.parametrize(
    ("now_s", "expected"), [(SAVED_S - 10**7, f"@{SAVED_S}"), (SAVED_S + 60, "")]
)
def test_saved_time_is_restored_but_sets_no_clock_back(
    saved: Path, tmp_path: Path, now_s: int, expected: str
) -> None:
    """A machine with a battery clock keeps its own."""
    assert saved.exists()
    assert run(tmp_path, "restore", now_s) == expected


def test_first_start_has_no_time_to_restore(tmp_path: Path) -> None:
    """It is the build date's, as before."""
    assert run(tmp_path, "restore", 0) == ""


def test_time_is_saved_every_five_minutes(saved: Path, tmp_path: Path) -> None:
    """It is the file's time, as timesyncd keeps it."""
    run(tmp_path, "save", 0)

    assert saved.stat().st_mtime > SAVED_S
    assert (tmp_path / "pause").read_text() == "300\n"


def test_clock_is_restored_before_a_gateway_serves_it() -> None:
    """The unit is enabled on gateways' images only."""
    unit = IMAGE / "roles/gateway/etc/systemd/system/yamamori-clock.service"
    (before,) = (x for x in unit.read_text().splitlines() if x.startswith("Before="))

    assert "chrony.service" in before
    assert "yamamori-clock" in (IMAGE / "units/gateway").read_text().split()
    assert "yamamori-clock" not in (IMAGE / "units/node").read_text().split()


@pytest.mark.parametrize("role", ["node", "gateway"])
def test_local_time_is_that_of_japan(tmp_path: Path, role: str) -> None:
    """With UTC, a link that is closed at night was closed from 07:00 to 14:00."""
    root, programs = tmp_path / "root", tmp_path / "bin"
    for folder in ("root", "etc", "var/log", "tmp"):
        (root / folder).mkdir(parents=True)
    programs.mkdir()
    for name in ("systemctl", "systemd-sysusers"):  # units and users of the root
        (programs / name).symlink_to("/bin/true")
    env = {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run([IMAGE / "lib/settle", role, root], env=env, check=True)
    packages = (IMAGE / "lock" / role).read_text()

    assert (root / "etc/localtime").readlink() == Path("/usr/share/zoneinfo/Asia/Tokyo")
    assert "\ntzdata " in packages

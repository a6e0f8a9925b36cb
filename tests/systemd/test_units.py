"""Unit files, read as text and by systemd's own tools; none is started."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
MODULES = {
    "edge-agent": "edge_agent",
    "gateway-daemon": "gateway_daemon",
    "backend-spark": "backend_spark",
    "spatial-mqtt": "spatial_mqtt",
}
WORST_EXPOSURE = 20
"""In tenths: what systemd calls 2.0. Mosquitto's stock unit has 9.6."""

FIRST_BOOT = SYSTEMD / "edge-agent-first-boot.service"
RENEW = SYSTEMD / "yamamori-renew@.service"
FORECAST = SYSTEMD / "backend-forecast.service"
TIMED = {RENEW, FORECAST}
DAEMONS = [path for path in UNITS if path not in {FIRST_BOOT, *TIMED}]

each_daemon = pytest.mark.parametrize("path", DAEMONS, ids=lambda p: p.name)
each_unit = pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is missing; run scripts/setup",
)


def section(path: Path, name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser[name]


def service(path: Path) -> configparser.SectionProxy:
    return section(path, "Service")


def is_a_command(program: str, command: str) -> bool:
    """Whether one of our programs has a subcommand."""
    done = subprocess.run(
        [sys.executable, "-m", MODULES[program], *command.split(), "--help"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@each_daemon
def test_unit_starts_a_command_that_exists(path: Path) -> None:
    """`ExecStart` names an installed command and one of its subcommands."""
    match = re.fullmatch(
        r"/usr/bin/([a-z-]+) ([a-z ]+) --config /etc/yamamori/[a-z]+\.toml",
        service(path)["ExecStart"],
    )
    assert match

    assert is_a_command(match[1], match[2])


def test_first_boot_comes_before_the_agent_and_only_when_there_is_one() -> None:
    """Settings on the boot partition are taken up once, by root."""
    command = service(FIRST_BOOT)["ExecStart"].split()
    source = command[command.index("--from") + 1]

    assert section(FIRST_BOOT, "Unit")["ConditionPathExists"] == source
    assert section(FIRST_BOOT, "Unit")["Before"] == "edge-agent.service"
    assert "User" not in service(FIRST_BOOT)
    assert is_a_command("edge-agent", "first-boot")


def test_renewal_is_tried_every_day_for_any_program() -> None:
    """One unit and one timer for whatever has a file of settings."""
    timer = section(RENEW.with_suffix(".timer"), "Timer")

    assert service(RENEW)["ExecStart"].endswith("--config /etc/yamamori/%i.toml")
    assert is_a_command("spatial-mqtt", "renew")
    assert timer["OnUnitActiveSec"] == "1d"


def test_forecasts_are_looked_for_well_before_one_is_stale() -> None:
    """It never overlaps itself, and a folder without news costs a look."""
    timer = section(FORECAST.with_suffix(".timer"), "Timer")
    command = "forecast load --config /etc/yamamori/backend.toml"

    assert service(FORECAST)["Type"] == "oneshot"
    assert service(FORECAST)["ExecStart"] == f"/usr/bin/backend-spark {command}"
    assert is_a_command("backend-spark", "forecast load")
    assert timer["OnUnitInactiveSec"] == "5min"


@each_daemon
def test_unit_is_tried_again_for_ever_but_not_on_a_bad_config(path: Path) -> None:
    """Status 78 is for a person; nobody is there to start anything else again."""
    assert service(path)["Restart"] == "always"
    assert service(path)["RestartPreventExitStatus"] == "78"
    assert section(path, "Unit")["StartLimitIntervalSec"] == "0"


@each_daemon
def test_unit_is_watched_and_bounded(path: Path) -> None:
    """A hung or a hungry daemon is ended before it takes the machine along."""
    assert service(path)["Type"] == "notify"
    assert int(service(path)["WatchdogSec"]) >= 30
    assert "MemoryMax" in service(path)
    assert "TasksMax" in service(path)


@each_unit
def test_unit_has_no_comment_behind_a_value(path: Path) -> None:
    """There it is part of the value."""
    lines = path.read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if re.search(r"^[^#].*=.*#", line)] == []


@needs_analyze
@each_unit
def test_unit_is_sound_to_systemd(path: Path, tmp_path: Path) -> None:
    """`verify` exits with 0 on unknown keys, so that its words are what counts."""
    text = path.read_text(encoding="utf-8")
    copy = tmp_path / path.name
    # Our commands need not be installed where the tests run.
    copy.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("", "")


@needs_analyze
@each_unit
def test_unit_is_little_exposed(path: Path) -> None:
    """What a broken daemon could do is little."""
    rule = f"--threshold={WORST_EXPOSURE}"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", rule, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-200:]


def test_agent_sees_pins_and_waits_for_their_modules() -> None:
    """What hides pins from gpiozero, and the order that opens them."""
    agent = SYSTEMD / "edge-agent.service"
    text = agent.read_text(encoding="utf-8")
    modules = (SYSTEMD / "modules-load.d/yamamori.conf").read_text(encoding="utf-8")

    assert "PrivateDevices" not in service(agent)
    assert "ProcSubset" not in service(agent)
    assert "systemd-modules-load.service" in section(agent, "Unit")["After"]
    assert "DeviceAllow=char-spi rw" in text  # the class is not char-spidev
    assert {"i2c-dev", "spidev"} <= set(modules.split())
    assert int(service(agent)["FileDescriptorStoreMax"]) >= 16


@pytest.mark.parametrize("unit", [path.stem for path in UNITS])
def test_install_puts_a_unit_and_what_it_needs(unit: str, tmp_path: Path) -> None:
    """One command, also into an image."""
    subprocess.run(
        [SYSTEMD / "install", unit],
        env={"DESTDIR": str(tmp_path), "PATH": "/bin"},
        check=True,
    )
    put = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}

    assert f"etc/systemd/system/{unit}.service" in put
    timer = f"etc/systemd/system/{unit}.timer"
    assert (timer in put) == (unit in {path.stem for path in TIMED})
    assert {"etc/sysusers.d/yamamori.conf", "etc/tmpfiles.d/yamamori.conf"} <= put
    assert ("etc/udev/rules.d/70-yamamori.rules" in put) == (unit == "edge-agent")
    kept = "etc/systemd/system/edge-agent.service.d/keep-pins.conf" in put
    assert kept == (unit == "edge-agent")


@pytest.mark.parametrize(("version", "is_kept"), [("252", False), ("257.9-1", True)])
def test_install_gives_an_old_systemd_no_key_that_it_lacks(
    version: str, is_kept: bool, tmp_path: Path
) -> None:
    """It would say so in the log at every look at the unit."""
    library = f"usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-{version}.so"
    (tmp_path / library).parent.mkdir(parents=True)
    (tmp_path / library).touch()
    subprocess.run(
        [SYSTEMD / "install", "edge-agent"],
        env={"DESTDIR": str(tmp_path), "PATH": "/bin"},
        check=True,
    )

    made = tmp_path / "etc/systemd/system/edge-agent.service.d/keep-pins.conf"
    assert made.exists() == is_kept


def test_install_of_an_unknown_unit_puts_nothing(tmp_path: Path) -> None:
    """A typing error is named, with what there is."""
    done = subprocess.run(
        [SYSTEMD / "install", "edge-agent", "edge-agnet"],
        env={"DESTDIR": str(tmp_path), "PATH": "/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 64
    assert "no unit edge-agnet.service; there are: backend-alerts" in done.stderr
    assert list(tmp_path.iterdir()) == []

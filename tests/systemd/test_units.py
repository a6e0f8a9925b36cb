"""Unit files, checked as text and with systemd's own tools; none is started."""

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
"""In tenths: exposure level 2.0 in systemd. Mosquitto's stock unit has 9.6."""

FIRST_BOOT = SYSTEMD / "edge-agent-first-boot.service"
RENEW = SYSTEMD / "yamamori-renew@.service"
FORECAST = SYSTEMD / "backend-forecast.service"
ANALYSIS = SYSTEMD / "backend-analysis.service"
BACKEND = [path for path in UNITS if path.name.startswith("backend-")]
TIMED = {RENEW, FORECAST, ANALYSIS}
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


def test_first_boot_runs_before_the_agent_if_settings_exist() -> None:
    """Settings on the boot partition are imported once, by root."""
    command = service(FIRST_BOOT)["ExecStart"].split()
    source = command[command.index("--from") + 1]

    assert section(FIRST_BOOT, "Unit")["ConditionPathExists"] == source
    assert section(FIRST_BOOT, "Unit")["Before"] == "edge-agent.service"
    assert "User" not in service(FIRST_BOOT)
    assert is_a_command("edge-agent", "first-boot")


def test_renewal_runs_every_day_for_any_program() -> None:
    """One unit and one timer serve every program with a settings file."""
    timer = section(RENEW.with_suffix(".timer"), "Timer")

    assert service(RENEW)["ExecStart"].endswith("--config /etc/yamamori/%i.toml")
    assert is_a_command("spatial-mqtt", "renew")
    assert timer["OnUnitActiveSec"] == "1d"


def test_forecast_import_runs_every_five_minutes() -> None:
    """Often enough that none is stale; runs never overlap."""
    timer = section(FORECAST.with_suffix(".timer"), "Timer")
    command = "forecast load --config /etc/yamamori/backend.toml"

    assert service(FORECAST)["Type"] == "oneshot"
    assert service(FORECAST)["ExecStart"] == f"/usr/bin/backend-spark {command}"
    assert is_a_command("backend-spark", "forecast load")
    assert timer["OnUnitInactiveSec"] == "5min"


def test_analysis_import_runs_every_two_minutes() -> None:
    """JMA sends a file each ten minutes; runs never overlap."""
    timer = section(ANALYSIS.with_suffix(".timer"), "Timer")
    command = "analysis load --config /etc/yamamori/backend.toml"

    assert service(ANALYSIS)["Type"] == "oneshot"
    assert service(ANALYSIS)["ExecStart"] == f"/usr/bin/backend-spark {command}"
    assert is_a_command("backend-spark", "analysis load")
    assert timer["OnUnitInactiveSec"] == "2min"


def test_analysis_import_may_move_files_of_the_documented_folders() -> None:
    """Invalid ones, to the subfolder `refused`."""
    page = (SYSTEMD.parent / "docs/how-to/backend.md").read_text(encoding="utf-8")
    named = re.findall(r'^(?:soil_water|rain)_folder = "(.+)"', page, re.MULTILINE)

    assert len(named) == 2
    assert service(ANALYSIS)["ReadWritePaths"].split() == [f"-{each}" for each in named]


@each_daemon
def test_unit_restarts_forever_except_after_invalid_settings(path: Path) -> None:
    """Status 78 needs an operator; any other exit must be recovered automatically."""
    assert service(path)["Restart"] == "always"
    assert service(path)["RestartPreventExitStatus"] == "78"
    assert section(path, "Unit")["StartLimitIntervalSec"] == "0"


@each_daemon
def test_unit_has_a_watchdog_and_resource_limits(path: Path) -> None:
    """A daemon that hangs or leaks memory is ended before it affects the machine."""
    assert service(path)["Type"] == "notify"
    assert int(service(path)["WatchdogSec"]) >= 30
    assert "MemoryMax" in service(path)
    assert "TasksMax" in service(path)


@pytest.mark.parametrize("path", BACKEND, ids=lambda p: p.name)
def test_backend_may_connect_to_a_store_and_to_kafka(path: Path) -> None:
    """Tables may be at a URL, and the log in Kafka, without a drop-in."""
    families = set(service(path)["RestrictAddressFamilies"].split())

    assert families == {"AF_UNIX", "AF_INET", "AF_INET6"}
    assert service(path).get("PrivateNetwork", "no") == "no"


@each_unit
def test_unit_has_no_comment_after_a_value(path: Path) -> None:
    """Systemd would read it as part of the value."""
    lines = path.read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if re.search(r"^[^#].*=.*#", line)] == []


def test_node_may_ask_the_kernel_whether_the_clock_is_set() -> None:
    """ProtectClock forbids reading it, too; to set it, the unit has no capability."""
    lines = (SYSTEMD / "edge-agent.service").read_text(encoding="utf-8").splitlines()

    assert "ProtectClock=yes" not in lines
    assert "SystemCallFilter=adjtimex clock_adjtime clock_adjtime64" in lines
    assert "CapabilityBoundingSet=" in lines


@needs_analyze
@each_unit
def test_unit_passes_systemd_analyze_verify(path: Path, tmp_path: Path) -> None:
    """`verify` exits with 0 on unknown keys, so the output is checked."""
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
def test_unit_exposure_is_low(path: Path) -> None:
    """Limits what a compromised daemon can do."""
    rule = f"--threshold={WORST_EXPOSURE}"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", rule, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-200:]


def test_agent_unit_gives_access_to_pins_after_their_modules_are_loaded() -> None:
    """Checks the options that would hide pins from gpiozero, and the order."""
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
def test_install_copies_a_unit_and_its_dependencies(unit: str, tmp_path: Path) -> None:
    """`DESTDIR` also serves for an image."""
    subprocess.run(
        [SYSTEMD / "install", unit],
        env={"DESTDIR": str(tmp_path), "PATH": "/bin"},
        check=True,
    )
    installed = {
        str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()
    }

    assert f"etc/systemd/system/{unit}.service" in installed
    timer = f"etc/systemd/system/{unit}.timer"
    assert (timer in installed) == (unit in {path.stem for path in TIMED})
    assert "etc/sysusers.d/yamamori.conf" in installed
    assert "etc/tmpfiles.d/yamamori.conf" in installed
    assert ("etc/udev/rules.d/70-yamamori.rules" in installed) == (unit == "edge-agent")
    kept = "etc/systemd/system/edge-agent.service.d/keep-pins.conf" in installed
    assert kept == (unit == "edge-agent")


@pytest.mark.parametrize(("version", "is_kept"), [("252", False), ("257.9-1", True)])
def test_install_omits_keys_that_an_old_systemd_lacks(
    version: str, is_kept: bool, tmp_path: Path
) -> None:
    """An unknown key would cause a warning each time the unit is loaded."""
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


def test_install_of_an_unknown_unit_copies_nothing(tmp_path: Path) -> None:
    """The error names the unknown unit and lists the known ones."""
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


@pytest.mark.parametrize(
    "folder", ["/etc/mosquitto/yamamori", "/etc/yamamori/mosquitto"]
)
def test_broker_reloads_its_rights_and_its_certificate(folder: str) -> None:
    """After the key or the certificate, whichever is copied last."""
    text = (SYSTEMD / "broker/mosquitto-reload.path").read_text()
    watched = re.findall(rf"^PathChanged={folder}/(.*)$", text, re.MULTILINE)

    assert set(watched) == {"acl", "broker.pem", "broker.key"}


def test_signer_may_read_its_settings() -> None:
    """`/etc/yamamori` is for the group of the other daemons alone."""
    folder = (SYSTEMD / "tmpfiles.d/yamamori.conf").read_text()
    assert re.search(r"^d /etc/yamamori +2750 root +yamamori ", folder, re.MULTILINE)
    signer = section(SYSTEMD / "gateway-signer.service", "Service")
    assert "yamamori" in signer["SupplementaryGroups"].split()

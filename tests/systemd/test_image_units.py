"""The image's own units: what they may do, and that their work is possible so."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import wait_until
from machine import Machine

from image.bundle import make

ROOT = Path(__file__).parents[2]
FILES = ROOT / "image/files"
UNITS = FILES / "etc/systemd/system"
FIREWALL = ROOT / "systemd/firewall"
SCRIPTS = FILES / "usr/lib/yamamori"
WORST_EXPOSURE = {
    "update": 16,
    "slot": 16,
    "card": 10,
    "led": 12,
    "access": 63,
    "firewall": 20,
}
"""In tenths. A login repairs the machine as root, inside the sandbox of `access`."""


def find_unit(name: str) -> Path:
    """Path of a unit file."""
    folder = FIREWALL if name == "firewall" else UNITS
    return folder / f"yamamori-{name}.service"


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is missing; run scripts/setup",
)
@pytest.mark.parametrize("name", WORST_EXPOSURE)
@pytest.mark.attack("a defect in a unit of the card", "exposure 9.5")
def test_exposure_of_a_unit_is_low(name: str) -> None:
    """All of them had 9.5 or 9.6 of 10."""
    rule = f"--threshold={WORST_EXPOSURE[name]}"
    unit = find_unit(name)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", rule, str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-200:]


@pytest.mark.parametrize("name", WORST_EXPOSURE)
def test_unit_has_limits_and_no_comment_after_a_value(name: str) -> None:
    """Systemd would read the comment as part of the value."""
    text = find_unit(name).read_text()

    assert re.search(r"^MemoryMax=", text, re.MULTILINE)
    assert re.search(r"^TasksMax=", text, re.MULTILINE)
    assert not re.search(r"^[^#\n].*=.*#", text, re.MULTILINE)


def test_broker_has_limits() -> None:
    """Connections and queued messages of a flood end the broker, not the machine."""
    text = (ROOT / "systemd/mosquitto.service.d/yamamori.conf").read_text()

    assert re.search(r"^MemoryMax=\d+%$", text, re.MULTILINE)
    assert re.search(r"^LimitNOFILE=\d+$", text, re.MULTILINE)


def about(version: str) -> dict[str, str]:
    """Description of a version of the image."""
    kernel = platform.release()
    return {"role": "node", "kernel": kernel, "epoch": version, "version": version}


def build_bundle(folder: Path) -> bytes:
    """Make a bundle of version 2; returns the public key."""
    key, root = folder / "key.pem", folder / "root"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True
    )
    root.write_bytes(bytes(range(256)) * 400)
    make(root, about("2"), key, folder / "new.update")
    return subprocess.run(
        ["openssl", "pkey", "-in", key, "-pubout"], check=True, capture_output=True
    ).stdout


@pytest.fixture
def card(machine: Machine, tmp_path: Path) -> Machine:
    """A node's card: the scripts, the units, a key, and a bundle of version 2."""
    public = build_bundle(tmp_path)
    for folder in (
        "boot/firmware/yamamori/network",
        "data/slot",
        "usr/share/yamamori",
        "usr/lib/yamamori",
        "var/lib/yamamori/update",
    ):
        machine.inside(f"/{folder}").mkdir(parents=True, exist_ok=True)
    running = "".join(f"{k}={v}\n" for k, v in about("1").items())
    machine.inside("/etc/yamamori-image").write_text(running)
    machine.inside("/usr/share/yamamori/update.pub").write_bytes(public)
    machine.inside("/run/yamamori-slot").write_text("a good vda\n")
    machine.inside("/dev/vda3").write_bytes(bytes(200_000))
    for path in (*SCRIPTS.iterdir(), ROOT / "image/bundle.py"):
        shutil.copy(path, machine.inside(f"/usr/lib/yamamori/{path.name}"))
    for path in UNITS.glob("*.service"):
        shutil.copy(path, machine.inside(f"/etc/systemd/system/{path.name}"))
    drop_in = machine.inside("/etc/systemd/system/yamamori-update.service.d")
    drop_in.mkdir(exist_ok=True)
    (drop_in / "python.conf").write_text(
        "[Service]\nEnvironment=PYTHON=/opt/yamamori/bin/python\n"
    )
    # A reboot is only requested; the image masks logind, as here.
    machine.inside("/etc/systemd/system/reboot.target").unlink(missing_ok=True)
    machine.inside("/etc/systemd/system/reboot.target").write_text(
        "[Unit]\nDescription=A reboot was requested\nDefaultDependencies=no\n"
    )
    machine.run("systemctl", "stop", "systemd-logind")
    machine.run("systemctl", "mask", "--runtime", "systemd-logind")
    machine.run("systemctl", "daemon-reload")
    shutil.copy(tmp_path / "new.update", machine.inside("/var/lib/yamamori/update"))
    machine.run("chown", "-R", "yamamori:", "/var/lib/yamamori/update")
    machine.run("chmod", "0700", "/var/lib/yamamori/update")
    return machine


@pytest.mark.container
def test_update_trial_and_card_work_in_their_sandboxes(card: Machine) -> None:
    """A bundle of the agent is written and tried, kept, and the card's files read."""
    card.run("systemctl", "start", "yamamori-update")
    wait_until(lambda: is_ended(card, "yamamori-update"))
    log = card.journal("yamamori-update")
    assert "ON TRIAL" in log, log
    assert card.show("reboot.target", "ActiveState") == "active", log
    assert card.inside("/dev/vda3").read_bytes()[:256] == bytes(range(256))
    assert not list(card.inside("/var/lib/yamamori/update").iterdir())
    report = card.inside("/boot/firmware/yamamori/update-report.txt")
    assert "ON TRIAL" in report.read_text()

    card.run("systemctl", "stop", "reboot.target")
    card.inside("/run/yamamori-slot").write_text("b trial vda\n")
    limits = card.inside("/etc/systemd/system/yamamori-slot.service.d")
    limits.mkdir(exist_ok=True)
    (limits / "quick.conf").write_text(
        "[Service]\nEnvironment=LOOK_S=0.01 TRIAL_S=10\n"
    )
    card.run("systemctl", "daemon-reload")
    card.run("systemctl", "start", "yamamori-slot")
    wait_until(lambda: is_ended(card, "yamamori-slot"))
    log = card.journal("yamamori-slot")
    assert "given up" in card.inside("/data/slot/history").read_text(), log
    assert card.show("reboot.target", "ActiveState") == "active", log

    card.inside("/boot/firmware/yamamori/network/a.network").write_text("[Match]\n")
    card.run("systemctl", "start", "yamamori-card")
    assert card.inside("/run/systemd/network/a.network").exists()


def is_ended(machine: Machine, unit: str) -> bool:
    return machine.show(unit, "ActiveState") in {"inactive", "failed"}

"""First boot: settings on the card are taken completely or refused with a report."""

import errno
import os
import shutil
import signal
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from edge_agent.cli import cli
from edge_agent.cli.first_boot import INSTALLED_MARK
from edge_agent.config import parse_node_settings, read_node_settings
from edge_agent.safe_mode import recover_settings
from gateway_daemon.ca.authority import CertificateRefusedError, Identity
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.settings import parse_toml
from spatial_mqtt.certificates import CertificateWithKey

KEY, CERTIFICATE = (
    f"-----BEGIN {kind}-----\nabc\n-----END {kind}-----\n".encode()
    for kind in ("PRIVATE KEY", "CERTIFICATE")
)


def toml(id_: str, target: Path) -> str:
    return f"""
[node]
id = "{id_}"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtts://m1.example:8883"]
[tls]
certificate = "{target}/node.crt"
key = "{target}/node.key"
[[sensor]]
kind = "wire"
name = "span"
pin = 27
"""


@dataclass(frozen=True)
class Machine:
    """A card's FAT partition, and the folder of the active settings."""

    fat: Path
    etc: Path

    def put(self, id_: str) -> None:
        (self.fat / "node.toml").write_text(toml(id_, self.etc))
        (self.fat / "node.key").write_bytes(KEY)
        (self.fat / "node.crt").write_bytes(CERTIFICATE)

    def start(self) -> Result:
        arguments = ["first-boot", "--from", str(self.fat), "--to", str(self.etc)]
        return CliRunner().invoke(cli, arguments)

    def is_killed_at(self, step: int) -> bool:
        """Start in a child, killed before its n-th change; return whether it was."""
        child = os.fork()
        if child == 0:
            kill_before(step, (str(self.fat), str(self.etc)))
            self.start()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    def start_with_card_read_only(self) -> None:
        """Start in a child that cannot write to the card, as after an error of it."""
        child = os.fork()
        if child == 0:

            def hook(event: str, arguments: tuple[object, ...]) -> None:
                is_ours = event == "open" and str(arguments[0]).startswith(
                    str(self.fat)
                )
                if is_ours and int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))

            sys.addaudithook(hook)
            os._exit(self.start().exit_code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

    @property
    def active(self) -> str:
        return read_node_settings(self.etc / "node.toml").settings.node.id

    @property
    def report(self) -> str:
        return (self.fat / "node-report.txt").read_bytes().decode("utf-8-sig")


def kill_before(step: int, folders: tuple[str, str]) -> None:
    """Send SIGKILL to this process before its n-th opening, renaming or removal."""
    remaining = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal remaining
        is_step = event in {"open", "os.rename", "os.remove"}
        if is_step and str(arguments[0]).startswith(folders):
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "fat", tmp_path / "etc")
    machine.fat.mkdir()
    machine.etc.mkdir()
    return machine


def test_card_is_accepted_with_certificates_and_its_key_is_wiped(
    machine: Machine,
) -> None:
    """The settings are active, the key is private, and the report is written."""
    machine.put("kochi-0001")
    result = machine.start()
    key = machine.etc / "node.key"

    assert result.exit_code == 0, result.output
    assert machine.active == "kochi-0001"
    assert key.read_bytes() == KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o640
    assert (machine.etc / "node.crt").read_bytes() == CERTIFICATE
    assert {p.name for p in machine.fat.iterdir()} == {
        "node.toml", "node.crt", "node-report.txt",
    }  # fmt: skip
    assert "RESULT: TAKEN\r\n" in machine.report
    assert "active now: kochi-0001\r\n" in machine.report


@pytest.mark.attack("a key is copied on its way to the node", "on the card")
def test_node_makes_its_own_key_and_the_office_signs_the_request(
    machine: Machine, tmp_path: Path
) -> None:
    """The key never leaves the node; the second start installs the certificate."""
    machine.put("kochi-0001")
    for name in ("node.key", "node.crt"):
        (machine.fat / name).unlink()
    assert machine.start().exit_code == 0
    key, request = machine.etc / "node.key", machine.fat / "kochi-0001.csr"
    made, asked = key.read_bytes(), request.read_bytes()
    machine.start()

    assert stat.S_IMODE(key.stat().st_mode) == 0o640
    assert (key.read_bytes(), request.read_bytes()) == (made, asked)
    assert "kochi-0001.csr is the request" in machine.report
    assert not [p for p in machine.fat.iterdir() if b"PRIVATE KEY" in p.read_bytes()]

    office = AuthorityFolder(tmp_path / "ca", time.time)
    office.create("Otoyo")
    identity = Identity("node", "kochi-0001", ("/3/1/1/2",))
    with pytest.raises(CertificateRefusedError, match="the request must be of n2"):
        office.issue_for_request(Identity("node", "n2", ("/3/1/1/2",)), asked, 3600)
    with pytest.raises(CertificateRefusedError, match="a signing request in PEM"):
        office.issue_for_request(identity, made, 3600)
    signed = office.issue_for_request(identity, asked, 3600)
    shutil.copy(signed, machine.fat / "node.crt")
    machine.start()

    assert not list((tmp_path / "ca/issued").glob("*.key"))
    assert not request.exists()
    held = CertificateWithKey.load((machine.etc / "node.crt").read_bytes(), made)
    assert held.certificate.public_key() == held.key.public_key()


@pytest.mark.parametrize("step", [2, 5, 8, 11])
def test_power_cut_while_the_key_is_made_leaves_one_key(
    machine: Machine, step: int
) -> None:
    """Whatever was written, the request is of the key that the node has."""
    machine.put("kochi-0001")
    for name in ("node.key", "node.crt"):
        (machine.fat / name).unlink()
    machine.is_killed_at(step)
    machine.start()
    request = x509.load_pem_x509_csr((machine.fat / "kochi-0001.csr").read_bytes())
    key = load_pem_private_key((machine.etc / "node.key").read_bytes(), None)

    assert request.public_key() == key.public_key()
    assert request.is_signature_valid


def test_settings_are_installed_from_a_card_that_cannot_be_written(
    machine: Machine,
) -> None:
    """Linux makes a damaged FAT partition read-only; the request comes later."""
    machine.put("kochi-0001")
    for name in ("node.key", "node.crt"):
        (machine.fat / name).unlink()
    machine.start_with_card_read_only()

    assert machine.active == "kochi-0001"
    assert machine.start().exit_code == 0
    assert (machine.fat / "kochi-0001.csr").exists()
    assert "kochi-0001.csr is the request" in machine.report


def test_public_keys_are_copied_and_stay_on_the_card(
    machine: Machine,
) -> None:
    """Public keys stay, so that the card can be used for the next node."""
    public = KEY.replace(b"PRIVATE", b"PUBLIC")
    machine.put("kochi-1")
    for name in ("office.pub", "rollout.pub"):
        (machine.fat / name).write_bytes(public)
    with (machine.fat / "node.toml").open("a") as file:
        file.write(f'[notices]\nkeys = ["{machine.etc}/office.pub"]\n')
        file.write(f'[update]\nkeys = ["{machine.etc}/rollout.pub"]\n')
    machine.start()

    assert "RESULT: TAKEN" in machine.report
    for name in ("office.pub", "rollout.pub"):
        assert (machine.etc / name).read_bytes() == public
        assert (machine.fat / name).exists()


def test_key_of_a_systemd_credential_is_stored_for_systemd(machine: Machine) -> None:
    """The path of a systemd credential names the hand-over, not the source file."""
    text = toml("kochi-0001", Path("/run/credentials/edge-agent.service"))
    machine.put("kochi-0001")
    (machine.fat / "node.toml").write_text(text)
    result = machine.start()

    assert result.exit_code == 0, result.output
    assert (machine.etc / "tls" / "node.key").read_bytes() == KEY
    assert stat.S_IMODE((machine.etc / "tls").stat().st_mode) == 0o700
    assert not (machine.fat / "node.key").exists()


def test_key_path_outside_the_settings_folder_is_refused(machine: Machine) -> None:
    """The key on the card would not be the one in use."""
    machine.put("kochi-0001")
    (machine.fat / "node.toml").write_text(toml("kochi-0001", Path("/root")))
    result = machine.start()

    assert result.exit_code == 78
    assert "tls.key must be in " in machine.report
    assert (machine.fat / "node.key").exists()


def test_second_start_changes_nothing(machine: Machine) -> None:
    """Settings edited on the machine and the report stay as they are."""
    machine.put("kochi-0001")
    machine.start()
    by_hand = machine.etc / "node.toml"
    by_hand.write_text(by_hand.read_text().replace("pin = 27", "pin = 22"))
    before = {p: p.stat().st_mtime_ns for p in machine.fat.iterdir()}
    result = machine.start()

    assert result.exit_code == 0
    assert "pin = 22" in by_hand.read_text()
    assert {p: p.stat().st_mtime_ns for p in machine.fat.iterdir()} == before


def test_damaged_mark_of_the_card_does_not_stop_the_start(machine: Machine) -> None:
    """It ended each start with a traceback, so that new settings were never read."""
    machine.put("kochi-0001")
    machine.start()
    (machine.etc / INSTALLED_MARK).write_bytes(b"\xff\xfe" * 16)
    assert machine.start().exit_code == 0


def test_report_follows_a_certificate_that_comes_later(machine: Machine) -> None:
    """The office signs the request after the first start; node.toml is the same."""
    machine.put("kochi-0001")
    for name in ("node.key", "node.crt"):
        (machine.fat / name).unlink()
    machine.start()
    assert "kochi-0001.csr is the request" in machine.report
    (machine.fat / "node.crt").write_bytes(CERTIFICATE)
    machine.start()
    assert "note: " not in machine.report


def test_report_follows_the_mistakes_of_certificate_and_key(machine: Machine) -> None:
    """The first one is corrected, and node.toml is the same."""
    machine.put("kochi-0001")
    (machine.fat / "node.crt").write_bytes(b"no certificate")
    machine.start()
    machine.put("kochi-0001")
    (machine.fat / "node.key").write_bytes(b"no key")
    machine.start()
    assert "node.key must be a PEM file" in machine.report
    assert "node.crt must be a PEM file" not in machine.report


@pytest.mark.parametrize("certificate", [CERTIFICATE, b"no certificate", None])
def test_report_that_is_still_right_is_not_written_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, certificate: bytes | None
) -> None:
    """Its time is that of the start that wrote it."""
    machine.put("kochi-0001")
    (machine.fat / "node.crt").unlink()
    if certificate is not None:
        (machine.fat / "node.crt").write_bytes(certificate)
    machine.start()
    before = machine.report
    monkeypatch.setattr("edge_agent.cli.first_boot._now", lambda: "a later time")
    machine.start()

    assert machine.report == before


def test_wrong_file_keeps_active_settings_and_is_reported(machine: Machine) -> None:
    """The report lists each mistake; the corrected file is accepted."""
    machine.put("kochi-0001")
    machine.start()
    wrong = toml("kochi-0002", machine.etc).replace("33.5588", "95")
    (machine.fat / "node.toml").write_text(wrong.replace("pin = 27", "pin = 99"))
    refused = machine.start()
    report = machine.report
    (machine.fat / "node.toml").write_text(toml("kochi-0002", machine.etc))
    machine.start()

    assert refused.exit_code == 78
    assert "RESULT: REFUSED\r\n" in report
    assert "active now: kochi-0001\r\n" in report
    assert " 1. node.latitude must be between -90 and 90 degrees, got 95.0" in report
    assert " 2. sensor.span.pin must be between 0 and 27, got 99" in report
    assert machine.active == "kochi-0002"
    assert "RESULT: TAKEN" in machine.report


@pytest.mark.parametrize(
    ("name", "encoding", "line_end"),
    [
        ("node.toml", "utf-8-sig", "\r\n"),
        ("node.toml.txt", "utf-16", "\r\n"),
        ("node.toml", "utf-8", "\n"),
    ],
)
def test_file_from_a_windows_editor_is_read(
    machine: Machine, name: str, encoding: str, line_end: str
) -> None:
    """Byte order marks, line ends and a hidden file extension are accepted."""
    text = toml("kochi-0001", machine.etc).replace("\n", line_end)
    (machine.fat / name).write_bytes(text.encode(encoding))
    result = machine.start()

    assert result.exit_code == 0, result.output
    assert machine.active == "kochi-0001"
    assert b"\r" not in (machine.etc / "node.toml").read_bytes()


@pytest.mark.parametrize("old", [None, "kochi-0000"])
def test_power_cut_at_any_step_gives_the_same_result(
    machine: Machine, old: str | None
) -> None:
    """Active settings are always valid, and the next start completes the change."""
    step, kills = 1, 0
    while True:
        for folder in (machine.fat, machine.etc):
            for path in folder.iterdir():
                path.unlink()
        if old is not None:
            (machine.etc / "node.toml").write_text(toml(old, machine.etc))
        machine.put("kochi-0001")
        if not machine.is_killed_at(step):
            break
        kills += 1
        active = machine.etc / "node.toml"
        if old is not None or active.exists():
            assert machine.active in {old, "kochi-0001"}
        machine.start()
        assert machine.active == "kochi-0001"
        assert (machine.etc / "node.key").read_bytes() == KEY
        assert not list(machine.fat.glob("*.key*"))
        assert "RESULT: TAKEN" in machine.report
        step += 1

    assert kills > 10


def test_second_power_cut_during_recovery_is_harmless(machine: Machine) -> None:
    """A cut during the wiping of the key, then one during the next start."""
    step = 1
    machine.put("kochi-0001")
    while machine.is_killed_at(step):
        step += 1

    assert machine.active == "kochi-0001"
    assert (machine.etc / "node.key").read_bytes() == KEY
    assert not list(machine.fat.glob("*.key*"))


def test_invalid_key_file_is_refused(machine: Machine) -> None:
    """A damaged copy must not replace a working key."""
    machine.put("kochi-0001")
    (machine.fat / "node.key").write_bytes(bytes(100))
    result = machine.start()

    assert result.exit_code == 78
    assert "node.key must be a PEM file" in machine.report
    assert not (machine.etc / "node.toml").exists()


def test_card_without_settings_is_accepted(machine: Machine) -> None:
    """A node with settings from elsewhere starts as before."""
    (machine.etc / "node.toml").write_text(toml("kochi-0001", machine.etc))
    result = machine.start()
    nowhere = CliRunner().invoke(
        cli, ["first-boot", "--from", "/nowhere/at/all", "--to", str(machine.etc)]
    )

    assert result.exit_code == nowhere.exit_code == 0
    assert "active now: kochi-0001" in machine.report
    assert parse_node_settings(
        parse_toml(toml("kochi-0001", machine.etc))
    ) == read_node_settings(machine.etc / "node.toml")


def test_wrong_file_without_active_settings_leads_to_safe_mode(
    machine: Machine,
) -> None:
    """The node starts with the valid parts; a corrected file then replaces them."""
    machine.put("kochi-0001")
    text = toml("kochi-0001", machine.etc)
    broken_sensor = '[[sensor]]\nkind = "wire"\nname = "other"\npin = 99\n'
    (machine.fat / "node.toml").write_text(text + broken_sensor, newline="\r\n")
    refused = machine.start()
    safe = recover_settings((machine.etc / "node.toml").read_bytes())
    first_report = machine.report
    machine.put("kochi-0001")
    accepted = machine.start()

    assert (refused.exit_code, accepted.exit_code) == (78, 0)
    assert safe is not None
    assert [s.name for s in safe.node.sensors] == ["span"]
    assert "active now: safe mode: only what is right in this file\r\n" in first_report
    assert machine.active == "kochi-0001"


def test_wrong_file_never_replaces_valid_settings(machine: Machine) -> None:
    """Safe mode is only for a node without valid settings."""
    machine.put("kochi-0001")
    machine.start()
    valid = (machine.etc / "node.toml").read_bytes()
    wrong = toml("kochi-0001", machine.etc).replace("pin = 27", "pin = 99")
    (machine.fat / "node.toml").write_text(wrong)
    machine.start()

    assert (machine.etc / "node.toml").read_bytes() == valid
    assert "RESULT: REFUSED" in machine.report

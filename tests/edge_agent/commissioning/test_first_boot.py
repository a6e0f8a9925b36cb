"""Settings from the card: taken whole, reported, and never at the price of the old."""

import os
import signal
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge_agent.cli import cli
from edge_agent.config import parse_node_settings, read_node_settings
from edge_agent.safe_mode import recover_settings
from service_runtime.settings import parse_toml

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

    def killed_at(self, step: int) -> bool:
        """Start in a child that is killed before its n-th change; whether it was."""
        child = os.fork()
        if child == 0:
            kill_before(step, (str(self.fat), str(self.etc)))
            self.start()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    @property
    def active(self) -> str:
        return read_node_settings(self.etc / "node.toml").settings.node.id

    @property
    def report(self) -> str:
        return (self.fat / "node-report.txt").read_bytes().decode("utf-8-sig")


def kill_before(step: int, folders: tuple[str, str]) -> None:
    """Die by SIGKILL before the n-th opening, renaming or removing of a file."""
    left = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        is_step = event in {"open", "os.rename", "os.remove"}
        if is_step and str(arguments[0]).startswith(folders):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "fat", tmp_path / "etc")
    made.fat.mkdir()
    made.etc.mkdir()
    return made


def test_card_is_taken_with_its_certificates_and_the_key_is_wiped(
    machine: Machine,
) -> None:
    """The settings work, the key is the machine's alone, and the report says so."""
    machine.put("kochi-0001")
    done = machine.start()
    key = machine.etc / "node.key"

    assert done.exit_code == 0, done.output
    assert machine.active == "kochi-0001"
    assert key.read_bytes() == KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o640
    assert (machine.etc / "node.crt").read_bytes() == CERTIFICATE
    assert {p.name for p in machine.fat.iterdir()} == {
        "node.toml", "node.crt", "node-report.txt",
    }  # fmt: skip
    assert "RESULT: TAKEN\r\n" in machine.report
    assert "active now: kochi-0001\r\n" in machine.report


def test_keys_of_who_may_speak_are_taken_and_stay_on_the_card(
    machine: Machine,
) -> None:
    """They are public; the office put them there for the next node, perhaps."""
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


def test_key_for_systemd_goes_where_systemd_takes_it_from(machine: Machine) -> None:
    """A credential's path names the hand-over, not the file."""
    text = toml("kochi-0001", Path("/run/credentials/edge-agent.service"))
    machine.put("kochi-0001")
    (machine.fat / "node.toml").write_text(text)
    done = machine.start()

    assert done.exit_code == 0, done.output
    assert (machine.etc / "tls" / "node.key").read_bytes() == KEY
    assert stat.S_IMODE((machine.etc / "tls").stat().st_mode) == 0o700
    assert not (machine.fat / "node.key").exists()


def test_key_that_belongs_elsewhere_is_refused(machine: Machine) -> None:
    """The file on the card would not be the one that is used."""
    machine.put("kochi-0001")
    (machine.fat / "node.toml").write_text(toml("kochi-0001", Path("/root")))
    done = machine.start()

    assert done.exit_code == 78
    assert "tls.key must be in " in machine.report
    assert (machine.fat / "node.key").exists()


def test_second_start_changes_nothing(machine: Machine) -> None:
    """Not the settings that somebody edited on the machine, and not the report."""
    machine.put("kochi-0001")
    machine.start()
    by_hand = machine.etc / "node.toml"
    by_hand.write_text(by_hand.read_text().replace("pin = 27", "pin = 22"))
    before = {p: p.stat().st_mtime_ns for p in machine.fat.iterdir()}
    done = machine.start()

    assert done.exit_code == 0
    assert "pin = 22" in by_hand.read_text()
    assert {p: p.stat().st_mtime_ns for p in machine.fat.iterdir()} == before


def test_wrong_file_leaves_what_works_and_says_why(machine: Machine) -> None:
    """Each mistake stands in the report; the corrected file is taken."""
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
    ("name", "encoding", "ends"),
    [
        ("node.toml", "utf-8-sig", "\r\n"),
        ("node.toml.txt", "utf-16", "\r\n"),
        ("node.toml", "utf-8", "\n"),
    ],
)
def test_file_from_a_windows_editor_is_read(
    machine: Machine, name: str, encoding: str, ends: str
) -> None:
    """Marks, line ends and a hidden end of the name are no mistakes."""
    text = toml("kochi-0001", machine.etc).replace("\n", ends)
    (machine.fat / name).write_bytes(text.encode(encoding))
    done = machine.start()

    assert done.exit_code == 0, done.output
    assert machine.active == "kochi-0001"
    assert b"\r" not in (machine.etc / "node.toml").read_bytes()


@pytest.mark.parametrize("old", [None, "kochi-0000"])
def test_power_cut_at_any_step_ends_in_the_same_place(
    machine: Machine, old: str | None
) -> None:
    """What is active always works, and the next start finishes."""
    step, kills = 1, 0
    while True:
        for folder in (machine.fat, machine.etc):
            for path in folder.iterdir():
                path.unlink()
        if old is not None:
            (machine.etc / "node.toml").write_text(toml(old, machine.etc))
        machine.put("kochi-0001")
        if not machine.killed_at(step):
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


def test_second_power_cut_while_finishing_is_harmless(machine: Machine) -> None:
    """A cut during the wiping, then one during the next start."""
    step = 1
    machine.put("kochi-0001")
    while machine.killed_at(step):
        step += 1

    assert machine.active == "kochi-0001"
    assert (machine.etc / "node.key").read_bytes() == KEY
    assert not list(machine.fat.glob("*.key*"))


def test_key_that_is_no_key_is_refused(machine: Machine) -> None:
    """A copy that went wrong must not replace a key that works."""
    machine.put("kochi-0001")
    (machine.fat / "node.key").write_bytes(bytes(100))
    done = machine.start()

    assert done.exit_code == 78
    assert "node.key must be a PEM file" in machine.report
    assert not (machine.etc / "node.toml").exists()


def test_card_without_a_file_is_fine(machine: Machine) -> None:
    """A node that was set up otherwise starts as ever."""
    (machine.etc / "node.toml").write_text(toml("kochi-0001", machine.etc))
    done = machine.start()
    nowhere = CliRunner().invoke(
        cli, ["first-boot", "--from", "/nowhere/at/all", "--to", str(machine.etc)]
    )

    assert done.exit_code == nowhere.exit_code == 0
    assert "active now: kochi-0001" in machine.report
    assert parse_node_settings(
        parse_toml(toml("kochi-0001", machine.etc))
    ) == read_node_settings(machine.etc / "node.toml")


def test_wrong_file_on_a_fresh_card_leads_to_safe_mode(machine: Machine) -> None:
    """The node starts on what is right; a corrected file then takes its place."""
    machine.put("kochi-0001")
    text = toml("kochi-0001", machine.etc)
    more = '[[sensor]]\nkind = "wire"\nname = "other"\npin = 99\n'
    (machine.fat / "node.toml").write_text(text + more, newline="\r\n")
    refused = machine.start()
    safe = recover_settings((machine.etc / "node.toml").read_bytes())
    first_report = machine.report
    machine.put("kochi-0001")
    taken = machine.start()

    assert (refused.exit_code, taken.exit_code) == (78, 0)
    assert safe is not None
    assert [s.name for s in safe.node.sensors] == ["span"]
    assert "active now: safe mode: only what is right in this file\r\n" in first_report
    assert machine.active == "kochi-0001"


def test_wrong_file_never_takes_the_place_of_one_that_works(machine: Machine) -> None:
    """Safe mode is for a node that has nothing else."""
    machine.put("kochi-0001")
    machine.start()
    worked = (machine.etc / "node.toml").read_bytes()
    wrong = toml("kochi-0001", machine.etc).replace("pin = 27", "pin = 99")
    (machine.fat / "node.toml").write_text(wrong)
    machine.start()

    assert (machine.etc / "node.toml").read_bytes() == worked
    assert "RESULT: REFUSED" in machine.report

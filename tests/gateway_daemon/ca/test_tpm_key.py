"""A node's key in a TPM 2.0, from the first boot to its renewal.

The TPM is swtpm, whose commands are the real ones, behind tpm2-abrmd, which gives it to
several programs at a time as Linux does with /dev/tpmrm0.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from trust_bench import DUE_AGE_S, HOUR_S, IssuingAuthority, TrustedBroker

from gateway_daemon.ca.authority import Identity
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.tls import TPM_KEY_MARK

CELL = "/3/1/1/2"
NO_TPM = {"TPM2OPENSSL_TCTI": "device:/dev/null-tpm"}
PROGRAMS = ("swtpm", "tpm2-abrmd", "dbus-daemon")
MODULES = list(Path("/usr/lib").glob("*/ossl-modules/tpm2.so"))

pytestmark = [
    pytest.mark.long,
    pytest.mark.broker,
    pytest.mark.skipif(
        not MODULES or not all(map(shutil.which, PROGRAMS)),
        reason="needs tpm2-openssl, swtpm, tpm2-abrmd and dbus-daemon",
    ),
]


class Tpm:
    """A TPM of its own; `environment` gives it to a program."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        bus = f"unix:path={folder}/bus"
        socket = folder / "tpm"
        self.environment = os.environ | {
            "DBUS_SESSION_BUS_ADDRESS": bus,
            "TPM2OPENSSL_TCTI": "tabrmd:bus_type=session",
        }
        self._start("dbus-daemon", "--session", "--nofork", f"--address={bus}")
        self._start(
            "swtpm", "socket", "--tpm2", "--tpmstate", f"dir={folder}",
            "--server", f"type=unixio,path={socket}",
            "--ctrl", f"type=unixio,path={socket}.ctrl",
            "--flags", "not-need-init,startup-clear",
        )  # fmt: skip
        sockets = (folder / "bus", socket, folder / "tpm.ctrl")
        wait_until(lambda: all(each.exists() for each in sockets))
        tcti = f"swtpm:path={socket}"
        self._broker = "tpm2-abrmd", "--session", "--allow-root", "--tcti", tcti
        self._start(*self._broker)
        wait_until(self._answers)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()

    def _start(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)
            )

    def _answers(self) -> bool:
        if self._processes[-1].poll() is not None:  # the TPM did not answer yet
            self._processes.pop()
            self._start(*self._broker)
        command = ["openssl", "list", "-providers", "-provider", "tpm2"]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, check=False
        )
        return done.returncode == 0


class Node:
    """The machine of a node: its card and its settings."""

    def __init__(self, folder: Path, tpm: Tpm) -> None:
        self.tpm = tpm
        self.card, self.etc, self.data = (folder / n for n in ("card", "etc", "data"))
        for each in (self.card, self.etc, self.data):
            each.mkdir(parents=True)
        self.key, self.request = self.etc / "n1.key", self.card / "n1.csr"
        self.settings, self.renewed = self.etc / "node.toml", self.data / "renewed.pem"

    def put_card(self, ca: Path, broker: TrustedBroker) -> None:
        shutil.copy(ca, self.card)
        (self.card / "node.toml").write_text(
            f'[node]\nid = "n1"\nlatitude = 33.5\nlongitude = 133.5\n'
            f'[queue]\npath = "{self.data}/queue.db"\n'
            f'[uplink]\nmanagers = ["mqtts://{broker.nodes}"]\n'
            f'[tls]\nca = "{self.etc}/ca.pem"\ncertificate = "{self.etc}/n1.pem"\n'
            f'key = "{self.key}"\ntpm = true\nrenewed = "{self.renewed}"\n'
            f'signer = "mqtts://{broker.nodes}"\n'
            '[[sensor]]\nkind = "wire"\nname = "span"\npin = 27\n'
        )

    def first_boot(self, **environment: str) -> str:
        """Start; return the report on the card."""
        folders = "--from", str(self.card), "--to", str(self.etc)
        self.run("edge_agent", "first-boot", *folders, **environment)
        return (self.card / "node-report.txt").read_text("utf-8-sig")

    def check(self) -> str:
        """Return the report of the check, without the lines of its box."""
        settings = str(self.settings)
        report = self.run("edge_agent", "check", "--config", settings, "--no-sensors")
        return " ".join(report.replace("|", " ").split())

    def renew(self) -> str:
        return self.run("spatial_mqtt", "renew", "--config", str(self.settings))

    def run(self, *words: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            env=self.tpm.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture
def tpm(tmp_path: Path) -> Iterator[Tpm]:
    """A TPM without keys."""
    made = Tpm(tmp_path / "tpm")
    yield made
    made.stop()


@pytest.fixture
def node(tpm: Tpm, tmp_path: Path, signer: TrustedBroker) -> Node:
    """A node whose card has been put in, with the broker of its Manager."""
    node = Node(tmp_path / "node", tpm)
    node.put_card(signer.authority.folder.path / "ca.pem", signer)
    return node


def sign(authority: IssuingAuthority, node: Node, age_s: float) -> None:
    """Sign the request as the office does, at a time in the past."""
    earlier = AuthorityFolder(authority.folder.path, lambda: time.time() - age_s)
    identity = Identity("node", "n1", (CELL,))
    made = earlier.issue_for_request(identity, node.request.read_bytes(), HOUR_S)
    shutil.copy(made, node.card / "n1.pem")


def connections(broker: TrustedBroker) -> int:
    """How often the node was accepted by the broker with its certificate."""
    return broker.log.read_text().count("u'n1'")


def test_key_in_a_tpm_from_first_boot_to_renewal(
    node: Node, signer: TrustedBroker, authority: IssuingAuthority
) -> None:
    """The node makes its key, connects and renews; no file has a usable key."""
    report = node.first_boot()
    assert "n1.csr is the request" in report, report
    assert node.key.read_bytes().startswith(TPM_KEY_MARK)
    sign(authority, node, DUE_AGE_S)
    node.first_boot()
    assert not node.request.exists()
    assert "cannot be used" not in node.check()

    before = node.key.read_bytes()
    assert node.renew().startswith("renewed: ")
    assert connections(signer) == 1
    assert node.key.read_bytes() == before
    renewed = node.renewed.read_bytes()
    assert renewed.count(TPM_KEY_MARK) == 1
    assert b"BEGIN PRIVATE KEY" not in renewed
    assert TPM_KEY_MARK + before.partition(TPM_KEY_MARK)[2] not in renewed

    assert node.renew().startswith("not due")
    node.run("edge_agent", "check", "--config", str(node.settings), "--no-sensors",
             "--link")  # fmt: skip
    assert connections(signer) > 1


def test_missing_tpm_is_named_and_tried_again(node: Node) -> None:
    """The settings are active without it: the node measures."""
    report = node.first_boot(**NO_TPM)
    assert "RESULT: TAKEN" in report
    assert "the TPM 2.0 cannot be used" in report
    assert "/dev/tpmrm0" in report
    assert node.settings.exists()
    assert not node.key.exists()

    node.first_boot()
    assert node.key.read_bytes().startswith(TPM_KEY_MARK)
    assert node.request.exists()


def test_key_is_of_no_use_with_another_tpm(
    node: Node, authority: IssuingAuthority, tmp_path: Path
) -> None:
    """A copied card connects nowhere, and the error has the remedy."""
    node.first_boot()
    sign(authority, node, DUE_AGE_S)
    node.first_boot()
    assert "cannot be used" not in node.check()

    other = Tpm(tmp_path / "other")
    try:
        node.tpm = other
        assert "if a TPM made it, that of this machine" in node.check()
        assert "the TPM 2.0 cannot be used" in node.renew()
    finally:
        other.stop()


def test_key_on_the_card_is_refused(node: Node) -> None:
    """It was made elsewhere, and has been on a card."""
    (node.card / "n1.key").write_text("-----BEGIN PRIVATE KEY-----\n")
    report = node.first_boot()
    assert "RESULT: REFUSED" in report
    assert "n1.key must not be on the card, with tls.tpm" in report

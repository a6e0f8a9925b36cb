"""Certificate renewal by a real signer on a real broker."""

import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.request import urlopen

import cbor2
import pytest
from conftest import wait_until
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from trust_bench import (
    DUE_AGE_S,
    HOUR_S,
    IssuingAuthority,
    Join,
    TrustedBroker,
    run_ca,
)

from gateway_daemon.ca.acl import ACL_PATTERNS
from gateway_daemon.ca.signer import RenewalSigner
from service_runtime.errors import FieldError, TlsFileError
from service_runtime.tls import TlsFiles, read_certificate_end, select_certificate
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.certificates import (
    CertificateWithKey,
    RenewalAnswer,
    RenewalRequest,
    read_tls_settings,
    renew_if_due,
)
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError, RenewalError
from spatial_mqtt.topics import renewal_topic
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

pytestmark = pytest.mark.broker
CELL = "/3/1/1/2"


@pytest.fixture
def node(signer: TrustedBroker, tmp_path: Path) -> TlsFiles:
    """TLS settings of node n1."""
    return signer.renewing("n1", tmp_path / "renewed.pem")


def days_left(path: str | None) -> float:
    return (read_certificate_end(path or "").timestamp() - time.time()) / 86400


def test_certificate_is_renewed_without_a_visit(
    node: TlsFiles, signer: TrustedBroker, join: Join
) -> None:
    """The next connection uses the new one; the old one stays valid."""
    result = renew_if_due(node, time.time())

    assert result.startswith("renewed: ")
    assert select_certificate(node) == (node.renewed, None)
    assert 0.4 < days_left(node.renewed) < 0.51
    assert stat.S_IMODE(Path(node.renewed or "").stat().st_mode) == 0o600
    for files in (node, replace(node, renewed=None)):
        join(signer.nodes, files, "n1").stop()


@pytest.mark.parametrize("damage", ["empty", "certificate", "key", "flipped", "zeros"])
def test_damaged_card_does_not_end_the_link(
    node: TlsFiles,
    signer: TrustedBroker,
    join: Join,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The copy is used, then the issued certificate; each connection was refused."""
    renew_if_due(node, time.time())
    renewed = Path(node.renewed or "")
    copy = Path(f"{renewed}.copy")
    assert copy.read_bytes() == renewed.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600

    damage_file(renewed, damage)
    join(signer.nodes, node, "n1").stop()
    assert f"{copy} is used instead" in caplog.text
    assert renew_if_due(node, time.time()).startswith("not due")
    damage_file(copy, damage)
    join(signer.nodes, node, "n1").stop()
    assert f"{node.certificate} is used instead" in caplog.text


def damage_file(path: Path, damage: str) -> None:
    """What worn cards and power cuts leave of a file."""
    content = path.read_bytes()
    key_at = content.index(b"-----BEGIN PRIVATE KEY")
    left = {
        "empty": b"",
        "certificate": content[: content.index(b"-----END") - 100],
        "key": content[: key_at + 60],
        "flipped": content[: key_at + 60] + b"\0\xff" * 8 + content[key_at + 76 :],
        "zeros": bytes(len(content)),
    }
    path.write_bytes(left[damage])


def test_copy_of_a_renewed_certificate_that_was_deleted_does_not_count(
    node: TlsFiles,
) -> None:
    """Whoever sets a machine up again deletes the renewed file."""
    renew_if_due(node, time.time())
    Path(node.renewed or "").unlink()

    assert select_certificate(node) == (node.certificate, node.key)


def test_file_of_another_program_is_not_overwritten(
    node: TlsFiles, authority: IssuingAuthority
) -> None:
    """It has that program's only key; once its certificate has ended, it may go."""
    other = authority.issue("node", "n7", CELL)
    renewed = Path(node.renewed or "")
    shared = Path(other.certificate or "").read_bytes()
    renewed.write_bytes(shared)

    with pytest.raises(TlsFileError, match="certificate of 'n7', and ours is of 'n1'"):
        renew_if_due(node, time.time())
    assert renewed.read_bytes() == shared
    other = authority.issue("node", "n8", CELL, life_s=1)
    renewed.write_bytes(Path(other.certificate or "").read_bytes())
    wait_until(lambda: days_left(node.renewed) < 0)
    assert renew_if_due(node, time.time()).startswith("renewed: ")


def test_certificate_is_not_renewed_before_two_thirds_of_its_life(
    node: TlsFiles, authority: IssuingAuthority
) -> None:
    """So a timer may run the command every day; the signer refuses, too."""
    authority.issue("node", "n1", CELL, life_s=2 * HOUR_S)
    before = authority.folder.load_register()

    assert renew_if_due(node, time.time()).startswith("not due")
    with pytest.raises(RenewalError, match="not due before"):
        renew_if_due(node, time.time(), is_forced=True)
    assert authority.folder.load_register() == before


def test_lost_answer_is_repeated(
    node: TlsFiles, authority: IssuingAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link or the power may fail between the request and the stored answer."""
    with monkeypatch.context() as patched:
        patched.setattr(RenewalAnswer, "match_key", raise_power_cut)
        with pytest.raises(OSError, match="power cut"):
            renew_if_due(node, time.time())
    requested = Path(f"{node.renewed}.requested.key")
    assert stat.S_IMODE(requested.stat().st_mode) == 0o600
    count = len(authority.folder.load_register().issued)

    assert renew_if_due(node, time.time()).startswith("renewed: ")
    assert len(authority.folder.load_register().issued) == count
    assert not requested.exists()


def raise_power_cut(*_: object) -> CertificateWithKey:
    raise OSError("power cut")


def test_newer_issued_certificate_has_precedence_over_an_older_renewed_one(
    node: TlsFiles, authority: IssuingAuthority
) -> None:
    """The certificate with the later end is used."""
    renew_if_due(node, time.time())
    authority.issue("node", "n1", CELL, life_s=40 * 86400)

    assert select_certificate(node) == (node.certificate, node.key)


@pytest.mark.long
def test_short_lived_certificate_is_renewed_and_then_expires(
    signer: TrustedBroker, authority: IssuingAuthority, tmp_path: Path, join: Join
) -> None:
    """A certificate of 25 s is renewed while valid and refused afterwards."""
    authority.issue("node", "n3", CELL, life_s=25.0)
    files = signer.renewing("n3", tmp_path / "n3.pem")
    ends_s = read_certificate_end(files.certificate or "").timestamp()
    renew_if_due(files, time.time(), is_forced=True)
    wait_until(lambda: time.time() > ends_s + 1.5)
    late = join(signer.nodes, replace(files, renewed=None), "n3", wait=False)
    assert late.is_refused("our certificate has ended")

    join(signer.nodes, files, "n3")


def test_revoked_certificate_is_not_renewed(
    node: TlsFiles, authority: IssuingAuthority
) -> None:
    """Also when the broker has not loaded the revocation yet."""
    authority.folder.revoke("n1")
    with pytest.raises(RenewalError, match="was revoked"):
        renew_if_due(node, time.time(), is_forced=True)


@pytest.mark.parametrize("missing", ["register.json", "ca.key"])
def test_signer_goes_on_when_its_files_cannot_be_used(
    node: TlsFiles,
    authority: IssuingAuthority,
    signer: TrustedBroker,
    join: Join,
    missing: str,
) -> None:
    """A full disk, a token without power; it ended, with the requests that waited."""
    path, away = authority.folder.path / missing, authority.folder.path / "away"
    log = signer.log.with_name("signer.log")
    path.rename(away)
    person = join(signer.nodes, authority.files("n1"), "n1", "/api/certificate/#")
    tls = authority.files("n1")
    held = CertificateWithKey.load(
        Path(tls.certificate or "").read_bytes(), Path(tls.key or "").read_bytes()
    )
    key = ec.generate_private_key(ec.SECP256R1())
    person.say(renewal_topic("n1"), RenewalRequest.create(held, key).encode())
    wait_until(lambda: f"({missing})" in log.read_text())
    away.rename(path)
    person.stop()

    assert renew_if_due(node, time.time()).startswith("renewed: ")
    assert "Traceback" not in log.read_text()


def test_renewal_of_another_holders_certificate_is_refused(
    signer: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """On its topic by the broker, on the requester's own topic by the signer."""
    thief = join(signer.nodes, authority.files("n2"), "n2", "/api/certificate/#")
    tls = authority.files("n2")
    held = CertificateWithKey.load(
        Path(tls.certificate or "").read_bytes(), Path(tls.key or "").read_bytes()
    )
    other = CertificateWithKey.load(
        Path(authority.files("n1").certificate or "").read_bytes(),
        Path(tls.key or "").read_bytes(),
    )
    key = ec.generate_private_key(ec.SECP256R1())
    own, forged = (
        RenewalRequest.create(held, key).encode(),
        RenewalRequest.create(other, key).encode(),
    )

    assert thief.say(renewal_topic("n1"), own) == "Not authorized"
    assert thief.say(renewal_topic("n2"), forged) is None
    log = signer.log.with_name("signer.log")
    # A later request takes the place of one that waits.
    wait_until(lambda: "not renewed on" in log.read_text())
    for payload in (b"", b"\xa0", own[:-3] + b"123"):
        assert thief.say(renewal_topic("n2"), payload) is None
    assert thief.say(renewal_topic("n2"), own) is None
    wait_until(lambda: thief.got)
    assert [m.topic for m in thief.got] == ["/api/certificate/issued/n2"]
    assert RenewalAnswer.decode(thief.got[0].payload).match_key(key)


class RunningSigner:
    """A signer without a broker."""

    def __init__(self, authority: IssuingAuthority) -> None:
        self.answers: list[Publication] = []
        self.signer = RenewalSigner(
            authority.folder,
            "signer",
            self._connect,
            lifetime_s=HOUR_S,
            watchdog=LoopWatchdog(time.monotonic),
        )
        self.thread = threading.Thread(target=self.signer.run)
        self.thread.start()

    def ask(self, payload: bytes, name: str = "n1", *, retain: bool = False) -> None:
        """Deliver a request."""
        topic = renewal_topic(name)
        self.signer.on_message(
            IncomingMessage(topic, payload, 1, retain, None, None, None, (0, 1), None)
        )

    def results(self) -> dict[str, float]:
        """Requests by result."""
        samples = self.signer.collect_metrics()[0].samples
        return {s.labels["result"]: s.value for s in samples if s.value}

    def _connect(self, _session: Session, _handler: ConnectionHandler) -> Connection:
        return cast("Connection", self)

    def start(self) -> None:
        """As a connection."""

    def publish(self, publication: Publication) -> None:
        """As a connection."""
        self.answers.append(publication)

    def stop(self) -> None:
        """As a connection."""


@pytest.fixture
def running_signer(authority: IssuingAuthority) -> Iterator[RunningSigner]:
    authority.issue("node", "n1", CELL, age_s=DUE_AGE_S)
    running = RunningSigner(authority)
    yield running
    running.signer.stop()
    running.thread.join()


def request_of(files: TlsFiles) -> dict[str, bytes]:
    """The fields of a request to renew a certificate with its own key."""
    held = CertificateWithKey.load(
        Path(files.certificate or "").read_bytes(), Path(files.key or "").read_bytes()
    )
    fields: dict[str, bytes] = cbor2.loads(
        RenewalRequest.create(held, held.key).encode()
    )
    return fields


@pytest.mark.attack(
    "a stolen certificate stops the signer by a retained request", "for ever"
)
def test_signer_refuses_what_cryptography_cannot_read(
    running_signer: RunningSigner, authority: IssuingAuthority
) -> None:
    """Names, keys and algorithms are read when they are used."""
    files = authority.files("n1")
    fields = request_of(files)
    key = CertificateWithKey.load(
        Path(files.certificate or "").read_bytes(), Path(files.key or "").read_bytes()
    ).key.public_key()
    point = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    curve = bytes.fromhex("06082a8648ce3d0301")
    for count, (name, genuine, forged) in enumerate(
        (
            ("old", b"\x0c\x02n1", b"\x0c\x02\xff\xfe"),
            ("old", b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"),
            ("asked", point, b"\x04" + bytes(64)),
            ("asked", curve + b"\x07", curve + b"\x77"),
        ),
        1,
    ):
        assert genuine in fields[name]
        wrong = fields[name].replace(genuine, forged)
        running_signer.ask(cbor2.dumps({**fields, name: wrong}))
        wait_until(lambda count=count: running_signer.results() == {"refused": count})
    assert running_signer.answers == []

    running_signer.ask(cbor2.dumps(fields))
    wait_until(lambda: running_signer.answers)


def test_signer_ignores_retained_requests(
    running_signer: RunningSigner, authority: IssuingAuthority
) -> None:
    """Whoever sent it sends it again by a timer."""
    payload = cbor2.dumps(request_of(authority.files("n1")))
    running_signer.ask(b"", "n2", retain=True)
    running_signer.ask(payload)
    wait_until(lambda: running_signer.answers)

    assert running_signer.results() == {"renewed": 1}


def test_logs_of_signer_and_broker_hold_no_key(
    node: TlsFiles, signer: TrustedBroker, authority: IssuingAuthority
) -> None:
    """After renewal, logging and refusal."""
    renew_if_due(node, time.time(), is_forced=True)
    authority.folder.revoke("n1")
    with pytest.raises(RenewalError, match="was revoked"):
        renew_if_due(node, time.time(), is_forced=True)
    keys = [*authority.folder.path.rglob("*.key"), Path(node.renewed or "")]
    secrets = [
        line
        for path in keys
        for line in path.read_text().rpartition("BEGIN PRIVATE")[2].splitlines()[1:3]
    ]
    logs = signer.log.with_name("signer.log").read_text() + signer.log.read_text()

    assert len(secrets) >= 2 * len(keys) - 2
    assert [s for s in secrets if s in logs] == []
    assert "PRIVATE" not in logs


def test_command_renews_from_the_settings_of_any_program(
    node: TlsFiles, tmp_path: Path
) -> None:
    """One timer serves nodes, gateways, Managers and the backend."""
    config = tmp_path / "node.toml"
    rows = "".join(f'{k} = "{v}"\n' for k, v in vars(node).items() if v)
    config.write_text(f'[node]\nid = "n1"\n[tls]\n{rows}')
    done = subprocess.run(
        [
            *(sys.executable, "-m", "spatial_mqtt"),
            *("renew", "--config", str(config), "--now"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("renewed: counts until")


def test_timer_passes_over_settings_without_a_signer(tmp_path: Path) -> None:
    """A card has the timer, whether or not its settings have certificates."""
    config = tmp_path / "node.toml"
    config.write_text('[node]\nid = "n1"\n')
    command = [sys.executable, "-m", "spatial_mqtt", "renew", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "not renewed: the settings name no tls.signer\n"


def test_renewal_uses_the_credentials_of_its_own_unit(tmp_path: Path) -> None:
    """The settings name the daemon's credentials, which other units cannot read."""
    config = tmp_path / "node.toml"
    config.write_text(
        '[tls]\nca = "/etc/ca.pem"\n'
        'certificate = "/run/credentials/edge-agent.service/cert.pem"\n'
    )

    files = read_tls_settings(config, Path("/run/credentials/yamamori-renew"))
    assert files.ca == "/etc/ca.pem"
    assert files.certificate == "/run/credentials/yamamori-renew/cert.pem"
    assert files.key is None


def test_missing_setting_or_signer_is_reported(
    authority: IssuingAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the setting, or the broker that refused."""
    monkeypatch.setattr("spatial_mqtt.certificates.TIMEOUT_S", 3.0)
    files = authority.issue("node", "n1", CELL)
    with pytest.raises(FieldError, match=r"tls\.signer must be given"):
        renew_if_due(files, time.time(), is_forced=True)
    away = replace(
        files, signer="mqtts://localhost:1", renewed=str(tmp_path / "renewed.pem")
    )
    with pytest.raises(BrokerError, match="refused"):
        renew_if_due(away, time.time(), is_forced=True)


@pytest.mark.attack(
    "a copied card renews again and again", "thief renewed 3 times, owner refused"
)
def test_copied_card_renews_once_at_most_and_the_owner_is_not_locked_out(
    node: TlsFiles,
    signer: TrustedBroker,
    authority: IssuingAuthority,
    tmp_path: Path,
) -> None:
    """A thief renews before the owner; the owner's request then raises the alarm."""
    stolen = replace(node, renewed=str(tmp_path / "stolen.pem"))
    assert renew_if_due(stolen, time.time()).startswith("renewed: ")
    for _ in range(3):
        with pytest.raises(RenewalError, match="not due before"):
            renew_if_due(stolen, time.time(), is_forced=True)

    for _ in range(2):
        with pytest.raises(RenewalError, match="already renewed with another key"):
            renew_if_due(node, time.time())
    log = signer.log.with_name("signer.log").read_text()
    assert log.count("revoke n1") == 1, "logged once an hour"
    assert read_results(signer) == {"renewed": 1, "early": 3, "contested": 2}
    (marked,) = [
        each.identity.name
        for each in authority.folder.load_register().issued
        if each.contested_s is not None
    ]
    assert marked == "n1"
    assert "CONTESTED" in run_ca(authority.folder.path, "list").stdout


def read_results(signer: TrustedBroker) -> dict[str, int]:
    """The signer's metric of requests, without zeros."""
    address = signer.log.with_name("signer.metrics").read_text()
    with urlopen(f"http://{address}/metrics", timeout=10) as page:
        found = re.findall(
            r'requests_total{result="(\w+)"} (\d+)', page.read().decode()
        )
    return {result: int(number) for result, number in found if int(number)}


def test_answer_for_another_key_is_rejected(authority: IssuingAuthority) -> None:
    """The certificate would not match the generated key."""
    pem = Path(authority.issue("node", "n1", CELL).certificate or "").read_bytes()
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    answer = RenewalAnswer(certificate=der)
    with pytest.raises(RenewalError, match="for the key we made"):
        answer.match_key(ec.generate_private_key(ec.SECP256R1()))


def test_every_holder_of_a_certificate_may_request_renewal(
    signer: TrustedBroker, authority: IssuingAuthority, join: Join
) -> None:
    """Also a broker or the backend, which have no other rights there."""
    tls = authority.issue("backend", "ingest-0")
    backend = join(signer.nodes, tls, "ingest-0")

    assert ACL_PATTERNS
    request = Publication(renewal_topic("ingest-0"), b"")
    assert backend.say(request.topic) is None

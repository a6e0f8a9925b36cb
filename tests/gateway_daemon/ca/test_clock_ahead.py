"""An authority whose clock was ahead when it issued a certificate or a list."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import wait_until
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from trust_bench import (
    HOUR_S,
    IssuingAuthority,
    Join,
    Make,
    TrustedBroker,
    run_ca,
)

from gateway_daemon.ca.authority import DAY_S, Identity
from gateway_daemon.ca.signer import RenewalSigner
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.tls import TlsFiles
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.certificates import CertificateWithKey, renew_if_due
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import RenewalError
from spatial_mqtt.transport import ConnectionHandler, Session

pytestmark = pytest.mark.broker
CELL = "/3/1/1/2"


@pytest.fixture
def broker(authority: IssuingAuthority, make_trusted: Make) -> TrustedBroker:
    """The broker of Manager m1, with certificates of n1, which is due, and a signer."""
    authority.issue("manager", "m1")
    authority.issue("signer", "signer")
    authority.issue("node", "n1", CELL, life_s=398 * DAY_S, age_s=300 * DAY_S)
    return make_trusted("manager", "m1")


@pytest.fixture
def node(broker: TrustedBroker, tmp_path: Path) -> TlsFiles:
    """TLS settings of n1."""
    return broker.renewing("n1", tmp_path / "renewed.pem")


@contextmanager
def run_signer(broker: TrustedBroker, ahead_s: float) -> Iterator[None]:
    """A signer at the broker, with a clock that is ahead."""
    authority = broker.authority

    def connect(session: Session, handler: ConnectionHandler) -> Connection:
        return Connection(broker.daemons, session, handler, authority.files("signer"))

    signer = RenewalSigner(
        AuthorityFolder(authority.folder.path, lambda: time.time() + ahead_s),
        "signer",
        connect,
        lifetime_s=398 * DAY_S,
        watchdog=LoopWatchdog(time.monotonic),
    )
    thread = threading.Thread(target=signer.run)
    thread.start()
    try:
        wait_until(lambda: signer.is_up)
        yield
    finally:
        signer.stop()
        thread.join()


@pytest.mark.parametrize("ahead_s", [9 * HOUR_S, 20 * DAY_S])
def test_certificate_that_begins_in_the_future_is_not_stored(
    node: TlsFiles, broker: TrustedBroker, join: Join, ahead_s: float
) -> None:
    """Brokers refused it, though the issued one was valid for months.

    Once it is valid, the same request gets it.
    """
    with run_signer(broker, ahead_s):
        for _ in range(2):
            with pytest.raises(RenewalError, match="the signer's clock is ahead"):
                renew_if_due(node, time.time())
    assert not Path(node.renewed or "").exists()
    join(broker.nodes, node, "n1").stop()

    with run_signer(broker, 0):
        assert renew_if_due(node, time.time() + ahead_s).startswith("renewed: ")
    registered = broker.authority.folder.load_register().issued
    assert sum(each.identity.name == "n1" for each in registered) == 2


def test_stored_certificate_that_begins_in_the_future_is_not_used(
    node: TlsFiles, broker: TrustedBroker, join: Join
) -> None:
    """Clocks of node and signer were ahead. Nor does the node request another one."""
    folder = broker.authority.folder.path
    later = AuthorityFolder(folder, lambda: time.time() + 20 * DAY_S)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = later.issue(Identity("node", "n1", (CELL,)), key.public_key(), 398 * DAY_S)
    made = CertificateWithKey(x509.load_pem_x509_certificate(pem), key)
    Path(node.renewed or "").write_bytes(made.to_pem())

    join(broker.nodes, node, "n1").stop()
    assert renew_if_due(node, time.time()).startswith("not due")


def test_issued_certificate_that_begins_in_the_future_is_refused_with_a_remedy(
    broker: TrustedBroker, node: TlsFiles, tmp_path: Path, join: Join
) -> None:
    """The signer's clock was ahead; nor do we know its root, as with half a ca.pem."""
    files = broker.authority.issue("node", "n2", CELL, age_s=-2 * DAY_S)
    refused = join(broker.nodes, files, "n2", wait=False)
    assert refused.is_refused("compare the clocks of both")

    half, end = tmp_path / "half.pem", b"-----END CERTIFICATE-----\n"
    whole = Path(node.ca).read_bytes()
    half.write_bytes(whole[: whole.index(end) + len(end)])
    unknown = join(broker.nodes, replace(node, ca=str(half)), "n1", wait=False)
    assert unknown.is_refused("copy the authority's whole ca.pem")


@pytest.mark.parametrize("ahead_s", [2 * DAY_S, -11 * 365 * DAY_S])
def test_revocation_with_a_wrong_clock_shuts_out_nobody_else(
    broker: TrustedBroker, node: TlsFiles, join: Join, ahead_s: float
) -> None:
    """The list was not valid yet, or had expired: the broker refused every client."""
    authority = broker.authority
    revoked = authority.issue("node", "n2", CELL, life_s=398 * DAY_S)
    wrong = AuthorityFolder(authority.folder.path, lambda: time.time() + ahead_s)
    wrong.revoke("n2")
    broker.write()
    broker.kill()
    broker.start()

    join(broker.nodes, node, "n1").stop()
    other = join(broker.nodes, revoked, "n2", wait=False)
    assert other.is_refused("our certificate was revoked")


def test_list_that_is_not_valid_yet_is_replaced(
    broker: TrustedBroker, tmp_path: Path
) -> None:
    """It has the same entries; as it stayed, a right clock did not help."""
    folder, out = broker.authority.folder.path, tmp_path / "out"
    write = ("broker-config", "manager", "m1", "--out", str(out))
    run_ca(folder, *write)
    made = {
        name: (out / name).read_bytes()
        for name in ("revoked.pem", "revoked-infrastructure.pem")
    }
    key = broker.authority.folder.load_authority().key
    for name, data in made.items():
        listed = x509.load_pem_x509_crl(data)
        begins = listed.last_update_utc + timedelta(days=3)
        builder = x509.CertificateRevocationListBuilder(
            listed.issuer, begins, listed.next_update_utc, list(listed.extensions)
        )
        later = builder.sign(key, hashes.SHA256())
        (out / name).write_bytes(later.public_bytes(Encoding.PEM))
    run_ca(folder, *write)

    assert {name: (out / name).read_bytes() for name in made} == made

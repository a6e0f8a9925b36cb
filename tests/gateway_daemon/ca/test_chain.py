"""Two levels of authorities: the root is offline, the issuing one is replaced."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from trust_bench import DUE_AGE_S, HOUR_S, IssuingAuthority, Join, Make, run_ca

from gateway_daemon.ca.authority import (
    DAY_S,
    AuthorityFileError,
    CertificateAuthority,
    CertificateRefusedError,
    CertificateRegister,
    Identity,
)
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.tls import TlsFiles

CELL = "/3/1/1/2"
SIGNER = 12345
"""User of the signer's unit."""


@pytest.fixture
def root_key(authority: IssuingAuthority, tmp_path: Path) -> Path:
    """The root's key, moved to its safe."""
    safe = tmp_path / "safe.key"
    (authority.folder.path / "root.key").rename(safe)
    return safe


def trusting(files: TlsFiles, ca: Path) -> TlsFiles:
    return replace(files, ca=str(ca))


@pytest.mark.broker
@pytest.mark.attack(
    "the issuing authority's key is stolen", "the root was the only key"
)
def test_stolen_issuing_key_is_replaced_with_the_offline_root(
    authority: IssuingAuthority,
    root_key: Path,
    make_trusted: Make,
    join: Join,
    tmp_path: Path,
) -> None:
    """The thief's certificates are refused; machines keep the ca.pem they have."""
    authority.issue("node", "n1", CELL)
    stolen = AuthorityFolder(tmp_path / "stolen", time.time)
    shutil.copytree(authority.folder.path, stolen.path)
    old = authority.files("n1", stolen.path / "issued/n1.pem")
    forged = authority.files(
        "n2", stolen.issue_with_key(Identity("node", "n2", (CELL,)), HOUR_S)
    )
    trusted = shutil.copy(authority.folder.path / "ca.pem", tmp_path / "machine.pem")
    before = make_trusted("gateway", "gw-1")
    join(before.nodes, trusting(forged, trusted), "n2").stop()
    before.kill()

    authority.folder.replace_issuing(root_key)
    assert "revoked" in run_ca(authority.folder.path, "list").stdout
    new = authority.issue("node", "n1", CELL)
    after = make_trusted("gateway", "gw-2")
    join(after.nodes, trusting(new, trusted), "n1")
    for files in (old, forged):
        refused = join(after.nodes, trusting(files, trusted), "n1", wait=False)
        assert refused.is_refused("alert")


def test_root_key_is_needed_only_to_replace_the_issuing_authority(
    authority: IssuingAuthority, root_key: Path
) -> None:
    """Another key is refused, and the error names the file."""
    authority.issue("node", "n1", CELL)
    authority.folder.revoke("n1")
    with pytest.raises(AuthorityFileError, match="name the copy that was moved away"):
        authority.folder.replace_issuing(authority.folder.path / "root.key")
    with pytest.raises(AuthorityFileError, match=r"must be the key of .*root\.pem"):
        authority.folder.replace_issuing(authority.folder.path / "ca.key")
    assert root_key.exists()


def test_issuing_authority_does_not_outlive_its_root() -> None:
    """All its certificates would end with the root, before their own end."""
    root = CertificateAuthority.create_root("Otoyo", 0.0)
    until = root.certificate.not_valid_after_utc
    late_s = until.timestamp() - 500 * DAY_S
    issuing = root.create_issuing(late_s)
    assert issuing.certificate.not_valid_after_utc == until
    assert root.create_issuing(0.0).certificate.not_valid_after_utc < until

    node, key = Identity("node", "n1", (CELL,)), ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(CertificateRefusedError, match="ca replace-issuing"):
        issuing.issue(node, key.public_key(), late_s + 200 * DAY_S, 398 * DAY_S)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_files_that_root_writes_are_the_signers(
    authority: IssuingAuthority, root_key: Path
) -> None:
    """The signer could not read the key, and never started again."""
    folder = authority.folder.path
    for path in (folder, *folder.rglob("*")):
        os.chown(path, SIGNER, SIGNER)
    authority.folder.replace_issuing(root_key)
    authority.issue("node", "n1", CELL)

    written = [path for path in folder.iterdir() if path.is_file()]
    assert {path.stat().st_uid for path in written} == {SIGNER}
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600


def test_new_authority_is_suggested_only_where_there_is_none(
    authority: IssuingAuthority, tmp_path: Path
) -> None:
    """After another error it would be the wrong thing to do."""
    with pytest.raises(AuthorityFileError, match="make one with gateway-daemon ca in"):
        AuthorityFolder(tmp_path / "none", time.time).load_authority()
    key = authority.folder.path / "ca.key"
    key.unlink()
    key.mkdir()
    with pytest.raises(AuthorityFileError, match="cannot be read: Is a d") as caught:
        authority.folder.load_authority()
    assert "ca init" not in str(caught.value)


@pytest.mark.broker
def test_authority_of_one_level_goes_on(
    tmp_path: Path, join: Join, make_trusted: Make, authority: IssuingAuthority
) -> None:
    """Older versions made authorities that are their own root."""
    register = CertificateRegister()
    made = CertificateAuthority.create_root("Otoyo", time.time())
    for name in ("root.pem", "root.key"):
        (authority.folder.path / name).unlink()
    authority.folder.install(made, register)
    files = authority.issue("node", "n1", CELL, age_s=DUE_AGE_S)

    assert Path(files.certificate or "").read_text().count("BEGIN CERT") == 1
    join(make_trusted("gateway", "gw-1").nodes, files, "n1")
    with pytest.raises(AuthorityFileError, match="no authority"):
        authority.folder.replace_issuing(tmp_path / "none")

"""The issuing authority's key in a PKCS #11 token: SoftHSM, whose library is real."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from trust_bench import HOUR_S, IssuingAuthority, Join, Person, TrustedBroker, run_ca

from gateway_daemon.ca.authority import AuthorityFileError, Identity
from gateway_daemon.ca.store import AuthorityFolder, TokenKey, TokenUri

CELL = "/3/1/1/2"
MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "a pin of tests"

pytestmark = pytest.mark.skipif(not MODULE.exists(), reason="softhsm2 is missing")


@pytest.fixture(scope="module")
def pin_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of the PIN of a new token; the library is initialized once in a process."""
    folder = tmp_path_factory.mktemp("softhsm")
    tokens, config, pin = folder / "tokens", folder / "softhsm2.conf", folder / "pin"
    tokens.mkdir()
    config.write_text(f"directories.tokendir = {tokens}\n")
    pin.write_text(f"{PIN}\n")
    os.environ["SOFTHSM2_CONF"] = str(config)
    command = ["softhsm2-util", "--init-token", "--free", "--label", "ca"]
    command += ["--pin", PIN, "--so-pin", "of the officer"]
    subprocess.run(command, check=True, capture_output=True)
    return pin


@pytest.fixture
def uri_of(pin_file: Path) -> Callable[..., str]:
    """Function that makes the URI of an object, with some parts replaced."""

    def make(label: str, **more: object) -> str:
        parts = {"token": "ca", "module": MODULE, "pin": pin_file} | more
        return (
            f"pkcs11:token={parts['token']};object={label}"
            f"?module-path={parts['module']}&pin-source=file:{parts['pin']}"
        )

    return make


@pytest.mark.broker
def test_authority_with_a_token_serves_a_broker(
    tmp_path: Path, uri_of: Callable[..., str], join: Join
) -> None:
    """Certificates and lists of revocations are valid at a real Mosquitto."""
    authority = IssuingAuthority(tmp_path / "ca", uri_of("serves"))
    folder = authority.folder.path
    authority.issue("node", "n1", CELL)
    revoked = authority.issue("node", "n2", CELL)
    authority.folder.revoke("n2")
    broker = TrustedBroker(tmp_path, authority, "gateway", "gw-1")
    try:
        node: Person = join(broker.nodes, authority.files("n1"), "n1")
        assert node.say(f"/from/n1{CELL}/pri5") is None
        thief = join(broker.nodes, revoked, "n2", wait=False)
        assert thief.is_refused("revoked")
    finally:
        broker.kill()

    assert (folder / "ca.key").read_text() == uri_of("serves") + "\n"
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnsupportedAlgorithm, match="stays in its device"):
        authority.folder.load_authority().key.private_numbers()


def test_issuing_key_moves_into_a_token(
    tmp_path: Path, uri_of: Callable[..., str]
) -> None:
    """By the commands, with the root; the key in the token signs renewals, too."""
    ca, safe = tmp_path / "ca", tmp_path / "root.key"
    assert run_ca(ca, "init", "Otoyo").returncode == 0
    (ca / "root.key").rename(safe)
    words = ("replace-issuing", "--root-key", str(safe), "--token", uri_of("moves"))
    done = run_ca(ca, *words)
    assert done.returncode == 0, done.stderr

    folder = AuthorityFolder(ca, time.time)
    made = folder.issue_with_key(Identity("node", "n1", (CELL,)), HOUR_S)
    leaf = x509.load_pem_x509_certificate(made.read_bytes())
    assert folder.load_authority().has_issued(leaf)
    again = run_ca(ca, *words)
    assert again.returncode == 1
    assert "object=moves must be a new name in the token ca" in again.stderr


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"token": "other"}, "NoSuchToken"),
        ({"module": "/nothing.so"}, "nothing.so"),
        ({"pin": "/nothing"}, "No such file"),
        ({"pin": MODULE}, "cannot be used"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_token_that_cannot_be_used_is_named(
    uri_of: Callable[..., str], more: dict[str, object], cause: str
) -> None:
    """With its cause and the remedy; the authority is not made without it."""
    with pytest.raises(AuthorityFileError, match=cause) as refused:
        TokenKey.open(uri_of("any", **more))
    assert "check module-path, token, object, and the PIN" in str(refused.value)


def test_wrong_pin_and_missing_key_are_named(
    tmp_path: Path, uri_of: Callable[..., str]
) -> None:
    """A token may be locked after some wrong PINs: the first error must say it."""
    wrong = tmp_path / "pin"
    wrong.write_text("wrong\n")
    with pytest.raises(AuthorityFileError, match="PinIncorrect"):
        TokenKey.open(uri_of("any", pin=wrong))
    with pytest.raises(AuthorityFileError, match="NoSuchKey"):
        TokenKey.open(uri_of("any"))


def test_key_of_another_authority_is_refused(
    tmp_path: Path, uri_of: Callable[..., str]
) -> None:
    """Certificates that it signs would be valid nowhere."""
    authority = IssuingAuthority(tmp_path / "ca", uri_of("first"))
    TokenKey.generate(uri_of("second"))
    (authority.folder.path / "ca.key").write_text(uri_of("second") + "\n")
    with pytest.raises(AuthorityFileError, match=r"must be the key of .*ca\.pem"):
        authority.issue("node", "n1", CELL)


@pytest.mark.parametrize(
    "text",
    [
        "pkcs11:",
        "pkcs11:token=a;object=b",
        "pkcs11:token=a?module-path=c&pin-source=d",
        "pkcs11:token=a;object=b?module-path=c&pin-value=1234",
        "file:token=a;object=b?module-path=c&pin-source=d",
    ],
)
def test_uri_of_another_form_is_refused(text: str) -> None:
    """The PIN is in a file, not in the URI, which is shown in errors."""
    with pytest.raises(AuthorityFileError, match="the key's URI must be pkcs11:token="):
        TokenUri.parse(text)


def test_uri_is_read_with_its_escapes() -> None:
    """Labels may have spaces and semicolons (RFC 7512)."""
    text = "pkcs11:object=b%3Bc;token=a%20a?pin-source=/p&module-path=/m"
    found = TokenUri.parse(text)
    assert (found.token, found.label, found.module) == ("a a", "b;c", "/m")
    assert found.pin_file == Path("/p")

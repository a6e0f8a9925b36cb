"""The authority: names, files, the register."""

import json
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from trust_bench import HOUR_S, Town

from gateway_daemon.ca.acl import BROKER_KINDS, format_acl
from gateway_daemon.ca.authority import (
    AuthorityFileError,
    CertificateRefusedError,
    Identity,
)
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.metrics import collect_certificate_end
from service_runtime.tls import TlsFiles

CELL = "/3/1/1/2"


def ca(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway_daemon", "ca", "--folder", str(folder)]
    return subprocess.run(
        [*command, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (Identity("node", "n1"), "a node must have one cell"),
        (Identity("node", "n1", ("/3", "/4")), "a node must have one cell"),
        (Identity("node", "n1", ("/kitchen",)), "must be a cell's"),
        (Identity("node", "n/1", (CELL,)), "1 to 63 of A-Z"),
        (Identity("node", "n#", (CELL,)), "1 to 63 of A-Z"),
        (Identity("node", "offer", (CELL,)), "1 to 63 of A-Z"),
        (Identity("node", "gw-1-watch", (CELL,)), "second session"),
        (Identity("gateway", "gw-1"), "a gateway must have areas"),
        (Identity("gateway", "gw-1", ("/3/#",)), r"without \+ and #"),
        (Identity("broker", "b"), "the hosts under which"),
        (Identity("broker", "b", hosts=("höst",)), "a name or an address"),
        (Identity("king", "k"), "role must be one of"),
    ],
)
def test_certificate_is_refused_with_the_rule(
    identity: Identity, words: str, town: Town
) -> None:
    """A name that could be two things in a topic or an ACL is no name."""
    before = town.folder.load_register()
    with pytest.raises(CertificateRefusedError, match=words):
        town.folder.issue_with_key(identity, HOUR_S)

    assert town.folder.load_register() == before


def test_name_belongs_to_one_role(town: Town) -> None:
    """A node called like the gateway would have the gateway's rights."""
    town.issue("gateway", "gw-1", "/")
    with pytest.raises(CertificateRefusedError, match="belongs to a gateway"):
        town.issue("node", "gw-1", CELL)
    town.folder.revoke("gw-1")
    town.issue("node", "gw-1", CELL)


def test_certificate_says_who_and_where(town: Town) -> None:
    """Role, name and cell are in it, for whoever reads it in ten years."""
    made = Path(town.issue("node", "n1", CELL).certificate or "")
    certificate = x509.load_pem_x509_certificate(made.read_bytes())
    names = certificate.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ).value.get_values_for_type(x509.UniformResourceIdentifier)

    assert certificate.subject.rfc4514_string() == "CN=n1,OU=node"
    assert names == ["urn:yamamori:node:n1", f"urn:yamamori:cell:{CELL}"]


def test_keys_are_their_owners_alone(town: Town) -> None:
    """Files of keys have mode 0600 from their first byte on."""
    town.issue("node", "n1", CELL)
    keys = list(town.folder.path.rglob("*.key"))

    assert sorted(k.name for k in keys) == ["ca.key", "n1.key"]
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_second_authority_is_refused(town: Town) -> None:
    """It would make every certificate in the field foreign."""
    before = (town.folder.path / "ca.key").read_bytes()
    with pytest.raises(AuthorityFileError, match="is there already"):
        town.folder.create("again")

    assert (town.folder.path / "ca.key").read_bytes() == before


def test_password_locks_the_key(tmp_path: Path) -> None:
    """Without it the folder is worth nothing."""
    AuthorityFolder(tmp_path / "ca", lambda: 1e9, b"long words").create("Otoyo")

    AuthorityFolder(tmp_path / "ca", lambda: 1e9, b"long words").load_authority()
    for password in (None, b"other words"):
        with pytest.raises(AuthorityFileError, match="is its password given"):
            AuthorityFolder(tmp_path / "ca", lambda: 1e9, password).load_authority()


def test_commands_issue_and_revoke(tmp_path: Path) -> None:
    """From nothing to a broker's files; OpenSSL agrees about each certificate."""
    folder, out = tmp_path / "ca", tmp_path / "broker"
    assert "gateway-daemon ca init" in ca(folder, "list").stderr
    ca(folder, "init", "Otoyo")
    ca(folder, "issue", "node", "n1", "--cell", CELL)
    ca(folder, "issue", "node", "n2", "--cell", CELL)
    ca(folder, "issue", "gateway", "gw-1", "--cell", "/3")
    missing = ca(folder, "broker-config", "gateway", "gw-1", "--out", str(out))
    assert "issue broker gw-1-broker --host" in missing.stderr
    ca(folder, "issue", "broker", "gw-1-broker", "--host", "localhost")
    ca(folder, "revoke", "n1")
    done = ca(folder, "broker-config", "gateway", "gw-1", "--out", str(out))

    assert done.returncode == 0, done.stderr
    rights = (out / "acl").read_text()
    assert ("user n2" in rights, "user n1" in rights) == (True, False)
    for name, is_well in (("n1", False), ("n2", True), ("gw-1-broker", True)):
        said = subprocess.run(
            [
                *("openssl", "verify", "-crl_check", "-CAfile", folder / "ca.pem"),
                *("-CRLfile", out / "revoked.pem", folder / f"issued/{name}.pem"),
            ],
            capture_output=True,
            check=False,
        )
        assert (said.returncode == 0) == is_well, name
    assert "revoked" in ca(folder, "list").stdout
    assert ca(folder, "revoke", "n1").returncode == 1
    ca(folder, "places", "--out", str(tmp_path / "places.json"))
    told = json.loads((tmp_path / "places.json").read_text())
    assert told == {"gw-1": ["/3"], "n2": [CELL]}


def test_brokers_files_change_only_when_they_say_something_new(tmp_path: Path) -> None:
    """Who watches them starts the broker again for a revocation, and for no other."""
    folder, out = tmp_path / "ca", tmp_path / "broker"
    ca(folder, "init", "Otoyo")
    for words in (
        ("node", "n1", "--cell", CELL),
        ("broker", "d1-broker", "--host", "localhost"),
    ):
        ca(folder, "issue", *words)

    def written() -> tuple[set[str], str]:
        before = {path.name: path.stat().st_ino for path in out.glob("*")}
        done = ca(folder, "broker-config", "distributed", "d1", "--out", str(out))
        assert done.returncode == 0, done.stderr
        after = {path.name: path.stat().st_ino for path in out.glob("*")}
        changed = {name for name in after if after[name] != before.get(name)}
        return changed, done.stdout

    first, _ = written()
    again, _ = written()
    ca(folder, "issue", "gateway", "gw-1", "--cell", "/3")
    issued, quiet = written()
    ca(folder, "revoke", "gw-1")
    revoked, told = written()

    assert {"acl", "revoked.pem", "broker.key", "yamamori.conf"} <= first
    assert (again, issued, revoked) == (set(), {"acl"}, {"acl", "revoked.pem"})
    assert ("starts again" in quiet, "starts again" in told) == (False, True)


def test_unknown_owner_of_brokers_files_is_named(tmp_path: Path) -> None:
    """A typing error is no stack of our code."""
    folder = tmp_path / "ca"
    ca(folder, "init", "Otoyo")
    ca(folder, "issue", "broker", "d1-broker", "--host", "localhost")
    words = ("broker-config", "distributed", "d1", "--out", str(tmp_path / "b"))
    done = ca(folder, *words, "--owner", "nobody-at-all")

    assert done.returncode == 1
    assert "nobody-at-all" in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_print_no_key(tmp_path: Path) -> None:
    """A terminal's log is not the place for a secret."""
    folder = tmp_path / "ca"
    told = [
        ca(folder, "init", "Otoyo"),
        ca(folder, "issue", "node", "n1", "--cell", CELL),
        ca(folder, "list", "--json"),
        ca(folder, "issue", "node", "n/1", "--cell", CELL),
    ]
    secrets = [
        line
        for key in folder.rglob("*.key")
        for line in key.read_text().splitlines()
        if "-----" not in line
    ]

    assert secrets
    said = "".join(done.stdout + done.stderr for done in told)
    assert [s for s in secrets if s in said] == []
    assert "PRIVATE KEY" not in said


@pytest.mark.parametrize("kind", BROKER_KINDS)
def test_nobody_may_say_everything(kind: str) -> None:
    """No line of an ACL opens all topics, or another's custody to a node."""
    holders = [
        Identity("node", "n1", (CELL,)),
        Identity("gateway", "gw-1", ("/",)),
        Identity("manager", "m1"),
        Identity("admin", "mayor"),
        Identity("client", "analyst", ("/",)),
        Identity("backend", "ingest-0"),
        Identity("signer", "signer"),
    ]
    text = format_acl(kind, "gw-1", holders)

    assert "#\n" not in text.replace("/#", "")
    assert "/custody/#" not in text


def test_end_of_a_certificate_is_told_to_prometheus(tmp_path: Path) -> None:
    """The renewed one's when it is later; 0, which alarms, when it cannot be read."""
    town = Town(tmp_path / "ca")
    first = town.issue("gateway", "g", "/3", life_s=HOUR_S)
    later = town.issue("gateway", "h", "/3", life_s=2 * HOUR_S)
    assert later.certificate is not None
    ends_s = {}
    for name, files in {
        "first": first,
        "renewed": replace(first, renewed=later.certificate),
        "lost": replace(first, certificate=str(tmp_path / "away.pem")),
    }.items():
        (sample,) = collect_certificate_end(files).samples
        ends_s[name] = sample.value

    assert ends_s["renewed"] - ends_s["first"] == pytest.approx(HOUR_S, abs=60)
    assert ends_s["lost"] == 0
    assert collect_certificate_end(TlsFiles()).samples == ()

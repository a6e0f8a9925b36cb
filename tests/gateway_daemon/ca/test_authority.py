"""The authority: names, files, register."""

import errno
import json
import os
import pwd
import stat
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import wait_until
from cryptography import x509
from trust_bench import HOUR_S, IssuingAuthority, Join, Make, run_ca

from gateway_daemon.ca import store
from gateway_daemon.ca.acl import BROKER_KINDS, format_acl
from gateway_daemon.ca.authority import (
    DAY_S,
    AuthorityFileError,
    CertificateRefusedError,
    Identity,
)
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.metrics import (
    collect_certificate_end,
    collect_links,
)
from service_runtime.tls import TlsFiles

CELL = "/3/1/1/2"


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
    identity: Identity, words: str, authority: IssuingAuthority
) -> None:
    """A name that is ambiguous in a topic or an ACL is invalid."""
    before = authority.folder.load_register()
    with pytest.raises(CertificateRefusedError, match=words):
        authority.folder.issue_with_key(identity, HOUR_S)

    assert authority.folder.load_register() == before


def test_name_belongs_to_one_role(authority: IssuingAuthority) -> None:
    """A node with the gateway's name would have the gateway's rights."""
    authority.issue("gateway", "gw-1", "/")
    with pytest.raises(CertificateRefusedError, match="belongs to a gateway"):
        authority.issue("node", "gw-1", CELL)
    authority.folder.revoke("gw-1")
    authority.issue("node", "gw-1", CELL)


def test_certificate_holds_role_name_and_cell(authority: IssuingAuthority) -> None:
    """Subject and alternative names identify the holder without the register."""
    path = Path(authority.issue("node", "n1", CELL).certificate or "")
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ).value.get_values_for_type(x509.UniformResourceIdentifier)

    assert certificate.subject.rfc4514_string() == "CN=n1,OU=node"
    assert names == ["urn:yamamori:node:n1", f"urn:yamamori:cell:{CELL}"]


def test_key_files_are_readable_by_their_owner_only(
    authority: IssuingAuthority,
) -> None:
    """Key files have mode 0600 from their first byte on."""
    authority.issue("node", "n1", CELL)
    keys = list(authority.folder.path.rglob("*.key"))

    assert sorted(k.name for k in keys) == ["ca.key", "n1.key", "root.key"]
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_second_authority_is_refused(authority: IssuingAuthority) -> None:
    """It would invalidate every certificate in the field."""
    before = (authority.folder.path / "ca.key").read_bytes()
    with pytest.raises(AuthorityFileError, match="is there already"):
        authority.folder.create("again")

    assert (authority.folder.path / "ca.key").read_bytes() == before


@pytest.mark.parametrize("full", ["revoked.pem", "revoked-infrastructure.pem"])
def test_revocation_that_failed_can_be_repeated(
    authority: IssuingAuthority, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    """The register said "revoked" already, so the list was never written again."""
    authority.issue("node", "n1", CELL)
    serial = int(authority.folder.load_register().issued[-1].serial, 16)
    write = store.write_file

    def write_until_full(path: Path, *more: object) -> None:
        if path.name == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *more)

    with monkeypatch.context() as patched:
        patched.setattr(store, "write_file", write_until_full)
        with pytest.raises(OSError, match="No space left"):
            authority.folder.revoke("n1")
    authority.folder.revoke("n1")

    for name in ("revoked.pem", "revoked-infrastructure.pem"):
        listed = x509.load_pem_x509_crl((authority.folder.path / name).read_bytes())
        assert listed.get_revoked_certificate_by_serial_number(serial) is not None


def test_names_issued_again_keep_their_rights_after_a_restore(tmp_path: Path) -> None:
    """As the page says: the restored register does not know renewed certificates."""
    now_s = 1.8e9
    authority = AuthorityFolder(tmp_path / "ca", lambda: now_s)
    authority.create("Otoyo")
    node = Identity("node", "n1", (CELL,))
    authority.issue_with_key(node, 398 * DAY_S)
    now_s += 450 * DAY_S

    def has_rights() -> bool:
        holders = authority.load_register().list_holders(now_s)
        return "user n1" in format_acl("gateway", "gw-1", holders)

    assert not has_rights()
    with pytest.raises(CertificateRefusedError, match="no valid certificate"):
        authority.revoke("n1")
    authority.issue_with_key(node, 398 * DAY_S)
    assert has_rights()
    authority.revoke("n1")
    assert not has_rights()


def test_password_encrypts_the_key(tmp_path: Path) -> None:
    """Without the password the key cannot be loaded."""
    AuthorityFolder(tmp_path / "ca", lambda: 1e9, b"long words").create("Otoyo")

    AuthorityFolder(tmp_path / "ca", lambda: 1e9, b"long words").load_authority()
    for password in (None, b"other words"):
        with pytest.raises(AuthorityFileError, match="is its password given"):
            AuthorityFolder(tmp_path / "ca", lambda: 1e9, password).load_authority()


def test_commands_issue_and_revoke(tmp_path: Path) -> None:
    """From an empty folder to a broker's files; OpenSSL verifies each certificate."""
    folder, out = tmp_path / "ca", tmp_path / "broker"
    assert "gateway-daemon ca init" in run_ca(folder, "list").stderr
    run_ca(folder, "init", "Otoyo")
    run_ca(folder, "issue", "node", "n1", "--cell", CELL)
    run_ca(folder, "issue", "node", "n2", "--cell", CELL)
    run_ca(folder, "issue", "gateway", "gw-1", "--cell", "/3")
    missing = run_ca(folder, "broker-config", "gateway", "gw-1", "--out", str(out))
    assert "issue broker gw-1-broker --host" in missing.stderr
    run_ca(folder, "issue", "broker", "gw-1-broker", "--host", "localhost")
    run_ca(folder, "revoke", "n1")
    done = run_ca(folder, "broker-config", "gateway", "gw-1", "--out", str(out))

    assert done.returncode == 0, done.stderr
    rights = (out / "acl").read_text()
    assert ("user n2" in rights, "user n1" in rights) == (True, False)
    for name, is_well in (("n1", False), ("n2", True), ("gw-1-broker", True)):
        verified = subprocess.run(
            [
                *("openssl", "verify", "-crl_check", "-CAfile", folder / "ca.pem"),
                *("-CRLfile", out / "revoked.pem", folder / f"issued/{name}.pem"),
            ],
            capture_output=True,
            check=False,
        )
        assert (verified.returncode == 0) == is_well, name
    assert "revoked" in run_ca(folder, "list").stdout
    assert run_ca(folder, "revoke", "n1").returncode == 1
    run_ca(folder, "places", "--out", str(tmp_path / "places.json"))
    places = json.loads((tmp_path / "places.json").read_text())
    assert places == {"gw-1": ["/3"], "n2": [CELL]}


@pytest.mark.long
def test_broker_files_change_only_with_their_content(tmp_path: Path) -> None:
    """So a watcher restarts the broker for a revocation and for nothing else."""
    folder, out = tmp_path / "ca", tmp_path / "broker"
    run_ca(folder, "init", "Otoyo")
    for words in (
        ("node", "n1", "--cell", CELL),
        ("broker", "d1-broker", "--host", "localhost"),
    ):
        run_ca(folder, "issue", *words)

    def changed_files() -> tuple[set[str], str]:
        before = {path.name: path.stat().st_ino for path in out.glob("*")}
        done = run_ca(folder, "broker-config", "distributed", "d1", "--out", str(out))
        assert done.returncode == 0, done.stderr
        after = {path.name: path.stat().st_ino for path in out.glob("*")}
        changed = {name for name in after if after[name] != before.get(name)}
        return changed, done.stdout

    first, _ = changed_files()
    again, _ = changed_files()
    run_ca(folder, "issue", "gateway", "gw-1", "--cell", "/3")
    issued, quiet = changed_files()
    run_ca(folder, "revoke", "gw-1")
    revoked, output = changed_files()

    assert {"acl", "revoked.pem", "broker.key", "yamamori.conf"} <= first
    assert (again, issued, revoked) == (
        set(),
        {"acl"},
        {"acl", "revoked.pem", "revoked-infrastructure.pem"},
    )
    assert ("starts again" in quiet, "starts again" in output) == (False, True)


def test_new_certificate_of_a_broker_is_remarked(tmp_path: Path) -> None:
    """Mosquitto serves the old one until it is told."""
    folder, out = tmp_path / "ca", tmp_path / "b"
    run_ca(folder, "init", "Otoyo")
    issue = ("issue", "broker", "d1-broker", "--host", "localhost")
    write = ("broker-config", "distributed", "d1", "--out", str(out))
    for words in (issue, write):
        run_ca(folder, *words)
    again = run_ca(folder, *write)
    run_ca(folder, *issue)
    done = run_ca(folder, *write)

    assert "certificate has changed" not in again.stdout
    assert "the broker's certificate has changed: it counts once it is" in done.stdout


def test_files_of_another_broker_are_not_replaced(tmp_path: Path) -> None:
    """On the authority's machine a Manager's broker had the rights of another one."""
    folder, out = tmp_path / "ca", tmp_path / "b"
    run_ca(folder, "init", "Otoyo")
    for name in ("north", "d1"):
        run_ca(folder, "issue", "broker", f"{name}-broker", "--host", "localhost")

    def write(kind: str, name: str) -> subprocess.CompletedProcess[str]:
        return run_ca(folder, "broker-config", kind, name, "--out", str(out))

    write("manager", "north")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    refused = write("distributed", "d1")
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    again = write("manager", "north")
    (out / "acl").unlink()
    removed = write("distributed", "d1")

    assert refused.returncode == 1
    assert f"{out} has the files of the manager broker of north" in refused.stderr
    assert after == before
    assert (again.returncode, removed.returncode) == (0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_broker_files_have_the_group_of_their_owner(tmp_path: Path) -> None:
    """Mosquitto warned that a newer one will refuse an ACL of another group."""
    folder, out = tmp_path / "ca", tmp_path / "b"
    user = pwd.getpwnam("nobody")
    expected = {(user.pw_uid, user.pw_gid)}
    run_ca(folder, "init", "Otoyo")
    issue = ("issue", "broker", "d1-broker", "--host", "localhost")
    write = ("broker-config", "distributed", "d1", "--out", str(out))

    def owners() -> set[tuple[int, int]]:
        found = [(path.stat().st_uid, path.stat().st_gid) for path in out.iterdir()]
        return set(found)

    run_ca(folder, *issue)
    run_ca(folder, *write, "--owner", "nobody")
    named = owners()
    os.chown(out, user.pw_uid, user.pw_gid)
    for path in out.iterdir():
        path.unlink()
    run_ca(folder, *write)  # by root, in the folder of another user
    inherited = owners()

    assert (named, inherited) == (expected, expected)


def test_unknown_owner_of_broker_files_is_reported(tmp_path: Path) -> None:
    """A typing error gives no traceback."""
    folder = tmp_path / "ca"
    run_ca(folder, "init", "Otoyo")
    run_ca(folder, "issue", "broker", "d1-broker", "--host", "localhost")
    words = ("broker-config", "distributed", "d1", "--out", str(tmp_path / "b"))
    done = run_ca(folder, *words, "--owner", "nobody-at-all")

    assert done.returncode == 1
    assert "nobody-at-all" in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_print_no_key(tmp_path: Path) -> None:
    """A terminal log must not contain secrets."""
    folder = tmp_path / "ca"
    runs = [
        run_ca(folder, "init", "Otoyo"),
        run_ca(folder, "issue", "node", "n1", "--cell", CELL),
        run_ca(folder, "list", "--json"),
        run_ca(folder, "issue", "node", "n/1", "--cell", CELL),
    ]
    secrets = [
        line
        for key in folder.rglob("*.key")
        for line in key.read_text().splitlines()
        if "-----" not in line
    ]

    assert secrets
    output = "".join(done.stdout + done.stderr for done in runs)
    assert [s for s in secrets if s in output] == []
    assert "PRIVATE KEY" not in output


@pytest.mark.parametrize("kind", BROKER_KINDS)
def test_no_role_may_publish_everything(kind: str) -> None:
    """No ACL line opens all topics, or another node's custody topics."""
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


def test_end_of_a_certificate_is_exported_to_prometheus(tmp_path: Path) -> None:
    """The later end of both certificates; 0, which raises an alert, if unreadable."""
    authority = IssuingAuthority(tmp_path / "ca")
    first = authority.issue("gateway", "g", "/3", life_s=HOUR_S)
    later = IssuingAuthority(tmp_path / "later").issue(
        "gateway", "g", "/3", life_s=2 * HOUR_S
    )
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


@pytest.mark.broker
def test_end_of_a_brokers_certificate_is_exported_to_prometheus(
    authority: IssuingAuthority, make_trusted: Make, join: Join
) -> None:
    """Nothing renews it; of several links to a broker the newest handshake counts."""
    files = authority.issue("manager", "m1")
    broker = make_trusted("manager", "m1")

    def end_s() -> float | None:
        ends = {
            sample.labels["broker"]: sample.value
            for sample in collect_links()[0].samples
        }
        return ends.get(str(broker.daemons))

    links = [join(broker.daemons, files, "m1")]
    first_s = end_s()
    made = authority.issue("broker", "m1-broker", hosts=("localhost",), life_s=1e6)
    broker.copy_certificate(made)
    broker.hup()
    wait_until(lambda: "Reloading config" in broker.log.read_text())
    links.append(join(broker.daemons, files, "m1-too"))
    later_s = end_s()
    for link in links:
        link.stop()

    assert first_s == pytest.approx(time.time() + HOUR_S, abs=300)
    assert later_s == pytest.approx(time.time() + 1e6, abs=300)
    assert end_s() is None

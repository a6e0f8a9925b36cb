"""What a machine lacks: each test breaks one thing and reads the line about it."""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from service_runtime import machine_check
from service_runtime.machine_check import (
    MachineFinding,
    check_broker,
    check_clock,
    check_data_folder,
    check_disk,
    check_java,
    check_libraries,
    check_port,
    check_programs,
    check_tls_files,
)
from service_runtime.tls import TlsFiles, select_certificate

NOW = datetime(2026, 11, 25, tzinfo=UTC)
ALL_BYTES = 10**18


def lines(findings: Iterator[MachineFinding]) -> str:
    return "\n".join(map(str, findings))


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def certificate(
    folder: Path,
    end: datetime,
    name: str = "localhost",
    kind: x509.ObjectIdentifier = NameOID.COMMON_NAME,
) -> TlsFiles:
    """A certificate that signs itself, its key, and settings that name them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(kind, name)])
    made = (
        x509
        .CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - timedelta(days=300))
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "own.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "own.key").write_bytes(secret)
    (folder / "own.key").chmod(0o600)
    own = str(folder / "own.pem")
    return TlsFiles(ca=own, certificate=own, key=str(folder / "own.key"))


def shake_hands(server: socket.socket, context: ssl.SSLContext, count: int) -> None:
    """Serve the TLS handshake of some connections."""
    for _ in range(count):
        with contextlib.suppress(OSError):
            context.wrap_socket(server.accept()[0], server_side=True).read(1)


def test_missing_program_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway's machine that has systemd's folder and Python only."""
    executable(tmp_path / "python3", "")
    monkeypatch.setattr(machine_check, "SYSTEMD_RUNS", tmp_path)
    found = lines(check_programs("gateway", str(tmp_path)))
    elsewhere = lines(check_programs("gateway", str(tmp_path), without=("mosquitto",)))

    assert "MEND  mosquitto must be installed; apt install mosquitto" in found
    assert "MEND  nft must be installed; apt install nftables" in found
    assert "systemctl" in found
    assert "ok    programs: python3" in found
    assert "mosquitto" not in elsewhere


def test_programs_of_units_are_not_missed_without_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, where this is said once."""
    monkeypatch.setattr(machine_check, "SYSTEMD_RUNS", tmp_path / "none")
    found = lines(check_programs("gateway", str(tmp_path)))

    assert found.startswith("note  systemd does not run here")
    assert "nft" not in found
    assert "systemctl" not in found


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which needs root")
def test_data_folder_on_a_read_only_disk_is_named(tmp_path: Path) -> None:
    """A failing card is mounted anew without the right to write."""
    code = "from service_runtime.machine_check import *; from pathlib import Path; "
    code += f"print(*check_data_folder('d', Path('{tmp_path}')))"
    done = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-euc"),
            'mount -t tmpfs -o ro tmpfs "$1"; exec "$2" -c "$3"',
            *("sh", tmp_path, sys.executable, code),
        ],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith("MEND  d must be on a disk that can be written, got")


def test_missing_or_old_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a distribution with two requirements of its extra and one of another."""
    info = tmp_path / "yamamori_probe-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: yamamori-probe\nVersion: 1\n"
        "Requires-Dist: click>=8\n"
        'Requires-Dist: no-such-library>=2; extra == "backend"\n'
        'Requires-Dist: pytest>=99.1; extra == "backend"\n'
        'Requires-Dist: neither>=2; extra == "edge"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(machine_check, "DISTRIBUTION", "yamamori-probe")
    found = lines(check_libraries("backend")).splitlines()
    remedy = 'pip install "yamamori-probe[backend]"'

    assert found[0] == f"MEND  library no-such-library must be installed; {remedy}"
    assert found[1].startswith("MEND  library pytest must be 99.1 or newer, got '")
    assert found[2] == "ok    libraries: 1 of yamamori-probe[backend]"


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ('openjdk version "21.0.4"', "ok    java 21"),
        ('openjdk version "11.0.2"', "must be 17 or newer, got 'openjdk version"),
        ('java version "1.8.0_402"', "must be 17 or newer, got 'java version"),
        ("cannot execute", "must be 17 or newer, got 'cannot execute'"),
    ],
)
def test_java_must_be_17(tmp_path: Path, version: str, line: str) -> None:
    """The Java of JAVA_HOME, as Spark chooses it."""
    executable(tmp_path / "bin/java", f"echo '{version}' >&2")

    assert line in lines(check_java({"JAVA_HOME": str(tmp_path), "PATH": ""}))


def test_missing_java_has_a_remedy(tmp_path: Path) -> None:
    """Neither on PATH nor where JAVA_HOME points."""
    nowhere = lines(check_java({"PATH": str(tmp_path)}))
    wrong = lines(check_java({"JAVA_HOME": str(tmp_path), "PATH": ""}))

    assert "java must be 17 or newer, got 'none'; apt install" in nowhere
    assert wrong.endswith("or correct JAVA_HOME")


def test_clock_that_nothing_has_set() -> None:
    """The kernel's answer is a truth value on any machine."""
    found = lines(check_clock(is_synchronised=False))

    assert found.startswith("MEND  clock must be set by a time server; systemctl")
    assert machine_check.is_clock_synchronised() in {True, False}


def test_full_disk_is_named_with_its_free_space(tmp_path: Path) -> None:
    """Also of a folder that does not exist yet."""
    found = lines(check_disk(tmp_path / "not/yet", ALL_BYTES))

    assert found.startswith(f"MEND  disk of {tmp_path}/not/yet must have 1000000000000")
    assert "ok    disk of" in lines(check_disk(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_file_that_root_left_in_a_data_folder_is_named(tmp_path: Path) -> None:
    """The daemon's user owns the folder; root wrote one file into it."""
    data = tmp_path / "data"
    (data / "log").mkdir(parents=True)
    left = data / "log/segment.arrow"
    left.touch()
    for path in (data, data / "log"):
        os.chown(path, 12345, 12345)
    before = lines(check_data_folder("backend.data", data))
    os.chown(left, 12345, 12345)

    assert f"MEND  backend.data: {left} must be writable by user 12345" in before
    assert f"chown -R --reference={data} {data}" in before
    assert lines(check_data_folder("backend.data", data)).startswith("ok ")


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_data_folder_of_root_is_named_where_the_service_has_a_user(
    tmp_path: Path,
) -> None:
    """Root made it by hand, or by a restored backup: the owner of all is root."""
    data = tmp_path / "data"
    (data / "log").mkdir(parents=True)
    before = lines(check_data_folder("backend.data", data, uid=12345))
    for path in (data, data / "log"):
        os.chown(path, 12345, 12345)

    assert f"MEND  backend.data: {data} must be writable by user 12345" in before
    assert before.endswith(f"; chown -R 12345 {data}")
    assert lines(check_data_folder("backend.data", data, uid=12345)).startswith("ok ")


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_missing_data_folder_is_made_only_where_the_service_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a folder of its user, or where systemd makes it."""
    data = tmp_path / "gateway/new"
    before = lines(check_data_folder("gateway.data", data, uid=12345))
    with monkeypatch.context() as patch:
        patch.setattr(machine_check, "STATE_FOLDER", tmp_path)
        by_systemd = lines(check_data_folder("gateway.data", data, uid=12345))
    os.chown(tmp_path, 12345, 12345)
    by_user = lines(check_data_folder("gateway.data", data, uid=12345))

    assert before.startswith("MEND  gateway.data must be a folder that exists, got ")
    assert before.endswith(f"; install -d -o 12345 {data}")
    assert by_systemd == by_user
    assert by_user == f"ok    gateway.data: {data} will be made at the first start"


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_only_the_files_of_the_program_count_in_a_shared_folder(tmp_path: Path) -> None:
    """A queue lies beside files of other programs."""
    (tmp_path / "other.db").touch()
    os.chown(tmp_path / "other.db", 12345, 12345)
    before = lines(check_data_folder("queue.path", tmp_path, "queue.db*"))
    (tmp_path / "queue.db-wal").touch()
    os.chown(tmp_path / "queue.db-wal", 12345, 12345)
    after = lines(check_data_folder("queue.path", tmp_path, "queue.db*"))

    assert before.startswith("ok ")
    assert f"queue.db-wal must be writable by user {os.geteuid()}" in after
    assert after.endswith(f"chown -R --reference={tmp_path} {tmp_path}/queue.db*")


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user, which needs root")
def test_data_folder_of_another_user_is_named(tmp_path: Path) -> None:
    """The check runs as a user that must not write there, or not even look."""
    code = (
        "import os, sys; from pathlib import Path; "
        "from service_runtime.machine_check import *; os.setuid(12345); "
        "[print(x) for p in sys.argv[1:] for x in check_data_folder('d', Path(p))]"
    )
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    with tempfile.TemporaryDirectory() as there:
        Path(there).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", code, there, f"{there}/new", hidden / "data"],
            capture_output=True,
            text=True,
            check=True,
        )
    existing, new, unseen = done.stdout.splitlines()

    assert existing.startswith(f"MEND  d: {there} must be writable by user 12345")
    assert new.startswith(f"MEND  d must be a folder that exists, got '{there}/new'")
    assert unseen.startswith("MEND  d must be in folders that this user may search")


def test_port_of_another_program_is_named_with_its_process() -> None:
    """A port of our own program is well: the daemon runs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        other = lines(check_port("console.port", "127.0.0.1", port, "backend-spark"))
        own = lines(check_port("console.port", "127.0.0.1", port, "python"))
    free = lines(check_port("console.port", "127.0.0.1", port, "backend-spark"))

    assert f"MEND  console.port 127.0.0.1:{port} must be free, got 'in use by " in other
    assert f"(process {os.getpid()})'; stop it, or set console.port" in other
    assert own.startswith("ok ")
    assert free.startswith("ok ")


@pytest.mark.parametrize(
    ("days", "line"),
    [
        (-1, "must be valid, got 'end 2026-11-24'; issue a new one"),
        (10, "must be valid for 30 days, got 'end 2026-12-05'; see why `spatial-mqtt"),
        (300, "ok    certificate"),
    ],
)
def test_end_of_the_certificate(tmp_path: Path, days: int, line: str) -> None:
    """It is reported before it ends."""
    files = certificate(tmp_path, NOW + timedelta(days=days))

    assert line in lines(check_tls_files(files, NOW))


def test_certificate_that_is_not_valid_yet(tmp_path: Path) -> None:
    """Its signer's clock was ahead, or ours is behind; no broker accepts it."""
    files = certificate(tmp_path, NOW + timedelta(days=300))
    found = lines(check_tls_files(files, NOW - timedelta(days=301)))

    assert f"MEND  certificate {files.certificate} must be valid, got 'begins " in found
    assert "set the clock, here or of its signer" in found


def test_key_that_all_may_read_or_that_is_of_another_certificate(
    tmp_path: Path,
) -> None:
    """Two mistakes of copying by hand."""
    files = certificate(tmp_path, NOW + timedelta(days=300))
    (tmp_path / "own.key").chmod(0o644)
    readable = lines(check_tls_files(files, NOW))
    (tmp_path / "other").mkdir()
    other = certificate(tmp_path / "other", NOW + timedelta(days=300))
    mixed = TlsFiles(ca=files.ca, certificate=files.certificate, key=other.key)

    assert "own.key must be secret, got 'readable by all users'; chmod o=" in readable
    assert "MEND  tls.key must be usable" in lines(check_tls_files(mixed, NOW))


def test_renewed_certificate_that_is_damaged_is_reported(tmp_path: Path) -> None:
    """The issued one is used meanwhile; a visit mends it before that one ends."""
    issued = certificate(tmp_path, NOW + timedelta(days=300))
    renewed = tmp_path / "renewed.pem"
    renewed.write_bytes(b"")
    found = lines(check_tls_files(replace(issued, renewed=str(renewed)), NOW))

    assert "MEND  tls.renewed must be usable" in found
    assert f"certificate {issued.certificate}: valid until" in found


def renewed_beside_issued(
    folder: Path, name: str, kind: x509.ObjectIdentifier = NameOID.COMMON_NAME
) -> TlsFiles:
    """The certificate of localhost, and a renewed file of a name that ends later."""
    (folder / "other").mkdir()
    later = certificate(folder / "other", NOW + timedelta(days=600), name, kind)
    both = folder / "identity.pem"
    both.touch(0o600)
    both.write_bytes(
        b"".join(Path(str(p)).read_bytes() for p in (later.certificate, later.key))
    )
    Path(f"{both}.copy").write_bytes(both.read_bytes())
    return replace(certificate(folder, NOW + timedelta(days=300)), renewed=str(both))


def test_renewed_certificate_of_another_program_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two roles renewed into one file: each would speak under the other's name."""
    files = renewed_beside_issued(tmp_path, "gw-otani")
    found = lines(check_tls_files(files, NOW))

    assert select_certificate(files) == (files.certificate, files.key)
    assert "it is the certificate of 'gw-otani', and ours is of 'localhost'" in found
    assert f"certificate {files.certificate}: valid until" in found
    assert "'gw-otani'" in caplog.text
    assert f"{files.certificate} is used instead" in caplog.text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("localhost", NameOID.COMMON_NAME),
        ("gw-otani", NameOID.ORGANIZATIONAL_UNIT_NAME),
    ],
)
def test_renewed_certificate_of_the_same_or_no_name_is_used(
    tmp_path: Path, name: str, kind: x509.ObjectIdentifier
) -> None:
    """Only a name that differs is proof of a mistake."""
    files = renewed_beside_issued(tmp_path, name, kind)

    assert select_certificate(files) == (files.renewed, None)
    assert "MEND" not in lines(check_tls_files(files, NOW))


def test_brokers_certificate_that_ends_soon_is_reported(tmp_path: Path) -> None:
    """A real handshake: nothing renews it, and then every link is refused."""
    end = NOW + timedelta(days=3650)
    files = certificate(tmp_path, end)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(files.certificate), str(files.key))
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtts://localhost:{server.getsockname()[1]}"
        serving = threading.Thread(target=shake_hands, args=(server, context, 2))
        serving.start()
        well = lines(check_broker("x", url, files, end - timedelta(days=31)))
        soon = lines(check_broker("x", url, files, end - timedelta(days=29)))
        serving.join()

    assert well == f"ok    x: {url} accepts connections"
    assert soon.startswith(well)
    assert (
        f"MEND  x: certificate of {url} must be valid for 30 days, got 'end 2036-1"
        in soon
    )


def test_broker_that_does_not_answer(tmp_path: Path) -> None:
    """Closed port, unknown name, impossible name, and a port that speaks no TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        url = f"mqtt://127.0.0.1:{port}"
        assert lines(check_broker("ingest.broker", url, TlsFiles(), NOW)).startswith(
            "ok "
        )
    closed = lines(check_broker("ingest.broker", url, TlsFiles(), NOW))
    unknown = lines(check_broker("x", "mqtt://no-such.invalid:1883", TlsFiles(), NOW))
    impossible = lines(check_broker("x", "mqtt://no..such:1883", TlsFiles(), NOW))

    assert f"MEND  ingest.broker must accept connections, got '{url}'; " in closed
    assert "start the broker there" in closed
    assert "MEND  x must be a name that resolves, got 'no-such.invalid'" in unknown
    assert "MEND  x must be a name that resolves, got 'no..such'" in impossible


def test_broker_of_another_authority_has_the_remedy_of_tls(tmp_path: Path) -> None:
    """A real handshake; our files name another authority."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    server_files = certificate(theirs, NOW + timedelta(days=3650))
    own = certificate(ours, NOW + timedelta(days=3650))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(server_files.certificate), str(server_files.key))
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtts://localhost:{server.getsockname()[1]}"
        serving = threading.Thread(target=shake_hands, args=(server, context, 2))
        serving.start()
        refused = lines(check_broker("gateway.managers", url, own, NOW))
        accepted = lines(check_broker("gateway.managers", url, server_files, NOW))
        serving.join()

    assert "MEND  gateway.managers must accept our TLS link" in refused
    assert "the broker's certificate is of another authority" in refused
    assert accepted.startswith("ok ")

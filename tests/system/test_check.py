"""`gateway-daemon check`, `backend-spark check` and `edge-agent check` as commands."""

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from conftest import Broker
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from programs import run_command
from trust_bench import IssuingAuthority

from backend_spark.cli import check as backend_check
from backend_spark.cli import cli as backend
from gateway_daemon.cli import check as gateway_check
from gateway_daemon.cli import cli as gateway
from gateway_daemon.cli.check import check_broker_files
from service_runtime import machine_check
from service_runtime.machine_check import ServiceUser

GATEWAY = """
[gateway]
id = "gw"
broker = "{broker}"
managers = ["{broker}"]
data = "{data}"
[uplink]
time_zone = "Asia/Tokyo"
[[uplink.period]]
start = "22:00"
end = "05:00"
rate_bytes_per_s = 0
"""
MANAGER = """
[manager]
broker = "{broker}"
data = "{data}"
[[broker]]
topic = "/"
url = "mqtt://127.0.0.1:1"
"""
BROKER = """
[broker]
id = "d1"
local = "{broker}"
managers = ["mqtt://127.0.0.1:1"]
areas = ["/3"]
"""
SIGNER = '[signer]\nbroker = "{broker}"\n'
BACKEND = """
[backend]
data = "{data}"
[ingest]
broker = "{broker}"
[console]
port = {port}
"""
NODE = """
[node]
id = "n1"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["{broker}"]
[queue]
path = "{data}/queue.db"
[simulation]
start = "2026-07-01T00:00:00+09:00"
[[sensor]]
kind = "wire"
name = "span"
pin = 27
"""


class CheckedMachine:
    """A settings file, and the check of what it names."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder, self.broker = folder, broker
        self.data = folder / "data"

    def check(
        self, program: str, settings: str, *arguments: str
    ) -> tuple[int, list[str]]:
        """Run the check; returns its status and the lines of its output."""
        path = self.folder / "settings.toml"
        # The broker's port stands for one that another program uses.
        path.write_text(
            settings.format(
                broker=self.broker.url, data=self.data, port=self.broker.port
            )
        )
        words = ("check", "--config", str(path), *arguments)
        if program == "backend_spark":  # its entry prints mistakes in settings
            command = [sys.executable, "-m", program, *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        else:
            done = run_command(program, *words)
        return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.fixture
def machine(tmp_path: Path, broker: Broker) -> CheckedMachine:
    return CheckedMachine(tmp_path, broker)


@pytest.mark.broker
def test_kind_of_the_program_follows_from_the_settings(
    machine: CheckedMachine,
) -> None:
    """The brokers of each are tried; one that does not answer is named with its key."""
    gateway = machine.check("gateway_daemon", GATEWAY)[1]
    status, manager = machine.check("gateway_daemon", MANAGER)
    signer = machine.check("gateway_daemon", SIGNER)[1]
    announced = machine.check("gateway_daemon", BROKER)[1]
    url = machine.broker.url

    assert "settings of a gateway are valid" in gateway[0]
    assert f"ok    gateway.managers: {url} accepts connections" in gateway
    assert re.search(r"periods are in local time, now \S+ JST", gateway[-1])
    assert f"ok    manager.broker: {url} accepts connections" in manager
    assert status == 1
    (refused,) = (line for line in manager if "broker.url" in line)
    assert (
        "MEND  broker.url must accept connections, got 'mqtt://127.0.0.1:1'" in refused
    )
    assert f"ok    broker.local: {url} accepts connections" in announced
    assert any(line.startswith("MEND  broker.managers must") for line in announced)
    assert f"ok    signer.broker: {url} accepts connections" in signer


@pytest.mark.broker
def test_damaged_registry_of_a_manager_is_named(machine: CheckedMachine) -> None:
    """With it the Manager ends with 78 at each start, and the check said ok."""
    machine.data.mkdir()
    path = machine.data / "registry.json"
    path.write_text('{"records": [')
    damaged = machine.check("gateway_daemon", MANAGER)[1]
    path.unlink()
    new = machine.check("gateway_daemon", MANAGER)[1]

    # The free space of the disk may differ as well.
    mends = [line for line in set(damaged) - set(new) if line.startswith("MEND")]
    assert len(mends) == 1
    assert mends[0].startswith(f"MEND  {path} must be a registry, but")
    assert "move it away" in mends[0]


@pytest.mark.broker
def test_areas_outside_the_certificate_are_named(machine: CheckedMachine) -> None:
    """Every link was well, and the brokers refused every message."""
    authority = IssuingAuthority(machine.folder / "ca")

    def with_tls(settings: str, name: str) -> str:
        tls = authority.files(name)
        files = f'ca = "{tls.ca}"\ncertificate = "{tls.certificate}"\n'
        return f'{settings}[tls]\n{files}key = "{tls.key}"\n'

    def mends(program: str, settings: str) -> str:
        lines = machine.check(program, settings)[1]
        return " ".join(" ".join(lines).replace("|", " ").split())

    areas = 'areas = ["/1/2/2/0", "/1/2/3"]\n[uplink]'
    gateway = with_tls(GATEWAY.replace("[uplink]", areas), "gw")
    node = with_tls(NODE, "n1")
    authority.issue("gateway", "gw", "/3/1/1", "/1/2/2")
    authority.issue("node", "n1", "/3/1/1/2")
    foreign = mends("gateway_daemon", gateway), mends("edge_agent", node)
    authority.issue("gateway", "gw", "/1/2")
    authority.issue("node", "n1", "/1/2/2/2")
    inside = mends("gateway_daemon", gateway), mends("edge_agent", node)

    assert "gateway.areas must be inside the certificate" in foreign[0]
    assert "(/3/1/1 /1/2/2), got '/1/2/3'; issue it again with --cell" in foreign[0]
    assert "got '/1/2/2/0'" not in foreign[0]
    assert "node.latitude and longitude must be inside the certificate" in foreign[1]
    assert "(/3/1/1/2), got '/1/2/2/2/2/1/3/" in foreign[1].replace("' ", "'")
    assert "inside the certificate" not in inside[0] + inside[1]


@pytest.mark.broker
def test_backend_without_its_broker_and_with_a_taken_port(
    machine: CheckedMachine,
) -> None:
    """Only what the chosen services need is looked at."""
    status, lines = machine.check("backend_spark", BACKEND)
    ingest = machine.check("backend_spark", BACKEND, "ingest")[1]

    assert status == 1
    (taken,) = (line for line in lines if "console.port" in line)
    assert "must be free, got 'in use by mosquitto (process " in taken
    assert not any("console.port" in line or "java" in line for line in ingest)
    assert f"ok    ingest.broker: {machine.broker.url} accepts connections" in ingest


@pytest.mark.broker
def test_json_has_each_finding_and_decides_the_status(machine: CheckedMachine) -> None:
    """The status is 1 exactly if something must be mended."""
    status, (text,) = machine.check("backend_spark", BACKEND, "--json", "ingest")
    findings = json.loads(text)

    assert status == any(each["state"] == "mend" for each in findings)
    assert {"state", "text"} == set(findings[0])


@pytest.mark.broker
def test_wrong_settings_are_78(machine: CheckedMachine) -> None:
    """As for the programs themselves, before anything is looked at."""
    backend = machine.check("backend_spark", BACKEND + "colour = 1\n")
    gateway = machine.check("gateway_daemon", MANAGER + "colour = 1\n")
    unread = machine.check("backend_spark", '[backend]\ndata = "{data}"\n', "ingest")

    assert (backend[0], gateway[0], unread[0]) == (78, 78, 78)
    assert "console.colour is not a known key" in backend[1][0]
    assert "ingest.broker must be given to ingest" in unread[1][0]


@pytest.mark.broker
def test_node_that_cannot_write_its_queue_fails(machine: CheckedMachine) -> None:
    """A file stands where its folder belongs."""
    good = machine.check("edge_agent", NODE)
    machine.data.write_text("")
    status, lines = machine.check("edge_agent", NODE)
    text = " ".join(" ".join(lines).replace("|", " ").split())

    assert good[0] == 0, good[1]
    assert status == 1
    assert "!! queue.path must be a folder, got '" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_copied_files_that_mosquitto_cannot_read_are_named() -> None:
    """After `scp` as root the broker ended at each start."""
    with tempfile.TemporaryDirectory() as name:  # every user may enter it
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "acl").touch(0o600)
        (folder / "ca.pem").touch(0o644)
        before = [str(each) for each in check_broker_files(folder, "nobody")]
        shutil.chown(folder / "acl", "nobody")
        after = [*check_broker_files(folder, "nobody")]
        missing = [*check_broker_files(folder / "none", "nobody")]

    (found,) = before
    assert found.startswith(f"MEND  {folder}/acl must be readable by user nobody")
    assert found.endswith(f"; chown -R nobody: {folder}")
    assert after == missing == []


@pytest.mark.skipif(os.geteuid() != 0, reason="checks for another user as root")
def test_key_of_notices_is_checked_for_the_user_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With mode 600 by root `notify` ended with 78, and no siren sounded."""

    def check(user: ServiceUser | None = None) -> str:
        monkeypatch.setattr(backend_check, "find_service_user", lambda _config: user)
        command = ["check", "--config", str(settings), "notify"]
        return CliRunner().invoke(backend, command).output

    with tempfile.TemporaryDirectory() as name:  # every user may enter it
        folder = Path(name)
        folder.chmod(0o755)
        key, settings = folder / "notices.key", folder / "backend.toml"
        settings.write_text(
            f'[backend]\ndata = "{folder}"\n[notify]\nkey_file = "{key}"\n'
        )
        missing = check()
        key.write_bytes(
            Ed25519PrivateKey.generate().private_bytes(
                Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
            )
        )
        key.chmod(0o600)
        by_root, by_user = check(), check(ServiceUser(12345, (12345,)))
        os.chown(key, 0, 12345)
        key.chmod(0o640)
        granted = check(ServiceUser(12345, (12345,)))

    assert "MEND  notify.key_file: key must be a PEM file" in missing
    assert "notify.key_file" not in by_root
    assert "MEND  notify.key_file must be readable by the service" in by_user
    assert "notify.key_file" not in granted


@pytest.mark.broker
@pytest.mark.skipif(os.geteuid() != 0, reason="checks for another user as root")
@pytest.mark.parametrize(
    ("settings", "user"),
    [
        pytest.param(GATEWAY, "yamamori", id="gateway"),
        pytest.param(MANAGER, "yamamori", id="manager"),
        pytest.param(BROKER, "yamamori", id="broker"),
        pytest.param(SIGNER, "yamamori-ca", id="signer"),
    ],
)
def test_tls_files_are_checked_for_the_user_of_the_service(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, settings: str, user: str
) -> None:
    """With mode 600 by root the check passed, and the service ended at each start."""
    users = {user: ServiceUser(12345, (12345,))}
    monkeypatch.setattr(
        gateway_check, "find_service_user", lambda _config, name: users[name]
    )
    with tempfile.TemporaryDirectory() as name:  # every user may enter it
        folder = Path(name)
        folder.chmod(0o755)
        ca, path = folder / "ca.pem", folder / "settings.toml"
        ca.touch(0o600)
        path.write_text(
            settings.format(broker=broker.url, data=folder / "data")
            + f'[tls]\nca = "{ca}"\n'
        )

        def check() -> str:
            return CliRunner().invoke(gateway, ["check", "--config", str(path)]).output

        hidden = check()
        os.chown(ca, 0, 12345)
        ca.chmod(0o640)
        granted = check()

    assert "MEND  tls.ca must be readable by the service (user 12345)" in hidden
    assert "be readable by the service" not in granted


@pytest.mark.broker
@pytest.mark.skipif(os.geteuid() != 0, reason="checks for another user as root")
@pytest.mark.parametrize(
    ("module", "settings", "setting"),
    [
        pytest.param(gateway_check, GATEWAY, "gateway.data", id="gateway"),
        pytest.param(gateway_check, MANAGER, "manager.data", id="manager"),
        pytest.param(backend_check, BACKEND, "backend.data", id="backend"),
    ],
)
def test_data_folder_is_checked_for_the_user_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
    machine: CheckedMachine,
    module: ModuleType,
    settings: str,
    setting: str,
) -> None:
    """Root owned it all, and the check passed."""
    user = ServiceUser(12345, (12345,))
    monkeypatch.setattr(module, "find_service_user", lambda *_names: user)
    path = machine.folder / "settings.toml"
    path.write_text(
        settings.format(
            broker=machine.broker.url, data=machine.data, port=machine.broker.port
        )
    )

    def check() -> str:
        return CliRunner().invoke(module.check, ["--config", str(path)]).output

    missing = check()
    machine.data.mkdir()
    of_root = check()
    os.chown(machine.data, 12345, 12345)

    assert f"MEND  {setting} must be a folder that exists" in missing
    assert f"MEND  {setting}: {machine.data} must be writable by user 12345" in of_root
    assert f"ok    {setting}: {machine.data} is writable" in check()


@pytest.mark.skipif(os.geteuid() != 0, reason="checks for another user as root")
def test_signer_has_a_user_of_its_own_and_the_group_of_the_daemons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its unit adds that group, in which are the settings."""
    monkeypatch.setattr(machine_check, "SETTINGS_FOLDER", tmp_path)
    monkeypatch.setattr(machine_check, "USER", "mail")
    signer = machine_check.find_service_user(tmp_path / "signer.toml", "nobody")

    assert signer is not None
    assert signer.uid == pwd.getpwnam("nobody").pw_uid
    assert pwd.getpwnam("mail").pw_gid in signer.gids
    assert machine_check.find_service_user(tmp_path / "a.toml", "nowhere") is None


def test_accounts_of_the_console_are_read(machine: CheckedMachine) -> None:
    """A damaged file ends the console at its next start."""
    accounts = machine.folder / "accounts"
    accounts.write_text("suzuki:chief:secret\n")
    settings = BACKEND + f'accounts = "{accounts}"\n'
    _, lines = machine.check("backend_spark", settings, "console")

    assert any(line.startswith(f"MEND  {accounts} line 1") for line in lines)


def test_sender_of_cap_messages_is_checked(machine: CheckedMachine) -> None:
    """The console starts with a wrong one: only the drafts are refused."""
    for sender, is_wrong in (
        ("bosai city, <1>", True),
        ("bosai@city.example", False),
        ("https://city.example/bosai", False),
    ):
        settings = BACKEND + f'sender = "{sender}"\n'
        _, lines = machine.check("backend_spark", settings, "console")
        found = [line for line in lines if "console.sender" in line]
        assert any("settings are valid" in line for line in lines)
        wanted = (
            "MEND  console.sender must be a name without blanks, commas, < and &, got "
            f"'{sender}'; give an address such as bosai@city.example"
        )
        assert found == ([wanted] if is_wrong else [])
    _, lines = machine.check("backend_spark", BACKEND + 'sender = ""\n', "ingest")
    assert not any("console.sender" in line for line in lines)


def test_console_and_notify_at_one_port_are_named(tmp_path: Path) -> None:
    """With one certificate each ended the other's session, and notices were late."""
    certificate = '[tls]\ncertificate = "/a.pem"\nkey = "/a.key"\n'
    settings = tmp_path / "backend.toml"
    for url, tls, service, is_wrong in (
        ("mqtts://localhost:1", certificate, "console", True),
        ("mqtts://localhost:1", certificate, "notify", True),
        ("mqtts://localhost:2", certificate, "notify", False),
        ("mqtt://localhost:1", "", "notify", False),
    ):
        settings.write_text(
            f'[backend]\ndata = "{tmp_path}"\n[console]\nmanagers = ["{url}"]\n'
            f'[notify]\nbrokers = ["{url.replace("2", "1")}"]\n{tls}'
        )
        command = ["check", "--config", str(settings), service]
        lines = CliRunner().invoke(backend, command).output.splitlines()
        wanted = (
            "MEND  console.managers must have another port than in notify.brokers, "
            f"with one certificate, got '{url}'; name a Manager's port 8883 here, and "
            "its 8884 in notify.brokers"
        )
        assert any("settings are valid" in line for line in lines)
        found = [line for line in lines if "another port" in line]
        assert found == ([wanted] if is_wrong else [])

"""Whether the service of an installed node may write its queue."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge_agent.cli import check as check_module
from edge_agent.cli import cli
from edge_agent.cli.check import check_queue_place
from service_runtime.machine_check import ServiceUser
from service_runtime.tls import TlsFiles

RULE = "queue.path must be in a folder that the service may write, got"
OTHER = 12345
NODE = """
[node]
id = "n1"
latitude = 33.6
longitude = 133.6
[uplink]
gateway = "mqtt://127.0.0.1"
[[sensor]]
kind = "wire"
name = "w"
pin = 5
"""


def made(path: Path, owner: int | None = None) -> Path:
    path.mkdir(parents=True)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def problems(user: ServiceUser, queue: Path) -> list[str]:
    """Problems of a queue, where systemd makes the folder ``lib/state``."""
    state_folder = user.units / "lib/state"
    return [each.text for each in check_queue_place(user, queue, state_folder)]


@pytest.fixture
def drop_ins(tmp_path: Path) -> Path:
    """Folder of changes of the unit."""
    return made(tmp_path / "edge-agent.service.d")


def test_folder_of_the_unit_is_made_at_its_start(tmp_path: Path) -> None:
    other = ServiceUser(OTHER, units=tmp_path)

    assert problems(other, tmp_path / "lib/state/queue.db") == []


def test_folder_beside_that_of_the_unit_is_read_only(
    drop_ins: Path, tmp_path: Path
) -> None:
    """Whoever owns it, unless the unit names it."""
    queue = made(tmp_path / "data") / "queue.db"
    user = ServiceUser(os.getuid(), units=tmp_path)
    (found,) = problems(user, queue)
    (drop_ins / "data.conf").write_text(f"ReadWritePaths={queue.parent}\n")

    assert found.startswith(RULE)
    assert f"set a file in {tmp_path}/lib/state, or name the folder" in found
    assert problems(user, queue) == []


@pytest.mark.skipif(os.getuid() != 0, reason="changes owners, which needs root")
def test_folder_of_another_user_is_named(tmp_path: Path) -> None:
    """As when root has made it; also if it must be made there first."""
    state_folder = made(tmp_path / "lib/state", OTHER)
    for folder in ("", "more/queue"):
        queue = state_folder / folder / "queue.db"
        (found,) = problems(ServiceUser(0, units=tmp_path), queue)
        assert found.startswith(RULE)
        assert "install -d -o 0 " in found
        assert problems(ServiceUser(OTHER, units=tmp_path), queue) == []


def test_check_of_an_installed_node_refuses_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, and found nothing."""
    queue = tmp_path / "nowhere/queue.db"
    config = tmp_path / "node.toml"
    config.write_text(f'[queue]\npath = "{queue}"\n{NODE}', encoding="utf-8")
    command = ["check", "--config", str(config), "--no-sensors", "--json"]
    before = CliRunner().invoke(cli, command)
    user = ServiceUser(os.getuid(), units=tmp_path)
    monkeypatch.setattr(check_module, "find_service_user", lambda _config: user)
    after = CliRunner().invoke(cli, command)

    assert "queue.path" not in json.dumps(json.loads(before.stdout)["problems"])
    assert RULE in json.dumps(json.loads(after.stdout)["problems"])
    assert after.exit_code == 1


@pytest.fixture
def etc() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def tls_problems(user: ServiceUser, path: Path | str) -> list[str]:
    files = TlsFiles(ca=__file__, certificate=str(path))
    found = user.check_tls(files)
    return [each.text for each in found if "tls.certificate" in each.text]


@pytest.mark.skipif(os.getuid() != 0, reason="changes owners, which needs root")
def test_certificate_that_the_service_cannot_read_is_named(etc: Path) -> None:
    """Root can read it, so the check passed and the service failed for ever."""
    folder, other = made(etc / "tls"), ServiceUser(OTHER)
    member = ServiceUser(OTHER, (OTHER,))
    file = folder / "n1.pem"
    file.touch(0o640)
    folder.chmod(0o700)
    (hidden,) = tls_problems(other, file)
    folder.chmod(0o755)
    (secret,) = tls_problems(member, file)
    os.chown(file, 0, OTHER)

    assert "tls.certificate must be readable by the service" in hidden
    assert f"{folder} forbids it" in hidden
    assert f"{file} forbids it" in secret
    assert tls_problems(member, file) == []
    assert tls_problems(other, file) == [secret]


def test_credential_needs_a_drop_in(drop_ins: Path, tmp_path: Path) -> None:
    """Systemd makes the file at the start of the unit."""
    path = "/run/credentials/edge-agent.service/cert.pem"
    user = ServiceUser(os.getuid(), units=tmp_path)
    (found,) = tls_problems(user, path)
    (drop_ins / "keys.conf").write_text(
        "[Service]\nLoadCredential=cert.pem:/etc/yamamori/tls/cert.pem\n"
    )

    assert "LoadCredential=cert.pem:" in found
    assert tls_problems(user, path) == []


def test_check_of_an_installed_node_tests_its_tls_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the node leaves the office."""
    folder = made(tmp_path / "tls")
    folder.chmod(0o700)
    config = tmp_path / "node.toml"
    tls = f'[tls]\ncertificate = "{folder}/n1.pem"\n'
    config.write_text(f'{NODE}{tls}[queue]\npath = "{tmp_path}/q.db"\n', "utf-8")
    user = ServiceUser(OTHER, units=tmp_path)
    monkeypatch.setattr(check_module, "find_service_user", lambda _config: user)
    command = ["check", "--config", str(config), "--no-sensors", "--json"]
    done = CliRunner().invoke(cli, command)

    assert "tls.certificate must be readable by the service" in done.stdout

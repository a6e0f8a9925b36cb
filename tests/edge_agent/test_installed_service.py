"""Whether the service of an installed node may write its queue."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge_agent.cli import check as check_module
from edge_agent.cli import cli
from edge_agent.cli.installed_service import InstalledService

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


def problems(service: InstalledService, queue: Path) -> list[str]:
    return [each.text for each in service.check(queue)]


@pytest.fixture
def service(tmp_path: Path) -> InstalledService:
    """A service whose folder systemd will make."""
    return InstalledService(
        os.getuid(), tmp_path / "lib/state", made(tmp_path / "drop-ins")
    )


def test_folder_of_the_unit_is_made_at_its_start(service: InstalledService) -> None:
    other = InstalledService(OTHER, service.state_folder, service.drop_ins)

    assert problems(other, service.state_folder / "queue.db") == []


def test_folder_beside_that_of_the_unit_is_read_only(
    service: InstalledService, tmp_path: Path
) -> None:
    """Whoever owns it, unless the unit names it."""
    queue = made(tmp_path / "data") / "queue.db"
    (found,) = problems(service, queue)
    (service.drop_ins / "data.conf").write_text(f"ReadWritePaths={queue.parent}\n")

    assert found.startswith(RULE)
    assert f"set a file in {service.state_folder}, or name the folder" in found
    assert problems(service, queue) == []


@pytest.mark.skipif(os.getuid() != 0, reason="changes owners, which needs root")
def test_folder_of_another_user_is_named(service: InstalledService) -> None:
    """As when root has made it; also if it must be made there first."""
    made(service.state_folder, OTHER)
    own = InstalledService(OTHER, service.state_folder, service.drop_ins)
    for folder in ("", "more/queue"):
        queue = service.state_folder / folder / "queue.db"
        (found,) = problems(service, queue)
        assert found.startswith(RULE)
        assert f"install -d -o {service.uid} " in found
        assert problems(own, queue) == []


def test_check_of_an_installed_node_refuses_the_path(
    service: InstalledService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, and found nothing."""
    queue = tmp_path / "nowhere/queue.db"
    config = tmp_path / "node.toml"
    config.write_text(f'[queue]\npath = "{queue}"\n{NODE}', encoding="utf-8")
    command = ["check", "--config", str(config), "--no-sensors", "--json"]
    before = CliRunner().invoke(cli, command)
    monkeypatch.setattr(check_module, "find_service", lambda _config: service)
    after = CliRunner().invoke(cli, command)

    assert "queue.path" not in json.dumps(json.loads(before.stdout)["problems"])
    assert RULE in json.dumps(json.loads(after.stdout)["problems"])
    assert after.exit_code == 1

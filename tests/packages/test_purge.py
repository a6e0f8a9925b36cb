"""What the scripts of the packages delete when a role is purged."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shared", [True, False])
def test_purge_of_a_node_leaves_the_certificate_of_the_gateway(
    tmp_path: Path, shared: bool
) -> None:
    """Also of an installation whose roles have the same file in their settings."""
    state, settings = tmp_path / "lib/yamamori", tmp_path / "etc/yamamori"
    files = {
        "node": state / ("identity.pem" if shared else "identity-node.pem"),
        "gateway": state / ("identity.pem" if shared else "identity-gateway.pem"),
    }
    (state / "gateway").mkdir(parents=True)
    settings.mkdir(parents=True)
    for role, path in files.items():
        (settings / f"{role}.toml").write_text(f'[tls]\nrenewed = "{path}"\n')
        path.touch()
        Path(f"{path}.copy").touch()
    (state / "queue.db").touch()
    (state / "identity-node.pem.requested.key").touch()
    script = (ROOT / "debian/yamamori-node.postrm").read_text()
    for real, ours in (("/var/lib/", "lib/"), ("/etc/", "etc/")):
        script = script.replace(real, f"{tmp_path}/{ours}")
    subprocess.run(["sh", "-c", script, "postrm", "purge"], check=True)

    left = files["gateway"].name
    assert {path.name for path in state.iterdir()} == {
        *("gateway", left, f"{left}.copy")
    }

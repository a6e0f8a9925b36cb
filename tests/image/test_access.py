"""SSH login is limited to the keys in the settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.config import parse_node_settings
from service_runtime.settings import SettingsError, parse_toml

ACCESS = Path(__file__).parents[2] / "image/files/usr/lib/yamamori/access"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEjS operator@office"
NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
gateway = "mqtts://gw"
[[sensor]]
kind = "node"
name = "box"
"""


def start(root: Path, access: str) -> int:
    """Run the image's script on a card with these settings; returns its exit status."""
    (root / "etc/yamamori").mkdir(parents=True, exist_ok=True)
    (root / "etc/yamamori/node.toml").write_text(NODE + access)
    maker = root / "dropbearkey"
    maker.write_text('#!/bin/sh\necho made > "$4"\n')
    maker.chmod(0o755)
    env = {
        "PATH": f"{root}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "YAMAMORI_ROOT": str(root),
    }
    return subprocess.run([ACCESS], env=env, check=False).returncode


@pytest.mark.parametrize("access", ["", "[access]\n", "[access]\nssh_keys = []\n"])
def test_login_is_disabled_by_default(tmp_path: Path, access: str) -> None:
    """With status 1, systemd does not start the server."""
    assert start(tmp_path, access) == 1


def test_keys_of_the_settings_may_log_in(tmp_path: Path) -> None:
    """The host key is created once, on the data partition."""
    assert start(tmp_path, f'[access]\nssh_keys = ["{KEY}"]\n') == 0
    keys = tmp_path / "run/yamamori-access/authorized_keys"
    assert keys.read_text() == KEY + "\n"
    assert keys.stat().st_mode & 0o777 == 0o600
    assert keys.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "data/etc/ssh/key").write_text("kept")

    assert start(tmp_path, f'[access]\nssh_keys = ["{KEY}"]\n') == 0
    assert (tmp_path / "data/etc/ssh/key").read_text() == "kept"


def test_key_removed_from_the_settings_is_removed_at_the_next_start(
    tmp_path: Path,
) -> None:
    """The list of accepted keys is then empty."""
    start(tmp_path, f'[access]\nssh_keys = ["{KEY}"]\n')
    assert start(tmp_path, "[access]\nssh_keys = []\n") == 1
    assert (tmp_path / "run/yamamori-access/authorized_keys").read_text() == ""


@pytest.mark.parametrize(
    "key", ['command="x" ssh-ed25519 AAAA', "hello", "-----BEGIN PRIVATE KEY-----"]
)
def test_invalid_public_key_is_refused(tmp_path: Path, key: str) -> None:
    """The settings reject it, and the script omits it."""
    access = f"[access]\nssh_keys = ['{key}']\n"
    with pytest.raises(SettingsError, match=r"ssh_keys must be a public key's"):
        parse_node_settings(
            parse_toml(NODE.replace("[[sensor]]", f"{access}[[sensor]]"))
        )
    assert start(tmp_path, access) == 1

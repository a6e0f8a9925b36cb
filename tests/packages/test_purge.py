"""What the packages remove: another role in an upgrade, and files in a purge."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


ROLES = ("common", "node", "gateway", "backend", "console")


def make_packages(folder: Path, version: str) -> dict[str, str]:
    """Empty packages with our names and our dependencies on one another.

    Returns:
        The control file of each, by role.
    """
    text = (ROOT / "debian/control").read_text().replace("${source:Version}", version)
    made = {}
    for role in ROLES:
        stanza = text.partition(f"Package: yamamori-{role}\n")[2].partition("\n\n")[0]
        ours = re.findall(r"yamamori-\w+ \([^)]*\)", stanza)
        made[role] = (
            f"Package: yamamori-{role}\nVersion: {version}\nArchitecture: all\n"
            "Maintainer: Yamamori <maintainers@yamamori.example>\n"
            + f"Depends: {', '.join(ours)}\n" * bool(ours)
            + "Description: empty\n"
        )
        root = folder / f"{role}-{version}"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text(made[role])
        package = folder / f"yamamori-{role}_{version}.deb"
        subprocess.run(["dpkg-deb", "-b", root, package], check=True)
    return made


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs Debian's apt")
@pytest.mark.parametrize("role", ["node", "backend"])
def test_upgrade_of_one_role_keeps_the_others(tmp_path: Path, role: str) -> None:
    """It removed, and so stopped, the gateway beside a node."""
    installed = make_packages(tmp_path, "1")
    make_packages(tmp_path, "2")
    (tmp_path / "lists/partial").mkdir(parents=True)
    (tmp_path / "status").write_text(
        "".join(
            control.replace("\n", "\nStatus: install ok installed\n", 1) + "\n"
            for control in installed.values()
        )
    )

    done = subprocess.run(
        [
            *("apt-get", "--simulate", "--no-remove", "install"),
            *("-o", f"Dir::State={tmp_path}", "-o", f"Dir::Cache={tmp_path}"),
            *("-o", f"Dir::State::status={tmp_path}/status"),
            *("-o", "Dir::Etc::sourcelist=/dev/null"),
            *("-o", "Dir::Etc::sourceparts=/dev/null"),
            *(f"{tmp_path}/yamamori-{each}_2.deb" for each in ("common", role)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"^(?:Inst|Remv) \S+", done.stdout, re.MULTILINE)) == {
        "Inst yamamori-common",
        f"Inst yamamori-{role}",
    }


@pytest.mark.parametrize("shared", [True, False])
def test_purge_of_a_node_leaves_what_is_not_its_own(
    tmp_path: Path, shared: bool
) -> None:
    """Backups, imports, and a certificate that two roles have in their settings."""
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
    for name in ("queue.db", "queue.db-wal", "queue.db.reserve", "gateways.json"):
        (state / name).touch()
    (state / "last-node.toml").touch()
    (state / "update").mkdir()
    for name in ("backend", "backup", "forecast"):
        (state / name).mkdir()
    (state / "identity-node.pem.requested.key").touch()
    script = (ROOT / "debian/yamamori-node.postrm").read_text()
    for real, ours in (("/var/lib/", "lib/"), ("/etc/", "etc/")):
        script = script.replace(real, f"{tmp_path}/{ours}")
    subprocess.run(["sh", "-c", script, "postrm", "purge"], check=True)

    left = files["gateway"].name
    assert {path.name for path in state.iterdir()} == {
        *("gateway", "backend", "backup", "forecast", left, f"{left}.copy")
    }

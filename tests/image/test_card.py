"""Network and time servers from the boot partition."""

import os
import subprocess
from pathlib import Path

import pytest

CARD = Path(__file__).parents[2] / "image/files/usr/lib/yamamori/card"


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """The folder for the installer's files."""
    folder = tmp_path / "boot/firmware/yamamori"
    (folder / "network").mkdir(parents=True)
    return folder


def start(root: Path) -> dict[str, str]:
    """Run the image's script; returns its files below /run by name."""
    env = {"PATH": os.environ["PATH"], "YAMAMORI_ROOT": str(root)}
    subprocess.run([CARD], env=env, check=True)
    files = filter(Path.is_file, (root / "run").rglob("*"))
    return {path.name: path.read_text() for path in files}


@pytest.mark.parametrize("end", ["", ".txt"])
def test_network_and_time_servers_of_the_card_are_used(
    tmp_path: Path, card: Path, end: str
) -> None:
    """Windows writes other line ends and may add `.txt` to a name."""
    (card / f"network/own.network{end}").write_bytes(b"[Match]\r\nName=eth0\r\n")
    (card / f"ntp.txt{end}").write_bytes(b"192.168.8.1\r\nntp.example\r\n")
    files = start(tmp_path)

    assert files["own.network"] == "[Match]\nName=eth0\n"
    assert files["card.conf"].split() == ["[Time]", "NTP=192.168.8.1", "ntp.example"]
    assert files["card.sources"] == (
        "server 192.168.8.1 iburst\nserver ntp.example iburst\n"
    )


def test_file_with_the_right_name_has_precedence(tmp_path: Path, card: Path) -> None:
    """As with the settings of a node."""
    for name in ("network/own.network", "ntp.txt"):
        (card / name).write_text("right\n")
        (card / f"{name}.txt").write_text("other\n")
    files = start(tmp_path)

    assert files["own.network"] == "right\n"
    assert files["card.sources"] == "server right iburst\n"


def test_card_without_these_files_changes_nothing(tmp_path: Path, card: Path) -> None:
    """The network is then configured by DHCP."""
    assert card.is_dir()
    assert start(tmp_path) == {}

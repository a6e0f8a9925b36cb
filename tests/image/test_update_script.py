"""The image's script that installs bundles, on a folder instead of a card."""

import os
import subprocess
from pathlib import Path

import pytest

UPDATE = Path(__file__).parents[2] / "image/files/usr/lib/yamamori/update"
WRITTEN = "Version 2 is written; it is kept if it works."


class Card:
    """A node's card in a folder, without a bundle; version 1 runs from slot a.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        folders = "boot/firmware/yamamori bin data/slot etc run var/lib/yamamori/update"
        for name in folders.split():
            (root / name).mkdir(parents=True)
        self.fetched = root / "var/lib/yamamori/update"
        self.report = root / "boot/firmware/yamamori/update-report.txt"
        self.boot("a good")
        self._write_program("systemctl", f"echo $1 >> {root}/calls")

    def boot(self, slot: str, version: str = "1") -> None:
        """Start from a slot; the initrd has removed the file of a trial."""
        (self.root / "data/slot/trial").unlink(missing_ok=True)
        (self.root / "run/yamamori-slot").write_text(f"{slot} vda\n")
        (self.root / "etc/yamamori-image").write_text(f"role=node\nversion={version}\n")

    def update(self, *bundles: str, words: str = WRITTEN, status: int = 0) -> int:
        """Run the script on bundles of the agent; returns its exit status.

        `bundle.py` prints these words and ends with a status.
        """
        for name in bundles:
            (self.fetched / f"{name}.update").write_text(name)
        self._write_program("python", f"echo '{words}'\nexit {status}")
        env = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "PYTHON": f"{self.root}/bin/python",
            "YAMAMORI_ROOT": str(self.root),
        }
        return subprocess.run([UPDATE], env=env, check=False).returncode

    def state(self, name: str) -> str:
        """A file in the folder of the slots; empty without one."""
        path = self.root / "data/slot" / name
        return path.read_text() if path.exists() else ""

    @property
    def reboots(self) -> int:
        """How often the script has requested a reboot."""
        path = self.root / "calls"
        return path.read_text().count("reboot") if path.exists() else 0

    def _write_program(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


@pytest.fixture
def card(tmp_path: Path) -> Card:
    return Card(tmp_path)


@pytest.fixture
def worn(card: Card) -> Card:
    """A card whose boot partition takes no report."""
    card.report.with_name("update-report.txt.new").mkdir()
    return card


def test_trial_begins_without_a_report(worn: Card) -> None:
    """The machine restarts, and the bundle is not taken again."""
    assert worn.update("new") == 0
    assert worn.state("trial") == "b\n"
    assert worn.reboots == 1
    assert not list(worn.fetched.iterdir())


@pytest.mark.parametrize(
    ("words", "status", "file"),
    [("no signature", 1, "refused"), ("2 is applied", 3, "history")],
)
def test_bundle_is_removed_without_a_report(
    worn: Card, words: str, status: int, file: str
) -> None:
    """The path unit would start the script for the same bundle for ever."""
    assert worn.update("new", words=words, status=status) == 0
    assert words in worn.state(file)
    assert not list(worn.fetched.iterdir())


def test_bundle_that_was_tried_is_removed_without_a_report(worn: Card) -> None:
    """It is not written again."""
    worn.update("new")
    worn.boot("a good")

    assert worn.update("new") == 0
    assert worn.reboots == 1
    assert not list(worn.fetched.iterdir())

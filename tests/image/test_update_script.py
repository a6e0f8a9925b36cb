"""The image's scripts that install and try bundles, on a folder instead of a card."""

import os
import subprocess
from pathlib import Path

import pytest

from edge_agent.updates import ImageInfo

SCRIPTS = Path(__file__).parents[2] / "image/files/usr/lib/yamamori"
WRITTEN = "Version 2 is written; it is kept if it works."


class Card:
    """A node's card in a folder, without a bundle; version 1 runs from slot a.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        folders = "boot/firmware/yamamori bin data/slot dev etc run"
        for name in (*folders.split(), "var/lib/yamamori/update"):
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
        return self._run("update", PYTHON=f"{self.root}/bin/python")

    def watch(self, agent: str) -> int:
        """Run the script that watches a start, with the agent's unit in that state."""
        calls = f"echo $1 >> {self.root}/calls"
        show = f'case "$*" in *--value*) echo 0 ;; *) echo ActiveState={agent} ;; esac'
        self._write_program("systemctl", f"{calls}\n{show}")
        return self._run("slot", LOOK_S="0.01")

    def result(self) -> str | None:
        """Result of version 2 that the agent reports."""
        tried = self.state("tried").split()
        return ImageInfo(self.root).bundle_result(tried[0], "2") if tried else None

    def state(self, name: str) -> str:
        """A file in the folder of the slots; empty without one."""
        path = self.root / "data/slot" / name
        return path.read_text() if path.exists() else ""

    @property
    def reboots(self) -> int:
        """How often the script has requested a reboot."""
        path = self.root / "calls"
        return path.read_text().count("reboot") if path.exists() else 0

    def _run(self, name: str, **more: str) -> int:
        path = f"{self.root}/bin:{os.environ['PATH']}"
        env = {"PATH": path, "YAMAMORI_ROOT": str(self.root), **more}
        return subprocess.run([SCRIPTS / name], env=env, check=False).returncode

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


@pytest.mark.parametrize("kind", ["good", "rescue"])
def test_trial_without_a_result_is_given_up_at_the_next_start(
    card: Card, kind: str
) -> None:
    """After a hang or a power cut, or when the slot of the trial cannot be mounted."""
    card.update("new")
    assert card.result() == "on trial in slot b"
    card.boot(f"a {kind}")
    card.update()
    card.update()

    assert str(card.result()).startswith("given up: its trial ended by a hang")
    assert card.state("history").count("given up") == 1


def test_bundle_of_the_trial_is_removed_after_a_power_cut(card: Card) -> None:
    """The path unit would start the script for it until it fails."""
    card.update("new")
    (card.fetched / "new.update").write_text("new")  # its removal was not on disk
    card.boot("b trial", version="2")

    assert card.update() == 0
    assert not list(card.fetched.iterdir())
    assert card.reboots == 1


def test_trial_that_has_not_begun_is_not_given_up(card: Card) -> None:
    """The script may start once more before the reboot."""
    card.update("new")
    card.update()

    assert card.result() == "on trial in slot b"


@pytest.mark.parametrize("line", ["given up: edge-agent is failed", None])
def test_result_of_a_trial_is_kept(card: Card, line: str | None) -> None:
    """Also when power fails between the choice of the slot and its line."""
    card.update("new")
    history = card.root / "data/slot/history"
    if line is not None:
        history.write_text(f"{history.read_text()}2026-01-01 version 2 {line}\n")
    before = card.state("history")
    card.boot("b good" if line is None else "a good", version="2")
    card.update()

    assert card.state("history") == before


def test_machine_on_its_other_slot_reports_that_it_takes_no_update(card: Card) -> None:
    """The bundle waits, as the next start may read the slot again."""
    (card.root / "data/slot/good").write_text("b\n")
    card.boot("a rescue")

    assert card.update("new") == 0
    assert "RESULT: RESCUE. Slot b cannot be read: version 1" in card.report.read_text()
    assert len(list(card.fetched.iterdir())) == 1
    assert card.reboots == 0
    assert ImageInfo(card.root).is_rescued


@pytest.mark.parametrize(("agent", "reboots"), [("active", 0), ("failed", 1)])
def test_start_from_a_read_only_card_ends_when_the_agent_does_not_live(
    card: Card, agent: str, reboots: int
) -> None:
    """Nothing is written, as there is no trial."""
    card.boot("a readonly")

    assert card.watch(agent) == 0
    assert card.reboots == reboots
    assert not list((card.root / "data/slot").iterdir())


def test_no_update_is_installed_on_a_read_only_card(card: Card) -> None:
    """It could not be recorded as tried."""
    card.boot("a readonly")

    assert card.update("new") == 0
    assert card.reboots == 0
    assert len(list(card.fetched.iterdir())) == 1

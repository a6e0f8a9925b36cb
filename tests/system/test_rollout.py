"""An update for the nodes of an area, from the office's word to what came of it.

Agent, gateway, Manager and brokers are real, and so are the image's own scripts; the
card is a folder, and restarting it is what the test does.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Programs
from way_back_bench import Agent, write_keys

from image.bundle import make
from spatial_mqtt.retained import fetch_retained
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "image/files/usr/lib/yamamori"
NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
gateway = "{url}"
[queue]
path = "{card}/var/lib/yamamori/queue.db"
[update]
keys = ["{folder}/office.pub"]
[[sensor]]
kind = "node"
name = "box"
interval_s = 3600
"""


class Pi:
    """The card of a node, as its image's scripts see it."""

    def __init__(self, folder: Path, public_key: Path) -> None:
        self.root = folder / "card"
        folders = "boot/firmware/yamamori bin data/slot dev etc run usr/lib/yamamori"
        for name in (*folders.split(), "usr/share/yamamori", "var/lib/yamamori"):
            (self.root / name).mkdir(parents=True)
        shutil.copy(public_key, self.root / "usr/share/yamamori/update.pub")
        shutil.copy(ROOT / "image/bundle.py", self.root / "usr/lib/yamamori")
        for slot in ("dev/vda2", "dev/vda3"):
            (self.root / slot).write_bytes(bytes(3 << 20))
        self.boot("1", "a good")

    def boot(self, version: str, slot: str) -> None:
        """Start a version from a slot."""
        (self.root / "etc/yamamori-image").write_text(about(version))
        (self.root / "run/yamamori-slot").write_text(f"{slot} vda\n")

    def script(self, name: str, agent: str = "active") -> None:
        """Run one of the image's scripts, for an agent in that state."""
        systemctl = self.root / "bin/systemctl"
        systemctl.write_text(
            f'#!/bin/sh\ncase "$*" in reboot) echo >> {self.root}/reboots ;;\n'
            f'"show --value"*) echo 0 ;; *) echo ActiveState={agent} ;; esac\n'
        )
        systemctl.chmod(0o755)
        env = {
            **os.environ,
            "PATH": f"{systemctl.parent}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "YAMAMORI_ROOT": str(self.root),
            "LOOK_S": "0.01",
        }
        subprocess.run([SCRIPTS / name], env=env, check=True, capture_output=True)

    def data(self, name: str) -> str:
        """What the scripts have noted."""
        return (self.root / "data/slot" / name).read_text()

    @property
    def bundles(self) -> list[Path]:
        """What the agent has fetched."""
        return list((self.root / "var/lib/yamamori/update").glob("*.update"))


@dataclass
class Valley:
    """An office, a gateway whose folder holds the bundle, a node and its card."""

    manager: Broker
    folder: Path
    pi: Pi
    agent: Agent

    @property
    def bundle(self) -> Path:
        return self.folder / "new.update"

    def roll_out(self, *more: str, key: str = "office") -> str:
        """The office's word."""
        command = f"rollout --manager {self.manager.url} {self.bundle} /1"
        done = subprocess.run(
            [sys.executable, "-m", "gateway_daemon", *command.split(),
             "--key", self.folder / key, *more],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def says(self, words: str) -> None:
        """Wait until the agent says so of its update."""
        wait_until(lambda: words in str(self.agent.status().get("update")))


def about(version: str) -> str:
    facts = ("role=node", f"version={version}", f"kernel={platform.release()}")
    return "\n".join((*facts, f"epoch={version}")) + "\n"


@pytest.fixture
def valley(
    make_broker: Callable[[], Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Valley]:
    """Everything runs; nothing is rolled out yet."""
    write_keys(tmp_path)
    programs = Programs(tmp_path)
    manager, local, distributed = make_broker(), make_broker(), make_broker()
    programs.start(
        "manager",
        "manager",
        f'[manager]\nbroker = "{manager.url}"\ndata = "{tmp_path}/manager"\n'
        f'[[broker]]\ntopic = "/"\nurl = "{distributed.url}"\n',
    )
    programs.start(
        "gateway",
        "run",
        f'[gateway]\nid = "gw"\nbroker = "{local.url}"\n'
        f'managers = ["{manager.url}"]\nareas = ["/1"]\ndata = "{tmp_path}/gw"\n',
    )
    fetch_retained(local.endpoint, offer_topic("gw"), "probe", 60)
    pi = Pi(tmp_path, tmp_path / "office.pub")
    monkeypatch.setenv("YAMAMORI_ROOT", str(pi.root))
    text = NODE.format(url=local.url, card=pi.root, folder=tmp_path)
    with Agent(tmp_path, text) as agent:
        yield Valley(manager, tmp_path, pi, agent)
    programs.kill_all()


def build(valley: Valley) -> bytes:
    """A bundle of version 2 in the gateway's folder; what its root holds."""
    root = valley.folder / "root.squashfs"
    root.write_bytes(os.urandom((2 << 20) + 77))
    facts = dict(line.split("=") for line in about("2").splitlines())
    make(root, facts, valley.folder / "office", valley.bundle)
    folder = valley.folder / "gw/updates"
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(valley.bundle.read_bytes()).hexdigest()
    shutil.copy(valley.bundle, folder / f"{name}.update")
    return root.read_bytes()


def test_update_is_fetched_tried_and_kept(valley: Valley) -> None:
    """The word, the bytes over the node's own link, the slot, the trial, the end."""
    told = build(valley)
    valley.roll_out()
    valley.says("fetched, to be written")
    assert valley.pi.bundles[0].read_bytes() == valley.bundle.read_bytes()

    valley.pi.script("update")
    assert (valley.pi.root / "dev/vda3").read_bytes().startswith(told)
    assert valley.pi.data("trial") == "b\n"
    assert (valley.pi.root / "reboots").exists()
    assert not valley.pi.bundles
    valley.pi.boot("2", "b trial")
    valley.says("2: on trial")
    valley.pi.script("slot")
    assert valley.pi.data("good") == "b\n"
    valley.says("2: runs")


def test_update_that_does_not_work_is_undone_and_told(valley: Valley) -> None:
    """It is not fetched again, and `edge-agent status` says why."""
    build(valley)
    valley.roll_out()
    valley.says("fetched, to be written")
    valley.pi.script("update")
    valley.pi.boot("2", "b trial")
    valley.pi.script("slot", agent="failed")
    valley.pi.boot("1", "a good")

    valley.says("2: given up: edge-agent is failed")
    assert not valley.pi.bundles
    assert "update 2: given up: edge-agent is failed" in valley.agent.shown()
    assert (valley.pi.root / "reboots").read_text() == "\n\n"


def test_bundle_of_another_builder_is_refused(valley: Valley) -> None:
    """The office's word alone does not do: the bundle's own signature counts."""
    build(valley)
    (valley.folder / "other").mkdir()
    write_keys(valley.folder / "other")
    other = valley.folder / "other/office.pub"
    shutil.copy(other, valley.pi.root / "usr/share/yamamori/update.pub")
    valley.roll_out()
    valley.says("fetched, to be written")
    valley.pi.script("update")

    valley.says("2: refused: the signature must be of the key")
    assert not valley.pi.bundles
    assert not (valley.pi.root / "reboots").exists()


def test_word_of_a_stranger_changes_nothing(valley: Valley) -> None:
    """Whoever may publish at the Manager's broker is not yet the office."""
    build(valley)
    (valley.folder / "other").mkdir()
    write_keys(valley.folder / "other")
    valley.roll_out(key="other/office")

    valley.says("rollout refused on /update/1: notice must be signed for /update/1")
    assert not valley.pi.bundles

"""An update for the nodes of an area, from the rollout command to its result.

Agent, gateway, Manager, brokers and the image's scripts are real; the SD card is a
folder, and the test simulates its reboots.
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
from notice_bench import Agent, write_keys
from programs import Programs

from image.bundle import key_id, make, read_keys
from spatial_mqtt.client import fetch_retained
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
    """The SD card of a node, as the image's scripts see it."""

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
        """Simulate a boot of a version from a slot."""
        (self.root / "etc/yamamori-image").write_text(about(version))
        (self.root / "run/yamamori-slot").write_text(f"{slot} vda\n")

    def script(self, name: str, agent: str = "active") -> None:
        """Run one of the image's scripts with the agent's unit in that state."""
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
        """Content of a file that the scripts have written."""
        return (self.root / "data/slot" / name).read_text()

    @property
    def bundles(self) -> list[Path]:
        """Bundles that the agent has downloaded."""
        return list((self.root / "var/lib/yamamori/update").glob("*.update"))


@dataclass
class Deployment:
    """A Manager, a gateway whose folder holds the bundle, a node and its card."""

    manager: Broker
    folder: Path
    pi: Pi
    agent: Agent

    @property
    def bundle(self) -> Path:
        return self.folder / "new.update"

    def roll_out(self, *more: str, key: str = "office") -> str:
        """Publish the signed rollout; returns the output."""
        command = f"rollout --manager {self.manager.url} {self.bundle} /1"
        done = subprocess.run(
            [sys.executable, "-m", "gateway_daemon", *command.split(),
             "--key", self.folder / key, *more],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def wait_for_status(self, text: str) -> None:
        """Wait until the agent's update status contains a text."""
        wait_until(lambda: text in str(self.agent.status().get("update")))


def about(version: str) -> str:
    facts = ("role=node", f"version={version}", f"kernel={platform.release()}")
    return "\n".join((*facts, f"epoch={version}")) + "\n"


@pytest.fixture
def deployment(
    make_broker: Callable[[], Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    """Everything is running; no update is rolled out yet."""
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
        yield Deployment(manager, tmp_path, pi, agent)
    programs.kill_all()


def build(
    deployment: Deployment, key: Path | None = None, revoked: Path | None = None
) -> bytes:
    """Put a bundle of version 2 into the gateway's folder; returns its root image.

    With a key to revoke the bundle has no root.
    """
    root = deployment.folder / "root.squashfs"
    root.write_bytes(os.urandom((2 << 20) + 77))
    facts = dict(line.split("=") for line in about("2").splitlines())
    make(
        root if revoked is None else None,
        facts,
        key or deployment.folder / "office",
        deployment.bundle,
        revoked=[] if revoked is None else map(key_id, read_keys(revoked.read_bytes())),
    )
    folder = deployment.folder / "gw/updates"
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(deployment.bundle.read_bytes()).hexdigest()
    shutil.copy(deployment.bundle, folder / f"{name}.update")
    return root.read_bytes()


def test_update_is_fetched_tried_and_kept(deployment: Deployment) -> None:
    """Rollout, download over the node's link, writing the slot, trial, confirmation."""
    image = build(deployment)
    deployment.roll_out()
    deployment.wait_for_status("fetched, to be written")
    assert deployment.pi.bundles[0].read_bytes() == deployment.bundle.read_bytes()

    deployment.pi.script("update")
    assert (deployment.pi.root / "dev/vda3").read_bytes().startswith(image)
    assert deployment.pi.data("trial") == "b\n"
    assert (deployment.pi.root / "reboots").exists()
    assert not deployment.pi.bundles
    deployment.pi.boot("2", "b trial")
    deployment.wait_for_status("2: on trial")
    deployment.pi.script("slot")
    assert deployment.pi.data("good") == "b\n"
    deployment.wait_for_status("2: runs")


def test_failing_update_is_rolled_back_and_reported(deployment: Deployment) -> None:
    """It is not fetched again, and `edge-agent status` shows the reason."""
    build(deployment)
    deployment.roll_out()
    deployment.wait_for_status("fetched, to be written")
    deployment.pi.script("update")
    deployment.pi.boot("2", "b trial")
    deployment.pi.script("slot", agent="failed")
    deployment.pi.boot("1", "a good")

    deployment.wait_for_status("2: given up: edge-agent is failed")
    assert not deployment.pi.bundles
    assert "update 2: given up: edge-agent is failed" in deployment.agent.shown()
    assert (deployment.pi.root / "reboots").read_text() == "\n\n"


def test_key_is_revoked_by_a_rollout(deployment: Deployment) -> None:
    """A bundle without a root takes the way of every update; nothing is booted."""
    (deployment.folder / "pi-offline").mkdir()
    write_keys(deployment.folder / "pi-offline")
    offline, daily = deployment.folder / "pi-offline", deployment.folder
    trusted = deployment.pi.root / "usr/share/yamamori/update.pub"
    trusted.write_bytes(
        (offline / "office.pub").read_bytes() + (daily / "office.pub").read_bytes()
    )
    build(deployment, offline / "office", revoked=daily / "office.pub")
    deployment.roll_out()
    deployment.wait_for_status("fetched, to be written")
    deployment.pi.script("update")

    deployment.wait_for_status("2: is applied: keys and versions taken back")
    assert not (deployment.pi.root / "reboots").exists()
    assert "revoked" in deployment.pi.data("trust.json")
    build(deployment)
    shutil.copy(deployment.bundle, deployment.pi.root / "boot/firmware/yamamori")
    deployment.pi.script("update")
    report = deployment.pi.root / "boot/firmware/yamamori/update-report.txt"
    assert "REFUSED. the signature must be of a key" in report.read_text()


@pytest.mark.long
def test_bundle_signed_with_another_key_is_refused(deployment: Deployment) -> None:
    """A valid rollout is not enough: the bundle's own signature is checked."""
    build(deployment)
    (deployment.folder / "other").mkdir()
    write_keys(deployment.folder / "other")
    other = deployment.folder / "other/office.pub"
    shutil.copy(other, deployment.pi.root / "usr/share/yamamori/update.pub")
    deployment.roll_out()
    deployment.wait_for_status("fetched, to be written")
    deployment.pi.script("update")

    deployment.wait_for_status("2: refused: the signature must be of a key")
    assert not deployment.pi.bundles
    assert not (deployment.pi.root / "reboots").exists()


def test_rollout_signed_with_another_key_is_refused(deployment: Deployment) -> None:
    """The right to publish at the Manager's broker is not enough."""
    build(deployment)
    (deployment.folder / "other").mkdir()
    write_keys(deployment.folder / "other")
    deployment.roll_out(key="other/office")

    deployment.wait_for_status(
        "rollout refused on /update/1: notice must be signed for /update/1"
    )
    assert not deployment.pi.bundles

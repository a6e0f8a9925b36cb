"""A flashed card, the QEMU machine that boots it, and the backbone it reports to."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Broker
from image.backbone import HOST, Backbone
from image.settings import node
from image.vm import Card, Pi, built

BOOT_S = 900.0
"""Time-out on a busy machine; the target of `make image-test` is 90 s."""


@dataclass
class NodeSetup:
    """Everything from the rain gauge to the log."""

    folder: Path
    card: Card
    pi: Pi
    backbone: Backbone

    def configure(self, text: str) -> None:
        """Write settings to the card, as an installer does on a laptop."""
        path = self.folder / "node.toml"
        path.write_bytes(text.encode())
        self.card.put(path, "node.toml")


@pytest.fixture
def setup(tmp_path: Path, make_broker: Callable[..., Broker]) -> Iterator[NodeSetup]:
    """A node with a configured card, switched off."""
    image = built("node")
    card = Card(image / "sdcard.img", tmp_path / "card.img")
    pi = Pi(image, card, tmp_path)
    backbone = Backbone(tmp_path, make_broker)
    backbone.open_gateway()
    made = NodeSetup(tmp_path, card, pi, backbone)
    made.configure(node(backbone.node_url))
    (tmp_path / "ntp.txt").write_text(f"{HOST}\r\n")
    card.put(tmp_path / "ntp.txt", "ntp.txt")
    yield made
    pi.off()
    backbone.close()
    if not os.environ.get("IMAGE_KEEP"):
        card.path.unlink()

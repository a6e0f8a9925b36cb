"""A flashed card, the machine around it, and the office it reports to."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Broker
from image.office import HOST, Office
from image.settings import node
from image.vm import Card, Pi, built

BOOT_S = 900.0
"""What a busy machine may take; `make image-test` holds the bar of 90 s."""


@dataclass
class Slope:
    """Everything between the bucket and the log."""

    folder: Path
    card: Card
    pi: Pi
    office: Office

    def configure(self, text: str) -> None:
        """Put settings on the card, as a laptop does."""
        path = self.folder / "node.toml"
        path.write_bytes(text.encode())
        self.card.put(path, "node.toml")


@pytest.fixture
def slope(tmp_path: Path, make_broker: Callable[..., Broker]) -> Iterator[Slope]:
    """A node whose card is configured, switched off."""
    image = built("node")
    card = Card(image / "sdcard.img", tmp_path / "card.img")
    pi = Pi(image, card, tmp_path)
    office = Office(tmp_path, make_broker)
    office.open_gateway()
    made = Slope(tmp_path, card, pi, office)
    made.configure(node(office.node_url))
    (tmp_path / "ntp.txt").write_text(f"{HOST}\r\n")
    card.put(tmp_path / "ntp.txt", "ntp.txt")
    yield made
    pi.off()
    office.close()
    if not os.environ.get("IMAGE_KEEP"):
        card.path.unlink()

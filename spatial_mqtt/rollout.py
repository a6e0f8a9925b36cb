"""Rollouts: which version the nodes of an area should run. No I/O.

Retained on ``/update/<area>``, signed as notices are (`spatial_mqtt.signature`). A
rollout says who and what; that the bundle itself is genuine is its own signature's
business.
"""

from hashlib import blake2b
from typing import Final

import msgspec

from spatial_mqtt.errors import RolloutError
from spatial_mqtt.notice import LATEST_VERSION

MOST_BYTES: Final = 4096
LARGEST_BUNDLE_BYTES: Final = 1 << 29
SHA256_DIGITS: Final = 64


class Rollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of an area.

    Attributes:
        version: As the image calls itself.
        sha256: Of the bundle, in hexadecimal digits.
        size_bytes: Of the bundle.
        at_s: Unix time of its making; of one area's rollouts the newest counts.
        role: Whose image it is.
        percent: Share of the nodes that take it; a larger one later holds the same
            nodes and more.
        withdrawn: Who has not begun shall not begin.
    """

    version: str
    sha256: str
    size_bytes: int
    at_s: float
    role: str = "node"
    percent: float = 100.0
    withdrawn: bool = False

    def __post_init__(self) -> None:
        """Refuse what leads nowhere."""
        digits = set(self.sha256)
        if len(self.sha256) != SHA256_DIGITS or not digits <= set("0123456789abcdef"):
            raise ValueError(f"sha256 must be 64 of 0-9 a-f, got {self.sha256!r}")
        if not 0 < self.size_bytes <= LARGEST_BUNDLE_BYTES:
            rule = f"1 to {LARGEST_BUNDLE_BYTES}"
            raise ValueError(f"size_bytes must be {rule}, got {self.size_bytes}")
        if not 0 <= self.percent <= 100:  # noqa: PLR2004 - what a percent is
            raise ValueError(f"percent must be 0 to 100, got {self.percent:g}")
        if not 0 < self.at_s <= LATEST_VERSION:
            raise ValueError(f"at_s must be Unix seconds, got {self.at_s:g}")

    def chooses(self, node: str) -> bool:
        """Whether a node is among those that take it; by chance, but always the same.

        Another bundle begins with other nodes.
        """
        told = blake2b(f"{self.sha256} {node}".encode(), digest_size=4).digest()
        return int.from_bytes(told) < self.percent / 100 * 2**32

    def encode(self) -> bytes:
        """Encode as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> "Rollout":
        """Decode a rollout.

        Raises:
            RolloutError: It does not parse.
        """
        if len(payload) > MOST_BYTES:
            rule = f"at most {MOST_BYTES} bytes"
            raise RolloutError("rollout", rule, f"{len(payload)} bytes")
        try:
            return msgspec.json.decode(payload, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            rule = f"JSON of its form ({error})"
            raise RolloutError("rollout", rule, payload) from error

"""Membership vectors: they say which lists of the Skip Graph a node is in.

A node is in the level-l list of everybody who shares the first l bits of its vector.
The vector is a hash of the node's name, so nobody has to keep or to tell it.

Source: Aspnes and Shah, Skip Graphs, SODA 2003.
"""

from hashlib import blake2b

BITS = 64
"""Length of a vector: 2**64 nodes before two are likely to share all of it."""


def vector_of(node_id: str) -> int:
    """Membership vector of a node, between 0 and 2**64 - 1."""
    digest = blake2b(node_id.encode(), digest_size=BITS // 8).digest()
    return int.from_bytes(digest, "big")


def common_bits(one: int, other: int) -> int:
    """How many leading bits two vectors share: the highest level where they meet."""
    return BITS - (one ^ other).bit_length()


def prefix(vector: int, level: int) -> int:
    """The first ``level`` bits of a vector: the name of its list on that level."""
    return vector >> (BITS - level)

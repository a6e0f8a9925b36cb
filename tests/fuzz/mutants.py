"""Damaged messages by the thousand: what leads somewhere new is damaged further."""

import random
import re
from collections.abc import Iterator

MOST_KEPT = 200
LONGEST = 4096
WORDS = (
    b"\x00", b"\xff", b"\x80\x80\x80\x80", b"\x9f", b"\xbf", b"\xfb\x7f\xf8", b"/",
    b"#", b"+", b"null", b"NaN", b"1e999", b"-1", b"9" * 40, b"[[", b"]]", b'{"', b'":',
    b"'", b"\r\n", b"pri5", b"\xc2\x00", b"\xed\xa0\x80", b"\x1b" + b"\xff" * 8,
)  # fmt: skip


class Mutants:
    """A stream of damaged messages, steered by what their readers say.

    Args:
        seeds: Real messages.
        chance: Decides; a seed repeats a run.
    """

    def __init__(self, seeds: tuple[bytes, ...], chance: random.Random) -> None:
        self._pool = list(seeds)
        self._chance = chance
        self._seen: set[str] = set()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            data = self._chance.choice(self._pool)
            for _ in range(self._chance.choice((1, 1, 2, 4))):
                data = self._damaged(data)
            yield data[:LONGEST]

    def learn(self, data: bytes, outcome: str) -> None:
        """Keep a message that came out in a way no other did."""
        shape = re.sub(r"got .*|[0-9]+|'[^']*'", "", outcome)[:80]
        if shape not in self._seen and len(self._pool) < MOST_KEPT:
            self._seen.add(shape)
            self._pool.append(data)

    def _damaged(self, data: bytes) -> bytes:
        chance = self._chance
        at = chance.randint(0, len(data))
        to = min(len(data), at + chance.choice((1, 1, 2, 4, 16)))
        piece, word = data[at:to], chance.choice(WORDS)
        other = chance.choice(self._pool)
        head, tail = data[:at], data[to:]
        return chance.choice((
            head + tail,
            head + piece * chance.randint(2, 5) + tail,
            head + chance.randbytes(to - at) + tail,
            head + word + piece + tail,
            head + word + tail,
            head + other[chance.randint(0, len(other)) :],
            head + bytes(b ^ 1 << chance.randrange(8) for b in piece) + tail,
        ))

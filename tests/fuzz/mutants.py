"""Mutation fuzzing: messages with new outcomes are added to the pool and mutated."""

import random
import re
from collections.abc import Iterator

MAX_POOL = 200
MAX_BYTES = 4096
TOKENS = (
    b"\x00", b"\xff", b"\x80\x80\x80\x80", b"\x9f", b"\xbf", b"\xfb\x7f\xf8", b"/",
    b"#", b"+", b"null", b"NaN", b"1e999", b"-1", b"9" * 40, b"[[", b"]]", b'{"', b'":',
    b"'", b"\r\n", b"pri5", b"\xc2\x00", b"\xed\xa0\x80", b"\x1b" + b"\xff" * 8,
)  # fmt: skip


class Mutants:
    """A stream of damaged messages, guided by the outcomes of their reader.

    Args:
        seeds: Valid messages.
        chance: Random source; its seed repeats a run.
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
            yield data[:MAX_BYTES]

    def learn(self, data: bytes, outcome: str) -> None:
        """Add a message with a new outcome to the pool."""
        shape = re.sub(r"got .*|[0-9]+|'[^']*'", "", outcome)[:80]
        if shape not in self._seen and len(self._pool) < MAX_POOL:
            self._seen.add(shape)
            self._pool.append(data)

    def _damaged(self, data: bytes) -> bytes:
        chance = self._chance
        at = chance.randint(0, len(data))
        to = min(len(data), at + chance.choice((1, 1, 2, 4, 16)))
        piece, word = data[at:to], chance.choice(TOKENS)
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

"""Grammars of CBOR, JSON and MessagePack as an attacker writes them.

A fuzzer that damages valid messages hardly ever meets a tag. These values consist of
what decoders resolve: shared references, big numbers, regular expressions, containers
as map keys, strings of unknown length, lengths that lie.
"""

import random
import zlib
from collections.abc import Callable, Iterator

from hostile_cbor import deflate, item_head, nested_references

MAX_BYTES = 4096
LARGE_BYTES = 256 * 1024
TAGS = (
    0, 1, 2, 3, 4, 5, 16, 21, 24, 25, 26, 27, 28, 28, 28, 29, 29, 29, 30, 32, 33, 34,
    35, 35, 36, 37, 100, 256, 258, 260, 261, 1001, 1004, 43000, 55799, 2**32, 2**63,
)  # fmt: skip
REGEX = (rb"(a+)+$", rb"(?:" * 50, rb"[a-z]{1,9999}", rb"((a?){99}){99}")
LABELS = (b"\x21", b"\x22", b"\x00", b"\x02", b"\x05", b"\x64boot", b"\x63seq")
NODE = b"\x21\x63n1/\x64boot\x62bb\x63seq\x01\x00\x61x\x02\x01"
"""Fields of a valid pack, so that readers go on."""


class CborGrammar:
    """A stream of CBOR items with tags.

    Args:
        chance: Random source; its seed repeats a run.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._shared = 0
        self._rules: tuple[Callable[[int], bytes], ...] = (
            self._number, self._number, self._string, self._list, self._list,
            self._map, self._tag, self._tag, self._tag, self._indefinite, self._simple,
        )  # fmt: skip

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self._shared = 0
            yield self._chance.choice((self._value, self._pack, self._chain))()

    def _value(self) -> bytes:
        return self._item(8)[:MAX_BYTES]

    def _pack(self) -> bytes:
        """A pack with hostile values beside valid ones."""
        pairs = self._chance.randint(1, 3)
        more = b"".join(
            self._chance.choice((*LABELS, self._item(3))) + self._item(6)
            for _ in range(pairs)
        )
        return (b"\x81" + bytes([0xA5 + pairs]) + NODE + more)[:MAX_BYTES]

    def _chain(self) -> bytes:
        chance = self._chance
        return chance.choice((
            nested_references(chance.randint(1, 12), chance.randint(1, 15)),
            self._head(6, chance.choice(TAGS)) * chance.randint(1, 2000) + b"\x00",
            bytes([chance.choice((0x81, 0x9F, 0xA1, 0xD9))]) * chance.randint(1, 4000),
        ))

    def _item(self, depth: int) -> bytes:
        rules = self._rules if depth > 0 else self._rules[:3]
        return self._chance.choice(rules)(depth - 1)

    def _head(self, major: int, number: int) -> bytes:
        if number < 24:
            return bytes([major << 5 | number])
        for kind, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
            if number < 1 << 8 * size:
                return bytes([major << 5 | kind]) + number.to_bytes(size, "big")
        raise ValueError(number)

    def _length(self, real: int) -> int:
        """The length of a string or container, sometimes a lie."""
        lies = (2**16, 2**31, 2**32, 2**63, real + 1, max(0, real - 1))
        return self._chance.choice(lies) if self._chance.random() < 0.05 else real

    def _number(self, _depth: int) -> bytes:
        number = self._chance.choice((0, 1, 7, 23, 24, 255, 2**31, 2**63, 2**64 - 1))
        return self._head(self._chance.choice((0, 1)), number)

    def _string(self, _depth: int) -> bytes:
        text = self._chance.choice((
            b"", b"n1/", b"x" * 100, b"\xff\xfe", b"\xe3\x81\x82", *REGEX,
            self._chance.randbytes(self._chance.randint(0, 300)),
        ))  # fmt: skip
        return self._head(self._chance.choice((2, 3)), self._length(len(text))) + text

    def _list(self, depth: int) -> bytes:
        items = [self._item(depth) for _ in range(self._chance.choice((0, 1, 2, 9)))]
        return self._head(4, self._length(len(items))) + b"".join(items)

    def _map(self, depth: int) -> bytes:
        count = self._chance.choice((0, 1, 2, 6))
        pairs = [self._item(depth) + self._item(depth) for _ in range(count)]
        return self._head(5, self._length(count)) + b"".join(pairs)

    def _tag(self, depth: int) -> bytes:
        tag = self._chance.choice(TAGS)
        if tag == 28:
            self._shared += 1
        if tag == 29:  # a reference to an earlier item, or to one that does not exist
            number = self._chance.randint(0, max(1, self._shared))
            return self._head(6, 29) + self._head(0, number)
        return self._head(6, tag) + self._item(depth)

    def _indefinite(self, depth: int) -> bytes:
        end = b"\xff" if self._chance.random() < 0.9 else b""
        items = b"".join(self._item(depth) for _ in range(self._chance.randint(0, 4)))
        return bytes([self._chance.choice((0x5F, 0x7F, 0x9F, 0xBF))]) + items + end

    def _simple(self, _depth: int) -> bytes:
        return self._chance.choice((
            b"\xf4", b"\xf5", b"\xf6", b"\xf7", b"\xf8\xff", b"\xf9\x7e\x00",
            b"\xfb\x7f\xf0" + bytes(6), b"\xfa\x7f\x80\x00\x00", b"\xfc", b"\xff",
        ))  # fmt: skip


def largest_messages() -> Iterator[bytes]:
    """Messages of the largest accepted size that become as large as they can."""
    size = LARGE_BYTES - 16
    for item in (
        b"\x80", b"\xa0", b"\x81\x00", b"\x81\x80", b"\x82\x00\x00", b"\xa1\x00\x00",
        b"\xf9\x11\x11", b"\x62\xc3\xa9", b"\x41\xff", b"\x7f\xff", b"\x9f\xff",
        b"\xc1\x00", b"\xd8\x1d\x00",
    ):  # fmt: skip
        count = size // len(item)
        yield item_head(4, count) + item * count
        yield b"\x9f" + item * count + b"\xff"
    keys = b"".join(b"\x19" + n.to_bytes(2, "big") + b"\x00" for n in range(2**16))
    yield item_head(5, size // 4) + keys[:size]
    for item in (b"[],", b"{},", b'{"":0},', b"0,", b"1e1,", b'"\xc3\xa9",', b"[[]],"):
        yield b"[" + item * (size // len(item)) + b"0]"
    for item in (b"\x90", b"\x80", b"\x91\x00", b"\xcb" + bytes(8), b"\xa2\xc3\xa9"):
        count = size // len(item)
        yield b"\xdd" + count.to_bytes(4, "big") + item * count


def as_sent(reader: str, data: bytes) -> tuple[bytes, ...]:
    """A message in the forms in which a reader may receive it."""
    match reader:
        case "parcel":
            return (deflate(data),)
        case "gateway":
            parcel = b"3/1/pri5 parcel /custody/g\n" + deflate(data)
            return b"3/1/pri5\n" + data, parcel
        case "overlay frame":
            return b"\x00" + data, b"\x01" + zlib.compress(data, 1)
        case _:
            return (data,)

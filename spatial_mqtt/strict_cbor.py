"""CBOR from other programs, decoded with bounds on what it becomes in memory.

Semantic tags are refused before they are resolved. A shared reference (tags 28 and 29)
stands for a whole value: a payload of 400 bytes that nests them becomes 10^9 items, and
other tags compile regular expressions or build large integers. The formats of this
system need none; the tag that marks a payload as CBOR (55799) is skipped.

Without tags the memory grows with the payload. The largest factors are those of empty
and small containers, so their number is bounded, too.

Source: RFC 8949 section 3.4 (tags) and section 10 (security considerations).
"""

from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final, NoReturn

import cbor2

SELF_DESCRIBED: Final = b"\xd9\xd9\xf7"
MAX_DEPTH: Final = 32
MAX_MAPS: Final = 10_000
MAX_LISTS: Final = 40_000
"""An empty list takes one byte, and 64 in memory; one with a number two, and 96. Many
lists make the garbage collector run, too. Counted are all bytes that may begin a list:
256 KiB of random bytes, as of a picture, have 33,000."""

_LIST_HEADS: Final = bytes(range(0x80, 0xA0))
_MAX_TEXT_CHARS: Final = 120


class CborError(ValueError):
    """A payload is no CBOR, or exceeds a bound."""


class _NoTags(Mapping[int, Callable[[Any, bool], Any]]):
    """Decoders of semantic tags: a tag is refused when its decoder is looked up."""

    def __getitem__(self, tag: int) -> NoReturn:
        raise CborError(f"semantic tag {tag}")

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


_NO_TAGS: Final = _NoTags()


class _MapCounter:
    """Counts the maps of a payload as they are decoded."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(
        self, decoded: Mapping[Any, Any], _is_immutable: bool
    ) -> Mapping[Any, Any]:
        self._count += 1
        if self._count > MAX_MAPS:
            raise CborError(f"more than {MAX_MAPS} maps")
        return decoded


def decode_cbor(payload: bytes) -> Any:  # noqa: ANN401 - checked by the caller
    """Decode one value.

    Args:
        payload: The whole payload; its size is bounded by the caller.

    Raises:
        CborError: It is no CBOR, has a semantic tag, is nested deeper than `MAX_DEPTH`,
            has too many containers, or bytes follow the value.
    """
    if len(payload) > MAX_LISTS:
        heads = len(payload) - len(payload.translate(None, _LIST_HEADS))
        if heads > MAX_LISTS:
            raise CborError(f"more than {MAX_LISTS} lists")
    stream = BytesIO(payload.removeprefix(SELF_DESCRIBED))
    may_exceed = len(payload) > MAX_MAPS  # a map takes a byte at least
    try:
        decoded = cbor2.load(
            stream,
            object_hook=_MapCounter() if may_exceed else None,
            semantic_decoders=_NO_TAGS,
            max_depth=MAX_DEPTH,
        )
    except (cbor2.CBORDecodeError, ValueError, TypeError, RecursionError) as error:
        raise CborError(_cause(error)[:_MAX_TEXT_CHARS]) from error
    if rest := stream.read():
        raise CborError(f"{len(rest)} bytes after the value")
    return decoded


def _cause(error: BaseException) -> str:
    """The text of the first error: cbor2 wraps those of its hooks."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)

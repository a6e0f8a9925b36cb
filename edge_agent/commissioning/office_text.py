"""Text as the programs of an office computer write it."""

import codecs
from collections.abc import Sequence


class TextError(ValueError):
    """A file is in none of the encodings that such programs use."""


def decode(raw: bytes) -> str:
    """Text of a file, whichever encoding and ends of lines an editor chose.

    Raises:
        TextError: It is in none of the usual encodings.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16", errors="replace")
    for encoding in ("utf-8-sig", "cp932"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise TextError(
        "the file must be text in UTF-8, UTF-16 or Shift JIS (cp932); save it as UTF-8"
    )


def encode(lines: Sequence[str]) -> bytes:
    """Lines as every editor of an office computer shows them."""
    return ("\r\n".join(lines) + "\r\n").encode("utf-8-sig")

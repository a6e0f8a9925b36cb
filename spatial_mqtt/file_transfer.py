"""A large file in pieces over MQTT: who wants it asks for each piece. No I/O.

``/piece/want/<name>`` carries a `Want`, ``/piece/for/<name>`` the `Piece` that answers
it, both in MessagePack. Who is asked keeps nothing: after any loss or restart the same
want is sent again.
"""

from typing import Final, TypeVar

import msgspec

from spatial_mqtt.errors import PieceError

PIECE_BYTES: Final = 4096
"""A second at 30 kbps: so long a piece can hold up what comes down beside it."""

MOST_BYTES: Final = 65_536

_Form = TypeVar("_Form", "Want", "Piece")


class Want(msgspec.Struct, frozen=True, array_like=True):
    """What is asked for.

    Attributes:
        sha256: Names the file, in hexadecimal digits.
        at: First byte.
        size_bytes: How many; fewer come at the file's end.
    """

    sha256: str
    at: int
    size_bytes: int = PIECE_BYTES

    def __post_init__(self) -> None:
        """Refuse what nobody should answer."""
        if self.at < 0 or not 0 < self.size_bytes <= MOST_BYTES:
            rule = f"at >= 0 and 1 to {MOST_BYTES} bytes"
            raise ValueError(f"a want must be {rule}, got {self.size_bytes}")

    def encode(self) -> bytes:
        """Encode for the wire."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> "Want":
        """Decode a want.

        Raises:
            PieceError: It does not parse.
        """
        return _decoded(payload, cls)


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """The answer.

    Attributes:
        sha256: Names the file.
        at: First byte.
        data: The bytes; empty where there is no such file.
    """

    sha256: str
    at: int
    data: bytes

    def encode(self) -> bytes:
        """Encode for the wire."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> "Piece":
        """Decode a piece.

        Raises:
            PieceError: It does not parse.
        """
        return _decoded(payload, cls)


def _decoded(payload: bytes, form: type[_Form]) -> _Form:
    try:
        return msgspec.msgpack.decode(payload, type=form)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        rule = f"a {form.__name__.lower()} ({error})"
        raise PieceError("payload", rule, payload) from error

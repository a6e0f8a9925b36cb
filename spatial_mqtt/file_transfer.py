"""Transfer of a large file in chunks over MQTT, each requested by the receiver. No I/O.

``/piece/want/<name>`` carries a `FileChunkRequest`, ``/piece/for/<name>`` the
`FileChunk` that answers it, both in MessagePack. The server keeps no state: after a
loss or a restart the same request is sent again.
"""

from typing import ClassVar, Final, Self

import msgspec

from service_runtime.decoding import DECODE_ERRORS, decode_msgpack
from spatial_mqtt.announcements import MAX_BUNDLE_BYTES
from spatial_mqtt.errors import FileChunkError

FILE_CHUNK_BYTES: Final = 4096
"""One second at 30 kbps, which a chunk can delay other messages to the node."""

MAX_FILE_CHUNK_BYTES: Final = 65_536


class FileMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message of a transfer, in MessagePack.

    Attributes:
        title: Its name in errors.
    """

    title: ClassVar[str]

    def encode(self) -> bytes:
        """Encode for the wire."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode a message of this form.

        Raises:
            FileChunkError: The payload does not parse.
        """
        try:
            return decode_msgpack(payload, cls)
        except DECODE_ERRORS as error:
            rule = f"a {cls.title} ({error})"
            raise FileChunkError("payload", rule, payload) from error


class FileChunkRequest(FileMessage, frozen=True):
    """Request for a chunk.

    Attributes:
        sha256: SHA-256 of the file in hexadecimal digits.
        at: Offset of the first byte.
        size_bytes: Number of bytes; the last chunk of a file may be shorter.
    """

    title: ClassVar[str] = "chunk request"
    sha256: str
    at: int
    size_bytes: int = FILE_CHUNK_BYTES

    def __post_init__(self) -> None:
        """Reject an offset or a size out of range."""
        is_size = 0 < self.size_bytes <= MAX_FILE_CHUNK_BYTES
        if not (is_size and 0 <= self.at <= MAX_BUNDLE_BYTES):
            rule = f"1 to {MAX_FILE_CHUNK_BYTES} bytes at 0 to {MAX_BUNDLE_BYTES}"
            got = f"{self.size_bytes} at {self.at}"
            raise ValueError(f"a chunk request must be {rule}, got {got}")


class FileChunk(FileMessage, frozen=True):
    """A chunk of a file.

    Attributes:
        sha256: SHA-256 of the file in hexadecimal digits.
        at: Offset of the first byte.
        data: The bytes; empty if the server does not have the file.
    """

    title: ClassVar[str] = "chunk"
    sha256: str
    at: int
    data: bytes

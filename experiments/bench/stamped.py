"""Messages that say who published them, which one it is, and when.

Either opaque, as a plain client's, or a node's pack in an envelope; of one size.
"""

import struct
import time

from experiments.bench.numbered import numbered
from spatial_mqtt.senml import MessageId

MARK = b"@@"
STAMP_BYTES = 29
_FIRST_SEQ = 2**32  # CBOR writes it and those above it in eight bytes
_BOOT = "0ce93c39"


class Stamper:
    """Makes one publisher's messages.

    Args:
        publisher: Its number.
        size_bytes: Of each payload.
        priority: Of a pack.
        is_pack: Whether a node packs them.
    """

    def __init__(
        self, publisher: int, size_bytes: int, priority: int, *, is_pack: bool
    ) -> None:
        self._publisher = publisher
        self._head, self._tail, self._seq_at = b"", b"", 0
        if is_pack:
            id_ = MessageId(f"bench-{publisher:04d}", _BOOT, _FIRST_SEQ)
            whole = numbered(0, priority, size_bytes, id_)
            seq = struct.pack("!Q", _FIRST_SEQ)
            at = whole.index(b"000000 ")
            self._head, self._tail = whole[:at], whole[at + self._length :]
            self._seq_at = whole.index(seq)
        else:
            self._tail = b"." * (size_bytes - self._length)

    @property
    def _length(self) -> int:
        return len(MARK) + STAMP_BYTES

    def payload(self, number: int) -> bytes:
        """The payload of a message, stamped now."""
        now_ns = time.monotonic_ns()
        stamp = b"@@%04d %07d %016d" % (self._publisher, number, now_ns)
        if not self._head:
            return stamp + self._tail
        head = bytearray(self._head)
        if self._seq_at < len(head):
            struct.pack_into("!Q", head, self._seq_at, _FIRST_SEQ + number)
            return bytes(head) + stamp + self._tail
        tail = bytearray(self._tail)
        at = self._seq_at - len(head) - self._length
        struct.pack_into("!Q", tail, at, _FIRST_SEQ + number)
        return bytes(head) + stamp + bytes(tail)


def read(payload: bytes) -> tuple[int, int, int]:
    """Publisher, number and nanoseconds of a message.

    Raises:
        ValueError: It is none of ours.
    """
    at = payload.index(MARK) + len(MARK)
    publisher, number, sent_ns = payload[at : at + STAMP_BYTES].split(b" ")
    return int(publisher), int(number), int(sent_ns)

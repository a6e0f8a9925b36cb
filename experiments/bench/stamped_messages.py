"""Stamped messages: payloads with publisher, message number and time of sending.

Either opaque, as from a plain client, or a node's SenML pack; all of one size.
"""

import struct
import time

from experiments.bench.numbered_messages import encode_numbered
from spatial_mqtt.senml import MessageId

MARK = b"@@"
STAMP_BYTES = 29
_FIRST_SEQ = 2**32  # from here on CBOR encodes the number in eight bytes
_BOOT = "0ce93c39"


class Stamper:
    """Generates one publisher's messages.

    Args:
        publisher: Number of the publisher.
        size_bytes: Size of each payload.
        priority: Priority of a pack.
        is_pack: Whether the messages are SenML packs.
    """

    def __init__(
        self, publisher: int, size_bytes: int, priority: int, *, is_pack: bool
    ) -> None:
        self._publisher = publisher
        self._head, self._tail, self._seq_at = b"", b"", 0
        if is_pack:
            id_ = MessageId(f"bench-{publisher:04d}", _BOOT, _FIRST_SEQ)
            whole = encode_numbered(0, priority, size_bytes, id_)
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
        """Return the payload of a message with the present time."""
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


def read_stamp(payload: bytes) -> tuple[int, int, int]:
    """Return publisher, message number and time of sending (monotonic, ns).

    Raises:
        ValueError: The payload has no stamp.
    """
    at = payload.index(MARK) + len(MARK)
    publisher, number, sent_ns = payload[at : at + STAMP_BYTES].split(b" ")
    return int(publisher), int(number), int(sent_ns)

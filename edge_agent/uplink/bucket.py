"""A token bucket in wire bytes: the link's share that we may use."""

import math
from dataclasses import dataclass

SEGMENT_BYTES = 1448
"""What a TCP segment on Ethernet carries."""

SEGMENT_HEADER_BYTES = 66
"""Ethernet 14, IPv4 20, TCP 20 and its time stamps 12."""

TLS_RECORD_BYTES = 29
"""TLS 1.2 and AES-GCM: header 5, nonce 8, tag 16; of each packet one record."""

LARGE_PACKET_BYTES = 1500


def wire_bytes(packet_bytes: int, *, is_first: bool, is_tls: bool = False) -> int:
    """Bytes that a publication puts on the link.

    Args:
        packet_bytes: Of the PUBLISH packet.
        is_first: Whether it begins a write; those behind it share its segment.
        is_tls: Whether it is encrypted.
    """
    size_bytes = packet_bytes + (TLS_RECORD_BYTES if is_tls else 0)
    segments = size_bytes // SEGMENT_BYTES + is_first
    return size_bytes + segments * SEGMENT_HEADER_BYTES


@dataclass
class TokenBucket:
    """Bytes that may be sent now. A large message may run into debt once.

    Attributes:
        rate_bytes_per_s: Refill; infinite means no limit.
        burst_bytes: Most that is saved up.
    """

    rate_bytes_per_s: float
    burst_bytes: float
    _tokens: float = math.nan
    _at_s: float = 0.0

    @classmethod
    def of_rate(cls, rate_bytes_per_s: float | None) -> "TokenBucket":
        """A bucket for a link of a rate; None means no limit.

        It saves up a quarter of a second and no less than one large packet: more
        would only move the backlog into the modem, where nothing overtakes it.
        """
        if rate_bytes_per_s is None:
            return cls(math.inf, 0.0)
        return cls(rate_bytes_per_s, max(LARGE_PACKET_BYTES, rate_bytes_per_s / 4))

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next message may go; 0 means now."""
        if math.isinf(self.rate_bytes_per_s):
            return 0.0
        self._refill(now_s)
        return max(0.0, -self._tokens / self.rate_bytes_per_s)

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Account for a message that was sent."""
        if not math.isinf(self.rate_bytes_per_s):
            self._refill(now_s)
            self._tokens -= size_bytes

    def _refill(self, now_s: float) -> None:
        if math.isnan(self._tokens):
            self._tokens = self.burst_bytes
        else:
            gained = (now_s - self._at_s) * self.rate_bytes_per_s
            self._tokens = min(self.burst_bytes, self._tokens + max(0.0, gained))
        self._at_s = now_s

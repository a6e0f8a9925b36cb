"""What came of a link test: the Managers, the gateway, how fast, and one receipt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TENTHS_BELOW_S = 0.01
TOO_FAST_S = 0.005
"""Answers that come closer together tell nothing of the link's rate."""


@dataclass(frozen=True)
class Asked:
    """A Manager that was asked for gateways.

    Attributes:
        manager: Its ``host:port``.
        took_s: Until the list was there.
        gateways: How many it names.
        problem: Why there is none; None when it answered.
    """

    manager: str
    took_s: float
    gateways: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Tried:
    """A gateway that was tried.

    Attributes:
        gateway: Its ``host:port``.
        area: The area by which it was chosen; None for one that the settings name.
        connect_s: From the first packet to a session; None without one.
        round_trip_s: Of a subscription; None without one.
        receipt_s: From handing over the test message to its receipt.
        receipted: By a receipt: it is on the gateway's disk. Else by PUBACK alone.
        message_id: Of the test message.
        burst_bytes: Wire bytes of the burst that was acknowledged.
        burst_s: From its first to its last acknowledgement.
        problem: Why it does not serve; None when it does.
    """

    gateway: str
    area: str | None
    connect_s: float | None = None
    round_trip_s: float | None = None
    receipt_s: float | None = None
    receipted: bool = False
    message_id: str | None = None
    burst_bytes: int = 0
    burst_s: float = 0.0
    problem: str | None = None

    @property
    def rate_bytes_per_s(self) -> float | None:
        """Measured rate; None when the burst was too small to tell."""
        if self.burst_s < TOO_FAST_S:
            return None
        return self.burst_bytes / self.burst_s


@dataclass(frozen=True)
class LinkReport:
    """A whole link test.

    Attributes:
        asked: Managers, in the order of the settings; empty with a fixed gateway.
        tried: Gateways, best first, up to the one that serves.
        used_bytes: About what the test put on the wire.
    """

    asked: Sequence[Asked]
    tried: Sequence[Tried]
    used_bytes: int

    @property
    def chosen(self) -> Tried | None:
        """The gateway that serves the node."""
        return next((each for each in self.tried if each.problem is None), None)

    @property
    def is_passed(self) -> bool:
        """Whether the test message is in somebody's hands."""
        return self.chosen is not None

    def told(self) -> dict[str, Any]:
        """The same for a program, in JSON's types."""
        chosen = self.chosen
        return {
            "managers": [vars(each) for each in self.asked],
            "gateways": [vars(each) for each in self.tried],
            "chosen": chosen and chosen.gateway,
            "rate_bytes_per_s": chosen and chosen.rate_bytes_per_s,
            "used_bytes": self.used_bytes,
        }

    def lines(self) -> Iterator[str]:
        """For a person."""
        chosen = self.chosen
        word = "ok" if chosen else "FAIL"
        yield f"link      {word}, about {self.used_bytes} bytes used"
        for each in self.asked:
            found = each.problem or f"{each.gateways} areas in {_ms(each.took_s)}"
            yield f"  manager {each.manager}: {found}"
        if not self.tried:
            yield "  no gateway is known: start a Manager, or give uplink.gateway"
        for tried in self.tried:
            yield from _gateway(tried)


def _gateway(tried: Tried) -> Iterator[str]:
    area = "named by the settings" if tried.area is None else f"area {tried.area}"
    yield f"  gateway {tried.gateway} ({area})"
    if tried.connect_s is not None and tried.round_trip_s is not None:
        trip = (
            f"connected in {_ms(tried.connect_s)}, round trip {_ms(tried.round_trip_s)}"
        )
        yield f"          {trip}"
    if tried.problem is not None:
        yield f"          FAIL {tried.problem}"
        return
    if tried.burst_bytes:
        rate = tried.rate_bytes_per_s
        speed = "too fast to measure" if rate is None else f"{rate:.0f} bytes/s"
        yield f"          rate {speed} ({tried.burst_bytes} bytes)"
    how = (
        "receipted: on the gateway's disk"
        if tried.receipted
        else "taken by PUBACK: in the broker's memory, it gives no receipts"
    )
    took = _ms(tried.receipt_s or 0)
    yield f"          test message {tried.message_id} {how}, {took}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.{1 if seconds < TENTHS_BELOW_S else 0}f} ms"

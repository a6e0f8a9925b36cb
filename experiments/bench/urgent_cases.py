"""Cases of `experiments.urgent_latency`: links, backlogs, changes while they drain."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from experiments.bench.net import Shape
from experiments.bench.sender import topic
from experiments.bench.wire import SEGMENT_HEADER_BYTES

BACKLOG_BYTES = 1000
URGENT_BYTES = 200


class Spans:
    """What a link could carry over time.

    Args:
        steps: Times and the rates from then on, in bytes per second.
    """

    def __init__(self, steps: Sequence[tuple[float, float]]) -> None:
        self._spans = [
            (start_s, end_s, rate)
            for (start_s, rate), (end_s, _) in pairwise([*steps, (float("inf"), 0.0)])
        ]

    def carried_bytes(self, until_s: float) -> float:
        """Bytes that it can have carried up to a time."""
        return sum(
            rate * (min(end_s, until_s) - start_s)
            for start_s, end_s, rate in self._spans
            if start_s < until_s
        )

    def time_of(self, size_bytes: float) -> float:
        """When it can have carried so many bytes."""
        for start_s, end_s, rate in self._spans:
            if size_bytes <= rate * (end_s - start_s):
                return start_s + size_bytes / rate
            size_bytes -= rate * (end_s - start_s)
        raise ValueError("the link is cut for ever")

    def cut_s(self, from_s: float, until_s: float) -> float:
        """Time between two others in which it carries nothing."""
        return sum(
            max(0.0, min(end_s, until_s) - max(start_s, from_s))
            for start_s, end_s, rate in self._spans
            if not rate
        )


@dataclass(frozen=True)
class Case:
    """A link and a backlog.

    Attributes:
        name: Name in tables.
        shape: The link.
        backlog: Messages of 1000 bytes.
        bar_s: Most an urgent message may take.
        goodput_bar: Least part of the link that the backlog must use.
        is_drained: Whether the run goes on until the backlog is gone.
        most_urgent: Most urgent messages behind the backlog.
        was_fast: Whether the link had 10 Mbps until 8 s before the backlog.
        is_tls: Whether the connection uses TLS.
        is_ipv6: Whether it uses IPv6.
        changes: Times after the backlog was put, and the link from then on; None for
            one that loses everything.
        senders: Names of the programs that send a part of the messages each.
    """

    name: str
    shape: Shape
    backlog: int
    bar_s: float
    goodput_bar: float = 0.85
    is_drained: bool = True
    most_urgent: int = 5
    was_fast: bool = False
    is_tls: bool = False
    is_ipv6: bool = False
    changes: tuple[tuple[float, Shape | None], ...] = ()
    senders: tuple[str, ...] = ("sender",)

    @property
    def limit_s(self) -> float:
        """Lower bound of the worst latency: a backlog frame, then its own."""
        wire = BACKLOG_BYTES + URGENT_BYTES
        wire += len(topic(False)) + len(topic(True)) + 2 * (7 + SEGMENT_HEADER_BYTES)
        shapes = [self.shape, *(shape for _, shape in self.changes if shape)]
        return wire / min(shape.rate_bytes_per_s for shape in shapes)

    @property
    def every_s(self) -> float:
        """Interval of the urgent messages."""
        return max(0.4, min(2.1, (self._drain_s - 2.0) / self.most_urgent))

    @property
    def urgent(self) -> int:
        """Urgent messages that fit into the drain, as many from each sender."""
        fitting = int((self._drain_s - 2.0) / (self.every_s * 1.2))
        nodes = len(self.senders)
        return max(1, min(self.most_urgent, fitting) // nodes) * nodes

    def spans(self, began_s: float, changed: Sequence[float]) -> Spans:
        """What the link could carry, with the times of its changes."""
        rates = [shape.rate_bytes_per_s if shape else 0.0 for _, shape in self.changes]
        steps = zip(changed, rates, strict=True)
        return Spans([(began_s, self.shape.rate_bytes_per_s), *steps])

    @property
    def _drain_s(self) -> float:
        planned = self.spans(0.0, [at_s for at_s, _ in self.changes])
        return planned.time_of(self.backlog * BACKLOG_BYTES)


A = Case("a", Shape(64_000, answer_delay_s=0.1), 100, 0.5)
B = Case("b", Shape(30_000, answer_delay_s=0.6), 60, 1.0)
C = Case("c", A.shape, 10_000, 0.5, is_drained=False)
MANY = 10
PLAIN = (
    Case("64 kbps", Shape(64_000), 100, 0.6, most_urgent=MANY),
    Case("30 kbps", Shape(30_000), 60, 1.0, most_urgent=MANY),
    Case("128 kbps", Shape(128_000), 200, 0.3, most_urgent=MANY),
    Case("500 kbps", Shape(500_000), 800, 0.3, most_urgent=MANY),
    Case("burst 16 kB", Shape(64_000, burst_bytes=16_000), 100, 3.0, most_urgent=MANY),
    Case("burst 64 kB", Shape(64_000, burst_bytes=64_000), 200, 9.0, most_urgent=MANY),
    Case("was 10 Mbps", Shape(64_000), 100, 0.6, most_urgent=MANY, was_fast=True),
)
"""Links without an added delay; the last three have 64 kbps."""

OTHER_TRANSPORTS = (
    replace(PLAIN[0], name="64 kbps, TLS", is_tls=True),
    replace(PLAIN[0], name="64 kbps, IPv6", is_ipv6=True),
)

CUT_BAR_S = 3.6
"""After a cut the uplink connects anew, which takes up to two seconds between attempts
and some round trips; in that time nothing is carried."""

CHANGING = (
    Case(
        "500 to 50 kbps", Shape(500_000), 760, 1.5, most_urgent=2 * MANY,
        changes=((10.0, Shape(50_000)),),
    ),
    Case(
        "50 to 500 kbps", Shape(50_000), 560, 0.8, most_urgent=2 * MANY,
        changes=((10.0, Shape(500_000)),),
    ),
    Case(
        "cut for 10 s", Shape(64_000), 100, CUT_BAR_S, 0.5, most_urgent=MANY,
        changes=((4.0, None), (14.0, Shape(64_000))),
    ),
    Case(
        "cut for 30 s", Shape(64_000), 100, CUT_BAR_S, 0.5, most_urgent=2 * MANY,
        changes=((4.0, None), (34.0, Shape(64_000))),
    ),
    Case(
        "two nodes", Shape(64_000), 100, 0.9, most_urgent=MANY,
        senders=("sender", "second"),
    ),
)  # fmt: skip
"""The bar after a step down leaves the time for what the faster link had in flight."""

ALL_CASES = (A, B, C, *PLAIN, *OTHER_TRANSPORTS, *CHANGING)

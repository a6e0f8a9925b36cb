"""Load report of a gateway to the Managers: message rates by topic, CPU and lanes."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from gateway_daemon.gateway.egress import Egress
from spatial_mqtt.directory import BrokerInfo, decode_directory_message
from spatial_mqtt.topics import MAX_TOPIC_CHARS

MAX_CELLS = 24
"""Topics in a report: enough to locate the load, in 1 kB."""

Load = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
"""A rate, a share or an age; sums are finite."""

Topic = Annotated[str, msgspec.Meta(max_length=MAX_TOPIC_CHARS)]
Cells = Annotated[tuple[tuple[Topic, Load], ...], msgspec.Meta(max_length=MAX_CELLS)]

IDLE, IOWAIT = 3, 4
"""Columns of ``cpu`` in /proc/stat after its name (proc(5))."""


class LaneLoad(msgspec.Struct, frozen=True):
    """Messages that wait for one distributed broker.

    Attributes:
        broker: The broker.
        rows: Number of messages.
        age_s: Seconds that the oldest message has been in the lane, of those that the
            rate limit permits. An age before the gateway is no load of the broker.
    """

    broker: BrokerInfo
    rows: int
    age_s: Load


class LoadReport(msgspec.Struct, frozen=True):
    """The load of one gateway.

    Attributes:
        gateway: Its public address.
        per_s: Messages per second that clients publish.
        cpu: Busy share of its machine, 0 to 1.
        cells: Topics with the most messages, each with messages per second.
        lanes: Messages that wait for each broker.
    """

    gateway: BrokerInfo
    per_s: Load = 0.0
    cpu: Load = 0.0
    cells: Cells = ()
    lanes: tuple[LaneLoad, ...] = ()


def decode_load_report(payload: bytes) -> LoadReport:
    """Decode the load report of a gateway.

    Raises:
        DirectoryError: It is not valid.
    """
    return decode_directory_message(payload, LoadReport, "gateway load")


@dataclass(frozen=True)
class TopicRates:
    """Message rates since the last reading.

    Attributes:
        per_s: Messages per second.
        cells: Topics with the most messages, each with messages per second.
    """

    per_s: float
    cells: tuple[tuple[str, float], ...]


class TopicMeter:
    """Counts messages by topic between two readings.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s = clock()
        self._counts: Counter[str] = Counter()

    def count(self, topics: Iterable[str]) -> None:
        """Count one message for each topic."""
        with self._lock:
            self._counts.update(topics)

    def read(self) -> TopicRates:
        """Return the rates since the last call and restart the counts."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            since_s, self._since_s = self._since_s, self._clock()
            elapsed_s = max(self._since_s - since_s, 1e-3)
        cells = tuple(
            (topic, round(count / elapsed_s, 3))
            for topic, count in counts.most_common(MAX_CELLS)
        )
        return TopicRates(round(counts.total() / elapsed_s, 3), cells)


class CpuMeter:
    """Busy share of the machine between two readings.

    Args:
        stat: The kernel's tick counters.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._ticks()

    def read(self) -> float:
        """Busy share since the last call, 0 to 1."""
        before, self._before = self._before, self._ticks()
        ticks = [now - then for now, then in zip(self._before, before, strict=True)]
        idle = ticks[IDLE] + ticks[IOWAIT]
        return round(1.0 - idle / max(sum(ticks), 1), 3)

    def _ticks(self) -> list[int]:
        first, _, _ = self._stat.read_text(encoding="ascii").partition("\n")
        return [int(tick) for tick in first.split()[1:9]]


class LoadReporter:
    """Builds and publishes the load report of a gateway.

    Args:
        gateway: Its public address.
        egress: The lanes to report.
        meter: Message rates.
        cpu: Busy share of the machine.
        publishers: Functions that publish the report.
    """

    def __init__(
        self,
        gateway: BrokerInfo,
        egress: Egress,
        meter: TopicMeter,
        cpu: CpuMeter,
        publishers: Sequence[Callable[[LoadReport], object]],
    ) -> None:
        self._gateway = gateway
        self._lanes = egress
        self._meter = meter
        self._cpu = cpu
        self._publishers = tuple(publishers)

    def publish_report(self) -> None:
        """Publish a report."""
        rates = self._meter.read()
        lanes = tuple(
            LaneLoad(
                broker,
                sum(depth.rows for depth in lane.stats.depth.values()),
                round(max(lane.waits_s.values(), default=0.0), 3),
            )
            for broker, lane in self._lanes.lane_status().items()
            if broker is not None
        )
        report = LoadReport(
            self._gateway, rates.per_s, self._cpu.read(), rates.cells, lanes
        )
        for publish in self._publishers:
            publish(report)

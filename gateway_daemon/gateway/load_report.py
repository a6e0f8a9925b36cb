"""Puts together what a gateway tells of its load.

What a gateway carries: messages by topic, and how busy its machine is.

What a gateway tells the Managers of its load.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway_daemon.gateway.egress import Lanes
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.errors import DirectoryError

MOST_CELLS = 24
"""Topics that a gateway names: enough to see where the load is, and 1 kB."""


class LaneLoad(msgspec.Struct, frozen=True):
    """What waits for one distributed broker.

    Attributes:
        broker: Where it goes.
        rows: Messages.
        age_s: Age of the oldest.
    """

    broker: BrokerInfo
    rows: int
    age_s: float


class Load(msgspec.Struct, frozen=True):
    """The load of one gateway.

    Attributes:
        gateway: Its public address.
        per_s: Messages that clients publish in a second.
        cpu: Busy share of its machine, 0 to 1.
        cells: Topics with the most messages, and how many in a second.
        lanes: What waits for each broker.
    """

    gateway: BrokerInfo
    per_s: float = 0.0
    cpu: float = 0.0
    cells: tuple[tuple[str, float], ...] = ()
    lanes: tuple[LaneLoad, ...] = ()


def decode_load(payload: bytes) -> Load:
    """Decode a gateway's load.

    Raises:
        DirectoryError: It does not parse.
    """
    try:
        return msgspec.json.decode(payload, type=Load)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        rule = f"JSON of its form ({error})"
        raise DirectoryError("gateway load", rule, payload) from error


IDLE, IOWAIT = 3, 4
"""Columns of ``cpu`` in /proc/stat after its name (proc(5))."""


@dataclass(frozen=True)
class Taken:
    """What was taken since the last look.

    Attributes:
        per_s: Messages in a second.
        cells: The topics with the most, and how many in a second.
    """

    per_s: float
    cells: tuple[tuple[str, float], ...]


class Meter:
    """Counts messages by topic between two looks.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s = clock()
        self._counts: Counter[str] = Counter()

    def count(self, topics: Iterable[str]) -> None:
        """Messages were taken for these topics."""
        with self._lock:
            self._counts.update(topics)

    def look(self) -> Taken:
        """What was taken since the last look."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            since_s, self._since_s = self._since_s, self._clock()
            over_s = max(self._since_s - since_s, 1e-3)
        cells = tuple(
            (topic, round(count / over_s, 3))
            for topic, count in counts.most_common(MOST_CELLS)
        )
        return Taken(round(counts.total() / over_s, 3), cells)


class Cpu:
    """How busy the machine was between two looks.

    Args:
        stat: The kernel's count of ticks.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._ticks()

    def look(self) -> float:
        """Busy share since the last look, 0 to 1."""
        before, self._before = self._before, self._ticks()
        spent = [now - then for now, then in zip(self._before, before, strict=True)]
        idle = spent[IDLE] + spent[IOWAIT]
        return round(1.0 - idle / max(sum(spent), 1), 3)

    def _ticks(self) -> list[int]:
        first, _, _ = self._stat.read_text(encoding="ascii").partition("\n")
        return [int(tick) for tick in first.split()[1:9]]


class Burden:
    """Tells the load of a gateway whenever it is asked to.

    Args:
        gateway: Its public address.
        lanes: Where messages wait.
        meter: Counts what is taken.
        cpu: How busy the machine is.
        tell: Who hears it.
    """

    def __init__(
        self,
        gateway: BrokerInfo,
        lanes: Lanes,
        meter: Meter,
        cpu: Cpu,
        tell: Sequence[Callable[[Load], object]],
    ) -> None:
        self._gateway = gateway
        self._lanes = lanes
        self._meter = meter
        self._cpu = cpu
        self._tell = tuple(tell)

    def beat(self) -> None:
        """Tell it."""
        taken = self._meter.look()
        lanes = tuple(
            LaneLoad(
                broker,
                sum(depth.rows for depth in fill.stats.depth.values()),
                round(max(fill.ages_s.values(), default=0.0), 3),
            )
            for broker, fill in self._lanes.fills().items()
            if broker is not None
        )
        load = Load(self._gateway, taken.per_s, self._cpu.look(), taken.cells, lanes)
        for tell in self._tell:
            tell(load)

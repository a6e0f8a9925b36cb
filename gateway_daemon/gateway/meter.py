"""What a gateway carries: messages by topic, and how busy its machine is."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway_daemon.load import MOST_CELLS

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

"""Memory and processor time of running programs and all that they started."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from experiments.bench.tree import cpu_s, held_bytes

EVERY_S: Final = 1.0
MIB: Final = 2**20


@dataclass(frozen=True)
class Sample:
    """One look.

    Attributes:
        at_s: Monotonic time.
        mib: Memory of each program, MiB.
        cpu_s: Processor time so far of each.
        more: What the caller's own look told.
    """

    at_s: float
    mib: Mapping[str, float]
    cpu_s: Mapping[str, float]
    more: Mapping[str, float]


@dataclass
class Sampler:
    """Looks every second; a context manager.

    Attributes:
        pids: Programs by name.
        look: What else to note.
        samples: What was seen, in the order of time.
    """

    pids: Mapping[str, int]
    look: Callable[[], Mapping[str, float]] = dict
    samples: list[Sample] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin."""
        self.sample()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A last look, and the end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.sample()

    def sample(self) -> None:
        """Look once."""
        mib = {name: held_bytes(pid) / MIB for name, pid in self.pids.items()}
        used_s = {name: cpu_s(pid) for name, pid in self.pids.items()}
        self.samples.append(Sample(time.monotonic(), mib, used_s, self.look()))

    def used_s(self, name: str, from_s: float, to_s: float) -> float:
        """Processor time of a program between two times, as near as was looked."""
        seen = self.samples
        before = [s for s in seen if s.at_s <= from_s] or seen[:1]
        after = [s for s in seen if s.at_s >= to_s] or seen[-1:]
        return after[0].cpu_s[name] - before[-1].cpu_s[name]

    def growth_mib(self, name: str, from_s: float, to_s: float) -> float:
        """Memory of the last quarter of a time less that of its second, in MiB."""
        quarter_s = (to_s - from_s) / 4

        def mean(first_s: float) -> float:
            last_s = first_s + quarter_s
            held = [s.mib[name] for s in self.samples if first_s <= s.at_s <= last_s]
            return sum(held) / len(held) if held else 0.0

        return mean(to_s - quarter_s) - mean(from_s + quarter_s)

    def most_mib(self, name: str) -> float:
        """The most that a program held."""
        return max(sample.mib[name] for sample in self.samples)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.sample()

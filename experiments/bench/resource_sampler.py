"""Sampling of memory and CPU time of running programs with their descendants."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from experiments.bench.process_tree import cpu_s, memory_bytes

INTERVAL_S: Final = 1.0
MIB: Final = 2**20


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes:
        at_s: Monotonic time.
        mib: Memory of each program, MiB.
        cpu_s: CPU time of each program so far.
        more: Additional values from the caller's function.
    """

    at_s: float
    mib: Mapping[str, float]
    cpu_s: Mapping[str, float]
    more: Mapping[str, float]


@dataclass
class Sampler:
    """Takes a sample every second; a context manager.

    Attributes:
        pids: Process ids by the name of the program.
        read_more: Returns additional values for a sample.
        samples: All samples, in order of time.
    """

    pids: Mapping[str, int]
    read_more: Callable[[], Mapping[str, float]] = dict
    samples: list[Sample] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start sampling."""
        self.sample()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling, with a last sample."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.sample()

    def sample(self) -> None:
        """Take one sample."""
        mib = {name: memory_bytes(pid) / MIB for name, pid in self.pids.items()}
        used_s = {name: cpu_s(pid) for name, pid in self.pids.items()}
        self.samples.append(Sample(time.monotonic(), mib, used_s, self.read_more()))

    def used_s(self, name: str, from_s: float, to_s: float) -> float:
        """Return the CPU time (s) of a program between the samples around two times."""
        samples = self.samples
        before = [s for s in samples if s.at_s <= from_s] or samples[:1]
        after = [s for s in samples if s.at_s >= to_s] or samples[-1:]
        return after[0].cpu_s[name] - before[-1].cpu_s[name]

    def growth_mib(self, name: str, from_s: float, to_s: float) -> float:
        """Return mean memory of the last quarter minus the second quarter, in MiB."""
        quarter_s = (to_s - from_s) / 4

        def mean(first_s: float) -> float:
            last_s = first_s + quarter_s
            values = [s.mib[name] for s in self.samples if first_s <= s.at_s <= last_s]
            return sum(values) / len(values) if values else 0.0

        return mean(to_s - quarter_s) - mean(from_s + quarter_s)

    def max_mib(self, name: str) -> float:
        """Return the maximum memory of a program, in MiB."""
        return max(sample.mib[name] for sample in self.samples)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.sample()

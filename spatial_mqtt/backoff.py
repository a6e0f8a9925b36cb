"""How long to wait before the next try to connect: decorrelated jitter.

Thousands of nodes that lost one gateway must not come back in step. Each wait
is drawn between the base and three times the last one, under a cap, and starts
over only after a connection has lasted for a stable period: a broker that
accepts and drops at once is not hammered.
"""

import random
from dataclasses import dataclass


@dataclass
class Backoff:
    """State of one connection's waits.

    Attributes:
        rng: Source of randomness.
        base_s: Shortest wait.
        cap_s: Longest wait.
        urgent_cap_s: Longest first wait while something urgent waits to be sent.
        urgent_most_s: What that grows to while tries fail: in a storm every node has
            something urgent, and they must not all come in one second either.
        stable_s: A connection that lasted so long resets the wait.
    """

    rng: random.Random
    base_s: float = 0.5
    cap_s: float = 60.0
    urgent_cap_s: float = 2.0
    urgent_most_s: float = 8.0
    stable_s: float = 30.0
    _last_s: float = 0.0
    _tries: int = 0

    def next_s(self) -> float:
        """The next wait in seconds, between the base and the cap."""
        self._tries += 1
        ceiling_s = max(self.base_s, self._last_s) * 3
        self._last_s = min(self.cap_s, self.rng.uniform(self.base_s, ceiling_s))
        return self._last_s

    def urgent_s(self) -> float:
        """A wait for an urgent message: short, yet spread over many nodes."""
        grown_s = self.urgent_cap_s * 1.5 ** min(self._tries - 1, 20)
        cap_s = max(self.urgent_cap_s, min(self.urgent_most_s, grown_s))
        return self.rng.uniform(min(0.1, cap_s), cap_s)

    def connected_for(self, lasted_s: float) -> None:
        """Tell how long the last connection lasted."""
        if lasted_s >= self.stable_s:
            self._last_s = 0.0
            self._tries = 0

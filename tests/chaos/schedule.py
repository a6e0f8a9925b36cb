"""Plans faults from a seed. No I/O."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

SETTLE_S = 6.0
"""Minimum time between two faults of a part, so that each loss has one cause."""

PAUSE_S = (0.5, 4.0)
"""Range of the time between the starts of two faults."""


class Fault(StrEnum):
    """Kind of fault: an outage or a degradation."""

    KILL = "kill -9"
    STOP = "SIGSTOP"
    CUT = "link cut"
    LONG = "long cut"
    SLOW = "slow link"
    FULL = "disk full"
    JUMP = "clock jump"
    WORKER = "worker lost"


LASTS_S = {
    Fault.KILL: (0.0, 3.0),
    Fault.STOP: (0.5, 8.0),
    Fault.CUT: (0.5, 10.0),
    Fault.LONG: (12.0, 20.0),
    Fault.SLOW: (4.0, 12.0),
    Fault.FULL: (2.0, 8.0),
    Fault.JUMP: (1.0, 8.0),
    Fault.WORKER: (0.0, 0.0),
}
SIZES = {
    Fault.JUMP: (-86_400.0, -3600.0, 3600.0, 86_400.0),
    Fault.SLOW: (3000.0, 6000.0, 20_000.0),
}


@dataclass(frozen=True, order=True)
class PlannedFault:
    """One fault.

    Attributes:
        from_s: Start, in seconds from the start of the run.
        until_s: End.
        part: Affected part.
        fault: Kind of fault.
        size: Clock offset in s, or rate of a slow link in bytes/s; 0 for other faults.
    """

    from_s: float
    until_s: float
    part: str
    fault: Fault
    size: float = 0.0


def plan(
    seed: int, lasts_s: float, faults: Mapping[str, Sequence[Fault]]
) -> list[PlannedFault]:
    """Faults for a run, ordered by start time.

    Each pair of part and fault occurs once before any occurs again, and the first few
    faults are one of every kind. Faults of different parts overlap; those of one part
    are `SETTLE_S` apart. All end within the run.

    Args:
        seed: The same seed gives the same plan.
        lasts_s: Length of the run.
        faults: Possible faults by part.
    """
    chance = random.Random(seed)
    pairs = [(part, fault) for part, kinds in faults.items() for fault in kinds]
    free_s = dict.fromkeys(faults, 0.0)
    deck: list[tuple[str, Fault]] = []
    events: list[PlannedFault] = []
    now_s = 0.0
    while pairs:
        now_s += chance.uniform(*PAUSE_S)
        deck = deck or _shuffle_by_kind(chance.sample(pairs, len(pairs)))
        part, fault = _first_free(deck, free_s, now_s)
        from_s = max(now_s, free_s[part])
        until_s = from_s + chance.uniform(*LASTS_S[fault])
        size = chance.choice(SIZES.get(fault, (0.0,)))
        if until_s > lasts_s:
            break
        free_s[part] = until_s + SETTLE_S
        events.append(PlannedFault(from_s, until_s, part, fault, size))
    return sorted(events)


def _first_free(
    deck: list[tuple[str, Fault]], free_s: Mapping[str, float], now_s: float
) -> tuple[str, Fault]:
    """Pop the next pair whose part is free; if there is none, the next pair."""
    at = range(len(deck) - 1, -1, -1)
    free = (i for i in at if free_s[deck[i][0]] <= now_s)
    return deck.pop(next(free, -1))


def _shuffle_by_kind(pairs: Sequence[tuple[str, Fault]]) -> list[tuple[str, Fault]]:
    """Pairs with the kinds in turn; the longest faults last, to be popped first."""
    counts: Counter[Fault] = Counter()
    turns: list[tuple[int, float, tuple[str, Fault]]] = []
    for pair in pairs:
        turns.append((counts[pair[1]], -LASTS_S[pair[1]][1], pair))
        counts[pair[1]] += 1
    return [pair for _, _, pair in sorted(turns, key=lambda t: t[:2], reverse=True)]

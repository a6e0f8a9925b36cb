"""What is done to the system and when, all of it from one seed. Pure."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

SETTLE_S = 6.0
"""A part is left alone this long after a fault, so that each loss has one cause."""

PAUSE_S = (0.5, 4.0)
"""Between the beginnings of two faults."""


class Fault(StrEnum):
    """A way of being away, or of being worse than usual."""

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
class Act:
    """One fault.

    Attributes:
        from_s: When it begins, in seconds from the start.
        until_s: When it is undone.
        part: What it happens to.
        fault: What happens.
        size: How far a clock is put, in s, or what a slow link carries, in bytes/s;
            0 for other faults.
    """

    from_s: float
    until_s: float
    part: str
    fault: Fault
    size: float = 0.0


def plan(seed: int, lasts_s: float, faults: Mapping[str, Sequence[Fault]]) -> list[Act]:
    """Faults for a stretch of time, in the order of their beginnings.

    Each pair of part and fault comes once before any comes again, and the first few
    are one of every kind. Faults of different parts overlap; those of one part are
    `SETTLE_S` apart. All are undone within the stretch.

    Args:
        seed: The same one gives the same plan.
        lasts_s: Length of the stretch.
        faults: For each part what may happen to it.
    """
    chance = random.Random(seed)
    pairs = [(part, fault) for part, ways in faults.items() for fault in ways]
    free_s = dict.fromkeys(faults, 0.0)
    deck: list[tuple[str, Fault]] = []
    acts: list[Act] = []
    now_s = 0.0
    while pairs:
        now_s += chance.uniform(*PAUSE_S)
        deck = deck or _dealt(chance.sample(pairs, len(pairs)))
        part, fault = _first_free(deck, free_s, now_s)
        from_s = max(now_s, free_s[part])
        until_s = from_s + chance.uniform(*LASTS_S[fault])
        size = chance.choice(SIZES.get(fault, (0.0,)))
        if until_s > lasts_s:
            break
        free_s[part] = until_s + SETTLE_S
        acts.append(Act(from_s, until_s, part, fault, size))
    return sorted(acts)


def _first_free(
    deck: list[tuple[str, Fault]], free_s: Mapping[str, float], now_s: float
) -> tuple[str, Fault]:
    """Take the next pair whose part may be troubled again, or simply the next."""
    at = range(len(deck) - 1, -1, -1)
    free = (i for i in at if free_s[deck[i][0]] <= now_s)
    return deck.pop(next(free, -1))


def _dealt(pairs: Sequence[tuple[str, Fault]]) -> list[tuple[str, Fault]]:
    """The kinds in turn, the longest fault last: who takes from the end begins so."""
    met: Counter[Fault] = Counter()
    turns: list[tuple[int, float, tuple[str, Fault]]] = []
    for pair in pairs:
        turns.append((met[pair[1]], -LASTS_S[pair[1]][1], pair))
        met[pair[1]] += 1
    return [pair for _, _, pair in sorted(turns, key=lambda t: t[:2], reverse=True)]

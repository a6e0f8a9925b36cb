"""What is done to the system and when, all of it from one seed. Pure."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

SETTLE_S = 6.0
"""A part is left alone this long after a fault, so that each loss has one cause."""

PAUSE_S = (0.5, 4.0)
"""Between the beginnings of two faults."""


class Fault(StrEnum):
    """A way of being away."""

    KILL = "kill -9"
    STOP = "SIGSTOP"
    CUT = "link cut"
    FULL = "disk full"
    JUMP = "clock jump"


LASTS_S = {
    Fault.KILL: (0.0, 3.0),
    Fault.STOP: (0.5, 8.0),
    Fault.CUT: (0.5, 10.0),
    Fault.FULL: (2.0, 8.0),
    Fault.JUMP: (1.0, 8.0),
}
JUMPS_S = (-86_400.0, -3600.0, 3600.0, 86_400.0)


@dataclass(frozen=True, order=True)
class Act:
    """One fault.

    Attributes:
        from_s: When it begins, in seconds from the start.
        until_s: When it is undone.
        part: What it happens to.
        fault: What happens.
        jump_s: How far a clock is put, in s; 0 for other faults.
    """

    from_s: float
    until_s: float
    part: str
    fault: Fault
    jump_s: float = 0.0


def plan(seed: int, lasts_s: float, faults: Mapping[str, Sequence[Fault]]) -> list[Act]:
    """Faults for a stretch of time, in the order of their beginnings.

    Each pair of part and fault comes once before any comes again. Faults of
    different parts overlap; those of one part are `SETTLE_S` apart. All are undone
    within the stretch.

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
        deck = deck or chance.sample(pairs, len(pairs))
        part, fault = deck.pop()
        from_s = max(now_s, free_s[part])
        until_s = from_s + chance.uniform(*LASTS_S[fault])
        jump_s = chance.choice(JUMPS_S) if fault is Fault.JUMP else 0.0
        if until_s > lasts_s:
            break
        free_s[part] = until_s + SETTLE_S
        acts.append(Act(from_s, until_s, part, fault, jump_s))
    return sorted(acts)

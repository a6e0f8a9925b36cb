"""What is remembered of a cell, so that scoring need not read its whole past.

Readings later than a memory are scored from it as from the whole past before it:
the water in the soil, rain of seven days, what is learnt of each sensor, and the last
word of sensors that are silent. The readings of the last day are not in it: they are
read again, because flags and rates look back at them one by one.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from backend_spark.scoring.features import Past
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.quality import CONTEXT_S, REACH_S
from backend_spark.scoring.rain import NO_PAST, RainPast
from slope_science.movement import Thermal

EVERY_S: Final = 86_400
"""Time between two memories of a cell; a whole number of hours and of steps."""

READ_AGAIN_S: Final = CONTEXT_S + 3600
"""Readings so long before a memory are read with those after it."""

SETTLED_S: Final = 3 * 3600
"""A moment so far behind the newest reading is worth remembering: readings that
come as late as usual do not reach it."""

NEAR_S: Final = 4 * 86_400
FAR_S: Final = 72 * 86_400
SPARSE: Final = 8
"""Of memories older than `NEAR_S` every eighth is kept, up to `FAR_S`."""

FORMAT: Final = 1
"""Grows when memories of an earlier program would mislead this one."""


@dataclass(frozen=True)
class Memory:
    """A cell at the end of a step.

    Attributes:
        at_s: Unix time of that end.
        rain: What counts of its rain.
        thermals: What each tilt meter's days have taught.
        pasts: Where values of each moisture and pore pressure sensor lay.
        last: Of each series the last reading, and the last that counts, among those
            that are not read again.
    """

    at_s: int
    rain: RainPast = NO_PAST
    thermals: dict[str, Thermal] = field(default_factory=dict)
    pasts: dict[str, Past] = field(default_factory=dict)
    last: tuple[Observation, ...] = ()


def holds_for(touched_s: float) -> float:
    """The last moment whose memory new readings since a time leave as it is."""
    return touched_s - REACH_S


def moments(after_s: float, newest_s: float) -> list[int]:
    """When to remember, after a moment, with readings up to another."""
    first = int(max(after_s, newest_s - FAR_S) // EVERY_S + 1) * EVERY_S
    last = newest_s - SETTLED_S
    due = range(first, int(last // EVERY_S) * EVERY_S + 1, EVERY_S)
    return [at_s for at_s in due if is_kept(at_s, newest_s)]


def is_kept(at_s: float, newest_s: float) -> bool:
    """Whether a memory is worth its room."""
    age_s = newest_s - at_s
    is_sparse = int(at_s // EVERY_S) % SPARSE == 0
    return age_s <= NEAR_S or (is_sparse and age_s <= FAR_S)


def last_words(
    observations: Iterable[Observation], at_s: float
) -> Iterator[Observation]:
    """The `Memory.last` of a moment.

    Args:
        observations: In the order of time, flagged.
        at_s: The moment.
    """
    last: dict[tuple[str, str], Observation] = {}
    counted: dict[tuple[str, str], Observation] = {}
    for o in observations:
        if o.at_s <= at_s - READ_AGAIN_S:
            last[o.node, o.name] = o
            if o.counts:
                counted[o.node, o.name] = o
    for key, o in last.items():
        if key in counted and counted[key] is not o:
            yield counted[key]
        yield o


def encode(memory: Memory) -> bytes:
    """A memory in few bytes."""
    return zlib.compress(msgspec.msgpack.encode(memory), 1)


def decode(body: bytes) -> Memory:
    """What `encode` wrote."""
    return _DECODER.decode(zlib.decompress(body))


_DECODER = msgspec.msgpack.Decoder(Memory)

"""Saved state of a cell, so that scoring need not read its whole past.

Scoring from a saved state gives the same result as from all readings before it. It
contains the water in the soil, the rain of seven days, what was learnt of each sensor,
and the last reading of silent sensors. Readings of the last day are not included: they
are read again, because flags and rates need them one by one.
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
"""Time between two saved states of a cell; whole hours and steps."""

READ_AGAIN_S: Final = CONTEXT_S + 3600
"""Readings of this time before a saved state are read again."""

SETTLED_S: Final = 3 * 3600
"""Minimum age of a state when it is saved; later than the usual delay of readings."""

NEAR_S: Final = 4 * 86_400
FAR_S: Final = 72 * 86_400
SPARSE: Final = 8
"""Every eighth state older than `DENSE_STATES_S` is kept, up to `MAX_STATE_AGE_S`."""

FORMAT: Final = 1
"""Version; increased when states of an earlier program are no longer valid."""


@dataclass(frozen=True)
class Memory:
    """State of a cell at the end of a step.

    Attributes:
        at_s: Unix time of that end.
        rain: Rain up to then.
        thermals: Thermal regression of each tilt meter.
        pasts: Distribution of the values of each moisture and pore pressure sensor.
        last: Last reading of each series, and the last one that counts, among those
            that are not read again.
    """

    at_s: int
    rain: RainPast = NO_PAST
    thermals: dict[str, Thermal] = field(default_factory=dict)
    pasts: dict[str, Past] = field(default_factory=dict)
    last: tuple[Observation, ...] = ()


def holds_for(touched_s: float) -> float:
    """Time of the last state that new readings since a time leave valid."""
    return touched_s - REACH_S


def moments(after_s: float, newest_s: float) -> list[int]:
    """Times at which to save a state, after a moment, by readings up to another."""
    first = int(max(after_s, newest_s - FAR_S) // EVERY_S + 1) * EVERY_S
    last = newest_s - SETTLED_S
    due = range(first, int(last // EVERY_S) * EVERY_S + 1, EVERY_S)
    return [at_s for at_s in due if is_kept(at_s, newest_s)]


def is_kept(at_s: float, newest_s: float) -> bool:
    """Whether a state is kept."""
    age_s = newest_s - at_s
    is_sparse = int(at_s // EVERY_S) % SPARSE == 0
    return age_s <= NEAR_S or (is_sparse and age_s <= FAR_S)


def last_words(
    observations: Iterable[Observation], at_s: float
) -> Iterator[Observation]:
    """`ScoringState.last` of a moment.

    Args:
        observations: Readings in time order, with flags.
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
    """Encode a state in few bytes."""
    return zlib.compress(msgspec.msgpack.encode(memory), 1)


def decode(body: bytes) -> Memory:
    """Decode a state."""
    return _DECODER.decode(zlib.decompress(body))


_DECODER = msgspec.msgpack.Decoder(Memory)

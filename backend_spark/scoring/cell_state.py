"""Saved state of a cell, so that scoring need not read its whole past.

Scoring from a saved state gives the same result as from all readings before it. It
contains the water in the soil, the rain of seven days, what was learnt of each sensor,
and the last reading of silent sensors. Readings of the last day are not included: they
are read again, because flags and rates need them one by one.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from backend_spark.scoring.features import ValueDistribution
from backend_spark.scoring.holds import NO_HOLD, RainHold, SensorHold
from backend_spark.scoring.observation import RAIN, Observation
from backend_spark.scoring.quality import FLAG_REACH_S, LOOK_BACK_S
from backend_spark.scoring.rain import NO_RAIN_PAST, RainPast
from slope_science.rain_quality import USUAL_REPORTS

STATE_INTERVAL_S: Final = 86_400
"""Time between two saved states of a cell; whole hours and steps."""

REREAD_S: Final = LOOK_BACK_S + 3600
"""Readings of this time before a saved state are read again."""

MIN_STATE_AGE_S: Final = 3 * 3600
"""Minimum age of a state when it is saved; later than the usual delay of readings."""

DENSE_STATES_S: Final = 4 * 86_400
MAX_STATE_AGE_S: Final = 72 * 86_400
SPARSE_STATE_EVERY: Final = 8
"""Every eighth state older than `DENSE_STATES_S` is kept, up to `MAX_STATE_AGE_S`."""

STATE_FORMAT: Final = 3
"""Version; increased when states of an earlier program are no longer valid."""


@dataclass(frozen=True)
class ScoringState:
    """State of a cell at the end of a step.

    Attributes:
        at_s: Unix time of that end.
        rain: Rain up to then.
        evidence: State of the rules of movement and water.
        pasts: Distribution of the values of each moisture and pore pressure sensor.
        last: Last reading of each series, and the last one that counts, among those
            that are not read again; of rain also the reports that show the usual
            interval before the last one.
        rain_hold: Hold of the level by rain.
        sensor_holds: Holds of other sensors.
    """

    at_s: int
    rain: RainPast = NO_RAIN_PAST
    evidence: dict[str, Any] = field(default_factory=dict)
    pasts: dict[str, ValueDistribution] = field(default_factory=dict)
    last: tuple[Observation, ...] = ()
    rain_hold: RainHold = NO_HOLD
    sensor_holds: dict[str, SensorHold] = field(default_factory=dict)


def last_valid_state_s(touched_s: float) -> float:
    """Time of the last state that new readings since a time leave valid."""
    return touched_s - FLAG_REACH_S


def state_times_s(after_s: float, newest_s: float) -> list[int]:
    """Times at which to save a state, after a moment, by readings up to another."""
    first = (
        int(max(after_s, newest_s - MAX_STATE_AGE_S) // STATE_INTERVAL_S + 1)
        * STATE_INTERVAL_S
    )
    last = newest_s - MIN_STATE_AGE_S
    due = range(
        first, int(last // STATE_INTERVAL_S) * STATE_INTERVAL_S + 1, STATE_INTERVAL_S
    )
    return [at_s for at_s in due if keeps_state(at_s, newest_s)]


def keeps_state(at_s: float, newest_s: float) -> bool:
    """Whether a state is kept."""
    age_s = newest_s - at_s
    is_sparse = int(at_s // STATE_INTERVAL_S) % SPARSE_STATE_EVERY == 0
    return age_s <= DENSE_STATES_S or (is_sparse and age_s <= MAX_STATE_AGE_S)


def last_observations(
    observations: Iterable[Observation], at_s: float
) -> Iterator[Observation]:
    """`ScoringState.last` of a moment.

    Args:
        observations: Readings in time order, with flags.
        at_s: The moment.
    """
    last: dict[tuple[str, str], Observation] = {}
    counted: dict[tuple[str, str], Observation] = {}
    reports: dict[str, deque[Observation]] = {}
    for o in observations:
        if o.at_s <= at_s - REREAD_S:
            if o.is_rain:
                reports.setdefault(o.node, deque(maxlen=USUAL_REPORTS + 1)).append(o)
            last[o.node, o.name] = o
            if o.counts:
                counted[o.node, o.name] = o
    for key, o in last.items():
        earlier = reports.get(key[0], ()) if key[1] == RAIN else ()
        kept = (*earlier, counted.get(key, o), o)
        yield from {id(each): each for each in kept}.values()


def encode_state(memory: ScoringState) -> bytes:
    """Encode a state in few bytes."""
    return zlib.compress(msgspec.msgpack.encode(memory), 1)


def decode_state(body: bytes) -> ScoringState:
    """Decode a state."""
    return _DECODER.decode(zlib.decompress(body))


_DECODER = msgspec.msgpack.Decoder(ScoringState)

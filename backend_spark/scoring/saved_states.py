"""Saved states and hot states of a cell, so that scoring need not read its whole past.

Scoring from a saved state gives the same result as from all readings before it. It
contains the water in the soil, the rain of seven days, what was learnt of each sensor,
and the last reading of silent sensors. Readings of the last day are not included: they
are read again, because flags and rates need them one by one.

A saved state is up to a day old, and scoring from it reads 26 hours before it again. A
hot state is that of the newest closed step, from which only new readings are scored. It
contains what later steps need of the readings before it: the rain of a day by gauge,
and few readings of each series. It is a cache. It is used only where scoring from it
gives what scoring from a saved state gives; everywhere else it is discarded
(`HotState.holds_for`).

Two kinds of states are kept. The newest one has no margin: it needs evidence that later
readings cannot change. Where rain is missing, or evidence may be held, the state is
three hours old, as saved states are when they are saved.
"""

import math
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from backend_spark.scoring.evidence import ValueDistribution
from backend_spark.scoring.holds import NO_HOLD, USUAL_READINGS, RainHold, SensorHold
from backend_spark.scoring.observation import (
    PORE_UNIT,
    RAIN,
    RAIN_UNIT,
    STEP_S,
    TILT_UNIT,
    Observation,
    reading_limits,
    step_end_s,
)
from backend_spark.scoring.quality import FLAG_REACH_S, LOOK_BACK_S, flag_single
from backend_spark.scoring.rain import MAX_CATCH_UP_S, NO_RAIN_PAST, RainPast
from slope_science.evidence.settings import EvidenceSettings
from slope_science.evidence.soil_and_water_level import SUCTION_H
from slope_science.levels import WARNING
from slope_science.quality import CLOCK_LAG_S, NEIGHBOUR_S, Flag
from slope_science.rain_quality import (
    FIRST_REPORT_S,
    MAX_RELEASE_S,
    USUAL_REPORTS,
    RainRecord,
)
from slope_science.reason_codes import ReasonCode

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
    return _STATE_DECODER.decode(zlib.decompress(body))


_STATE_DECODER = msgspec.msgpack.Decoder(ScoringState)

RECHECK_S: Final = NEIGHBOUR_S + MAX_RELEASE_S
"""Time before a state in which flags are checked again."""

TAIL_S: Final = RECHECK_S + NEIGHBOUR_S
"""Time before a state of which all readings are kept: a test uses readings up to an
hour before the one that is checked again."""

RAIN_TAIL_S: Final = MIN_STATE_AGE_S + TAIL_S
"""The same for rain, which takes the place of a neighbour's missing rain."""

MAX_NEWS_S: Final = 6 * 3600
"""Longest time of new readings: after more, a state must be saved as well."""

RECOMPUTE_SPREAD_S: Final = 20 * 3600
"""Time over which cells are scored from their saved state again, once a day."""

RECOMPUTE_LEVEL: Final = 9
"""S2 level of areas, of some 320 km2, whose cells have the same time for that: such
cells need the same row groups of a day, and the same rain of the cells around."""

_FACE_BITS: Final = 3
_TOKEN_DIGITS: Final = 16
_GOLDEN_RATIO: Final = 0.618_033_988_749_895

_AT_S: Final = attrgetter("at_s")


@dataclass(frozen=True)
class HotHead:
    """Part of a hot state that decides on its use.

    A task has this of all its cells, the rain of some, and the whole state of one.

    Attributes:
        at_s: Unix time of the end of the state's step.
        margin_s: Time after the state in which a new reading makes it invalid.
        cold_s: Unix time of the newest reading when the cell was last scored without a
            hot state.
        digest: Of the rules at the state's step (`CellRules.digest`).
    """

    at_s: int
    margin_s: float = 0.0
    cold_s: float = 0.0
    digest: int = 0

    def holds_for(self, cell: str, touched_s: float, digest: int) -> bool:
        """Whether new readings may be scored from it; `still_holds` tests the rest.

        Once a day it does not hold, so that a cell is scored from its saved state, and
        saves the next one.

        Args:
            cell: Token of the cell.
            touched_s: Unix time of the earliest new reading.
            digest: Of the present rules at this step.
        """
        due_s = _recompute_s(cell)
        days = [(at_s - due_s) // STATE_INTERVAL_S for at_s in (self.cold_s, touched_s)]
        is_later = touched_s > self.at_s and touched_s >= self.at_s + self.margin_s
        return is_later and days[0] == days[1] and digest == self.digest


def _recompute_s(cell: str) -> float:
    """Time of day at which a cell is scored from its saved state again, in seconds.

    Multiples of the golden ratio, modulo 1, are evenly spaced for any areas that follow
    one another on S2's curve, so that as few as possible are due in the same pass.
    """
    id_ = int(cell.ljust(_TOKEN_DIGITS, "0"), 16)
    area = id_ >> (4 * _TOKEN_DIGITS - _FACE_BITS - 2 * RECOMPUTE_LEVEL)
    return MIN_STATE_AGE_S + RECOMPUTE_SPREAD_S * (area * _GOLDEN_RATIO % 1.0)


@dataclass(frozen=True)
class HotRain:
    """Rain of a hot state, for the cells around.

    Attributes:
        last: The kept reports of rain gauges of `REREAD_S` before the state.
        gauges: Rain of a day before the state, by node.
    """

    at_s: int
    last: tuple[Observation, ...] = ()
    gauges: dict[str, RainRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class HotState(ScoringState, HotHead):
    """State of a cell at the end of a recent step; `last` has the kept readings.

    Attributes:
        gauges: Rain of a day before the state, by node.
    """

    gauges: dict[str, RainRecord] = field(default_factory=dict)

    def still_holds(
        self,
        known: Sequence[Observation],
        changed: Iterable[Observation],
        touched_s: float,
    ) -> bool:
        """Whether new readings change nothing up to the state.

        Args:
            known: Kept and new readings with their flags, in time order.
            changed: Those whose flag is a new one.
            touched_s: Unix time of the earliest new reading.
        """
        if known and known[-1].at_s > self.at_s + MAX_NEWS_S:
            return False
        reports: dict[str, list[float]] = {}
        for o in known:
            if o.is_rain:
                reports.setdefault(o.node, []).append(o.at_s)
            is_late = o.received_us / 1e6 - o.at_s >= CLOCK_LAG_S
            # The age of messages is compared over hours of receipt.
            if is_late and o.synchronised and o.at_s >= touched_s - NEIGHBOUR_S:
                return False
        begins_s = (_begin_s(o, reports.get(o.node, ())) for o in changed)
        news_s = (
            _interval_begin_s(times, bisect_left(times, touched_s))
            for times in reports.values()
            if times[-1] >= touched_s
        )
        return all(begin_s >= self.at_s for begin_s in chain(begins_s, news_s))


@dataclass(frozen=True)
class HotTimes:
    """Times at which a pass may take a hot state.

    Attributes:
        newest_s: The last closed step; None if it is not after the pass's own state.
        older_s: The last step with the age of saved states, likewise.
    """

    newest_s: int | None = None
    older_s: int | None = None

    @classmethod
    def of(cls, ends_s: Sequence[int], known: Sequence[Observation]) -> "HotTimes":
        """Of the steps of a pass.

        Args:
            ends_s: Ends of the steps.
            known: Readings in time order.
        """
        older_s = int((known[-1].at_s - MIN_STATE_AGE_S) // STEP_S * STEP_S)
        first_s, newest_s = ends_s[0], ends_s[-1] - STEP_S
        # Between its reports a gauge's rain is not known yet.
        reports = {o.node: o.at_s for o in known if o.is_rain}
        for last_s in reports.values():
            if last_s >= older_s:
                newest_s = min(newest_s, int(last_s // STEP_S) * STEP_S)
        return cls(
            newest_s if newest_s >= first_s else None,
            older_s if older_s >= first_s else None,
        )

    def __iter__(self) -> Iterator[int]:
        """Those that exist, ascending."""
        yield from sorted({s for s in (self.newest_s, self.older_s) if s is not None})


def _begin_s(o: Observation, reports_s: Sequence[float]) -> float:
    """Begin of what a reading covers; of rain the report before, as it is spread."""
    if o.is_rain:
        return _interval_begin_s(reports_s, bisect_left(reports_s, o.at_s))
    return math.nextafter(o.at_s, -math.inf)  # at the state it belongs to it


def _interval_begin_s(reports_s: Sequence[float], at: int) -> float:
    """Begin of the interval over which the rain of a report is spread."""
    if not at:
        return reports_s[0] - FIRST_REPORT_S
    return max(reports_s[at - 1], reports_s[at] - MAX_CATCH_UP_S)


NO_HOT_TIMES: Final = HotTimes()


def tail_s(settings: EvidenceSettings) -> float:
    """Time before a state of which all readings are kept.

    The level that a node states counts for the hold time of its rule.
    """
    rules = vars(settings.rules).values()
    holds_s = (getattr(rule, "hold_s", 0.0) for rule in rules)
    return max(TAIL_S, max(holds_s, default=0.0) + STEP_S)


def keep_readings(
    known: Iterable[Observation], at_s: float, tail: float, *, all_rain: bool
) -> Iterator[Observation]:
    """Readings up to a moment that later steps need.

    Args:
        known: Readings in time order, with flags.
        at_s: The moment.
        tail: Result of `tail_s`.
        all_rain: Whether the reports of a day are needed, for analysed rain.
    """
    series: dict[tuple[str, str, str | None], list[Observation]] = {}
    # A level that a node states counts until its sensor has a reading again.
    has_levels = False
    for o in known:
        if o.at_s <= at_s:
            series.setdefault((o.node, o.name, o.unit), []).append(o)
            has_levels = has_levels or o.priority >= WARNING
    # The closures that a switch refused are counted since the report before.
    begins_s = {
        node: o.at_s
        for (node, name, unit), each in series.items()
        if name == RAIN and unit == RAIN_UNIT
        for o in each
        if o.at_s < at_s - RECHECK_S
    }
    for (node, _, _), readings in series.items():
        if _is_in_state(readings[-1]) and not has_levels:
            since_s = at_s
        else:
            since_s = min(at_s - tail, begins_s.get(node, at_s))
        if readings[0].is_rain:
            since_s = min(since_s, at_s - (REREAD_S if all_rain else RAIN_TAIL_S))
        first = _first_of_tail(readings, since_s)
        places = {*range(first, len(readings)), *_places_of_fall(readings, first)}
        places |= _places_of_last(readings)
        places |= _places_by_kind(readings, at_s)
        yield from (readings[place] for place in sorted(places))


def _is_in_state(o: Observation) -> bool:
    """Whether the state has what later findings need of a sensor's older readings.

    That of the rules of tilt meters and wires has. Flags need the last reading that is
    no spike, and those for the flat line.
    """
    return o.unit == TILT_UNIT or o.text is not None


def _first_of_tail(readings: Sequence[Observation], since_s: float) -> int:
    """Index of the last reading before a time that is no spike.

    After a spike the next reading is compared with the one before.
    """
    first = bisect_right(readings, since_s, key=_AT_S) - 1
    while first > 0 and _is_spike(readings[first]):
        first -= 1
    return max(0, first)


def _places_of_fall(readings: Sequence[Observation], last: int) -> set[int]:
    """The reports between which a counter fell to its value at an index.

    One that regains its earlier value, however much later, was read wrongly.
    """
    for place in range(last, 0, -1):
        before_mm, sum_mm = readings[place - 1].sum, readings[place].sum
        if before_mm == sum_mm:
            continue
        if before_mm is None or sum_mm is None or before_mm < sum_mm:
            break
        return {place - 1, place}
    return set()


def _is_spike(o: Observation) -> bool:
    return any(reason.code == ReasonCode.SPIKE for reason in o.reasons)


def _places_of_last(readings: Sequence[Observation]) -> set[int]:
    """The last readings that count, for the usual interval, and the last of all."""
    counted = [place for place, o in enumerate(readings) if o.counts]
    return {len(readings) - 1, *counted[-(USUAL_READINGS + 1) :]}


def _places_by_kind(readings: Sequence[Observation], at_s: float) -> set[int]:
    """Older readings of sensors whose tests or findings need a day."""
    o = readings[-1]
    limits = reading_limits(o.name, o.unit)
    if o.is_rain:
        return set()
    places: set[int] = set()
    if limits is not None and limits.flat is not None:
        places |= _places_of_line(readings, at_s - LOOK_BACK_S, limits.flat)
    if o.unit == RAIN_UNIT and "/" not in o.name:
        places |= _last_by_step(readings, at_s - REREAD_S)
    if o.unit == PORE_UNIT and "/" not in o.name:
        places |= _places_of_minima(readings, at_s - SUCTION_H * 3600.0)
    return places


def _places_of_line(
    readings: Sequence[Observation], since_s: float, min_jump: float
) -> set[int]:
    """Readings since the one before the last jump, at most since a time.

    Of equal ones in a row the first and the last.
    """
    good = [
        place
        for place, o in enumerate(readings)
        if o.value is not None and flag_single(o).flag <= Flag.SUSPECT
    ]
    places: set[int] = set()
    after: float | None = None
    for index in range(len(good) - 1, -1, -1):
        o = readings[good[index]]
        value = o.value or 0.0
        before = readings[good[index - 1]].value if index else None
        if not value == before == after:
            places.add(good[index])
        if o.at_s <= since_s:
            places.add(good[index])
            break
        if before is not None and abs(value - before) >= min_jump:
            places.add(good[index - 1])
            break
        after = value
    return places


def _last_by_step(readings: Sequence[Observation], since_s: float) -> set[int]:
    """The last reading of each step that counts, since a time."""
    last = {
        step_end_s(o.at_s): place
        for place, o in enumerate(readings)
        if o.at_s > since_s and o.counts and o.value is not None
    }
    return set(last.values())


def _places_of_minima(readings: Sequence[Observation], since_s: float) -> set[int]:
    """Readings since a time that are lower than all later ones."""
    places: set[int] = set()
    lowest = float("inf")
    for place in range(len(readings) - 1, -1, -1):
        o = readings[place]
        if o.at_s < since_s:
            break
        if o.counts and o.flag != Flag.SUSPECT and o.value is not None:
            if o.value < lowest:
                places.add(place)
            lowest = min(lowest, o.value)
    return places


def trim_records(
    records: Mapping[str, RainRecord], at_s: float
) -> dict[str, RainRecord]:
    """Rain by gauge up to a moment, of a day before it.

    Two intervals before that day remain, because the first one is of unknown length.
    """
    return {
        node: record.between(at_s - REREAD_S, at_s)
        for node, record in records.items()
        if record.times_s[1] <= at_s
    }


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    """A hot state in few bytes, of which the head is read by itself.

    A task has those of all its cells. In a storm a state has hundreds of readings, of
    which most columns are the same: compressed it takes an eighth.
    """

    head: HotHead
    size: int
    data: bytes


def encode_hot(state: HotState) -> bytes:
    """Encode a hot state."""
    head = HotHead(state.at_s, state.margin_s, state.cold_s, state.digest)
    body = msgspec.msgpack.encode(state)
    data = pa.compress(body, codec=_CODEC, asbytes=True)
    return msgspec.msgpack.encode(_Encoded(head, len(body), data))


def decode_hot(body: bytes | pa.Buffer) -> HotState:
    """Decode a hot state."""
    return _DECODER.decode(_decompress(body))


def decode_head(body: bytes | pa.Buffer) -> HotHead:
    """Decode the head of a hot state, and skip the rest."""
    return _ENCODED_DECODER.decode(body).head


def decode_rain(body: bytes | pa.Buffer) -> HotRain:
    """Decode the rain of a hot state, and skip the rest."""
    rain = _RAIN_DECODER.decode(_decompress(body))
    since_s = rain.at_s - REREAD_S
    kept = (o for o in rain.last if o.is_rain and o.at_s > since_s)
    return replace(rain, last=tuple(kept))


def _decompress(body: bytes | pa.Buffer) -> pa.Buffer:
    encoded = _ENCODED_DECODER.decode(body)
    return pa.decompress(encoded.data, encoded.size, codec=_CODEC)


_CODEC: Final = "lz4_raw"
_DECODER = msgspec.msgpack.Decoder(HotState)
_ENCODED_DECODER = msgspec.msgpack.Decoder(_Encoded)
_RAIN_DECODER = msgspec.msgpack.Decoder(HotRain)

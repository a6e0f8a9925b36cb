"""Scoring from hot states gives the same rows as scoring from saved states."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import cell_days
import pytest
from cell_days import (
    RULES,
    T0,
    Store,
    readings,
)
from msgspec import structs
from scored_levels import make_levels_table, make_sensors_table

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.quality import REFUSED
from backend_spark.scoring.reviews import (
    NEVER_REJECTED,
    ReadingReview,
    ReadingReviews,
)
from backend_spark.scoring.revisions import is_unchanged
from backend_spark.scoring.saved_states import (
    RECOMPUTE_LEVEL,
    REREAD_S,
    HotHead,
    HotState,
    decode_hot,
    decode_state,
    encode_hot,
    encode_state,
    keep_readings,
    last_valid_state_s,
)
from backend_spark.scoring.score import CellScores, score_cell, score_from_hot
from backend_spark.scoring.surrounding_rain import Span
from slope_science.levels import Criteria
from slope_science.official_rain import AnalysedRain, AnalysedState
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell


@dataclass
class HotStore(Store):
    """The same with a hot state.

    Attributes:
        hot: The encoded hot state; None without.
        ways: How each scoring was done.
        reviews: Reviews in force.
    """

    hot: bytes | None = None
    ways: list[str] = field(default_factory=list)
    reviews: list[ReadingReview] = field(default_factory=list)

    def add(self, new: Sequence[Observation]) -> None:
        """Store readings and score the steps that they affect."""
        self.silver |= {(o.node, o.name, o.at_s): o for o in new}
        self.score(min(o.at_s for o in new))

    def score(self, touched_s: float) -> None:
        """Score the steps that readings since a time affect."""
        found = self._hot_scores(touched_s) or self._cold_scores(touched_s)
        self.silver |= {(o.node, o.name, o.at_s): o for o in found.reflagged}
        levels = make_levels_table("c", found.rows).to_pylist()
        sensors = make_sensors_table("c", found.sensors).to_pylist()
        self.gold |= {row["at"]: row for row in levels}
        self.gold |= {(row["at"], row["node"], row["sensor"]): row for row in sensors}

    def _hot_scores(self, touched_s: float) -> CellScores | None:
        hot = None if self.hot is None else decode_hot(self.hot)
        if hot is None or not hot.holds_for("c", touched_s, RULES.digest(hot.at_s)):
            return None
        new = [o for o in self.silver.values() if o.at_s > hot.at_s]
        new = ReadingReviews(self.reviews).mark(new)
        found = score_from_hot(new, RULES, touched_s, hot)
        if found is not None:
            self.ways.append("older" if hot.margin_s else "newest")
            self._keep(found.hot or hot)
        return found

    def _cold_scores(self, touched_s: float) -> CellScores:
        self.states = {
            at: body
            for at, body in self.states.items()
            if at <= last_valid_state_s(touched_s)
        }
        past = decode_state(self.states[max(self.states)]) if self.states else None
        since_s = past.at_s - REREAD_S if past else float("-inf")
        read = [o for o in self.silver.values() if o.at_s > since_s]
        read = ReadingReviews(self.reviews).mark(read)
        found = score_cell(read, RULES, touched_s, past, makes_hot=True)
        self.states |= {m.at_s: encode_state(m) for m in found.memories}
        self.ways.append("saved")
        self._keep(found.hot)
        return found

    def _keep(self, hot: HotState | None) -> None:
        self.hot = None if hot is None else encode_hot(hot)


def packs(observations: Sequence[Observation], every_s: int) -> list[list[Observation]]:
    """Readings in time order, in passes of some seconds."""
    order = sorted(observations, key=lambda o: o.at_s)
    return [list(each) for _, each in groupby(order, lambda o: o.at_s // every_s)]


def assert_equal(hot: HotStore, plain: Store, at: object) -> None:
    """Rows and flags do not differ."""
    assert hot.gold.keys() == plain.gold.keys(), at
    for key, row in plain.gold.items():
        assert is_unchanged(row, hot.gold[key]), (at, key, row, hot.gold[key])
        for name in ("state", "known_until", "latest_received"):
            assert row.get(name) == hot.gold[key].get(name), (at, key, name)
    flags = {key: (o.flag, o.why) for key, o in plain.silver.items()}
    assert flags == {key: (o.flag, o.why) for key, o in hot.silver.items()}, at


RAIN_WHY = "rain: rain soil water index 100.0 mm >= warning criterion 90.0 mm"


def all_kinds(rng: random.Random, days: int) -> list[Observation]:
    """Readings of all kinds, each received a second later, some in urgent messages."""
    made = readings(rng, days)
    urgent = {o.seq for o in made if rng.random() < 0.002}
    for o in [each for each in made if each.name == "rain"]:
        turn = 30 * math.sin(o.at_s / 2e4) + rng.gauss(0, 5)
        made.append(structs.replace(o, name="pore", unit="hPa", sum=None, value=turn))
        if rng.random() < 0.05:
            made.append(
                structs.replace(o, name=REFUSED, unit="count", sum=None, value=1.0)
            )
    return [
        structs.replace(
            o,
            received_us=round((o.at_s + 1) * 1e6),
            priority=3 if o.seq in urgent else 1,
            level_why=RAIN_WHY if o.seq in urgent else None,
        )
        for o in made
    ]


@pytest.mark.parametrize(
    ("seed", "every_s", "days"),
    [
        (0, 1800, 1),
        (13, 10_800, 2),  # as after some hours without the job
        *(pytest.param(seed, 600, 3, marks=pytest.mark.long) for seed in range(1, 4)),
        *(pytest.param(seed, 60, 1, marks=pytest.mark.long) for seed in range(3, 6)),
    ],
)
def test_scoring_from_hot_states_equals_scoring_all_at_once(
    seed: int, every_s: int, days: int
) -> None:
    """As scoring all at once: storms, spikes, gaps, held levels, late readings."""
    rng = random.Random(seed)
    observations = all_kinds(rng, days)
    late = {id(o) for o in observations[:-100] if rng.random() < 0.0005}
    on_time = [o for o in observations if id(o) not in late]
    hot, whole = HotStore(), Store()
    whole.add(observations)
    for batch in packs(on_time, every_s):
        before_s = batch[-1].at_s - 9000
        back = [o for o in observations if id(o) in late and o.at_s < before_s]
        late -= {id(o) for o in back}
        hot.add([*batch, *back])
    if late:
        hot.add([o for o in observations if id(o) in late])
    assert_equal(hot, whole, seed)
    assert {"saved", "newest"} <= set(hot.ways)
    assert hot.ways.count("saved") < len(hot.ways) / 2


def some_review(
    rng: random.Random, number: int, known: Sequence[Observation]
) -> ReadingReview:
    """A review of up to three hours of one sensor; doubts of all kinds are rejected."""
    doubtful = [o for o in known if o.flag == Flag.SUSPECT]
    last = rng.choice(doubtful if doubtful and rng.random() < 0.7 else known)
    codes = tuple(sorted(set(ReasonCode) - NEVER_REJECTED))
    return ReadingReview(
        id=number,
        cell="c",
        node=last.node,
        name=last.name,
        from_s=last.at_s - rng.choice((0.0, 900.0, 3 * 3600.0)),
        to_s=last.at_s,
        verdict="good" if last in doubtful else "bad",
        person="suzuki",
        at_s=0.0,
        codes=codes,
    )


@pytest.mark.parametrize(
    ("seed", "every_s", "days"),
    [
        (1, 3600, 2),
        *(pytest.param(seed, 1200, 3, marks=pytest.mark.long) for seed in range(2, 6)),
    ],
)
def test_reviews_between_passes_equal_reviews_from_the_start(
    seed: int, every_s: int, days: int
) -> None:
    """Decisions about readings of the last day, some reverted, old and new states."""
    rng = random.Random(seed)
    observations = all_kinds(rng, days)
    hot = HotStore()
    for number, batch in enumerate(packs(observations, every_s)):
        hot.add(batch)
        if number % 5 == 1:
            review = some_review(rng, number, list(hot.silver.values())[-900:])
            hot.reviews.append(review)
            hot.score(review.from_s)
        if number % 11 == 7:
            ended = hot.reviews.pop(rng.randrange(len(hot.reviews)))
            hot.score(ended.from_s)
    whole = HotStore(reviews=hot.reviews)
    whole.add(observations)

    assert_equal(hot, whole, seed)
    assert {"saved", "newest"} <= set(hot.ways)
    flags = [o.flag for o in whole.silver.values() if o.why and "suzuki" in o.why]
    assert {1, 4} == set(flags)


def pack(at_s: float, node: str = "a", rain_mm: float = 0.0) -> list[Observation]:
    """A message of a gauge and a tilt meter."""
    base = Observation(at_s, node, "", received_us=round((at_s + 1) * 1e6), boot="b")
    base = structs.replace(base, seq=round(at_s))
    return [
        structs.replace(base, name="rain", unit="mm", sum=rain_mm),
        structs.replace(base, name="tilt/x", unit="deg", value=at_s % 7 / 1000),
        structs.replace(base, name="tilt/y", unit="deg", value=at_s % 5 / 1000),
    ]


def run_of(hours: float, node: str = "a") -> list[list[Observation]]:
    """Messages every ten minutes from `T0` on."""
    return [pack(T0 + 600.0 * n + 3, node) for n in range(round(6 * hours))]


def test_quiet_passes_read_only_new_readings() -> None:
    """Each state is that of the last closed step, without a margin."""
    store = HotStore()
    for message in run_of(4):
        store.add(message)

    assert store.ways[2:] == ["newest"] * 22
    state = decode_hot(store.hot or b"")
    assert (state.at_s, state.margin_s) == (T0 + 23 * 600, 0)
    assert len(state.last) < 3 * 40


@pytest.mark.parametrize(("priority", "kept"), [(1, 13), (3, 121)])
def test_few_readings_of_tilt_meters_are_kept(priority: int, kept: int) -> None:
    """Their rules have a state; the level of an urgent message counts for a time."""
    messages = [pack(T0 + 60.0 * n + 3) for n in range(240)]
    messages[200] = [structs.replace(o, priority=priority) for o in messages[200]]
    known = [o for message in messages for o in message]
    found = [o.name for o in keep_readings(known, T0 + 14_400, 7200.0, all_rain=False)]

    assert found.count("tilt/x") == kept
    assert found.count("rain") == 240


def test_late_reading_is_scored_from_a_saved_state() -> None:
    """A reading before the hot state makes it invalid."""
    store, messages = HotStore(), run_of(3)
    for message in messages[:10] + messages[11:]:
        store.add(message)
    store.add(messages[10])

    assert store.ways[-2:] == ["newest", "saved"]


def test_gauge_that_returns_is_scored_from_a_saved_state() -> None:
    """Its catch-up changes the rain of steps before the hot state."""
    store = HotStore()
    for message in run_of(1):
        store.add([*message, *pack(message[0].at_s, "b")])
    for n in range(6, 30):
        store.add(pack(T0 + 600.0 * n + 3))
    store.add(pack(T0 + 600.0 * 30 + 3, "b", 8.0))

    assert store.ways[-2:] == ["newest", "saved"]
    rain_mm = [row["r60_mm"] for row in store.gold.values() if "r60_mm" in row]
    assert sum(bool(each) for each in rain_mm) >= 10


def test_counter_that_regains_its_value_after_hours_is_doubted() -> None:
    """A counter that is read as zero for seven dry hours: its return is no rain."""
    sums_mm = [30.0] * 6 + [0.0] * 42 + [30.0] * 4
    hot, whole = HotStore(), Store()
    messages = [
        pack(T0 + 600.0 * n + 3, rain_mm=sum_mm) for n, sum_mm in enumerate(sums_mm)
    ]
    for message in messages:
        hot.add(message)
    whole.add([o for message in messages for o in message])

    assert_equal(hot, whole, 0)
    assert hot.ways[10:48] == ["newest"] * 38
    flags = [o.flag for o in hot.silver.values() if o.name == "rain"]
    assert flags.count(Flag.SUSPECT) == 2


def test_counter_that_rises_by_more_than_rain_is_doubted() -> None:
    """The depths of the reports count, beside a counter that is wrong twice."""
    sums_mm = [1.0 * n for n in range(24)]
    sums_mm[12], sums_mm[18] = 0xFFFF_FFFF * 0.5, 1.7e308
    hot, whole = HotStore(), Store()
    messages = [
        pack(T0 + 600.0 * n + 3, rain_mm=sum_mm) for n, sum_mm in enumerate(sums_mm)
    ]
    for message in messages:
        message[0] = structs.replace(message[0], value=1.0)
        hot.add(message)
    whole.add([o for message in messages for o in message])

    assert_equal(hot, whole, 0)
    assert max(row.get("r60_mm") or 0.0 for row in hot.gold.values()) < 6.1
    doubts = [o.reasons[0].code for o in hot.silver.values() if o.flag == Flag.SUSPECT]
    assert doubts.count(ReasonCode.RAIN_RANGE) == 2
    assert doubts.count(ReasonCode.COUNTER_BACK) == 2


def test_replaced_sensor_has_the_flags_of_one_scoring() -> None:
    """Under the same name with another unit, and constant from then on."""
    hot, whole = HotStore(), Store()
    messages = run_of(40)
    for n, message in enumerate(messages):
        unit, value = ("/", 0.5 + n % 2 / 100) if n < 60 else ("deg", 0.5)
        probe = structs.replace(message[0], name="probe", unit=unit, sum=None)
        message.append(structs.replace(probe, value=value))
    for message in messages:
        hot.add(message)
    whole.add([o for message in messages for o in message])

    assert_equal(hot, whole, 0)
    flags = [o.flag for o in hot.silver.values() if o.name == "probe"]
    assert flags == [Flag.GOOD] * 204 + [Flag.SUSPECT] * 36


@pytest.mark.parametrize("silent_h", [5, 30])
def test_catch_up_confirms_the_rain_of_hours_ago(silent_h: int) -> None:
    """A storm beyond all limits at one gauge; the other was silent and had as much.

    The storm begins before the silence, and before a midnight at which a state would
    otherwise be saved.
    """
    sum_mm, messages = 0.0, []
    for n in range(22 * 6, 24 * 6 + (silent_h + 5) * 6):
        hour = n / 6 - 24
        sum_mm += 35.0 if -0.7 < hour < 1.5 else 0.0
        messages.append(pack(T0 + 600.0 * n + 3, "a", sum_mm))
        if hour < 0.2 or hour > silent_h:
            other_mm = 0.3 * sum_mm if hour < 1 else 63.0 + 200.0 * silent_h
            messages[-1] += pack(T0 + 600.0 * n + 23, "b", other_mm)
        air = structs.replace(messages[-1][0], sum=None)
        messages[-1] += [
            structs.replace(air, name="air/temp", unit="Cel", value=9.0 + n % 3),
            structs.replace(air, name="air/humidity", unit="%RH", value=60.0 + n % 5),
        ]
    observations = [o for message in messages for o in message]
    hot, whole = HotStore(), Store()
    for message in messages:
        hot.add(message)
    whole.add(observations)

    assert_equal(hot, whole, silent_h)
    last_s = T0 + 86_400.0 + 8 * 600.0 + 3
    assert hot.silver["a", "rain", last_s].flag == Flag.GOOD


def hourly_gauges(days: int) -> list[Observation]:
    """Three gauges that report somewhat more than an hour apart; one is nearly dry."""
    made = []
    for number, (node, share) in enumerate((("a", 0.15), ("b", 1.0), ("c", 1.0))):
        at_s, sum_mm = T0 + 137.0 * number, 0.0
        for seq in range(days * 23):
            sum_mm += 2.0 * share if seq % 30 > 20 or seq % 30 < 8 else 0.0
            base = Observation(at_s, node, "rain", "mm", boot="b", seq=seq)
            received_us = round((at_s + 1) * 1e6)
            made.append(structs.replace(base, sum=sum_mm, received_us=received_us))
            at_s += 3640.0 + 37 * seq % 100
    return made


@dataclass(frozen=True)
class EvenRain:
    """Analyses of steady rain, each known ten minutes after its hour.

    Attributes:
        hour_mm: Rain of each hour.
    """

    hour_mm: float

    def state(self, _at_s: float, _max_age_s: float | None = None) -> AnalysedState:
        """No analysis of the newest hour."""
        return AnalysedState()

    def hours(self, from_s: float, to_s: float, known_s: float) -> Mapping[int, Span]:
        """Rain of hours that end each ten minutes."""
        ends_s = range(math.ceil(from_s / 600) * 600, int(to_s) + 1, 600)
        span = self.hour_mm, self.hour_mm
        return {end_s: span for end_s in ends_s if end_s + 600 <= known_s}

    def step_rain(self, end_s: int, _known_s: float = math.inf) -> AnalysedRain:
        """A sixth of an hour."""
        return AnalysedRain(self.hour_mm / 6, end_s, 0.0)


@pytest.mark.parametrize(
    ("grid_mm", "step_mm", "code"),
    [
        (30.0, 0.0, ReasonCode.GRID_DEFICIT),
        (1.0, 3.0, ReasonCode.GRID_EXCESS),
    ],
)
def test_gauge_beside_analyses_has_the_rows_of_saved_states(
    monkeypatch: pytest.MonkeyPatch, grid_mm: float, step_mm: float, code: ReasonCode
) -> None:
    """Its flags come ten minutes late, and stay when another gauge returns."""
    rules = replace(RULES, analyses=EvenRain(grid_mm))
    monkeypatch.setitem(globals(), "RULES", rules)
    monkeypatch.setattr(cell_days, "RULES", rules)
    hot, saved = HotStore(), Store()
    for n in range(60):
        message = pack(T0 + 600.0 * n + 3, rain_mm=step_mm * n)
        if not 3 < n < 45:
            message += pack(T0 + 600.0 * n + 23, "b", 0.1 * n)
        hot.add(message)
        saved.add(message)
        assert_equal(hot, saved, n)

    rain = [o for o in hot.silver.values() if o.is_rain and o.node == "a"]
    flagged = [o for o in rain if code in {reason.code for reason in o.reasons}]
    assert len(flagged) >= 55
    assert {"saved", "newest" if step_mm else "older"} <= set(hot.ways)


@pytest.mark.parametrize("make", [Store, HotStore])
def test_gauges_with_reports_over_an_hour_apart_have_the_flags_of_one_scoring(
    make: type[Store],
) -> None:
    """Whether a report is late depends on those before it, also before a state."""
    passes, whole, observations = make(), Store(), hourly_gauges(4)
    for batch in packs(observations, 7200):
        passes.add(batch)
    whole.add(observations)

    flags = {key: (o.flag, o.why) for key, o in whole.silver.items()}
    assert flags == {key: (o.flag, o.why) for key, o in passes.silver.items()}
    assert sum("undercatch" in (why or "") for _, why in flags.values()) > 40


@pytest.mark.parametrize("every_s", [600, 3600])
def test_sensor_with_rare_reports_is_held_as_in_one_scoring(every_s: int) -> None:
    """A wire that reports every two hours is silent after six, and after its cut too.

    Its return after a silence changes no level of before: these were published.
    """
    hot, whole = HotStore(), Store()
    messages = run_of(40)
    for hour in (0, 2, 4, 6, 8, 10, 12, 14, 16, 24, 26, 28):
        o, is_cut = messages[6 * hour][0], hour > 8
        text = str(is_cut).lower()
        wire = structs.replace(o, name="wire", unit=None, sum=None, text=text)
        messages[6 * hour].append(structs.replace(wire, value=float(is_cut)))
    observations = [o for message in messages for o in message]
    for batch in packs(observations, every_s):
        hot.add(batch)
    whole.add(observations)

    assert_equal(hot, whole, every_s)
    levels = sorted((r["at"], r["state"]) for r in hot.gold.values() if "state" in r)
    runs = [(s, len(list(each))) for s, each in groupby(state for _, state in levels)]
    assert runs == [("judged", 133), ("held", 11), ("judged", 61), ("held", 35)]


def test_missing_rain_keeps_the_state_three_hours_back() -> None:
    """A neighbour's rain may still take its place."""
    store = HotStore()
    for number, message in enumerate(run_of(7)):
        store.add(message if number < 12 else message[1:])

    state = decode_hot(store.hot or b"")
    assert state.margin_s > 0
    assert state.at_s == T0 + 41 * 600 - 3 * 3600
    assert store.ways.count("older") >= 10


def test_new_rules_are_applied_from_a_saved_state() -> None:
    """A state of other criteria does not hold."""
    store = HotStore()
    for message in run_of(3):
        store.add(message)
    state = decode_hot(store.hot or b"")
    other = replace(RULES, criteria=Criteria.assumed_from(80.0))
    touched_s = T0 + 18 * 600.0 + 3

    assert state.holds_for("c", touched_s, RULES.digest(state.at_s))
    assert not state.holds_for("c", touched_s, other.digest(state.at_s))


def first_cold_hour(cell: str) -> float:
    """Hours of a day until a cell is first scored from its saved state."""
    midnight_s = T0 - T0 % 86_400
    head = HotHead(midnight_s, cold_s=midnight_s)
    return next(
        quarter / 4
        for quarter in range(1, 4 * 24)
        if not head.holds_for(cell, midnight_s + quarter * 900.0, 0)
    )


def test_cells_of_an_area_are_scored_from_saved_states_together() -> None:
    """They need the same row groups; the areas of a country have different times."""
    areas = [
        Cell.at(33 + n // 12 * 0.2, 133 + n % 12 * 0.2, RECOMPUTE_LEVEL)
        for n in range(144)
    ]
    hours: Counter[float] = Counter()
    for area in {each.token: each for each in areas}.values():
        cells = {
            Cell.at(lat_deg, lon_deg, ANALYSIS_LEVEL)
            for lat_deg, lon_deg in (area.center(), *area.corners())
        }
        found = {first_cold_hour(cell.token) for cell in cells if area.contains(cell)}
        assert len(found) == 1
        hours.update(found)

    assert hours.total() > 100
    assert max(hours.values()) <= 3 * hours.total() / (4 * 20)


def test_cell_is_scored_from_its_saved_state_once_a_day() -> None:
    """So that the next state is saved, however quiet the cell is."""
    store = HotStore()
    for message in run_of(1):
        store.add(message)
    state = decode_hot(store.hot or b"")
    held = []
    for hour in range(48):
        later = replace(state, at_s=state.at_s + hour * 3600)
        held.append(later.holds_for("c", later.at_s + 603.0, state.digest))

    assert held[0]
    assert not held[25]
    assert held == sorted(held, reverse=True)

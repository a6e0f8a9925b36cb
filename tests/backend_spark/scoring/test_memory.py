"""Scoring from memories is scoring of everything, however the readings came."""

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from backend_spark.scoring.arrow import make_levels_table, make_sensors_table
from backend_spark.scoring.cell_state import (
    MAX_STATE_AGE_S,
    REREAD_S,
    ScoringState,
    decode_state,
    encode_state,
    keeps_state,
    last_valid_state_s,
    state_times_s,
)
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.revisions import is_unchanged
from backend_spark.scoring.score import CellRules, score_cell
from slope_science.criteria import Criteria

DAY_S = 86_400
T0 = 1_750_032_000  # a midnight in UTC
RULES = CellRules(Criteria.assumed_from(40.0), look_ahead=True)
DAYS = 6

Key = tuple[str, str, float]


@dataclass
class Store:
    """Silver, gold and memories of one cell, as the job keeps them.

    Attributes:
        silver: Readings with their flags.
        gold: Rows of levels and sensors by their key.
        memories: By the moment that they remember, as they are stored.
        used: Moments that were scored from; None is the whole past.
    """

    silver: dict[Key, Observation] = field(default_factory=dict)
    gold: dict[Any, dict[str, Any]] = field(default_factory=dict)
    memories: dict[int, bytes] = field(default_factory=dict)
    used: list[int | None] = field(default_factory=list)

    def take(self, new: Sequence[Observation]) -> None:
        """Store readings and score what they touch."""
        self.silver |= {(o.node, o.name, o.at_s): o for o in new}
        touched_s = min(o.at_s for o in new)
        holding = [at for at in self.memories if at <= last_valid_state_s(touched_s)]
        past = decode_state(self.memories[max(holding)]) if holding else None
        since_s = past.at_s - REREAD_S if past else float("-inf")
        read = [o for o in self.silver.values() if o.at_s > since_s]
        random.Random(len(read)).shuffle(read)
        found = score_cell(read, RULES, touched_s, past)
        self.used.append(past and past.at_s)
        self.silver |= {(o.node, o.name, o.at_s): o for o in found.reflagged}
        levels = make_levels_table("c", found.rows).to_pylist()
        sensors = make_sensors_table("c", found.sensors).to_pylist()
        self.gold |= {row["at"]: row for row in levels}
        self.gold |= {(row["at"], row["node"], row["sensor"]): row for row in sensors}
        kept = {at: self.memories[at] for at in holding}
        self.memories = kept | {m.at_s: encode_state(m) for m in found.memories}


def readings(rng: random.Random) -> list[Observation]:
    """Days of two nodes: storms, clogs, spikes, creep, silences, a cut wire."""
    told: list[Observation] = []
    for node, every_s in (("a", 600), ("b", 1800)):
        # Some across midnight, where memories end.
        storms = [day * DAY_S - 7200.0 for day in (2, 3, 4)]
        storms += [rng.uniform(0, DAYS * DAY_S) for _ in range(2)]
        silent_s = rng.uniform(DAY_S, 4 * DAY_S)
        sum_mm, cut_s = 0.0, rng.uniform(2 * DAY_S, DAYS * DAY_S)
        for seq in range(DAYS * DAY_S // every_s):
            t = seq * every_s + rng.uniform(0, 200)
            is_wet = any(0 < t - s < 5 * 3600 for s in storms)
            sum_mm = 0.0 if rng.random() < 0.002 else sum_mm  # a new gauge
            sum_mm += rng.choice((0.0, 0.5, 3.0, 20.0)) if is_wet else 0.0
            if silent_s < t < silent_s + 30 * 3600:
                continue
            warm = 15 + 8 * math.sin(2 * math.pi * t / DAY_S)
            knock = rng.choice((3.0, 0.0)) if rng.random() < 0.01 else 0.0
            values = {
                ("tilt/x", "deg"): 0.002 * warm + rng.gauss(0, 1e-3) + knock,
                ("tilt/y", "deg"): 0.0 if node == "b" else rng.gauss(0, 1e-3),
                ("tilt/temp", "Cel"): warm,
                ("rod", "mm"): (t / 5e4) ** 2 + rng.gauss(0, 0.05),
                ("soil", "/"): 0.3 + 0.1 * math.sin(t / 1e5),
                ("air/temp", "Cel"): warm - 9,
                ("air/humidity", "%RH"): 60 + rng.gauss(0, 5),
            }
            common = {"boot": "b", "seq": seq, "received_us": seq}
            base = replace(Observation(T0 + t, node, ""), **common)  # type: ignore[arg-type]
            told += [
                replace(base, name=name, unit=unit, value=value)
                for (name, unit), value in values.items()
                if rng.random() < 0.98
            ]
            told.append(replace(base, name="rain", unit="mm", sum=sum_mm))
            if t < cut_s:  # a wire that is silent after its last word
                is_cut = t > cut_s - 1800
                text = str(is_cut).lower()
                told.append(replace(base, name="wire", value=float(is_cut), text=text))
    return told


def arrivals(
    told: Sequence[Observation], rng: random.Random
) -> list[list[Observation]]:
    """Readings as they come: mostly at once, some hours late, a node days late.

    Late above all are those of the first 40 minutes after a memory, which change
    rain before it.
    """
    gone_s = T0 + rng.uniform(0, 4 * DAY_S)

    def comes_s(o: Observation) -> float:
        if o.node == "b" and gone_s < o.at_s < gone_s + DAY_S:
            return gone_s + 2 * DAY_S + (o.at_s - gone_s) / 100
        if 0 < o.at_s % DAY_S < 2400:
            return o.at_s + 5 * 3600
        return o.at_s + (rng.uniform(0, 6 * 3600) if rng.random() < 0.03 else 0.0)

    comes = {id(o): comes_s(o) for o in told}
    order = sorted(told, key=lambda o: comes[id(o)])
    fours = [T0 + day * DAY_S + 4 * 3600 for day in range(1, DAYS)]
    ends = {bisect_left(order, at_s, key=lambda o: comes[id(o)]) for at_s in fours}
    cuts = sorted(ends | set(rng.sample(range(1, len(order)), 16)))
    return [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_passes_in_any_cuts_give_what_one_pass_over_everything_gives(seed: int) -> None:
    """Late, out of order, cut anywhere, from stored memories: the same gold rows."""
    rng = random.Random(seed)
    told = readings(rng)
    whole, bit_by_bit = Store(), Store()
    whole.take(told)
    for batch in arrivals(told, rng):
        bit_by_bit.take(batch)

    assert len(set(bit_by_bit.used)) > 3
    assert bit_by_bit.gold.keys() == whole.gold.keys()
    for key, row in whole.gold.items():
        assert is_unchanged(row, bit_by_bit.gold[key]), (seed, key)
        assert row.get("history_days") == bit_by_bit.gold[key].get("history_days")
    assert {r["level"] for r in whole.gold.values() if "level" in r} >= {1, 3, 5}
    flags = {key: (o.flag, o.why) for key, o in whole.silver.items()}
    assert flags == {key: (o.flag, o.why) for key, o in bit_by_bit.silver.items()}
    assert len({flag for flag, _ in flags.values()}) >= 3


def test_memory_survives_its_bytes() -> None:
    """What is stored comes back the same, and is small."""
    store = Store()
    store.take(readings(random.Random(9)))
    memories = {at: decode_state(body) for at, body in store.memories.items()}

    assert len(memories) >= 4
    for at, memory in memories.items():
        assert isinstance(memory, ScoringState)
        assert decode_state(encode_state(memory)) == memory
        assert memory.at_s == at
        assert len(store.memories[at]) < 20_000


def test_memories_of_a_year_are_few() -> None:
    """The last days each, then every eighth, and none beyond what late data need."""
    newest_s = T0 + 400 * DAY_S
    due = state_times_s(T0, newest_s)

    assert len(due) <= 14
    assert min(due) >= newest_s - MAX_STATE_AGE_S
    assert all(keeps_state(at_s, newest_s) for at_s in due)
    assert due[-3:] == [due[-1] - 2 * DAY_S, due[-1] - DAY_S, due[-1]]
    assert state_times_s(due[-1], newest_s) == []

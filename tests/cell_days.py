"""Days of readings of a cell, and a store that scores them as the job does."""

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from scored_levels import make_levels_table, make_sensors_table

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.saved_states import (
    REREAD_S,
    decode_state,
    encode_state,
    last_valid_state_s,
)
from backend_spark.scoring.score import score_cell
from slope_science.levels import Criteria

DAY_S = 86_400
T0 = 1_750_032_000  # a midnight in UTC
RULES = CellRules(Criteria.assumed_from(40.0), same_rain=True)
DAYS = 6

Key = tuple[str, str, float]


@dataclass
class Store:
    """Silver, gold and saved scoring states of one cell, as the job keeps them.

    Attributes:
        silver: Readings with their flags.
        gold: Rows of levels and sensors by their key.
        states: Encoded scoring states by their time.
        used: Time of the state of each scoring; None if all readings were used.
    """

    silver: dict[Key, Observation] = field(default_factory=dict)
    gold: dict[Any, dict[str, Any]] = field(default_factory=dict)
    states: dict[int, bytes] = field(default_factory=dict)
    used: list[int | None] = field(default_factory=list)

    def add(self, new: Sequence[Observation]) -> None:
        """Store readings and score the steps that they affect."""
        self.silver |= {(o.node, o.name, o.at_s): o for o in new}
        touched_s = min(o.at_s for o in new)
        holding = [at for at in self.states if at <= last_valid_state_s(touched_s)]
        past = decode_state(self.states[max(holding)]) if holding else None
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
        kept = {at: self.states[at] for at in holding}
        self.states = kept | {m.at_s: encode_state(m) for m in found.memories}


def rod_mm(at_h: float) -> float:
    """Steady creep, faster and faster for nine hours of the third day."""
    return 0.02 * at_h + 0.1 * min(max(at_h - 50.0, 0.0), 9.0) ** 2


def readings(rng: random.Random, days: int = DAYS) -> list[Observation]:
    """Days of two nodes: storms, clogged gauges, spikes, creep, gaps, a cut wire."""
    observations: list[Observation] = []
    for node, every_s in (("a", 600), ("b", 1800)):
        # Some across midnight, where states are saved.
        storms = [day * DAY_S - 7200.0 for day in (2, 3, 4)]
        storms += [rng.uniform(0, days * DAY_S) for _ in range(2)]
        silent_s = rng.uniform(DAY_S, 4 * DAY_S)
        sum_mm, cut_s = 0.0, rng.uniform(2 * DAY_S, days * DAY_S)
        for seq in range(days * DAY_S // every_s):
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
                ("rod", "mm"): rod_mm(t / 3600) + rng.gauss(0, 0.05),
                ("soil", "/"): 0.3 + 0.1 * math.sin(t / 1e5),
                ("air/temp", "Cel"): warm - 9,
                ("air/humidity", "%RH"): 60 + rng.gauss(0, 5),
            }
            common = {"boot": "b", "seq": seq, "received_us": seq}
            base = replace(Observation(T0 + t, node, ""), **common)  # type: ignore[arg-type]
            observations += [
                replace(base, name=name, unit=unit, value=value)
                for (name, unit), value in values.items()
                if rng.random() < 0.98
            ]
            observations.append(replace(base, name="rain", unit="mm", sum=sum_mm))
            if t < cut_s:  # no reports after the one that it is cut
                is_cut = t > cut_s - 1800
                text = str(is_cut).lower()
                observations.append(
                    replace(base, name="wire", value=float(is_cut), text=text)
                )
    return observations


def arrivals(
    observations: Sequence[Observation], rng: random.Random, days: int
) -> list[list[Observation]]:
    """Readings in order of arrival: most at once, some hours late, one node days late.

    Those of the first 40 minutes after a saved state are always late, because they
    change rain before it.
    """
    away_s = T0 + rng.uniform(0, 4 * DAY_S)

    def arrival_s(o: Observation) -> float:
        if o.node == "b" and away_s < o.at_s < away_s + DAY_S:
            return away_s + 2 * DAY_S + (o.at_s - away_s) / 100
        if 0 < o.at_s % DAY_S < 2400:
            return o.at_s + 5 * 3600
        return o.at_s + (rng.uniform(0, 6 * 3600) if rng.random() < 0.03 else 0.0)

    arrival = {id(o): arrival_s(o) for o in observations}
    order = sorted(observations, key=lambda o: arrival[id(o)])
    fours = [T0 + day * DAY_S + 4 * 3600 for day in range(1, days)]
    ends = {bisect_left(order, at_s, key=lambda o: arrival[id(o)]) for at_s in fours}
    cuts = sorted(ends | set(rng.sample(range(1, len(order)), 16)))
    return [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]


def silent_gauge(until_h: float, boot: str) -> list[Observation]:
    """Days of a gauge that is silent from hour 30 on, beside a moisture sensor."""
    made: list[Observation] = []
    for seq in range(110):
        at_s, sum_mm = T0 + 3600.0 * seq, float(max(0, min(seq, 90) - 20))
        base = Observation(at_s, "a", "", seq=seq, received_us=round(at_s * 1e6))
        made.append(replace(base, node="b", name="soil", unit="/", value=0.3))
        if not 30 < seq < until_h:
            now = boot if seq > 30 else "before"
            made.append(replace(base, name="rain", unit="mm", sum=sum_mm, boot=now))
    return made

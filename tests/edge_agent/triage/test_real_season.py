"""Real rain, soil and pressure near Seattle: a season with landslides, quiet weeks.

No free series of tilt or displacement up to a failure is known; those rules are
tested on synthetic creep alone.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from measurements import seattle
from triage_readings import RAIN, Measured, rain

from edge_agent.triage.engine import Triage
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from slope_science.levels import Criteria
from spatial_mqtt.senml import Reading

HOURLY = "nws_hourly_rain_2010_2011.csv"
HILLSLOPE = "hillslope_15min_engineering_units_20151218_20151231.csv"
QUANTITIES = (
    ("vwc", 5, "volumetric water content", "/", "m3m3", 1.0),
    ("pore", 2, "pore pressure", "hPa", "kpa", 10.0),
    ("level", 2, "water level", "m", "m", 1.0),
)


def rows(name: str) -> Iterator[dict[str, str]]:
    """Rows of a file of the data set."""
    with seattle(name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def unix_s(local: str) -> float:
    """Local time as if it were UTC; only differences matter."""
    return datetime.fromisoformat(local).replace(tzinfo=UTC).timestamp()


def test_days_in_level_three_equal_the_days_above_the_index_limit() -> None:
    """KPAE, 504 days: 70 days reach 25 mm, as computed independently of our code.

    Source: contingency table of the season, soil water index >= 25.0 mm: 10 days
    with a landslide and 60 without.
    """
    rules = {"rain": {"hold_s": 0, "clear_share": 1.0}}
    criteria = Criteria(25.0, 20.0, 46.0)
    triage = Triage([RAIN], build_settings(TriageSection, {"rules": rules}), criteria)
    total_mm, days = 0.0, set()
    for row in rows(HOURLY):
        mm = float(row["KPAE_mm"] or 0.0)
        total_mm += mm
        result = triage.assess([rain(mm, total_mm)], unix_s(row["time_local_end"]))
        day = row["time_local_end"][:10]
        if result.level >= 3 and "2010-08-15" <= day <= "2011-12-31":
            days.add(day)
    assert len(days) == 70


def hillslope(station: str) -> Iterator[tuple[float, list[Reading]]]:
    """Every 15 minutes of a station: rain, five probes, two pressures, two levels."""
    total_mm = 0.0
    for row in rows(HILLSLOPE):
        if row["station"] != station:
            continue
        mm = float(row["rain_mm_15min"] or 0.0)
        total_mm += mm
        yield unix_s(row["time_local"]), [rain(mm, total_mm), *_probes(row)]


def _probes(row: dict[str, str]) -> Iterator[Reading]:
    for name, count, _, unit, column, factor in QUANTITIES:
        for number in range(1, count + 1):
            value = row[f"{name}{number}_{column}"]
            if value:
                yield Reading(f"{name}{number}", unit, float(value) * factor)


def test_two_wet_weeks_without_a_landslide_stay_below_level_three() -> None:
    """Three stations, 4,032 readings; one sensor is stuck and one drifts."""
    sensors = [
        Measured(f"{name}{number}", quantity, unit)
        for name, count, quantity, unit, *_ in QUANTITIES
        for number in range(1, count + 1)
    ]
    levels: Counter[int] = Counter()
    for station in ("VH", "LS-a", "LS-b"):
        triage = Triage([RAIN, *sensors])
        for now_s, readings in hillslope(station):
            levels[triage.assess(readings, now_s).level] += 1
    assert sum(levels.values()) == 4032
    assert set(levels) <= {1, 2}
    assert levels[2] < 0.01 * 4032

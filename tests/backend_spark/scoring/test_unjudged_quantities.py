"""Readings that no rule of their node judges, from the node to the level of a cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from backend_spark.scoring.arrow import make_levels_table
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.quality import flag_number
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from edge_agent.quantities import judged_quantity
from edge_agent.sensors.generic_probe import PROBE_UNITS
from edge_agent.sent_readings import SentReadings
from edge_agent.triage import Triage, TriageResult
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from slope_science.causes import Cause, find_causes
from slope_science.criteria import Criteria
from slope_science.quality import Flag
from slope_science.reasons import reason_from_json, reason_to_json
from spatial_mqtt.senml import Reading
from tests.triage_readings import START_S

RULES = CellRules(Criteria.assumed_from(150.0))


@dataclass(frozen=True)
class Probe:
    """A sensor with all attributes that node and triage use."""

    name: str
    quantity: str
    unit: str | None

    @property
    def senml_unit(self) -> str | None:
        """The same unit."""
        return self.unit


def levels_of(
    probe: Probe, values: Sequence[float | bool], section: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Rows of the cell for a probe that is read every ten minutes."""
    triage = Triage([probe], build_settings(TriageSection, section or {}))
    sent, found = SentReadings([probe]), []
    for seq, value in enumerate(values):
        at_s = START_S + seq * 600
        reading = Reading(probe.name, probe.unit, value)
        result = triage.assess([reading], at_s)
        codes = [reason_to_json(sent.convert_reason(r)) for r in result.reasons]
        for each in sent.convert([reading]):
            number = each.value
            assert isinstance(number, bool | float)
            is_bool = isinstance(number, bool)
            found.append(
                Observation(
                    *(at_s, "n1", each.name, each.unit, float(number)),
                    text=str(number).lower() if is_bool else None,
                    received_us=int(at_s + 1) * 1_000_000,
                    boot="b",
                    seq=seq,
                    priority=result.priority,
                    level_why=result.why,
                    level_codes=codes,
                )
            )
    table = make_levels_table("c", score_cell(found, RULES).rows)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


GROWS = [float(seq * 5) for seq in range(40)]


@pytest.mark.parametrize("unit", PROBE_UNITS)
def test_quantity_without_rules_has_no_level_in_any_unit(unit: str) -> None:
    """Snow that grows by 30 mm/h is no displacement."""
    rows = levels_of(Probe("probe", "snow depth", unit), GROWS)

    assert {row["level"] for row in rows} == {None}


def test_truth_value_of_another_sensor_is_no_cut_wire() -> None:
    """A door that is opened."""
    rows = levels_of(Probe("door", "door is open", None), [False] * 5 + [True] * 5)

    assert {row["level"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("quantity", "unit"),
    [
        ("displacement", "mm"),
        ("Displacement", "cm"),
        ("crack width", "mm"),
        ("Crack-Width", "mm"),
        ("displacements", "mm"),
        ("変位", "mm"),
    ],
)
def test_judged_quantity_has_a_level(quantity: str, unit: str) -> None:
    """The same values, under the name of the sensor."""
    rows = levels_of(Probe("probe", quantity, unit), GROWS)

    assert rows[-1]["level"] >= 3


@pytest.mark.parametrize("unit", ["hPa", "deg", "mm"])
def test_limit_of_the_node_on_such_a_probe_raises_the_cell(unit: str) -> None:
    """Limits of a reading in that unit, such as 800 hPa of the air, do not lower it."""
    limit = {"sensor": "probe", "above": 150.0, "level": 4}
    rows = levels_of(Probe("probe", "suction", unit), GROWS, {"limit": [limit]})

    assert rows[-1]["level"] == 4
    assert rows[-1]["reasons"][0].startswith("n1 judged level 4: ")


@pytest.mark.parametrize("unit", ["hPa", "deg", "count"])
def test_such_a_reading_is_not_evaluated(unit: str) -> None:
    """The ranges of its unit are those of another quantity."""
    assert flag_number("probe/value", unit, -500.0).flag is Flag.NOT_EVALUATED
    assert flag_number("probe/part", unit, -500.0).flag is Flag.FAIL


@pytest.mark.parametrize(
    ("word", "quantity"),
    [
        ("pore_pressure", "pore pressure"),
        ("pore-water pressure", "pore pressure"),
        ("soil-moisture", "volumetric water content"),
        ("wire", "wire is cut"),
        ("雨量", "rain"),
        ("水位", "water level"),
        ("groundwater level", "groundwater level"),
        ("snow depth", "snow depth"),
        ("rain_total", "rain_total"),
    ],
)
def test_other_words_choose_the_rule_of_a_quantity(word: str, quantity: str) -> None:
    """Those of the tables of readings, and of Japanese installers."""
    assert judged_quantity(word) == quantity


def test_limit_of_a_quantity_applies_to_the_word_of_its_sensor() -> None:
    """40 cm of one stream are not above 2 m of the other."""
    stage, brook = Probe("stage", "water level", "m"), Probe("brook", "水位", "cm")
    limits = [{"quantity": "water level", "above": 2.0, "level": 4, "unit": "m"}]
    section = build_settings(TriageSection, {"limit": limits})
    triage = Triage([stage, brook], section)
    readings = [Reading("stage", "m", 0.5), Reading("brook", "cm", 40.0)]

    found = [triage.assess(readings, START_S + n * 600) for n in range(6)]

    assert {result.level for result in found} == {1}
    assert section.limit[0].find_problems([stage, brook]) == []


def observed(
    triage: Triage, seq: int, *values: tuple[str, str, float]
) -> tuple[TriageResult, list[Observation]]:
    """Result of a node's rules, and the readings of its message in silver."""
    at_s = START_S + seq * 600
    result = triage.assess([Reading(*value) for value in values], at_s)
    codes = [reason_to_json(reason) for reason in result.reasons]
    return result, [
        Observation(
            *(at_s, "n1", *value),
            received_us=int(at_s + 1) * 1_000_000,
            boot="b",
            seq=seq,
            priority=result.priority,
            level_why=result.why,
            level_codes=codes,
        )
        for value in values
    ]


@pytest.mark.parametrize(("level", "rain_mm"), [(3, 4.0), (4, 12.0), (5, 12.0)])
def test_stream_keeps_the_level_of_the_rain_that_is_lowered(
    level: int, rain_mm: float
) -> None:
    """The node's criteria are assumed; both reasons have the same level."""
    gauge, stream = Probe("rain", "rain", "mm"), Probe("stream", "water level", "m")
    limit = {"sensor": "stream", "above": 2.0, "level": level}
    section = build_settings(TriageSection, {"limit": [limit]})
    triage, readings, rises = Triage([gauge, stream], section), [], False
    for seq in range(60):
        values = ("rain", "mm", rain_mm), ("stream", "m", 2.4 if rises else 1.0)
        result, sent = observed(triage, seq, *values)
        readings += sent
        if rises and len(result.reasons) > 1:
            break
        rises |= result.level == level
    assert result.level == level
    assert len(result.reasons) > 1

    rules = CellRules(Criteria(900.0, 800.0, 999.0, assumed=False))
    row = make_levels_table("c", score_cell(readings, rules).rows).to_pylist()[-1]
    assert row["level"] == level
    reasons = [reason_from_json(code) for code in row["reason_codes"]]
    assert find_causes(level, reasons) == (Cause.LIMIT,)

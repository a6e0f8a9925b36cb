"""Readings that no rule of their node judges, from the node to the level of a cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from scored_levels import make_levels_table

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.quality import flag_number
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from edge_agent.quantities import SentReadings, judged_quantity
from edge_agent.sensors.generic_probe import PROBE_UNITS
from edge_agent.triage.engine import Triage, TriageResult
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from slope_science.levels import Cause, Criteria, find_causes, iter_chain
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode
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


class SlopeNode:
    """A node's rules, and what it has sent, as readings in silver.

    Attributes:
        triage: Its rules.
        result: Their last result.
    """

    result: TriageResult

    def __init__(self, *probes: Probe, **section: object) -> None:
        self.triage = Triage(probes, build_settings(TriageSection, section))
        self._sent = SentReadings(probes)
        self._observations: list[Observation] = []

    def send(self, seq: int, *readings: Reading) -> None:
        """Judge and send readings; messages are ten minutes apart."""
        at_s = START_S + seq * 600
        self.result = self.triage.assess(readings, at_s)
        reasons = map(self._sent.convert_reason, self.result.reasons)
        codes = [reason_to_json(reason) for reason in reasons]
        for each in self._sent.convert(readings):
            number = each.value
            assert isinstance(number, bool | float)
            self._observations.append(
                Observation(
                    *(at_s, "n1", each.name, each.unit, float(number)),
                    text=str(number).lower() if isinstance(number, bool) else None,
                    received_us=int(at_s + 1) * 1_000_000,
                    boot="b",
                    seq=seq,
                    priority=self.result.priority,
                    level_why=self.result.why,
                    level_codes=codes,
                )
            )

    def rows(self, rules: CellRules = RULES) -> list[dict[str, Any]]:
        """Rows of the node's cell."""
        table = make_levels_table("c", score_cell(self._observations, rules).rows)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


def levels_of(
    probe: Probe, values: Sequence[float | bool], **section: object
) -> list[dict[str, Any]]:
    """Rows of the cell for a probe that is read every ten minutes."""
    node = SlopeNode(probe, **section)
    for seq, value in enumerate(values):
        node.send(seq, Reading(probe.name, probe.unit, value))
    return node.rows()


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
    rows = levels_of(Probe("probe", "suction", unit), GROWS, limit=[limit])

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


@pytest.mark.parametrize("level", [3, 4, 5])
@pytest.mark.parametrize(
    ("gauge", "stream"),
    [("rain", "stream"), ("rain-gauge-upper", "water-level-bridge-1")],
)
def test_stream_keeps_the_level_of_the_rain_that_is_lowered(
    level: int, gauge: str, stream: str
) -> None:
    """Both have the same level, and long names leave no space for both reasons."""
    probes = Probe(gauge, "rain", "mm"), Probe(stream, "water level", "m")
    limit = {"sensor": stream, "above": 2.0, "level": level, "for_s": 600}
    node, rises, is_high = SlopeNode(*probes, limit=[limit]), False, False
    rain_mm = 4.0 if level == 3 else 12.0
    for seq in range(60):
        stage = Reading(stream, "m", 2.475 if rises else 1.0)
        node.send(seq, Reading(gauge, "mm", rain_mm), stage)
        is_high = any(
            each.code == ReasonCode.LIMIT
            for reason in node.result.reasons
            for each in iter_chain(reason)
        )
        if is_high:
            break
        rises |= node.result.level == level
    assert is_high
    assert node.result.level == level
    assert len(node.result.reasons) > 1 or gauge != "rain"

    row = node.rows(CellRules(Criteria(900.0, 800.0, 999.0, assumed=False)))[-1]
    assert row["level"] == level
    reasons = [reason_from_json(code) for code in row["reason_codes"]]
    assert find_causes(level, reasons) == (Cause.LIMIT,)

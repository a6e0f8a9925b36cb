"""Which rules watch which sensor: quantity to family."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from edge_agent import quantities
from edge_agent.triage.displacement import DisplacementWatch
from edge_agent.triage.limit import LimitWatch
from edge_agent.triage.pore import PoreWatch
from edge_agent.triage.rain import RainWatch
from edge_agent.triage.sample import Named
from edge_agent.triage.saturation import SaturationWatch
from edge_agent.triage.settings import RulesSection, TriageSection
from edge_agent.triage.tilt import TiltWatch
from edge_agent.triage.vibration import VibrationWatch
from edge_agent.triage.watch import Watch
from edge_agent.triage.water_level import WaterLevelWatch
from edge_agent.triage.wire import WireWatch
from slope_science.soil_water import SoilWater

Family = Callable[[str, Any], Watch]

RULE_OF: Mapping[str, str] = {
    quantities.RAIN: "rain",
    quantities.TILT: "tilt",
    quantities.DISPLACEMENT: "displacement",
    quantities.WIRE: "wire",
    quantities.SHOCKS: "vibration",
    quantities.WATER_CONTENT: "saturation",
    quantities.PORE_PRESSURE: "pore",
    quantities.WATER_LEVEL: "water_level",
}
"""Name of the rule, as in ``[triage.rules]``, by quantity."""

_FAMILIES: Mapping[str, Family] = {
    "tilt": TiltWatch,
    "displacement": DisplacementWatch,
    "wire": WireWatch,
    "vibration": VibrationWatch,
    "saturation": SaturationWatch,
    "pore": PoreWatch,
    "water_level": WaterLevelWatch,
}


def watches(
    sensors: Sequence[Named], section: TriageSection, soil: SoilWater
) -> list[Watch]:
    """What watches a node's sensors.

    Args:
        sensors: The node's.
        section: Its rules.
        soil: Water in the ground under a gauge that was never read.
    """
    found: list[Watch] = []
    for sensor in sensors:
        family = _family(sensor, section.rules, soil)
        if family is not None:
            found.append(family)
        found += _limits(sensor, section)
    return found


def rule_of(sensor: Named) -> str | None:
    """The rule for a sensor's quantity and unit; None when there is none."""
    quantity = quantities.known(sensor.quantity)
    if quantities.factor(quantity, sensor.senml_unit) is None:
        return None
    return RULE_OF.get(quantity)


def _family(sensor: Named, rules: RulesSection, soil: SoilWater) -> Watch | None:
    rule = rule_of(sensor)
    if rule is None or not getattr(rules, rule).used:
        return None
    if rule == "rain":
        return RainWatch(sensor.name, rules.rain, soil)
    return _FAMILIES[rule](sensor.name, getattr(rules, rule))


def _limits(sensor: Named, section: TriageSection) -> Iterable[Watch]:
    quantity = quantities.known(sensor.quantity)
    for number, limit in enumerate(section.limit, 1):
        told = (limit.sensor or "").partition("/")[0]
        wanted = quantities.known(limit.quantity or "")
        if told == sensor.name or (limit.sensor is None and wanted == quantity):
            yield LimitWatch(sensor.name, limit, number)

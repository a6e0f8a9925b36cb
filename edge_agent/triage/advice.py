"""Advice for `edge-agent check`: rules that cannot work as configured."""

import difflib
from collections.abc import Iterator, Sequence

from edge_agent import quantities
from edge_agent.quantities import GAUGE, find_sent_names
from edge_agent.sensors.base import SensorConfig
from edge_agent.sensors.generic_probe import ProbeSettings, ScaledSettings
from edge_agent.triage.engine import DEFAULT_SECTION, RULE_BY_QUANTITY, find_rule
from edge_agent.triage.settings import CriteriaSection, TriageSection
from slope_science.evidence.settings import TiltRuleSettings
from slope_science.movement import tilt_resolution_deg_per_h

_HOUR_S = 3600.0
_SURGE_S = 600.0  # change within 10 minutes, by triage.rules.water_level
_AXES = ("x", "y")


def advise_on_rules(
    section: TriageSection, criteria: CriteriaSection, sensors: Sequence[SensorConfig]
) -> list[str]:
    """One sentence for each rule or sensor that cannot be used as configured.

    Args:
        section: The rules.
        criteria: Criteria for rain.
        sensors: The node's sensors.
    """
    advice = [*_unused_rules(section, sensors), *_unsent_rain(sensors)]
    for sensor in sensors:
        found = [
            *_unmatched_sensor(sensor, section),
            *_repeated_rain(sensor),
            *_below_noise_floor(sensor, section.rules.tilt),
            *_seldom_read(sensor),
        ]
        advice += [f"sensor {sensor.name}: {sentence}" for sentence in found]
    if criteria.criteria().assumed and "rain" in map(find_rule, sensors):
        advice.append(
            "criteria are assumed: give warning_mm, advisory_mm and special_mm of the "
            "prefecture's table in [criteria], or send them by notice"
        )
    return advice


def _unused_rules(
    section: TriageSection, sensors: Sequence[SensorConfig]
) -> Iterator[str]:
    """Changed rules without a matching sensor."""
    known = {find_rule(sensor) for sensor in sensors}
    for quantity, rule in RULE_BY_QUANTITY.items():
        is_changed = getattr(section.rules, rule) != getattr(
            DEFAULT_SECTION.rules, rule
        )
        if is_changed and rule not in known:
            yield f"triage.rules.{rule} is set, but no sensor here measures {quantity}"


def _unmatched_sensor(sensor: SensorConfig, section: TriageSection) -> Iterator[str]:
    """Sensors without a rule."""
    quantity = quantities.judged_quantity(sensor.quantity)
    is_limited = any(
        limit.applies_to(sensor.name, quantities.canonical_quantity(sensor.quantity))
        or (limit.sensor or "").partition("/")[0] == sensor.name
        for limit in section.limit
    )
    if quantity in quantities.INFORMATIONAL or is_limited:
        return
    if quantity not in quantities.JUDGED:
        near = difflib.get_close_matches(quantity, quantities.JUDGED, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        remedy = f"{hint}write a [[triage.limit]] if one should"
        yield f"no rule judges {sensor.quantity!r}; {remedy}"
    elif find_rule(sensor) is None:
        units = ", ".join(map(repr, quantities.convertible_units(quantity)))
        yield f"no rule judges {quantity} in {sensor.senml_unit!r}, but in {units}"
    elif find_rule(sensor) == "tilt" and not _has_axes(sensor):
        yield (
            f"no rule judges the tilt of a {sensor.kind}: it gives no x and y, or "
            "drifts as a slope creeps"
        )


def _repeated_rain(sensor: SensorConfig) -> Iterator[str]:
    """A probe's rain that may be a total, which each reading would add again."""
    is_gauge = isinstance(sensor, ProbeSettings) and find_rule(sensor) == "rain"
    is_total = isinstance(sensor, ScaledSettings) and sensor.counter
    if is_gauge and not is_total:
        yield (
            "each reading counts as new rain; set counter = true if the probe "
            "gives a total"
        )


def _unsent_rain(sensors: Sequence[SensorConfig]) -> Iterator[str]:
    """Gauges that the backend does not judge, and other sensors of a gauge's name."""
    for name, sent in find_sent_names(sensors).items():
        if sent != GAUGE:
            yield (
                f"sensor {name}: the backend judges one gauge of a node, the first or "
                f"that named {GAUGE!r}, and stores this one as {sent!r}; give it a "
                "node of its own"
            )
    for sensor in sensors:
        quantity = quantities.judged_quantity(sensor.quantity)
        if sensor.name == GAUGE and quantity != quantities.RAIN:
            yield f"sensor {GAUGE}: the backend expects rain by this name; rename it"


def _below_noise_floor(sensor: SensorConfig, rules: TiltRuleSettings) -> Iterator[str]:
    """Rates below the noise given by the data sheet."""
    sigma_deg = getattr(sensor, "sigma_deg", None)
    if sigma_deg is None or not _has_axes(sensor):
        return
    span_s = 6 * _HOUR_S if rules.six_hours else _HOUR_S
    count = int(span_s / sensor.interval_s) + 1
    times_h = [at * sensor.interval_s / _HOUR_S for at in range(count)]
    finest = tilt_resolution_deg_per_h(sigma_deg, times_h)
    for level, limit in rules.thresholds:
        if limit < finest:
            yield (
                f"rule tilt cannot be used for level {level}: with a noise of "
                f"{sigma_deg:.4f} deg the lowest measurable rate is {finest:.3f} "
                f"deg/h, not {limit:g}; raise samples, or shorten interval_s"
            )


def _seldom_read(sensor: SensorConfig) -> Iterator[str]:
    """A water level whose surges look like floods."""
    if find_rule(sensor) == "water_level" and sensor.interval_s > _SURGE_S:
        yield (
            "a surge between two readings counts as a flood, up to level 2; set "
            f"interval_s to {_SURGE_S:g} or less"
        )


def _has_axes(sensor: SensorConfig) -> bool:
    is_probe = isinstance(sensor, ProbeSettings)
    return not is_probe and getattr(sensor, "angles", _AXES) == _AXES

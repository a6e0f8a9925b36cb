"""Which part stands at the other end of which kind of sensor.

A package that adds a kind of sensor may bring its part with an entry point in
the group ``yamamori.parts``: its name is the kind, it loads to a `Connect`.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points

from edge_agent.hillslope.parts.base import Connect
from edge_agent.hillslope.parts.rain_gauge import RainGaugePart
from edge_agent.hillslope.parts.soil_moisture import SoilMoisturePart
from edge_agent.hillslope.parts.tilt import TiltPart
from edge_agent.hillslope.parts.wire import WirePart

GROUP = "yamamori.parts"

PARTS: Mapping[str, Connect] = {
    "rain-gauge": RainGaugePart,
    "soil-moisture": SoilMoisturePart,
    "tilt": TiltPart,
    "wire": WirePart,
}


def find_part(kind: str) -> Connect | None:
    """What makes the part of a kind; None for a kind that has none."""
    if kind in PARTS:
        return PARTS[kind]
    for point in entry_points(group=GROUP, name=kind):
        connect: Connect = point.load()
        return connect
    return None

"""Registry of simulated parts by kind of sensor.

A package that adds a kind of sensor may add its part with an entry point in the
group ``yamamori.parts``: its name is the kind, and it loads to a `ConnectPart`.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points

from edge_agent.simulator.parts import analog, digital, gpio, kernel
from edge_agent.simulator.parts.base import ConnectPart

PART_ENTRY_POINTS = "yamamori.parts"

PARTS: Mapping[str, ConnectPart] = {
    **analog.PARTS,
    **digital.PARTS,
    **gpio.PARTS,
    **kernel.PARTS,
}


def find_part_connector(kind: str) -> ConnectPart | None:
    """What makes the part of a kind; None for a kind that has none."""
    if kind in PARTS:
        return PARTS[kind]
    for point in entry_points(group=PART_ENTRY_POINTS, name=kind):
        connect: ConnectPart = point.load()
        return connect
    return None

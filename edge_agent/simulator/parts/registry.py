"""Registry of simulated parts by kind of sensor.

A package that adds a kind of sensor may add its part with an entry point in the
group ``yamamori.parts``: its name is the kind, and it loads to a `ConnectPart`.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points

from edge_agent.simulator.parts.analog import (
    Ads1115CurrentPart,
    Ads1115VoltagePart,
    ExtensometerPart,
    PiezometerPart,
    SoilMoisturePart,
    WireEolPart,
)
from edge_agent.simulator.parts.base import ConnectPart
from edge_agent.simulator.parts.digital import (
    Bme280Part,
    Lis3dhPart,
    ModbusPart,
    MurataPart,
    Sdi12Part,
    adxl345_part,
    adxl355_part,
)
from edge_agent.simulator.parts.gpio import (
    RainGaugePart,
    UltrasonicPart,
    VibrationPart,
    WirePart,
)
from edge_agent.simulator.parts.kernel import Ds18b20Part, GnssPart, NodePart

PART_ENTRY_POINTS = "yamamori.parts"

PARTS: Mapping[str, ConnectPart] = {
    "adxl345": adxl345_part,
    "ads1115-current": Ads1115CurrentPart,
    "ads1115-voltage": Ads1115VoltagePart,
    "bme280": Bme280Part,
    "ds18b20": Ds18b20Part,
    "extensometer": ExtensometerPart,
    "gnss": GnssPart,
    "lis3dh": Lis3dhPart,
    "modbus": ModbusPart,
    "node": NodePart,
    "piezometer": PiezometerPart,
    "rain-gauge": RainGaugePart,
    "sca3300": MurataPart,
    "scl3300": MurataPart,
    "sdi12": Sdi12Part,
    "soil-moisture": SoilMoisturePart,
    "tilt": adxl355_part,
    "ultrasonic": UltrasonicPart,
    "vibration": VibrationPart,
    "wire": WirePart,
    "wire-eol": WireEolPart,
}


def find_part_connector(kind: str) -> ConnectPart | None:
    """What makes the part of a kind; None for a kind that has none."""
    if kind in PARTS:
        return PARTS[kind]
    for point in entry_points(group=PART_ENTRY_POINTS, name=kind):
        connect: ConnectPart = point.load()
        return connect
    return None

"""Which part stands at the other end of which kind of sensor.

A package that adds a kind of sensor may bring its part with an entry point in
the group ``yamamori.parts``: its name is the kind, it loads to a `Connect`.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points

from edge_agent.hillslope.parts.ads1115_current import Ads1115CurrentPart
from edge_agent.hillslope.parts.ads1115_voltage import Ads1115VoltagePart
from edge_agent.hillslope.parts.base import Connect
from edge_agent.hillslope.parts.bme280 import Bme280Part
from edge_agent.hillslope.parts.ds18b20 import Ds18b20Part
from edge_agent.hillslope.parts.extensometer import ExtensometerPart
from edge_agent.hillslope.parts.gnss import GnssPart
from edge_agent.hillslope.parts.lis3dh import Lis3dhPart
from edge_agent.hillslope.parts.modbus import ModbusPart
from edge_agent.hillslope.parts.node import NodePart
from edge_agent.hillslope.parts.piezometer import PiezometerPart
from edge_agent.hillslope.parts.rain_gauge import RainGaugePart
from edge_agent.hillslope.parts.sdi12 import Sdi12Part
from edge_agent.hillslope.parts.soil_moisture import SoilMoisturePart
from edge_agent.hillslope.parts.tilt import MurataPart, adxl345_part, adxl355_part
from edge_agent.hillslope.parts.ultrasonic import UltrasonicPart
from edge_agent.hillslope.parts.vibration import VibrationPart
from edge_agent.hillslope.parts.wire import WirePart
from edge_agent.hillslope.parts.wire_eol import WireEolPart

GROUP = "yamamori.parts"

PARTS: Mapping[str, Connect] = {
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


def find_part(kind: str) -> Connect | None:
    """What makes the part of a kind; None for a kind that has none."""
    if kind in PARTS:
        return PARTS[kind]
    for point in entry_points(group=GROUP, name=kind):
        connect: Connect = point.load()
        return connect
    return None

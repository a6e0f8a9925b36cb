"""Who needs which pin or chip, and where two sensors need the same one."""

import itertools
from collections.abc import Sequence

from edge_agent.sensors.base import Claiming
from spatial_mqtt.errors import FieldError

# With SPI0 switched on, the kernel keeps both selects, used or not.
_SPI0_PINS = frozenset({"GPIO7", "GPIO8", "GPIO9", "GPIO10", "GPIO11"})


def clashes(sensors: Sequence[Claiming]) -> list[str]:
    """One sentence for each sensor that needs what an earlier one has."""
    found = []
    for later, sensor in enumerate(sensors):
        earlier = itertools.product(sensor.claims, sensors[:later])
        for claim, other in earlier:
            taken = next((c for c in other.claims if _overlap(claim, c)), None)
            if taken is not None:
                found.append(_sentence(sensor, claim, taken, other.name))
    return found


def _overlap(one: str, other: str) -> bool:
    if one == other or one.startswith(other + " ") or other.startswith(one + " "):
        return True
    pair = {one, other}
    return bool(pair & _SPI0_PINS) and any(c.startswith("SPI0.") for c in pair)


def _sentence(sensor: Claiming, claim: str, taken: str, owner: str) -> str:
    path = f"sensor.{sensor.name}"
    if claim.startswith("GPIO"):
        field, thing, value = "pin", "pin", claim.removeprefix("GPIO")
    elif taken.startswith("GPIO"):
        return (
            f"{path} needs SPI0, which owns GPIO 7 to 11, "
            f"but sensor.{owner} uses {taken}; move sensor.{owner} to another pin"
        )
    elif claim == taken and " channel " in claim:
        field, thing, value = "channel", "channel", claim.rpartition(" ")[2]
    elif claim.startswith("SPI0."):
        field, thing, value = "device", "chip select", claim[5:6]
    else:
        return f"{path} needs {claim}, which sensor.{owner} uses; choose another"
    rule = f"a {thing} of its own"
    tail = f"which sensor.{owner} uses; choose another {thing}"
    return f"{FieldError(f'{path}.{field}', rule, int(value))}, {tail}"

"""Who needs which pin or chip, and where two sensors need the same one."""

import itertools
from collections.abc import Mapping, Sequence

from edge_agent.sensors.base import Claiming
from spatial_mqtt.errors import FieldError

_SPI0, _I2C1, _UART = (7, 11), (2, 3), (14, 15)
# With a bus switched on, the kernel keeps its pins: of SPI0 both selects, used or not.
_BUS_PINS: Mapping[str, tuple[int, int]] = {
    "SPI0.": _SPI0,
    "I2C1 ": _I2C1,
    "/dev/serial0 ": _UART,
    "/dev/ttyAMA0 ": _UART,
    "/dev/ttyS0 ": _UART,
}


def clashes(sensors: Sequence[Claiming]) -> list[str]:
    """One sentence for each sensor that needs what an earlier one has."""
    found = []
    for later, sensor in enumerate(sensors):
        earlier = itertools.product(sensor.claims, sensors[:later])
        for claim, other in earlier:
            taken = next((c for c in other.claims if _overlap(claim, c)), None)
            if taken is not None:
                found.append(_sentence(sensor, claim, taken, other.name))
        found += _quarrels(sensor, sensors[:later])
    return found


def user_of(claim: str, sensors: Sequence[Claiming]) -> str | None:
    """The sensor that needs a pin or chip, or the bus that owns it; None for none."""
    users = (s.name for s in sensors for c in s.claims if _overlap(claim, c))
    return next(users, None)


def _quarrels(sensor: Claiming, earlier: Sequence[Claiming]) -> list[str]:
    """One sentence for each place that two sensors describe differently."""
    return [
        f"sensor.{sensor.name} must say the same of {place} as sensor.{other.name}, "
        f"got {words} and not {other.shares[place]}; one chip is on one place"
        for place, words in sensor.shares.items()
        for other in earlier
        if other.shares.get(place, words) != words
    ][:1]


def _overlap(one: str, other: str) -> bool:
    if one == other or one.startswith(other + " ") or other.startswith(one + " "):
        return True
    return _owner(one, other) is not None or _owner(other, one) is not None


def _owner(bus: str, pin: str) -> tuple[int, int] | None:
    """The pins of a bus, when one of them is the pin."""
    number = pin.removeprefix("GPIO")
    if number == pin:
        return None
    for prefix, pins in _BUS_PINS.items():
        if bus.startswith(prefix) and pins[0] <= int(number) <= pins[1]:
            return pins
    return None


def _sentence(sensor: Claiming, claim: str, taken: str, owner: str) -> str:
    path = f"sensor.{sensor.name}"
    pins = _owner(claim, taken)
    if claim.startswith("GPIO"):
        field, thing, value = "pin", "pin", claim.removeprefix("GPIO")
    elif pins is not None:
        bus = claim.partition(" ")[0].partition(".")[0]
        return (
            f"{path} needs {bus}, which owns GPIO {pins[0]} to {pins[1]}, "
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

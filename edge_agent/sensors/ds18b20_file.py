"""The two files in which the kernel shows a DS18B20.

Source: kernel documentation w1_therm (``temperature`` in thousandths of a degree;
``w1_slave`` with nine bytes, ``YES`` or ``NO`` for their CRC, and ``t=``); DS18B20
data sheet (Maxim 19-7487), table 1 and power-on value.
"""

import re

from edge_agent.sensors.errors import Health

POWER_ON_MC = 85000
_NOT_THERE_MC = {-127000, 127937}
LOW_C, HIGH_C = -55.0, 125.0
_CRC = re.compile(r"crc=[0-9a-f]{2} (YES|NO)")
_TEMPERATURE = re.compile(r"t=(-?\d{1,6})")


class DamagedError(ValueError):
    """The chip's answer came over the wire with errors."""


class WrongError(ValueError):
    """The number stands for no temperature; the words say for what it does."""

    def __init__(self, reason: str, health: Health) -> None:
        self.health = health
        super().__init__(reason)


def decode(text: str) -> float:
    """Temperature in Celsius from the text of either file.

    Raises:
        DamagedError: Bad CRC, or no number.
        WrongError: It is what the chip or the kernel gives without a measurement.
    """
    milli = _milli(text.strip())
    if milli == POWER_ON_MC:
        reason = "reads 85.0 C, its value after power-on: it did not convert"
        raise WrongError(reason, Health.NOT_CONVERTED)
    if milli in _NOT_THERE_MC:
        reason = f"reads {milli / 1000:g} C: it is disconnected"
        raise WrongError(reason, Health.DISCONNECTED)
    if not LOW_C <= milli / 1000 <= HIGH_C:
        reason = f"reads {milli / 1000:g} C, beyond what it can measure"
        raise WrongError(reason, Health.IMPLAUSIBLE)
    return milli / 1000


def _milli(text: str) -> int:
    if not text:
        raise DamagedError("gives an empty file: the chip did not answer")
    if re.fullmatch(r"-?\d{1,6}", text):
        return int(text)
    crc, found = _CRC.search(text), _TEMPERATURE.search(text)
    if crc is None or found is None:
        raise DamagedError(f"gives no temperature: {text[:60]!r}")
    if crc[1] != "YES":
        raise DamagedError("answers with a wrong CRC")
    return int(found[1])

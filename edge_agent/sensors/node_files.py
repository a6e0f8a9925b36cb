"""What the kernel's files say of the machine itself; each `decode` is pure.

Source: kernel documentation of thermal zones, ``/proc/meminfo``, ``/proc/loadavg``,
block ``stat`` (the seventh number is sectors of 512 bytes written) and MMC
``life_time``; raspberrypi/linux#2367 for the bits of ``get_throttled``, whose bit 0
is also ``in0_lcrit_alarm`` of the hwmon ``rpi_volt``.
"""

import re

_SECTOR_BYTES = 512
_SECTORS_WRITTEN = 6
_UNDER_VOLTAGE, _THROTTLED, _SEEN = 1 << 0, 1 << 2, 16
_LIFE_STEP, _LIFE_EXCEEDED = 0.1, 11


def celsius(text: str) -> float:
    """Temperature of a thermal zone, from thousandths of a degree."""
    return int(text) / 1000


def throttling(text: str) -> dict[str, bool]:
    """What the firmware holds against the power supply, from ``50005``."""
    bits = int(text, 16)
    return {
        "under-voltage": bool(bits & _UNDER_VOLTAGE),
        "under-voltage-seen": bool(bits & _UNDER_VOLTAGE << _SEEN),
        "throttled": bool(bits & _THROTTLED),
        "throttled-seen": bool(bits & _THROTTLED << _SEEN),
    }


def life_used(text: str) -> float:
    """Ratio of a flash memory's life that is over at most, from ``0x01 0x02``.

    Each number counts tenths: 1 is up to 0.1, 10 up to 1.0, 11 beyond.

    Raises:
        ValueError: The memory does not tell.
    """
    worst = max(int(number, 16) for number in text.split())
    if not 1 <= worst <= _LIFE_EXCEEDED:
        raise ValueError(f"must be 1 to 11 tenths, got {text!r}")
    return round(worst * _LIFE_STEP, 1)


def written_bytes(text: str) -> int:
    """Bytes written to a block device since the machine started."""
    return int(text.split()[_SECTORS_WRITTEN]) * _SECTOR_BYTES


def uptime_s(text: str) -> float:
    """Seconds since the machine started."""
    return float(text.split(maxsplit=1)[0])


def memory_free(text: str) -> float:
    """Ratio of the memory that programs may still have."""
    found = dict(re.findall(r"(\w+):\s+(\d+) kB", text))
    return round(int(found["MemAvailable"]) / int(found["MemTotal"]), 4)


def load(text: str) -> float:
    """Programs that want to run, mean of the last minute."""
    return float(text.split(maxsplit=1)[0])

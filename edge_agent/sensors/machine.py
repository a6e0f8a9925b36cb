"""Health of the machine from the kernel's files; values that are missing are omitted.

Source: kernel documentation of thermal zones, ``/proc/meminfo``, ``/proc/loadavg``,
block ``stat`` (the seventh number is sectors of 512 bytes written) and MMC
``life_time``; raspberrypi/linux#2367 for the bits of ``get_throttled``, whose bit 0
is also ``in0_lcrit_alarm`` of the hwmon ``rpi_volt``.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    SensorBusError,
    SlowSensorSettings,
)
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

_UNREADABLE = (OSError, ValueError, LookupError)  # absent, or of another form

_THROTTLING = "/sys/devices/platform/soc/soc:firmware/get_throttled"
_HWMON, _HWMONS = "/sys/class/hwmon/hwmon{}/{}", 8  # where the firmware has no file
_Fact = tuple[str, str, str, Callable[[str], float]]


def parse_temp_c(text: str) -> float:
    """Temperature of a thermal zone, from thousandths of a degree."""
    return int(text) / 1000


def parse_load(text: str) -> float:
    """Load average of the last minute."""
    return float(text.split(maxsplit=1)[0])


def parse_memory_free(text: str) -> float:
    """Available memory as a fraction of all memory."""
    found = dict(re.findall(r"(\w+):\s+(\d+) kB", text))
    return round(int(found["MemAvailable"]) / int(found["MemTotal"]), 4)


def parse_life_used(text: str) -> float:
    """Maximum used fraction of a flash memory's life, from ``0x01 0x02``.

    Each number counts tenths: 1 is up to 0.1, 10 up to 1.0, 11 beyond.

    Raises:
        ValueError: The memory does not report it.
    """
    worst = max(int(number, 16) for number in text.split())
    if not 1 <= worst <= _LIFE_EXCEEDED:
        raise ValueError(f"must be 1 to 11 tenths, got {text!r}")
    return round(worst * _LIFE_STEP, 1)


def parse_written_bytes(text: str) -> int:
    """Bytes written to a block device since the machine started."""
    return int(text.split()[_SECTORS_WRITTEN]) * _SECTOR_BYTES


def parse_uptime_s(text: str) -> float:
    """Seconds since the machine started."""
    return float(text.split(maxsplit=1)[0])


_FACTS: tuple[_Fact, ...] = (
    ("cpu-temp", "Cel", "/sys/class/thermal/thermal_zone0/temp", parse_temp_c),
    ("uptime", "s", "/proc/uptime", parse_uptime_s),
    ("memory-free", "/", "/proc/meminfo", parse_memory_free),
    ("load", "/", "/proc/loadavg", parse_load),
    ("written", "B", "/sys/block/{device}/stat", parse_written_bytes),
    ("life-used", "/", "/sys/block/{device}/device/life_time", parse_life_used),
)


def check_block_device(device: str) -> str:
    """Check the name of a block device.

    Raises:
        FieldError: It is none.
    """
    if not re.fullmatch(r"[a-z0-9]{1,32}", device):
        raise FieldError("device", "a name in /sys/block", device)
    return device


@dataclass(frozen=True)
class MachineSettings(SlowSensorSettings):
    """Keys of kind ``node``."""

    quantity: ClassVar[str] = "health of the machine"
    senml_unit: ClassVar[str | None] = "Cel"
    range: ClassVar[tuple[float, float]] = (-40.0, 125.0)

    device: str = key(
        KeyRule("Its flash memory, a name in /sys/block.", check=check_block_device),
        "mmcblk0",
    )
    disk: str = key(KeyRule("A folder on the disk whose room counts."), "/")

    @property
    def claims(self) -> tuple[str, ...]:
        return ("the machine",)


class MachineHealth(BaseSensor):
    """Heat, power, flash, disk, memory and load, from the kernel's files."""

    def __init__(self, settings: MachineSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._buses = hardware.buses

    def read(self, now_s: float) -> list[Reading]:
        """All available values.

        Raises:
            SensorBusError: No value is available.
        """
        readings = [*self._facts(), *self._power(), *self._disk()]
        if not readings:
            raise SensorBusError(
                self.name, "finds none of the kernel's files", "mount /proc and /sys"
            )
        return readings

    def _facts(self) -> Iterator[Reading]:
        for name, unit, path, decode in _FACTS:
            try:
                text = self._buses.read_file(path.format(device=self._settings.device))
                value = decode(text)
            except _UNREADABLE:
                continue
            yield Reading(f"{self.name}/{name}", unit, value)

    def _power(self) -> Iterator[Reading]:
        try:
            flags = parse_throttling(self._buses.read_file(_THROTTLING))
        except _UNREADABLE:
            flags = self._alarm()
        for name, value in flags.items():
            # triage takes a truth value for a trip wire; RFC 8428 uses 1 and 0
            yield Reading(f"{self.name}/{name}", "/", float(value))

    def _alarm(self) -> dict[str, bool]:
        for number in range(_HWMONS):
            try:
                if self._buses.read_file(_HWMON.format(number, "name")) == "rpi_volt\n":
                    alarm = self._buses.read_file(
                        _HWMON.format(number, "in0_lcrit_alarm")
                    )
                    return {"under-voltage": bool(int(alarm))}
            except _UNREADABLE:
                continue
        return {}

    def _disk(self) -> Iterator[Reading]:
        try:
            free, whole = self._buses.disk_usage(self._settings.disk)
            yield Reading(f"{self.name}/disk-free", "/", round(free / whole, 4))
        except (OSError, ZeroDivisionError):
            return


_SECTOR_BYTES = 512
_SECTORS_WRITTEN = 6
_UNDER_VOLTAGE, _THROTTLED, _SEEN = 1 << 0, 1 << 2, 16
_LIFE_STEP, _LIFE_EXCEEDED = 0.1, 11


def parse_throttling(text: str) -> dict[str, bool]:
    """Flags of the firmware about the power supply, from a text such as ``50005``."""
    bits = int(text, 16)
    return {
        "under-voltage": bool(bits & _UNDER_VOLTAGE),
        "under-voltage-seen": bool(bits & _UNDER_VOLTAGE << _SEEN),
        "throttled": bool(bits & _THROTTLED),
        "throttled-seen": bool(bits & _THROTTLED << _SEEN),
    }

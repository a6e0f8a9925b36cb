"""Health of the machine itself; what it does not tell is not reported."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors import node_files
from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.errors import SensorBusError
from edge_agent.sensors.slow import SlowSettings
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

_UNREADABLE = (OSError, ValueError, LookupError)  # absent, or of another form

_THROTTLING = "/sys/devices/platform/soc/soc:firmware/get_throttled"
_HWMON, _HWMONS = "/sys/class/hwmon/hwmon{}/{}", 8  # where the firmware has no file
_Fact = tuple[str, str, str, Callable[[str], float]]
_FACTS: tuple[_Fact, ...] = (
    ("cpu-temp", "Cel", "/sys/class/thermal/thermal_zone0/temp", node_files.celsius),
    ("uptime", "s", "/proc/uptime", node_files.uptime_s),
    ("memory-free", "/", "/proc/meminfo", node_files.memory_free),
    ("load", "/", "/proc/loadavg", node_files.load),
    ("written", "B", "/sys/block/{device}/stat", node_files.written_bytes),
    ("life-used", "/", "/sys/block/{device}/device/life_time", node_files.life_used),
)


def check_device(device: str) -> str:
    """Let the name of a block device through.

    Raises:
        FieldError: It is none.
    """
    if not re.fullmatch(r"[a-z0-9]{1,32}", device):
        raise FieldError("device", "a name in /sys/block", device)
    return device


@dataclass(frozen=True)
class NodeSettings(SlowSettings):
    """Keys of kind ``node``."""

    quantity: ClassVar[str] = "health of the machine"
    senml_unit: ClassVar[str | None] = "Cel"
    range: ClassVar[tuple[float, float]] = (-40.0, 125.0)

    device: str = key(
        Rule("Its flash memory, a name in /sys/block.", check=check_device), "mmcblk0"
    )
    disk: str = key(Rule("A folder on the disk whose room counts."), "/")

    @property
    def claims(self) -> tuple[str, ...]:
        """There is one machine."""
        return ("the machine",)


class NodeHealth(Described):
    """Heat, power, flash, disk, memory and load, from the kernel's files."""

    def __init__(self, settings: NodeSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._buses = hardware.buses

    def read(self, now_s: float) -> list[Reading]:
        """All that the machine tells now.

        Raises:
            SensorBusError: It tells nothing at all.
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
                text = self._buses.file(path.format(device=self._settings.device))
                value = decode(text)
            except _UNREADABLE:
                continue
            yield Reading(f"{self.name}/{name}", unit, value)

    def _power(self) -> Iterator[Reading]:
        try:
            seen = node_files.throttling(self._buses.file(_THROTTLING))
        except _UNREADABLE:
            seen = self._alarm()
        for name, value in seen.items():
            # a truth value is a wire to triage; RFC 8428 has 1 and 0 for on and off
            yield Reading(f"{self.name}/{name}", "/", float(value))

    def _alarm(self) -> dict[str, bool]:
        for number in range(_HWMONS):
            try:
                if self._buses.file(_HWMON.format(number, "name")) == "rpi_volt\n":
                    alarm = self._buses.file(_HWMON.format(number, "in0_lcrit_alarm"))
                    return {"under-voltage": bool(int(alarm))}
            except _UNREADABLE:
                continue
        return {}

    def _disk(self) -> Iterator[Reading]:
        try:
            free, whole = self._buses.disk(self._settings.disk)
            yield Reading(f"{self.name}/disk-free", "/", round(free / whole, 4))
        except (OSError, ZeroDivisionError):
            return

"""Simulated sensors behind kernel files and gpsd: DS18B20, machine and GNSS.

Source: kernel documentation w1_therm; DS18B20 data sheet (Maxim 19-7487), table 1.
"""

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import ClassVar

from edge_agent.sensors.ds18b20 import Ds18b20Settings
from edge_agent.sensors.gnss import GnssSettings
from edge_agent.sensors.machine import MachineSettings
from edge_agent.simulator.parts.base import (
    BreakablePart,
    ConnectPart,
    Fault,
    SimulatedBench,
)
from edge_agent.simulator.slope import SlopeState

_STEPS_PER_C = 16
_POWER_ON_C = 85.0
_REST = bytes.fromhex("4b467fff0c10")  # alarms, configuration, reserved bytes
_CRC_POLYNOMIAL = 0x8C
_GARBLED = "ff ff ff ff ff ff ff ff ff : crc=c9 NO\nff ff ff ff ff ff ff ff ff t={}\n"


class Ds18b20Part(BreakablePart):
    """Gives the ground's temperature in sixteenths of a degree."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.UNCONVERTED,
        Fault.SHORTED,
        Fault.GARBLED,
    })

    def __init__(self, settings: Ds18b20Settings, bench: SimulatedBench) -> None:
        super().__init__()
        folder = f"/sys/bus/w1/devices/{settings.rom}"
        self._new, self._old = f"{folder}/temperature", f"{folder}/w1_slave"
        self._files = bench.buses.files
        self._celsius = 0.0
        self.clear_fault()

    def follow(self, state: SlopeState) -> None:
        if self.fault is None:
            self._celsius = state.temp_c

    def inject_fault(self, fault: Fault) -> None:
        """Fall off the wire, lose power at each conversion, or answer nonsense."""
        super().inject_fault(fault)
        if fault is Fault.UNCONVERTED:
            self._celsius = _POWER_ON_C
        if fault is Fault.DEAD:
            self._files.pop(self._old, None)
        if fault in {Fault.DEAD, Fault.GARBLED}:
            self._files.pop(self._new, None)
        if fault is Fault.GARBLED:
            self._files[self._old] = lambda: _GARBLED.format(self._milli())

    def clear_fault(self) -> None:
        super().clear_fault()
        self._files[self._old] = self._slave
        self._files[self._new] = lambda: f"{self._milli()}\n"

    def _steps(self) -> int:
        """Sixteenths of a degree; 0 from a line that is held low."""
        is_low = self.fault is Fault.SHORTED
        return 0 if is_low else round(self._celsius * _STEPS_PER_C)

    def _milli(self) -> int:
        return int(self._steps() / _STEPS_PER_C * 1000)

    def _slave(self) -> str:
        """The text of ``w1_slave``: nine bytes, their CRC, the temperature."""
        data = self._steps().to_bytes(2, "little", signed=True) + _REST
        data = bytes(len(data)) if self.fault is Fault.SHORTED else data
        crc = _crc8(data)
        shown = f"{data.hex(' ')} {crc:02x}"
        return f"{shown} : crc={crc:02x} YES\n{shown} t={self._milli()}\n"


def _crc8(data: bytes) -> int:
    """Checksum of 1-Wire: x^8 + x^5 + x^4 + 1, the lowest bit first."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ _CRC_POLYNOMIAL if crc & 1 else crc >> 1
    return crc


_WARMER_C = 22.0  # than the air, in a closed box
_SECTORS_PER_S = 0.5
_UNDER_VOLTAGE = "50005\n"


class NodePart(BreakablePart):
    """Warm, with a sound supply and a memory card that wears."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.SATURATED,
    })

    def __init__(self, settings: MachineSettings, bench: SimulatedBench) -> None:
        super().__init__()
        self._device = settings.device
        self._files = bench.buses.files
        self._began_s: float | None = None
        self._up_s = 0.0
        self._cpu_c = 40.0
        self.clear_fault()

    def follow(self, state: SlopeState) -> None:
        if self.fault is None:
            self._began_s = state.time_s if self._began_s is None else self._began_s
            self._up_s = max(state.time_s - self._began_s, 0.0)
            self._cpu_c = state.air.temp_c + _WARMER_C

    def inject_fault(self, fault: Fault) -> None:
        """Report under-voltage, or remove the files."""
        super().inject_fault(fault)
        if fault is Fault.DEAD:
            for path in self._made():
                self._files.pop(path, None)
        elif fault is Fault.SATURATED:
            self._power = _UNDER_VOLTAGE

    def clear_fault(self) -> None:
        super().clear_fault()
        self._power = "0\n"
        self._files.update(self._made())

    def _made(self) -> dict[str, Callable[[], str]]:
        block = f"/sys/block/{self._device}"
        return {
            "/sys/class/thermal/thermal_zone0/temp": lambda: (
                f"{self._cpu_c * 1000:.0f}"
            ),
            "/proc/uptime": lambda: f"{self._up_s:.2f} {self._up_s:.2f}\n",
            "/proc/meminfo": lambda: "MemTotal: 429000 kB\nMemAvailable: 260000 kB\n",
            "/proc/loadavg": lambda: "0.08 0.05 0.01 1/120 999\n",
            f"{block}/stat": lambda: f"0 0 0 0 0 0 {self._up_s * _SECTORS_PER_S:.0f} 0",
            f"{block}/device/life_time": lambda: "0x01 0x02\n",
            "/sys/devices/platform/soc/soc:firmware/get_throttled": lambda: self._power,
        }


_M_PER_DEG = 111_195.0
_SIGMA_M, _EPH_M, _ALTITUDE_M = 1.2, 4.0, 500.0


class GnssPart(BreakablePart):
    """Moves down the slope with it, under metres of noise."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.SATURATED,
        Fault.DISCONNECTED,
    })

    def __init__(self, settings: GnssSettings, bench: SimulatedBench) -> None:
        super().__init__()
        self._settings = settings
        self._rng = bench.rng
        self._buses = bench.buses
        self._text = _poll()
        self.clear_fault()

    def follow(self, state: SlopeState) -> None:
        if self.fault is None:
            s = self._settings
            south_m = state.displacement_mm / 1000 + self._rng.gauss(0, _SIGMA_M)
            east_m = self._rng.gauss(0, _SIGMA_M)
            shrink = max(math.cos(math.radians(s.latitude)), 1e-6)
            tpv = {
                "class": "TPV", "mode": 3, "eph": _EPH_M, "altMSL": _ALTITUDE_M,
                "time": datetime.fromtimestamp(state.time_s, UTC).isoformat(),
                "lat": s.latitude - south_m / _M_PER_DEG,
                "lon": s.longitude + east_m / _M_PER_DEG / shrink,
            }  # fmt: skip
            self._text = _poll(tpv)

    def inject_fault(self, fault: Fault) -> None:
        """Stop the daemon, pull the receiver out, or cover the sky with it."""
        super().inject_fault(fault)
        if fault is Fault.DEAD:
            self._buses.gpsd_report = None
        elif fault is Fault.DISCONNECTED:
            self._text = json.dumps({"class": "POLL", "active": 0, "tpv": []})
        elif fault is Fault.SATURATED:
            self._text = _poll({"class": "TPV", "mode": 1})

    def clear_fault(self) -> None:
        super().clear_fault()
        self._buses.gpsd_report = lambda: self._text


def _poll(*tpv: dict[str, object]) -> str:
    return json.dumps({"class": "POLL", "active": 1, "tpv": list(tpv)})


PARTS: Mapping[str, ConnectPart] = {
    "ds18b20": Ds18b20Part,
    "gnss": GnssPart,
    "node": NodePart,
}

"""Simulated sensors on pins, and behind kernel files and gpsd.

On pins are contacts, the trip wire and the ultrasonic ranger; behind files the DS18B20
and the machine; behind gpsd the GNSS receiver.

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
from edge_agent.sensors.rain_gauge_and_vibration import (
    RainGaugeSettings,
    VibrationSettings,
)
from edge_agent.sensors.trip_wire import TripWireSettings
from edge_agent.sensors.ultrasonic import UltrasonicSettings, speed_of_sound
from edge_agent.simulator.buses import (
    BreakablePart,
    ConnectPart,
    Fault,
    SimulatedBench,
)
from edge_agent.simulator.slope import SlopeState

_FLAPS_PER_S = 5.0
_MAX_FLAPS = 500

_STEPS_PER_C = 16
_POWER_ON_C = 85.0
_REST = bytes.fromhex("4b467fff0c10")  # alarms, configuration, reserved bytes
_CRC_POLYNOMIAL = 0x8C
_GARBLED = "ff ff ff ff ff ff ff ff ff : crc=c9 NO\nff ff ff ff ff ff ff ff ff t={}\n"


class ContactPart(BreakablePart):
    """A contact that closes evenly over the time since the last call.

    Dead or stuck it stays open, shorted it stays closed, flapping it closes by itself;
    closures during a fault are not made up for.
    """

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.SHORTED,
        Fault.FLAPPING,
    })

    def __init__(
        self, pin: int, bench: SimulatedBench, *, active_high: bool = False
    ) -> None:
        super().__init__()
        self._pin = bench.pin(pin)
        self._factory = bench.pin_factory
        self._active_high = active_high
        self._last_s: float | None = None
        self._total: int | None = None

    def close_up_to(self, total: int, now_s: float) -> None:
        """Close as often as a total count has grown since the last call.

        The first call closes nothing, nor does a total that shrinks.
        """
        before = total if self._total is None else self._total
        self._total = max(total, before)
        self.close_times(self._total - before, now_s)

    def close_times(self, times: int, now_s: float) -> None:
        """Close a number of times until now."""
        last_s = now_s if self._last_s is None else min(self._last_s, now_s)
        self._last_s = now_s
        if self.fault is Fault.FLAPPING:
            times = min(int(_FLAPS_PER_S * (now_s - last_s)), _MAX_FLAPS)
        elif self.fault is not None:
            times = 0
        for number in range(1, times + 1):
            self._factory.now_s = last_s + (now_s - last_s) * number / times
            self.pulse()
        self._factory.now_s = now_s

    def pulse(self) -> None:
        """Close once."""
        self._pin.hold(level=self._active_high)
        self._pin.release()

    def inject_fault(self, fault: Fault) -> None:
        """Break the contact or its cable."""
        super().inject_fault(fault)
        if fault is Fault.SHORTED:
            self._pin.hold(level=self._active_high)

    def clear_fault(self) -> None:
        super().clear_fault()
        self._pin.release()


class RainGaugePart(ContactPart):
    """Tips as the rain fills it."""

    def __init__(self, settings: RainGaugeSettings, bench: SimulatedBench) -> None:
        super().__init__(settings.pin, bench)
        self._mm_per_tip = settings.mm_per_tip

    def follow(self, state: SlopeState) -> None:
        self.close_up_to(int(state.rain_mm / self._mm_per_tip + 1e-9), state.time_s)


_PULSES, _GAP_S = 4, 0.01


class VibrationPart(ContactPart):
    """Shakes with the slope."""

    def __init__(self, settings: VibrationSettings, bench: SimulatedBench) -> None:
        super().__init__(settings.pin, bench, active_high=settings.active_high)

    def follow(self, state: SlopeState) -> None:
        self.close_up_to(state.vibration_pulses, state.time_s)

    def pulse(self) -> None:
        """A train of pulses."""
        for _ in range(_PULSES):
            super().pulse()
            self._factory.now_s += _GAP_S


class WirePart(BreakablePart):
    """Holds the pin low while it is whole; a broken part stays as it is."""

    def __init__(self, settings: TripWireSettings, bench: SimulatedBench) -> None:
        super().__init__()
        self._pin = bench.pin(settings.pin)
        self._pin.hold(level=False)

    def follow(self, state: SlopeState) -> None:
        if self.fault is not None:
            return
        if state.wire_cut:
            self._pin.release()
        else:
            self._pin.hold(level=False)


_NOISE_M, _SPRAY_M = 0.003, 1.0
_DELAY_S = 0.0005
_NEAREST_M = 0.02


class UltrasonicPart(BreakablePart):
    """Measures the water level, through air of the slope's temperature."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.NOISY,
        Fault.SHORTED,
    })

    def __init__(self, settings: UltrasonicSettings, bench: SimulatedBench) -> None:
        super().__init__()
        self._mount_m = self._distance_m = settings.mount_m
        self._air_c = settings.air_c
        self._rng = bench.rng
        self._factory = bench.pin_factory
        self._echo = bench.pin(settings.echo_pin)
        self._echo.hold(level=False)
        bench.pin(settings.trigger_pin).on_drive = self._driven

    def follow(self, state: SlopeState) -> None:
        if self.fault in {None, Fault.NOISY}:
            self._distance_m = self._mount_m - state.stream_m
            self._air_c = state.air.temp_c

    def inject_fault(self, fault: Fault) -> None:
        """Break the module or its cable."""
        super().inject_fault(fault)
        self._echo.hold(level=fault is Fault.SHORTED)

    def clear_fault(self) -> None:
        super().clear_fault()
        self._echo.hold(level=False)

    def _driven(self, level: bool) -> None:
        """The end of a trigger: the echo rises, and falls after the flight."""
        if level or self.fault in {Fault.DEAD, Fault.SHORTED}:
            return
        sigma_m = _SPRAY_M if self.fault is Fault.NOISY else _NOISE_M
        distance_m = max(self._distance_m + self._rng.gauss(0, sigma_m), _NEAREST_M)
        begin_s = self._factory.now_s + _DELAY_S
        self._echo.hold(level=True, at_s=begin_s)
        end_s = begin_s + 2 * distance_m / speed_of_sound(self._air_c)
        self._echo.hold(level=False, at_s=end_s)


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
    "rain-gauge": RainGaugePart,
    "ultrasonic": UltrasonicPart,
    "vibration": VibrationPart,
    "wire": WirePart,
}

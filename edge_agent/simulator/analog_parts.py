"""Simulated analog sensors, on a channel of an MCP3x08 or an input of an ADS1115."""

from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

from edge_agent.sensors.ads1115 import (
    Ads1115CurrentSettings,
    Ads1115Settings,
    Ads1115VoltageSettings,
)
from edge_agent.sensors.analog import (
    FULL_MA,
    ZERO_MA,
    AdcSettings,
    ExtensometerSettings,
    PiezometerSettings,
    SoilMoistureSettings,
)
from edge_agent.sensors.trip_wire import TripWireEolSettings
from edge_agent.simulator.buses import (
    BreakablePart,
    ConnectPart,
    Fault,
    SimulatedBench,
    expected_reading,
    unscale,
)
from edge_agent.simulator.chips import Ads1115Chip, Mcp3x08Chip
from edge_agent.simulator.digital_parts import I2cPart
from edge_agent.simulator.slope import SlopeState

_MCP3X08_NOISE_V = 0.001
_MCP3X08_LOOSE_CONTACT_V = 0.6
_BITS = {"MCP3008": 10, "MCP3208": 12}
_UPSCALE_MA = 21.6

AnyAdcSettings = TypeVar("AnyAdcSettings", bound=AdcSettings)
AnyAds1115Settings = TypeVar("AnyAds1115Settings", bound=Ads1115Settings)


def _shunt_v(loop_ma: float, shunt_ohm: float) -> float:
    return loop_ma / 1000 * shunt_ohm


class AdcPart(BreakablePart, Generic[AnyAdcSettings]):
    """A voltage on a channel; faults of the chip affect all its channels."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.NOISY,
        Fault.SHORTED,
        Fault.DISCONNECTED,
        Fault.SATURATED,
        Fault.IO_ERROR,
    })

    def __init__(self, settings: AnyAdcSettings, bench: SimulatedBench) -> None:
        super().__init__()
        self._settings = settings
        self._channel = settings.channel
        self._vref_v = settings.vref_v
        key = ("SPI0", settings.device)
        if key not in bench.chips:
            bench.chips[key] = Mcp3x08Chip(
                settings.device,
                bench.rng,
                bench.pin_factory,
                _BITS[settings.chip],
                settings.vref_v,
            )
        self._chip: Mcp3x08Chip = bench.chips[key]
        self._well_v = 0.0
        self._chip.noise_v[self._channel] = _MCP3X08_NOISE_V

    def volts(self, state: SlopeState) -> float:
        """Voltage of the sensor for a state of the slope."""
        raise NotImplementedError

    @property
    def open_v(self) -> float:
        """What the channel reads with the cable off: a resistor pulls it down."""
        return 0.0

    def follow(self, state: SlopeState) -> None:
        if self.fault in {None, Fault.NOISY}:
            self._well_v = self.volts(state)
            self._set(self._well_v)

    def inject_fault(self, fault: Fault) -> None:
        """Break the sensor, its cable, the chip or the bus."""
        self.clear_fault()
        super().inject_fault(fault)
        self._chip.is_dead = fault is Fault.DEAD
        self._chip.fail_bus(is_failing=fault is Fault.IO_ERROR)
        if fault is Fault.SHORTED:
            self._set(0.0)
        elif fault is Fault.DISCONNECTED:
            self._set(self.open_v)
        elif fault is Fault.SATURATED:
            self._set(self._vref_v + 0.3)
        elif fault is Fault.NOISY:
            self._chip.noise_v[self._channel] = _MCP3X08_LOOSE_CONTACT_V

    def clear_fault(self) -> None:
        super().clear_fault()
        self._chip.is_dead = False
        self._chip.fail_bus(is_failing=False)
        self._chip.noise_v[self._channel] = _MCP3X08_NOISE_V
        self._set(self._well_v)

    def _set(self, volts: float) -> None:
        self._chip.volts[self._channel] = volts


class SoilMoisturePart(AdcPart[SoilMoistureSettings]):
    """Gives the voltage of the soil's water content: the calibration, backwards."""

    def volts(self, state: SlopeState) -> float:
        s = self._settings
        return s.dry_v + (s.wet_v - s.dry_v) * state.vwc / s.porosity


_MOUNTED = 0.1  # how far the string was out at the start, of its travel


class ExtensometerPart(AdcPart[ExtensometerSettings]):
    """Runs out as the slope moves, and no farther than it can."""

    def volts(self, state: SlopeState) -> float:
        s = self._settings
        out = min(_MOUNTED + state.displacement_mm / s.travel_mm, 1.0)
        return s.home_v + (s.full_v - s.home_v) * out


class PiezometerPart(AdcPart[PiezometerSettings]):
    """Drives the current of the pore pressure; upscale when its element breaks."""

    faults: ClassVar[frozenset[Fault]] = AdcPart.faults | {Fault.UPSCALE}

    def volts(self, state: SlopeState) -> float:
        s = self._settings
        kpa = min(max(state.pore_kpa, s.at_4ma_kpa), s.at_20ma_kpa)
        share = (kpa - s.at_4ma_kpa) / (s.at_20ma_kpa - s.at_4ma_kpa)
        return _shunt_v(ZERO_MA + (FULL_MA - ZERO_MA) * share, s.shunt_ohm)

    def inject_fault(self, fault: Fault) -> None:
        """Break the transmitter, or what every channel may have."""
        super().inject_fault(fault)
        if fault is Fault.UPSCALE:
            self._set(_shunt_v(_UPSCALE_MA, self._settings.shunt_ohm))


class WireEolPart(AdcPart[TripWireEolSettings]):
    """Divides the reference as its resistors do, whole or cut."""

    def __init__(self, settings: TripWireEolSettings, bench: SimulatedBench) -> None:
        super().__init__(settings, bench)
        self._whole_v = settings.vref_v * settings.ratio_intact
        self._cut_v = settings.vref_v * settings.ratio_cut
        self._well_v = self._whole_v
        self._set(self._whole_v)

    @property
    def open_v(self) -> float:
        """The pull-up alone: the reference."""
        return self._vref_v

    def volts(self, state: SlopeState) -> float:
        return self._cut_v if state.wire_cut else self._whole_v


_SUPPLY_V = 7.0
_ADS1115_NOISE_V, _ADS1115_LOOSE_CONTACT_V = 0.0005, 0.6
_AT_FAULT_V = {Fault.SATURATED: _SUPPLY_V, Fault.DISCONNECTED: 0.0, Fault.SHORTED: 0.0}


class Ads1115InputPart(I2cPart[Ads1115Chip], Generic[AnyAds1115Settings]):
    """Holds a voltage on its input."""

    faults: ClassVar[frozenset[Fault]] = I2cPart.faults | {*_AT_FAULT_V, Fault.NOISY}

    def __init__(self, settings: AnyAds1115Settings, bench: SimulatedBench) -> None:
        super().__init__(settings, bench, lambda: Ads1115Chip(bench.rng))
        self._settings = settings
        self._channel = settings.channel

    def volts(self, state: SlopeState) -> float:
        """Voltage of the sensor for a state of the slope."""
        raise NotImplementedError

    def follow(self, state: SlopeState) -> None:
        if self.fault in {None, Fault.NOISY}:
            self.set_volts(self.volts(state))

    def set_volts(self, volts: float) -> None:
        """Hold a voltage."""
        self._chip.volts[self._channel] = volts

    def inject_fault(self, fault: Fault) -> None:
        """Break the chip, or what hangs on the input."""
        super().inject_fault(fault)
        if fault in _AT_FAULT_V:
            self.set_volts(_AT_FAULT_V[fault])
        noise_v = _ADS1115_LOOSE_CONTACT_V if fault is Fault.NOISY else _ADS1115_NOISE_V
        self._chip.noise_v[self._channel] = noise_v

    def clear_fault(self) -> None:
        super().clear_fault()
        self._chip.noise_v[self._channel] = _ADS1115_NOISE_V


class Ads1115CurrentPart(Ads1115InputPart[Ads1115CurrentSettings]):
    """Drives the current for what the slope is."""

    faults: ClassVar[frozenset[Fault]] = Ads1115InputPart.faults | {Fault.UPSCALE}

    def volts(self, state: SlopeState) -> float:
        s = self._settings
        full = (expected_reading(s, state) - s.at_4ma) / (s.at_20ma - s.at_4ma)
        return _shunt_v(ZERO_MA + (FULL_MA - ZERO_MA) * full, s.shunt_ohm)

    def inject_fault(self, fault: Fault) -> None:
        """Break the transmitter, or what every input may have."""
        super().inject_fault(fault)
        if fault is Fault.UPSCALE:
            self.set_volts(_shunt_v(_UPSCALE_MA, self._settings.shunt_ohm))


class Ads1115VoltagePart(Ads1115InputPart[Ads1115VoltageSettings]):
    """Follows the slope in the installer's unit."""

    def volts(self, state: SlopeState) -> float:
        return unscale(self._settings, expected_reading(self._settings, state))


PARTS: Mapping[str, ConnectPart] = {
    "ads1115-current": Ads1115CurrentPart,
    "ads1115-voltage": Ads1115VoltagePart,
    "extensometer": ExtensometerPart,
    "piezometer": PiezometerPart,
    "soil-moisture": SoilMoisturePart,
    "wire-eol": WireEolPart,
}

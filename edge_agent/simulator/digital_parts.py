"""Simulated accelerometers (SPI and I2C), BME280, Modbus and SDI-12 probes.

Source of the serial devices: MODBUS application protocol V1.1b3, 6.3, 6.4 and 7; SDI-12
specification 1.4 (2019), 4.4.
"""

import errno
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from edge_agent.sensors.bme280 import Bme280Settings
from edge_agent.sensors.generic_probe import ScaledSettings
from edge_agent.sensors.modbus import (
    BYTE_ORDERS,
    NUMBER_TYPES,
    ModbusSettings,
    modbus_crc,
)
from edge_agent.sensors.murata import MurataSettings
from edge_agent.sensors.sdi12 import Sdi12Settings, sdi12_crc
from edge_agent.sensors.tilt import Lis3dhSettings, TiltSettings
from edge_agent.simulator.buses import (
    BreakablePart,
    ConnectPart,
    Fault,
    SimulatedBench,
    expected_reading,
    unscale,
)
from edge_agent.simulator.chips import (
    AccelerometerChip,
    Adxl345Chip,
    Adxl355Chip,
    Bme280Chip,
    FailingChip,
    Lis3dhChip,
    MurataChip,
)
from edge_agent.simulator.slope import SlopeState

_ILLEGAL_FUNCTION, _ILLEGAL_ADDRESS = 1, 2
_REQUEST_BYTES = 8
_LIMITS = {
    "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1),
}  # fmt: skip


class ModbusSlave:
    """A device with 16-bit registers, holding ones and inputs alike.

    Attributes:
        registers: Value of each register that exists.
        ignored_requests: Number of next requests without an answer.
        corrupt_answers: Number of next answers with a wrong bit.
        functions: Supported functions.
    """

    def __init__(self, address: int) -> None:
        self.registers: dict[int, int] = {}
        self.ignored_requests = 0
        self.corrupt_answers = 0
        self.functions = frozenset({3, 4})
        self._address = address

    def set_number(self, register: int, number: float, kind: str, order: str) -> None:
        """Store a number in one or two registers, clamped to their type."""
        low, high = _LIMITS.get(kind, (-math.inf, math.inf))
        held = min(max(number, low), high)
        data = struct.pack(
            NUMBER_TYPES[kind], held if kind == "float32" else round(held)
        )
        if len(data) == 2:  # noqa: PLR2004 - one register
            swapped = order in {"BADC", "DCBA"}
            words = {register: data[::-1] if swapped else data}
        else:
            wire = bytes(data[at] for at in BYTE_ORDERS[order])
            words = {register: wire[:2], register + 1: wire[2:]}
        self.registers |= {at: int.from_bytes(word) for at, word in words.items()}

    def answer(self, request: bytes) -> bytes:
        """The answer; empty to a request for another device."""
        if len(request) != _REQUEST_BYTES or request[0] != self._address:
            return b""
        if self.ignored_requests:
            self.ignored_requests -= 1
            return b""
        if modbus_crc(request[:-2]) != request[-2:]:
            return b""
        body = self._body(request)
        frame = body + modbus_crc(body)
        if self.corrupt_answers:
            self.corrupt_answers -= 1
            frame = frame[:3] + bytes([frame[3] ^ 0x10]) + frame[4:]
        return frame

    def _body(self, request: bytes) -> bytes:
        address, function, first, count = struct.unpack(">BBHH", request[:-2])
        if function not in self.functions:
            return bytes([address, function | 0x80, _ILLEGAL_FUNCTION])
        wanted = range(first, first + count)
        if not wanted or any(at not in self.registers for at in wanted):
            return bytes([address, function | 0x80, _ILLEGAL_ADDRESS])
        words = b"".join(self.registers[at].to_bytes(2) for at in wanted)
        return bytes([address, function, len(words)]) + words


_MEASURE = re.compile(r"(?P<address>.)M(?P<crc>C?)(?P<which>[1-9]?)!")
_DATA = re.compile(r"(?P<address>.)D(?P<page>\d)!")
_LONGEST = 35  # characters of values in one answer to aD0!
_END = "\r\n"


class Sdi12Sensor:
    """A probe with some values for each measuring command.

    Attributes:
        values: Values by number of the command, 0 for ``aM!``.
        wait_s: Seconds that it announces.
        ignored_requests: Number of next commands without an answer.
        corrupt_answers: Number of next answers with a wrong bit.
        knows_crc: Whether it understands ``aMC!``; probes before 1.3 do not.
    """

    def __init__(self, address: str) -> None:
        self.values: dict[int, tuple[float, ...]] = {}
        self.wait_s = 0
        self.ignored_requests = 0
        self.corrupt_answers = 0
        self.knows_crc = True
        self._address = address
        self._pages: list[str] = []
        self._with_crc = False
        self._is_measuring = False

    def answer(self, request: bytes) -> bytes:
        """The answer; to an empty request, the service request."""
        text = request.decode("ascii", "replace")
        if text[:1] not in {"", self._address}:
            self._pages, self._is_measuring = (
                [],
                False,
            )  # a command to another device aborts it
            return b""
        if not text:
            body = self._address if self._is_measuring else None
            self._is_measuring = False
        else:
            body = self._answer_to(text)
        if body is None or self._ignores_request():
            return b""
        return self._encode(body + _END)

    def _ignores_request(self) -> bool:
        self.ignored_requests, was = (
            max(self.ignored_requests - 1, 0),
            self.ignored_requests,
        )
        return was > 0

    def _encode(self, line: str) -> bytes:
        data = line.encode("ascii")
        if self.corrupt_answers:
            self.corrupt_answers -= 1
            data = data[:1] + bytes([data[1] ^ 0x40]) + data[2:]
        return data

    def _answer_to(self, text: str) -> str | None:
        if text == f"{self._address}!":
            return self._address
        if found := _MEASURE.fullmatch(text):
            return self._measured(found)
        if found := _DATA.fullmatch(text):
            return self._data(int(found["page"]))
        return None

    def _measured(self, found: re.Match[str]) -> str | None:
        if found["crc"] and not self.knows_crc:
            return None
        values = self.values.get(int(found["which"] or 0), ())
        self._with_crc = bool(found["crc"])
        self._pages = [""]
        for value in values:
            text = f"{value:+.6g}"
            if "e" in text:
                text = f"{value:+.7f}"[:9]
            if len(self._pages[-1] + text) > _LONGEST:
                self._pages.append("")
            self._pages[-1] += text
        self._is_measuring = self.wait_s > 0
        return f"{self._address}{self.wait_s:03}{len(values)}"

    def _data(self, page: int) -> str:
        """No values while measuring, or beyond the last page."""
        is_there = page < len(self._pages) and not self._is_measuring
        body = self._address + (self._pages[page] if is_there else "")
        return body + (sdi12_crc(body) if self._with_crc else "")


_ERRORS = {Fault.DEAD: errno.EREMOTEIO, Fault.IO_ERROR: errno.EIO}


class I2cPlacement(Protocol):
    """Settings of a chip on I2C."""

    @property
    def bus(self) -> int:
        """Number of the bus."""

    @property
    def address(self) -> int:
        """Address on it."""


AnyChip = TypeVar("AnyChip", bound=FailingChip)


class I2cPart(BreakablePart, Generic[AnyChip]):
    """A chip shared by the sensors at its address; its faults affect them all."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.IO_ERROR,
        Fault.IMPOSTOR,
    })

    def __init__(
        self, settings: I2cPlacement, bench: SimulatedBench, make: Callable[[], AnyChip]
    ) -> None:
        super().__init__()
        key = (f"I2C{settings.bus}", settings.address)
        chips: dict[object, Any] = bench.chips
        if key not in chips:
            chips[key] = make()
            bench.buses.attach_i2c(settings.bus, settings.address, chips[key])
        self._chip: AnyChip = chips[key]

    def inject_fault(self, fault: Fault) -> None:
        """Break the chip, for every sensor on it, or stop following the slope."""
        super().inject_fault(fault)
        self._chip.errno = _ERRORS.get(fault, 0)
        self._chip.is_impostor = fault is Fault.IMPOSTOR

    def clear_fault(self) -> None:
        super().clear_fault()
        self._chip.errno = 0
        self._chip.is_impostor = False
        self._chip.power_on()


class Bme280Part(I2cPart[Bme280Chip]):
    """The chip in a housing that is open to the air."""

    def __init__(self, settings: Bme280Settings, bench: SimulatedBench) -> None:
        super().__init__(settings, bench, lambda: Bme280Chip(bench.rng))

    def follow(self, state: SlopeState) -> None:
        if self.fault is None:
            air = state.air
            self._chip.air = (air.temp_c, air.pressure_hpa * 100, air.humidity_pct)


class TiltPart(BreakablePart):
    """Measures gravity along the axes of the tilted ground."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.IMPOSTOR,
        Fault.IO_ERROR,
    })

    def __init__(self, chip: AccelerometerChip) -> None:
        super().__init__()
        self._chip = chip

    def follow(self, state: SlopeState) -> None:
        if self.fault is None:
            self._chip.accel_g = gravity_g(state.tilt_x_deg, state.tilt_y_deg)
            self._chip.temp_c = state.temp_c

    def inject_fault(self, fault: Fault) -> None:
        """Break the chip."""
        super().inject_fault(fault)
        self._set(fault)

    def clear_fault(self) -> None:
        super().clear_fault()
        self._set(None)
        self._chip.power_on()

    def _set(self, fault: Fault | None) -> None:
        self._chip.is_dead = fault is Fault.DEAD
        self._chip.is_stuck = fault is Fault.STUCK
        self._chip.is_impostor = fault is Fault.IMPOSTOR
        self._chip.fail_bus(is_failing=fault is Fault.IO_ERROR)
        if fault is Fault.IMPOSTOR:
            self._chip.power_on()


class MurataPart(TiltPart):
    """An SCL3300 or SCA3300."""

    faults: ClassVar[frozenset[Fault]] = TiltPart.faults | {
        Fault.GARBLED,
        Fault.SATURATED,
    }

    def __init__(self, settings: MurataSettings, bench: SimulatedBench) -> None:
        self._murata = MurataChip(settings, bench.rng, bench.pin_factory)
        super().__init__(self._murata)

    def _set(self, fault: Fault | None) -> None:
        super()._set(fault)
        self._murata.is_garbled = fault is Fault.GARBLED
        self._murata.is_saturated = fault is Fault.SATURATED


def adxl355_part(settings: TiltSettings, bench: SimulatedBench) -> TiltPart:
    """An ADXL355."""
    return TiltPart(Adxl355Chip(settings.device, bench.rng, bench.pin_factory))


def adxl345_part(settings: TiltSettings, bench: SimulatedBench) -> TiltPart:
    """An ADXL345."""
    return TiltPart(Adxl345Chip(settings.device, bench.rng, bench.pin_factory))


def gravity_g(x_deg: float, y_deg: float) -> tuple[float, float, float]:
    """Gravity along the three axes of a sensor whose x and y axes are so tilted."""
    x, y = math.sin(math.radians(x_deg)), math.sin(math.radians(y_deg))
    return x, y, math.sqrt(max(1 - x * x - y * y, 0.0))


class Lis3dhPart(I2cPart[Lis3dhChip]):
    """Measures gravity along the axes of the tilted ground."""

    def __init__(self, settings: Lis3dhSettings, bench: SimulatedBench) -> None:
        super().__init__(settings, bench, lambda: Lis3dhChip(bench.rng))

    def follow(self, state: SlopeState) -> None:
        if self.fault is None:
            self._chip.accel_g = gravity_g(state.tilt_x_deg, state.tilt_y_deg)
            self._chip.temp_c = state.temp_c


_ALWAYS = 1_000_000_000
_NOISE = 1e-4  # of the range
_BEYOND = 0.1  # of the range


class SerialDevice(Protocol):
    """A device on a serial line."""

    ignored_requests: int
    corrupt_answers: int

    def answer(self, request: bytes) -> bytes:
        """The answer to a request."""


AnySerialDevice = TypeVar("AnySerialDevice", bound=SerialDevice)


class SerialPart(BreakablePart, Generic[AnySerialDevice]):
    """One number of a probe, which sensors with other numbers of it share."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.GARBLED,
        Fault.SATURATED,
        Fault.DISCONNECTED,
    })

    def __init__(
        self,
        settings: ScaledSettings,
        bench: SimulatedBench,
        place: tuple[str, object],
        make: Callable[[], AnySerialDevice],
    ) -> None:
        super().__init__()
        self._settings = settings
        self._rng = bench.rng
        self._line = bench.buses.line(place[0])
        devices: dict[object, Any] = bench.chips
        if place not in devices:
            devices[place] = make()
            self._line.devices.append(devices[place].answer)
        self._device: AnySerialDevice = devices[place]

    def set_number(self, number: float) -> None:
        """Answer with a number from now on."""
        raise NotImplementedError

    @property
    def saturated_number(self) -> float:
        """The number of a probe whose element is broken."""
        s = self._settings
        return unscale(s, s.high + _BEYOND * (s.high - s.low))

    def follow(self, state: SlopeState) -> None:
        if self.fault is None:
            s = self._settings
            noise = self._rng.gauss(0, _NOISE) * (s.high - s.low)
            value = min(max(expected_reading(s, state) + noise, s.low), s.high)
            self.set_number(unscale(s, value))

    def inject_fault(self, fault: Fault) -> None:
        """Break the probe, its element, its cable, or the adapter."""
        super().inject_fault(fault)
        self._device.ignored_requests = _ALWAYS * (fault is Fault.DEAD)
        self._device.corrupt_answers = _ALWAYS * (fault is Fault.GARBLED)
        self._line.is_plugged = fault is not Fault.DISCONNECTED
        if fault is Fault.SATURATED:
            self.set_number(self.saturated_number)

    def clear_fault(self) -> None:
        super().clear_fault()
        self._device.ignored_requests = self._device.corrupt_answers = 0
        self._line.is_plugged = True


class ModbusPart(SerialPart[ModbusSlave]):
    """One number in the registers of a probe."""

    def __init__(self, settings: ModbusSettings, bench: SimulatedBench) -> None:
        place = (settings.port, settings.address)
        super().__init__(settings, bench, place, lambda: ModbusSlave(place[1]))
        self._form = (settings.register, settings.type, settings.order)

    def set_number(self, number: float) -> None:
        """Put a number into the registers."""
        register, kind, order = self._form
        self._device.set_number(register, number, kind, order)


_BROKEN_ELEMENT = -9999.0


class Sdi12Part(SerialPart[Sdi12Sensor]):
    """One value of a probe."""

    def __init__(self, settings: Sdi12Settings, bench: SimulatedBench) -> None:
        place = (settings.port, settings.address)
        super().__init__(settings, bench, place, lambda: Sdi12Sensor(place[1]))
        self._command, self._value = settings.command, settings.value

    @property
    def saturated_number(self) -> float:
        """Value of many probes with a broken element."""
        return _BROKEN_ELEMENT

    def set_number(self, number: float) -> None:
        """Give a number for the command's value."""
        values = list(self._device.values.get(self._command, ()))
        values += [0.0] * (self._value - len(values))
        values[self._value - 1] = number
        self._device.values[self._command] = tuple(values)


PARTS: Mapping[str, ConnectPart] = {
    "adxl345": adxl345_part,
    "bme280": Bme280Part,
    "lis3dh": Lis3dhPart,
    "modbus": ModbusPart,
    "sca3300": MurataPart,
    "scl3300": MurataPart,
    "sdi12": Sdi12Part,
    "tilt": adxl355_part,
}

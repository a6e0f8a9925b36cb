"""Simulated buses and pins of one board, and the base of the parts that are on them.

`SimulatedBuses` (I2C, serial lines, files and gpsd) implements `Buses`; a
`SimulatedPart` attaches simulated chips and devices to them.
`SlopePinFactory` has pins that wires can hold, and an SPI bus that belongs to one
board. gpiozero's `MockFactory` does not suit a simulation that runs for days: its
software SPI bus is shared between factories and needs a global one, a pull-up moves a
pin that a wire holds, and it keeps every edge in memory.
"""

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from threading import RLock
from typing import Any, ClassVar, Protocol

from gpiozero.pins import SPI, PinInfo
from gpiozero.pins.mock import MockFactory, MockPin

from edge_agent.sensors.buses import SerialSettings, check_same_settings
from edge_agent.sensors.generic_probe import ProbeSettings, ScaledSettings
from edge_agent.simulator.slope import SlopeState

AnswerRequest = Callable[[bytes], bytes]
"""Answer of a serial device to a request; empty for no answer."""


class SimulatedI2cChip(Protocol):
    """A chip on I2C."""

    def read(self, register: int, count: int) -> bytes:
        """Read registers.

        Raises:
            OSError: It does not answer.
        """

    def write(self, register: int, data: bytes) -> None:
        """Write registers.

        Raises:
            OSError: It does not answer.
        """


class RegisterChip:
    """Base of the chips: a register file.

    Attributes:
        registers: 256 bytes, all zero at first.
        is_dead: Whether it does not answer, as without power.
    """

    def __init__(self) -> None:
        self.registers = bytearray(256)
        self.is_dead = False

    def read(self, register: int, count: int) -> bytes:
        """Read consecutive registers."""
        self._answer()
        self.measure(register)
        return bytes(self.registers[register : register + count])

    def write(self, register: int, data: bytes) -> None:
        """Write consecutive registers."""
        self._answer()
        self.registers[register : register + len(data)] = data
        self.command(register, data)

    def measure(self, register: int) -> None:
        """Update the registers before a read that starts at one of them."""

    def command(self, register: int, data: bytes) -> None:
        """Execute the command in a write of registers."""

    def _answer(self) -> None:
        if self.is_dead:
            raise no_acknowledge_error()


def no_acknowledge_error() -> OSError:
    """The kernel's error for an address without an acknowledge."""
    return OSError(errno.EREMOTEIO, "Remote I/O error")


class SimulatedI2c:
    """One bus: chips by address."""

    def __init__(self) -> None:
        self.chips: dict[int, SimulatedI2cChip] = {}
        self._lock = RLock()

    def exclusive(self) -> RLock:
        return self._lock

    def read(self, address: int, register: int, count: int) -> bytes:
        """Read registers of the chip at an address."""
        with self._lock:
            return self._chip(address).read(register, count)

    def write(self, address: int, register: int, data: bytes) -> None:
        """Write registers of the chip at an address."""
        with self._lock:
            self._chip(address).write(register, data)

    def _chip(self, address: int) -> SimulatedI2cChip:
        if address not in self.chips:
            raise no_acknowledge_error()
        return self.chips[address]


class SimulatedSerial:
    """One line, whose devices all receive every request.

    Attributes:
        is_plugged: Whether the adapter is there.
    """

    def __init__(self) -> None:
        self.devices: list[AnswerRequest] = []
        self.is_plugged = True
        self.settings: SerialSettings | None = None
        self._lock = RLock()

    def exclusive(self) -> RLock:
        return self._lock

    def query(
        self, request: bytes, is_complete: Callable[[bytes], bool], timeout_s: float
    ) -> bytes:
        """The answers of the devices, at once.

        Raises:
            OSError: The adapter is not there.
        """
        with self._lock:
            if not self.is_plugged or not self.devices:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            return b"".join(answer(request) for answer in self.devices)


class SimulatedBuses:
    """All buses of one board.

    Attributes:
        files: Makers of the text of each file that is there, by path.
        disk_bytes: Available and total bytes of every disk.
        gpsd_report: Makes gpsd's report; None where no gpsd runs.
    """

    def __init__(self) -> None:
        self.files: dict[str, Callable[[], str]] = {}
        self.disk_bytes = (20_000_000_000, 32_000_000_000)
        self.gpsd_report: Callable[[], str] | None = None
        self._i2c: dict[int, SimulatedI2c] = {}
        self._serial: dict[str, SimulatedSerial] = {}

    def attach_i2c(self, bus: int, address: int, chip: SimulatedI2cChip) -> None:
        """Put a chip on a bus; several sensors may share it."""
        self.i2c(bus).chips[address] = chip

    def attach_serial(self, port: str, answer: AnswerRequest) -> None:
        """Put a device on a line; several may share it."""
        self.line(port).devices.append(answer)

    def line(self, port: str) -> SimulatedSerial:
        """The line of a port, for parts: with or without a device on it."""
        return self._serial.setdefault(port, SimulatedSerial())

    def i2c(self, number: int) -> SimulatedI2c:
        return self._i2c.setdefault(number, SimulatedI2c())

    def serial(self, port: str, settings: SerialSettings) -> SimulatedSerial:
        """One line.

        Raises:
            OSError: Another sensor uses it with other settings.
        """
        line = self.line(port)
        line.settings = line.settings or settings
        check_same_settings(port, line.settings, settings)
        return line

    def read_file(self, path: str) -> str:
        """Text of a file.

        Raises:
            OSError: It is not there.
        """
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.files[path]()

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self.disk_bytes

    def poll_gpsd(self) -> str:
        """The report of gpsd.

        Raises:
            OSError: No gpsd runs.
        """
        if self.gpsd_report is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return self.gpsd_report()


class WiredPin(MockPin):  # type: ignore[misc]  # gpiozero ships no types
    """A pin that an external wire may hold high or low against its pull.

    Attributes:
        on_drive: Called with each level that the pin is driven to as an output.
    """

    def __init__(self, factory: "SlopePinFactory", info: PinInfo) -> None:
        self._held: bool | None = None
        self._at_s: float | None = None
        self.on_drive: Callable[[bool], object] | None = None
        super().__init__(factory, info)

    def hold(self, level: bool, at_s: float | None = None) -> None:
        """Connect the pin to a level, as a wire to ground or a switch does.

        Args:
            level: High or low.
            at_s: When, if not at the factory's time.
        """
        self._held = level
        self._at_s = at_s
        self._settle()

    def release(self) -> None:
        """Disconnect: the pull decides."""
        self._held = None
        self._settle()

    def _set_pull(self, value: str) -> None:
        self._pull = value
        self._settle()

    def _set_state(self, value: int) -> None:
        super()._set_state(value)
        if self.on_drive is not None:
            self.on_drive(bool(value))

    def _call_when_changed(self) -> None:
        at_s = self.factory.ticks() if self._at_s is None else self._at_s
        super(MockPin, self)._call_when_changed(at_s, self._state)

    def _settle(self) -> None:
        if self._function != "input":
            return
        level = self._held
        if level is None:
            level = {"up": True, "down": False}.get(self._pull, self._state)
        if level:
            self.drive_high()
        else:
            self.drive_low()
        self.clear_states()  # a history of edges would grow for months


class WiredSpi(SPI):  # type: ignore[misc]  # gpiozero ships no types
    """SPI in mode 0 or 3, clocked out on the pins of one factory."""

    def __init__(
        self,
        *,
        clock_pin: int,
        mosi_pin: int,
        miso_pin: int,
        select_pin: int,
        pin_factory: "SlopePinFactory",
    ) -> None:
        self._pins: tuple[Any, ...] = ()
        self._clock_mode = 0
        super().__init__(pin_factory=pin_factory)
        names = (clock_pin, mosi_pin, miso_pin, select_pin)
        pin_factory.reserve_pins(self, *names)
        self._pins = tuple(pin_factory.pin(name) for name in names)
        clock, mosi, miso, select = self._pins
        miso.function = "input"
        for pin, idle in ((clock, 0), (mosi, 0), (select, 1)):
            pin.function = "output"
            pin.state = idle

    def transfer(self, data: Sequence[int]) -> list[int]:
        """Exchange bytes, most significant bit first.

        Raises:
            OSError: The bus to this select fails.
        """
        clock, select = self._pins[0], self._pins[3]
        with self.pin_factory.bus_lock:
            if select.info.name in self.pin_factory.failing_selects:
                raise OSError(errno.EIO, "Input/output error")
            clock.state = self._clock_mode >> 1
            select.state = 0
            words = [self._exchange(word) for word in data]
            select.state = 1
            for pin in self._pins:
                pin.clear_states()
        return words

    def close(self) -> None:
        if self._pins:
            self.pin_factory.release_all(self)
        self._pins = ()
        super().close()

    @property
    def closed(self) -> bool:
        """Whether the pins are given back."""
        return not self._pins

    def _exchange(self, word: int) -> int:
        clock, mosi, miso, _ = self._pins
        answer = 0
        for shift in range(7, -1, -1):
            clock.state = 0
            mosi.state = (word >> shift) & 1
            clock.state = 1
            answer = answer << 1 | miso.state
        if self._clock_mode == 0:  # in mode 3 it rests high, where it is
            clock.state = 0
        return answer

    def _get_clock_mode(self) -> int:
        return self._clock_mode

    def _set_clock_mode(self, value: int) -> None:
        if value not in {0, 3}:  # the two that sample on a rising clock
            raise ValueError(f"clock mode must be 0 or 3, got {value}")
        self._clock_mode = value

    def _get_bits_per_word(self) -> int:
        return 8

    @staticmethod
    def _conflicts_with(other: object) -> bool:
        return not isinstance(other, WiredSpi)


class SlopePinFactory(MockFactory):  # type: ignore[misc]  # gpiozero ships no types
    """A `MockFactory` whose pins, bus and time are its own.

    Attributes:
        bus_lock: Held during a transfer.
        failing_selects: Names of select pins whose transfers fail with EIO.
        now_s: Time at the pins, in seconds of the slope; parts set it, so that a
            storm of hours that is simulated in a second has its own gaps.
    """

    def __init__(self) -> None:
        super().__init__(pin_class=WiredPin)
        self.bus_lock = RLock()
        self.failing_selects: set[str] = set()
        self.now_s = 0.0

    def ticks(self) -> float:
        """The slope's time."""
        return self.now_s

    def _get_spi_class(self, shared: bool, hardware: bool) -> type[WiredSpi]:
        return WiredSpi


class Fault(Enum):
    """Kind of fault; `SimulatedPart.faults` lists those that a part supports.

    A part with any of them but ``NOISY`` and ``FLAPPING`` does not follow the
    slope until the fault is cleared.
    """

    DEAD = "dead"
    """Without power: a chip answers nothing, for every sensor on it."""

    STUCK = "stuck"
    """Repeats its last value."""

    NOISY = "noisy"
    """Follows the slope with far too much noise."""

    FLAPPING = "flapping"
    """A contact that closes far more often than anything moves it."""

    SHORTED = "shorted"
    """Both conductors of the cable touch."""

    DISCONNECTED = "disconnected"
    """The cable hangs free."""

    SATURATED = "saturated"
    """The input is driven to the end of its range."""

    UPSCALE = "upscale"
    """A transmitter that signals its own failure with a current above its range."""

    IO_ERROR = "io error"
    """The bus itself fails: each transfer raises EIO."""

    GARBLED = "garbled"
    """Answers arrive with wrong bits."""

    UNCONVERTED = "unconverted"
    """Answers with its power-on value: it measured nothing."""

    IMPOSTOR = "impostor"
    """Another chip at the same address."""


@dataclass(frozen=True)
class SimulatedBench:
    """Pins and buses that parts are wired to.

    Attributes:
        pin_factory: The pins and SPI.
        rng: Source of noise.
        buses: I2C, serial ports, files and gpsd.
        chips: Chips that several sensors share, by a key of the part's choice.
    """

    pin_factory: SlopePinFactory
    rng: random.Random
    buses: SimulatedBuses
    chips: dict[object, Any] = field(default_factory=dict)

    def pin(self, number: int) -> WiredPin:
        """The pin of a BCM number."""
        pin: WiredPin = self.pin_factory.pin(number)
        return pin


class SimulatedPart(Protocol):
    """Simulated counterpart of one sensor."""

    @property
    def faults(self) -> frozenset[Fault]:
        """The supported faults."""

    def follow(self, state: SlopeState) -> None:
        """Update it to a state of the slope.

        Counters, such as rain, start with the first call; a slope that went back
        in time adds nothing.
        """

    def inject_fault(self, fault: Fault) -> None:
        """Inject one of its `faults`."""

    def clear_fault(self) -> None:
        """Clear the fault; a chip restarts as after power-on."""


ConnectPart = Callable[[Any, SimulatedBench], SimulatedPart]
"""Makes the part of a sensor from its settings and wires it to a bench."""


class BreakablePart:
    """Base class that stores the injected fault.

    Attributes:
        faults: The supported faults.
        fault: The injected fault; None for none.
    """

    faults: ClassVar[frozenset[Fault]] = frozenset({Fault.DEAD, Fault.STUCK})

    def __init__(self) -> None:
        self.fault: Fault | None = None

    def inject_fault(self, fault: Fault) -> None:
        """Inject a fault."""
        self.fault = fault

    def clear_fault(self) -> None:
        """Clear the fault."""
        self.fault = None


_BY_UNIT: Mapping[str, Callable[[SlopeState], float]] = {
    "/": lambda state: state.vwc,
    "/100": lambda state: state.vwc * 100,
    "%RH": lambda state: state.air.humidity_pct,
    "Cel": lambda state: state.temp_c,
    "Pa": lambda state: state.pore_kpa * 1000,
    "deg": lambda state: state.tilt_x_deg,
    "hPa": lambda state: state.pore_kpa * 10,
    "m": lambda state: state.groundwater_m,
    "mm": lambda state: state.displacement_mm,
    "mm/h": lambda state: state.velocity_mm_per_h,
}


def expected_reading(settings: ProbeSettings, state: SlopeState) -> float:
    """The expected reading of a probe, clamped to its range.

    A unit without a counterpart on the slope gives the middle of the range.
    """
    low, high = settings.range
    value = _BY_UNIT.get(settings.unit)
    if value is None:
        return (low + high) / 2
    return min(max(value(state), low), high)


def unscale(settings: ScaledSettings, value: float) -> float:
    """The probe's raw number for a reading (inverse calibration)."""
    return (value - settings.offset) / settings.scale

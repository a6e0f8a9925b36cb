"""A probe on RS-485 that speaks Modbus RTU: one number in one or two registers."""

from collections.abc import Mapping
from dataclasses import dataclass

from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.bus_errors import naming
from edge_agent.sensors.buses import LineSettings
from edge_agent.sensors.errors import SensorBusError
from edge_agent.sensors.modbus_rtu import (
    ORDERS,
    READ_HOLDING,
    READ_INPUT,
    TYPES,
    DamagedError,
    RefusedError,
    decode,
    is_whole,
    number,
    registers_of,
    request,
)
from edge_agent.sensors.probe import ScaledSettings, reading
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

_FUNCTIONS = (READ_HOLDING, READ_INPUT)
_BAUD = (1200, 2400, 4800, 9600, 19200, 38400, 57600, 115200)
_ATTEMPTS = 3  # no answer now and then is usual on RS-485
_SILENCE_S = 0.1  # longer than 3.5 characters, as slow probes need
_REMEDY = "check power, A and B, the terminators, the address and the baud rate"


@dataclass(frozen=True)
class ModbusSettings(ScaledSettings):
    """Keys of kind ``modbus``."""

    port: str = key(Rule("Device of the line; best a name in /dev/serial/by-id."))
    address: int = key(Rule("Address of the probe.", low=1, high=247))
    function: int = key(
        Rule("3 for holding registers, 4 for inputs.", choices=_FUNCTIONS), READ_HOLDING
    )
    register: int = key(
        Rule("First register, counted from 0 as on the wire.", low=0, high=65535)
    )
    type: str = key(Rule("What the registers hold.", choices=tuple(TYPES)), "int16")
    order: str = key(
        Rule("Order of the bytes; A is the highest.", choices=tuple(ORDERS)), "ABCD"
    )
    baud: int = key(Rule("Speed.", unit="bit/s", choices=_BAUD), 9600)
    parity: str = key(Rule("Parity.", choices=("none", "even", "odd")), "none")
    stop_bits: int = key(Rule("Stop bits.", choices=(1, 2)), 1)
    timeout_s: float = key(
        Rule("Longest wait for an answer.", unit="s", low=0.05, high=5), 1.0
    )

    def __post_init__(self) -> None:
        """Refuse a number that reaches beyond the last register."""
        super().__post_init__()
        last = self.register + registers_of(self.type) - 1
        if last > 65535:  # noqa: PLR2004 - the last one
            raise FieldError("register", f"at most 65534 for {self.type}", last)

    @property
    def claims(self) -> tuple[str, ...]:
        """The first register; a probe may have other sensors at other ones."""
        register = f"function {self.function} register {self.register}"
        return (f"{self.port} address {self.address} {register}",)

    @property
    def line(self) -> LineSettings:
        """How the line is spoken on."""
        return LineSettings("Modbus", self.baud, self.parity, self.stop_bits)

    @property
    def shares(self) -> Mapping[str, str]:
        """The line, on which all must speak alike."""
        return {self.port: str(self.line)}


class ModbusProbe(Described):
    """Asks for its registers, again when the answer is lost or damaged."""

    def __init__(self, settings: ModbusSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        s = self._settings = settings
        self._line = hardware.buses.serial(s.port, s.line)
        self._sleep = hardware.sleep
        self._place = f"Modbus {s.address} on {s.port}"
        count = registers_of(s.type)
        self._request = request(s.address, s.function, s.register, count)

    def read(self, now_s: float) -> list[Reading]:
        """The probe's number, in the installer's unit.

        Raises:
            SensorBusError: It does not answer, or refuses.
            SensorRangeError: It answers what cannot be.
        """
        data = self._asked()
        return [reading(self._settings, self._number(data))]

    def _number(self, data: bytes) -> float:
        return number(data, self._settings.type, self._settings.order)

    def _asked(self) -> bytes:
        said = "does not answer"
        for _ in range(_ATTEMPTS):
            answer = self._exchange()
            try:
                return decode(answer, self._request)
            except DamagedError as error:
                said = str(error) if answer else "does not answer"
            except RefusedError as error:
                raise self._wrong(str(error), "check function and register") from error
        raise self._wrong(said, _REMEDY)

    def _exchange(self) -> bytes:
        with naming(self.name, self._place, _REMEDY), self._line.held():
            self._sleep(_SILENCE_S)
            return self._line.ask(self._request, is_whole, self._settings.timeout_s)

    def _wrong(self, reason: str, remedy: str) -> SensorBusError:
        return SensorBusError(self.name, f"{self._place} {reason}", remedy)

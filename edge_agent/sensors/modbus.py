"""Modbus RTU probe on RS-485: one number in one or two registers.

The framing is written here instead of taken from minimalmodbus or pymodbus: both
open the port themselves, while here probes of several kinds share one line, real or
simulated. Only two functions of the protocol are needed.

Source: MODBUS application protocol V1.1b3, 6.3, 6.4 and 7; MODBUS over serial line
V1.02, 2.5.1 and 6.2.2 (CRC).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from edge_agent.sensors.base import (
    BaseSensor,
    DamagedAnswerError,
    Hardware,
    SensorBusError,
    bus_errors_as_sensor_errors,
)
from edge_agent.sensors.buses import SerialSettings
from edge_agent.sensors.generic_probe import CountedTotal, CountingProbeSettings
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

READ_HOLDING, READ_INPUT = 3, 4
_EXCEPTION = 0x80
_SHORTEST, _EXCEPTION_BYTES = 5, 5

EXCEPTIONS = {
    1: "illegal function",
    2: "illegal data address",
    3: "illegal data value",
    4: "device failure",
    5: "acknowledge, still busy",
    6: "device busy",
    8: "memory parity error",
    10: "gateway path unavailable",
    11: "gateway target does not respond",
}

NUMBER_TYPES = {
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "float32": ">f",
}
BYTE_ORDERS = {
    "ABCD": (0, 1, 2, 3), "CDAB": (2, 3, 0, 1),
    "BADC": (1, 0, 3, 2), "DCBA": (3, 2, 1, 0),
}  # fmt: skip
"""Positions of the bytes A B C D of a number, most significant first."""


class ModbusAnswerError(DamagedAnswerError):
    """An answer is incomplete, from another device, or has a wrong CRC."""


class ModbusExceptionError(ValueError):
    """The probe answered with an exception.

    Attributes:
        code: Its number.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        name = EXCEPTIONS.get(code, "unknown exception")
        super().__init__(f"refuses with exception {code}, {name}")


def modbus_crc(data: bytes) -> bytes:
    """The two CRC bytes that end a frame, low byte first."""
    crc = 0xFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
    return crc.to_bytes(2, "little")


def encode_request(address: int, function: int, register: int, count: int) -> bytes:
    """Encode the request for registers."""
    body = struct.pack(">BBHH", address, function, register, count)
    return body + modbus_crc(body)


def is_complete(frame: bytes) -> bool:
    """Whether a frame is complete, by its length field."""
    if len(frame) < _SHORTEST:
        return False
    is_exception = bool(frame[1] & _EXCEPTION)
    return len(frame) >= (_EXCEPTION_BYTES if is_exception else frame[2] + 5)


def decode(frame: bytes, sent: bytes) -> bytes:
    """The register bytes of an answer.

    Args:
        frame: The received bytes.
        sent: The request.

    Raises:
        ModbusAnswerError: It is not a complete answer to that request.
        ModbusExceptionError: The probe answered with an exception.
    """
    if not is_complete(frame):
        raise ModbusAnswerError(f"answers only {len(frame)} bytes: {frame.hex(' ')}")
    if modbus_crc(frame[:-2]) != frame[-2:]:
        raise ModbusAnswerError(f"answers with a wrong CRC: {frame.hex(' ')}")
    if frame[0] != sent[0] or frame[1] & ~_EXCEPTION != sent[1]:
        raise ModbusAnswerError(f"answers for another device: {frame.hex(' ')}")
    if frame[1] & _EXCEPTION:
        raise ModbusExceptionError(frame[2])
    wanted = 2 * int.from_bytes(sent[4:6])
    if frame[2] != wanted:
        raise ModbusAnswerError(f"answers {frame[2]} bytes of registers, not {wanted}")
    return frame[3:-2]


def count_registers(number_type: str) -> int:
    """Number of registers that a number type occupies."""
    return struct.calcsize(NUMBER_TYPES[number_type]) // 2


def decode_number(data: bytes, number_type: str, order: str = "ABCD") -> float:
    """The number in one or two registers.

    Args:
        data: Two or four bytes, as they came.
        number_type: One of `NUMBER_TYPES`.
        order: One of `BYTE_ORDERS`; for one register only the order of A and B matters.
    """
    places = [at for at in BYTE_ORDERS[order] if at < len(data)]
    if len(data) == 2:  # noqa: PLR2004 - one register
        places = [0, 1] if order in {"ABCD", "CDAB"} else [1, 0]
    sorted_data = bytes(data[at] for at in places)
    return float(struct.unpack(NUMBER_TYPES[number_type], sorted_data)[0])


_FUNCTIONS = (READ_HOLDING, READ_INPUT)
_BAUD = (1200, 2400, 4800, 9600, 19200, 38400, 57600, 115200)
_ATTEMPTS = 3  # an occasional missing answer is normal on RS-485
_FEW_ATTEMPTS, _LONG_TIMEOUT_S = 2, 2.0  # within the deadline of a reading
_SILENCE_S = 0.1  # longer than 3.5 characters, as slow probes need
_REMEDY = (
    "check power, A and B, the terminators, the address and the baud rate; "
    "raise timeout_s for a slow probe"
)


@dataclass(frozen=True)
class ModbusSettings(CountingProbeSettings):
    """Keys of kind ``modbus``."""

    port: str = key(KeyRule("Device of the line; best a name in /dev/serial/by-id."))
    address: int = key(KeyRule("Address of the probe.", low=1, high=247))
    function: int = key(
        KeyRule("3 for holding registers, 4 for inputs.", choices=_FUNCTIONS),
        READ_HOLDING,
    )
    register: int = key(
        KeyRule("First register, counted from 0 as on the wire.", low=0, high=65535)
    )
    type: str = key(
        KeyRule("What the registers hold.", choices=tuple(NUMBER_TYPES)), "int16"
    )
    order: str = key(
        KeyRule("Order of the bytes; A is the highest.", choices=tuple(BYTE_ORDERS)),
        "ABCD",
    )
    baud: int = key(KeyRule("Speed.", unit="bit/s", choices=_BAUD), 9600)
    parity: str = key(KeyRule("Parity.", choices=("none", "even", "odd")), "none")
    stop_bits: int = key(KeyRule("Stop bits.", choices=(1, 2)), 1)
    timeout_s: float = key(
        KeyRule("Longest wait for an answer.", unit="s", low=0.05, high=5), 1.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.register + count_registers(self.type) - 1
        if last > 65535:  # noqa: PLR2004 - the last one
            raise FieldError("register", f"at most 65534 for {self.type}", last)

    @property
    def claims(self) -> tuple[str, ...]:
        register = f"function {self.function} register {self.register}"
        return (f"{self.port} address {self.address} {register}",)

    @property
    def serial_settings(self) -> SerialSettings:
        """Settings of the serial line."""
        return SerialSettings("Modbus", self.baud, self.parity, self.stop_bits)

    @property
    def shared_places(self) -> Mapping[str, str]:
        return {self.port: str(self.serial_settings)}

    @property
    def line(self) -> str:
        return self.port


class ModbusProbe(BaseSensor):
    """Requests its registers, again if the answer is lost or corrupt."""

    def __init__(self, settings: ModbusSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        s = self._settings = settings
        self._total = CountedTotal(settings, hardware.get_state)
        self._line = hardware.buses.serial(s.port, s.serial_settings)
        self._sleep = hardware.sleep
        self._place = f"Modbus {s.address} on {s.port}"
        count = count_registers(s.type)
        self._request = encode_request(s.address, s.function, s.register, count)

    def read(self, now_s: float) -> list[Reading]:
        """The probe's number, in the installer's unit.

        Raises:
            SensorBusError: It does not answer, or answers with an exception.
            SensorRangeError: The value is outside the configured range.
        """
        data = self._request_registers()
        return [self._total.reading(self._number(data))]

    def state(self) -> dict[str, str]:
        """Last number of a counter, and its conversion."""
        return self._total.state()

    def _number(self, data: bytes) -> float:
        return decode_number(data, self._settings.type, self._settings.order)

    def _request_registers(self) -> bytes:
        damage = ""
        is_slow = self._settings.timeout_s > _LONG_TIMEOUT_S
        for _ in range(_FEW_ATTEMPTS if is_slow else _ATTEMPTS):
            answer = self._exchange()
            try:
                return decode(answer, self._request)
            except ModbusAnswerError as error:
                damage = f" correctly: it {error}" if answer else ""
            except ModbusExceptionError as error:
                raise self._wrong(str(error), "check function and register") from error
        # Noise changes between none and each kind of damage: all are one fault.
        raise self._wrong("does not answer", _REMEDY, damage)

    def _exchange(self) -> bytes:
        with (
            bus_errors_as_sensor_errors(self.name, self._place, _REMEDY),
            self._line.exclusive(),
        ):
            self._sleep(_SILENCE_S)
            return self._line.query(
                self._request, is_complete, self._settings.timeout_s
            )

    def _wrong(self, reason: str, remedy: str, answer: str = "") -> SensorBusError:
        return SensorBusError(
            self.name, f"{self._place} {reason}", remedy, answer=answer
        )

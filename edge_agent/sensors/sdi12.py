"""SDI-12 probe, through an adapter on a serial line.

Source: SDI-12 specification 1.4 (2019), 4.4 commands and responses, and its CRC.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from edge_agent.sensors.base import (
    BaseSensor,
    DamagedAnswerError,
    Hardware,
    SensorBusError,
    bus_errors_as_sensor_errors,
)
from edge_agent.sensors.buses import SerialLine, SerialSettings
from edge_agent.sensors.generic_probe import CountedTotal, CountingProbeSettings
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

_ACKNOWLEDGED = re.compile(r"(?P<seconds>\d{3})(?P<count>\d)")
_VALUE = re.compile(r"[+-](?:\d+\.?\d*|\.\d+)")
_VALUES = re.compile(rf"(?:{_VALUE.pattern})*")
_END = b"\r\n"
_CRC_CHARACTERS = 3


class Sdi12AnswerError(DamagedAnswerError):
    """An answer is incomplete, from another device, or has a wrong CRC."""


@dataclass(frozen=True)
class Announcement:
    """Answer of a probe to a measuring command.

    Attributes:
        wait_s: Longest time until its values are ready.
        count: How many there will be.
    """

    wait_s: float
    count: int


def measure_command(address: str, number: int, *, with_crc: bool) -> bytes:
    """``aM!``, ``aMC!``, ``aM1!`` .. ``aMC9!``."""
    which = str(number) if number else ""
    return f"{address}M{'C' if with_crc else ''}{which}!".encode("ascii")


def data_command(address: str, page: int) -> bytes:
    """``aD0!`` .. ``aD9!``."""
    return f"{address}D{page}!".encode("ascii")


def is_complete(answer: bytes) -> bool:
    """Whether a line is complete."""
    return answer.endswith(_END)


def sdi12_crc(text: str) -> str:
    """The three characters that end an answer to ``aMC!``."""
    crc = 0
    for byte in text.encode("ascii"):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
    return "".join(chr(0x40 | six) for six in (crc >> 12, crc >> 6 & 0x3F, crc & 0x3F))


def decode_body(answer: bytes, command: bytes) -> str:
    """Text after the probe's address in its answer.

    An echo of the command by the adapter is removed.

    Raises:
        Sdi12AnswerError: It is not a complete line of that probe.
    """
    line = answer.removeprefix(command)
    text = line.decode("latin-1")
    if not is_complete(line) or not text.isascii():
        raise Sdi12AnswerError(f"answers no whole line: {answer!r}")
    if text[0] != chr(command[0]):
        raise Sdi12AnswerError(f"answers for another device: {answer!r}")
    return text[1 : -len(_END)]


def decode_announcement(answer: bytes, command: bytes) -> Announcement:
    """Decode the waiting time and the number of values from ``atttn``.

    Raises:
        Sdi12AnswerError: The answer has another form.
    """
    found = _ACKNOWLEDGED.fullmatch(decode_body(answer, command))
    if found is None:
        raise Sdi12AnswerError(f"must announce seconds and a count, got {answer!r}")
    return Announcement(float(found["seconds"]), int(found["count"]))


def decode(answer: bytes, command: bytes, *, with_crc: bool) -> list[float]:
    """The values of one ``aD0!``, such as ``0+3.14-2``.

    Raises:
        Sdi12AnswerError: The CRC is wrong, or the values are not numbers.
    """
    body = decode_body(answer, command)
    if with_crc:
        body, crc = body[:-_CRC_CHARACTERS], body[-_CRC_CHARACTERS:]
        if crc != sdi12_crc(chr(command[0]) + body):
            raise Sdi12AnswerError(f"answers with a wrong CRC: {answer!r}")
    if not _VALUES.fullmatch(body):
        raise Sdi12AnswerError(f"must answer signed numbers, got {answer!r}")
    return [float(value) for value in _VALUE.findall(body)]


T = TypeVar("T")

_BAUD = (1200, 9600, 19200, 115200)
_ATTEMPTS = 3
_PAGES = 10  # aD0! to aD9!
_ANSWER_S = 1.0  # the probe begins within 15 ms; the adapter adds its own
_REMEDY = "check 12 V, the data line, the address and the adapter"


def check_sdi12_address(address: str) -> str:
    """Check an SDI-12 address, one character.

    Raises:
        FieldError: It is none.
    """
    if not re.fullmatch(r"[0-9A-Za-z]", address):
        raise FieldError("address", "one of 0-9 A-Z a-z", address)
    return address


@dataclass(frozen=True)
class Sdi12Settings(CountingProbeSettings):
    """Keys of kind ``sdi12``."""

    port: str = key(KeyRule("Device of the adapter; best a name in /dev/serial/by-id."))
    address: str = key(KeyRule("Address of the probe.", check=check_sdi12_address), "0")
    command: int = key(KeyRule("0 for aM!, 1 to 9 for aM1! to aM9!.", low=0, high=9), 0)
    value: int = key(KeyRule("Which of the probe's values, from 1.", low=1, high=9), 1)
    crc: bool = key(
        KeyRule("Whether to ask for a CRC, aMC!; old probes have none."), True
    )
    baud: int = key(KeyRule("Speed of the adapter.", unit="bit/s", choices=_BAUD), 9600)
    longest_wait_s: float = key(
        KeyRule("Longest measurement to wait for.", unit="s", low=1, high=25), 15.0
    )

    @property
    def claims(self) -> tuple[str, ...]:
        value = f"command {self.command} value {self.value}"
        return (f"{self.port} address {self.address} {value}",)

    @property
    def serial_settings(self) -> SerialSettings:
        """Settings of the serial line."""
        return SerialSettings("SDI-12", self.baud)

    @property
    def shared_places(self) -> Mapping[str, str]:
        return {self.port: str(self.serial_settings)}

    @property
    def line(self) -> str:
        return self.port


class _Finished(NamedTuple):
    """The last finished measurement of a probe, which keeps its values.

    Attributes:
        number: Of the measurement; grows.
        command: That started it.
        values: Number of its values.
    """

    number: int
    command: bytes
    values: int


_finished: WeakKeyDictionary[SerialLine, dict[str, _Finished]] = WeakKeyDictionary()
"""By line and address; changed by the sensor that has the line to itself."""

_numbers = count(1)


class Sdi12Probe(BaseSensor):
    """Starts a measurement, waits for the announced time, and fetches the values.

    Sensors of one probe that are read at once share a measurement: one after the other
    would take longer than the deadline of a reading.
    """

    def __init__(self, settings: Sdi12Settings, hardware: Hardware) -> None:
        super().__init__(settings)
        s = self._settings = settings
        self._total = CountedTotal(settings, hardware.get_state)
        self._line = hardware.buses.serial(s.port, s.serial_settings)
        self._place = f"SDI-12 {s.address} on {s.port}"
        self._finished = _finished.setdefault(self._line, {})

    def read(self, now_s: float) -> list[Reading]:
        """The chosen value, in the installer's unit.

        Raises:
            SensorBusError: The probe does not answer, or gives fewer values.
            SensorRangeError: The value is outside the configured range.
        """
        wanted, before = self._settings.value, self._last_number()
        # another command on the line would end the measurement
        with (
            bus_errors_as_sensor_errors(self.name, self._place, _REMEDY),
            self._line.exclusive(),
        ):
            values = self._measured(wanted, before)
        if len(values) < wanted:
            raise self._wrong(
                f"gives {len(values)} values, and value is {wanted}",
                "check command and value, or wait for the probe to warm up",
            )
        return [self._total.reading(values[wanted - 1])]

    def state(self) -> dict[str, str]:
        """Last number of a counter, and its conversion."""
        return self._total.state()

    def _last_number(self) -> int:
        last = self._finished.get(self._settings.address)
        return 0 if last is None else last.number

    def _measured(self, wanted: int, before: int) -> list[float]:
        """Values of a measurement that ends after the one with a number."""
        s = self._settings
        command = measure_command(s.address, s.command, with_crc=s.crc)
        last = self._finished.get(s.address)
        if last is None or last.number <= before or last.command != command:
            last = self._measure(command)
        values: list[float] = []
        for page in range(_PAGES):
            if len(values) >= min(wanted, last.values):
                break
            more = self._page(page)
            if not more:
                break
            values += more
        return values

    def _measure(self, command: bytes) -> _Finished:
        address = self._settings.address
        self._finished.pop(address, None)  # the probe forgets its values
        announcement = self._query(
            command, lambda answer: decode_announcement(answer, command)
        )
        self._wait(announcement)
        number = next(_numbers)
        done = self._finished[address] = _Finished(number, command, announcement.count)
        return done

    def _wait(self, announcement: Announcement) -> None:
        limit_s = self._settings.longest_wait_s
        if announcement.wait_s > limit_s:
            raise self._wrong(
                f"needs {announcement.wait_s:g} s, "
                f"more than longest_wait_s ({limit_s:g} s)",
                "raise longest_wait_s, or choose another command",
            )
        if announcement.wait_s:
            # the probe sends its address if it is ready earlier
            self._line.query(b"", is_complete, announcement.wait_s)

    def _page(self, page: int) -> list[float]:
        command = data_command(self._settings.address, page)
        crc = self._settings.crc
        return self._query(
            command, lambda answer: decode(answer, command, with_crc=crc)
        )

    def _query(self, command: bytes, parse: Callable[[bytes], T]) -> T:
        damage = ""
        for _ in range(_ATTEMPTS):
            answer = self._line.query(command, is_complete, _ANSWER_S)
            try:
                return parse(answer)
            except Sdi12AnswerError as error:
                damage = f" correctly: it {error}" if answer else ""
        # Noise changes between none and each kind of damage: all are one fault.
        raise self._wrong("does not answer", _REMEDY, damage)

    def _wrong(self, reason: str, remedy: str, answer: str = "") -> SensorBusError:
        return SensorBusError(
            self.name, f"{self._place} {reason}", remedy, answer=answer
        )

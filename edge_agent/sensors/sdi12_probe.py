"""A probe that speaks SDI-12, through an adapter on a serial line."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.bus_errors import naming
from edge_agent.sensors.buses import LineSettings
from edge_agent.sensors.errors import SensorBusError
from edge_agent.sensors.probe import ScaledSettings, reading
from edge_agent.sensors.sdi12 import (
    Announced,
    DamagedError,
    announced,
    data_command,
    decode,
    is_whole,
    measure_command,
)
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

T = TypeVar("T")

_BAUD = (1200, 9600, 19200, 115200)
_ATTEMPTS = 3
_PAGES = 10  # aD0! to aD9!
_ANSWER_S = 1.0  # the probe begins within 15 ms; the adapter adds its own
_REMEDY = "check 12 V, the data line, the address and the adapter"


def check_address(address: str) -> str:
    """Let one character of SDI-12's addresses through.

    Raises:
        FieldError: It is none.
    """
    if not re.fullmatch(r"[0-9A-Za-z]", address):
        raise FieldError("address", "one of 0-9 A-Z a-z", address)
    return address


@dataclass(frozen=True)
class Sdi12Settings(ScaledSettings):
    """Keys of kind ``sdi12``."""

    port: str = key(Rule("Device of the adapter; best a name in /dev/serial/by-id."))
    address: str = key(Rule("Address of the probe.", check=check_address), "0")
    command: int = key(Rule("0 for aM!, 1 to 9 for aM1! to aM9!.", low=0, high=9), 0)
    value: int = key(Rule("Which of the probe's values, from 1.", low=1, high=9), 1)
    crc: bool = key(Rule("Whether to ask for a CRC, aMC!; old probes have none."), True)
    baud: int = key(Rule("Speed of the adapter.", unit="bit/s", choices=_BAUD), 9600)
    longest_wait_s: float = key(
        Rule("Longest measurement to wait for.", unit="s", low=1, high=25), 15.0
    )

    @property
    def claims(self) -> tuple[str, ...]:
        """The value; a probe may have other sensors for its other ones."""
        value = f"command {self.command} value {self.value}"
        return (f"{self.port} address {self.address} {value}",)

    @property
    def line(self) -> LineSettings:
        """How the line is spoken on."""
        return LineSettings("SDI-12", self.baud)

    @property
    def shares(self) -> Mapping[str, str]:
        """The line, on which all must speak alike."""
        return {self.port: str(self.line)}


class Sdi12Probe(Described):
    """Lets the probe measure, waits as long as it says, and fetches the values."""

    def __init__(self, settings: Sdi12Settings, hardware: Hardware) -> None:
        super().__init__(settings)
        s = self._settings = settings
        self._line = hardware.buses.serial(s.port, s.line)
        self._place = f"SDI-12 {s.address} on {s.port}"

    def read(self, now_s: float) -> list[Reading]:
        """The chosen value, in the installer's unit.

        Raises:
            SensorBusError: The probe does not answer, or gives fewer values.
            SensorRangeError: It answers what cannot be.
        """
        wanted = self._settings.value
        # another command on the line would end the measurement
        with naming(self.name, self._place, _REMEDY), self._line.held():
            values = self._measured(wanted)
        if len(values) < wanted:
            raise self._wrong(
                f"gives {len(values)} values, and value is {wanted}",
                "check command and value, or wait for the probe to warm up",
            )
        return [reading(self._settings, values[wanted - 1])]

    def _measured(self, wanted: int) -> list[float]:
        s = self._settings
        command = measure_command(s.address, s.command, with_crc=s.crc)
        said = self._asked(command, lambda answer: announced(answer, command))
        self._wait(said)
        values: list[float] = []
        for page in range(_PAGES):
            if len(values) >= min(wanted, said.count):
                break
            more = self._page(page)
            if not more:
                break
            values += more
        return values

    def _wait(self, said: Announced) -> None:
        limit_s = self._settings.longest_wait_s
        if said.wait_s > limit_s:
            raise self._wrong(
                f"needs {said.wait_s:g} s, more than longest_wait_s ({limit_s:g} s)",
                "raise longest_wait_s, or choose another command",
            )
        if said.wait_s:
            # it says its address when it is ready before that
            self._line.ask(b"", is_whole, said.wait_s)

    def _page(self, page: int) -> list[float]:
        command = data_command(self._settings.address, page)
        crc = self._settings.crc
        return self._asked(command, lambda seen: decode(seen, command, with_crc=crc))

    def _asked(self, command: bytes, parse: Callable[[bytes], T]) -> T:
        said = "does not answer"
        for _ in range(_ATTEMPTS):
            answer = self._line.ask(command, is_whole, _ANSWER_S)
            try:
                return parse(answer)
            except DamagedError as error:
                said = str(error) if answer else "does not answer"
        raise self._wrong(said, _REMEDY)

    def _wrong(self, reason: str, remedy: str) -> SensorBusError:
        return SensorBusError(self.name, f"{self._place} {reason}", remedy)

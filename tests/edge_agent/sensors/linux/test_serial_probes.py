import os
import threading
import tty
from collections.abc import Callable, Iterator

import pytest

from edge_agent.sensors.base import Hardware, SensorBusError
from edge_agent.sensors.linux import LinuxBuses
from edge_agent.sensors.modbus import ModbusProbe, ModbusSettings
from edge_agent.sensors.sdi12 import Sdi12Probe, Sdi12Settings
from edge_agent.simulator.digital_parts import ModbusSlave, Sdi12Sensor

pytest.importorskip("serial")

SOIL = {
    "kind": "modbus", "name": "soil", "address": 3, "register": 7, "unit": "/",
    "measures": "water content", "scale": 0.001, "low": 0.0, "high": 0.7,
    "type": "uint16", "timeout_s": 0.3,
}  # fmt: skip
TENSION = {
    "kind": "sdi12", "name": "tension", "address": "2", "unit": "Pa",
    "measures": "water potential", "scale": 1000.0, "low": -1e5, "high": 1e4,
}  # fmt: skip


class PseudoTerminal:
    """A pseudo terminal of the kernel with a simulated device at its far end."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._end, self._keep = os.openpty()
        tty.setraw(self._end)
        self.path = os.ttyname(self._keep)
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Unplug the adapter."""
        os.close(self._keep)  # the far end reads an error, and its thread ends
        self._thread.join()
        os.close(self._end)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._end, 100)
            except OSError:
                return
            os.write(self._end, self._answer(request))


@pytest.fixture
def buses() -> Iterator[LinuxBuses]:
    """The real buses."""
    linux_buses = LinuxBuses(late_s=0.3)
    yield linux_buses
    linux_buses.close()


def test_modbus_probe_over_a_real_line(buses: LinuxBuses) -> None:
    """Driver, adapter, pyserial and the kernel's line discipline together."""
    slave = ModbusSlave(3)
    slave.set_number(7, 312, "uint16", "ABCD")
    terminal = PseudoTerminal(slave.answer)
    settings = ModbusSettings(**SOIL, port=terminal.path)  # type: ignore[arg-type]
    sensor = ModbusProbe(settings, Hardware(None, lambda _: None, buses=buses))
    assert sensor.read(0.0)[0].value == 0.312
    slave.ignored_requests, slave.corrupt_answers = 1, 1
    assert sensor.read(0.0)[0].value == 0.312
    slave.registers.clear()
    with pytest.raises(SensorBusError, match="exception 2, illegal data address"):
        sensor.read(0.0)
    slave.ignored_requests = 3
    with pytest.raises(SensorBusError, match="does not answer"):
        sensor.read(0.0)
    buses.close()
    terminal.close()


def test_late_answer_is_no_value_of_another_sensor_of_the_probe(
    buses: LinuxBuses,
) -> None:
    """Modbus answers do not name their register; the first two come too late."""
    slave, delays_s = ModbusSlave(3), [1.2, 1.2]
    slave.registers = {7: 312, 8: 185}

    def answer_late(request: bytes) -> bytes:
        threading.Event().wait(delays_s.pop(0) if delays_s else 0.0)
        return slave.answer(request)

    terminal = PseudoTerminal(answer_late)
    hardware = Hardware(None, lambda _: None, buses=buses)
    one, other = (
        ModbusProbe(
            ModbusSettings(
                **SOIL | {"register": register, "timeout_s": 1.0},  # type: ignore[arg-type]
                port=terminal.path,
            ),
            hardware,
        )
        for register in (7, 8)
    )
    assert [each.read(0.0)[0].value for each in (one, other)] == [0.312, 0.185]
    buses.close()
    terminal.close()


@pytest.mark.parametrize("echoes", [False, True])
def test_sdi12_probe_over_a_real_line(buses: LinuxBuses, echoes: bool) -> None:
    """With an adapter that echoes requests and one that does not."""
    probe = Sdi12Sensor("2")
    probe.values = {0: (-12.5, 17.25)}

    def adapter(request: bytes) -> bytes:
        return request * echoes + probe.answer(request)

    terminal = PseudoTerminal(adapter)
    settings = Sdi12Settings(**TENSION, port=terminal.path)  # type: ignore[arg-type]
    sensor = Sdi12Probe(settings, Hardware(None, lambda _: None, buses=buses))
    assert sensor.read(0.0)[0].value == -12_500.0
    buses.close()
    terminal.close()

"""All buses of this machine; each is opened once, when a sensor first asks."""

import threading

from edge_agent.sensors.buses import LineSettings, agree
from edge_agent.sensors.linux.files import LinuxFiles
from edge_agent.sensors.linux.gpsd import LinuxGpsd
from edge_agent.sensors.linux.i2c import LinuxI2c
from edge_agent.sensors.linux.serial_line import LinuxSerialLine


class LinuxBuses:
    """The owner of the buses: two sensors on one bus get one and the same object."""

    def __init__(
        self, files: LinuxFiles | None = None, gpsd: LinuxGpsd | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._i2c: dict[int, LinuxI2c] = {}
        self._lines: dict[str, LinuxSerialLine] = {}
        self._files = files or LinuxFiles()
        self._gpsd = gpsd or LinuxGpsd()

    def i2c(self, number: int) -> LinuxI2c:
        """The bus ``/dev/i2c-<number>``."""
        with self._lock:
            if number not in self._i2c:
                self._i2c[number] = LinuxI2c(number)
            return self._i2c[number]

    def serial(self, port: str, settings: LineSettings) -> LinuxSerialLine:
        """The line at a device path."""
        with self._lock:
            line = self._lines.get(port)
            if line is None:
                line = self._lines[port] = LinuxSerialLine(port, settings)
        agree(port, line.settings, settings)
        return line

    def file(self, path: str) -> str:
        """Text of a file of the kernel."""
        return self._files.read(path)

    def disk(self, path: str) -> tuple[int, int]:
        """Bytes free for us, and in all."""
        return self._files.disk(path)

    def gpsd(self) -> str:
        """What the daemon answers to a poll."""
        return self._gpsd.poll()

    def close(self) -> None:
        """Give every bus back."""
        for bus in self._i2c.values():
            bus.close()
        for line in self._lines.values():
            line.close()
        self._gpsd.close()

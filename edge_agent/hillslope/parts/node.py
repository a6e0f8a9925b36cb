"""The machine in its box on the slope, as its kernel shows it."""

from collections.abc import Callable
from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.node_health import NodeSettings

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

    def __init__(self, settings: NodeSettings, bench: Bench) -> None:
        super().__init__()
        self._device = settings.device
        self._files = bench.buses.files
        self._began_s: float | None = None
        self._up_s = 0.0
        self._cpu_c = 40.0
        self.mend()

    def move(self, state: SlopeState) -> None:
        """Follow the air, and grow older."""
        if self.fault is None:
            self._began_s = state.time_s if self._began_s is None else self._began_s
            self._up_s = max(state.time_s - self._began_s, 0.0)
            self._cpu_c = state.air.temp_c + _WARMER_C

    def fail(self, fault: Fault) -> None:
        """Sag under a bad supply, or tell nothing."""
        super().fail(fault)
        if fault is Fault.DEAD:
            for path in self._made():
                self._files.pop(path, None)
        elif fault is Fault.SATURATED:
            self._power = _UNDER_VOLTAGE

    def mend(self) -> None:
        """Mount everything, on a good supply."""
        super().mend()
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

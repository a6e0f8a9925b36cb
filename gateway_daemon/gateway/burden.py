"""Puts together what a gateway tells of its load."""

from collections.abc import Callable, Sequence

from gateway_daemon.gateway.lanes import Lanes
from gateway_daemon.gateway.meter import Cpu, Meter
from gateway_daemon.load import LaneLoad, Load
from spatial_mqtt.directory import BrokerInfo


class Burden:
    """Tells the load of a gateway whenever it is asked to.

    Args:
        gateway: Its public address.
        lanes: Where messages wait.
        meter: Counts what is taken.
        cpu: How busy the machine is.
        tell: Who hears it.
    """

    def __init__(
        self,
        gateway: BrokerInfo,
        lanes: Lanes,
        meter: Meter,
        cpu: Cpu,
        tell: Sequence[Callable[[Load], object]],
    ) -> None:
        self._gateway = gateway
        self._lanes = lanes
        self._meter = meter
        self._cpu = cpu
        self._tell = tuple(tell)

    def beat(self) -> None:
        """Tell it."""
        taken = self._meter.look()
        lanes = tuple(
            LaneLoad(
                broker,
                sum(depth.rows for depth in fill.stats.depth.values()),
                round(max(fill.ages_s.values(), default=0.0), 3),
            )
            for broker, fill in self._lanes.fills().items()
            if broker is not None
        )
        load = Load(self._gateway, taken.per_s, self._cpu.look(), taken.cells, lanes)
        for tell in self._tell:
            tell(load)

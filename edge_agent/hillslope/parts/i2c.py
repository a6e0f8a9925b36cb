"""What parts on I2C share: chips by address, and how a bus fails."""

import errno
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from edge_agent.hillslope.chips.i2c import FailingChip
from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart

_ERRORS = {Fault.DEAD: errno.EREMOTEIO, Fault.IO_ERROR: errno.EIO}


class Placed(Protocol):
    """Settings of a chip on I2C."""

    @property
    def bus(self) -> int:
        """Number of the bus."""

    @property
    def address(self) -> int:
        """Address on it."""


AnyChip = TypeVar("AnyChip", bound=FailingChip)


class I2cPart(BreakablePart, Generic[AnyChip]):
    """A chip that sensors at the same address share; its death is theirs."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.IO_ERROR,
        Fault.IMPOSTOR,
    })

    def __init__(
        self, settings: Placed, bench: Bench, make: Callable[[], AnyChip]
    ) -> None:
        super().__init__()
        key = (f"I2C{settings.bus}", settings.address)
        chips: dict[object, Any] = bench.chips
        if key not in chips:
            chips[key] = make()
            bench.buses.attach_i2c(settings.bus, settings.address, chips[key])
        self._chip: AnyChip = chips[key]

    def fail(self, fault: Fault) -> None:
        """Break the chip, for every sensor on it, or stop following the slope."""
        super().fail(fault)
        self._chip.errno = _ERRORS.get(fault, 0)
        self._chip.is_impostor = fault is Fault.IMPOSTOR

    def mend(self) -> None:
        """Power a new chip on."""
        super().mend()
        self._chip.errno = 0
        self._chip.is_impostor = False
        self._chip.power_on()

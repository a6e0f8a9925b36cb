"""What all chips on SPI0 share: their place on the bus, and death."""

import random

from gpiozero.pins.mock import MockSPIDevice

from edge_agent.hillslope.pins import SlopeFactory

CLOCK_PIN, MOSI_PIN, MISO_PIN = 11, 10, 9
SELECT_PINS = (8, 7)


class SpiChip(MockSPIDevice):  # type: ignore[misc]  # gpiozero ships no types
    """A chip behind one select pin.

    It models the part, not the calls of a driver: an accelerometer that was never
    switched on measures nothing, a dead chip leaves the line low.

    Attributes:
        is_dead: Whether it is without power.
    """

    def __init__(
        self,
        device: int,
        rng: random.Random,
        pin_factory: SlopeFactory,
        clock_mode: int = 0,
    ) -> None:
        self.is_dead = False
        self._rng = rng
        self._factory = pin_factory
        super().__init__(
            CLOCK_PIN,
            MOSI_PIN,
            MISO_PIN,
            SELECT_PINS[device],
            clock_polarity=bool(clock_mode & 2),
            clock_phase=bool(clock_mode & 1),
            pin_factory=pin_factory,
        )
        if self.select_pin.function == "input":
            self.select_pin.pull = "up"  # as the Pi's own: nobody is selected

    def fail_bus(self, *, is_failing: bool) -> None:
        """Make every transfer to this select an I/O error, or stop doing so."""
        selects = self._factory.failing_selects
        if is_failing:
            selects.add(self.select_pin.info.name)
        else:
            selects.discard(self.select_pin.info.name)

    def power_on(self) -> None:
        """Come up as after power-on."""

    def on_bit(self) -> None:
        """Listen to a bit, unless dead: then nothing is ever sent."""
        if not self.is_dead:
            self._listen()

    def _listen(self) -> None:
        """Do what the bits received so far ask for."""

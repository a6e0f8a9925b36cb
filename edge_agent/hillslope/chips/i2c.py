"""Registers of a chip on I2C, behind a bus that can fail."""

import os

from edge_agent.hillslope.buses import RegisterChip


class FailingChip(RegisterChip):
    """Registers behind a bus that can fail.

    Attributes:
        errno: The kernel's number of the failure; 0 while it is well.
        is_impostor: Whether another chip is soldered in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errno = 0
        self.is_impostor = False
        self.power_on()

    def power_on(self) -> None:
        """Stand as after power-on."""
        self.registers[:] = bytes(256)

    def _answer(self) -> None:
        super()._answer()
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno))

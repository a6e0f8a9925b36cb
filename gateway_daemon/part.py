"""What runs beside a gateway or a Manager."""

from typing import Protocol


class Part(Protocol):
    """Something that runs beside the main loop."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""

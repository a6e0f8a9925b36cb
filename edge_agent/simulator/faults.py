"""Faults that can be injected into a simulated part."""

from enum import Enum


class Fault(Enum):
    """Kind of fault; `SimulatedPart.faults` lists those that a part supports.

    A part with any of them but ``NOISY`` and ``FLAPPING`` does not follow the
    slope until the fault is cleared.
    """

    DEAD = "dead"
    """Without power: a chip answers nothing, for every sensor on it."""

    STUCK = "stuck"
    """Repeats its last value."""

    NOISY = "noisy"
    """Follows the slope with far too much noise."""

    FLAPPING = "flapping"
    """A contact that closes far more often than anything moves it."""

    SHORTED = "shorted"
    """Both conductors of the cable touch."""

    DISCONNECTED = "disconnected"
    """The cable hangs free."""

    SATURATED = "saturated"
    """The input is driven to the end of its range."""

    UPSCALE = "upscale"
    """A transmitter that signals its own failure with a current above its range."""

    IO_ERROR = "io error"
    """The bus itself fails: each transfer raises EIO."""

    GARBLED = "garbled"
    """Answers arrive with wrong bits."""

    UNCONVERTED = "unconverted"
    """Answers with its power-on value: it measured nothing."""

    IMPOSTOR = "impostor"
    """Another chip at the same address."""

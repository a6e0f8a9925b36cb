"""Faults that can be injected into a simulated part."""

from enum import Enum


class Fault(Enum):
    """A way to be broken. Which of them a part knows is `Part.faults`.

    A part with any of them but ``NOISY`` and ``FLAPPING`` no longer follows the
    slope until it is mended.
    """

    DEAD = "dead"
    """Without power: a chip answers nothing, for every sensor on it."""

    STUCK = "stuck"
    """Says for ever what it said last."""

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
    """A transmitter that tells of its own failure with a current above its range."""

    IO_ERROR = "io error"
    """The bus itself fails: each transfer raises EIO."""

    GARBLED = "garbled"
    """Answers arrive with wrong bits."""

    UNCONVERTED = "unconverted"
    """Answers with what stands in it after power-on: it measured nothing."""

    IMPOSTOR = "impostor"
    """Another chip at the same address."""

"""Takes out of a sensor's tilt what its temperature explains."""

from collections.abc import Sequence
from dataclasses import replace

from edge_agent.triage.recent import Bin
from edge_agent.triage.stored import Json, number_of
from slope_science.thermal import Thermal

_HOUR_S = 3600.0
_X, _Y, _TEMP = 0, 1, 3


class Warmth:
    """What one sensor's tilt does with its temperature.

    Minutes are told as bins of x, y, noise and temperature; a temperature that was
    not read is nan, and then nothing is taken out.
    """

    def __init__(self) -> None:
        self._known = Thermal()
        self._hour = 0
        self._sum = [0.0, 0.0, 0.0, 0.0]
        self._before: tuple[int, list[float]] | None = None

    def learn(self, at_s: float, values: Sequence[float]) -> None:
        """Take a reading; the hours before it are learnt from.

        Also while a level holds: a morning that looks like creep is what there is to
        learn, and some hours of creep change little of what two weeks say.
        """
        hour = int(at_s // _HOUR_S)
        if hour != self._hour:
            self._close()
            self._hour = hour
        told = (values[_X], values[_Y], values[_TEMP], 1.0)
        self._sum = [a + b for a, b in zip(self._sum, told, strict=True)]

    def taken_out(self, bins: Sequence[Bin]) -> list[Bin] | None:
        """The minutes as if the temperature had stood still; None if not known."""
        slope = self._known.deg_per_k
        if slope is None or not bins:
            return None
        first_c = bins[0].values[_TEMP]
        if any(b.values[_TEMP] != b.values[_TEMP] for b in bins):
            return None
        made = []
        for each in bins:
            warmer_k = each.values[_TEMP] - first_c
            x, y = (each.values[at] - slope[at] * warmer_k for at in (_X, _Y))
            made.append(replace(each, values=[x, y, *each.values[2:]]))
        return made

    def out(self) -> Json:
        """For the snapshot."""
        return [float(f"{each:.6g}") for each in vars(self._known).values()]

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot.

        Raises:
            TypeError, ValueError: It is something else.
        """
        self._known = Thermal(*map(number_of, entry))

    def _close(self) -> None:
        *sums, count = self._sum
        self._sum = [0.0, 0.0, 0.0, 0.0]
        if not count:
            return
        means = [each / count for each in sums]
        before, self._before = self._before, (self._hour, means)
        if before is None or before[0] != self._hour - 1:
            return
        x, y, warmer_k = (a - b for a, b in zip(means, before[1], strict=True))
        self._known = self._known.after(warmer_k, x, y)

"""Thermal part of a tilt sensor, and its daily range where that part is unknown.

With a temperature the part that follows it is learnt and removed. The regression uses
changes from hour to hour, so that neither the mounting nor a steady creep enters it.
Without one a sunny morning resembles slow creep. Then a slow rate counts only outside
the range of the sensor's last days, which creep leaves and warming does not. Until a
whole day is known the range is the largest one that warming causes.

Source: zero drift of up to 0.15 mg/K (0.0086 deg/K) of good MEMS accelerometers, and at
most 0.02 deg/K; a daily range of up to 17 K of the housing. The range test is our
proposal.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from slope_science.evidence.detections import Detection, RuleContext
from slope_science.evidence.samples import Json, MinuteBin, SensorSample, finite_number
from slope_science.reasons import Reason

_X, _Y, _TEMP = 0, 1, 3
_HOUR_S = 3600.0
_BLOCK_S = 6 * _HOUR_S
_BLOCKS = 30  # 7 days, and the two that do not count yet
_DAY_S = 24 * _HOUR_S

LEARNING_TIME_H = 14 * 24.0
"""Time constant of the exponential weights."""

MIN_LEARNING_H = 72.0
MIN_TEMPERATURE_K2 = 30.0
"""Minimum sum of squared temperature changes; buried sensors never reach it."""

MAX_DEG_PER_K = 0.02
"""No accelerometer drifts more; a larger slope has another cause."""

MAX_STEP_DEG = 0.05
"""A larger change in an hour is movement and is not used for learning."""


@dataclass(frozen=True)
class ThermalRegression:
    """Regression through zero of tilt changes on temperature changes.

    Attributes:
        hours: Weighted number of changes.
        tt_k2: Sum of squared changes of temperature.
        tx_k_deg: Sum of products of the changes of temperature and x.
        ty_k_deg: The same for y.
    """

    hours: float = 0.0
    tt_k2: float = 0.0
    tx_k_deg: float = 0.0
    ty_k_deg: float = 0.0

    def updated(
        self, change_k: float, x_deg: float, y_deg: float
    ) -> "ThermalRegression":
        """The regression with the changes of one more hour.

        Args:
            change_k: Change of the temperature.
            x_deg: Change of x.
            y_deg: Change of y.
        """
        changes = (change_k, x_deg, y_deg)
        if (
            not all(map(math.isfinite, changes))
            or math.hypot(x_deg, y_deg) > MAX_STEP_DEG
        ):
            return self
        kept = 1 - 1 / LEARNING_TIME_H
        return ThermalRegression(
            self.hours * kept + 1,
            self.tt_k2 * kept + change_k * change_k,
            self.tx_k_deg * kept + change_k * x_deg,
            self.ty_k_deg * kept + change_k * y_deg,
        )

    @property
    def deg_per_k(self) -> tuple[float, float] | None:
        """Tilt of x and y per kelvin; None while the data do not suffice."""
        if self.hours < MIN_LEARNING_H or self.tt_k2 < MIN_TEMPERATURE_K2:
            return None
        x, y = self.tx_k_deg / self.tt_k2, self.ty_k_deg / self.tt_k2
        return (x, y) if math.hypot(x, y) <= MAX_DEG_PER_K else None


WARMTH_DEG_PER_H = 0.1
"""Maximum rate that daily warming causes; a higher one would mean 0.7 deg a day."""

WARMTH_RANGE_DEG = 0.35
"""Maximum daily range that warming causes, used until the sensor's is known."""

MARGIN_SHARE = 0.5
"""Margin on each side of the range of a day, as a share of the range."""

MAX_MARGIN_DEG = 0.05
"""Maximum margin: slow creep must exceed it in the six hours that are left out."""

KICK_DEG = 0.12
"""Minimum change between two readings that counts as a kick."""


class ThermalCompensation:
    """Learns and removes the thermal part of one sensor's tilt.

    Bins hold x, y, noise and temperature. With a missing temperature (nan) nothing is
    removed.
    """

    def __init__(self) -> None:
        self._known = ThermalRegression()
        self._hour = 0
        self._sum = [0.0, 0.0, 0.0, 0.0]
        self._before: tuple[int, list[float]] | None = None

    def add(self, at_s: float, values: Sequence[float]) -> None:
        """Add a reading; completed hours enter the regression.

        Also during a level: thermal drift that resembles creep must be learnt, and some
        hours of real creep change little in two weeks of data.
        """
        hour = int(at_s // _HOUR_S)
        if hour != self._hour:
            self._close()
            self._hour = hour
        total = self._sum
        total[0] += values[_X]
        total[1] += values[_Y]
        total[2] += values[_TEMP]
        total[3] += 1.0

    def is_known(self, bins: Sequence[MinuteBin]) -> bool:
        """Whether the thermal part of readings is removed, or known to be small.

        A slope that is too large for a sensor is not removed, so that it is unknown.
        """
        known = self._known
        if any(math.isnan(b.values[_TEMP]) for b in bins):
            return False
        is_small = known.hours >= MIN_LEARNING_H and known.tt_k2 < MIN_TEMPERATURE_K2
        return is_small or known.deg_per_k is not None

    def axes(self, bins: Sequence[MinuteBin]) -> tuple[list[float], list[float]]:
        """X and y at constant temperature; as read while the slope is unknown."""
        slope = self._known.deg_per_k
        if slope is not None and bins:
            first_c = bins[0].values[_TEMP]
            warmer_k = [b.values[_TEMP] - first_c for b in bins]
            if not math.isnan(sum(warmer_k)):
                pairs = list(zip(bins, warmer_k, strict=True))
                return (
                    [b.values[_X] - slope[_X] * k for b, k in pairs],
                    [b.values[_Y] - slope[_Y] * k for b, k in pairs],
                )
        return [b.values[_X] for b in bins], [b.values[_Y] for b in bins]

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        return [float(f"{each:.6g}") for each in vars(self._known).values()]

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot.

        Raises:
            TypeError, ValueError: The entry has another form.
        """
        self._known = ThermalRegression(*map(finite_number, entry))

    @property
    def deg_per_k(self) -> tuple[float, float] | None:
        """Tilt of x and y per kelvin; None while unknown."""
        return self._known.deg_per_k

    def to_state(self) -> Json:
        """The whole state."""
        before = self._before and [self._before[0], list(self._before[1])]
        known = list(vars(self._known).values())
        return [known, self._hour, list(self._sum), before]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        known, self._hour, total, before = state
        self._known, self._sum = ThermalRegression(*known), list(total)
        self._before = before and (before[0], list(before[1]))

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
        self._known = self._known.updated(warmer_k, x, y)


class DailyRange:
    """Range of one tilt sensor over its last seven days, in blocks of six hours.

    A rule without detections, so that its state is stored beside that of `TiltRule`.

    Attributes:
        rule: Name of the rule in the snapshot.
        sensor: Name of the sensor.
    """

    rule = "tilt_range"

    def __init__(self, sensor: str) -> None:
        self.sensor = sensor
        self._blocks: deque[list[float]] = deque(maxlen=_BLOCKS)
        self._last: tuple[float, float] | None = None
        self._kicked_s = -math.inf

    def on_sample(self, sample: SensorSample) -> None:
        """Add a good reading of both axes."""
        x, y = sample.parts.get("x"), sample.parts.get("y")
        if x is None or y is None or sample.is_doubtful(self._last or ()):
            return
        if self._last and math.dist(self._last, (x, y)) > KICK_DEG:
            self._shift(sample.at_s, x - self._last[0], y - self._last[1])
        self._last = x, y
        number = sample.at_s // _BLOCK_S
        if not self._blocks or self._blocks[-1][0] < number:
            self._blocks.append([number, x, x, y, y])
            return
        block = self._blocks[-1]
        block[1:] = [
            min(block[1], x),
            max(block[2], x),
            min(block[3], y),
            max(block[4], y),
        ]

    def _shift(self, at_s: float, x: float, y: float) -> None:
        """Move the range with a single kick; several within a day are movement."""
        is_single, self._kicked_s = at_s - self._kicked_s > _DAY_S, at_s
        if is_single:
            for block in self._blocks:
                block[1:] = [block[1] + x, block[2] + x, block[3] + y, block[4] + y]

    def known_range(self, now_s: float) -> list[float] | None:
        """Least and greatest x and y with their margin; None before a whole day.

        Blocks of the last six hours do not count, or slow creep would never leave
        its own past.
        """
        number = now_s // _BLOCK_S
        past = [b for b in self._blocks if number - _BLOCKS < b[0] < number - 1]
        if len(past) < _DAY_S / _BLOCK_S + 1:  # the first may be part of a block
            return None
        return _envelope(past)

    def is_outside(self, now_s: float, x: float, y: float) -> bool:
        """Whether a tilt is outside the known or the largest range."""
        known = self.known_range(now_s)
        if known is not None:
            return not (known[0] <= x <= known[1] and known[2] <= y <= known[3])
        number = now_s // _BLOCK_S
        past = [b for b in self._blocks if number - _BLOCKS < b[0]]
        if not past:
            return False
        far_x = max(x - min(b[1] for b in past), max(b[2] for b in past) - x)
        far_y = max(y - min(b[3] for b in past), max(b[4] for b in past) - y)
        return max(far_x, far_y) > WARMTH_RANGE_DEG

    def detect(self, context: RuleContext) -> Sequence[Detection]:
        """None."""
        return ()

    def diagnostics(self) -> Sequence[Reason]:
        """None."""
        return ()

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        return [[round(each, 4) for each in block] for block in self._blocks]

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        blocks = [[finite_number(each) for each in block] for block in entry]
        if any(len(block) != 5 for block in blocks):  # noqa: PLR2004 - number, ranges
            raise ValueError("a block must be a number and two ranges")
        self._blocks = deque(blocks, maxlen=_BLOCKS)

    def to_state(self) -> Json:
        """The whole state."""
        kicked_s = None if math.isinf(self._kicked_s) else self._kicked_s
        last = self._last and list(self._last)
        return [[list(b) for b in self._blocks], last, kicked_s]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        blocks, last, kicked_s = state
        self._blocks = deque((list(b) for b in blocks), maxlen=_BLOCKS)
        self._last = last and (last[0], last[1])
        self._kicked_s = -math.inf if kicked_s is None else kicked_s


def _envelope(blocks: Sequence[Sequence[float]]) -> list[float]:
    found: list[float] = []
    for low_at in (1, 3):
        low, high = min(b[low_at] for b in blocks), max(b[low_at + 1] for b in blocks)
        margin = min(MARGIN_SHARE * (high - low), MAX_MARGIN_DEG)
        found += [low - margin, high + margin]
    return found

"""How fast one sensor tilts over one window of time.

Source: Uchimura et al. 2015 for the rates; persistence and bound of noise are
ours, see docs/reference/triage.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from edge_agent.triage.claim import rung
from edge_agent.triage.recent import Bin, Recent
from edge_agent.triage.settings import TiltRules
from edge_agent.triage.watch import Lasting
from slope_science.levels import LOWEST
from slope_science.steps import without_largest_step
from slope_science.tilt import TiltRate, resolution_deg_per_h, tilt_rate

_HOUR_S = 3600.0

Clean = Callable[[list[Bin]], list[Bin]]
"""Takes out what is no movement."""


@dataclass(frozen=True)
class Span:
    """How long a window is.

    Attributes:
        whole_s: All of it.
        shortest_s: A rate over less is mostly noise.
        bin_s: Readings so close in time count as one.
        step_level: The highest level of a rate that is one single step.
        words: Its length, in a reason; empty for the usual hour.
    """

    whole_s: float
    shortest_s: float
    bin_s: float
    step_level: int
    words: str = ""

    @property
    def enough_s(self) -> float:
        """So much of it says what its noise hides."""
        return self.whole_s * 5 / 6


@dataclass(frozen=True)
class Seen:
    """A rate in a window, and the rung it reaches.

    Attributes:
        rate: The rate.
        level: The level of the rung.
        limit_deg_per_h: Its threshold.
        alone_level: What it comes to while no other sensor confirms it.
    """

    rate: TiltRate
    level: int
    limit_deg_per_h: float
    alone_level: int


class TiltWindow:
    """The last while of one sensor's x, y, noise and temperature.

    Args:
        span: How long it is.
        rules: What a rate is compared with.
        clean: Takes out what is no movement.
    """

    def __init__(self, span: Span, rules: TiltRules, clean: Clean) -> None:
        self.span = span
        self._rules = rules
        self._clean = clean
        self._recent = Recent(span.whole_s, span.bin_s)
        self._lasting = Lasting(rules.persist_s)
        self._was = LOWEST
        self._hidden_deg_per_h: float | None = None

    def take(self, at_s: float, values: Sequence[float], *, is_doubtful: bool) -> None:
        """Remember a reading: x, y, the noise of its burst, its temperature."""
        self._recent.take(at_s, values, is_doubtful=is_doubtful)

    def seen(self, now_s: float) -> list[Seen]:
        """What good readings show, then what doubtful ones add, if more.

        A suspect reading raises nothing alone; with another's sign it does.
        """
        bins = self._bins(now_s, with_doubtful=False)
        rate = self._rate(bins)
        level, limit = self._reached(rate, bins)
        self._hidden_deg_per_h = self._finest(rate, bins, level)
        lasting = self._lasting.take(level, self._levels, now_s)
        # no hysteresis for one lucky window, which would let it persist
        self._was = lasting
        told = []
        if rate is not None and level > LOWEST:
            told.append(Seen(rate, level, limit, min(lasting, self._cap(bins))))
        if self._recent.has_doubtful:
            bins = self._bins(now_s, with_doubtful=True)
            doubted = self._rate(bins)
            high, limit = self._reached(doubted, bins)
            if doubted is not None and high > level:
                told.append(Seen(doubted, high, limit, LOWEST))
        return told

    @property
    def hidden_deg_per_h(self) -> float | None:
        """Slower rates its noise hides; None while it is not whole."""
        return self._hidden_deg_per_h

    @property
    def _levels(self) -> list[int]:
        return [level for level, _ in self._rules.rungs]

    def _bins(self, now_s: float, *, with_doubtful: bool) -> list[Bin]:
        bins = self._recent.bins(with_doubtful=with_doubtful)
        return self._clean([b for b in bins if now_s - self.span.whole_s <= b.at_s])

    def _rate(self, bins: Sequence[Bin]) -> TiltRate | None:
        """Rate of some minutes; None when they span too little."""
        if not bins or bins[-1].at_s - bins[0].at_s < self.span.shortest_s:
            return None
        times_h = [(b.at_s - bins[0].at_s) / _HOUR_S for b in bins]
        x, y = ([b.values[axis] for b in bins] for axis in (0, 1))
        return tilt_rate(times_h, x, y)

    def _reached(self, rate: TiltRate | None, bins: Sequence[Bin]) -> tuple[int, float]:
        """Level and threshold of a rate, which its noise must let us tell."""
        if rate is None:
            return LOWEST, 0.0
        finest = _resolution(bins)
        usable = [each for each in self._rules.rungs if finest <= each[1]]
        found = rung(rate.deg_per_h, usable, self._was, self._rules.clear_share)
        is_clear = rate.exceeds(0.0, self._rules.false_share)
        return found if found and is_clear else (LOWEST, 0.0)

    def _cap(self, bins: Sequence[Bin]) -> int:
        """The level that one single step may reach alone."""
        rest = without_largest_step([[b.values[axis] for b in bins] for axis in (0, 1)])
        creep = tilt_rate([b.at_s / _HOUR_S for b in bins], *rest)
        slow = creep is None or rung(creep.deg_per_h, self._rules.rungs[-1:]) is None
        return self.span.step_level if slow else max(self._levels)

    def _finest(
        self, rate: TiltRate | None, bins: Sequence[Bin], level: int
    ) -> float | None:
        if not bins or bins[-1].at_s - bins[0].at_s < self.span.enough_s:
            return None
        finest = _resolution(bins)
        if rate is not None and level == LOWEST:
            finest = max(finest, 3 * rate.sigma_deg_per_h)
        return finest


def _resolution(bins: Sequence[Bin]) -> float:
    """The slowest tilt that the noise of the bursts lets us tell."""
    sigma_deg = median(b.values[2] / b.count**0.5 for b in bins)
    return resolution_deg_per_h(sigma_deg, [b.at_s / _HOUR_S for b in bins])

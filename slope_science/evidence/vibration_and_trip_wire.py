"""Rules of vibration sensors, which count shocks, and of trip wires, which are cut.

Counts of a single vibration element have no meaning as absolute numbers, so the limit
is median + 8 MAD of its own background.

A cut wire means that a flow or a slide has probably occurred. Animals and falling rock
cut wires too (a deer, Hiroshima 2015), so the level depends on confirmation by another
sensor within two minutes. A flapping contact may be a wire in moving debris: the level
stays, and the reason contains the number of cuts. A cut that nothing confirms stays
shown, but causes sirens for a limited time only.
"""

from collections import deque
from collections.abc import Iterable

from slope_science.evidence.detections import (
    Detection,
    EvidenceKind,
    RuleContext,
    StepTimes,
)
from slope_science.evidence.samples import (
    Json,
    SensorSample,
    finite_number,
    is_finite_number,
    non_negative_number,
    optional_time,
)
from slope_science.evidence.settings import VibrationRuleSettings, WireRuleSettings
from slope_science.levels import EMERGENCY, LOWEST
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason
from slope_science.statistics import background_limit

_WINDOW_S = 600.0
_WINDOWS = 72  # 12 hours
_MAX_COUNT = 1e9  # a broken register may hold any number
MIN_WINDOWS = 18
"""Three hours; minimum length of the background."""

_HOUR_S = 3600.0
_MAX_CUTS = 60
_WHOLE_S = 24 * _HOUR_S
"""A wire that was whole for less continues the same event, such as a loose plug."""


class VibrationRule:
    """Rule for the shocks of one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "vibration"

    def __init__(
        self, sensor: str, rules: VibrationRuleSettings, alone_notice_level: int
    ) -> None:
        self.sensor = sensor
        self._rules = rules
        self._alone_notice_level = alone_notice_level
        self._last_s: float | None = None
        self._felt: tuple[float, float] | None = None  # last interval with shocks
        self._shocks: deque[tuple[float, float]] = deque()
        self._window = 0
        self._open = 0.0
        self._past: deque[float] = deque(maxlen=_WINDOWS)
        self._was = LOWEST

    def on_sample(self, sample: SensorSample) -> None:
        """Count the shocks since the last reading."""
        if sample.is_suspect or not is_finite_number(sample.value):
            return
        count = min(float(sample.value), _MAX_COUNT)  # type: ignore[arg-type]
        if self._last_s is not None and sample.at_s - self._last_s > _WINDOW_S:
            # counted over an outage: take the mean, or it would resemble a burst
            count *= _WINDOW_S / (sample.at_s - self._last_s)
        before_s = self._last_s or sample.at_s - _WINDOW_S
        self._last_s = max(sample.at_s, before_s)
        if count:
            self._felt = max(before_s, self._last_s - _WINDOW_S), self._last_s
        window = int(self._last_s // _WINDOW_S)
        if window != self._window:
            if self._window:
                self._past.append(self._open)
            self._window, self._open = window, 0.0
        self._open += count
        self._shocks.append((self._last_s, count))

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """That the last ten minutes exceed the background."""
        while self._shocks and context.now_s - self._shocks[0][0] >= _WINDOW_S:
            self._shocks.popleft()
        if len(self._past) < MIN_WINDOWS:
            return
        count = sum(each for _, each in self._shocks)
        rules = self._rules
        limit = background_limit(self._past, rules.least_count, rules.mads)
        share = rules.clear_share if self._was > LOWEST else 1.0
        self._was = rules.level if count >= limit * share else LOWEST
        if self._was > LOWEST:
            # what only the hysteresis keeps is no evidence, and nothing confirms it
            is_reached, alone = count >= limit, min(rules.alone_level, rules.level)
            yield Detection(
                self.rule,
                self.sensor,
                rules.level if is_reached else alone,
                Reason(ReasonCode.SHOCKS, sensor=self.sensor, count=count, limit=limit),
                unconfirmed_level=alone if is_reached else None,
                evidence=(EvidenceKind.MOVEMENT,) if is_reached else (),
                since_s=self._felt[0] if self._felt else None,
                alone_notice_level=self._alone_notice_level,
                steps=self._burst(limit),
                is_count=True,
            )

    def diagnostics(self) -> Iterable[Reason]:
        """That the past is too short."""
        if self._last_s is not None and len(self._past) < MIN_WINDOWS:
            hours = MIN_WINDOWS / 6
            yield Reason(ReasonCode.RULE_NEEDS_PAST, rule=self.rule, hours=hours)

    def _burst(self, limit: float) -> StepTimes:
        """The reading without which the shocks are within the limit, if any."""
        last = max(range(len(self._shocks)), key=lambda at: self._shocks[at][1])
        at_s, most = self._shocks[last]
        if sum(count for _, count in self._shocks) - most >= limit:
            return ()
        begin_s = self._shocks[last - 1][0] if last else at_s - _WINDOW_S
        return ((begin_s, at_s),)

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        return {"past": [round(each, 1) for each in self._past], "last": self._last_s}

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        past, last_s = (
            [non_negative_number(each) for each in entry["past"]],
            entry["last"],
        )
        self._last_s = None if last_s is None else finite_number(last_s)
        self._past = deque(past, maxlen=_WINDOWS)

    def to_state(self) -> Json:
        """The whole state."""
        shocks = [list(each) for each in self._shocks]
        counts = [list(self._past), shocks, self._window, self._open]
        return [*counts, self._last_s, self._felt and list(self._felt), self._was]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        past, shocks, self._window, self._open, self._last_s, felt, self._was = state
        self._past = deque(past, maxlen=_WINDOWS)
        self._shocks = deque((at_s, count) for at_s, count in shocks)
        self._felt = felt and (felt[0], felt[1])


class WireRule:
    """Rule for one trip wire.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the wire.
    """

    rule = "wire"

    def __init__(
        self, sensor: str, rules: WireRuleSettings, alone_notice_level: int
    ) -> None:
        self.sensor = sensor
        self._rules = rules
        self._alone_notice_level = alone_notice_level
        self._cut_s: float | None = None
        self._since_s: float | None = None  # first cut after a whole day
        self._mended_s = 0.0
        self._cuts: deque[float] = deque(maxlen=_MAX_CUTS)

    def on_sample(self, sample: SensorSample) -> None:
        """Store the time of the cut."""
        if sample.is_suspect or not isinstance(sample.value, bool):
            return
        if not sample.value:
            if self._cut_s is not None:
                self._mended_s = sample.at_s
            self._cut_s = None
        elif self._cut_s is None:
            self._cut_s = sample.at_s
            self._cuts.append(sample.at_s)
            if self._since_s is None or sample.at_s - self._mended_s > _WHOLE_S:
                self._since_s = sample.at_s

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """That the wire is cut."""
        if self._cut_s is None:
            return
        cuts = sum(context.now_s - at_s <= _HOUR_S for at_s in self._cuts)
        flaps = cuts if cuts > self._rules.flaps_per_h else None
        alone = self._rules.alone_level
        lasted_s = context.now_s - (self._since_s or self._cut_s)
        is_long = lasted_s > self._rules.alone_for_s
        yield Detection(
            self.rule,
            self.sensor,
            EMERGENCY,
            Reason(ReasonCode.WIRE_CUT, sensor=self.sensor, cuts_per_h=flaps),
            unconfirmed_level=alone,
            at_s=self._cut_s,
            evidence=(EvidenceKind.MOVEMENT,),
            confirm_s=self._rules.confirm_s,
            alone_notice_level=self._alone_notice_level if is_long else alone,
            alone_for_h=round(lasted_s / _HOUR_S) if is_long else None,
        )

    def diagnostics(self) -> Iterable[Reason]:
        """None: the driver reports unplugged and shorted wires."""
        return ()

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        return self._cut_s

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        self._cut_s = self._since_s = optional_time(entry)

    def to_state(self) -> Json:
        """The whole state."""
        return [self._cut_s, self._since_s, self._mended_s, list(self._cuts)]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        self._cut_s, self._since_s, self._mended_s, cuts = state
        self._cuts = deque(cuts, maxlen=_MAX_CUTS)

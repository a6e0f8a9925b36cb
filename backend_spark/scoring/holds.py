"""Held levels: while evidence is missing, a level does not fall.

Rain: from the first step with unknown rain, the level by rain is at least that of the
last step with known rain, until an hour of rain is known again; short gaps in that hour
make it as much longer. A step that is not over neither begins nor ends a hold. Other
sensors: a finding of level 3 or more is held from the last sure reading of its sensor,
until the sensor has given sure readings for an hour again.

A hold of a level below 3 ends after a day, because "no criterion was reached" is no
longer known then; that of a higher level ends after `HoldLimits.hold_s`. Without other
evidence the level is unknown after that: null.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any, Final

from backend_spark.scoring.evidence import is_evidence, is_undoubted
from backend_spark.scoring.observation import STEP_S, Observation, step_end_s
from backend_spark.scoring.rain import RainState
from slope_science.levels import LOWEST, WARNING, Finding, noticed
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, reason_from_json, reason_to_json

JUDGED: Final = "judged"
HELD: Final = "held"
UNKNOWN: Final = "unknown"
"""States of a level, as in the column `state` of the table `levels`."""

GRACE_S: Final = 1800
"""Time without evidence after which the state is `held`; the level is held at once."""

RETURN_S: Final = 3600
"""Time of evidence after a gap that ends a hold; one report of a wire is enough."""

LOW_HOLD_S: Final = 24 * 3600
"""Longest hold of a level below 3."""

HOLD_S: Final = 7 * 86_400.0
"""Longest hold of a level from 3 on, where the settings give no other."""

USUAL_INTERVALS: Final = 3
"""A sensor is silent after this many of its usual intervals, and `GRACE_S`."""

USUAL_READINGS: Final = 12
"""Readings whose median interval is the usual one."""


@dataclass(frozen=True)
class HeldLevel:
    """The last judgement before a gap.

    Attributes:
        level: 1 to 5.
        known_until_s: End of its step, Unix time.
        reason: Its first reason as JSON; None at level 1.
        notice_level: Level for notices and sirens; None for `level`.
    """

    level: int
    known_until_s: int
    reason: str | None = None
    notice_level: int | None = None

    @classmethod
    def of(
        cls,
        level: int,
        known_until_s: int,
        reasons: Iterable[Reason],
        notice_level: int | None = None,
    ) -> "HeldLevel":
        """From a judgement; its first reason that is a finding is kept."""
        notes = {ReasonCode.SUSPECT_RAIN, ReasonCode.LOWER_BOUND}
        first = next((r for r in reasons if r.code not in notes), None)
        text = None if first is None or level <= LOWEST else reason_to_json(first)
        return cls(level, known_until_s, text, notice_level)

    def finding(self, sensor: str | None = None) -> Finding:
        """The held level as a finding.

        Args:
            sensor: Node and name of the silent sensor; None for rain.
        """
        because = None if self.reason is None else reason_from_json(self.reason)
        reason = Reason(
            ReasonCode.LEVEL_HELD,
            level=self.level,
            known_until_s=self.known_until_s,
            sensor=sensor,
            because=because,
        )
        return Finding(self.level, reason, self.notice_level)


@dataclass(frozen=True)
class HoldLimits:
    """When holds end without evidence.

    Attributes:
        hold_s: Longest hold of a level from 3 on.
    """

    hold_s: float = HOLD_S

    def is_over(self, held: HeldLevel, at_s: float) -> bool:
        """Whether a hold has ended at a moment."""
        return self.has_ended(held.level, held.known_until_s, at_s)

    def has_ended(self, level: int, known_until_s: float, at_s: float) -> bool:
        """Whether the hold of a level that was last judged at a time has ended."""
        longest_s = self.hold_s if level >= WARNING else min(LOW_HOLD_S, self.hold_s)
        return at_s - known_until_s > longest_s


NO_LIMITS: Final = HoldLimits()


@dataclass(frozen=True)
class PresentLevel:
    """Level of a cell at a moment, computed on reading from its newest row.

    A silent cell has no new rows, so its row says nothing of its silence.

    Attributes:
        level: 1 to 5; None if it is unknown.
        state: `judged`, `held` or `unknown`.
        known_until_s: Unix time of the last judgement, where it is not judged.
    """

    level: int | None
    state: str
    known_until_s: float | None = None

    @classmethod
    def of_row(
        cls,
        row: Mapping[str, Any],
        now_s: float,
        limits: HoldLimits = NO_LIMITS,
        max_age_s: float = GRACE_S,
    ) -> "PresentLevel":
        """From `at`, `level`, `state` and `known_until` of a row of `levels`.

        Args:
            row: The newest row of the cell; times as datetimes or Unix times.
            now_s: The moment, Unix time.
            limits: When holds end.
            max_age_s: Age from which the cell is silent.
        """
        level, at_s = row["level"], _unix_s(row["at"])
        state = row.get("state") or (UNKNOWN if level is None else JUDGED)
        known = row.get("known_until")
        known_s = None if known is None else _unix_s(known)
        if now_s - at_s <= max_age_s:
            return cls(level, state, known_s)
        if state == JUDGED:
            known_s = at_s
        if level is None or known_s is None or limits.has_ended(level, known_s, now_s):
            return cls(None, UNKNOWN, known_s)
        return cls(level, HELD, known_s)


def _unix_s(time: datetime | float) -> float:
    return time.timestamp() if isinstance(time, datetime) else time


@dataclass(frozen=True)
class RainHold:
    """Hold of the level by rain at the end of a step.

    Attributes:
        held: The held judgement; None without a hold. In a saved state the last
            judgement by rain, whether it is held or not.
        is_active: Whether it is held.
        is_long: Whether rain was missing for more than `GRACE_S`.
        known_s: Time of known rain since the gap, less that of short gaps since.
    """

    held: HeldLevel | None = None
    is_active: bool = False
    is_long: bool = False
    known_s: int = 0


NO_HOLD: Final = RainHold()


def rain_holds(
    states: Sequence[RainState],
    judge: Callable[[int], HeldLevel],
    past: RainHold = NO_HOLD,
) -> Iterator[RainHold]:
    """The hold at each step.

    Args:
        states: Rain and soil water at each step.
        judge: Gives the judgement by rain at a step; called in and before gaps only.
        past: The saved hold before the first step.
    """
    hold = past
    for at, rain in enumerate(states):
        if rain.tanks is None:
            hold = NO_HOLD
        elif not rain.is_known and not rain.is_open:
            hold = _in_gap(hold, rain, judge, at)
        elif hold.is_active:
            hold = _after_gap(hold, judge(at), 0 if rain.is_open else STEP_S)
        else:
            hold = NO_HOLD
        yield hold


def _in_gap(
    hold: RainHold, rain: RainState, judge: Callable[[int], HeldLevel], at: int
) -> RainHold:
    held = hold.held
    if not hold.is_active and at > 0:
        held = judge(at - 1)
    # Rain of a substitute may raise the level, and it does not fall after that.
    now = judge(at)
    if held is None:
        held = now
    elif now.level > held.level:
        held = replace(now, known_until_s=held.known_until_s)
    is_long = (hold.is_active and hold.is_long) or rain.gap_s > GRACE_S
    # A reading that is refused now and then must not hold a level for days.
    known_s = max(0, hold.known_s - STEP_S) if rain.gap_s <= GRACE_S else 0
    return RainHold(held, is_active=True, is_long=is_long, known_s=known_s)


def _after_gap(hold: RainHold, now: HeldLevel, more_s: int) -> RainHold:
    known_s = hold.known_s + more_s
    if known_s >= RETURN_S:
        return NO_HOLD
    held = hold.held
    if held is None or now.level > held.level:
        held = now
    return replace(hold, held=held, known_s=known_s)


@dataclass(frozen=True)
class SensorHold:
    """Hold of a sensor's finding.

    Attributes:
        held: The held judgement.
        until_s: Unix time at which it ends; None while the sensor is silent.
        last_s: Unix time of its last sure reading; 0 in states of earlier versions.
        limit_s: Time without a reading from which the sensor is silent.
    """

    held: HeldLevel
    until_s: float | None = None
    last_s: float = 0.0
    limit_s: float = GRACE_S


class SensorHolds:
    """Holds of the sensors other than rain gauges.

    Args:
        observations: Readings of the cell with flags, in time order.
        findings: Gives the findings at the end of a step.
        past: Saved holds by sensor.
        past_s: Unix time at which they were saved.
    """

    def __init__(
        self,
        observations: Iterable[Observation],
        findings: Callable[[int], Iterable[Finding | None]],
        past: Mapping[str, SensorHold] = {},
        past_s: float = float("-inf"),
    ) -> None:
        self._findings = findings
        times: dict[str, list[float]] = {}
        sensors: dict[tuple[str, str, str | None], str | None] = {}
        self._switches: set[str] = set()
        for o in observations:
            key = o.node, o.name, o.unit
            if key not in sensors:
                name = f"{o.node} {o.name.rpartition('/')[0] or o.name}"
                sensors[key] = name if is_evidence(o) else None
            sensor = sensors[key]
            if sensor is not None and is_undoubted(o):
                if o.text is not None:
                    self._switches.add(sensor)
                series = times.setdefault(sensor, [])
                if not series or series[-1] != o.at_s:
                    series.append(o.at_s)
        self._holds = {
            sensor: list(
                self._find(sensor, times.get(sensor, []), past.get(sensor), past_s)
            )
            for sensor in sorted({*times, *past})
        }

    def at(self, end_s: int) -> Mapping[str, tuple[SensorHold, bool]]:
        """Holds at the end of a step by sensor, and whether each gap is a long one."""
        found: dict[str, tuple[SensorHold, bool]] = {}
        for sensor, gaps in self._holds.items():
            active = [gap for gap in gaps if gap.contains(end_s)]
            if active:
                gap = max(active, key=lambda each: each.hold.held.level)
                found[sensor] = gap.hold, gap.is_long(end_s)
        return found

    def saved(self, at_s: int) -> dict[str, SensorHold]:
        """Holds to save with the state at the end of a step."""
        # Also of sensors whose last reading is in that step.
        return {sensor: hold for sensor, (hold, _) in self.at(at_s + 1).items()}

    def _find(
        self, sensor: str, times: list[float], past: SensorHold | None, past_s: float
    ) -> Iterator["_Gap"]:
        """Gaps of a sensor with a held judgement, in time order."""
        gaps: list[_Gap] = []
        return_s = 0 if sensor in self._switches else RETURN_S
        if past is not None:
            back = times[bisect_right(times, past_s) :]
            if past.until_s is not None:
                back_s = past.until_s - return_s
            else:
                back_s = back[0] if back else inf
            if back_s - past.last_s > past.limit_s:
                until_s = _hold_end_s(back_s, return_s)
                gaps.append(_Gap(past_s, replace(past, until_s=until_s), back_s))
        for at, last_s in enumerate(times):
            if at + 1 < len(times) and times[at + 1] - last_s <= GRACE_S:
                continue
            limit_s = _silent_after_s(times[max(0, at - USUAL_READINGS) : at + 1])
            back_s = times[at + 1] if at + 1 < len(times) else inf
            if back_s - last_s > limit_s:
                end_s = step_end_s(last_s)
                held = self._last_finding(sensor, end_s, gaps)
                until_s = _hold_end_s(back_s, return_s)
                if held is not None:
                    hold = SensorHold(held, until_s, last_s, limit_s)
                    gaps.append(_Gap(end_s, hold, back_s))
        yield from gaps

    def _last_finding(
        self, sensor: str, end_s: int, gaps: Iterable["_Gap"]
    ) -> HeldLevel | None:
        """The judgement of a sensor at its last reading, which may be a held one."""
        found = [
            HeldLevel.of(f.level, end_s, [f.reason], f.notice_level)
            for f in self._findings(end_s)
            if f
            and f.level >= WARNING
            and _names(f.reason, sensor)
            # The last report of a wire is complete: what a rule still holds ends.
            and not (sensor in self._switches and _is_past(f.reason))
        ]
        found += [gap.hold.held for gap in gaps if gap.contains(end_s)]
        return max(found, key=lambda each: each.level, default=None)


class StepHolds:
    """All holds of a cell at the end of a step.

    Args:
        rain: Hold of the level by rain.
        sensors: Holds of other sensors, and whether their gaps are long.
        limits: When holds end.
        end_s: End of the step.
    """

    def __init__(
        self,
        rain: RainHold,
        sensors: Mapping[str, tuple[SensorHold, bool]],
        limits: HoldLimits,
        end_s: int,
    ) -> None:
        holds: list[tuple[str | None, HeldLevel, bool]] = [
            (sensor, hold.held, is_long) for sensor, (hold, is_long) in sensors.items()
        ]
        if rain.is_active and rain.held is not None:
            holds.append((None, rain.held, rain.is_long))
        self._rain = rain
        self._holds = [each for each in holds if not limits.is_over(each[1], end_s)]
        self._ended = [held for _, held, _ in holds if limits.is_over(held, end_s)]

    def findings(self, live: int) -> list[Finding]:
        """Findings of the holds: of long gaps, and those above the live level."""
        return [
            held.finding(sensor)
            for sensor, held, is_long in self._holds
            if is_long or held.level > live
        ]

    def noticed(self, live: int, motion: Sequence[Finding | None]) -> list[Finding]:
        """Findings of the holds for notices, without those that a rule still makes.

        Args:
            live: Level for notices without the holds.
            motion: Findings of the rules.
        """
        held = [f for f in self.findings(live) if not _is_live(f, motion)]
        return noticed(held)

    def state(
        self, level: int | None, live: int, source: Reason | None, others: int
    ) -> tuple[str, int | None]:
        """State of the level, and the end of the last judged step if not judged.

        Args:
            level: The level with the holds.
            live: The level without them; 1 without a judgement.
            source: Where the rain is from, if it is not the cell's own.
            others: The level by other evidence than rain.
        """
        rain = self._rain.held.known_until_s if self._rain.held else None
        if level is None:
            return UNKNOWN, rain
        long = [held for _, held, is_long in self._holds if is_long]
        top = max(long, key=lambda h: (h.level, -h.known_until_s), default=None)
        if top is not None and top.level >= live:
            return HELD, top.known_until_s
        if source is not None and self._rain.is_long and others < level:
            return HELD, rain
        return JUDGED, None

    def ended(self) -> tuple[Reason, ...]:
        """Reasons for the holds of level 3 or more that ended without evidence."""
        return tuple(
            Reason(ReasonCode.HOLD_ENDED, level=h.level, known_until_s=h.known_until_s)
            for h in self._ended
            if h.level >= WARNING
        )


@dataclass(frozen=True)
class _Gap:
    """A gap in the readings of a sensor.

    Attributes:
        from_s: End of the step of the last reading before it.
        hold: What is held.
        back_s: Unix time of the first reading after it; infinite without one.
    """

    from_s: float
    hold: SensorHold
    back_s: float

    def contains(self, end_s: float) -> bool:
        """Whether the hold is in force at the end of a step."""
        until_s = self.hold.until_s
        return self.from_s < end_s and (until_s is None or end_s < until_s)

    def is_long(self, end_s: float) -> bool:
        """Whether the sensor has been silent up to a step, or was before it returned.

        What comes after the step does not count, so that a later pass gives the same.
        """
        silent_s = end_s - self.hold.held.known_until_s
        return end_s >= self.back_s or silent_s > self.hold.limit_s


def _hold_end_s(back_s: float, return_s: float) -> float | None:
    """End of the hold of a sensor that returns then; None if it does not."""
    return back_s + return_s if back_s < inf else None


def _silent_after_s(times: Sequence[float]) -> float:
    """Time without a reading from which a sensor with these readings is silent."""
    intervals = [later - earlier for earlier, later in pairwise(times)]
    usual_s = median(intervals) if intervals else 0.0
    return max(float(GRACE_S), USUAL_INTERVALS * usual_s)


def _names(reason: object, sensor: str) -> bool:
    """Whether a reason, or one in it, is of a sensor."""
    if not isinstance(reason, Reason):
        return False
    return reason.params.get("sensor") == sensor or any(
        _names(value, sensor) for value in reason.values
    )


def _is_past(reason: object) -> bool:
    """Whether a reason, or one in it, is of the past."""
    return isinstance(reason, Reason) and (
        reason.code == ReasonCode.HELD or any(map(_is_past, reason.values))
    )


def _is_live(held: Finding, motion: Iterable[Finding | None]) -> bool:
    """Whether a rule still finds what is held, such as a cut of a silent wire."""
    sensor = held.reason.params.get("sensor")
    return isinstance(sensor, str) and any(
        f.level >= held.level and _names(f.reason, sensor) for f in motion if f
    )

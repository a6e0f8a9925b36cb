"""How urgent a reading is: the node's own judgement, without a network.

Pure: readings and the time go in, a priority with its reasons comes out. What
has to outlive the process goes through `Triage.snapshot`.
"""

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slope_science.criteria import DEFAULT_CRITERIA, Criteria
from slope_science.errors import ScienceError
from slope_science.levels import (
    LOWEST,
    Finding,
    judge,
    rain_finding,
    tilt_finding,
    wire_finding,
)
from slope_science.soil_water import SoilWater
from slope_science.tilt import TiltRate, tilt_rate
from spatial_mqtt.envelope import Reading

WHY_CHARS = 200

_MINUTE_S, _STEP_S, _HOUR_S = 60.0, 600.0, 3600.0
_FORGOTTEN_S = 60 * 86400.0  # by then the tanks are empty, as the index's own rule
_WRONG_CLOCK_S = 86400.0  # so far back is a corrected clock, not a late reading
_SHORTEST_SPAN_H = 0.25  # a rate over less is mostly noise
_FORM = 1


class SnapshotError(ValueError):
    """A snapshot does not restore: it is damaged, or of another version.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"triage snapshot must be one of this version: {reason}")


@dataclass(frozen=True)
class Assessment:
    """What the node makes of its readings.

    Attributes:
        priority: For the message that carries them.
        why: The rules behind it, most serious first; None at level 1.
        level: 1 to 5, as in `slope_science.levels`.
    """

    priority: int
    why: str | None
    level: int


@dataclass
class RainMemory:
    """What one gauge's rain left behind.

    Attributes:
        tanks: At the last whole 10 minutes.
        open_mm: Rain since then.
        last_s: Time of the last reading; None before the first.
        last_sum_mm: The gauge's cumulative rain then.
        minutes: Rain of the last hour, by the minute it fell in.
    """

    tanks: SoilWater = field(default_factory=SoilWater)
    open_mm: float = 0.0
    last_s: float | None = None
    last_sum_mm: float | None = None
    minutes: dict[int, float] = field(default_factory=dict)

    @property
    def r60_mm(self) -> float:
        """Rain of the last 60 minutes."""
        return sum(self.minutes.values())

    @property
    def index_mm(self) -> float:
        """Soil water index, with the rain of the step that is still open."""
        return self.tanks.after(self.open_mm).index_mm

    def take(self, reading: Reading, now_s: float) -> None:
        """Add the rain since the gauge's last reading, spread over the time between."""
        depth_mm = self._depth(reading)
        if _is_finite(reading.sum):
            self.last_sum_mm = reading.sum
        if self.last_s is None or now_s < self.last_s - _WRONG_CLOCK_S:
            self.last_s = now_s
        end_s = max(now_s, self.last_s)
        begin_s = max(self.last_s, end_s - _HOUR_S)
        self.pass_dry(begin_s)
        if end_s > begin_s:
            self._pour(depth_mm, begin_s, end_s)
        else:
            self._drop(depth_mm, end_s)
        self._forget()

    def pass_dry(self, until_s: float) -> None:
        """Let time pass without rain."""
        if self.last_s is None or until_s <= self.last_s:
            return
        if until_s - self.last_s > _FORGOTTEN_S:
            self.tanks, self.open_mm, self.last_s = SoilWater(), 0.0, until_s
        while (edge_s := _next(self.last_s, _STEP_S)) <= until_s:
            self._close_step(edge_s)
        self.last_s = until_s
        self._forget()

    def _depth(self, reading: Reading) -> float:
        value = reading.value if isinstance(reading.value, float | int) else 0.0
        known = reading.sum is not None and self.last_sum_mm is not None
        # a counter that started anew says nothing about the rain between
        if known and reading.sum >= self.last_sum_mm:  # type: ignore[operator]
            value = reading.sum - self.last_sum_mm  # type: ignore[operator]
        return float(value) if _is_finite(value) and value > 0 else 0.0

    def _pour(self, depth_mm: float, begin_s: float, end_s: float) -> None:
        mm_per_s = depth_mm / (end_s - begin_s)
        at_s = begin_s
        while at_s < end_s:
            edge_s = min(_next(at_s, _MINUTE_S), end_s)
            self._drop(mm_per_s * (edge_s - at_s), at_s)
            if edge_s % _STEP_S == 0:
                self._close_step(edge_s)
            at_s = edge_s
        self.last_s = end_s

    def _drop(self, depth_mm: float, at_s: float) -> None:
        self.open_mm += depth_mm
        if depth_mm:
            minute = int(at_s // _MINUTE_S)
            self.minutes[minute] = self.minutes.get(minute, 0.0) + depth_mm

    def _close_step(self, edge_s: float) -> None:
        self.tanks = self.tanks.after(self.open_mm)
        self.open_mm, self.last_s = 0.0, edge_s

    def _forget(self) -> None:
        now = (self.last_s or 0.0) / _MINUTE_S
        self.minutes = {m: mm for m, mm in self.minutes.items() if now - 60 <= m <= now}


class TiltMemory:
    """Mean tilt of each minute of the last hour."""

    def __init__(self) -> None:
        self._bins: deque[list[float]] = deque()

    def take(self, x_deg: float, y_deg: float, now_s: float) -> None:
        """Add a reading; one older than the last is of no use to a rate."""
        last = self._bins[-1] if self._bins else None
        if last and now_s < last[0] - _WRONG_CLOCK_S:
            self._bins.clear()
            last = None
        if last and now_s // _MINUTE_S == last[0] // _MINUTE_S:
            count = last[3] + 1
            for at, new in enumerate((now_s, x_deg, y_deg)):
                last[at] += (new - last[at]) / count
            last[3] = count
        elif not last or now_s > last[0]:
            self._bins.append([now_s, x_deg, y_deg, 1])
        while self._bins[-1][0] - self._bins[0][0] > _HOUR_S:
            self._bins.popleft()

    def rate(self, now_s: float) -> TiltRate | None:
        """Rate over the last hour; None when too little of it is known."""
        recent = [b for b in self._bins if now_s - _HOUR_S <= b[0]]
        if not recent or recent[-1][0] - recent[0][0] < _SHORTEST_SPAN_H * _HOUR_S:
            return None
        times_h = [(b[0] - recent[0][0]) / _HOUR_S for b in recent]
        return tilt_rate(times_h, [b[1] for b in recent], [b[2] for b in recent])


@dataclass
class _Held:
    """A finding that still counts for a while after it has become false."""

    reason: str
    false_since_s: float | None = None


class Triage:
    """Judges readings, remembering what the rules need: an hour, and the tanks.

    Attributes:
        criteria: What the soil water index is judged against; may be replaced.
    """

    def __init__(
        self,
        criteria: Criteria = DEFAULT_CRITERIA,
        hold_s: float = 3600.0,
        wire_hold_s: float = 1800.0,
        soil: SoilWater | None = None,
    ) -> None:
        self.criteria = criteria
        self._hold_s = {"rain": hold_s, "tilt": hold_s, "wire": wire_hold_s}
        self._soil = soil or SoilWater()
        self._rain: dict[str, RainMemory] = {}
        self._tilt: dict[str, TiltMemory] = {}
        self._cut: dict[str, bool] = {}
        self._held: dict[tuple[str, int], _Held] = {}

    def assess(self, readings: Sequence[Reading], now_s: float) -> Assessment:
        """Judge the slope with some new readings, of any sensors.

        Args:
            readings: Rain has unit ``mm`` and a sum; tilt is ``<name>/x`` and
                ``<name>/y`` in ``deg``; a truth value without a unit is a wire.
                Others change nothing.
            now_s: Unix time of the readings. Rain read late still counts.
        """
        self._take(readings, now_s)
        fired = list(self._findings(now_s))
        held = self._hold(fired, now_s)
        verdict = judge([finding for _, finding in fired] + held)
        why = _joined(verdict.reasons) if verdict.level > LOWEST else None
        return Assessment(verdict.level, why, verdict.level)

    def soil_water_mm(self) -> dict[str, float]:
        """Soil water index by the name of the gauge."""
        return {name: rain.index_mm for name, rain in self._rain.items()}

    def snapshot(self) -> str:
        """What must survive a restart, as JSON: rain, wires, and what is held.

        An hour of tilt is not in it: it would wear the card, and comes back.
        """
        return json.dumps(
            {
                "form": _FORM,
                "rain": {name: _rain_out(rain) for name, rain in self._rain.items()},
                "cut": self._cut,
                "held": [
                    [source, level, held.reason, held.false_since_s]
                    for (source, level), held in self._held.items()
                ],
            },
            separators=(",", ":"),
        )

    def restore(self, snapshot: str) -> None:
        """Go on from a snapshot; on an error nothing has changed.

        Raises:
            SnapshotError: It is damaged, or of another version.
        """
        try:
            state = json.loads(snapshot)
            if state["form"] != _FORM:
                raise ValueError(f"it has version {state['form']!r}")  # noqa: TRY301 - one kind of error out
            rain = {str(n): _rain_in(entry) for n, entry in state["rain"].items()}
            cut = {str(name): bool(is_cut) for name, is_cut in state["cut"].items()}
            held = {
                (_source(s), int(level)): _Held(str(why), _time(since))
                for s, level, why, since in state["held"]
            }
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise SnapshotError(f"{type(error).__name__} {error}") from error
        self._rain, self._cut, self._held = rain, cut, held

    def _take(self, readings: Sequence[Reading], now_s: float) -> None:
        tilts: dict[str, dict[str, float]] = {}
        for reading in readings:
            if reading.unit == "mm" and reading.sum is not None:
                rain = self._rain.setdefault(reading.name, RainMemory(self._soil))
                rain.take(reading, now_s + reading.time_s)
            elif reading.unit is None and isinstance(reading.value, bool):
                self._cut[reading.name] = reading.value
            elif reading.unit == "deg" and _is_finite(reading.value):
                name, _, axis = reading.name.rpartition("/")
                tilts.setdefault(name, {})[axis] = reading.value  # type: ignore[assignment]
        for name, axes in tilts.items():
            if {"x", "y"} <= axes.keys():
                memory = self._tilt.setdefault(name, TiltMemory())
                memory.take(axes["x"], axes["y"], now_s)

    def _findings(self, now_s: float) -> Iterable[tuple[str, Finding]]:
        for rain in self._rain.values():
            # a gauge that says nothing for an hour is broken, and time goes on
            rain.pass_dry(now_s - _HOUR_S)
            found = rain_finding(rain.r60_mm, rain.index_mm, self.criteria)
            if found:
                yield "rain", found
        for name, tilt in self._tilt.items():
            found = tilt_finding(name, tilt.rate(now_s))
            if found:
                yield "tilt", found
        for name, is_cut in self._cut.items():
            found = wire_finding(name, is_cut)
            if found:
                yield "wire", found

    def _hold(
        self, fired: Sequence[tuple[str, Finding]], now_s: float
    ) -> list[Finding]:
        """Remember what fired; return what did before and still counts."""
        for source, finding in fired:
            self._held[source, finding.level] = _Held(finding.reason)
        true_now = {(source, finding.level) for source, finding in fired}
        findings = []
        for (source, level), held in list(self._held.items()):
            if (source, level) in true_now:
                continue
            # the earlier of the two, should the clock have gone back
            since_s = now_s if held.false_since_s is None else held.false_since_s
            held.false_since_s = since_s = min(since_s, now_s)
            if now_s - since_s >= self._hold_s[source]:
                del self._held[source, level]
            elif all(level > now[1] for now in true_now if now[0] == source):
                findings.append(Finding(level, f"{held.reason} (a while ago)"))
        return findings


def _next(at_s: float, step_s: float) -> float:
    """The first whole step after a time."""
    return (at_s // step_s + 1) * step_s


def _is_finite(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def _joined(reasons: Sequence[str]) -> str:
    """As many reasons as fit, most serious first."""
    why = reasons[0]
    for reason in reasons[1:]:
        if len(why) + 2 + len(reason) > WHY_CHARS:
            break
        why += f"; {reason}"
    return why if len(why) <= WHY_CHARS else why[: WHY_CHARS - 1] + "…"


def _rain_out(rain: RainMemory) -> dict[str, Any]:
    tanks = rain.tanks
    return {
        "tanks": [round(mm, 4) for mm in (tanks.s1_mm, tanks.s2_mm, tanks.s3_mm)],
        "open": round(rain.open_mm, 4),
        "last": rain.last_s,
        "sum": rain.last_sum_mm,
        "minutes": [[minute, round(mm, 4)] for minute, mm in rain.minutes.items()],
    }


def _rain_in(entry: Mapping[str, Any]) -> RainMemory:
    s1_mm, s2_mm, s3_mm = (_number(mm) for mm in entry["tanks"])
    minutes = {int(minute): _number(mm) for minute, mm in entry["minutes"]}
    return RainMemory(
        SoilWater(s1_mm, s2_mm, s3_mm),
        _number(entry["open"]),
        _time(entry["last"]),
        _time(entry["sum"]),
        minutes,
    )


def _number(value: object) -> float:
    if not isinstance(value, float | int) or not 0 <= value < math.inf:
        raise ScienceError("snapshot", "numbers of zero or more", value)
    return float(value)


def _time(value: object) -> float | None:
    return None if value is None else _number(value)


def _source(value: object) -> str:
    if value not in {"rain", "tilt", "wire"}:
        raise ScienceError("snapshot", "a source of findings", value)
    return str(value)

"""Live check: reads sensors repeatedly while an installer tips, tugs and tilts."""

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from edge_agent.cli.sensor_check import (
    ReadingView,
    SensorCheck,
    align_columns,
    check_sensor,
    format_problem,
    make_sensor_check,
)
from edge_agent.sensor_reader import PlausibleRange, ReadPolicy, SensorReader
from edge_agent.sensors.base import Health, Sensor, SensorConfig

CHANGE_SHARE = 0.01
"""Share of the range that counts as a change: a hand moves more, noise less."""


@dataclass
class _Seen:
    """One reading of the sensor so far.

    Attributes:
        reported: The value of the last reported change.
        low: Least value so far.
        high: Greatest value so far.
    """

    reported: ReadingView
    low: float | None = None
    high: float | None = None


class ChangeTracker:
    """Tracks the changes of one sensor.

    Attributes:
        latest: The latest check.
        change_count: Number of changes.
        changed_s: Time of the last change, on the caller's clock; None for none.
    """

    def __init__(self) -> None:
        self.latest: SensorCheck | None = None
        self.change_count = 0
        self.changed_s: float | None = None
        self._seen: dict[str, _Seen] = {}

    def add(self, check: SensorCheck, now_s: float) -> list[str]:
        """Add a check; returns a sentence for each change."""
        before = self.latest.health if self.latest else Health.OK
        changes = [self._moved(each, check) for each in check.shown]
        moves = [change for change in changes if change is not None]
        events = list(moves)
        if self.latest is None and check.shown:
            events.append(f"first {check.shown[0]}")
        if check.health is not before:
            events.append(check.problem or f"{check.name} is OK again")
        if moves:
            self.change_count += 1
            self.changed_s = now_s
        self.latest = check
        return events

    def format_range(self) -> str:
        """Least and greatest value of the sensor's first reading."""
        shown = self.latest.shown[:1] if self.latest else ()
        seen = self._seen.get(shown[0].name) if shown else None
        if seen is None or seen.low is None or seen.high is None:
            return ""
        return f"{seen.low:.5g}..{seen.high:.5g}"

    def _moved(self, shown: ReadingView, check: SensorCheck) -> str | None:
        seen = self._seen.setdefault(shown.name, _Seen(shown))
        value = shown.value
        if isinstance(value, float | int) and not isinstance(value, bool):
            seen.low = value if seen.low is None else min(seen.low, value)
            seen.high = value if seen.high is None else max(seen.high, value)
        change = _change(shown, seen.reported, check)
        if change is not None:
            seen.reported = shown
        return change


def _change(
    shown: ReadingView, reported: ReadingView, check: SensorCheck
) -> str | None:
    unit = f" {shown.unit}" if shown.unit else ""
    if shown.sum is not None and reported.sum is not None:
        more = shown.sum - reported.sum
        text = f"{shown.name} +{more:g}{unit} (sum {shown.sum:g}{unit})"
        return text if more > 0 else None
    if isinstance(shown.value, bool):
        return str(shown) if shown.value is not reported.value else None
    now, then = _number(shown), _number(reported)
    if now is None or then is None or shown.unit != check.unit:
        return None
    if abs(now - then) <= CHANGE_SHARE * _width(check):
        return None
    return f"{shown.name} {then:.5g} -> {now:.5g}{unit}"


def _number(shown: ReadingView) -> float | None:
    return shown.value if isinstance(shown.value, float | int) else None


def _width(check: SensorCheck) -> float:
    """Width of the range; infinite for a sensor without limits."""
    return (
        math.inf if check.low is None or check.high is None else check.high - check.low
    )


PAUSE_S = 0.25
MAX_SAMPLES = 4
_HEADS = ("", "sensor", "reads", "least..most", "moved", "QC", "wiring", "health")
HIGHLIGHT_S = 2.0
"""How long a sensor is marked after a change."""


@dataclass(frozen=True)
class LiveSensor:
    """One sensor of a live check.

    Attributes:
        settings: Its settings.
        sensor: The open sensor.
        wake: Set on an event that would be over before the next reading.
    """

    settings: SensorConfig
    sensor: Sensor
    wake: threading.Event = field(default_factory=threading.Event)


def with_few_samples(settings: SensorConfig) -> SensorConfig:
    """The settings with few samples per reading, for a quick response."""
    samples = getattr(settings, "samples", 0)
    if samples <= MAX_SAMPLES:
        return settings
    return dataclasses.replace(settings, samples=MAX_SAMPLES)  # type: ignore[type-var]


def handheld_range(sensor: Sensor) -> PlausibleRange:
    """Plausible readings while a hand moves the sensor: steps of any size."""
    return PlausibleRange(sensor.unit, *sensor.range, None)


READ_POLICY = ReadPolicy(min_backoff_s=0.0, plausible_range=handheld_range)
"""Without back-off: a cable that is plugged in must show at once."""

STOP_S = 2.0
"""Longest wait for a reading at the end."""


@dataclass(frozen=True)
class Screen:
    """Output of a live check.

    Attributes:
        is_terminal: Whether a table can be drawn over the last one; else each change
            is printed on a line.
        write: Prints text.
    """

    is_terminal: bool
    write: Callable[[str], object]


class LiveCheck:
    """Reads sensors in a thread each, and shows their changes.

    Args:
        slots: The sensors.
        mono_s: Monotonic seconds.
        wall_s: Unix time.
        screen: The output.
        advance: Moves a simulated slope.
    """

    def __init__(
        self,
        slots: Sequence[LiveSensor],
        mono_s: Callable[[], float],
        wall_s: Callable[[], float],
        screen: Screen,
        advance: Callable[[], object] = lambda: None,
    ) -> None:
        self._slots = tuple(slots)
        self._mono_s = mono_s
        self._wall_s = wall_s
        self._screen = screen
        self._advance = advance
        sensors = [slot.sensor for slot in self._slots]
        self._reader = SensorReader(sensors, mono_s, READ_POLICY)
        self._trackers = {slot.settings.name: ChangeTracker() for slot in self._slots}
        self._checks: SimpleQueue[SensorCheck] = SimpleQueue()
        self._stop = threading.Event()

    def run(self, duration_s: float) -> list[SensorCheck]:
        """Show sensors for a time or until `stop`; returns the last check of each.

        A sensor without a check by then is not ok.
        """
        began_s = self._mono_s()
        threads = [
            threading.Thread(target=self._follow, args=(slot,), daemon=True)
            for slot in self._slots
        ]
        for thread in threads:
            thread.start()
        while not self._stop.is_set() and self._mono_s() - began_s < duration_s:
            self._advance()
            self._show(self._mono_s() - began_s)
        self.stop()
        for thread in threads:
            thread.join(STOP_S)
        self._new_events(self._mono_s() - began_s)
        return [self._last_check(slot.settings) for slot in self._slots]

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()
        for slot in self._slots:
            slot.wake.set()

    @property
    def change_counts(self) -> dict[str, int]:
        """Number of changes of each sensor."""
        return {name: tracker.change_count for name, tracker in self._trackers.items()}

    def _last_check(self, settings: SensorConfig) -> SensorCheck:
        latest = self._trackers[settings.name].latest
        if latest is not None:
            return latest
        problem = f"sensor {settings.name} gave no reading yet; check for longer"
        unread = make_sensor_check(settings, (), self._reader)
        return dataclasses.replace(unread, health=Health.HANGS, problem=problem)

    def _follow(self, slot: LiveSensor) -> None:
        """Read one sensor repeatedly; the pause is as long as the reading."""
        while not self._stop.is_set():
            began_s = self._mono_s()
            now_s = self._wall_s()
            check = check_sensor(slot.settings, slot.sensor, self._reader, now_s)
            self._checks.put(check)
            slot.wake.wait(max(PAUSE_S, self._mono_s() - began_s))
            slot.wake.clear()

    def _show(self, at_s: float) -> None:
        events = self._new_events(at_s)
        if self._screen.is_terminal:
            home_and_clear = "\x1b[H\x1b[J"
            self._screen.write(home_and_clear + "\n".join(self._table(at_s)) + "\n")
        else:
            for sentence in events:
                self._screen.write(f"{at_s:7.1f} s  {sentence}\n")

    def _new_events(self, at_s: float) -> list[str]:
        """Changes of the checks since the last call; waits shortly for one."""
        events = []
        try:
            check = self._checks.get(timeout=PAUSE_S)
            while True:
                events += self._trackers[check.name].add(check, at_s)
                check = self._checks.get_nowait()
        except Empty:
            return events

    def _table(self, at_s: float) -> list[str]:
        rows = [_HEADS, *(self._row(name, at_s) for name in self._trackers)]
        checks = [
            tracker.latest for tracker in self._trackers.values() if tracker.latest
        ]
        lines = [
            f"live for {at_s:.0f} s: tip, tug and tilt; Ctrl-C ends",
            *align_columns(rows),
        ]
        return lines + [line for check in checks for line in format_problem(check)]

    def _row(self, name: str, at_s: float) -> tuple[str, ...]:
        tracker = self._trackers[name]
        check = tracker.latest
        if check is None:
            return ("", name, "...", "", "", "", "", "")
        moved_s = tracker.changed_s
        is_fresh = moved_s is not None and at_s - moved_s < HIGHLIGHT_S
        moved = (
            "-"
            if moved_s is None
            else f"{tracker.change_count}x, {at_s - moved_s:.0f} s ago"
        )
        return (
            ">>" if is_fresh else "",
            name,
            str(check.shown[0]) if check.shown else "-",
            tracker.format_range(),
            moved,
            check.flag.name.lower(),
            ", ".join(check.wiring),
            check.health.value,
        )

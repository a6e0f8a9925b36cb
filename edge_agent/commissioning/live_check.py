"""Every sensor, again and again, while an installer tips, tugs and tilts.

What a sensor did since an installer began to watch it. No I/O.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from edge_agent.commissioning.sensor_check import Look, Shown, grid, look_at, problem
from edge_agent.sensor_reader import Manner, Plausible, Reader
from edge_agent.sensors.base import Claiming, Sensor
from edge_agent.sensors.errors import Health

TELLING_SHARE = 0.01
"""Of the range: a hand moves a sensor by more, its noise by less."""


@dataclass
class _Seen:
    """One reading of the sensor.

    Attributes:
        told: The value that the last news told of.
        low: Least value so far.
        high: Greatest value so far.
    """

    told: Shown
    low: float | None = None
    high: float | None = None


class Trail:
    """Follows one sensor.

    Attributes:
        look: The latest.
        moves: How often something happened.
        moved_s: When it last did, on the caller's clock; None for never.
    """

    def __init__(self) -> None:
        self.look: Look | None = None
        self.moves = 0
        self.moved_s: float | None = None
        self._seen: dict[str, _Seen] = {}

    def take(self, look: Look, now_s: float) -> list[str]:
        """Follow one more look; sentences on what has happened."""
        before = self.look.health if self.look else Health.OK
        told = [self._moved(each, look) for each in look.shown]
        moves = [words for words in told if words is not None]
        news = list(moves)
        if self.look is None and look.shown:
            news.append(f"first {look.shown[0]}")
        if look.health is not before:
            news.append(look.problem or f"{look.name} is well again")
        if moves:
            self.moves += 1
            self.moved_s = now_s
        self.look = look
        return news

    def span(self) -> str:
        """Least and greatest value of the sensor's first reading."""
        shown = self.look.shown[:1] if self.look else ()
        seen = self._seen.get(shown[0].name) if shown else None
        if seen is None or seen.low is None or seen.high is None:
            return ""
        return f"{seen.low:.5g}..{seen.high:.5g}"

    def _moved(self, shown: Shown, look: Look) -> str | None:
        seen = self._seen.setdefault(shown.name, _Seen(shown))
        value, told = shown.value, seen.told
        if isinstance(value, float | int) and not isinstance(value, bool):
            seen.low = value if seen.low is None else min(seen.low, value)
            seen.high = value if seen.high is None else max(seen.high, value)
        words = _news(shown, told, look)
        if words is not None:
            seen.told = shown
        return words


def _news(shown: Shown, told: Shown, look: Look) -> str | None:
    unit = f" {shown.unit}" if shown.unit else ""
    if shown.sum is not None and told.sum is not None:
        more = shown.sum - told.sum
        words = f"{shown.name} +{more:g}{unit} (sum {shown.sum:g}{unit})"
        return words if more > 0 else None
    if isinstance(shown.value, bool):
        return str(shown) if shown.value is not told.value else None
    now, then = _number(shown), _number(told)
    if now is None or then is None or shown.unit != look.unit:
        return None
    if abs(now - then) <= TELLING_SHARE * _width(look):
        return None
    return f"{shown.name} {then:.5g} -> {now:.5g}{unit}"


def _number(shown: Shown) -> float | None:
    return shown.value if isinstance(shown.value, float | int) else None


def _width(look: Look) -> float:
    """Of what can be; endless for a sensor that can read anything."""
    return math.inf if look.low is None or look.high is None else look.high - look.low


PAUSE_S = 0.25
FEW_SAMPLES = 4
_HEADS = ("", "sensor", "reads", "least..most", "moved", "QC", "wiring", "health")
MARK_S = 2.0
"""So long a sensor that moved is marked."""


@dataclass(frozen=True)
class Slot:
    """One sensor of a live check.

    Attributes:
        settings: Its settings.
        sensor: What is read.
        wake: Set when something happened that is gone before the next reading.
    """

    settings: Claiming
    sensor: Sensor
    wake: threading.Event = field(default_factory=threading.Event)


def hasty(settings: Claiming) -> Claiming:
    """The same sensor, read from few samples: quick is better than fine here."""
    samples = getattr(settings, "samples", 0)
    if samples <= FEW_SAMPLES:
        return settings
    return dataclasses.replace(settings, samples=FEW_SAMPLES)  # type: ignore[type-var]


def by_hand(sensor: Sensor) -> Plausible:
    """What readings can be while a hand moves the sensor: in steps of any size."""
    return Plausible(sensor.unit, *sensor.range, None)


MANNER = Manner(deadline_s=5.0, first_rest_s=0.0, plausible=by_hand)
"""Who plugs a cable in wants to see it now, not after a rest."""


@dataclass(frozen=True)
class Screen:
    """Where it is shown.

    Attributes:
        is_terminal: Whether a table can be drawn over the last one; else only what
            happens is told, a line each.
        write: Takes text.
    """

    is_terminal: bool
    write: Callable[[str], object]


class LiveCheck:
    """Reads sensors in a thread each, and shows what they do.

    Args:
        slots: The sensors.
        mono_s: Monotonic seconds.
        wall_s: Unix time.
        screen: Where it is shown.
        advance: Moves a simulated slope.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
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
        self._reader = Reader(sensors, mono_s, MANNER)
        self._trails = {slot.settings.name: Trail() for slot in self._slots}
        self._looks: SimpleQueue[Look] = SimpleQueue()
        self._stop = threading.Event()

    def run(self, lasts_s: float) -> list[Look]:
        """Show sensors for so long, or until `stop`; the last look at each."""
        began_s = self._mono_s()
        threads = [
            threading.Thread(target=self._follow, args=(slot,), daemon=True)
            for slot in self._slots
        ]
        for thread in threads:
            thread.start()
        while not self._stop.is_set() and self._mono_s() - began_s < lasts_s:
            self._advance()
            self._show(self._mono_s() - began_s)
        self.stop()
        for thread in threads:
            thread.join(MANNER.deadline_s)
        return [trail.look for trail in self._trails.values() if trail.look]

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()
        for slot in self._slots:
            slot.wake.set()

    @property
    def moves(self) -> dict[str, int]:
        """How often each sensor did something."""
        return {name: trail.moves for name, trail in self._trails.items()}

    def _follow(self, slot: Slot) -> None:
        """Read one sensor again and again; a slow one is given as long a pause."""
        while not self._stop.is_set():
            began_s = self._mono_s()
            now_s = self._wall_s()
            look = look_at(slot.settings, slot.sensor, self._reader, now_s)
            self._looks.put(look)
            slot.wake.wait(max(PAUSE_S, self._mono_s() - began_s))
            slot.wake.clear()

    def _show(self, at_s: float) -> None:
        news = self._news(at_s)
        if self._screen.is_terminal:
            home_and_clear = "\x1b[H\x1b[J"
            self._screen.write(home_and_clear + "\n".join(self._table(at_s)) + "\n")
        else:
            for sentence in news:
                self._screen.write(f"{at_s:7.1f} s  {sentence}\n")

    def _news(self, at_s: float) -> list[str]:
        """What the looks tell that came meanwhile; waits for one, but not long."""
        news = []
        try:
            look = self._looks.get(timeout=PAUSE_S)
            while True:
                news += self._trails[look.name].take(look, at_s)
                look = self._looks.get_nowait()
        except Empty:
            return news

    def _table(self, at_s: float) -> list[str]:
        rows = [_HEADS, *(self._row(name, at_s) for name in self._trails)]
        looks = [trail.look for trail in self._trails.values() if trail.look]
        lines = [f"live for {at_s:.0f} s: tip, tug and tilt; Ctrl-C ends", *grid(rows)]
        return lines + [line for look in looks for line in problem(look)]

    def _row(self, name: str, at_s: float) -> tuple[str, ...]:
        trail = self._trails[name]
        look = trail.look
        if look is None:
            return ("", name, "...", "", "", "", "", "")
        moved_s = trail.moved_s
        is_fresh = moved_s is not None and at_s - moved_s < MARK_S
        moved = (
            "-" if moved_s is None else f"{trail.moves}x, {at_s - moved_s:.0f} s ago"
        )
        return (
            ">>" if is_fresh else "",
            name,
            str(look.shown[0]) if look.shown else "-",
            trail.span(),
            moved,
            look.flag.name.lower(),
            ", ".join(look.wiring),
            look.health.value,
        )

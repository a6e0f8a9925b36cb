"""Every sensor, again and again, while an installer tips, tugs and tilts."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from edge_agent.commissioning.look import Look, look_at
from edge_agent.commissioning.table import grid, problem
from edge_agent.commissioning.trail import Trail
from edge_agent.quality import Plausible
from edge_agent.reading import Manner, Reader
from edge_agent.sensors.base import Claiming, Sensor

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

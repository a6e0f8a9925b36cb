"""What a sensor did since an installer began to watch it. No I/O."""

import math
from dataclasses import dataclass

from edge_agent.commissioning.look import Look, Shown
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

"""One pass over the steps of a cell: what is behind its levels, what to remember."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

from backend_spark.transforms.cell import Cell
from backend_spark.transforms.features import (
    STEPS_PER_DAY,
    Memories,
    Outlook,
    assumptions,
    last_hour,
    outlook,
    percentiles,
)
from backend_spark.transforms.memory import Memory, last_words, moments
from backend_spark.transforms.observation import Observation
from backend_spark.transforms.soil import (
    NO_PAST,
    RainPast,
    RainState,
    rain_states,
    sure_states,
)
from backend_spark.transforms.wetness import probes, wet_findings
from slope_science.criteria import Criteria
from slope_science.levels import Finding
from slope_science.rain_forecast import Coming
from slope_science.rainfall import ANTECEDENT_DAYS
from slope_science.wetness import RAIN_H

DAY_S: Final = 86_400


class Run:
    """Steps of a cell after its memory, or all.

    Args:
        cell: Its readings, sorted by what they tell.
        observations: The same in the order of time, flagged.
        criteria: Of the cell.
        coming: Rain to come after a Unix time, by an official forecast.
        past: What is remembered before the first step.

    Attributes:
        cell: As given.
        states: Rain and soil water, step by step.
        sure: The same without doubtful rain.
    """

    def __init__(
        self,
        cell: Cell,
        observations: Sequence[Observation],
        criteria: Criteria,
        coming: Callable[[float], Coming],
        past: Memory | None = None,
    ) -> None:
        self.cell = cell
        self._coming = coming
        self._probes = probes(observations)
        self._past = past.rain if past else NO_PAST
        self._criteria = criteria
        rain = self._past
        self.states = list(rain_states(cell.rain, rain.state, rain.hour))
        self.sure = list(sure_states(cell.rain, rain))
        self._rain = Memories.of(cell.rain, rain)
        self._hours = [*rain.hour, *cell.rain]
        # Nothing is worth remembering before the end of the first step.
        after_s = past.at_s if past else cell.ends_s[0]
        self._due = moments(after_s, observations[-1].at_s)
        self._percentiles, self._pasts = percentiles(
            observations,
            past.pasts if past else {},
            past.at_s if past else float("-inf"),
            self._due,
        )
        self._heard: dict[str, list[int]] = {}
        for end_s in sorted(cell.spoken):
            for node in {o.node for o in cell.spoken[end_s]}:
                self._heard.setdefault(node, []).append(end_s)

    def evidence(self, at: int) -> list[Finding | None]:
        """What moisture and pore pressure add to the level of a step."""
        end_s, rain_mm = self.cell.ends_s[at], self._rain.rain_mm(at, RAIN_H)
        shares = {
            s: p for e in self._percentiles.values() for s, p in e.of(end_s).items()
        }
        return wet_findings(self._probes, end_s, shares, rain_mm)

    def view(self, at: int, rain: RainState) -> Outlook | None:
        """Three futures of a step; None before the first rain data."""
        if rain.tanks is None:
            return None
        hour = last_hour(self._hours, at + len(self._past.hour))
        coming = self._coming(self.cell.ends_s[at])
        return outlook(rain.tanks, hour, self._criteria, coming)

    def columns(self, at: int, rain: RainState, view: Outlook | None) -> dict[str, Any]:
        """Columns of schemas.LEVELS that say what a level rests on."""
        end_s = self.cell.ends_s[at]
        told: dict[str, Any] = {
            "completeness": self._rain.completeness(at),
            "n_nodes_day": sum(
                bisect_right(ends, end_s) > bisect_right(ends, end_s - DAY_S)
                for ends in self._heard.values()
            ),
            "assumed": list(assumptions(self._criteria, rain.history_s, view)),
        }
        told |= {name: each.at(end_s) for name, each in self._percentiles.items()}
        if view is None:
            return told
        return (
            told
            | view.columns()
            | {
                "effective_1h5_mm": self._rain.short_mm[at],
                "effective_72h_mm": self._rain.long_mm[at],
                "antecedent_mm_per_day": self._rain.antecedent_mm(at),
            }
        )

    def memories(self, observations: Sequence[Observation]) -> list[Memory]:
        """The cell at each moment that is worth remembering."""
        return [
            Memory(
                at_s,
                self._rain_past(self.cell.ends_s.index(at_s)),
                {m.sensor: m.thermal(at_s) for m in self.cell.signs.meters},
                self._pasts[at_s],
                tuple(last_words(observations, at_s)),
            )
            for at_s in self._due
        ]

    def _rain_past(self, at: int) -> RainPast:
        rain, end = self._rain, self._rain.before + at + 1
        begin = max(0, end - ANTECEDENT_DAYS * STEPS_PER_DAY)
        steps = [*self._past.depths_mm, *(s.depth_mm for s in self.cell.rain[: at + 1])]
        known = [*self._past.known, *(s.is_known for s in self.cell.rain[: at + 1])]
        hour = last_hour(self._hours, at + len(self._past.hour))
        return RainPast(
            self.states[at],
            self.sure[at],
            rain.short_mm[at],
            rain.long_mm[at],
            tuple(steps[begin:]),
            tuple(known[begin:]),
            tuple(hour),
        )

"""Rain and soil water at each step of a pass over a cell.

The newest step is not over at the last report. Its state is that at the report: the
hour up to it, and tanks that are advanced as far as it covers the step. It keeps this
state where the reports end in it, so that the level does not fall with the gauge.
States of the whole step are the ones from which later steps are computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from backend_spark.scoring.features import STEPS_PER_DAY, RainSums
from backend_spark.scoring.observation import STEP_S
from backend_spark.scoring.rain import (
    NOT_BEGUN,
    RainPast,
    RainState,
    StepRain,
    fill_missing,
    last_hour,
    rain_states,
    undoubted_states,
    without_doubt,
)
from backend_spark.scoring.rules import CellRules
from slope_science.rain_and_soil_water import (
    ANTECEDENT_DAYS,
    STEPS_PER_HOUR,
    TEN_MINUTES_H,
    SoilWater,
)


class PassRain:
    """Rain of a cell in one pass over its steps.

    Args:
        steps: Rain of each step at the gauges of the cell.
        ends_s: End of each step.
        rules: Rules of the cell.
        past: Rain before the first step.

    Attributes:
        states: Rain and soil water at each step.
        sure: The same without doubtful rain; None where there is none.
        sources: Where the rain of a step is from that gives a level, if not the cell's.
        sums: Rain sums at each step.
    """

    def __init__(
        self,
        steps: Sequence[StepRain],
        ends_s: Sequence[int],
        rules: CellRules,
        past: RainPast,
    ) -> None:
        self._gauged, self._ends_s, self._past = steps, ends_s, past
        self._steps, sources = fill_missing(steps, ends_s, rules.substitute)
        self._hours = [*past.hour, *self._steps]
        self._whole = list(rain_states(self._steps, past.state, past.hour))
        self._whole_sure = list(undoubted_states(self._steps, past))
        self.sources = rules.keep_judged(sources, ends_s, self._whole)
        self.states, self.sure = list(self._whole), list(self._whole_sure)
        last, sure_last = past.state, past.sure or past.state
        for at, step in enumerate(self._steps):
            if step.parts and self._whole[at].tanks is not None:
                self.states[at] = self._at_report(at, self._whole[at], last)
            whole_sure = self._whole_sure[at]
            if step.parts and whole_sure is not None and whole_sure.tanks is not None:
                self.sure[at] = self._at_report(
                    at, whole_sure, sure_last, without_doubt
                )
            last, sure_last = self.states[at], self.sure[at] or self.states[at]
        self.sums = RainSums.from_steps(steps, past)

    def _at_report(
        self,
        at: int,
        whole: RainState,
        last: RainState,
        change: Callable[[StepRain], StepRain] = lambda step: step,
    ) -> RainState:
        """State at the last report in a step.

        Args:
            at: Index of the step.
            whole: State at its end.
            last: State before it.
            change: What is done with the rain of each step.
        """
        step = self._steps[at]
        hours = TEN_MINUTES_H * step.share
        tanks = (last.tanks or SoilWater()).step(change(step).depth_mm, hours)
        is_begun = step.share > NOT_BEGUN
        return replace(
            whole if is_begun else replace(last, is_known=False),
            r60_mm=sum(change(each).depth_mm for each in self.last_hour(at)),
            tanks=tanks,
            is_open=step.share < 1 and at >= len(self._steps) - 2,
        )

    def last_hour(self, at: int) -> Sequence[StepRain]:
        """Steps of the hour up to a step, or up to the last report in it."""
        return last_hour(self._hours, at + len(self._past.hour))

    def until_s(self, at: int) -> float:
        """Unix time of the state of a step: its end, or the last report in it."""
        share = self._steps[at].share
        if share > NOT_BEGUN or not at:
            return self._ends_s[at] - (1 - share) * STEP_S
        return self.until_s(at - 1)

    def past_at(self, at: int) -> RainPast:
        """Rain up to the end of a step, to save."""
        sums, past = self.sums, self._past
        end, hour = sums.before + at + 1, len(past.hour) + at + 1
        begin = max(0, end - ANTECEDENT_DAYS * STEPS_PER_DAY)
        steps = self._gauged[: at + 1]
        depths = [*past.depths_mm, *(step.depth_mm for step in steps)]
        known = [*past.known, *(step.is_known for step in steps)]
        return RainPast(
            self._whole[at],
            self._whole_sure[at],
            sums.short_mm[at],
            sums.long_mm[at],
            tuple(depths[begin:]),
            tuple(known[begin:]),
            tuple(self._hours[max(0, hour - STEPS_PER_HOUR) : hour]),
        )

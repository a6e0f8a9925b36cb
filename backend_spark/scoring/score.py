"""Levels of a cell, step by step: a pure function of its readings.

A gap is never zero rain: the tanks drain, and from then on the index is marked as a
lower bound; a substitute such as a forecast fills the gap where there is one. The level
is held meanwhile; see `holds`. After more than a day without rain data there is no
judgement by rain; only a held level, movement and other evidence give one.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from backend_spark.criteria.jma import Telegram, find_official_level
from backend_spark.scoring.analysed import (
    CellAnalyses,
    find_analysed,
    flag_beside_analysis,
    substitute_analysed,
)
from backend_spark.scoring.cell_readings import CellReadings
from backend_spark.scoring.cell_state import (
    ScoringState,
    last_observations,
    state_times_s,
)
from backend_spark.scoring.features import (
    STEPS_PER_DAY,
    CellOutlook,
    RainSums,
    assumption_sentence,
    find_percentiles,
    last_hour,
    list_assumptions,
    make_outlook,
)
from backend_spark.scoring.holds import (
    JUDGED,
    NO_HOLD,
    NO_LIMITS,
    HeldLevel,
    HoldLimits,
    RainHold,
    SensorHolds,
    StepHolds,
    rain_holds,
)
from backend_spark.scoring.judgement import has_recent_rain, judge_step, list_doubts
from backend_spark.scoring.movement import make_sensor_rows
from backend_spark.scoring.nearby import NO_NEARBY_RAIN, NearbyRain
from backend_spark.scoring.node_levels import find_node_levels, make_node_findings
from backend_spark.scoring.observation import STEP_S, Observation
from backend_spark.scoring.quality import FLAG_REACH_S, flag_with_neighbours
from backend_spark.scoring.rain import (
    ALONE_LEVEL,
    NO_RAIN_PAST,
    RainPast,
    RainState,
    StepRain,
    Substitute,
    SubstituteRain,
    fill_missing,
    gap_begins,
    rain_states,
    undoubted_states,
)
from backend_spark.scoring.soil import group_soil, judge_soil
from slope_science.criteria import Criteria
from slope_science.evidence.settings import DEFAULT_EVIDENCE, EvidenceSettings
from slope_science.findings import (
    LOWEST,
    Finding,
    combine_findings,
    noticed,
)
from slope_science.quality import NEIGHBOUR_S
from slope_science.rain import ANTECEDENT_DAYS, STEPS_PER_HOUR
from slope_science.rain_forecast import NO_FORECAST, ForecastRain
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_english
from slope_science.reasons import Reason
from slope_science.soil_moisture import RAIN_H


class CellPass:
    """One pass over the steps of a cell, from a saved state or from the start.

    Args:
        cell: Readings by kind.
        observations: The same in time order, with flags.
        rules: Rules of the cell.
        past: Saved state before the first step.

    Attributes:
        cell: As given.
        states: Rain and soil water at each step.
        sure: The same without doubtful rain.
        sources: Where the rain of a step is from, if it is not the cell's own.
        rain_holds: Hold of the level by rain at each step.
        sensor_holds: Holds of the other sensors.
    """

    def __init__(
        self,
        cell: CellReadings,
        observations: Sequence[Observation],
        rules: "CellRules",
        past: ScoringState | None = None,
    ) -> None:
        self.cell = cell
        self._rules = rules
        self._coming = rules.forecast_rain
        self._probes = group_soil(observations)
        self._past = past.rain if past else NO_RAIN_PAST
        self._criteria = rules.criteria
        self._node_levels = find_node_levels(observations)
        rain = self._past
        filled, self.sources = fill_missing(cell.rain, cell.ends_s, rules.substitute)
        self.states = list(rain_states(filled, rain.state, rain.hour))
        self.sure = list(undoubted_states(filled, rain))
        self._rain = RainSums.from_steps(cell.rain, rain)
        self._hours = [*rain.hour, *filled]
        # States are saved after the end of the first step at the earliest.
        after_s = past.at_s if past else cell.ends_s[0]
        due = state_times_s(after_s, observations[-1].at_s)
        self._due = [at_s for at_s in due if cell.is_settled(at_s)]
        self._percentiles, self._pasts = find_percentiles(
            observations,
            past.pasts if past else {},
            past.at_s if past else float("-inf"),
            self._due,
        )
        self._node_ends: dict[str, list[int]] = {}
        for end_s in sorted(cell.by_step):
            for node in {o.node for o in cell.by_step[end_s]}:
                self._node_ends.setdefault(node, []).append(end_s)
        self.rain_holds = list(
            rain_holds(
                self.states, self._judge_rain, past.rain_hold if past else NO_HOLD
            )
        )
        self.sensor_holds = SensorHolds(
            observations,
            lambda end_s: cell.sensors.findings(end_s)[1],
            past.sensor_holds if past else {},
            past.at_s if past else float("-inf"),
        )

    def ahead_finding(self, at: int, view: CellOutlook | None) -> Finding | None:
        """Finding of the look-ahead of a step, where the rules look ahead.

        Where rain is doubtful, it restricts this finding as it does that of the rain.
        """
        is_usable = has_recent_rain(self.states[at]) or at in self.sources
        if view is None or not self._rules.look_ahead or not is_usable:
            return None
        same_rain, sure = self._rules.same_rain, self.sure[at]
        found = view.finding(self._criteria, same_rain=same_rain)
        if found is None or sure is None or sure.tanks is None:
            return found
        depth_mm = (sure.r60_mm or 0.0) / STEPS_PER_HOUR
        hour = [StepRain(depth_mm, is_known=True)] * STEPS_PER_HOUR
        coming = self._coming(self.cell.ends_s[at])
        without = make_outlook(sure.tanks, hour, self._criteria, coming)
        surely = without.finding(self._criteria, same_rain=same_rain)
        ceiling = max(surely.level if surely else LOWEST, self._rules.alone_level)
        return replace(found, level=min(found.level, ceiling))

    def judge(
        self, at: int, motion: Sequence[Finding | None]
    ) -> tuple[int | None, tuple[Reason, ...], str, int | None]:
        """Level, reasons, state and `LevelRow.known_until_s` at the end of a step.

        Args:
            at: Index of the step.
            motion: Findings of other evidence than the rain up to then.
        """
        source, holds = self.sources.get(at), self._holds(at)
        live, _ = self._judge(at, motion)
        level, reasons = self._judge(at, motion, holds.findings(live or 0))
        others = combine_findings(motion).level
        state, known_until_s = holds.state(level, live or LOWEST, source, others)
        return level, (*reasons, *holds.ended()), state, known_until_s

    def _holds(self, at: int) -> StepHolds:
        end_s = self.cell.ends_s[at]
        sensors = self.sensor_holds.at(end_s)
        return StepHolds(self.rain_holds[at], sensors, self._rules.limits, end_s)

    def notice_level(self, at: int, motion: Sequence[Finding | None]) -> int | None:
        """Level of a step for notices and sirens; None if it is the level."""
        holds = self._holds(at)
        capped = noticed(motion)
        if not any(f and f.notice_level for f in (*motion, *holds.findings(LOWEST))):
            return None
        live, _ = self._judge(at, capped)
        return self._judge(at, capped, holds.noticed(live or 0, motion))[0]

    def _judge(
        self,
        at: int,
        motion: Iterable[Finding | None],
        held: Iterable[Finding] = (),
    ) -> tuple[int | None, tuple[Reason, ...]]:
        return judge_step(
            self.states[at],
            motion,
            self._criteria,
            self.sure[at],
            held=held,
            source=self.sources.get(at),
            alone_level=self._rules.alone_level,
        )

    def _judge_rain(self, at: int) -> HeldLevel:
        """The judgement of a step by rain alone."""
        ahead = self.ahead_finding(at, self.outlook(at, self.states[at]))
        level, reasons = self._judge(at, [ahead])
        return HeldLevel.of(level or LOWEST, self.cell.ends_s[at], reasons)

    def _rain_hold_to_save(self, at: int) -> RainHold:
        hold = self.rain_holds[at]
        if hold.is_active or self.states[at].tanks is None:
            return hold
        return RainHold(self._judge_rain(at))

    def soil_findings(self, at: int) -> list[Finding | None]:
        """Findings of moisture and pore pressure at a step."""
        end_s, rain_mm = self.cell.ends_s[at], self._rain.rain_mm(at, RAIN_H)
        shares = {
            s: p
            for e in self._percentiles.values()
            for s, p in e.by_sensor(end_s).items()
        }
        return judge_soil(self._probes, end_s, shares, rain_mm)

    def node_findings(
        self,
        end_s: int,
        settings: EvidenceSettings,
        own: Iterable[Finding | None],
    ) -> list[Finding | None]:
        """Findings of the levels that nodes judged, beside the cell's own."""
        return list(
            make_node_findings(self._node_levels, end_s, settings, self._criteria, own)
        )

    def outlook(self, at: int, rain: RainState) -> CellOutlook | None:
        """The two hours ahead of a step; None before the first rain data."""
        if rain.tanks is None:
            return None
        hour = last_hour(self._hours, at + len(self._past.hour))
        coming = self._coming(self.cell.ends_s[at])
        return make_outlook(rain.tanks, hour, self._criteria, coming)

    def columns(
        self, at: int, rain: RainState, view: CellOutlook | None
    ) -> dict[str, Any]:
        """Columns of schemas.LEVELS about the basis of a level."""
        end_s = self.cell.ends_s[at]
        found: dict[str, Any] = {
            "completeness": self._rain.completeness(at),
            "look_ahead_h": self._criteria.look_ahead_h,
            "n_nodes_day": sum(
                bisect_right(ends, end_s) > bisect_right(ends, end_s - DAY_S)
                for ends in self._node_ends.values()
            ),
            "assumed": [
                assumption_sentence(assumption)
                for assumption in list_assumptions(self._criteria, rain.history_s, view)
            ],
        }
        found |= {name: each.highest(end_s) for name, each in self._percentiles.items()}
        if view is None:
            return found
        return (
            found
            | view.columns()
            | {
                "effective_1h5_mm": self._rain.short_mm[at],
                "effective_72h_mm": self._rain.long_mm[at],
                "antecedent_mm_per_day": self._rain.antecedent_mm(at),
            }
        )

    def memories(self, observations: Sequence[Observation]) -> list[ScoringState]:
        """The states to save."""
        places = {at_s: self.cell.ends_s.index(at_s) for at_s in self._due}
        return [
            ScoringState(
                at_s,
                self._rain_past(places[at_s]),
                self.cell.sensors.evidence.states[at_s],
                self._pasts[at_s],
                tuple(last_observations(observations, at_s)),
                self._rain_hold_to_save(places[at_s]),
                self.sensor_holds.saved(at_s),
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


DAY_S: Final = 86_400


@dataclass(frozen=True)
class LevelRow:
    """Row of the table `levels`, without its cell.

    Attributes:
        more: Further columns by name.
        state: `judged`, `held` or `unknown`.
        known_until_s: End of the last judged step where it is not judged; None before
            the first.
    """

    end_s: int
    rain: RainState
    tilt_rate_deg_per_h: float | None
    level: int | None
    reasons: tuple[Reason, ...]
    n_nodes: int
    latest_received_us: int | None
    more: Mapping[str, Any] = field(default_factory=dict)
    state: str = JUDGED
    known_until_s: int | None = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The reasons in English."""
        return tuple(map(render_english, self.reasons))


@dataclass(frozen=True)
class CellRules:
    """Rules for scoring a cell.

    Attributes:
        criteria: Criteria for rain.
        look_ahead: Whether an official forecast of rain may raise a level. The columns
            of the look-ahead are written in any case.
        municipality: Code of the cell's municipality; None if unknown.
        telegrams: JMA's telegrams.
        forecast: Function from a Unix time to the official forecast; None without one.
        limits: When holds end without evidence.
        alone_level: Highest level of doubtful rain that nothing else confirms.
        substitutes: Functions from the end of a step to the rain that takes the place
            of missing rain, the best first; analysed rain comes before, an official
            forecast after them.
        analyses: Analysed rain and soil water index of the cell; None without.
        same_rain: Whether the rain of the last hour, continued, may raise a level
            without a usable forecast.
        evidence: Rules of movement and water.
    """

    criteria: Criteria
    look_ahead: bool = True
    municipality: str | None = None
    telegrams: Sequence[Telegram] = ()
    forecast: Callable[[float], ForecastRain] | None = None
    limits: HoldLimits = NO_LIMITS
    substitutes: Sequence[Substitute] = ()
    alone_level: int = ALONE_LEVEL
    analyses: CellAnalyses | None = None
    same_rain: bool = False
    evidence: EvidenceSettings = DEFAULT_EVIDENCE

    def substitute(self, end_s: int) -> SubstituteRain | None:
        """Rain of a step in place of missing rain; None if there is none."""
        sources = (self._analysed_step, *self.substitutes, self._forecast_step)
        found = (each(end_s) for each in sources)
        return next((rain for rain in found if rain is not None), None)

    def _analysed_step(self, end_s: int) -> SubstituteRain | None:
        return substitute_analysed(self.analyses, end_s)

    def _forecast_step(self, end_s: int) -> SubstituteRain | None:
        coming = self.forecast_rain(end_s - STEP_S)
        if coming.depths_mm is None or coming.issued_s is None:
            return None
        reason = Reason(
            ReasonCode.RAIN_FROM_FORECAST,
            source=coming.source or "",
            issued_s=coming.issued_s,
        )
        return SubstituteRain(coming.depths_mm[0], reason)

    def forecast_rain(self, at_s: float) -> ForecastRain:
        """Forecast rain after a moment."""
        return self.forecast(at_s) if self.forecast else NO_FORECAST

    def analysis_finding(self, at_s: float, rain: RainState) -> Finding | None:
        """Finding of the analyses known at a moment; the gauges' fill what is absent.

        Args:
            at_s: Unix time of the end of a step.
            rain: Rain and soil water by the gauges.
        """
        index_mm = rain.tanks.index_mm if has_recent_rain(rain) and rain.tanks else None
        return find_analysed(self.analyses, at_s, self.criteria, index_mm, rain.r60_mm)

    def official_columns(self, at_s: float) -> dict[str, int | None]:
        """Columns with JMA's level for the cell's municipality."""
        if self.municipality is None:
            return {}
        found = find_official_level(self.telegrams, self.municipality, at_s)
        level, reported_s = found or (None, None)
        reported_us = None if reported_s is None else round(reported_s * 1_000_000)
        return {"official_level": level, "official_at": reported_us}


@dataclass(frozen=True)
class CellScores:
    """Results of scoring a cell.

    Attributes:
        rows: Rows of levels that new readings can have changed.
        sensors: Rows of schemas.SENSORS, likewise, without the cell.
        reflagged: Readings whose flag differs from silver's.
        memories: States to save for later readings.
    """

    rows: list[LevelRow]
    sensors: list[dict[str, Any]]
    reflagged: list[Observation]
    memories: list[ScoringState] = field(default_factory=list)


def score_cell(
    observations: Sequence[Observation],
    rules: CellRules,
    touched_s: float | None = None,
    past: ScoringState | None = None,
    nearby: NearbyRain = NO_NEARBY_RAIN,
) -> CellScores:
    """Flag the readings of a cell, then score it.

    Args:
        observations: All readings of the cell within the horizon, in any order, with
            silver's flags; with a saved state those since `REREAD_S` before it.
        rules: Rules of the cell.
        touched_s: Unix time of the earliest new reading; only rows that it can change
            are returned. None returns all.
        past: A saved state that is valid for the new readings.
        nearby: Rain of the gauges in other cells.
    """
    if not observations:
        return CellScores([], [], [])
    since_s = float("-inf") if touched_s is None else touched_s
    observations = [*(past.last if past else ()), *observations]
    known = flag_with_neighbours(observations, since_s, nearby.neighbours())
    known = flag_beside_analysis(known, rules.analyses, since_s)
    had = {_flag_of(o) for o in observations}
    changed = [o for o in known if _flag_of(o) not in had]
    from_s = first_changed_s(known, touched_s)
    if past is not None:
        from_s = max(from_s, past.at_s + 1)
    cell = CellReadings.from_observations(known, from_s, past, rules.evidence)
    rules = replace(rules, substitutes=(*rules.substitutes, nearby.substitute))
    run = CellPass(cell, known, rules, past)
    rows = _rows(run, rules, from_s)
    return CellScores(
        rows,
        make_sensor_rows(cell.sensors, known, from_s),
        changed,
        run.memories(known),
    )


def _flag_of(o: Observation) -> tuple[object, ...]:
    """A reading with its flag; equal if the flag did not change."""
    return o.node, o.boot, o.seq, o.name, o.at_s, o.flag, o.why


def score_levels(
    observations: Sequence[Observation],
    criteria: Criteria,
    touched_s: float | None = None,
) -> list[LevelRow]:
    """Score a cell at the end of each step from its first to its last reading.

    Args:
        observations: All readings of the cell within the horizon, in any order; their
            flags are used as given.
        criteria: Criteria for rain.
        touched_s: Unix time of the earliest new reading; only rows that it can change
            are returned. None returns all.
    """
    if not observations:
        return []
    from_s = first_changed_s(observations, touched_s)
    known = sorted(observations, key=lambda o: o.at_s)
    rules = CellRules(criteria)
    run = CellPass(CellReadings.from_observations(known, from_s), known, rules)
    return _rows(run, rules, from_s)


def _rows(run: CellPass, rules: CellRules, from_s: float) -> list[LevelRow]:
    rows, cell = [], run.cell
    for at, end_s in enumerate(cell.ends_s):
        if end_s < from_s:
            continue
        rain = run.states[at]
        rate, motion = cell.sensors.findings(end_s)
        motion += run.soil_findings(at)
        motion += run.node_findings(end_s, rules.evidence, motion)
        view = run.outlook(at, rain)
        motion.append(run.ahead_finding(at, view))
        motion.append(rules.analysis_finding(end_s, rain))
        level, reasons, state, known_until_s = run.judge(at, motion)
        in_step = cell.by_step.get(end_s, [])
        row = LevelRow(
            end_s,
            rain,
            rate,
            level,
            reasons + cell.rain[at].notes() + list_doubts(in_step),
            len({o.node for o in in_step}),
            max((o.received_us for o in in_step), default=None),
            run.columns(at, rain, view)
            | rules.official_columns(end_s)
            | {"notice_level": run.notice_level(at, motion)},
            state,
            known_until_s,
        )
        rows.append(row)
    return rows


def first_changed_s(
    observations: Iterable[Observation], touched_s: float | None
) -> float:
    """Unix time from which new readings can change rows.

    Includes the steps since the last older reading, which have no rows yet.
    """
    if touched_s is None:
        return float("-inf")
    earlier = [o.at_s for o in observations if o.at_s < touched_s]
    from_s = min(max(earlier, default=touched_s), touched_s - FLAG_REACH_S)
    return min([from_s, *gap_begins(observations, touched_s - NEIGHBOUR_S)])

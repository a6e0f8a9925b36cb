"""Levels of a cell, step by step: a pure function of its readings.

A gap is never zero rain: the tanks drain, and from then on the index is marked as a
lower bound; a substitute such as a forecast fills the gap where there is one. The level
is held meanwhile; see `holds`. After more than a day without rain data there is no
judgement by rain; only a held level, movement and other evidence give one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from backend_spark.scoring.cell_readings import (
    CellReadings,
    PassRain,
    first_changed_s,
    first_touched_s,
    list_steps,
    make_sensor_rows,
)
from backend_spark.scoring.evidence import find_percentiles, group_soil, judge_soil
from backend_spark.scoring.holds import (
    JUDGED,
    NO_HOLD,
    HeldLevel,
    RainHold,
    SensorHolds,
    StepHolds,
    rain_holds,
)
from backend_spark.scoring.node_levels import find_node_levels, make_node_findings
from backend_spark.scoring.observation import STEP_S, Observation
from backend_spark.scoring.quality import (
    FLAG_REACH_S,
    find_rain_records,
    flag_with_neighbours,
    with_new_flags,
)
from backend_spark.scoring.rain import NO_RAIN_PAST, RainState, without_doubt
from backend_spark.scoring.rules import (
    CellOutlook,
    CellRules,
    assumption_sentence,
    has_recent_rain,
    judge_step,
    list_assumptions,
    list_doubts,
    make_outlook,
)
from backend_spark.scoring.saved_states import (
    NO_HOT_TIMES,
    HotState,
    HotTimes,
    ScoringState,
    keep_readings,
    last_observations,
    state_times_s,
    tail_s,
    trim_records,
)
from backend_spark.scoring.surrounding_rain import (
    NO_NEARBY_RAIN,
    NearbyRain,
    flag_beside_analysis,
)
from slope_science.evidence.settings import EvidenceSettings
from slope_science.evidence.soil_and_water_level import RAIN_H
from slope_science.levels import LOWEST, WARNING, Finding, combine_findings, noticed
from slope_science.rain_quality import RainRecord
from slope_science.reasons import Reason, render_english


class CellPass:
    """One pass over the steps of a cell, from a saved state or from the start.

    Args:
        cell: Readings by kind.
        observations: The same in time order, with flags.
        rules: Rules of the cell.
        past: Saved state before the first step.
        due: Ends of the steps at which a state may be taken, ascending.

    Attributes:
        cell: Readings by kind.
        rain: Rain and soil water.
        rain_holds: Hold of the level by rain at each step.
        rules: Rules of the cell.
        sensor_holds: Holds of the other sensors.
    """

    def __init__(
        self,
        cell: CellReadings,
        observations: Sequence[Observation],
        rules: CellRules,
        past: ScoringState | None = None,
        due: Sequence[int] = (),
    ) -> None:
        self.cell = cell
        self.rules = rules
        self._coming = rules.forecast_rain
        self._probes = group_soil(observations)
        self._state = past
        self._outlooks: dict[int, CellOutlook | None] = {}
        self._criteria = rules.criteria
        self._node_levels = find_node_levels(observations)
        rain_past = past.rain if past else NO_RAIN_PAST
        self.rain = PassRain(cell.rain, cell.ends_s, rules, rain_past)
        self._percentiles, self._pasts = find_percentiles(
            observations,
            past.pasts if past else {},
            past.at_s if past else float("-inf"),
            due,
        )
        self._node_ends: dict[str, list[int]] = {}
        for end_s in sorted(cell.by_step):
            for node in {o.node for o in cell.by_step[end_s]}:
                self._node_ends.setdefault(node, []).append(end_s)
        self.rain_holds = list(
            rain_holds(
                self.rain.states, self._judge_rain, past.rain_hold if past else NO_HOLD
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
        rain = self.rain
        is_usable = has_recent_rain(rain.states[at]) or at in rain.sources
        if view is None or not self.rules.look_ahead or not is_usable:
            return None
        same_rain, sure = self.rules.same_rain, rain.sure[at]
        found = view.finding(self._criteria, same_rain=same_rain)
        if found is None or sure is None or sure.tanks is None:
            return found
        # The steps themselves: the same rain is the mean of those that are known.
        hour = list(map(without_doubt, rain.last_hour(at)))
        coming = self._coming(rain.until_s(at))
        without = make_outlook(sure.tanks, hour, self._criteria, coming)
        surely = without.finding(self._criteria, same_rain=same_rain)
        ceiling = max(surely.level if surely else LOWEST, self.rules.alone_level)
        return replace(found, level=min(found.level, ceiling))

    def judge(
        self, at: int, motion: Sequence[Finding | None]
    ) -> tuple[int | None, tuple[Reason, ...], str, int | None]:
        """Level, reasons, state and `LevelRow.known_until_s` at the end of a step.

        Args:
            at: Index of the step.
            motion: Findings of other evidence than the rain up to then.
        """
        source, holds = self.rain.sources.get(at), self._holds(at)
        live, _ = self._judge(at, motion)
        level, reasons = self._judge(at, motion, holds.findings(live or 0))
        others = combine_findings(motion).level
        state, known_until_s = holds.state(level, live or LOWEST, source, others)
        return level, (*reasons, *holds.ended()), state, known_until_s

    def _holds(self, at: int) -> StepHolds:
        end_s = self.cell.ends_s[at]
        sensors = self.sensor_holds.at(end_s)
        return StepHolds(self.rain_holds[at], sensors, self.rules.limits, end_s)

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
            self.rain.states[at],
            motion,
            self._criteria,
            self.rain.sure[at],
            held=held,
            source=self.rain.sources.get(at),
            alone_level=self.rules.alone_level,
        )

    def _judge_rain(self, at: int) -> HeldLevel:
        """The judgement of a step by rain alone."""
        ahead = self.ahead_finding(at, self.outlook(at))
        level, reasons = self._judge(at, [ahead])
        return HeldLevel.of(level or LOWEST, self.cell.ends_s[at], reasons)

    def _rain_hold_to_save(self, at: int) -> RainHold:
        hold = self.rain_holds[at]
        if hold.is_active or self.rain.states[at].tanks is None:
            return hold
        return RainHold(self._judge_rain(at))

    def soil_findings(self, at: int) -> list[Finding | None]:
        """Findings of moisture and pore pressure at a step."""
        end_s, rain_mm = self.cell.ends_s[at], self.rain.sums.rain_mm(at, RAIN_H)
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

    def outlook(self, at: int) -> CellOutlook | None:
        """The two hours ahead of a step; None before the first rain data."""
        if at not in self._outlooks:
            self._outlooks[at] = self._look_ahead(at, self.rain.states[at])
        return self._outlooks[at]

    def _look_ahead(self, at: int, rain: RainState) -> CellOutlook | None:
        if rain.tanks is None:
            return None
        coming = self._coming(self.rain.until_s(at))
        hour = self.rain.last_hour(at)
        return make_outlook(rain.tanks, hour, self._criteria, coming)

    def columns(
        self, at: int, rain: RainState, view: CellOutlook | None
    ) -> dict[str, Any]:
        """Columns of schemas.LEVELS about the basis of a level."""
        end_s = self.cell.ends_s[at]
        found: dict[str, Any] = {
            "completeness": self.rain.sums.completeness(at),
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
                "effective_1h5_mm": self.rain.sums.short_mm[at],
                "effective_72h_mm": self.rain.sums.long_mm[at],
                "antecedent_mm_per_day": self.rain.sums.antecedent_mm(at),
            }
        )

    def state(self, at_s: int, last: Iterable[Observation]) -> ScoringState:
        """The state at the end of a step that is due.

        Args:
            at_s: End of the step.
            last: `ScoringState.last`.
        """
        at = self.cell.ends_s.index(at_s)
        return ScoringState(
            at_s,
            self.rain.past_at(at),
            self.cell.sensors.evidence.states[at_s],
            self._pasts[at_s],
            tuple(last),
            self._rain_hold_to_save(at),
            self.sensor_holds.saved(at_s),
        )

    def is_final(self, at_s: int) -> bool:
        """Whether a step does not change when rain of the next one becomes known."""
        return not self.cell.rain[self.cell.ends_s.index(at_s)].parts

    def is_certain(self, at_s: int) -> bool:
        """Whether later readings that change no flag change no step up to one.

        The rain of `FLAG_REACH_S`, in which late readings of neighbours can change
        flags, is known, and no sensor has a finding that is held if it becomes silent.
        """
        at, begin_s = self.cell.ends_s.index(at_s), at_s - FLAG_REACH_S
        first = max(0, at + 1 - round(FLAG_REACH_S / STEP_S))
        past = self._state
        is_whole = past is None or past.at_s <= begin_s
        states = self.rain.states[first : at + 1]
        return (
            self.is_final(at_s)
            and (is_whole or (isinstance(past, HotState) and not past.margin_s))
            and all(s.is_known or s.tanks is None for s in states)
            and all(
                f.level < WARNING for f in self.cell.sensors.evidence.at(at_s).findings
            )
            and not self.sensor_holds.saved(at_s)
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
class CellScores:
    """Results of scoring a cell.

    Attributes:
        rows: Rows of levels that new readings can have changed.
        sensors: Rows of schemas.SENSORS, likewise, without the cell.
        reflagged: Readings whose flag differs from silver's.
        memories: States to save for later readings.
        hot: Hot state for the next readings; None if there is no new one.
    """

    rows: list[LevelRow]
    sensors: list[dict[str, Any]]
    reflagged: list[Observation]
    memories: list[ScoringState] = field(default_factory=list)
    hot: HotState | None = None


def score_cell(
    observations: Sequence[Observation],
    rules: CellRules,
    touched_s: float | None = None,
    past: ScoringState | None = None,
    nearby: NearbyRain = NO_NEARBY_RAIN,
    *,
    makes_hot: bool = False,
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
        makes_hot: Whether a hot state is wanted.
    """
    if not observations:
        return CellScores([], [], [])
    observations = [*(past.last if past else ()), *observations]
    known, changed = _flag(observations, rules, touched_s, nearby)
    # States are saved after the end of the first step at the earliest.
    ends_s = list_steps(known, past)
    after_s = past.at_s if past else ends_s[0]
    due = state_times_s(after_s, known[-1].at_s)
    times = HotTimes.of(ends_s, known) if makes_hot else NO_HOT_TIMES
    from_s = first_touched_s(changed, touched_s)
    run, scores = _score(known, rules, from_s, past, nearby, [*due, *times])
    memories = [
        run.state(at_s, last_observations(known, at_s))
        for at_s in due
        if run.cell.is_settled(at_s)
    ]
    records = find_rain_records(known) if makes_hot else {}
    hot = make_hot_state(run, times, known, records, known[-1].at_s)
    return replace(scores, reflagged=changed, memories=memories, hot=hot)


def score_from_hot(
    observations: Sequence[Observation],
    rules: CellRules,
    touched_s: float,
    past: HotState,
    nearby: NearbyRain = NO_NEARBY_RAIN,
) -> CellScores | None:
    """Flag and score the new readings of a cell.

    Args:
        observations: Readings of the cell after the state, in any order.
        rules: Rules of the cell.
        touched_s: Unix time of the earliest new reading.
        past: A state that `HotState.holds_for` these.
        nearby: Rain of the gauges in other cells.

    Returns:
        None if the cell must be scored from a saved state. Without a new hot state the
        past one remains the newest.
    """
    observations = [*past.last, *observations]
    records = find_rain_records(observations, past.gauges)
    known, changed = _flag(observations, rules, touched_s, nearby, records)
    if not past.still_holds(known, changed, touched_s):
        return None
    times = HotTimes.of(list_steps(known, past), known)
    from_s = first_touched_s(changed, touched_s)
    run, scores = _score(known, rules, from_s, past, nearby, list(times))
    hot = make_hot_state(run, times, known, records, past.cold_s)
    return replace(scores, reflagged=changed, hot=hot)


def _flag(
    observations: Sequence[Observation],
    rules: CellRules,
    touched_s: float | None,
    nearby: NearbyRain,
    records: Mapping[str, RainRecord] | None = None,
) -> tuple[list[Observation], list[Observation]]:
    """All readings with their flags in time order, and those with a new flag."""
    since_s = float("-inf") if touched_s is None else touched_s
    around = nearby.neighbours()
    known = flag_with_neighbours(
        observations,
        since_s,
        around,
        records,
        is_checked=records is not None,
    )
    known = flag_beside_analysis(known, rules.analyses, since_s, around, observations)
    return known, with_new_flags(known, observations)


def _score(  # noqa: PLR0917 - one step of two functions
    known: Sequence[Observation],
    rules: CellRules,
    touched_s: float | None,
    past: ScoringState | None,
    nearby: NearbyRain,
    due: Iterable[int],
) -> tuple[CellPass, CellScores]:
    """Score readings with flags; without the states to save."""
    from_s = first_changed_s(known, touched_s)
    if past is not None:
        from_s = max(from_s, past.at_s + 1)
    due = sorted(set(due))
    cell = CellReadings.from_observations(known, from_s, past, rules.evidence, due)
    rules = replace(rules, substitutes=(*rules.substitutes, nearby.substitute))
    run = CellPass(cell, known, rules, past, due)
    rows = level_rows(run, rules, from_s)
    return run, CellScores(rows, make_sensor_rows(cell.sensors, known, from_s), [])


def make_hot_state(
    run: CellPass,
    times: HotTimes,
    known: Sequence[Observation],
    records: Mapping[str, RainRecord],
    cold_s: float,
) -> HotState | None:
    """The newest hot state of a pass; None if there is none.

    Args:
        run: The pass.
        times: Its times of hot states.
        known: Readings in time order, with flags.
        records: Their rain by gauge.
        cold_s: See `HotState`.
    """
    at_s, margin_s, rules = times.newest_s, 0.0, run.rules
    if at_s is None or not run.is_certain(at_s):
        at_s, margin_s = times.older_s, FLAG_REACH_S
        if at_s is None or not run.is_final(at_s):
            return None
    tail = tail_s(rules.evidence)
    kept = keep_readings(known, at_s, tail, all_rain=rules.analyses is not None)
    state = run.state(at_s, kept)
    return HotState(
        **vars(state),
        gauges=trim_records(records, at_s),
        margin_s=margin_s,
        cold_s=cold_s,
        digest=rules.digest(at_s),
    )


def level_rows(run: CellPass, rules: CellRules, from_s: float) -> list[LevelRow]:
    """Rows of the steps of a pass that end at a time or later."""
    rows, cell = [], run.cell
    for at, end_s in enumerate(cell.ends_s):
        if end_s < from_s:
            continue
        rain = run.rain.states[at]
        rate, motion = cell.sensors.findings(end_s)
        motion += run.soil_findings(at)
        motion += run.node_findings(end_s, rules.evidence, motion)
        view = run.outlook(at)
        motion.append(run.ahead_finding(at, view))
        motion.append(rules.analysis_finding(end_s, run.rain.sure[at] or rain))
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

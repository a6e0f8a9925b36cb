"""Checks on the outcome of a series on the whole path."""

from collections.abc import Callable
from typing import Final

from experiments.evidence.path import Outcome, hours_of
from experiments.evidence.series import SLOPE

Check = Callable[[Outcome, Outcome | None], str | None]
"""What is wrong with an outcome, given that of the clean series; None: nothing."""


EDGE_STEPS: Final = 1
"""A change of level may be one step early or late: tips are spread over a gap."""

LOWEST_HELD: Final = 2
"""A lower level cannot show that it is held."""


def node_at_most(level: int) -> Check:
    """The node's level."""
    return lambda o, _: _over("node", o.worst_node, level)


def backend_at_most(level: int) -> Check:
    """Every level that the console showed."""
    return lambda o, _: _over("backend", o.worst_shown, level)


def notice_at_most(level: int) -> Check:
    """Every notice."""
    return lambda o, _: _over("notice", o.worst_notice, level)


def siren_at_most(minutes: float) -> Check:
    """Minutes of the siren."""
    return lambda o, _: _over("siren min", len(o.siren_on_h), minutes)


def _over(name: str, value: float, most: float) -> str | None:
    return f"{name} {value:g} > {most:g}" if value > most else None


def calm(level: int = 2) -> tuple[Check, ...]:
    """A fault in calm weather: no level above, no siren."""
    return (
        node_at_most(level),
        backend_at_most(level),
        notice_at_most(level),
        siren_at_most(0),
    )


def flagged(node: str = SLOPE) -> Check:
    """Some reading of a node is flagged."""
    return lambda o, _: None if o.flagged.get(node) else f"no flag on {node}"


def unflagged(*nodes: str) -> Check:
    """No reading of good nodes is flagged."""

    def check(o: Outcome, _: Outcome | None) -> str | None:
        bad = {node: sorted(o.flagged[node]) for node in nodes if o.flagged.get(node)}
        return f"good nodes are flagged: {bad}" if bad else None

    return check


def never_below(from_h: float, to_h: float) -> Check:
    """The level shown at a moment does not fall later."""

    def check(o: Outcome, _: Outcome | None) -> str | None:
        before, lowest = o.shown_at(from_h).level or 0, o.lowest_shown(from_h, to_h)
        if before < LOWEST_HELD:
            return f"level {before} at {from_h:g} h, too low for the test"
        return f"level fell from {before} to {lowest}" if lowest < before else None

    return check


def notice_in_force(from_h: float, to_h: float, level: int) -> Check:
    """A notice of a level stays in force."""

    def check(o: Outcome, _: Outcome | None) -> str | None:
        at_h = from_h
        while at_h <= to_h:
            if o.notice_level(at_h) < level:
                return f"notice {o.notice_level(at_h)} < {level} at {at_h:.1f} h"
            at_h += 0.25
        return None

    return check


def notice_at_most_from(from_h: float, level: int) -> Check:
    """The notice in force from a time on."""

    def check(o: Outcome, _: Outcome | None) -> str | None:
        times = [from_h, *(hours_of(n["at"]) for n in o.notices)]
        worst = max(o.notice_level(at_h) for at_h in times if at_h >= from_h)
        return _over(f"notice from {from_h:g} h", worst, level)

    return check


def not_judged(from_h: float, to_h: float) -> Check:
    """The state is said to be held or unknown at the end of a time."""

    def check(o: Outcome, _: Outcome | None) -> str | None:
        states = {o.shown_at(to_h).state}
        return f"judged from {from_h:g} to {to_h:g} h" if "judged" in states else None

    return check


def as_true(more: int = 0, less: int = 0, final: bool = True) -> Check:
    """Levels are those of the clean series, within a tolerance; unknown is neither."""

    def check(o: Outcome, truth: Outcome | None) -> str | None:
        if truth is None:
            return "the case has no clean series"
        of_time = {s["at"]: s["level"] or 1 for s in truth.steps}
        pairs = [
            (s["at"], s["level"], of_time[s["at"]])
            for s in o.steps
            if s["at"] in of_time and s["level"] is not None
        ]
        high = [p for p in pairs if p[1] > p[2] + more]
        low = [p for p in pairs if p[1] < p[2] - less]
        if final and len(high) + len(low) > EDGE_STEPS:
            at, level, true = (high or low)[0]
            counts = f"{len(high)} steps too high, {len(low)} too low"
            return f"{counts}: {level} for {true} at {at}"
        return _over("backend", o.worst_shown, truth.worst_shown + more)

    return check


def reaches(level: int, event_h: float, within_min: float) -> Check:
    """The backend shows a level in time."""

    def check(o: Outcome, _: Outcome | None) -> str | None:
        late_min = (o.first_shown_h(level) - event_h) * 60
        return (
            f"backend {level} after {late_min:.0f} min"
            if late_min > within_min
            else None
        )

    return check


def node_reaches(level: int, event_h: float, within_min: float) -> Check:
    """The node has a level in time."""

    def check(o: Outcome, _: Outcome | None) -> str | None:
        late_min = (o.first_node_h(level) - event_h) * 60
        return (
            f"node {level} after {late_min:.0f} min" if late_min > within_min else None
        )

    return check


def node_at_least(level: int) -> Check:
    """The node's level."""
    return lambda o, _: (
        None if o.worst_node >= level else f"node {o.worst_node} < {level}"
    )

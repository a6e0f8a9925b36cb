"""``python -m experiments.evidence.held_out_run``: series that the rules were not for.

Prints for each series what is wrong, and for all of them false and missed hours of
levels 4 and 5 per sensor-year.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from experiments.bench.table import table, write
from experiments.evidence.held_out import DANGER, SEED, HeldOut, all_series
from experiments.evidence.path import Outcome, run_path

YEAR_H = 8760.0
SPACING_S = 900
HEAD = (
    "kind", "number", "every s", "jitter", "lost", "node", "backend", "notice",
    "late min", "false h", "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class HeldOutResult:
    """Result of a series.

    Attributes:
        case: The series and what must be true.
        outcome: On the whole path.
        false: What is false, as words.
        missed: What is missed or late, as words.
        false_h: Hours of final levels 4 and 5 without an event.
    """

    case: HeldOut
    outcome: Outcome
    false: list[str]
    missed: list[str]
    false_h: float

    @property
    def late_min(self) -> float | None:
        """Minutes from the begin of the event to level 4; None without an event."""
        if math.isinf(self.case.event_h):
            return None
        return (self.outcome.first_shown_h(DANGER) - self.case.event_h) * 60

    def row(self) -> list[object]:
        """Row of the table."""
        case, out, series = self.case, self.outcome, self.case.series
        late_min = self.late_min
        return [
            case.kind, case.number, series.every_s, getattr(series, "jitter", 0.0),
            getattr(series, "lost", 0.0), out.worst_node, out.worst_shown,
            out.worst_notice, "-" if late_min is None else round(late_min, 1),
            round(self.false_h, 1), "; ".join(self.false + self.missed) or "pass",
        ]  # fmt: skip


def run_held_out(case: HeldOut) -> HeldOutResult:
    """Run a series through the whole path."""
    outcome = run_path(case.series, spacing_s=SPACING_S)
    false_h = sum(
        (step["level"] or 1) >= DANGER
        for number, step in enumerate(outcome.steps)
        if case.most < DANGER or (number + 1) / 6 < case.event_h
    )
    false = list(_false(case, outcome))
    return HeldOutResult(
        case, outcome, false, list(_missed(case, outcome)), false_h / 6
    )


def _false(case: HeldOut, out: Outcome) -> Iterator[str]:
    alarm = max((n.alarm_level for n in out.node), default=1)
    for name, level, most in (
        ("node", out.worst_node, case.most),
        ("backend", out.worst_shown, case.most),
        ("notice", out.worst_notice, case.most_notice),
        ("node's alarm", alarm, case.most_notice),
    ):
        if level > most:
            yield f"{name} {level} > {most}"
    if case.most_notice < DANGER and out.siren_on_h:
        yield f"siren {len(out.siren_on_h)} min"
    first_h = min(out.first_node_h(DANGER), out.first_shown_h(DANGER))
    if case.most >= DANGER and first_h < case.event_h:
        yield "4 before the event"
    for node in case.unflagged:
        if out.flagged.get(node):
            yield f"{node} is flagged: {sorted(out.flagged[node])}"


def _missed(case: HeldOut, out: Outcome) -> Iterator[str]:
    if math.isinf(case.event_h):
        return
    firsts = [("backend", out.first_shown_h(DANGER))]
    if case.node_sees:
        firsts.append(("node", out.first_node_h(DANGER)))
    for name, first_h in firsts:
        if first_h > case.due_h + 1e-6:
            late_min = (first_h - case.due_h) * 60
            yield f"{name} {late_min:.0f} min late"
    first_h = out.first_shown_h(DANGER)
    if first_h < case.held_h and out.lowest_shown(first_h, case.held_h) < DANGER:
        yield f"not held until {case.held_h:.1f} h"
    if out.worst_notice < case.notice:
        yield f"notice {out.worst_notice} < {case.notice}"


def summary(results: Sequence[HeldOutResult]) -> str:
    """Numbers of series in which something is wrong, and hours per sensor-year."""
    false = sum(bool(each.false) for each in results)
    missed = sum(bool(each.missed) for each in results)
    years = sum(each.case.series.sensor_hours for each in results) / YEAR_H
    false_h = sum(each.false_h for each in results) / years
    lates = sorted(each.late_min for each in results if each.late_min is not None)
    middle_min, most_min = (lates or [0.0])[len(lates) // 2], (lates or [0.0])[-1]
    return (
        f"{len(results)} series: something false in {false}, missed or late in "
        f"{missed}; false levels 4 and 5: {false_h:.0f} hours per sensor-year; "
        f"level 4 after {middle_min:.0f} min (median), {most_min:.0f} at most"
    )


@click.command()
@click.option("--seed", type=int, default=SEED, help="Another one is not held out.")
@click.option("--only", default="", help="Only kinds whose name contains this.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(seed: int, only: str, out: Path) -> None:
    """Print the table; exits with 1 if a series fails."""
    results = []
    for case in all_series(seed, only):
        results.append(run_held_out(case))
        click.echo(f"{results[-1].row()}", err=True)
    rows = [result.row() for result in results]
    click.echo(table(HEAD, [row for row in rows if row[-1] != "pass"]))
    click.echo(summary(results))
    write(out, "held_out", {"rows": [dict(zip(HEAD, r, strict=True)) for r in rows]})
    raise SystemExit(any(each.false or each.missed for each in results))


if __name__ == "__main__":
    main()

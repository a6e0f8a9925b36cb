"""``python -m experiments.evidence``: injected faults from sensor to siren.

Prints for each case the highest level of node, backend and notice, minutes of the
siren, false and missed levels per sensor-year, and what is wrong.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click

from backend_spark.scoring.observation import STEP_S
from experiments.bench.table import table, write
from experiments.evidence.cases import ALL, ISSUE, Case
from experiments.evidence.path import Outcome, run_path
from experiments.evidence.series import Series

YEAR_H = 8760.0
FALSE_FROM = 2
HEAD = (
    "case", "row", "every s", "seed", "node", "backend", "notice", "siren min",
    "false h/year", "missed h/year", "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class CaseResult:
    """Result of a case.

    Attributes:
        case: The case.
        series: What it was run on.
        outcome: On the whole path.
        problems: What is wrong.
        false_h: Hours with a final level of 2 or more above the truth.
        missed_h: Hours with a final level below the truth.
    """

    case: Case
    series: Series
    outcome: Outcome
    problems: Sequence[str]
    false_h: float
    missed_h: float

    def row(self) -> list[object]:
        """Row of the table."""
        out, years = self.outcome, self.outcome.until_h / YEAR_H
        return [
            self.case.name, self.case.row or "-", self.series.every_s, self.series.seed,
            out.worst_node, out.worst_shown, out.worst_notice, len(out.siren_on_h),
            round(self.false_h / years), round(self.missed_h / years),
            "; ".join(self.problems) or "pass",
        ]  # fmt: skip


def run_case(
    case: Case, every_s: float = 600.0, seed: int = 1, spacing_s: int = 600
) -> CaseResult:
    """Run a case, and its clean series where it has one.

    Args:
        case: The case.
        every_s: Interval of the readings.
        seed: Of all random numbers.
        spacing_s: Shortest time between two passes; an hour at least in coarse cases.
    """
    base = Series(hours=case.hours, every_s=every_s, seed=seed)
    spacing_s = max(spacing_s, 3600) if case.coarse else spacing_s
    series = case.build(base)
    outcome = run_path(series, case.after_h, spacing_s)
    truth = None
    if case.clean is not None:
        truth = run_path(case.clean(base), case.after_h, 21_600)
    false_h, missed_h = _wrong_hours(outcome, truth)
    problems = case.problems(outcome, truth)
    return CaseResult(case, series, outcome, problems, false_h, missed_h)


def _wrong_hours(outcome: Outcome, truth: Outcome | None) -> tuple[float, float]:
    """Hours above and below the truth; an unknown level is neither."""
    true = {} if truth is None else {s["at"]: s["level"] or 1 for s in truth.steps}
    levels = [(s["level"], true.get(s["at"], 1)) for s in outcome.steps if s["level"]]
    false = sum(level >= FALSE_FROM and level > is_true for level, is_true in levels)
    return false / 6, sum(level < is_true for level, is_true in levels) / 6


def run_all(
    cases: Sequence[Case], cadences_s: Sequence[float], seeds: Sequence[int]
) -> Iterator[CaseResult]:
    """Run cases over a grid; cases of days are run at 600 s only."""
    for case, every_s, seed in product(cases, cadences_s, seeds):
        if every_s >= STEP_S or not case.coarse:
            yield run_case(case, every_s, seed)


@click.command()
@click.option("--cadence", multiple=True, type=float, default=(600.0,))
@click.option("--seed", multiple=True, type=int, default=(1,))
@click.option("--issue-only", is_flag=True, help="Only the rows of the issue's table.")
@click.option("--only", default="", help="Only cases whose name contains this.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(
    cadence: tuple[float, ...],
    seed: tuple[int, ...],
    *,
    issue_only: bool,
    only: str,
    out: Path,
) -> None:
    """Print the table; exits with 1 if a case fails."""
    cases = [case for case in (ISSUE if issue_only else ALL) if only in case.name]
    rows, failed, begin_s = [], 0, time.monotonic()
    for result in run_all(cases, cadence, seed):
        rows.append(result.row())
        failed += bool(result.problems)
        click.echo(f"{result.row()}", err=True)
    click.echo(table(HEAD, rows))
    click.echo(f"{failed} of {len(rows)} runs fail; {time.monotonic() - begin_s:.0f} s")
    write(out, "evidence", {"rows": [dict(zip(HEAD, r, strict=True)) for r in rows]})
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()

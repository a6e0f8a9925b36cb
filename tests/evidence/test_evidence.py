"""Injected faults over the whole path: node, backend, notices, siren on mock pins.

What must be is in `experiments.evidence.cases`; `python -m experiments.evidence` prints
the table of all of them.
"""

import pytest

from experiments.evidence.__main__ import run_case
from experiments.evidence.cases import ISSUE, MORE, Case
from experiments.evidence.series import RECORDED

SHORT = {
    "clock an hour ahead, true creep",
    "kick of 1 deg",
    "kick that pulls the rod, too",
    "one report of 200 mm",
    "extensometer step of 40 mm",
    "true creep of 0.2 deg/h",
    "counter falls and rises by 20 mm",
}
"""Cases that run in each `make test`."""


def cases(*, short: bool) -> list[object]:
    """Cases as parameters."""
    return [
        pytest.param(case, id=case.name)
        for case in (*ISSUE, *MORE)
        if (case.name in SHORT) is short
    ]


def check(
    case: Case, every_s: float = 600.0, seed: int = 1, spacing_s: int = 600
) -> None:
    """Run a case; it must have no problem."""
    if case.name.startswith("recorded") and not RECORDED.exists():
        pytest.skip(f"the measurements are not beside the project: {RECORDED.name}")
    assert run_case(case, every_s, seed, spacing_s).problems == []


@pytest.mark.parametrize("case", cases(short=True))
def test_fault_causes_no_wrong_level(case: Case) -> None:
    check(case, spacing_s=1800)


@pytest.mark.long
@pytest.mark.parametrize("case", cases(short=False))
def test_every_fault_causes_no_wrong_level(case: Case) -> None:
    check(case)


@pytest.mark.long
@pytest.mark.parametrize(("every_s", "seed"), [(60.0, 2), (300.0, 3), (600.0, 4)])
@pytest.mark.parametrize(
    "case", [c for c in ISSUE if c.hours <= 12 and c.row in {3, 9, 10}]
)
def test_faults_at_other_cadences(case: Case, every_s: float, seed: int) -> None:
    check(case, every_s, seed)


def test_table_has_every_row_of_the_issue_and_thirty_more() -> None:
    assert {case.row for case in ISSUE} == set(range(1, 11))
    assert len(MORE) >= 30
    names = [case.name for case in (*ISSUE, *MORE)]
    assert len(names) == len(set(names))
    assert set(names) >= SHORT

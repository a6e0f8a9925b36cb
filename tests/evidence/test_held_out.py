"""Series of `experiments.evidence.held_out`, over the whole path.

Seeds here are not the held-out one, whose figures are in docs/explanation/evidence.md.
"""

import pytest

from experiments.evidence.held_out import KINDS, all_series
from experiments.evidence.held_out_run import run_held_out

SEED = 1
SHORT = {
    "cables of three nodes are exchanged",
    "impossible depth in one report beside one dry gauge",
    "weak supply: noise",
}
"""Kinds of which the first series runs in each `make test`."""

LONG = {
    "brown-outs: all sensors read low in single readings",
    "cables of two nodes are exchanged",
    "clog released in one report beside one dry gauge",
    "pump: noise for ten minutes of each half hour",
    "weak supply: noise of tilt and rod grows",
    "weak supply: one wave on all sensors",
}


@pytest.mark.parametrize("kind", sorted(SHORT))
def test_first_series_of_a_kind_raises_nothing_false(kind: str) -> None:
    assert run_held_out(next(all_series(SEED, kind))).false == []


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(SHORT | LONG))
def test_series_of_a_kind_raise_nothing_false(kind: str) -> None:
    found = [
        (case.number, run_held_out(case).false)
        for case in all_series(SEED, kind)
        if case.kind == kind
    ]
    assert [each for each in found if each[1]] == []


def test_held_out_set_has_both_kinds_of_fault_and_true_events() -> None:
    cases = list(all_series())
    assert len(cases) >= 60
    assert {case.kind for case in cases} == set(KINDS) > SHORT | LONG
    assert sum(case.event_h < case.series.hours for case in cases) >= 30

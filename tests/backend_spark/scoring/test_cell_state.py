"""Scoring from saved states gives the same rows as scoring all readings at once."""

import random

import pytest
from cell_days import DAY_S, DAYS, T0, Store, arrivals, readings, silent_gauge

from backend_spark.scoring.revisions import is_unchanged
from backend_spark.scoring.saved_states import (
    MAX_STATE_AGE_S,
    ScoringState,
    decode_state,
    encode_state,
    keeps_state,
    state_times_s,
)


@pytest.mark.parametrize(
    ("seed", "days"),
    [(0, 4), *(pytest.param(s, DAYS, marks=pytest.mark.long) for s in range(3))],
)
def test_scoring_in_batches_equals_scoring_all_at_once(seed: int, days: int) -> None:
    """Late, out of order, in any batches, from saved states: the same rows of gold."""
    rng = random.Random(seed)
    observations = readings(rng, days)
    whole, in_batches = Store(), Store()
    whole.add(observations)
    for batch in arrivals(observations, rng, days):
        in_batches.add(batch)

    assert len(set(in_batches.used)) > days // 3
    assert in_batches.gold.keys() == whole.gold.keys()
    for key, row in whole.gold.items():
        assert is_unchanged(row, in_batches.gold[key]), (seed, key)
        assert row.get("history_days") == in_batches.gold[key].get("history_days")
    assert {r["level"] for r in whole.gold.values() if "level" in r} >= {1, 3, 5}
    flags = {key: (o.flag, o.why) for key, o in whole.silver.items()}
    assert flags == {key: (o.flag, o.why) for key, o in in_batches.silver.items()}
    assert len({flag for flag, _ in flags.values()}) >= 3


@pytest.mark.parametrize(
    ("until_h", "boot"),
    [
        (105, "before"),
        pytest.param(76, "before", marks=pytest.mark.long),
        pytest.param(79, "before", marks=pytest.mark.long),
        pytest.param(85, "before", marks=pytest.mark.long),
        pytest.param(85, "after", marks=pytest.mark.long),
    ],
)
def test_catch_up_after_days_changes_rows_and_states(until_h: int, boot: str) -> None:
    """Also after more than the 48 hours over which it is spread."""
    observations = silent_gauge(until_h, boot)
    whole, in_batches = Store(), Store()
    whole.add(observations)
    for first in range(0, len(observations), 15):
        in_batches.add(observations[first : first + 15])

    assert len(set(in_batches.used)) >= 3
    for key, row in whole.gold.items():
        assert is_unchanged(row, in_batches.gold[key]), key


def test_encoded_state_decodes_to_the_same_state() -> None:
    """Its size is below 20 kB."""
    store = Store()
    store.add(readings(random.Random(9)))
    states = {at: decode_state(body) for at, body in store.states.items()}

    assert len(states) >= 4
    for at, state in states.items():
        assert isinstance(state, ScoringState)
        assert decode_state(encode_state(state)) == state
        assert state.at_s == at
        assert len(store.states[at]) < 20_000


def test_saved_states_of_a_year_are_few() -> None:
    """One for each of the last days, then every eighth day, up to `MAX_STATE_AGE_S`."""
    newest_s = T0 + 400 * DAY_S
    due = state_times_s(T0, newest_s)

    assert len(due) <= 14
    assert min(due) >= newest_s - MAX_STATE_AGE_S
    assert all(keeps_state(at_s, newest_s) for at_s in due)
    assert due[-3:] == [due[-1] - 2 * DAY_S, due[-1] - DAY_S, due[-1]]
    assert state_times_s(due[-1], newest_s) == []

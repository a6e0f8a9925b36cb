from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.overlay_study.disasters import (
    SCENARIO_METHODS,
    SCENARIOS,
    ScenarioResult,
    Terrain,
    make_terrain,
    run_scenario,
)


def mean(scenario: str, method: str) -> ScenarioResult:
    results = [
        run_scenario(scenario, method, make_terrain(12, 80, seed), seed)
        for seed in range(4)
    ]
    names = ("reached", "mean_ms", "p99_ms", "crossings")
    return ScenarioResult(
        *(sum(getattr(r, n) for r in results) / len(results) for n in names)
    )


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 8),
    st.integers(0, 40),
    st.sampled_from(sorted(SCENARIOS)),
    st.sampled_from(sorted(SCENARIO_METHODS)),
)
def test_every_gateway_is_reached_in_every_disaster(
    seed: int, valleys: int, more: int, scenario: str, method: str
) -> None:
    """Each gateway gets the message once, for any method and terrain."""
    if scenario == "cut" and valleys == 1:
        return  # there is no gateway behind the cut
    gateways = valleys + more + 1
    assert (
        run_scenario(
            scenario, method, make_terrain(valleys, gateways, seed), seed
        ).reached
        == 1.0
    )


def test_names_by_valley_cross_every_link_once() -> None:
    """One copy enters each valley; with hashed names almost every copy crosses."""
    assert mean("quiet", "v6 by valleys").crossings == 11
    assert mean("quiet", "v6, hashed names").crossings > 60


def test_disasters_need_names_by_valley_to_keep_the_gain() -> None:
    """With hashed names, fan-out over a shared link is slower than a Skip Graph."""
    for scenario in SCENARIOS:
        plain = mean(scenario, "sg, hashed names")
        assert mean(scenario, "v6 by valleys").mean_ms < 0.5 * plain.mean_ms
    assert (
        mean("cut", "v6, hashed names").mean_ms
        > mean("cut", "sg, hashed names").mean_ms
    )


def test_cut_valley_routes_by_radio_to_the_nearest_valley() -> None:
    """From there the route uses that valley's link."""
    ground = make_terrain(5, 20, 1)
    cut = Terrain(ground.valleys, ground.homes, frozenset({2}))
    near = cut.nearest_connected(2)
    far = next(v for v in range(5) if v not in {2, near})

    assert [link for link, _, _ in cut.route(2, near)] == [("radio up", 2)]
    assert [link for link, _, _ in cut.route(2, far)] == [
        ("radio up", 2),
        ("up", near),
        ("down", far),
    ]

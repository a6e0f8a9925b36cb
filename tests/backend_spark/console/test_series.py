"""Series of nodes: rain with its totals, movement, doubtful readings."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from console_workspace import NOW_S, SLOPES, Workspace, log_in

OpenApp = Callable[..., httpx.Client]

pytestmark = pytest.mark.usefixtures("creep")


def series_of(client: httpx.Client, *nodes: str, hours: int = 24) -> list[Any]:
    """Series of some nodes."""
    query = [("node", node) for node in nodes] + [("hours", str(hours))]
    answer = client.get("/api/series", params=query)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["nodes"]
    return found


def test_rain_and_totals_are_those_of_the_gauge(open_app: OpenApp) -> None:
    """The last 144 steps as they fell; totals over longer times than the range."""
    depths = [mm or 0.0 for mm in SLOPES[0].rain_mm]
    wet, silent = series_of(open_app(), "otani-1", "nishi-2", hours=6)
    totals = {each["hours"]: each["mm"] for each in wet["rain"]["totals"]}

    assert wet["rain"]["depth_mm"] == pytest.approx(depths[-36:], abs=0.01)
    assert totals[1] == pytest.approx(sum(depths[-6:]), abs=0.01)
    assert totals[24] == pytest.approx(sum(depths[-144:]), abs=0.01)
    assert wet["rain"]["cumulative_mm"][-1] == pytest.approx(sum(depths), abs=0.1)
    assert silent["rain"]["depth_mm"][-12:] == [None] * 12
    assert silent["rain"]["totals"][0]["known"] == 0


def test_movement_has_inverse_velocity_and_tangent_angle(open_app: OpenApp) -> None:
    """Near the failure the inverse velocity falls and the angle rises from 45."""
    (creep,) = series_of(open_app(), "creep-1")
    (rod,) = creep["movement"]
    known = [
        (v, a)
        for v, a in zip(rod["inverse_h_per_mm"], rod["angle_deg"], strict=True)
        if v is not None
    ]

    assert rod["sensor"] == "rod"
    assert rod["steady_mm_per_h"] == pytest.approx(1.8, abs=0.1)
    assert known[-1][0] < known[0][0] / 3
    assert known[0][1] < 45 < known[-1][1]


def test_doubtful_readings_have_their_reason(open_app: OpenApp) -> None:
    """A water content of 5 fails the range; its reason is in both languages."""
    (creep,) = series_of(open_app(), "creep-1")
    (run,) = [run for run in creep["flagged"] if run["name"] == "soil"]

    assert (run["flag"], run["count"], run["high"]) == (4, 1, 5.0)
    assert run["reasons"][0]["ja"] != run["reasons"][0]["en"]


def test_rain_before_the_first_reading_is_unknown(open_app: OpenApp) -> None:
    """Neither its depth nor the cumulative rain is zero then."""
    (wet,) = series_of(open_app(), "otani-1", hours=72)

    assert wet["rain"]["depth_mm"][:144] == [None] * 144
    assert wet["rain"]["cumulative_mm"][:144] == [None] * 144
    assert wet["rain"]["cumulative_mm"][145] == wet["rain"]["depth_mm"][145]


def test_limits_are_those_of_the_rules(open_app: OpenApp, workspace: Workspace) -> None:
    """Of the settings, and of the thresholds of each cell; not of the literature."""
    evidence = "[evidence.rules.displacement]\nlevel_4_mm_per_h = 6.0\n"
    client = open_app(f"{workspace.with_accounts()}\n{evidence}")
    lines = {"advisory_mm": 60.0, "warning_mm": 80.0, "special_mm": 150.0}
    tilts = {"tilt_3_deg_per_h": 0.005, "tilt_4_deg_per_h": 0.05}
    version = lines | tilts | {"why": "the slope of 2024"}
    body = {"cell": SLOPES[0].cell.token, "version": version}
    proof = log_in(client, "a-chief")
    client.post("/api/thresholds", headers=proof, json=body).raise_for_status()
    query = {"node": ["otani-1", "creep-1"]}
    series = client.get("/api/series", params=query).json()
    panel = client.get("/api/node/otani-1").json()

    assert series["velocity_limits"] == [[2, 2.0], [4, 6.0], [5, 10.0]]
    assert [each["tilt_limits"] for each in series["nodes"]] == [
        [[3, 0.005], [4, 0.05]],
        [[3, 0.01], [4, 0.1]],
    ]
    assert panel["velocity_limits"] == series["velocity_limits"]
    assert panel["tilt_limits"] == series["nodes"][0]["tilt_limits"]


@pytest.mark.parametrize(
    "query", ["", "node=a&hours=721", "node=a&hours=5", "&".join(["node=a"] * 7)]
)
def test_series_have_limits(open_app: OpenApp, query: str) -> None:
    """One node to six, six hours to 30 days."""
    assert open_app().get(f"/api/series?{query}").status_code == 422


def test_rows_of_several_nodes_are_one_download(open_app: OpenApp) -> None:
    """The rows of both nodes, and of no other."""
    query = [("table", "silver"), ("node", "otani-1"), ("node", "nishi-1")]
    query += [("from_s", f"{NOW_S - 3600}"), ("to_s", f"{NOW_S}")]
    lines = open_app().get("/api/download/rows.csv", params=query).text.splitlines()

    assert {line.split(",")[0] for line in lines[1:]} == {"otani-1", "nishi-1"}

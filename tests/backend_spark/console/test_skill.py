"""Skill of the levels over a season, computed from gold and entered landslides."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from console_tables import CRITERIA, STEP_S
from console_workspace import NOW_S, SLOPES, Workspace, log_in
from scored_levels import score_levels

from backend_spark.console.routes.skill import SeasonLevels, read_season
from slope_science.levels import EMERGENCY
from slope_science.skill import Slide

OpenApp = Callable[..., httpx.Client]
DAY_S = 86_400
EVENT = {"time": "2026-10-26T13:00", "count": 3, "text": "<i>otani</i>"}


def test_season_level_is_the_highest_of_all_cells(workspace: Workspace) -> None:
    """In every step; a step without rows or without a level has none."""
    known: dict[int, int] = {}
    for slope in SLOPES:
        for row in score_levels(list(slope.observations(NOW_S)), CRITERIA):
            known[row.end_s] = max(known.get(row.end_s, 0), row.level or 0)
    known = {end_s: level for end_s, level in known.items() if level}
    from_s = NOW_S - 3 * DAY_S
    season = read_season(workspace.data / "tables", from_s, NOW_S)

    assert dict(zip(season.ends_s, season.levels, strict=True)) == known
    assert season.steps == 3 * DAY_S // STEP_S
    assert len(season.levels) < season.steps


def test_report_has_scores_hours_and_lead_times() -> None:
    """Level 4 for two hours before the slide, and one false alarm."""
    noon_s = 1_792_983_600  # 2026-10-26 12:00 in Japan
    hour = 3600 // STEP_S
    ends_s = [float(noon_s + (at + 1) * STEP_S) for at in range(6 * hour)]
    levels = [1] * hour + [4] * 3 * hour + [1] * 2 * hour
    second_s = [end_s + DAY_S for end_s in ends_s]
    season = SeasonLevels([*ends_s, *second_s], [*levels, *levels], 4 * 144)
    slide_s = noon_s + 3 * 3600 + STEP_S
    report = season.report([Slide(slide_s, slide_s, 1)])

    four = next(row for row in report["scores"] if row["level"] == 4)
    counts = [four[n] for n in ("hits", "false_alarms", "misses", "quiet")]
    assert counts == [1, 1, 0, 0]
    assert (four["pod"], four["far"]) == (1.0, 0.5)
    assert sum(map(sum, report["hours"])) == pytest.approx(12.0)
    assert report["leads"][0][2]["least_s"] == 2 * 3600
    assert report["leads"][0][3] is None
    assert report["missing_h"] == (4 * 144 - 72) / 6


def test_entered_landslide_counts_in_the_skill(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """It is stored with its author and appears in the report."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    (event,) = client.post("/api/landslides", headers=proof, json=EVENT).json()
    days = {"first": "2026-10-24", "last": "2026-10-26"}
    report = client.get("/api/skill", params=days).json()

    assert (event["who"], event["text"]) == ("a-analyst", "<i>otani</i>")
    assert [e["count"] for e in report["events"]] == [3]
    assert report["days"] == 3
    assert len(report["hours"]) == EMERGENCY
    assert report["scores"][0]["hits"] == 1


def test_landslide_with_a_date_covers_the_whole_day(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """For landslides whose hour is unknown."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    event = EVENT | {"time": "2026-10-26"}
    (stored,) = client.post("/api/landslides", headers=proof, json=event).json()

    assert stored["to_s"] - stored["from_s"] == DAY_S - 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"time": "yesterday"}, "time must be a date or a time"),
        ({"count": 0}, "count must be between 1 and 10000, got 0"),
        ({"text": "x" * 501}, "text must be at most 500 characters"),
    ],
)
def test_invalid_events_are_rejected(
    open_app: OpenApp, workspace: Workspace, more: dict[str, Any], message: str
) -> None:
    """The error names field and rule; nothing is stored."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    answer = client.post("/api/landslides", headers=proof, json=EVENT | more)

    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert client.get("/api/landslides").json() == []


@pytest.mark.parametrize(
    ("first", "last"),
    [("x", "2026-01-01"), ("2026-01-02", "2026-01-01"), ("1900-01-01", "2026-01-01")],
)
def test_invalid_seasons_are_rejected(open_app: OpenApp, first: str, last: str) -> None:
    """The error states the rule."""
    answer = open_app().get("/api/skill", params={"first": first, "last": last})

    assert answer.status_code == 422
    assert "must be" in answer.json()["detail"]

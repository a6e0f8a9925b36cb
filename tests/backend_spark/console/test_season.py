"""The skill of a season, by what gold holds."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from console_house import NOW_S, SLOPES, House, log_in
from console_tables import CRITERIA, STEP_S

from backend_spark.console.skill import SeasonLevels, read_season
from backend_spark.scoring.score import score_levels
from slope_science.findings import EMERGENCY
from slope_science.skill import Slide

Open = Callable[..., httpx.Client]
DAY_S = 86_400
EVENT = {"time": "2026-10-26T13:00", "count": 3, "text": "<i>otani</i>"}


def test_a_municipalitys_level_is_its_highest_cells(house: House) -> None:
    """In every step; one without a row or a judgement has no level."""
    known: dict[int, int] = {}
    for slope in SLOPES:
        for row in score_levels(list(slope.observations(NOW_S)), CRITERIA):
            known[row.end_s] = max(known.get(row.end_s, 0), row.level or 0)
    known = {end_s: level for end_s, level in known.items() if level}
    from_s = NOW_S - 3 * DAY_S
    season = read_season(house.data / "tables", from_s, NOW_S)

    assert dict(zip(season.ends_s, season.levels, strict=True)) == known
    assert season.steps == 3 * DAY_S // STEP_S
    assert len(season.levels) < season.steps


def test_days_hours_and_lead_times_of_a_small_season() -> None:
    """Level 4 stood for two hours before the slide, and once for nothing."""
    noon_s = 1_792_983_600  # 2026-10-26 12:00 in Japan
    hour = 3600 // STEP_S
    ends_s = [float(noon_s + (at + 1) * STEP_S) for at in range(6 * hour)]
    levels = [1] * hour + [4] * 3 * hour + [1] * 2 * hour
    second_s = [end_s + DAY_S for end_s in ends_s]
    season = SeasonLevels([*ends_s, *second_s], [*levels, *levels], 4 * 144)
    slide_s = noon_s + 3 * 3600 + STEP_S
    told = season.report([Slide(slide_s, slide_s, 1)])

    four = next(row for row in told["scores"] if row["level"] == 4)
    counts = [four[n] for n in ("hits", "false_alarms", "misses", "quiet")]
    assert counts == [1, 1, 0, 0]
    assert (four["pod"], four["far"]) == (1.0, 0.5)
    assert sum(map(sum, told["hours"])) == pytest.approx(12.0)
    assert told["leads"][0][2]["least_s"] == 2 * 3600
    assert told["leads"][0][3] is None
    assert told["missing_h"] == (4 * 144 - 72) / 6


def test_an_event_is_entered_and_counts(open_app: Open, house: House) -> None:
    """With who entered it; the season tells of it."""
    client = open_app(house.with_accounts())
    proof = log_in(client, "a-analyst")
    (event,) = client.post("/api/events", headers=proof, json=EVENT).json()
    days = {"first": "2026-10-24", "last": "2026-10-26"}
    told = client.get("/api/skill", params=days).json()

    assert (event["who"], event["text"]) == ("a-analyst", "<i>otani</i>")
    assert [e["count"] for e in told["events"]] == [3]
    assert told["days"] == 3
    assert len(told["hours"]) == EMERGENCY
    assert told["scores"][0]["hits"] == 1


def test_a_date_alone_is_the_whole_day(open_app: Open, house: House) -> None:
    """When nobody knows the hour."""
    client = open_app(house.with_accounts())
    proof = log_in(client, "a-analyst")
    event = EVENT | {"time": "2026-10-26"}
    (told,) = client.post("/api/events", headers=proof, json=event).json()

    assert told["to_s"] - told["from_s"] == DAY_S - 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"time": "yesterday"}, "time must be a date or a time"),
        ({"count": 0}, "count must be between 1 and 10000, got 0"),
        ({"text": "x" * 501}, "text must be at most 500 characters"),
    ],
)
def test_bad_events_are_refused(
    open_app: Open, house: House, more: dict[str, Any], said: str
) -> None:
    """With field and rule; nothing is written."""
    client = open_app(house.with_accounts())
    proof = log_in(client, "a-analyst")
    answer = client.post("/api/events", headers=proof, json=EVENT | more)

    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert client.get("/api/events").json() == []


@pytest.mark.parametrize(
    ("first", "last"),
    [("x", "2026-01-01"), ("2026-01-02", "2026-01-01"), ("1900-01-01", "2026-01-01")],
)
def test_impossible_seasons_are_refused(open_app: Open, first: str, last: str) -> None:
    """With the rule."""
    answer = open_app().get("/api/skill", params={"first": first, "last": last})

    assert answer.status_code == 422
    assert "must be" in answer.json()["detail"]

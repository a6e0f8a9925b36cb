"""The past, played for any span that the tables hold."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest
from console_house import NOW_S, SLOPES, House
from console_tables import STEP_S, Slope, storm, write_tables
from deltalake import write_deltalake

from backend_spark.console import time_travel
from backend_spark.console.level_grid import MISSING, NO_JUDGEMENT
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, REVISIONS

Open = Callable[..., httpx.Client]
DAY_S = 86_400
LONG_AGO_S = NOW_S - 200 * DAY_S
TOKEN = SLOPES[0].cell.token


@pytest.fixture
def row(house: House) -> dict[str, Any]:
    """The newest level of the wet slope."""
    found: dict[str, Any] = (
        DeltaTables(house.data / "tables").cell(TOKEN).to_pylist()[-1]
    )
    return found


def ask(client: httpx.Client, path: str = "levels", **values: object) -> httpx.Response:
    """One of the replay's routes; by default the last two hours."""
    asked = {"from_s": NOW_S - 7200, "to_s": NOW_S} | values
    return client.get(f"/api/replay/{path}", params=asked)


def frames(answer: httpx.Response) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The head, and the levels of each cell frame by frame."""
    length = int(answer.headers["x-head-bytes"])
    head = msgspec.json.decode(answer.content[:length])
    levels, wide = answer.content[length:], head["frames"]
    rows = [list(levels[at : at + wide]) for at in range(0, len(levels), wide)]
    return head, dict(zip(head["tokens"], rows, strict=True))


def changed(row: dict[str, Any], minutes: int, **values: object) -> dict[str, Any]:
    """A level of so many minutes before or after the newest, with other values."""
    at = row["at"] + timedelta(minutes=minutes)
    return row | {"at": at, "latest_received": at + timedelta(seconds=2)} | values


def append(house: House, name: str, schema: pa.Schema, row: dict[str, Any]) -> None:
    """Add a row to a table."""
    rows = pa.Table.from_pylist([row], schema=schema)
    write_deltalake(str(house.data / "tables" / name), rows, mode="append")


def test_a_span_of_long_ago_has_the_cells_of_then(open_app: Open, house: House) -> None:
    """Cells that the map of today does not know are there, with their places."""
    old = Slope("vanished-1", 33.70, 133.70, storm(60, 24))
    write_tables(house.data, [old], LONG_AGO_S)
    client = open_app()

    assert old.cell.token not in client.get("/api/cells").json()["tokens"]
    first_s, last_s = client.get("/api/replay/bounds").json()
    assert (last_s, first_s) == (NOW_S, LONG_AGO_S - 24 * 3600 + STEP_S)
    answer = ask(client, from_s=LONG_AGO_S - DAY_S, to_s=LONG_AGO_S)
    head, levels = frames(answer)
    assert list(levels) == [old.cell.token]
    assert len(head["corners"][0]) == 8
    assert 5 in levels[old.cell.token]
    assert head["frame_s"] == STEP_S


def test_a_frame_is_a_step_and_missing_stays_missing(
    open_app: Open, house: House
) -> None:
    """Byte by byte what the table holds, with half an hour before the first frame."""
    head, levels = frames(ask(open_app()))
    rows = DeltaTables(house.data / "tables").levels().to_pylist()

    assert head["begin_s"] == NOW_S - 7200 - 1800
    known = {(r["cell"], round(r["at"].timestamp())): r["level"] for r in rows}
    for token, told in levels.items():
        for at, level in enumerate(told):
            moment = (token, head["begin_s"] + at * STEP_S)
            assert level == (known[moment] or NO_JUDGEMENT if moment in known else 0)
    assert levels[SLOPES[3].cell.token][-12:] == [MISSING] * 12


def test_a_long_span_shows_the_highest_level_of_each_frame(
    open_app: Open, house: House
) -> None:
    """A year has frames of nine hours, and no level between them is lost."""
    client = open_app()
    from_s = NOW_S - 365 * DAY_S
    head, levels = frames(ask(client, from_s=from_s))
    _, steps = frames(ask(client, from_s=NOW_S - 2 * DAY_S))

    assert head["frames"] <= time_travel.MAX_FRAMES
    assert head["frame_s"] == 53 * STEP_S
    for token, told in levels.items():
        judged = [level for level in steps[token] if level != NO_JUDGEMENT]
        assert max(told) == max(judged)
    asked = {"from_s": head["to_s"] - head["frame_s"] + STEP_S, "to_s": head["to_s"]}
    frame = ask(client, f"cell/{TOKEN}/frame", **asked).json()
    assert frame["latest"]["level"] == levels[TOKEN][-1]


def test_then_is_what_was_told_first(
    open_app: Open, house: House, row: dict[str, Any]
) -> None:
    """A revised level is shown as it stood, one that came late not at all."""
    late = row["at"] + timedelta(hours=30)
    now = changed(
        row,
        10,
        level=4,
        version=2,
        reasons=["later"],
        reason_codes=None,
        revised_at=late,
    )
    then = changed(
        row,
        10,
        level=2,
        version=1,
        reasons=["first"],
        reason_codes=None,
        superseded_at=late,
    )
    append(house, "levels", LEVELS, now)
    append(house, "revisions", REVISIONS, then)
    append(house, "levels", LEVELS, changed(row, 20, level=3, latest_received=late))
    append(house, "levels", LEVELS, changed(row, 30, level=3, latest_received=None))
    client = open_app()
    to_s = NOW_S + 3 * STEP_S
    head_now, as_now = frames(ask(client, to_s=to_s))
    _, as_then = frames(ask(client, to_s=to_s, known="then"))
    frame = {"from_s": to_s, "to_s": to_s}
    told = ask(client, f"cell/{TOKEN}/frame", **frame, known="then").json()

    assert as_now[TOKEN][-3:] == [4, 3, 3]
    assert as_then[TOKEN][-3:] == [2, MISSING, MISSING]
    assert as_then[TOKEN][:-3] == as_now[TOKEN][:-3]
    assert head_now["revised"] == 1
    assert told["reasons"][0]["en"] == "first"
    assert told["latest"]["at_s"] == NOW_S + STEP_S


def test_a_cell_has_its_course_and_the_futures_of_then(
    open_app: Open, row: dict[str, Any]
) -> None:
    """Numbers step by step, and at a moment reasons and where it was leading."""
    client = open_app()
    course = ask(client, f"cell/{TOKEN}").json()
    at_s = NOW_S - 6 * STEP_S
    frame = ask(client, f"cell/{TOKEN}/frame", from_s=at_s, to_s=at_s).json()

    assert course["swi_mm"][-1] == pytest.approx(row["swi_mm"], abs=0.001)
    assert len(course["swi_mm"]) == 12 + 3 + 1
    assert frame["latest"]["at_s"] == at_s
    assert any("土壌雨量指数" in reason["ja"] for reason in frame["reasons"])
    assert {future["name"] for future in frame["futures"]} >= {"none", "same"}
    assert ask(client, f"cell/{TOKEN}", to_s=5, from_s=0).json() is None
    assert ask(client, f"cell/{TOKEN}/frame", to_s=5, from_s=0).json() is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"from_s": NOW_S + 1200}, "from_s not after to_s"),
        ({"from_s": NOW_S - 500 * DAY_S}, "at most 400 days after from_s, got 500.0"),
        ({"from_s": -10_000}, "up to the year 2100"),
        ({"to_s": 10**30, "from_s": 10**30}, "up to the year 2100"),
        ({"known": "maybe"}, "then"),
        ({"to_s": "x"}, "integer"),
    ],
)
def test_a_span_that_cannot_be_is_refused(
    open_app: Open, values: dict[str, object], words: str
) -> None:
    """With the rule and what was asked."""
    answer = ask(open_app(), **values)

    assert answer.status_code == 422
    assert words in answer.text


def test_too_many_levels_are_refused_before_they_are_read(
    open_app: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how much of the span would do."""
    monkeypatch.setattr("backend_spark.console.routes.time_travel.MAX_ROWS", 100)
    answer = ask(open_app(), from_s=NOW_S - DAY_S)

    assert answer.status_code == 422
    assert "at most 100 are shown: choose about" in answer.text


def test_without_levels_there_is_nothing_to_play(open_app: Open, house: House) -> None:
    """No table yet: no bounds, no cells."""
    for name in ("levels", "revisions"):
        (house.data / "tables" / name).rename(house.folder / name)
    client = open_app()

    assert client.get("/api/replay/bounds").json() is None
    assert frames(ask(client))[1] == {}


def test_the_replay_asks_who_is_there(open_app: Open, house: House) -> None:
    """It holds data, so nobody unknown may have it."""
    client = open_app(house.with_accounts())

    for path in ("bounds", "levels", f"cell/{TOKEN}", f"cell/{TOKEN}/frame"):
        assert ask(client, path).status_code == 401

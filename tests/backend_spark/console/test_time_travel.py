"""Replay of past levels for any time span in the tables."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest
from console_tables import STEP_S, Slope, storm, write_tables
from console_workspace import NOW_S, SLOPES, Workspace
from deltalake import write_deltalake

from backend_spark.console.level_grid import HELD_OFFSET, MISSING, NO_JUDGEMENT
from backend_spark.console.routes import time_travel
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, REVISIONS

OpenApp = Callable[..., httpx.Client]
DAY_S = 86_400
LONG_AGO_S = NOW_S - 200 * DAY_S
TOKEN = SLOPES[0].cell.token


@pytest.fixture
def row(workspace: Workspace) -> dict[str, Any]:
    """The newest level of the wet slope."""
    found: dict[str, Any] = (
        DeltaTables(workspace.data / "tables").cell(TOKEN).to_pylist()[-1]
    )
    return found


def get_replay(
    client: httpx.Client, path: str = "levels", **values: object
) -> httpx.Response:
    """Request a replay route; by default for the last two hours."""
    params = {"from_s": NOW_S - 7200, "to_s": NOW_S} | values
    return client.get(f"/api/replay/{path}", params=params)


def frames(answer: httpx.Response) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Header of the response, and the levels of each cell by frame."""
    length = int(answer.headers["x-head-bytes"])
    head = msgspec.json.decode(answer.content[:length])
    levels, frame_count = answer.content[length:], head["frames"]
    rows = [
        list(levels[at : at + frame_count]) for at in range(0, len(levels), frame_count)
    ]
    return head, dict(zip(head["tokens"], rows, strict=True))


def changed(row: dict[str, Any], minutes: int, **values: object) -> dict[str, Any]:
    """Copy of a row, some minutes before or after it, with changed values."""
    at = row["at"] + timedelta(minutes=minutes)
    return row | {"at": at, "latest_received": at + timedelta(seconds=2)} | values


def append(
    workspace: Workspace, name: str, schema: pa.Schema, row: dict[str, Any]
) -> None:
    """Add a row to a table."""
    rows = pa.Table.from_pylist([row], schema=schema)
    write_deltalake(str(workspace.data / "tables" / name), rows, mode="append")


def append_levels(
    workspace: Workspace, row: dict[str, Any], levels: dict[str, dict[int, int]]
) -> None:
    """Add rows like one, by cell: level by minutes after `LONG_AGO_S`."""
    minutes = (LONG_AGO_S - NOW_S) // 60
    rows = [
        changed(row, minutes + at, cell=cell, level=level, state="judged")
        for cell, known in levels.items()
        for at, level in known.items()
    ]
    table = pa.Table.from_pylist(rows, schema=LEVELS)
    write_deltalake(str(workspace.data / "tables/levels"), table, mode="append")


def test_old_span_has_the_cells_of_its_time(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Cells that are no longer on the map are included, with their corners."""
    old = Slope("vanished-1", 33.70, 133.70, storm(60, 24))
    write_tables(workspace.data, [old], LONG_AGO_S)
    client = open_app()

    assert old.cell.token not in client.get("/api/cells").json()["tokens"]
    first_s, last_s = client.get("/api/replay/bounds").json()
    assert (last_s, first_s) == (NOW_S, LONG_AGO_S - 24 * 3600 + STEP_S)
    answer = get_replay(client, from_s=LONG_AGO_S - DAY_S, to_s=LONG_AGO_S)
    head, levels = frames(answer)
    assert list(levels) == [old.cell.token]
    assert len(head["corners"][0]) == 8
    assert 5 in levels[old.cell.token]
    assert head["frame_s"] == STEP_S


def test_short_span_has_one_frame_per_step(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Levels equal the table, from half an hour before the span.

    A gap is missing for half an hour, in which the page shows the level before it; then
    that is held.
    """
    head, levels = frames(get_replay(open_app()))
    rows = DeltaTables(workspace.data / "tables").levels().to_pylist()

    assert head["begin_s"] == NOW_S - 7200 - 1800
    known = {(r["cell"], round(r["at"].timestamp())): r["level"] for r in rows}
    for token, cell_levels in levels.items():
        for at, level in enumerate(cell_levels):
            moment = (token, head["begin_s"] + at * STEP_S)
            if level < HELD_OFFSET:
                stored = known[moment] or NO_JUDGEMENT if moment in known else MISSING
                assert level == stored
    silent = levels[SLOPES[3].cell.token]
    held = [HELD_OFFSET + silent[-13]] * 9
    assert silent[-12:] == [MISSING] * 3 + held
    assert sum(each.count(held[0]) for each in levels.values()) == 9


def test_long_span_shows_the_highest_level_per_frame(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A year has frames of about nine hours; a frame shows its highest level."""
    client = open_app()
    from_s = NOW_S - 365 * DAY_S
    head, levels = frames(get_replay(client, from_s=from_s))
    _, steps = frames(get_replay(client, from_s=NOW_S - 2 * DAY_S))

    assert head["frames"] <= time_travel.MAX_FRAMES
    assert head["frame_s"] == 53 * STEP_S
    for token, cell_levels in levels.items():
        judged = [level for level in steps[token] if level < NO_JUDGEMENT]
        assert max(cell_levels) == max(judged)
    params = {"from_s": head["to_s"] - head["frame_s"] + STEP_S, "to_s": head["to_s"]}
    frame = get_replay(client, f"cell/{TOKEN}/frame", **params).json()
    assert frame["latest"]["level"] == levels[TOKEN][-1]


def test_level_before_the_span_is_held_until_the_next_one(
    open_app: OpenApp, workspace: Workspace, row: dict[str, Any]
) -> None:
    """From level 3 on without an end, level 2 for a day; lower ones are no cell."""
    steps = {
        "354e18bc": {-5 * 1440: 1, -5 * 1440 + 10: 4},
        "354e18c4": {-20 * 60: 2},
        "354e18cc": {-30 * 60: 2},
        "354e18d4": {-120: 4, -60: 1},
        "354e18dc": {-120: 3, 60: 1},
    }
    append_levels(workspace, row, steps)
    answer = get_replay(open_app(), from_s=LONG_AGO_S, to_s=LONG_AGO_S + DAY_S)
    head, levels = frames(answer)

    assert head["begin_s"] == LONG_AGO_S - 1800
    assert levels == {
        "354e18bc": [HELD_OFFSET + 4] * 148,
        "354e18c4": [HELD_OFFSET + 2] * 28 + [MISSING] * 120,
        "354e18dc": [HELD_OFFSET + 3] * 9 + [1] + [MISSING] * 138,
    }


@pytest.mark.parametrize("known", ["now", "then"])
def test_level_stays_after_its_hold_for_notices_has_ended(
    open_app: OpenApp, workspace: Workspace, row: dict[str, Any], known: str
) -> None:
    """From level 3 on, as on the map, in the rows without a judgement and after."""
    at_s = LONG_AGO_S + STEP_S
    for cell, level in {"354e18bc": 4, "354e18c4": 2}.items():
        since_s = at_s - 8 * DAY_S
        code = f'["hold_ended",{level},{since_s}]'
        values = {
            "cell": cell,
            "level": None,
            "state": "unknown",
            "reasons": ["The hold has ended."],
            "reason_codes": [code],
        }
        ended = changed(row, (at_s - NOW_S) // 60, **values)
        append(workspace, "levels", LEVELS, ended)
    client = open_app()
    over = {"from_s": LONG_AGO_S, "to_s": LONG_AGO_S + 3600, "known": known}
    after = {"from_s": at_s + 7200, "to_s": at_s + 10_800, "known": known}

    assert frames(get_replay(client, **over))[1] == {
        "354e18bc": [MISSING] * 4
        + [HELD_OFFSET + 4]
        + [MISSING] * 3
        + [HELD_OFFSET + 4] * 2,
        "354e18c4": [MISSING] * 4 + [NO_JUDGEMENT] + [MISSING] * 5,
    }
    assert frames(get_replay(client, **after))[1] == {
        "354e18bc": [HELD_OFFSET + 4] * 10
    }


def test_held_level_2_ends_a_day_after_it_was_judged(
    open_app: OpenApp, workspace: Workspace, row: dict[str, Any]
) -> None:
    """As on the map: not a day after its last row, in the span or before it."""
    at_s = LONG_AGO_S + STEP_S
    known = row["at"] + timedelta(seconds=at_s - NOW_S - 22 * 3600)
    values = {"cell": "354e18bc", "level": 2, "state": "held", "known_until": known}
    held = changed(row, (at_s - NOW_S) // 60, **values)
    append(workspace, "levels", LEVELS, held)
    client = open_app()

    for from_s in (LONG_AGO_S, at_s + 3600):
        answer = get_replay(client, from_s=from_s, to_s=at_s + DAY_S)
        head, levels = frames(answer)
        last = max(at for at, level in enumerate(levels["354e18bc"]) if level)
        assert head["begin_s"] + last * STEP_S == at_s + 2 * 3600


def test_first_version_before_the_span_is_held_as_known_then(
    open_app: OpenApp, workspace: Workspace, row: dict[str, Any]
) -> None:
    """A level that was revised, and one before a row that came too late."""
    revised, late = "354e18bc", "354e18c4"
    append_levels(workspace, row, {revised: {-600: 4, -590: 4}, late: {-600: 3}})
    at = {
        "minutes": (LONG_AGO_S - NOW_S) // 60 - 580,
        "latest_received": row["at"],
        "level": 1,
    }
    for cell in (revised, late):
        append(workspace, "levels", LEVELS, changed(row, cell=cell, version=2, **at))
    in_time = changed(row, at["minutes"])["latest_received"]
    then = at | {"cell": revised, "version": 1, "level": 5, "latest_received": in_time}
    append(workspace, "revisions", REVISIONS, changed(row, **then))
    span = {"from_s": LONG_AGO_S, "to_s": LONG_AGO_S + 3600}
    client = open_app()

    assert frames(get_replay(client, **span))[1] == {}
    assert frames(get_replay(client, **span, known="then"))[1] == {
        revised: [HELD_OFFSET + 5] * 10,
        late: [HELD_OFFSET + 3] * 10,
    }


def test_level_before_an_outage_is_held_as_known_then(
    open_app: OpenApp, workspace: Workspace, row: dict[str, Any]
) -> None:
    """The rows of three days came too late."""
    cell = "354e18bc"
    append_levels(workspace, row, {cell: {-4 * 1440: 4}})
    for hours in range(-84, 2, 6):
        minutes = (LONG_AGO_S - NOW_S) // 60 + hours * 60
        late = {"cell": cell, "level": 1, "latest_received": row["at"]}
        append(workspace, "levels", LEVELS, changed(row, minutes, **late))
    client = open_app()

    for day in (-3, -2, -1, 0):
        from_s = LONG_AGO_S + day * DAY_S
        span = {"from_s": from_s, "to_s": from_s + 3600, "known": "then"}
        assert frames(get_replay(client, **span))[1] == {cell: [HELD_OFFSET + 4] * 10}


def test_level_is_held_over_a_silence_of_weeks_that_has_ended(
    open_app: OpenApp, workspace: Workspace, row: dict[str, Any]
) -> None:
    """The cell reports again after the span; the map showed its level until then."""
    cell = "354e18bc"
    append_levels(workspace, row, {cell: {-40 * 1440: 4, 2 * 1440: 1}})
    span = {"from_s": LONG_AGO_S, "to_s": LONG_AGO_S + 3600}
    client = open_app()

    for known in ("now", "then"):
        answer = get_replay(client, **span, known=known)
        assert frames(answer)[1] == {cell: [HELD_OFFSET + 4] * 10}


def test_long_frame_holds_its_last_level(
    open_app: OpenApp, workspace: Workspace, row: dict[str, Any]
) -> None:
    """It shows its highest level, which the next one may have ended."""
    fallen, risen = "354e18bc", "354e18c4"
    steps = {
        fallen: {10: 1, 20: 4, 30: 4, 40: 1},
        risen: {10: 1, 20: 3, 30: 2, 40: 4},
    }
    append_levels(workspace, row, steps)
    span = {"from_s": LONG_AGO_S, "to_s": LONG_AGO_S + 100 * DAY_S}
    head, levels = frames(get_replay(open_app(), **span))

    assert head["frame_s"] == 15 * STEP_S
    assert levels[fallen] == [MISSING, 4] + [MISSING] * (head["frames"] - 2)
    assert levels[risen] == [MISSING, 4] + [HELD_OFFSET + 4] * (head["frames"] - 2)


def test_known_then_shows_the_first_version(
    open_app: OpenApp, workspace: Workspace, row: dict[str, Any]
) -> None:
    """A revised level is shown in its first version, a late one is left out."""
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
    append(workspace, "levels", LEVELS, now)
    append(workspace, "revisions", REVISIONS, then)
    append(workspace, "levels", LEVELS, changed(row, 20, level=3, latest_received=late))
    append(workspace, "levels", LEVELS, changed(row, 30, level=3, latest_received=None))
    client = open_app()
    to_s = NOW_S + 3 * STEP_S
    head_now, as_now = frames(get_replay(client, to_s=to_s))
    _, as_then = frames(get_replay(client, to_s=to_s, known="then"))
    frame = {"from_s": to_s, "to_s": to_s}
    frame_then = get_replay(client, f"cell/{TOKEN}/frame", **frame, known="then").json()

    assert as_now[TOKEN][-3:] == [4, 3, 3]
    assert as_then[TOKEN][-3:] == [2, MISSING, MISSING]
    assert as_then[TOKEN][:-3] == as_now[TOKEN][:-3]
    assert head_now["revised"] == 1
    assert frame_then["reasons"][0]["en"] == "first"
    assert frame_then["latest"]["at_s"] == NOW_S + STEP_S


def test_cell_history_has_numbers_reasons_and_futures(
    open_app: OpenApp, row: dict[str, Any]
) -> None:
    """Numbers by step; at a chosen time the reasons and the futures of that time."""
    client = open_app()
    history = get_replay(client, f"cell/{TOKEN}").json()
    at_s = NOW_S - 6 * STEP_S
    frame = get_replay(client, f"cell/{TOKEN}/frame", from_s=at_s, to_s=at_s).json()

    assert history["swi_mm"][-1] == pytest.approx(row["swi_mm"], abs=0.001)
    assert len(history["swi_mm"]) == 12 + 3 + 1
    assert frame["latest"]["at_s"] == at_s
    assert any("土壌雨量指数" in reason["ja"] for reason in frame["reasons"])
    assert {future["name"] for future in frame["futures"]} >= {"none", "same"}
    assert get_replay(client, f"cell/{TOKEN}", to_s=5, from_s=0).json() is None
    assert get_replay(client, f"cell/{TOKEN}/frame", to_s=5, from_s=0).json() is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"from_s": NOW_S + 1200}, "from_s not after to_s"),
        ({"from_s": NOW_S - 500 * DAY_S}, "at most 400 days after from_s, got 500.0"),
        ({"from_s": -10_000}, "up to the year 2100"),
        ({"to_s": 10**30, "from_s": 10**30}, "up to the year 2100"),
        ({"known": "maybe"}, "then"),
        ({"to_s": "x"}, "integer"),
    ],
)
def test_invalid_span_is_rejected(
    open_app: OpenApp, values: dict[str, object], message: str
) -> None:
    """The error states the rule and the requested value."""
    answer = get_replay(open_app(), **values)

    assert answer.status_code == 422
    assert message in answer.text


def test_frame_of_more_steps_than_any_replay_is_rejected(open_app: OpenApp) -> None:
    """All columns of each row are read; the longest replay has frames of 58 steps."""
    client, path = open_app(), f"cell/{TOKEN}/frame"
    longest = time_travel.ReplaySpan(
        NOW_S - time_travel.MAX_DAYS * DAY_S, NOW_S, is_then=False
    )
    from_s = NOW_S - longest.frame_s + STEP_S
    shown = get_replay(client, path, from_s=from_s)
    answer = get_replay(client, path, from_s=from_s - STEP_S)

    assert longest.frame_s == 58 * STEP_S
    assert shown.json()["latest"]["level"] is not None
    assert answer.status_code == 422
    assert "at most 9.5 hours after from_s in a frame, got 9.7" in answer.text


def test_too_many_levels_are_rejected_before_reading(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error suggests a shorter span."""
    monkeypatch.setattr("backend_spark.console.routes.time_travel.MAX_ROWS", 100)
    answer = get_replay(open_app(), from_s=NOW_S - DAY_S)

    assert answer.status_code == 422
    assert "at most 100 are shown: choose about" in answer.text


def test_replay_without_tables_is_empty(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Without a table there are no bounds and no cells."""
    for name in ("levels", "revisions"):
        (workspace.data / "tables" / name).rename(workspace.folder / name)
    client = open_app()

    assert client.get("/api/replay/bounds").json() is None
    assert frames(get_replay(client))[1] == {}


def test_replay_requires_login(open_app: OpenApp, workspace: Workspace) -> None:
    """All its routes answer 401 without a session."""
    client = open_app(workspace.with_accounts())

    for path in ("bounds", "levels", f"cell/{TOKEN}", f"cell/{TOKEN}/frame"):
        assert get_replay(client, path).status_code == 401

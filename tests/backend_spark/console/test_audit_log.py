"""Alert log: each alert once, acknowledgements with names, append-only storage."""

import sqlite3
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest
from console_tables import MICRO, STEP_S, Slope, storm, write_tables
from console_workspace import (
    HIGHEST,
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
)
from deltalake import write_deltalake

from backend_spark.console.alert_detector import MESSAGE_COLUMNS

OpenApp = Callable[..., httpx.Client]
NODE_REASONS = {
    "wire: w is cut: a flow may have occurred, confirmed by v": (
        "ワイヤーセンサー：w のワイヤーが切断：土石流が発生したおそれ（v でも確認）"
    ),
    "vibration: v 40 shocks in 10 min >= 12 of its own past, unconfirmed": (
        "振動：v の振動が10分間に 40 回（自身の過去による基準 12）"
        "（ほかのセンサーでは未確認）"
    ),
}
CODES = [
    '["confirmed",["rule","wire",["wire_cut","w"]],"v"]',
    '["unconfirmed",["rule","vibration",["shocks","v",40,12]]]',
]


def alerts_of(client: httpx.Client) -> list[dict[str, Any]]:
    """Alerts, newest first."""
    found: list[dict[str, Any]] = client.get("/api/log").json()["alerts"]
    return found


def test_rising_cell_is_logged_once(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """With level, cell and reasons; neither a second check nor a restart repeats it."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    assert parts.alert_detector.detect() == 0
    alerts = alerts_of(open_app())

    level_of_cell = {alert["cell"]: alert["level"] for alert in alerts}
    assert level_of_cell[SLOPES[0].cell.token] == HIGHEST
    assert SLOPES[2].cell.token not in level_of_cell
    assert len(alerts) == len(level_of_cell)
    assert alerts[0]["reasons"][0]["ja"]


def test_higher_level_is_logged_again(workspace: Workspace, clock: Clock) -> None:
    """The rise from 3 to 5 is one more alert."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    before = len(parts.journal.read("alert"))
    worse = Slope("otani-2b", SLOPES[1].latitude, SLOPES[1].longitude, storm(60, 48))
    write_tables(workspace.data, [worse], NOW_S + STEP_S)
    clock.now_s += STEP_S
    parts.refresh()
    first, *_ = parts.journal.read("alert")

    assert len(parts.journal.read("alert")) == before + 1
    assert (first.body["level"], first.body["before"]) == (5, 3)


def test_urgent_messages_are_alerts(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """They come from the table `alerts`."""
    row = {
        "node": "otani-3",
        "boot": "b",
        "seq": 7,
        "pri": 5,
        "cell": SLOPES[0].cell.token,
        "why": "wire is cut",
        "readings": ["wire true"],
        "received_at": (NOW_S + 30) * MICRO,
    }
    table = pa.Table.from_pylist([row], schema=MESSAGE_COLUMNS)
    path = str(workspace.data / "tables" / "alerts")
    write_deltalake(path, table, mode="append", schema_mode="merge")
    newest = alerts_of(open_app())[0]

    assert (newest["what"], newest["node"], newest["level"]) == (
        "message",
        "otani-3",
        5,
    )
    assert newest["reasons"][0]["en"] == "wire is cut"


@pytest.mark.parametrize("codes", [None, CODES])
def test_node_reasons_are_shown_in_japanese(
    open_app: OpenApp, workspace: Workspace, codes: list[str] | None
) -> None:
    """From reason codes, or from the sentences if the node sends no codes."""
    row = {
        "node": "otani-3",
        "boot": "b",
        "seq": 8,
        "pri": 5,
        "cell": SLOPES[0].cell.token,
        "why": "; ".join(NODE_REASONS),
        "readings": ["wire true"],
        "received_at": (NOW_S + 30) * MICRO,
        "reason_codes": codes,
    }
    table = pa.Table.from_pylist([row], schema=MESSAGE_COLUMNS)
    path = str(workspace.data / "tables" / "alerts")
    write_deltalake(path, table, mode="append", schema_mode="merge")
    newest = alerts_of(open_app())[0]

    assert newest["reasons"] == [
        {"en": en, "ja": ja} for en, ja in NODE_REASONS.items()
    ] + [{"en": "wire true", "ja": "wire true"}]
    assert "reason_codes" not in newest


def test_acknowledgement_stores_name_time_and_remark(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """The answer shows it with the alert."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    alert = alerts_of(client)[0]
    done = client.post(
        f"/api/log/{alert['id']}/acknowledge",
        headers=proof,
        json={"text": "called the school"},
    )

    (seen,) = done.json()["alerts"][0]["seen"]
    assert seen == {
        "at_s": clock.now_s,
        "who": "a-analyst",
        "text": "called the school",
    }


def test_note_is_stored_in_the_journal(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """It survives a restart."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    note = {"text": "雨は夜半まで。<b>橋</b>を見に行く"}
    assert client.post("/api/log/note", headers=proof, json=note).status_code == 200

    kept = make_test_services(workspace, clock).journal.read("note")
    assert [(e.who, e.body) for e in kept] == [("a-analyst", note)]


@pytest.mark.parametrize("text", ["", "  ", "x" * 2001])
def test_empty_and_too_long_notes_are_rejected(
    open_app: OpenApp, workspace: Workspace, text: str
) -> None:
    """The error states the allowed length."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    answer = client.post("/api/log/note", headers=proof, json={"text": text})

    assert answer.status_code == 422
    assert "text must be 1 to 2000 characters long" in answer.json()["detail"]


def test_viewer_may_not_acknowledge(open_app: OpenApp, workspace: Workspace) -> None:
    """The error names the required role; nothing is stored."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-viewer")
    number = alerts_of(client)[0]["id"]
    answer = client.post(
        f"/api/log/{number}/acknowledge", headers=proof, json={"text": ""}
    )

    assert answer.status_code == 403
    assert "role analyst" in answer.json()["detail"]
    assert alerts_of(client)[0]["seen"] == []


def test_unknown_alert_returns_404(open_app: OpenApp, workspace: Workspace) -> None:
    """The id does not exist."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    answer = client.post("/api/log/9999/acknowledge", headers=proof, json={"text": ""})

    assert answer.status_code == 404


def test_journal_rejects_deletes_and_updates(
    workspace: Workspace, clock: Clock
) -> None:
    """Triggers in the database keep the table append-only."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    with sqlite3.connect(workspace.data / "console" / "journal.sqlite") as db:
        with pytest.raises(sqlite3.IntegrityError, match="nothing leaves the book"):
            db.execute("delete from entry")
        with pytest.raises(sqlite3.IntegrityError, match="the book is not changed"):
            db.execute("update entry set who = 'x'")

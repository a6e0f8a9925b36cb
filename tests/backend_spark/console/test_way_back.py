"""Way back of a cell by the console's interface: stages, drills, rights."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from console_workspace import SLOPES, Clock, Workspace, log_in
from way_back_bench import BROKER, accept_drill, publish_notice, report_alarms

from backend_spark.notice_state import DRILLS_FILE, DrillRequests

OpenApp = Callable[..., httpx.Client]
SLOPE = SLOPES[0]
CELL = SLOPE.cell.token
PATH = f"/api/cell/{CELL}/way-back"


def test_cell_without_a_notice_says_so(open_app: OpenApp) -> None:
    """Its nodes are listed; nothing is known of their alarms."""
    way = open_app().get(PATH).json()

    assert (way["notice"], way["drill"]) == (None, None)
    assert [node["id"] for node in way["nodes"]] == [SLOPE.node]
    assert way["nodes"][0]["outputs"] is None


def test_every_stage_has_its_time(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """Sent, accepted by the Manager's broker, received by the node, siren on."""
    notice = publish_notice(workspace.data, CELL, 4, clock.now_s)
    report_alarms(workspace.data, SLOPE, "siren:on lamp:off", notice)
    way = open_app().get(PATH).json()

    assert (way["notice"]["level"], way["notice"]["in_force"]) == (4, True)
    accepted = {"broker": BROKER, "at_s": clock.now_s + 1.0}
    assert way["notice"]["accepted"] == [accepted]
    (node,) = way["nodes"]
    assert node["outputs"] == {"siren": "on", "lamp": "off"}
    assert node["gateway"] == "gw-otani:8883"
    assert node["notice"]["is_newest"]
    assert node["notice"]["received_s"] == pytest.approx(notice.at_s + 4.2, abs=0.001)


def test_report_of_an_earlier_notice_is_no_receipt(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """A node that reports level 3 has not received level 4 yet."""
    earlier = publish_notice(workspace.data, CELL, 3, clock.now_s - 600.0)
    report_alarms(workspace.data, SLOPE, "siren:off", earlier)
    publish_notice(workspace.data, CELL, 4, clock.now_s)
    (node,) = open_app().get(PATH).json()["nodes"]

    assert (node["notice"]["level"], node["notice"]["is_newest"]) == (3, False)


def test_drill_is_requested_shown_and_ended(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """By a chief, whose name is in the journal; the real notice stays beside it."""
    publish_notice(workspace.data, CELL, 3, clock.now_s)
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    order: dict[str, Any] = {"cell": CELL, "level": 4, "minutes": 3}
    way = client.post("/api/drills", headers=proof, json=order).json()
    requests = DrillRequests(workspace.data / "console" / DRILLS_FILE)
    accept_drill(workspace.data, CELL, requests.read()[CELL])
    shown = client.get(PATH).json()

    assert (way["drill"]["level"], way["drill_by"]) == (4, "a-chief")
    assert way["drill"]["until_s"] == clock.now_s + 180.0
    assert shown["drill"]["accepted"][0]["broker"] == BROKER
    assert (shown["notice"]["level"], shown["notice"]["in_force"]) == (3, True)
    clock.now_s += 10.0
    end = client.post("/api/drills", headers=proof, json={"cell": CELL, "end": True})
    assert not end.json()["drill"]["in_force"]
    assert requests.read()[CELL].withdrawn


@pytest.mark.parametrize(
    ("account", "more", "status"),
    [
        ("a-analyst", {}, 403),
        ("a-chief", {"cell": "../x"}, 404),
        ("a-chief", {"level": 9}, 422),
        ("a-chief", {"minutes": 16}, 422),
        ("a-chief", {"minutes": -1}, 422),
        ("a-chief", {"siren": True}, 422),
    ],
)
def test_drill_out_of_right_or_range_is_refused(
    open_app: OpenApp,
    workspace: Workspace,
    account: str,
    more: dict[str, Any],
    status: int,
) -> None:
    """Nothing is requested."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, account)
    answer = client.post("/api/drills", headers=proof, json={"cell": CELL} | more)

    assert answer.status_code == status
    assert not (workspace.data / "console" / DRILLS_FILE).exists()

"""Reviews of readings in the console: queue, preview, decisions, state, roles."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
from console_tables import write_scored
from console_workspace import (
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
)
from doubtful_slope import DOUBTFUL, WET_STEPS, write_doubtful

from backend_spark.config import read_settings
from backend_spark.console.reviews import SPAN_GAP_S, find_spans
from backend_spark.scoring.reviews import AppliedReviews, ReadingReview
from backend_spark.tables.reader import DeltaTables
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, render_english

OpenApp = Callable[..., httpx.Client]
CELL = DOUBTFUL.cell.token
RAIN: dict[str, Any] = {
    "node": DOUBTFUL.node,
    "name": "rain",
    "from_s": NOW_S - (WET_STEPS - 1) * 600.0,
    "to_s": float(NOW_S),
    "codes": ["extreme"],
}
REJECT = RAIN | {"verdict": "good", "why": "the gauge of the road office has as much"}
ACCEPT = RAIN | {"verdict": "accepted"}
BAD = RAIN | {"verdict": "bad", "codes": [], "why": "the gauge was washed with a hose"}


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """The five slopes and one with doubtful readings."""
    write_doubtful(workspace.data)
    return workspace


@pytest.fixture
def client(open_app: OpenApp, workspace: Workspace) -> httpx.Client:
    """A client of a console with accounts, not logged in."""
    return open_app(workspace.with_accounts())


def send(client: httpx.Client, body: dict[str, Any], path: str = "") -> httpx.Response:
    """Send a decision as a chief."""
    proof = log_in(client, "a-chief")
    return client.post(f"/api/reviews{path}", headers=proof, json=body)


def view(client: httpx.Client) -> dict[str, Any]:
    """The page's data."""
    log_in(client, "a-viewer")
    found: dict[str, Any] = client.get("/api/reviews").json()
    return found


SPIKE = render_english(Reason(ReasonCode.SPIKE, size=3, limit=0.5))


def row(at_s: float, **more: object) -> dict[str, Any]:
    """A doubtful reading as `read_flagged` gives it."""
    known = {"node": "n1", "name": "tilt/x", "cell": "c", "unit": "deg", "flag": 3}
    numbers = {"value": at_s, "flag_why": SPIKE}
    return {**known, **numbers, "at_s": at_s} | more


def review(verdict: str, *codes: str, name: str = "tilt/x") -> ReadingReview:
    """A decision about readings from 100 to 200 s."""
    known = {"id": 1, "cell": "c", "node": "n1", "name": name, "person": "p"}
    times = {"from_s": 100.0, "to_s": 200.0, "at_s": 0.0}
    fields = {**known, **times, "verdict": verdict, "codes": codes}
    return msgspec.convert(fields, ReadingReview)


def test_span_is_a_run_of_one_sensor_with_one_doubt() -> None:
    """Not a row for each reading: an hour without such a reading begins another."""
    late = 4000.0 + SPAN_GAP_S
    flat = render_english(Reason(ReasonCode.FLAT, value=2, hours=24))
    rows = [
        *(row(at_s) for at_s in (late + 1.0, 4000.0, 2000.0, 600.0)),
        row(500.0, flag_why=flat),
        row(400.0),
        row(400.0, name="tilt/y"),
        row(300.0, flag=4),
    ]
    spans = find_spans(rows, [])
    found = [(s.name, s.flag, s.from_s, s.to_s, s.count) for s in spans]

    assert found == [
        ("tilt/x", 3, late + 1, late + 1, 1),
        ("tilt/x", 3, 400, 4000, 4),
        ("tilt/x", 3, 500, 500, 1),
        ("tilt/y", 3, 400, 400, 1),
        ("tilt/x", 4, 300, 300, 1),
    ]
    assert (spans[1].low, spans[1].high) == (400, 4000)
    assert spans[2].codes == ("flat",)


@pytest.mark.parametrize(
    ("decision", "left"),
    [
        (review("accepted", "spike"), 2),
        (review("good", "spike"), 2),
        (review("good", "step"), 3),
        (review("bad"), 2),
        (review("bad", name="tilt/y"), 3),
    ],
)
def test_judged_readings_leave_the_queue(decision: ReadingReview, left: int) -> None:
    """Those in the range, with the doubts that the decision is about."""
    rows = [row(at_s) for at_s in (300.0, 150.0, 50.0)]
    spans = find_spans(rows, [decision])

    assert sum(span.count for span in spans) == left


def test_readings_without_number_or_time_are_not_judgeable() -> None:
    """No decision could make them count; a decision is reverted, not judged again."""
    whys = (
        render_english(Reason(ReasonCode.NO_NUMBER)),
        render_english(Reason(ReasonCode.MARKED_BAD, person="p", day="2026-01-01")),
    )

    assert find_spans([row(1.0, flag_why=why) for why in whys], []) == []


def test_queue_has_the_highest_level_first(
    client: httpx.Client, workspace: Workspace
) -> None:
    """Then the newest; each span with cell, sensor, values and doubts."""
    calm = replace(SLOPES[2], node="minami-1", latitude=33.9)
    spike = [0.0] * 280 + [3.0] + [0.0] * 7
    write_slope = replace(calm, tilt_deg=spike)
    write_scored(workspace.data, write_slope, list(write_slope.observations(NOW_S)))
    found = view(client)
    spans = found["spans"]

    assert [(s["node"], s["name"], s["level"]) for s in spans[:3]] == [
        ("kita-1", "rain", 3),
        ("kita-1", "tilt/x", 3),
        ("kita-1", "tilt/y", 3),
    ]
    assert {s["node"] for s in spans[3:]} == {"minami-1"}
    assert (spans[0]["count"], spans[0]["codes"]) == (WET_STEPS, ["extreme"])
    assert "132 mm" in spans[0]["reasons"][0]["en"]
    assert found["job"]["state"] == "unreported"


def test_preview_shows_the_level_as_it_is_and_as_it_would_be(
    client: httpx.Client, workspace: Workspace
) -> None:
    """By the job's code: as it is equals gold. Nothing is stored."""
    found = send(client, REJECT, "/preview").json()
    tables = DeltaTables(workspace.data / "tables")
    gold = tables.cell(CELL)["level"].to_pylist()

    assert (found["cell"], found["count"]) == (CELL, WET_STEPS)
    assert found["before"]["level"] == gold[-1] == 3
    assert found["after"]["level"] == found["after"]["notice_level"] == 4
    assert (found["raised_to"], found["is_raised_now"]) == (4, True)
    (change,) = found["changes"]
    assert (change["before"], change["after"]) == (3, 4)
    assert found["steps"] == (change["end_s"] - change["begin_s"]) / 600
    assert view(client)["decisions"] == []


def test_raise_to_level_4_is_saved_only_after_consent(client: httpx.Client) -> None:
    """Without the level that the preview showed nothing is stored."""
    for wrong in ({}, {"confirmed_level": 5}):
        refused = send(client, REJECT | wrong)
        assert refused.status_code == 409
        assert "raises the cell to level 4" in refused.json()["detail"]
    assert view(client)["decisions"] == []
    saved = send(client, REJECT | {"confirmed_level": 4})

    assert saved.status_code == 200, saved.text
    (decision,) = saved.json()["decisions"]
    assert (decision["who"], decision["raised_to"]) == ("a-chief", 4)
    assert [s["name"] for s in saved.json()["spans"]] == ["tilt/x", "tilt/y"]


def test_accepted_doubt_leaves_the_queue_and_changes_nothing(
    client: httpx.Client, workspace: Workspace
) -> None:
    """It needs no reason, and the job does not read it."""
    found = send(client, ACCEPT).json()

    assert [s["name"] for s in found["spans"]] == ["tilt/x", "tilt/y"]
    assert found["decisions"][0]["state"] == "recorded"
    assert not (workspace.data / "console" / "reviews.json").exists()


def test_decision_is_in_the_journal_with_name_time_and_reason(
    client: httpx.Client, clock: Clock, workspace: Workspace
) -> None:
    """As is its end, which leaves it there."""
    saved = send(client, BAD).json()
    number = saved["decisions"][0]["id"]
    body = {"review": number, "why": "it was rain"}
    ended = send(client, body, "/revert")
    assert ended.status_code == 200, ended.text
    (decision,) = ended.json()["decisions"]
    again = send(client, body, "/revert")
    shown = (workspace.data / "console" / "reviews.json").read_bytes()
    (stored,) = msgspec.json.decode(shown, type=list[ReadingReview])

    assert (decision["who"], decision["at_s"]) == ("a-chief", clock.now_s)
    assert (decision["why"], decision["count"]) == (BAD["why"], WET_STEPS)
    assert decision["end"] == {
        "at_s": clock.now_s,
        "who": "a-chief",
        "why": "it was rain",
    }
    assert again.status_code == 422
    assert (stored.id, stored.cell, stored.reverted_by) == (number, CELL, "a-chief")


def test_end_of_a_decision_is_previewed_and_needs_consent_too(
    client: httpx.Client,
) -> None:
    """Rain that counts again may raise the cell."""
    send(client, REJECT | {"confirmed_level": 4})
    bad = send(client, BAD).json()["decisions"][0]["id"]
    revert = {"review": bad, "why": "mistaken"}
    preview = send(client, revert, "/revert/preview").json()
    refused = send(client, revert, "/revert")

    assert (preview["before"]["level"], preview["after"]["level"]) == (1, 4)
    assert refused.status_code == 409
    assert send(client, revert | {"confirmed_level": 4}, "/revert").is_success


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (REJECT | {"why": " "}, "why must be 1 to 500 characters long"),
        (ACCEPT | {"why": "x" * 501}, "why must be at most 500 characters long"),
        (REJECT | {"node": "../x"}, "node and name must have a doubtful reading"),
        (REJECT | {"codes": ["spike"]}, "doubtful reading with the codes within"),
        (REJECT | {"codes": ["moon"]}, "codes must be those of the doubts"),
        (REJECT | {"codes": []}, "codes must be those of the doubts"),
        (BAD | {"codes": ["spike"]}, "none with verdict bad, got 'spike'"),
        (BAD | {"name": "tilt"}, "all in one cell, got 'kita-1' and 'tilt'"),
        (BAD | {"from_s": NOW_S - 61 * 86400.0}, "in order within the last 60 days"),
        (BAD | {"to_s": NOW_S + 3600.0}, "in order within the last 60 days"),
        (BAD | {"to_s": NOW_S - 86400.0}, "in order within the last 60 days"),
        (BAD | {"verdict": "gone"}, "request must be a ReviewDraft"),
        (BAD | {"colour": "red"}, "unknown field `colour`"),
    ],
)
def test_invalid_decision_is_rejected(
    client: httpx.Client, sent: dict[str, Any], message: str
) -> None:
    """The error names field, rule and value; nothing is stored."""
    answer = send(client, sent)

    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert view(client)["decisions"] == []


def test_only_a_chief_decides(client: httpx.Client) -> None:
    """Everybody may look and preview, as with thresholds."""
    proof = log_in(client, "a-analyst")
    body = {"review": 1, "why": "x"}

    assert client.get("/api/reviews").is_success
    assert client.post("/api/reviews/preview", headers=proof, json=ACCEPT).is_success
    for path, sent in (("", ACCEPT), ("/revert", body)):
        answer = client.post(f"/api/reviews{path}", headers=proof, json=sent)
        assert answer.status_code == 403


def run_job(workspace: Workspace, settings: str, now_s: float) -> None:
    """What the job does around a pass, by its own settings file."""
    path = workspace.folder / "job.toml"
    path.write_text(f'[backend]\ndata = "{workspace.data}"\n{settings}\n')
    file = read_settings(path).score.reviews
    job = AppliedReviews(
        workspace.data, file and workspace.folder / file, lambda: now_s
    )
    job.finish(job.changes())


def test_state_follows_the_report_of_the_job(
    client: httpx.Client, workspace: Workspace
) -> None:
    """Not read, waiting, applied with its time; its end waits, too."""
    ours = f'[score]\nreviews = "{workspace.data}/console/reviews.json"'

    def states() -> tuple[str, str, float | None]:
        found = view(client)
        (decision,) = found["decisions"]
        return found["job"]["state"], decision["state"], decision["applied_s"]

    run_job(workspace, ours, 1000.0)
    number = send(client, BAD).json()["decisions"][0]["id"]
    assert states() == ("reads", "waiting", None)
    run_job(workspace, "", 2000.0)
    assert states() == ("reads_none", "not_read", None)
    run_job(workspace, '[score]\nreviews = "/elsewhere.json"', 2000.0)
    assert states() == ("reads_other", "not_read", None)
    run_job(workspace, ours, 3000.0)
    assert states() == ("reads", "applied", 3000.0)
    send(client, {"review": number, "why": "mistaken"}, "/revert")
    assert states() == ("reads", "ending", 3000.0)
    run_job(workspace, ours, 4000.0)
    assert states() == ("reads", "reverted", None)


def test_file_for_the_job_is_restored_from_the_journal(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """If the console died between the two, or the file was lost."""
    file = workspace.data / "console" / "reviews.json"
    accounts = workspace.with_accounts()
    send(open_app(accounts), BAD)
    before = file.read_bytes()
    file.unlink()
    make_test_services(workspace, Clock(), accounts)

    assert file.read_bytes() == before

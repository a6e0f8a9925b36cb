"""CAP messages of the console: made, updated and cancelled in the page; the feed."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx
import pyarrow as pa
import pytest
import xmlschema
from browser import picture
from conftest import wait_until
from console_pages import find, no_problems, text
from console_workspace import (
    NOW_S,
    PASSWORD,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
    serve,
)
from deltalake import write_deltalake
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from backend_spark.console.audit_log import Journal
from backend_spark.console.cap_messages import ATOM, MAX_LISTED, CapMessages
from backend_spark.exports.cap import (
    NAMESPACE,
    CapHeader,
    CapMessageType,
    CapStatus,
    read_reference,
)
from backend_spark.exports.cell_states import CellState
from backend_spark.scoring.holds import UNKNOWN
from backend_spark.tables.schemas import LEVELS

OpenApp = Callable[..., httpx.Client]
CALM_WORDS = {
    "ja": (
        (
            "レベル2相当以上の区画がないため、更新できません。「取消」で有効な案を"
            "取り消してください"
        ),
        "レベル2相当以上の区画がないため、案を作成できません",
    ),
    "en": (
        (
            "No cell has level 2 or above, so there is nothing to update: cancel the "
            "draft in force"
        ),
        "No cell has level 2 or above, so no draft can be made",
    ),
}
CAP, FEED = f"{{{NAMESPACE}}}", f"{{{ATOM}}}"
SCHEMA = Path(__file__).parents[1] / "exports" / "cap-1.2.xsd"


def entries(client: httpx.Client) -> list[ET.Element]:
    """Entries of the feed."""
    answer = client.get("/cap/feed.atom")
    assert answer.headers["content-type"] == "application/atom+xml"
    feed = ET.fromstring(answer.content)  # noqa: S314
    for name in ("id", "title", "updated", "author", "link"):  # RFC 4287, 4.1.1
        assert feed.find(f"{FEED}{name}") is not None
    return feed.findall(f"{FEED}entry")


def messages(client: httpx.Client) -> list[ET.Element]:
    """Valid messages that the feed links to, newest first."""
    schema, found = xmlschema.XMLSchema(SCHEMA), []
    for entry in entries(client):
        for name in ("id", "title", "updated"):
            assert entry.findtext(f"{FEED}{name}")
        link = entry.find(f"{FEED}link")
        assert link is not None
        answer = client.get(link.attrib["href"])
        assert answer.headers["content-type"] == link.attrib["type"]
        schema.validate(io.BytesIO(answer.content))
        found.append(ET.fromstring(answer.content))  # noqa: S314
    return found


def make(
    client: httpx.Client, kind: str, headers: dict[str, str], clock: Clock
) -> httpx.Response:
    """Make a message a second later."""
    clock.now_s += 1
    return client.post("/api/cap", json={"type": kind}, headers=headers)


def test_draft_is_updated_and_cancelled(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """Each message names the one that it replaces; the feed has all, newest first."""
    client = open_app(workspace.with_accounts())
    headers = log_in(client, "a-analyst")
    assert entries(client) == []
    for kind in ("Alert", "Update", "Update", "Cancel", "Alert"):
        answer = make(client, kind, headers, clock)
        assert answer.status_code == 200, answer.text
    view, found = answer.json(), messages(client)[::-1]

    assert [each.findtext(f"{CAP}msgType") for each in found] == [
        "Alert",
        "Update",
        "Update",
        "Cancel",
        "Alert",
    ]
    assert {each.findtext(f"{CAP}status") for each in found} == {"Draft"}
    for before, after in pairwise(found[:4]):
        names = ("sender", "identifier", "sent")
        reference = ",".join(before.findtext(f"{CAP}{name}") or "" for name in names)
        assert after.findtext(f"{CAP}references") == reference
    assert found[4].find(f"{CAP}references") is None
    assert view["in_force"] == found[4].findtext(f"{CAP}identifier")
    assert {each["who"] for each in view["messages"]} == {"a-analyst"}


def test_messages_of_a_sender_with_slashes_can_be_fetched(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """Their identifiers contain it, as CAP allows."""
    sender = "https://city.example/bosai"
    client = open_app(workspace.with_accounts() + f'\nsender = "{sender}"')
    answer = make(client, "Alert", log_in(client, "a-analyst"), clock)
    assert answer.status_code == 200, answer.text
    (found,) = messages(client)

    assert found.findtext(f"{CAP}sender") == sender


def test_message_that_does_not_fit_is_refused(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """An update of nothing, a second alert, another type."""
    client = open_app(workspace.with_accounts())
    headers = log_in(client, "a-analyst")

    assert make(client, "Update", headers, clock).status_code == 409
    assert make(client, "Cancel", headers, clock).status_code == 409
    assert make(client, "Alert", headers, clock).status_code == 200
    assert make(client, "Alert", headers, clock).status_code == 409
    assert make(client, "Actual", headers, clock).status_code == 422
    assert len(entries(client)) == 1


def test_message_that_somebody_else_has_made_meanwhile_is_not_cancelled(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """A page cancelled, unseen, an update that was made since it was loaded."""
    client = open_app(workspace.with_accounts())
    headers = log_in(client, "a-analyst")
    shown = make(client, "Alert", headers, clock).json()["in_force"]
    newest = make(client, "Update", headers, clock).json()["in_force"]
    bodies = [{"type": "Cancel", "replaces": each} for each in (shown, newest)]
    clock.now_s += 1
    refused, done = (
        client.post("/api/cap", json=body, headers=headers) for body in bodies
    )

    assert refused.status_code == 412
    assert f"replaces must be the message in force, got {shown}" in refused.text
    assert done.status_code == 200
    assert len(entries(client)) == 3


def test_messages_of_one_second_have_different_times(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A reference names sender, identifier and second."""
    client = open_app(workspace.with_accounts())
    headers = log_in(client, "a-analyst")
    for kind in ("Alert", "Cancel", "Alert", "Update"):
        answer = client.post("/api/cap", json={"type": kind}, headers=headers)
        assert answer.status_code == 200, answer.text
    found = messages(client)

    for name in ("identifier", "sent"):
        assert len({each.findtext(f"{CAP}{name}") for each in found}) == 4


def sent_s(message: ET.Element) -> float:
    return datetime.fromisoformat(message.findtext(f"{CAP}sent") or "").timestamp()


def test_draft_follows_a_cancellation_of_a_clock_that_was_ahead(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """An alert refers to nothing: it has its own time, and another identifier."""
    client = open_app(workspace.with_accounts())
    headers = log_in(client, "a-analyst")
    assert make(client, "Alert", headers, clock).status_code == 200
    right_s = clock.now_s
    clock.now_s += 11 * 3600
    assert make(client, "Cancel", headers, clock).status_code == 200
    wrong_s = clock.now_s
    clock.now_s = right_s - 1  # the same second as that of the first alert
    answer = make(client, "Alert", headers, clock)
    assert answer.status_code == 200, answer.text
    assert make(client, "Update", headers, clock).status_code == 200
    found = messages(client)[::-1]

    assert [sent_s(each) for each in found] == [
        right_s,
        wrong_s,
        right_s + 1,
        right_s + 2,
    ]
    assert len({each.findtext(f"{CAP}identifier") for each in found}) == 4


def test_messages_behind_one_of_a_clock_that_was_ahead_stay_behind_it(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """What updates or cancels a message is later than it, also for receivers."""
    client = open_app(workspace.with_accounts())
    headers = log_in(client, "a-analyst")
    right_s = clock.now_s
    clock.now_s += 1200  # the levels still count as those of the present
    assert make(client, "Alert", headers, clock).status_code == 200
    wrong_s, clock.now_s = clock.now_s, right_s
    for kind in ("Update", "Cancel", "Alert"):
        answer = make(client, kind, headers, clock)
        assert answer.status_code == 200, answer.text

    times = [sent_s(each) for each in messages(client)[::-1]]
    assert times == [wrong_s, wrong_s + 1, wrong_s + 2, right_s + 3]


def test_stale_levels_make_no_draft(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """But the message in force can still be cancelled."""
    client = open_app(workspace.with_accounts())
    headers = log_in(client, "a-analyst")
    assert make(client, "Alert", headers, clock).status_code == 200
    clock.now_s = NOW_S + 5 * 3600
    headers = log_in(client, "a-analyst")
    refused = make(client, "Update", headers, clock)

    assert refused.status_code == 409
    assert "levels must be judged now" in refused.json()["detail"]
    assert refused.json()["needs"] == "judgement"
    assert make(client, "Cancel", headers, clock).status_code == 200
    download = client.get("/api/download/draft.xml")
    assert (download.status_code, download.json()["needs"]) == (409, "judgement")


def test_refused_drafts_name_no_options_of_a_command(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """A word says what the levels lack; the page has a text for it."""
    client = open_app(workspace.with_accounts())
    headers = log_in(client, "a-analyst")
    end_all_levels(workspace)
    draft = client.get("/api/download/draft.xml")
    message = make(client, "Alert", headers, clock)

    assert (draft.status_code, message.status_code) == (409, 409)
    assert draft.json() == message.json()
    assert draft.json() == {
        "detail": "levels must be a cell of level 2 or more, got none",
        "needs": "level",
    }


def test_message_of_an_exercise_is_valid_when_it_is_sent(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """Although its levels are those of a storm months ago."""
    clock.now_s += 90 * 86_400
    client = open_app(workspace.with_accounts() + "\nexercise = true")
    assert make(client, "Alert", log_in(client, "a-analyst"), clock).status_code == 200
    (made,) = messages(client)
    download = ET.fromstring(client.get("/api/download/draft.xml").content)  # noqa: S314
    past = client.get(f"/api/download/draft.xml?at={int(NOW_S) - 3600}").content

    for found in (made, download):
        assert found.findtext(f"{CAP}status") == "Exercise"
        assert sent_s(found) == clock.now_s
        for info in found.iterfind(f"{CAP}info"):
            assert info.findtext(f"{CAP}effective") == found.findtext(f"{CAP}sent")
            expires = datetime.fromisoformat(info.findtext(f"{CAP}expires") or "")
            assert expires.timestamp() == clock.now_s + 3600
    effective = ET.fromstring(past).findtext(f".//{CAP}effective") or ""  # noqa: S314
    assert datetime.fromisoformat(effective).timestamp() == NOW_S - 3600


def in_force(client: httpx.Client) -> str | None:
    """Identifier of the message that the page can update or cancel."""
    found: str | None = client.get("/api/cap").json()["in_force"]
    return found


def test_exercise_replaces_only_its_own_messages(
    workspace: Workspace, clock: Clock
) -> None:
    """Its cancellation cancelled the draft in force, which then could not be."""
    accounts, port = workspace.with_accounts(), workspace.port

    @contextmanager
    def console(more: str) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
        parts = make_test_services(workspace, clock, f"{accounts}\n{more}")
        parts.refresh()
        with serve(parts, port) as client:
            yield client, log_in(client, "a-analyst")

    with console("") as (client, proof):
        made = make(client, "Alert", proof, clock).json()["in_force"]
    with console("exercise = true") as (client, proof):
        assert in_force(client) is None
        assert make(client, "Cancel", proof, clock).status_code == 409
        assert make(client, "Alert", proof, clock).status_code == 200
        drilled = in_force(client)
        assert drilled not in {None, made}
    with console("") as (client, proof):
        assert in_force(client) == made
        assert make(client, "Cancel", proof, clock).status_code == 200
        cancelled, _, alert = messages(client)
    with console("exercise = true") as (client, _):
        assert in_force(client) == drilled

    assert cancelled.findtext(f"{CAP}status") == "Draft"
    reference = (cancelled.findtext(f"{CAP}references") or "").split(",")
    assert reference[1] == alert.findtext(f"{CAP}identifier") == made


def test_update_of_a_draft_before_many_other_messages_names_its_unknown_cells(
    tmp_path: Path,
) -> None:
    """An exercise of 100 messages hid the draft: a cell of level 4 was left out."""
    at = datetime.fromtimestamp(NOW_S, UTC)
    danger, other = (each.cell.token for each in SLOPES[:2])
    state = CellState(
        *(danger, at, 4, None, None, None, None),
        *(False, False, ("wire: w is cut",), (), 1),
        last_level=4,
    )
    kept = CapMessages(Journal(tmp_path / "journal"), tmp_path / "cap")

    def make_one(kind: str, states: list[CellState], status: CapStatus) -> str:
        header = CapHeader("a@city.example", "a", at, status)
        made = kept.make(CapMessageType(kind), states, header, "sato")
        return made.identifier

    draft = make_one("Alert", [state], CapStatus.DRAFT)
    for number in range(MAX_LISTED):
        kind = "Update" if number else "Alert"
        make_one(kind, [state], CapStatus.EXERCISE)
    unknown = replace(state, level=None, state=UNKNOWN)
    judged = replace(state, cell=other)
    update = make_one("Update", [unknown, judged], CapStatus.DRAFT)

    content = kept.read(update)
    assert content is not None
    assert draft in content.decode()
    assert read_reference(content).cells == {danger, other}


def test_viewer_and_program_only_read(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """Without the role, the proof or a login nothing is made."""
    client = open_app(workspace.with_accounts())
    assert client.get("/cap/feed.atom").status_code == 401
    assert client.get("/cap/x.xml").status_code == 401
    assert client.get("/api/cap").status_code == 401
    proof = log_in(client, "a-viewer")
    assert make(client, "Alert", proof, clock).status_code == 403
    log_in(client, "a-analyst")
    assert make(client, "Alert", {}, clock).status_code == 403
    for name in ("none", "..%2f..%2fjournal.sqlite", "x" * 5000):
        assert client.get(f"/cap/{name}.xml").status_code == 404
    assert client.get("/api/cap").json()["messages"] == []


def test_page_makes_updates_and_cancels(
    workspace: Workspace, run_console: Callable[..., str], driver: Chrome
) -> None:
    """With buttons below the downloads; not what somebody else has made meanwhile."""
    address = run_console(workspace.with_accounts())
    driver.get(f"{address}?lang=ja")
    find(driver, "input[name=name]").send_keys("a-analyst")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    find(driver, "details.cap summary").click()
    for count, kind in enumerate(("Alert", "Update"), start=1):
        find(driver, f"[data-cap={kind}]:enabled").click()
        find(driver, f"details.cap li:nth-child({count})[data-type]")
        picture(driver, f"cap-{kind.lower()}-ja")
    no_problems(driver)
    with httpx.Client(base_url=address, timeout=60) as other:
        proof = log_in(other, "a-chief")
        other.post("/api/cap", json={"type": "Update"}, headers=proof)
    cancel(driver)
    wait_until(lambda: "ほかの職員が案を作成" in text(driver, "details.cap"))
    driver.get_log("browser")  # the refusal
    cancel(driver)
    wait_until(lambda: "有効な案はありません" in text(driver, "details.cap"))
    picture(driver, "cap-cancel-ja")

    # Nobody has issued anything: a draft is no announcement.
    assert "発表" not in text(driver, "details.cap")
    assert "新規の案" in text(driver, "details.cap")
    assert "訓練 – a-analyst" in text(driver, "details.cap")
    kinds = driver.find_elements(By.CSS_SELECTOR, "details.cap li")
    assert [each.get_attribute("data-type") for each in kinds] == [
        "Cancel",
        "Update",
        "Update",
        "Alert",
    ]
    no_problems(driver)


def end_all_levels(workspace: Workspace) -> None:
    """Judge all cells to be calm in the step that holds the present."""
    row = dict.fromkeys(LEVELS.names) | {"level": 1, "reasons": [], "n_nodes": 1}
    row |= {"at": datetime.fromtimestamp(NOW_S + 600, UTC), "rain_known": True}
    rows = [row | {"cell": slope.cell.token} for slope in SLOPES]
    path = str(workspace.data / "tables" / "levels")
    write_deltalake(path, pa.Table.from_pylist(rows, LEVELS), mode="append")


@pytest.mark.parametrize(("language", "words"), CALM_WORDS.items())
def test_page_says_what_to_do_when_no_cell_has_a_level(
    workspace: Workspace,
    run_console: Callable[..., str],
    driver: Chrome,
    language: str,
    words: tuple[str, str],
) -> None:
    """It named options of a command to the person at the page."""
    address = run_console(workspace.with_accounts())
    driver.get(f"{address}?lang={language}")
    find(driver, "input[name=name]").send_keys("a-analyst")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    find(driver, "details.cap summary").click()
    find(driver, "[data-cap=Alert]:enabled").click()
    find(driver, "[data-cap=Update]:enabled")
    end_all_levels(workspace)
    find(driver, "[data-cap=Update]:enabled").click()
    wait_until(lambda: words[0] in text(driver, "details.cap"))
    cancel(driver)
    find(driver, "[data-cap=Alert]:enabled").click()
    wait_until(lambda: words[1] in text(driver, "details.cap"))
    wait_until(lambda: words[1] in text(driver, "h3 + .files"))
    assert "--" not in text(driver, "details.cap")


def cancel(driver: Chrome) -> None:
    find(driver, "[data-cap=Cancel]:enabled").click()
    driver.switch_to.alert.accept()

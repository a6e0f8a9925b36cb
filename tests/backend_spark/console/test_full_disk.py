"""The console while its disk is full; the tables are elsewhere."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from conftest import free_port, wait_until
from console_pages import find, text
from console_tables import MICRO, STEP_S, Slope, storm, write_tables
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
from msgspec import structs
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from soak.disk import fill, mounted
from webhook_receiver import receiver

from backend_spark.console import accounts
from backend_spark.console.dependencies import ConsoleServices
from backend_spark.console.event_detector import MESSAGE_COLUMNS
from backend_spark.console.events import EventFilter, EventState
from backend_spark.console.notifications.outbox import NotificationState
from backend_spark.console.reviews import ReviewEntry
from backend_spark.console.thresholds import ThresholdVersion

NEW = Slope("yama-5", 33.68, 133.58, storm(60, 48))
RULE = """
[[console.notifications]]
name = "duty"
to = ["http://127.0.0.1:1/"]
from_level = 3
"""


@pytest.fixture
def disk(workspace: Workspace) -> Iterator[Path]:
    """The console's folder on a disk of four megabytes."""
    with mounted(workspace.data / "console", "4m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        yield disk


def open_events(services: ConsoleServices) -> set[str]:
    return {event.slope for event in services.events.in_force()}


def is_unsaved(services: ConsoleServices) -> bool:
    return bool(services.live_state.snapshot()["unsaved"])


def test_levels_are_shown_and_events_are_written_later(
    disk: Path, workspace: Workspace, clock: Clock
) -> None:
    """Nothing ends the console, and the event of the full disk is not lost."""
    services = make_test_services(workspace, clock, RULE)
    services.refresh()
    services.notify()
    before = open_events(services)
    filler = fill(disk)
    write_tables(workspace.data, [NEW], NOW_S)
    for _ in range(3):
        services.refresh()
        services.notify()
        clock.now_s += 1
    row = services.live_state.grid.row_of[NEW.cell.token]
    assert services.live_state.snapshot()["levels"][row] >= 3
    assert is_unsaved(services)
    assert open_events(services) == before

    filler.unlink()
    services.refresh()
    services.notify()
    assert open_events(services) == before | {NEW.cell.token}
    newest = services.notifications.outbox.newest(1)[0]
    assert services.events.get(newest.event) in services.events.in_force()
    assert newest.level == 5
    clock.now_s += 1
    assert not is_unsaved(services)
    again = make_test_services(workspace, clock, RULE)
    assert open_events(again) == open_events(services)


def test_heartbeat_ends_while_nothing_is_saved(
    disk: Path, workspace: Workspace, clock: Clock
) -> None:
    """The dead man's switch is what still notifies somebody."""
    services = make_test_services(workspace, clock, RULE)
    services.refresh()
    read_s = services.notifications.read_s
    assert read_s() == clock.now_s
    filler = fill(disk)
    write_tables(workspace.data, [NEW], NOW_S)
    services.refresh()
    assert read_s() == 0.0
    filler.unlink()
    services.refresh()
    assert read_s() == clock.now_s


def test_decision_that_cannot_be_saved_takes_no_effect_later(
    disk: Path, workspace: Workspace, clock: Clock
) -> None:
    """The journal had space in its log, the file for the job had none."""
    services = make_test_services(workspace, clock, RULE)
    version = ThresholdVersion(60.0, 100.0, 140.0, why="snow")
    mine = (clock(), "suzuki", SLOPES[0].cell.token)
    services.thresholds.add_version(*mine, version)
    before = services.thresholds.table.read_bytes()
    for n in range(20):
        services.journal.write(clock(), "note", "", "suzuki", {"text": f"{n}" * 500})
    with closing(sqlite3.connect(disk / "journal.sqlite")) as db:
        db.execute("pragma wal_checkpoint(restart)")
    filler = fill(disk)
    services.journal.write(clock(), "note", "", "suzuki", {"text": "fits"})
    other = structs.replace(version, warning_mm=120.0)
    review = ReviewEntry("n", "rain", 0.0, 1.0, "bad", why="clogged")
    with pytest.raises(OSError, match="No space"):
        services.thresholds.add_version(*mine, other)
    with pytest.raises(OSError, match="No space"):
        services.reviews.add(*mine, review)

    filler.unlink()
    assert len(services.thresholds.versions()) == 1
    assert services.reviews.decisions() == []
    services.thresholds.write_table()
    assert services.thresholds.table.read_bytes() == before


def test_planned_notifications_are_delivered_once(
    disk: Path, workspace: Workspace, clock: Clock
) -> None:
    """They are in the outbox already; what was delivered is recorded later."""
    with receiver(free_port()) as hook:
        rule = RULE.replace("http://127.0.0.1:1/", hook.url)
        services = make_test_services(
            workspace, clock, f"{rule}unacknowledged_min = 10\n"
        )
        services.refresh()
        services.notify()
        filler = fill(disk)
        for _ in range(4):
            clock.now_s += 300
            services.notify()
            wait_until(lambda: not services.notifications.is_busy())
        outbox = services.notifications.outbox
        waiting = [each for each in outbox.newest(10) if each.entry]
        assert waiting
        assert {each.state for each in waiting} == {NotificationState.WAITING}
        assert len(hook.requests) == 1
        assert is_unsaved(services)

        filler.unlink()
        services.notify()
        clock.now_s += 1
        assert not is_unsaved(services)
        for each in outbox.newest(10):
            assert each.state == NotificationState.DELIVERED
            assert [a["outcome"] for a in outbox.attempts(each.id)] == ["delivered"]
        assert len(hook.requests) == 1


def test_decision_that_cannot_be_written_ends_no_event(
    disk: Path, workspace: Workspace, clock: Clock
) -> None:
    """The journal has only the first of a node's messages, the others go on."""
    hours = range(-8, 0)
    row = {"node": "otani-9", "boot": "b", "pri": 4, "why": "wire: w is cut"}
    rows = [row | {"seq": h, "received_at": (NOW_S + 3600 * h) * MICRO} for h in hours]
    table = pa.Table.from_pylist(rows, schema=MESSAGE_COLUMNS)
    write_deltalake(str(workspace.data / "tables" / "alerts"), table)
    services = make_test_services(workspace, clock)
    services.refresh()
    wanted = EventFilter(text="otani-9")
    (before,) = services.events.select(wanted)
    filler = fill(disk)
    body = {"state": "acknowledged", "text": "x" * 2000}
    is_full = pytest.raises(sqlite3.OperationalError, match="full")
    with is_full, services.events.batch():
        for _ in range(100):
            services.events.decide(before.number, "sato", clock(), body)
    filler.unlink()
    clock.now_s += STEP_S
    services.refresh()
    (after,) = services.events.select(wanted)

    assert (after.over_s, after.state) == (None, EventState.OPEN)
    assert (after.messages, after.last_s) == (len(hours), NOW_S - 3600)
    assert after.nodes == {"otani-9"}


LOGIN = {"name": "a-chief", "password": PASSWORD}


def test_login_that_cannot_be_recorded_is_refused(
    disk: Path, workspace: Workspace, clock: Clock
) -> None:
    """The answer names the folder; it is no wrong password, and nobody has to wait."""
    services = make_test_services(workspace, clock, workspace.with_accounts())
    services.refresh()
    with serve(services, workspace.port) as client:
        filler = fill(disk)
        for _ in range(10):  # more than wrong passwords before a pause
            answer = client.post("/api/login", json=LOGIN)
            assert answer.status_code == 507, answer.text
        assert answer.json()["folder"] == str(disk)
        assert "free space on its disk" in answer.json()["detail"]
        assert not answer.cookies
        wrong = LOGIN | {"password": "a wrong password"}
        assert client.post("/api/login", json=wrong).status_code == 401
        filler.unlink()
        log_in(client, "a-chief")
    found = services.journal.read("login", "login_failed")
    assert [(each.kind, each.subject, each.who) for each in found] == [
        ("login", "", "a-chief"),
        ("login_failed", "a-chief", ""),
    ]


def test_reading_without_a_login_goes_on(
    disk: Path, open_app: Callable[..., httpx.Client]
) -> None:
    """A console without accounts lets everybody on its machine read."""
    client = open_app()
    fill(disk)
    for path in ("/", "/api/session", "/api/cells", "/report"):
        assert client.get(path).status_code == 200, path


def test_form_says_where_space_is_needed(
    disk: Path,
    open_app: Callable[..., httpx.Client],
    workspace: Workspace,
    driver: Chrome,
) -> None:
    """In the language of the page."""
    client = open_app(workspace.with_accounts())
    fill(disk)
    for language, words in (("ja", "空きを増やして"), ("en", "Free space")):
        driver.get(f"{client.base_url}?lang={language}")
        find(driver, "input[name=name]").send_keys("a-chief")
        find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
        wait_until(lambda words=words: words in text(driver, ".problem"))
        assert str(disk) in text(driver, ".problem")


def test_accounts_added_on_a_full_disk_are_recorded(
    disk: Path, workspace: Workspace, clock: Clock
) -> None:
    """They hold at once; the entry is written with its time when there is space."""
    services = make_test_services(workspace, clock, workspace.with_accounts())
    services.refresh()
    (before,) = services.journal.read("accounts")
    path = workspace.folder / "accounts"
    known = accounts.read_accounts(path)
    filler = fill(disk)
    with serve(services, workspace.port) as client:
        for name in ("mori", "kawa"):
            known[name] = replace(known["a-viewer"], name=name)
            accounts.write_accounts(path, known)
            assert client.get("/api/session").status_code == 200
            clock.now_s += 60
    services.refresh()
    assert is_unsaved(services)
    assert services.journal.read("accounts") == [before]

    filler.unlink()
    services.refresh()
    clock.now_s += 1
    assert not is_unsaved(services)
    second, first, _ = services.journal.read("accounts")
    assert (first.body["added"], second.body["added"]) == (["mori"], ["kawa"])
    assert second.at_s - first.at_s == 60

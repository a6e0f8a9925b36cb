"""Events of slopes: one per rise, decided by people, folded from the journal."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from conftest import free_port
from console_tables import MICRO, STEP_S, Slope, storm, write_tables
from console_workspace import (
    HIGHEST,
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
    serve,
)
from deltalake import write_deltalake

from backend_spark.console.audit_log import Journal, JournalDraft, check_journal
from backend_spark.console.event_detector import (
    CLEAR_STEPS,
    MESSAGE_COLUMNS,
    EventDetector,
    hot_runs,
)
from backend_spark.console.events import EventBook, EventFilter, EventState, Sign
from backend_spark.console.level_grid import HELD_OFFSET, STEPS, LatestRow, LevelGrid
from backend_spark.console.routes.events import event_page

OpenApp = Callable[..., httpx.Client]
CELL = SLOPES[0].cell.token
WIRE = '["rule","wire",["wire_cut","w"]]'
RAIN = '["soil_water",210.0,150.0,"warning"]'
NODE_REASONS = {
    "wire: w is cut: a flow may have occurred, confirmed by v": (
        "ワイヤーセンサー：w のワイヤーが切断：土石流が発生したおそれ（v でも確認）"
    ),
    "vibration: v 40 shocks in 10 min >= 12 of its own past, unconfirmed": (
        "振動：v の振動が10分間に 40 回（自身の過去による基準 12 回以上）"
        "（ほかのセンサーでは未確認）"
    ),
}
CODES = [
    '["confirmed",["rule","wire",["wire_cut","w"]],"v"]',
    '["unconfirmed",["rule","vibration",["shocks","v",40,12]]]',
]


@pytest.fixture(scope="module")
def shared(
    tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """The console on the slopes, and one message of a node outside all cells."""
    workspace = Workspace(tmp_path_factory.mktemp("shared"), free_port())
    shutil.copytree(tables, workspace.data)
    outside = {"node": "otani-9", "cell": None, "seq": 1, "pri": 4}
    append_messages(workspace, [outside])
    parts = make_test_services(workspace, Clock(), workspace.with_accounts())
    parts.refresh()
    with serve(parts, workspace.port) as client:
        yield client


@pytest.fixture(scope="module")
def proof(shared: httpx.Client) -> dict[str, str]:
    """Headers of an analyst."""
    return log_in(shared, "a-analyst")


def level(value: int, at_s: int, codes: Iterable[str] = ()) -> Sign:
    """Sign of a cell's level."""
    return Sign(CELL, None, value, at_s, at_s, "", tuple(codes), tuple(codes))


def message(seq: int, at_s: int, pri: int = 5, codes: Iterable[str] = (WIRE,)) -> Sign:
    """Sign of a node's message in the cell."""
    key, codes = f"n:b:{seq}", tuple(codes)
    return Sign(CELL, "n", pri, at_s, at_s, key, codes, codes)


def decision(state: str) -> dict[str, Any]:
    """Body of a decision."""
    return {"state": state, "text": ""}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of the journal."""
    return tmp_path / "journal.sqlite"


@pytest.fixture
def book(path: Path) -> EventBook:
    """Events of an empty journal."""
    return EventBook(Journal(path))


def events_of(client: httpx.Client, **query: object) -> list[dict[str, Any]]:
    """Events of the first page."""
    answer = client.get("/api/events", params={k: str(v) for k, v in query.items()})
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


def append_messages(workspace: Workspace, rows: list[dict[str, Any]]) -> None:
    """Add urgent messages to their table."""
    base = {"node": "otani-3", "boot": "b", "pri": 5, "cell": CELL}
    base |= {"why": "wire: w is cut: a flow may have occurred"}
    base |= {"readings": ["wire true"], "received_at": (NOW_S + 30) * MICRO}
    table = pa.Table.from_pylist([base | row for row in rows], schema=MESSAGE_COLUMNS)
    path = str(workspace.data / "tables" / "alerts")
    write_deltalake(path, table, mode="append", schema_mode="merge")


def test_storm_gives_one_event_for_each_slope(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """With peak, times, cause and reasons, and however many messages; once."""
    append_messages(workspace, [{"seq": n} for n in range(500)])
    parts = make_test_services(workspace, clock)
    parts.refresh()
    before = len(parts.journal.read("alert"))
    parts.refresh()
    found = events_of(open_app())

    slopes = [event["cell"] for event in found]
    assert len(set(slopes)) == len(slopes) <= len(SLOPES)
    assert SLOPES[2].cell.token not in slopes
    mine = next(event for event in found if event["cell"] == CELL)
    assert (mine["peak"], mine["messages"], mine["state"]) == (5, 500, "open")
    assert {"rain", "wire"} <= set(mine["causes"])
    assert mine["first_s"] < mine["last_s"]
    assert mine["reasons"][0]["ja"]
    assert len(parts.journal.read("alert")) == before < 20


def test_rise_is_detected_though_the_console_was_down(
    workspace: Workspace, clock: Clock
) -> None:
    """The level has fallen again when it starts; both ends of the event are known."""
    fallen = Slope("kita-1", 33.7, 133.7, [*storm(60, 20), *[0.0] * 240])
    write_tables(workspace.data, [fallen], NOW_S)
    parts = make_test_services(workspace, clock)
    parts.refresh()
    (event,) = parts.events.select(EventFilter(text=fallen.cell.token))

    assert event.peak >= 3
    assert event.over_s is not None
    assert event.first_s < event.peak_s <= event.last_s < event.over_s < NOW_S
    assert event.state is EventState.OPEN


def test_higher_level_is_the_same_event(workspace: Workspace, clock: Clock) -> None:
    """The rise from 3 to 5 is one more entry; who has acknowledged 3 sees it again."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    (event,) = parts.events.select(EventFilter(text=SLOPES[1].cell.token))
    parts.events.decide(event.number, "suzuki", clock(), decision("acknowledged"))
    before = (len(parts.events.select(EventFilter())), event.peak)
    worse = Slope("otani-2b", SLOPES[1].latitude, SLOPES[1].longitude, storm(60, 48))
    write_tables(workspace.data, [worse], NOW_S + STEP_S)
    clock.now_s += STEP_S
    parts.refresh()
    now = (len(parts.events.select(EventFilter())), event.peak)

    assert (before, now) == ((before[0], 3), (before[0], 5))
    assert event.state is EventState.OPEN


@pytest.mark.parametrize(
    ("state", "sign", "after"),
    [
        ("acknowledged", level(5, 60), "open"),
        ("checked", level(4, 60), "checked"),
        ("acknowledged", message(1, 60, 4), "acknowledged"),
        ("false_alarm", level(5, 60), "open"),
        ("false_alarm", level(4, 60, [RAIN]), "false_alarm"),
        ("false_alarm", message(1, 60, 4), "open"),
        ("closed", message(1, 60, 4), "open"),
        ("closed", message(1, 60, 4, [RAIN]), "open"),
        ("slope_failed", level(5, 60), "open"),
    ],
)
def test_decision_holds_until_there_is_new_evidence(
    book: EventBook, path: Path, state: str, sign: Sign, after: str
) -> None:
    """A higher level reopens an event; other news only what was judged harmless."""
    book.add(level(4, 0, [RAIN]), 1.0)
    (event,) = book.select(EventFilter())
    times = {"from_s": 0.0, "to_s": 1.0}
    book.decide(event.number, "suzuki", 2.0, decision(state) | times)
    book.add(sign, 70.0)

    assert event.state == after
    (again,) = EventBook(Journal(path)).select(EventFilter())
    assert (again.state, again.peak, again.causes) == (
        event.state,
        event.peak,
        event.causes,
    )


class RisingSlope:
    """A slope whose levels a test gives, one a step, with the console on it.

    Args:
        path: Folder of the journal.
    """

    def __init__(self, path: Path) -> None:
        self.levels: list[int] = []
        self.book = EventBook(Journal(path / "journal.sqlite"))

    @property
    def now_s(self) -> int:
        """Unix time of the newest step."""
        return NOW_S + len(self.levels) * STEP_S

    def follow(self, *levels: int) -> list[tuple[str, int, bool]]:
        """Add steps; a console starts and detects after each of them.

        Returns:
            Of each event: its state, how often it called people, whether it is over.
        """
        for each in levels:
            self.levels.append(each)
            self._detect()
        return [
            (e.state.value, len(e.calls), e.over_s is not None)
            for e in sorted(self.book.select(EventFilter()), key=lambda e: e.number)
        ]

    def revise(self, level: int) -> list[tuple[str, int, bool]]:
        """Write the newest step again, as each report does until its end."""
        self.levels.pop()
        return self.follow(level)

    def _detect(self) -> None:
        grid = LevelGrid(self.now_s, [CELL], row_of={CELL: 0})
        grid.levels = np.zeros((1, STEPS), np.uint8)
        grid.levels[0, -len(self.levels) :] = self.levels
        more = dict.fromkeys(("tanks", "r60_mm", "received_s", "history_days"))
        level = self.levels[-1] % HELD_OFFSET or None
        grid.latest = [LatestRow(self.now_s, level, (), **more, n_nodes=1, flags=0)]
        live: Any = SimpleNamespace(
            version=self.now_s,
            grid=grid,
            lock=threading.Lock(),
            clock=lambda: float(self.now_s),
            now_s=lambda: float(self.now_s),
        )
        EventDetector(live, self.book, Path("/nonexistent")).detect()

    def decide(self, state: str) -> None:
        """Decide about the newest event."""
        event = max(self.book.select(EventFilter()), key=lambda e: e.number)
        times = {"from_s": 0.0, "to_s": 1.0} if state == "slope_failed" else {}
        self.book.decide(event.number, "suzuki", self.now_s, decision(state) | times)


@pytest.fixture
def slope(tmp_path: Path) -> RisingSlope:
    """A slope without levels."""
    return RisingSlope(tmp_path)


HOUR = CLEAR_STEPS


@pytest.mark.parametrize("state", ["acknowledged", "checked", "closed", "slope_failed"])
def test_level_that_returns_calls_people_again(slope: RisingSlope, state: str) -> None:
    """The second front of a night: nobody was notified, and the event stayed closed."""
    slope.follow(4, 4, 4)
    slope.decide(state)
    quiet = slope.follow(*[3] * HOUR)
    risen = slope.follow(4)
    slope.decide("acknowledged")

    assert quiet == [(state, 1, False)]
    assert risen == [("open", 2, False)]
    assert slope.follow(4, 4) == [("acknowledged", 2, False)]
    (event,) = slope.book.select(EventFilter())
    assert (event.failed_s is not None) is (state == "slope_failed")


def test_level_above_the_one_that_was_judged_calls_people(slope: RisingSlope) -> None:
    """Also below the peak of hours ago, and once more when it goes on to the peak."""
    slope.follow(5, *[5] * 12, *[3] * 4)
    slope.decide("false_alarm")

    assert slope.follow(4) == [("open", 2, False)]
    assert slope.follow(4, 5) == [("open", 3, False)]
    assert slope.book.summary().count == 1


@pytest.mark.parametrize("state", ["acknowledged", "checked", "closed", "slope_failed"])
def test_level_that_rises_within_the_step_of_a_decision_calls_people(
    slope: RisingSlope, state: str
) -> None:
    """The wire of a node was cut five minutes later, in the same row of the table."""
    slope.follow(5, *[3] * (HOUR + 1))
    slope.decide(state)

    assert slope.revise(3) == [(state, 1, False)]
    assert slope.revise(5) == [("open", 2, False)]
    assert slope.follow(5, 5) == [("open", 2, False)]
    slope.decide("acknowledged")
    assert slope.revise(3) == slope.revise(5) == [("acknowledged", 2, False)]


def test_short_rise_within_the_step_of_a_false_alarm_calls_people(
    slope: RisingSlope,
) -> None:
    """To less than the peak, and fallen again with the next step."""
    slope.follow(4, *[3] * (HOUR + 1))
    slope.decide("false_alarm")
    slope.revise(4)

    assert slope.follow(3, 3) == [("open", 2, False)]


@pytest.mark.parametrize(
    ("pri", "after_s", "found"),
    [
        (5, HOUR * STEP_S, ("open", 2, False)),
        (5, 3 * STEP_S - 1, ("acknowledged", 1, False)),
        (3, HOUR * STEP_S, ("acknowledged", 1, False)),
    ],
)
def test_message_calls_people_where_the_levels_have_ended(
    slope: RisingSlope, pri: int, after_s: int, found: tuple[str, int, bool]
) -> None:
    """The scoring job stands still; else the cell's level follows the message."""
    slope.follow(5, *[3] * (HOUR + 1))
    slope.decide("acknowledged")
    slope.book.add(message(1, slope.now_s + after_s, pri), slope.now_s)
    slope.book.add(message(2, slope.now_s + after_s + 1, pri), slope.now_s)

    (event,) = slope.book.select(EventFilter())
    assert (event.state, len(event.calls), event.over_s is not None) == found


def test_message_returns_after_an_hour_below_what_was_seen(slope: RisingSlope) -> None:
    """The level of the evening was acknowledged, then it was lower for hours."""
    slope.follow(5)
    slope.decide("acknowledged")
    slope.follow(*[3] * HOUR, *[0] * HOUR)
    slope.book.add(message(1, slope.now_s), slope.now_s)

    assert slope.follow(0) == [("open", 2, False)]


def test_message_after_a_short_dip_calls_nobody_again(slope: RisingSlope) -> None:
    """The levels end before they were lower for an hour."""
    slope.follow(5)
    slope.decide("acknowledged")
    slope.follow(*[3] * (HOUR - 1), *[0] * HOUR)
    slope.book.add(message(1, slope.now_s), slope.now_s)

    assert slope.follow(0) == [("acknowledged", 1, False)]


def test_message_without_levels_calls_people_once(slope: RisingSlope) -> None:
    """Neither after each decision nor when the levels of the time follow."""
    slope.follow(5, *[3] * (HOUR + 1))
    slope.decide("acknowledged")
    slope.follow(*[0] * HOUR)
    slope.book.add(message(1, slope.now_s), slope.now_s)
    for seq, state in enumerate(("acknowledged", "checked", "checked"), 2):
        slope.decide(state)
        slope.follow(*[0] * 4)
        slope.book.add(message(seq, slope.now_s), slope.now_s)
        assert slope.follow(0) == [(state, 2, False)]

    slope.levels[-3 * 5 - HOUR :] = [*[3] * (HOUR - 1), *[5] * (3 * 5 + 1)]
    assert slope.follow(5) == [("checked", 2, False)]
    assert slope.follow(*[3] * HOUR, 5) == [("open", 3, False)]


def test_level_that_flutters_calls_nobody_again(slope: RisingSlope) -> None:
    """Within the hour, or where silence lay between, which is no calm."""
    slope.follow(4)
    slope.decide("acknowledged")

    assert slope.follow(3, 3, 4, 3, 4) == [("acknowledged", 1, False)]
    assert slope.follow(*[0] * HOUR, 14, 4) == [("acknowledged", 1, False)]


def test_level_that_returned_while_the_console_was_down_is_found(
    slope: RisingSlope, tmp_path: Path
) -> None:
    """Though it has fallen again and the event is over; once, whoever starts again."""
    slope.follow(4)
    slope.decide("closed")
    slope.levels += [*[3] * HOUR, 4, 3, *[1] * HOUR, 1]
    found = slope.follow(1)
    slope.book = EventBook(Journal(tmp_path / "journal.sqlite"))

    assert found == [("open", 2, True)]
    assert slope.follow(1) == found


def test_alarm_of_another_node_reopens_what_was_judged_harmless(
    book: EventBook, path: Path
) -> None:
    """Its wire was cut hours after a false alarm; one's own repeats do not count."""
    book.add(message(1, 0), 1.0)
    (event,) = book.select(EventFilter())
    book.decide(event.number, "suzuki", 100.0, decision("false_alarm"))
    book.add(message(2, 200), 201.0)
    before = event.state
    other = Sign(CELL, "m", 5, 300, 300, "m:b:1", (WIRE,), (WIRE,))
    book.add(other, 301.0)

    assert (before, event.state) == ("false_alarm", "open")
    again = EventBook(Journal(path))
    again.decide(event.number, "suzuki", 400.0, decision("false_alarm"))
    again.add(other, 500.0)
    (event,) = again.select(EventFilter())
    assert event.state == "false_alarm"


def test_step_that_was_revised_calls_again(slope: RisingSlope) -> None:
    """The journal has its first rise already, with the same level and time."""
    slope.follow(3)
    slope.decide("acknowledged")
    slope.follow(4)
    slope.levels[-1] = 0
    slope.follow(*[0] * (HOUR + 1))
    slope.decide("closed")
    slope.levels[1] = 4

    assert slope.follow(4) == [("open", 3, False)]


def test_node_outside_all_cells_calls_again_after_an_hour(book: EventBook) -> None:
    """It has no level that could fall: silence is what parts two alarms."""
    for n, at_s in enumerate((0, 1800)):
        book.add(Sign("node:m", "m", 4, at_s, at_s, f"m:b:{n}", (WIRE,), (WIRE,)), 0.0)
    (event,) = book.select(EventFilter())
    book.decide(event.number, "suzuki", 2000.0, decision("acknowledged"))
    states = []
    for n, at_s in enumerate((5000, 9000), 2):
        book.add(Sign("node:m", "m", 4, at_s, at_s, f"m:b:{n}", (WIRE,), (WIRE,)), 0.0)
        states.append(event.state)

    assert states == ["acknowledged", "open"]


def test_missing_data_end_no_event() -> None:
    """Only judged steps count, and a short dip does not part a rise in two."""
    calm, gap, dip = [1] * CLEAR_STEPS, [0] * 200, [2] * (CLEAR_STEPS - 1)
    steps = [0, 3, 4, *gap, *dip, 13, *calm, 6, 3]

    assert hot_runs(np.array(steps, np.uint8), 3) == [
        (1, 3 + len(gap) + len(dip)),
        (len(steps) - 1, len(steps) - 1),
    ]


def test_late_message_belongs_to_the_event_of_its_time(
    book: EventBook, path: Path
) -> None:
    """Also after a restart; a message after the end opens a new event."""
    book.add(level(3, 0), 1.0)
    (event,) = book.select(EventFilter())
    book.end(event, 7200, 7300.0)
    for fresh in (book, EventBook(Journal(path))):
        fresh.add(message(1, 3600), 8000.0)
        fresh.add(message(1, 3600), 8000.0)
    (event,) = EventBook(Journal(path)).select(EventFilter())
    book.add(message(2, 7900), 8000.0)

    assert (event.peak, event.messages, event.over_s) == (5, 1, 7200)
    assert len(book.select(EventFilter())) == 2


def test_journal_of_an_earlier_release_gives_events(path: Path) -> None:
    """Its entries for each message fold into one event, with what was acknowledged."""
    journal = Journal(path)
    old = {"cell": CELL, "reasons": ["wire: w is cut: a flow may have occurred"]}
    journal.write_all(
        1.0,
        [
            JournalDraft(
                "alert",
                f"n:b:{seq}",
                "",
                old
                | {"what": "message", "key": f"n:b:{seq}", "node": "n", "level": 5}
                | {"step_s": 600 * seq},
            )
            for seq in range(575)
        ],
    )
    journal.write(2.0, "acknowledge", "n:b:574", "sato", {"alert": 575, "text": "seen"})
    (event,) = EventBook(journal).select(EventFilter())

    assert (event.messages, event.last_s, event.causes) == (575, 574 * 600, {"wire"})
    assert (event.state, event.who, event.text) == ("acknowledged", "sato", "seen")
    assert check_journal(path).problems == ()


def test_list_reaches_the_oldest_of_thousands_quickly(path: Path) -> None:
    """A page of 5,000 events takes less than half a second, also the last one."""
    journal = Journal(path)
    body = {"what": "opened", "event": 0, "node": None, "level": 3, "messages": 0}
    body |= {"reasons": [RAIN], "reason_codes": [RAIN], "last_s": 0}
    places = [{"cell": f"{n:x}", "step_s": n} for n in range(5000)]
    drafts = [JournalDraft("alert", str(p), "", body | p) for p in places]
    journal.write_all(1.0, drafts)
    book = EventBook(journal)
    began_s = time.process_time()
    first, last = (event_page(book, EventFilter(), n, 200, {}) for n in (0, 4800))

    assert (time.process_time() - began_s) / 2 < 0.5
    assert first["total"] == first["open"] == 5000
    assert last["events"][-1]["first_s"] == 0


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({}, 4),
        ({"state": "open,checked"}, 4),
        ({"state": "closed"}, 0),
        ({"level": 4}, 3),
        ({"text": "otani-9"}, 1),
        ({"cause": "rain"}, 3),
        ({"cause": "displacement"}, 0),
        ({"since": NOW_S}, 3),
        ({"until": 0}, 0),
        ({"limit": 1}, 1),
    ],
)
def test_list_is_filtered(
    shared: httpx.Client,
    proof: dict[str, str],
    query: dict[str, object],
    count: int,
) -> None:
    """By state, level, time and place; the levels of the slopes are 4, 3 and 4."""
    assert len(events_of(shared, **query)) == count


@pytest.mark.parametrize(
    ("clock_of_node", "late_s"),
    [
        ({"synchronised": True, "age_s": 0}, 54 * 3600),
        ({"synchronised": False, "age_s": 54 * 3600}, 54 * 3600),
        ({"synchronised": False, "age_s": 60}, 0),
        ({"synchronised": None, "age_s": None}, 0),
    ],
)
def test_late_message_says_when_it_was_measured(
    open_app: OpenApp,
    workspace: Workspace,
    clock_of_node: dict[str, Any],
    late_s: int,
) -> None:
    """By the node's clock if it is set, else by the age of the message."""
    at = {"at": (NOW_S + 30 - 54 * 3600) * MICRO}
    append_messages(workspace, [{"cell": None, "seq": 9} | at | clock_of_node])
    client = open_app()
    (event,) = events_of(client, text="otani-3")
    line = client.get(f"/api/events/{event['number']}").json()["history"][-1]

    measured_s = NOW_S + 30 - late_s if late_s else 0
    assert event["measured_s"] == line["measured_s"] == measured_s
    assert event["first_s"] == NOW_S + 30


@pytest.mark.parametrize("codes", [None, CODES])
def test_node_reasons_are_shown_in_japanese(
    open_app: OpenApp, workspace: Workspace, codes: list[str] | None
) -> None:
    """From reason codes, or from the sentences if the node sends no codes."""
    row = {"cell": None, "seq": 8, "why": "; ".join(NODE_REASONS)}
    append_messages(workspace, [row | {"reason_codes": codes}])
    (event,) = events_of(open_app(), text="otani-3")

    assert event["reasons"] == [
        {"en": en, "ja": ja} for en, ja in NODE_REASONS.items()
    ] + [{"en": "wire true", "ja": "wire true"}]
    assert event["causes"] == ["vibration", "wire"]


def test_decision_stores_name_time_and_remark(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """For many events at once; the history of each shows it."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    numbers = [event["number"] for event in events_of(client)]
    body = {"events": numbers, "state": "acknowledged", "text": "called the school"}
    done = client.post("/api/events/state", headers=proof, json=body).json()["events"]
    line = client.get(f"/api/events/{numbers[0]}").json()["history"][0]

    assert [event["state"] for event in done] == ["acknowledged"] * len(numbers)
    assert events_of(client, state="open") == []
    assert line == {
        "at_s": clock.now_s,
        "who": "a-analyst",
        "what": "acknowledged",
        "text": "called the school",
    }


def test_failed_slope_is_a_landslide_of_the_skill_page(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """While the verdict stands, with its time or else the time of the event."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    first = events_of(client)[0]
    body: dict[str, Any] = {"events": [first["number"]], "text": "road cut"}
    failed = body | {"state": "slope_failed", "time": "2026-10-26T13:00"}
    client.post("/api/events/state", headers=proof, json=failed)
    days = {"first": "2026-10-24", "last": "2026-10-26"}
    (slide,) = client.get("/api/landslides").json()
    report = client.get("/api/skill", params=days).json()
    client.post("/api/events/state", headers=proof, json=body | {"state": "checked"})

    assert (slide["event"], slide["text"]) == (first["number"], "road cut")
    assert slide["from_s"] == slide["to_s"] < NOW_S
    assert [event["count"] for event in report["events"]] == [1]
    assert client.get("/api/landslides").json() == []


def test_slope_that_failed_within_its_first_step_has_a_time_in_the_past(
    workspace: Workspace, clock: Clock
) -> None:
    """The end of the step is ahead; the landslide ended before it began."""
    parts = make_test_services(workspace, clock, workspace.with_accounts())
    parts.events.add(level(5, int(NOW_S) + STEP_S), NOW_S)
    (event,) = parts.events.select(EventFilter())
    with serve(parts, workspace.port) as client:
        body = {"events": [event.number], "state": "slope_failed"}
        proof = log_in(client, "a-analyst")
        answer = client.post("/api/events/state", headers=proof, json=body)
    (stored,) = parts.journal.read("event_state")

    assert answer.json()["events"][0]["failed_s"] == [NOW_S, clock()]
    assert (stored.body["from_s"], stored.body["to_s"]) == (NOW_S, clock())


def test_landslide_of_an_earlier_release_does_not_end_before_it_begins(
    book: EventBook, path: Path
) -> None:
    """Its journal has the end of a step that was ahead."""
    book.add(level(5, STEP_S), 70.0)
    (event,) = book.select(EventFilter())
    times = {"from_s": STEP_S, "to_s": 70.0}
    book.decide(event.number, "suzuki", 70.0, decision("slope_failed") | times)
    ((_, failed_s),) = EventBook(Journal(path)).landslides()

    assert failed_s == (70.0, 70.0)


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        ({"state": "asleep"}, 422, "state must be one of open, acknowledged"),
        ({"events": []}, 422, "events must be 1 to 1000 numbers, got 0"),
        ({"events": [9999]}, 404, "events: there is no event 9999"),
        ({"text": "x" * 2001}, 422, "text must be 0 to 2000 characters long"),
        ({"time": "2026-10-26T13:00"}, 422, "with slope_failed only"),
        ({"state": "slope_failed", "time": "2031-01-01"}, 422, "that has passed"),
    ],
)
def test_invalid_decisions_are_rejected(
    shared: httpx.Client,
    proof: dict[str, str],
    more: dict[str, Any],
    status: int,
    message: str,
) -> None:
    """The error names field and rule; nothing is stored."""
    number = events_of(shared)[0]["number"]
    body = {"events": [number], "state": "closed"} | more
    answer = shared.post("/api/events/state", headers=proof, json=body)

    assert answer.status_code == status
    assert message in answer.json()["detail"]
    assert events_of(shared)[0]["state"] == "open"


def test_decision_holds_only_for_what_the_person_saw(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Neither a rise nor what somebody else decided is decided about unseen."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    first, second = client.get("/api/events").json()["events"][:2]
    mine = {
        "events": [first["number"], second["number"]],
        "seen": [first["asked"], second["asked"]],
        "state": "false_alarm",
    }
    theirs = {"events": [second["number"]], "state": "checked"}
    too_few = client.post("/api/events/state", headers=proof, json=mine | {"seen": [1]})
    client.post("/api/events/state", headers=proof, json=theirs)
    refused = client.post("/api/events/state", headers=proof, json=mine)
    listed = client.get("/api/events").json()["events"]
    states = {each["number"]: each["state"] for each in listed}
    again = {each["number"]: each["asked"] for each in listed}
    mine["seen"] = [again[number] for number in mine["events"]]
    taken = client.post("/api/events/state", headers=proof, json=mine)

    assert (too_few.status_code, refused.status_code) == (422, 409)
    assert states[first["number"]] == "open"
    assert states[second["number"]] == "checked"
    assert taken.status_code == 200


def test_event_does_not_begin_in_the_future(book: EventBook, path: Path) -> None:
    """A level has the time of the end of its step, on the next day near midnight."""
    book.add(level(4, STEP_S), 70.0)
    book.add(level(5, 2 * STEP_S), 700.0)
    book.add(level(5, 2 * STEP_S), 710.0)
    events = [
        *book.select(EventFilter()),
        *EventBook(Journal(path)).select(EventFilter()),
    ]

    assert [(e.first_s, e.peak_s, e.known) for e in events] == [
        (70, 700, (5, 1200))
    ] * 2


def test_rise_must_be_seen_by_who_decides(book: EventBook) -> None:
    """A new cause of an event that stays as it is need not be."""
    book.add(level(3, 0, [RAIN]), 1.0)
    (event,) = book.select(EventFilter())
    opened = event.asked
    book.add(message(1, 60, 3), 60.0)
    same = event.asked
    book.add(level(5, 120), 120.0)

    assert opened == same < event.asked


def test_viewer_may_not_decide(open_app: OpenApp, workspace: Workspace) -> None:
    """The error names the required role; nothing is stored."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-viewer")
    body = {"events": [events_of(client)[0]["number"]], "state": "closed"}
    answer = client.post("/api/events/state", headers=proof, json=body)

    assert answer.status_code == 403
    assert "role analyst" in answer.json()["detail"]
    assert events_of(client)[0]["state"] == "open"


def test_pages_learn_of_every_change(open_app: OpenApp, workspace: Workspace) -> None:
    """The live state has the number, the peak and a revision of the events."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")

    def live() -> dict[str, Any]:
        with client.stream("GET", "/api/live") as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    return httpx.Response(200, text=line[6:]).json()["events"]  # type: ignore[no-any-return]
        return {}

    before, first = live(), events_of(client)[0]
    body = {"events": [first["number"]], "state": "checked"}
    client.post("/api/events/state", headers=proof, json=body)
    after = live()

    assert before["peak"] == HIGHEST
    assert after["count"] == before["count"] - 1
    assert after["revision"] > before["revision"]


@pytest.mark.parametrize("language", ["ja", "en"])
def test_handover_page_has_events_decisions_and_notes(
    open_app: OpenApp, workspace: Workspace, language: str
) -> None:
    """Open events, those decided in the shift, and notes; all escaped."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    found = events_of(client)
    body = {"events": [found[0]["number"]], "state": "checked", "text": "<i>dry</i>"}
    client.post("/api/events/state", headers=proof, json=body)
    client.post("/api/notes", headers=proof, json={"text": "<b>bridge</b>"})
    page = client.get("/handover", params={"lang": language}).text
    waiting, _, decided = page.partition("&lt;i&gt;dry&lt;/i&gt;")

    assert all(event["cell"] in waiting for event in found)
    assert "&lt;b&gt;bridge&lt;/b&gt;" in decided
    late = "未送信の通知" if language == "ja" else "Notifications not delivered"
    assert f"{late} <b>0</b>" in page
    assert ("現地確認済み" if language == "ja" else "checked on site") in page


def test_event_says_that_its_cell_is_not_judged(open_app: OpenApp) -> None:
    """It "went on" for the list, although nothing was known for two hours."""
    known = {event["cell"]: event["lost_s"] for event in events_of(open_app())}
    silent = known.pop(SLOPES[3].cell.token)

    assert silent == NOW_S - 12 * 600
    assert set(known.values()) == {None}


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("ja", ["現在は判定不能（最後の判定 10-26 14:40）", "途絶 <b>nishi-2</b>"]),
        ("en", ["cannot be judged now (last judged 10-26 14:40)", "<b>nishi-2</b>"]),
    ],
)
def test_handover_page_states_the_present_and_what_is_silent(
    open_app: OpenApp, clock: Clock, language: str, words: list[str]
) -> None:
    """The next shift read "goes on" of a cell without data, and old data as new."""
    client = open_app()
    page = client.get("/handover", params={"lang": language}).text
    clock.now_s = NOW_S + 7200.0
    later = client.get("/handover", params={"lang": language}).text

    assert all(part in page for part in words)
    assert f'<span class="badge l{HIGHEST}">' in page
    assert "2026-10-26 16:40" in page
    assert '<p class="unjudged">' not in page
    assert '<p class="unjudged">' in later


def test_handover_page_calls_the_silence_of_a_node_no_calm(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """An event outside all cells ends without a message, which is no judgement."""
    at_us = (NOW_S - 7 * 3600) * MICRO
    append_messages(workspace, [{"cell": None, "seq": 9, "received_at": at_us}])
    client = open_app()

    assert "終了（緊急通報が6時間ない。危険が去ったとは限りません）" in (
        client.get("/handover", params={"lang": "ja"}).text
    )
    assert "no message for 6 hours; this is no sign of safety" in (
        client.get("/handover", params={"lang": "en"}).text
    )


def test_note_is_stored_in_the_journal(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """It survives a restart."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    note = {"text": "雨は夜半まで。<b>橋</b>を見に行く"}
    assert client.post("/api/notes", headers=proof, json=note).status_code == 200

    kept = make_test_services(workspace, clock).journal.read("note")
    assert [(e.who, e.body) for e in kept] == [("a-analyst", note)]


@pytest.mark.parametrize("text", ["", "  ", "x" * 2001])
def test_empty_and_too_long_notes_are_rejected(
    shared: httpx.Client, proof: dict[str, str], text: str
) -> None:
    """The error states the allowed length."""
    answer = shared.post("/api/notes", headers=proof, json={"text": text})

    assert answer.status_code == 422
    assert "text must be 1 to 2000 characters long" in answer.json()["detail"]


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

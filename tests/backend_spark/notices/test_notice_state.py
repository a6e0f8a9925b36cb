"""Notices: when they are published, renewed and withdrawn."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from soak.disk import fill, mounted

from backend_spark.notice_state import (
    KEPT_S,
    CurrentLevel,
    DeliveryRecord,
    DrillRequests,
    NoticePolicy,
    NoticeState,
    SentOrder,
    due_drills,
    read_sent,
    topic_of_drill,
)
from backend_spark.notices import NoticePublisher
from backend_spark.scoring.holds import HELD, JUDGED, UNKNOWN, HoldLimits, PresentLevel
from service_runtime.errors import FieldError
from service_runtime.tls import Endpoint
from spatial_mqtt.announcements import Drill, Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.connection import Connection
from spatial_mqtt.topics import cell_topic, notice_topic
from spatial_mqtt.transport import (
    NO_SUBSCRIBERS,
    ConnectionHandler,
    Publication,
    Session,
)

CELL = Cell.at(33.5588, 133.5312, 13)
TOPIC = notice_topic(cell_topic(CELL))
NOW_S = 1_800_000_000.0
POLICY = NoticePolicy(from_level=3, hold_s=3600.0)


def open_state(folder: Path) -> NoticeState:
    return NoticeState(POLICY, folder / "notices.json")


def judged(level: int, at_s: float = 0.0) -> CurrentLevel:
    return CurrentLevel(PresentLevel(level, JUDGED), NOW_S + at_s)


def held(level: int, known_s: float) -> CurrentLevel:
    return CurrentLevel(PresentLevel(level, HELD, NOW_S + known_s), NOW_S + known_s)


def update(
    state: NoticeState, level: CurrentLevel | int | None, at_s: float
) -> Notice | None:
    """The notice for a level; None is a silent cell."""
    if isinstance(level, int):
        level = judged(level, at_s)
    levels = {} if level is None else {CELL.token: level}
    return state.update(levels, NOW_S + at_s).get(TOPIC)


def test_change_is_published_once_and_renewed_at_half_time(tmp_path: Path) -> None:
    """A node without link leaves its fast mode when the notice ends, not before."""
    state = open_state(tmp_path)
    published = [update(state, level, at_s) for level, at_s in
            ((1, 0), (2, 1), (4, 2), (4, 1000), (4, 1803), (3, 1900))]  # fmt: skip

    assert published[:2] == [None, None]
    assert published[2] == Notice(4, NOW_S + 3602, at_s=NOW_S + 2)
    assert published[3] is None
    assert published[4] == Notice(4, NOW_S + 5403, at_s=NOW_S + 1803)
    assert published[5] == Notice(3, NOW_S + 5500, at_s=NOW_S + 1900)


def test_low_level_withdraws_and_a_silent_cell_is_held(tmp_path: Path) -> None:
    """The notice of a silent cell is renewed as held, with the time of its last row."""
    state = open_state(tmp_path)
    update(state, 5, 0)
    assert update(state, 5, 5) is None

    assert update(state, None, 10) == Notice(
        5, NOW_S + 3610, at_s=NOW_S + 10, state=HELD, known_until_s=NOW_S + 5
    )
    assert update(state, None, 20) is None
    assert update(state, 2, 30) == Notice(at_s=NOW_S + 30, withdrawn=True)
    assert update(state, 2, 40) is None
    assert update(state, 3, 50) == Notice(3, NOW_S + 3650, at_s=NOW_S + 50)


@pytest.mark.parametrize("silence", ["no rows", "held rows", "lower held rows"])
def test_notice_is_renewed_as_held_for_as_long_as_the_hold(
    tmp_path: Path, silence: str
) -> None:
    """Never lowered, never withdrawn; after `hold_s` it expires on the slope."""
    limits = HoldLimits(hold_s=86_400.0)
    state = NoticeState(POLICY, tmp_path / "notices.json", limits)
    update(state, 4, 0)
    found = {"no rows": None, "held rows": held(4, 0), "lower held rows": held(3, 0)}
    news = []
    for minute in range(10, 48 * 60, 10):
        at_s = minute * 60.0
        now = found[silence] if at_s < limits.hold_s else None
        if at_s >= limits.hold_s and silence != "no rows":
            now = CurrentLevel(PresentLevel(None, UNKNOWN, NOW_S), NOW_S + at_s)
        news.append(update(state, now, at_s))
    published = [notice for notice in news if notice]

    assert {(n.level, n.state, n.withdrawn) for n in published} == {(4, HELD, False)}
    assert {n.known_until_s for n in published} == {NOW_S}
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(published)]
    assert max(gaps) <= POLICY.hold_s / 2
    assert 0 <= limits.hold_s - (published[-1].at_s - NOW_S) <= POLICY.hold_s


def test_unknown_level_neither_renews_nor_withdraws(tmp_path: Path) -> None:
    """A cell that reports, but has no judgement and no hold."""
    state = open_state(tmp_path)
    update(state, 4, 0)
    unknown = CurrentLevel(PresentLevel(None, UNKNOWN), NOW_S + 3000)

    assert [update(state, unknown, at_s) for at_s in (600, 3000, 4000)] == [None] * 3
    assert update(state, 1, 4100) is not None


def test_judged_level_after_a_hold_must_be_low_for_calm_s(tmp_path: Path) -> None:
    """The first judgement after a gap does not withdraw the notice."""
    state = NoticeState(
        NoticePolicy(3, 10_800.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    update(state, 5, 0)
    for at_s in range(600, 36_000, 600):
        update(state, None, at_s)

    assert update(state, 1, 36_000) is not None  # renewed as judged
    assert state.notices[TOPIC].level == 5
    assert update(state, 1, 39_000) is None
    withdrawal = update(state, 1, 39_600)
    assert withdrawal is not None
    assert withdrawal.withdrawn


def test_restart_keeps_the_hold_of_a_silent_cell(tmp_path: Path) -> None:
    """The notice in the file carries the time of the last judgement."""
    state = open_state(tmp_path)
    update(state, 4, 0)
    update(state, None, 1000)
    again = update(open_state(tmp_path), None, 3000)

    assert again is not None
    assert (again.state, again.known_until_s) == (HELD, NOW_S)


def test_doubts_are_published_when_they_change(tmp_path: Path) -> None:
    """A confirmation of an unconfirmed level is news."""
    state = open_state(tmp_path)
    alone = CurrentLevel(PresentLevel(5, JUDGED), NOW_S, ("unconfirmed",))
    first, second = update(state, alone, 0), update(state, 5, 10)

    assert first is not None
    assert first.doubts == ("unconfirmed",)
    assert second is not None
    assert second.doubts == ()


def test_notice_time_never_goes_back_after_a_restart(tmp_path: Path) -> None:
    """Nodes reject an older notice, so a clock set back must not produce one."""
    update(open_state(tmp_path), 4, 0)
    again = update(open_state(tmp_path), 5, -500)

    assert again is not None
    assert again.at_s > NOW_S
    assert again.level == 5


CALM = NoticePolicy(2, 10_800.0, calm_s=3600.0)
RAISED = CurrentLevel(PresentLevel(4, JUDGED), NOW_S, by_analyses=True)


def fallen(level: int | None, known_s: float = -3000.0) -> CurrentLevel:
    """The row after an analysis below the level of a silent cell."""
    state = UNKNOWN if level is None else HELD
    present = PresentLevel(level, state, NOW_S + known_s)
    return CurrentLevel(present, NOW_S + 600, by_analyses=True, has_fallen=True)


def shown(state: NoticeState) -> tuple[int, str, bool]:
    """The notice as it was last published."""
    notice = state.notices[TOPIC]
    return notice.level, notice.state, notice.withdrawn


@pytest.mark.parametrize(
    ("before", "expected"),
    [(None, (1, JUDGED, True)), (judged(3, -700_000.0), (4, JUDGED, False))],
)
def test_end_of_the_analyses_returns_an_unknown_cell_to_what_it_was(
    tmp_path: Path, before: CurrentLevel | None, expected: tuple[int, str, bool]
) -> None:
    """A notice of before is not withdrawn, and what is unknown is not renewed."""
    state = NoticeState(CALM, tmp_path / "notices.json")
    update(state, before, -600)
    update(state, RAISED, 0)
    update(state, fallen(None, -700_000.0), 600)
    for at_s in range(1200, 9600, 600):
        update(state, None, at_s)

    assert shown(state) == expected


@pytest.mark.parametrize(
    ("before", "readings", "expected"),
    [
        (1, held(1, 900), (1, JUDGED, True)),
        (1, judged(1, 900), (1, JUDGED, True)),
        (1, held(4, 900), (4, HELD, False)),
        (1, judged(4, 900), (4, HELD, False)),
        (3, held(1, 900), (3, HELD, False)),
        (3, judged(1, 900), (1, JUDGED, True)),
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_readings_between_two_analyses_keep_what_was_before_these(
    tmp_path: Path,
    before: int,
    readings: CurrentLevel,
    expected: tuple[int, str, bool],
    *,
    is_restarted: bool,
) -> None:
    """The notice falls with the analyses, unless readings gave the same level."""
    state = NoticeState(CALM, tmp_path / "notices.json")
    update(state, before, -600)
    update(state, RAISED, 0)
    update(state, readings, 900)
    if is_restarted:
        state = NoticeState(CALM, tmp_path / "notices.json")
    for at_s, level in ((1800, None), (3600, fallen(1)), (7260, None)):
        update(state, level, at_s)

    assert shown(state) == expected


def test_analyses_that_rise_again_keep_the_notice(tmp_path: Path) -> None:
    """Also when their feed ends then."""
    state = NoticeState(CALM, tmp_path / "notices.json")
    for at_s, level in ((0, RAISED), (600, fallen(1)), (1200, RAISED)):
        update(state, level, at_s)
    for at_s in range(1800, 9600, 600):
        update(state, None, at_s)

    assert shown(state) == (4, HELD, False)


def test_file_of_raised_notices_is_one_of_notices(tmp_path: Path) -> None:
    """Earlier versions and the console read it; nodes receive no more than before."""
    state = NoticeState(CALM, tmp_path / "notices.json")
    update(state, 3, -600)
    update(state, RAISED, 0)
    texts = json.loads((tmp_path / "notices.json").read_text())

    assert json.loads(texts[TOPIC])["before"] == 3
    assert Notice.decode(texts[TOPIC].encode()) == state.notices[TOPIC]
    assert b"before" not in state.notices[TOPIC].encode()


def test_damaged_file_and_invalid_cell_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Valid cells are published all the same."""
    (tmp_path / "notices.json").write_text("{")
    state = open_state(tmp_path)
    fresh = state.update({"nonsense": judged(5), CELL.token: judged(5)}, NOW_S)

    assert list(fresh) == [TOPIC]
    assert "cannot read the notices published before" in caplog.text
    assert "has an invalid cell" in caplog.text


@pytest.mark.parametrize("level", [4, RAISED])
def test_expired_notices_are_removed(tmp_path: Path, level: CurrentLevel | int) -> None:
    """The file must not grow with every cell that ever had a notice."""
    state = open_state(tmp_path)
    update(state, level, 0)
    update(state, None, 3600 * 4)

    assert state.notices == {}
    assert open_state(tmp_path).notices == {}


def test_changing_level_keeps_the_highest_for_calm_s(tmp_path: Path) -> None:
    """A lower level is published after an hour without a higher one."""
    state = NoticeState(
        NoticePolicy(3, 14_400.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    levels = [4, 3, 4, 2, 4, 3, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1]
    published = [update(state, level, 600.0 * at) for at, level in enumerate(levels)]
    news = {
        at: (n.level, n.withdrawn) for at, n in enumerate(published) if n is not None
    }

    assert news == {0: (4, False), 11: (3, False), 18: (1, True)}


def test_rise_is_published_at_once_and_a_fall_waits(tmp_path: Path) -> None:
    """Only a fall waits for `calm_s`."""
    state = NoticeState(
        NoticePolicy(3, 10_800.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    published = [update(state, level, at) for at, level in enumerate((3, 1, 5))]

    assert [n and n.level for n in published] == [3, None, 5]


def test_notice_is_renewed_while_a_fall_waits(tmp_path: Path) -> None:
    """It must not expire before the lower level is published."""
    state = NoticeState(
        NoticePolicy(3, 1800.0, calm_s=3600.0), tmp_path / "notices.json"
    )
    published = [
        update(state, level, at) for level, at in ((4, 0), (1, 600), (1, 1200))
    ]

    assert published[2] == Notice(4, NOW_S + 3000, at_s=NOW_S + 1200)


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("at_s", [600.0, -86_400.0])
def test_restart_starts_the_calm_time_again(
    tmp_path: Path, at_s: float, *, is_restarted: bool
) -> None:
    """The time of the fall is not stored; a clock set back does not prolong it."""
    policy, path = NoticePolicy(3, 10_800.0, calm_s=3600.0), tmp_path / "notices.json"
    state = NoticeState(policy, path)
    update(state, 4, 0)
    if is_restarted:
        state = NoticeState(policy, path)

    assert update(state, 1, at_s) is None
    withdrawal = update(state, 1, at_s + 3601)
    assert withdrawal is not None
    assert withdrawal.withdrawn


def test_cell_that_falls_silent_in_the_calm_time_keeps_its_notice(
    tmp_path: Path,
) -> None:
    """Its last row has a lower level, which nothing has confirmed for an hour."""
    state = NoticeState(CALM, tmp_path / "notices.json")
    for at_s, level in ((0, 4), (600, 1), (1200, None), (4800, None), (9600, None)):
        update(state, level, at_s)

    assert shown(state) == (4, HELD, False)


def test_full_disk_stops_no_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is published without the file, which is written when there is space again."""
    with mounted(tmp_path / "disk", "1m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        state, record = open_state(disk), DeliveryRecord(disk)
        filler = fill(disk)
        notice = update(state, 4, 0.0)
        record.accept(TOPIC, NOW_S, "a-broker:1883", NOW_S)
        record.save()

        assert notice == Notice(4, NOW_S + 3600.0, at_s=NOW_S)
        assert f"cannot write {disk}/notices.json: " in caplog.text
        assert (open_state(disk).notices, read_sent(disk)) == ({}, {})
        filler.unlink()
        assert update(state, 4, 10.0) is None
        record.save()
        assert open_state(disk).notices == {TOPIC: notice}
        assert set(read_sent(disk)) == {TOPIC}


class RefusingLink:
    """Connection to a broker that refuses its first publications.

    Those before are not answered, as when the connection is lost.
    """

    def __init__(self, refusals: int, unanswered: int = 0) -> None:
        self.endpoint = Endpoint.parse("mqtt://a-broker:1883")
        self.handler: ConnectionHandler | None = None
        self.sent: list[Notice] = []
        self.topics: list[str] = []
        self._refusals = refusals
        self._unanswered = unanswered

    def connect(self, _session: Session, handler: ConnectionHandler) -> Connection:
        self.handler = handler
        return cast("Connection", self)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def publish(self, publication: Publication) -> int:
        assert self.handler is not None
        self.topics.append(publication.topic)
        if publication.topic == TOPIC:
            self.sent.append(Notice.decode(publication.payload))
        assert publication.retain
        token = len(self.topics)
        if token > self._unanswered:
            is_refused = token <= self._unanswered + self._refusals
            accepted = (None, NO_SUBSCRIBERS)[token % 2]
            answer = "quota exceeded" if is_refused else accepted
            self.handler.on_published(token, answer)
        return token


def test_refused_notice_is_published_until_it_is_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A withdrawal too: nothing else would repeat it while the link is up."""
    levels, link = itertools.chain([5] * 4, itertools.repeat(1)), RefusingLink(5)
    publisher = NoticePublisher(
        open_state(tmp_path),
        lambda _now_s: {CELL.token: judged(next(levels))},
        lambda _topic, body: body,
        unix_s=itertools.count(NOW_S).__next__,
        monotonic_s=itertools.count().__next__,
        every_s=0.0,
    )
    publisher.record = DeliveryRecord(tmp_path)
    publisher.connect(Session("notify"), [link.connect])
    rounds = iter(range(20))
    publisher.run(lambda: publisher.stop() if next(rounds) == 19 else None)

    assert [notice.level for notice in link.sent[:4]] == [5] * 4
    assert [notice.withdrawn for notice in link.sent[4:]] == [True] * 2
    assert read_sent(tmp_path)[TOPIC].at_s == link.sent[-1].at_s
    assert caplog.text.count("refused") == 1


def test_broker_that_comes_back_gets_all_until_it_accepts_it(tmp_path: Path) -> None:
    """It never answers what the connection before had sent."""
    link, rounds = RefusingLink(2, unanswered=2), iter(range(30))
    publisher = NoticePublisher(
        open_state(tmp_path),
        lambda _now_s: {CELL.token: judged(5)},
        lambda _topic, body: body,
        unix_s=itertools.count(NOW_S).__next__,
        monotonic_s=itertools.count().__next__,
        every_s=0.0,
    )
    publisher.record = DeliveryRecord(tmp_path)
    publisher.drills = DrillRequests(tmp_path / "drills.json")
    publisher.drills.start(CELL.token, 4, 600.0, NOW_S)
    publisher.connect(Session("notify"), [link.connect])

    def beat() -> None:
        at = next(rounds)
        if at == 5:
            assert link.handler is not None
            link.handler.on_up(session_present=False, receive_maximum=10)
        elif at == 29:
            publisher.stop()

    publisher.run(beat)
    drill = topic_of_drill(CELL.token)

    assert link.topics[:4] == [TOPIC, drill] * 2
    assert sorted(link.topics[4:]) == sorted([TOPIC, drill])
    assert set(read_sent(tmp_path)) == {TOPIC, drill}


OTHER = Cell.at(33.60, 133.60, 13).token


def test_drill_is_due_until_its_end(tmp_path: Path) -> None:
    """The publisher reads it from the file, with the topic of the cell."""
    requests = DrillRequests(tmp_path / "drills.json")
    drill = requests.start(CELL.token, 4, 60.0, NOW_S)

    again = DrillRequests(tmp_path / "drills.json")
    assert drill == Drill(4, NOW_S + 60.0, NOW_S)
    assert due_drills(again, NOW_S + 59.0) == {topic_of_drill(CELL.token): drill}
    assert due_drills(again, NOW_S + 60.0) == {}


def test_end_of_a_drill_is_published(tmp_path: Path) -> None:
    """As a withdrawal, also to a node that is reached only minutes later."""
    requests = DrillRequests(tmp_path / "drills.json")
    requests.start(CELL.token, 4, 600.0, NOW_S)
    end = requests.end(CELL.token, NOW_S + 10.0)

    assert end.withdrawn
    assert due_drills(requests, NOW_S + 300.0) == {topic_of_drill(CELL.token): end}
    assert due_drills(requests, NOW_S + 911.0) == {}


@pytest.mark.parametrize(
    ("cell", "level", "duration_s", "field"),
    [
        ("nonsense", 4, 60.0, "cell"),
        (CELL.token, 9, 60.0, "level"),
        (CELL.token, 1, 60.0, "level"),
        (CELL.token, 4, 901.0, "duration_s"),
        (CELL.token, 4, 0.0, "duration_s"),
    ],
)
def test_request_out_of_range_is_refused(
    tmp_path: Path, cell: str, level: int, duration_s: float, field: str
) -> None:
    """Nothing is written, and the error names the field."""
    requests = DrillRequests(tmp_path / "drills.json")
    with pytest.raises(FieldError, match=field):
        requests.start(cell, level, duration_s, NOW_S)
    assert not (tmp_path / "drills.json").exists()


def test_requests_of_other_cells_stay_and_old_ones_go(tmp_path: Path) -> None:
    """The file holds the newest of each cell."""
    requests = DrillRequests(tmp_path / "drills.json")
    requests.start(OTHER, 3, 60.0, NOW_S)
    requests.start(CELL.token, 4, 60.0, NOW_S + 1.0)
    assert set(requests.read()) == {CELL.token, OTHER}
    requests.start(CELL.token, 4, 60.0, NOW_S + KEPT_S + 0.5)
    assert set(requests.read()) == {CELL.token}


def test_requests_made_at_once_do_not_replace_one_another(tmp_path: Path) -> None:
    """A lost end would leave the sirens on until the time of the drill is over."""
    requests = DrillRequests(tmp_path / "drills.json")
    cells = [Cell.at(33.0 + 0.05 * at, 133.5, 13).token for at in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda cell: requests.start(cell, 4, 60.0, NOW_S), cells))

    assert set(requests.read()) == set(cells)


def test_damaged_file_gives_no_drill(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Notices go on, and the next request replaces the file."""
    path = tmp_path / "drills.json"
    path.write_text('{"x": 1')
    requests = DrillRequests(path)
    assert [due_drills(requests, NOW_S) for _ in range(2)] == [{}, {}]
    assert caplog.text.count("no drill is published") == 1
    DrillRequests(path).start(CELL.token, 4, 60.0, NOW_S)
    assert set(DrillRequests(path).read()) == {CELL.token}


def test_record_holds_the_first_acceptance_of_each_broker(tmp_path: Path) -> None:
    """Of the newest order of a topic, also after a restart."""
    record = DeliveryRecord(tmp_path)
    for at_s, broker, now_s in (
        *((1.0, "a:1883", 2.0), (1.0, "b:1883", 3.0)),
        *((5.0, "a:1883", 6.0), (5.0, "a:1883", 7.0), (1.0, "b:1883", 8.0)),
    ):
        record.accept("/notice/1", at_s, broker, now_s)
        record.save()
    record = DeliveryRecord(tmp_path)
    record.accept("/notice/1", 5.0, "b:1883", 9.0)
    record.save()

    assert read_sent(tmp_path) == {
        "/notice/1": SentOrder(5.0, {"a:1883": 6.0, "b:1883": 9.0})
    }

"""Requests for drills, and the record of what brokers accepted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backend_spark.notices.drill_requests import (
    KEPT_S,
    DrillRequests,
    due_drills,
    topic_of_drill,
)
from backend_spark.notices.notice_state import DeliveryRecord, SentOrder, read_sent
from service_runtime.errors import FieldError
from spatial_mqtt.announcements import Drill
from spatial_mqtt.cells import Cell

CELL = Cell.at(33.5588, 133.5312, 13).token
OTHER = Cell.at(33.60, 133.60, 13).token
NOW_S = 1_800_000_000.0


def test_drill_is_due_until_its_end(tmp_path: Path) -> None:
    """The publisher reads it from the file, with the topic of the cell."""
    requests = DrillRequests(tmp_path / "drills.json")
    drill = requests.start(CELL, 4, 60.0, NOW_S)

    again = DrillRequests(tmp_path / "drills.json")
    assert drill == Drill(4, NOW_S + 60.0, NOW_S)
    assert due_drills(again, NOW_S + 59.0) == {topic_of_drill(CELL): drill}
    assert due_drills(again, NOW_S + 60.0) == {}


def test_end_of_a_drill_is_published(tmp_path: Path) -> None:
    """As a withdrawal, also to a node that is reached only minutes later."""
    requests = DrillRequests(tmp_path / "drills.json")
    requests.start(CELL, 4, 600.0, NOW_S)
    end = requests.end(CELL, NOW_S + 10.0)

    assert end.withdrawn
    assert due_drills(requests, NOW_S + 300.0) == {topic_of_drill(CELL): end}
    assert due_drills(requests, NOW_S + 911.0) == {}


@pytest.mark.parametrize(
    ("cell", "level", "duration_s", "field"),
    [
        ("nonsense", 4, 60.0, "cell"),
        (CELL, 9, 60.0, "level"),
        (CELL, 1, 60.0, "level"),
        (CELL, 4, 901.0, "duration_s"),
        (CELL, 4, 0.0, "duration_s"),
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
    requests.start(CELL, 4, 60.0, NOW_S + 1.0)
    assert set(requests.read()) == {CELL, OTHER}
    requests.start(CELL, 4, 60.0, NOW_S + KEPT_S + 0.5)
    assert set(requests.read()) == {CELL}


def test_requests_made_at_once_do_not_replace_one_another(tmp_path: Path) -> None:
    """A lost end would leave the sirens on until the time of the drill is over."""
    requests = DrillRequests(tmp_path / "drills.json")
    cells = [Cell.at(33.0 + 0.05 * at, 133.5, 13).token for at in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda cell: requests.start(cell, 4, 60.0, NOW_S), cells))

    assert set(requests.read()) == set(cells)


def test_damaged_file_gives_no_drill(tmp_path: Path) -> None:
    """Notices go on, and the next request replaces the file."""
    path = tmp_path / "drills.json"
    path.write_text('{"x": 1')
    assert due_drills(DrillRequests(path), NOW_S) == {}
    DrillRequests(path).start(CELL, 4, 60.0, NOW_S)
    assert set(DrillRequests(path).read()) == {CELL}


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

"""Notices: heard, kept through a restart, forgotten in time."""

import pytest

from edge_agent.notices import NOTICES_STATE, Notices
from spatial_mqtt.link import Incoming
from spatial_mqtt.notice import CriteriaNotice, Notice


def incoming(topic: str, notice: Notice | bytes) -> Incoming:
    payload = notice if isinstance(notice, bytes) else notice.encode()
    return Incoming(topic, payload, 1, True, None, None, None, (1, 1))


def criteria(warning_mm: float, version: float) -> CriteriaNotice:
    return CriteriaNotice(0.75 * warning_mm, warning_mm, 2 * warning_mm, version)


def test_highest_level_that_still_holds_counts() -> None:
    """A notice for the valley and one for the slope; each ends in its time."""
    notices = Notices(None, lambda _: None)
    notices.hear(incoming("/notice/3", Notice(3, until_s=200.0)))
    notices.hear(incoming("/notice/3/1", Notice(4, until_s=100.0)))

    assert [notices.level(at_s) for at_s in (0.0, 100.0, 200.0)] == [4, 3, 1]


def test_restart_forgets_nothing() -> None:
    """The link may be down when the node comes back."""
    kept: dict[str, str] = {}
    before = Notices(None, kept.update)
    before.hear(incoming("/notice/3", Notice(3, 200.0, criteria(120.0, 5.0))))
    after = Notices(kept[NOTICES_STATE], kept.update)

    assert after.level(0.0) == 3
    assert after.criteria() == criteria(120.0, 5.0)


def test_newest_criteria_count_then_the_closest_area() -> None:
    """A prefecture's new table beats last year's; a slope's own beats both."""
    notices = Notices(None, lambda _: None)
    for topic, warning_mm, version in (
        ("/notice/3/1", 110.0, 1.0),
        ("/notice/3", 120.0, 2.0),
        ("/notice/3/1/2", 130.0, 2.0),
    ):
        notices.hear(incoming(topic, Notice(criteria=criteria(warning_mm, version))))

    assert notices.criteria() == criteria(130.0, 2.0)


def test_empty_notice_takes_the_earlier_one_back() -> None:
    """That is how MQTT clears what is retained."""
    changes: list[bool] = []
    notices = Notices(None, lambda _: None, changes.append)
    notices.hear(incoming("/notice/3", Notice(3, until_s=200.0)))
    notices.hear(incoming("/notice/3", b""))
    notices.hear(incoming("/notice/3", b""))

    assert notices.level(0.0) == 1
    assert len(changes) == 2


def test_what_does_not_parse_changes_nothing() -> None:
    """Neither on the wire nor in the store."""
    notices = Notices("{junk", lambda _: None)
    for payload in (b"{}x", b'{"level": 9}', b"[" * 5000, b'{"until_s": 1e999}'):
        notices.hear(incoming("/notice/3", payload))

    assert notices.level(0.0) == 1
    assert notices.criteria() is None


def test_level_without_criteria_leaves_the_table_in_force() -> None:
    """Who raises the level of a valley does not take its criteria away."""
    notices = Notices(None, lambda _: None)
    notices.hear(incoming("/notice/3", Notice(criteria=criteria(120.0, 5.0))))
    notices.hear(incoming("/notice/3", Notice(4, until_s=100.0)))

    assert notices.level(0.0) == 4
    assert notices.criteria() == criteria(120.0, 5.0)


def test_older_table_of_an_area_is_refused_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two analysts, or a broker from a backup: the newer table stays."""
    notices = Notices(None, lambda _: None)
    notices.hear(incoming("/notice/3", Notice(criteria=criteria(120.0, 5.0))))
    notices.hear(incoming("/notice/3", Notice(4, 100.0, criteria(90.0, 4.0))))

    assert notices.criteria() == criteria(120.0, 5.0)
    assert notices.level(0.0) == 1
    assert "criteria.version must be no older than the one before (5)" in caplog.text


def test_taking_criteria_back_is_told_as_such() -> None:
    """The node then goes back to its settings, which it does for nothing else."""
    changes: list[bool] = []
    notices = Notices(None, lambda _: None, changes.append)
    notices.hear(incoming("/notice/3", Notice(3, until_s=200.0)))
    notices.hear(incoming("/notice/3", Notice(criteria=criteria(120.0, 5.0))))
    notices.hear(incoming("/notice/3", b""))

    assert changes == [False, False, True]
    assert notices.criteria() is None

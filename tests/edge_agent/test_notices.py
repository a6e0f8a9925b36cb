"""Notices: heard, kept through a restart, forgotten in time."""

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
    changes: list[int] = []
    notices = Notices(None, lambda _: None, lambda: changes.append(1))
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

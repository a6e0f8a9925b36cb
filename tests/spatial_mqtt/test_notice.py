"""Notices and their topics."""

from collections.abc import Callable

import pytest

from spatial_mqtt.announcements import CriteriaNotice, Notice
from spatial_mqtt.errors import NoticeError, TopicError
from spatial_mqtt.topics import (
    drill_topic,
    notice_filters,
    notice_topic,
    rollout_topic,
)


def test_notice_survives_encoding_and_decoding() -> None:
    """Also when written by hand as JSON."""
    notice = Notice(3, 1.8e9, CriteriaNotice(90.0, 120.0, 240.0, 1.7e9))

    table = tuple((float(mm), 218.5 - mm) for mm in range(151))
    with_table = Notice(criteria=CriteriaNotice(90.0, 120.0, 240.0, 1.7e9, table))

    assert Notice.decode(with_table.encode()) == with_table
    assert Notice.decode(notice.encode()) == notice
    assert Notice.decode(b'{"level": 4, "until_s": 1800000000}') == Notice(4, 1.8e9)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"3",
        b'{"level": 0}',
        b'{"level": 6}',
        b'{"level": true}',
        b'{"until_s": "noon"}',
        b'{"level": 4, "until_s": 1800000000000}',
        b'{"level": 4, "until_s": -1}',
        b'{"criteria": {"warning_mm": 100}}',
        (
            b'{"criteria": {"advisory_mm": 9, "warning_mm": 5, "special_mm": 7, '
            b'"version": 1}}'
        ),
        (
            b'{"criteria": {"advisory_mm": 90, "warning_mm": 120, "special_mm": 1e300,'
            b'"version": 1}}'
        ),
        (
            b'{"criteria": {"advisory_mm": 90, "warning_mm": 120, "special_mm": 240,'
            b'"version": 1700000000000}}'
        ),
        b'{"level": 3, "until_s": 1, "x": "' + b"x" * 5000 + b'"}',
    ],
)
def test_malformed_notice_is_refused(payload: bytes) -> None:
    """Anyone with an account may publish by hand, and make mistakes."""
    with pytest.raises(NoticeError, match="notice must be"):
        Notice.decode(payload)


def test_node_subscribes_to_its_cell_and_all_enclosing_areas() -> None:
    """A notice for the prefecture reaches the slope."""
    assert notice_filters("/3/1/2") == ("/notice/3", "/notice/3/1", "/notice/3/1/2")


def test_notice_topic_must_be_an_area() -> None:
    """A wildcard is no area."""
    with pytest.raises(TopicError, match="area"):
        notice_topic("/3/#")


@pytest.mark.parametrize("topic_of", [notice_topic, drill_topic, rollout_topic])
def test_message_for_the_whole_world_is_refused(topic_of: Callable[[str], str]) -> None:
    """No node would receive it: nodes subscribe to areas from their face down."""
    error = "area must be below /, got '/'; name a face of the cube, such as /4"
    with pytest.raises(TopicError, match=f"^{error}$"):
        topic_of("/")

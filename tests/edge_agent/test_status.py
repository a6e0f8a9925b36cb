"""The status line says what is, in words that a person understands."""

from dataclasses import dataclass

import pytest

from edge_agent.queue.base import Depth, Stats
from edge_agent.queue.words import depth_words
from edge_agent.status import status_line
from edge_agent.uplink.words import link_words
from spatial_mqtt.endpoint import Endpoint

GATEWAY = Endpoint("gw", 1884)


@dataclass
class Link:
    """An uplink, as far as words need one."""

    endpoint: Endpoint | None = GATEWAY
    down_since_s: float | None = None
    unserved_since_s: float | None = None


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (Link(), "gw:1884 is up"),
        (Link(down_since_s=88.0, unserved_since_s=88.0), "gw:1884 is down for 12 s"),
        (Link(unserved_since_s=95.0), "gw:1884 takes nothing for 5 s"),
        (Link(None, down_since_s=0.0), "no gateway is known"),
    ],
)
def test_link_is_never_called_better_than_it_is(link: Link, expected: str) -> None:
    """Up, down, up without a store behind it, or nowhere to go."""
    assert link_words(link, 100.0) == expected


def test_depth_names_the_urgent_first_and_what_was_dropped() -> None:
    """Empty priorities are left out."""
    stats = Stats({p: Depth(rows) for p, rows in {1: 12, 3: 0, 5: 2}.items()})

    assert depth_words(stats, 35.4) == "14 queued (5:2 1:12), oldest 35 s"
    assert depth_words(Stats({}, dropped={1: 7}), None) == "0 queued, 7 ever dropped"


def test_failing_sensors_are_named() -> None:
    """A person knows where to go before going there."""
    problems = {"tilt": "sensor tilt does not return", "soil": "EIO"}
    line = status_line(Link(), 0.0, (Stats({}), None), problems, 9)

    assert line == "gw:1884 is up; 0 queued; 2 of 9 sensors fail: tilt, soil"

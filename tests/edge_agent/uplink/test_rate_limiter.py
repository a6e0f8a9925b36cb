"""A rate with a timetable, and who passes it."""

import math

import pytest

from edge_agent.uplink.rate_limit import RateLimiter, RatePeriod, parse_minute
from edge_agent.uplink.settings import LinkSection
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError, build_settings, parse_toml

NIGHT = RatePeriod(parse_minute("22:00"), parse_minute("05:00"), 0)


@pytest.mark.parametrize(
    ("time", "is_in"),
    [("21:59", False), ("22:00", True), ("00:00", True), ("04:59", True),
     ("05:00", False), ("12:00", False)],
)  # fmt: skip
def test_period_may_reach_over_midnight(time: str, is_in: bool) -> None:
    """Cheap data and dark solar panels come at night."""
    assert NIGHT.contains(parse_minute(time)) is is_in


def test_period_that_ends_where_it_begins_is_a_whole_day() -> None:
    """Nobody writes a period that never holds."""
    assert all(RatePeriod(60, 60, 0).contains(minute) for minute in range(24 * 60))


@pytest.mark.parametrize("text", ["24:00", "7:00", "12:60", "noon", "12:00:00", ""])
def test_what_is_no_time_is_named(text: str) -> None:
    """The installer sees field, rule and value."""
    with pytest.raises(FieldError, match="HH:MM"):
        parse_minute(text)


def test_closed_link_lets_only_the_urgent_pass() -> None:
    """A warning does not wait for the morning."""
    throttle = RateLimiter(None, [NIGHT], 4, lambda: parse_minute("23:00"))

    assert [throttle.wait_s(p, 0.0) for p in (3, 4, 5)] == [math.inf, 0.0, 0.0]


def test_link_opens_with_its_hour() -> None:
    """The clock is looked at before every send."""
    minute = parse_minute("04:59")
    throttle = RateLimiter(None, [NIGHT], 4, lambda: minute)
    assert math.isinf(throttle.wait_s(1, 0.0))
    minute += 1

    assert throttle.wait_s(1, 60.0) == 0.0


def test_clock_that_is_not_set_closes_nothing() -> None:
    """A Pi without a time server would close its link on a guess."""
    throttle = RateLimiter(None, [NIGHT], 4, lambda: None)

    assert throttle.wait_s(1, 0.0) == 0.0


def test_what_the_urgent_take_is_owed_by_the_others() -> None:
    """The link's share stays what it is."""
    throttle = RateLimiter(1000.0)
    throttle.spend(3500, 0.0)

    assert throttle.wait_s(5, 0.0) == 0.0
    assert throttle.wait_s(3, 0.0) == pytest.approx(2.0)


def test_settings_make_the_throttle() -> None:
    """From the file to the wait, in the file's own words."""
    link = build_settings(
        LinkSection,
        parse_toml("""
            rate_bytes_per_s = 4000
            override_from = 5
            [[period]]
            start = "22:00"
            end = "05:00"
            rate_bytes_per_s = 0
        """),
    )
    throttle = link.rate_limiter(lambda: parse_minute("01:00"))

    assert [throttle.wait_s(p, 0.0) for p in (4, 5)] == [math.inf, 0.0]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("qos = [1, 1, 1]", "qos"),
        ("qos = [1, 1, 1, 1, 3]", "qos"),
        ("override_from = 0", "override_from"),
        ('[[period]]\nstart = "25:00"\nend = "1:00"\nrate_bytes_per_s = 1', "HH:MM"),
        ('[[period]]\nstart = "01:00"\nend = "02:00"', "rate_bytes_per_s"),
    ],
)
def test_mistakes_are_named(text: str, word: str) -> None:
    """A bad timetable never starts."""
    with pytest.raises(SettingsError, match=word):
        build_settings(LinkSection, parse_toml(text))

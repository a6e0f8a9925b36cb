"""Rate limit with a timetable, and the priorities that override it."""

import math
import time
from datetime import UTC, datetime

import pytest

from edge_agent.uplink.link_rate import RateLimiter, RatePeriod, parse_minute
from edge_agent.uplink.settings import LinkSection
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError, build_settings, parse_toml

NIGHT = RatePeriod(parse_minute("22:00"), parse_minute("05:00"), 0)


@pytest.mark.parametrize(
    ("time", "is_in"),
    [("21:59", False), ("22:00", True), ("00:00", True), ("04:59", True),
     ("05:00", False), ("12:00", False)],
)  # fmt: skip
def test_period_may_span_midnight(time: str, is_in: bool) -> None:
    """For cheap data or dark solar panels at night."""
    assert NIGHT.contains(parse_minute(time)) is is_in


def test_period_with_equal_start_and_end_is_a_whole_day() -> None:
    """Equal times would otherwise mean a period that never applies."""
    assert all(RatePeriod(60, 60, 0).contains(minute) for minute in range(24 * 60))


@pytest.mark.parametrize("text", ["24:00", "7:00", "12:60", "noon", "12:00:00", ""])
def test_invalid_time_is_reported(text: str) -> None:
    """The error gives the expected form."""
    with pytest.raises(FieldError, match="HH:MM"):
        parse_minute(text)


def test_closed_link_passes_only_urgent_messages() -> None:
    """A warning does not wait for the morning."""
    limiter = RateLimiter(None, [NIGHT], 4, lambda: parse_minute("23:00"))

    assert [limiter.wait_s(p, 0.0) for p in (3, 4, 5)] == [math.inf, 0.0, 0.0]
    assert limiter.lowest_permitted(0.0) == 4


def test_link_opens_at_the_end_of_a_period() -> None:
    """The clock is read before every send."""
    minute = parse_minute("04:59")
    limiter = RateLimiter(None, [NIGHT], 4, lambda: minute)
    assert math.isinf(limiter.wait_s(1, 0.0))
    minute += 1

    assert limiter.wait_s(1, 60.0) == 0.0
    assert limiter.lowest_permitted(60.0) == 1


def test_unsynchronised_clock_closes_no_link() -> None:
    """Without a time server the link must not be closed on a guess."""
    limiter = RateLimiter(None, [NIGHT], 4, lambda: None)

    assert limiter.wait_s(1, 0.0) == 0.0


def test_bytes_of_urgent_messages_delay_the_others() -> None:
    """The total rate of the link is kept."""
    limiter = RateLimiter(1000.0)
    limiter.spend(3500, 0.0)

    assert limiter.wait_s(5, 0.0) == 0.0
    assert limiter.wait_s(3, 0.0) == pytest.approx(2.0)


def test_time_of_another_uplink_that_lags_gives_no_bytes() -> None:
    """The lanes of a gateway share a limiter, and each takes the time itself."""
    limiter = RateLimiter(1000.0)
    limiter.spend(3500, 10.0)
    for _ in range(100):
        limiter.wait_s(3, 10.1)
        limiter.wait_s(3, 10.0)

    assert limiter.wait_s(3, 10.1) == pytest.approx(1.9)


def test_rate_limiter_is_built_from_settings() -> None:
    """From the TOML text to the wait in seconds."""
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
    limiter = link.rate_limiter(lambda: parse_minute("01:00"))

    assert [limiter.wait_s(p, 0.0) for p in (4, 5)] == [math.inf, 0.0]


@pytest.mark.parametrize(
    ("zone", "minute"),
    [("Asia/Tokyo", "22:30"), ("America/St_Johns", "11:00"), (None, "13:30")],
)
def test_periods_are_in_the_zone_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, zone: str | None, minute: str
) -> None:
    """The machine's is UTC, as on a card without a zone."""
    text = "" if zone is None else f'time_zone = "{zone}"'
    link = build_settings(LinkSection, parse_toml(text))
    at = datetime(2026, 6, 1, 13, 30, tzinfo=UTC)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        found = link.local_minute(at.timestamp())
    time.tzset()

    assert found == parse_minute(minute)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qos = [1, 1, 1]", "qos"),
        ("qos = [1, 1, 1, 1, 3]", "qos"),
        ("override_from = 0", "override_from"),
        ('[[period]]\nstart = "25:00"\nend = "1:00"\nrate_bytes_per_s = 1', "HH:MM"),
        ('time_zone = "Asia/Kyoto"', "such as Asia/Tokyo"),
        ('time_zone = "Asia"', "such as Asia/Tokyo"),
        ('time_zone = ""', "such as Asia/Tokyo"),
        ('[[period]]\nstart = "01:00"\nend = "02:00"', "rate_bytes_per_s"),
    ],
)
def test_wrong_settings_are_reported(text: str, expected: str) -> None:
    """A node with a wrong timetable does not start."""
    with pytest.raises(SettingsError, match=expected):
        build_settings(LinkSection, parse_toml(text))

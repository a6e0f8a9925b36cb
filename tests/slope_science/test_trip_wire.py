"""The rule of a trip wire by its readings alone."""

import pytest

from slope_science.evidence.detections import Detection, RuleContext
from slope_science.evidence.samples import SensorSample
from slope_science.evidence.settings import DEFAULT_EVIDENCE
from slope_science.evidence.vibration_and_trip_wire import WireRule

HOUR_S = 3600.0
SETTINGS = DEFAULT_EVIDENCE.rules.wire


def wire() -> WireRule:
    return WireRule("w", SETTINGS, DEFAULT_EVIDENCE.alone_notice_level)


def detected(rule: WireRule, now_s: float) -> list[Detection]:
    return list(rule.detect(RuleContext(now_s)))


@pytest.mark.parametrize("value", [True, 1.0, None])
def test_only_a_sure_reading_cuts_a_wire(value: float | None) -> None:
    rule = wire()
    rule.on_sample(SensorSample(0.0, value, is_suspect=value is True))

    assert detected(rule, 60.0) == []


@pytest.mark.parametrize("value", [False, 0.0, None])
def test_only_a_sure_reading_mends_a_wire(value: float | None) -> None:
    rule = wire()
    rule.on_sample(SensorSample(0.0, True))
    rule.on_sample(SensorSample(60.0, value, is_suspect=value is False))

    (found,) = detected(rule, 120.0)
    assert (found.level, found.at_s) == (5, 0.0)


def test_loose_plug_is_one_event_until_it_was_whole_for_a_day() -> None:
    """Its first cut gives the time that it has lasted."""
    rule, again_s = wire(), 2 * SETTINGS.alone_for_s
    rule.on_sample(SensorSample(HOUR_S, True))
    assert detected(rule, HOUR_S)[0].alone_for_h is None
    for at_s in (again_s, again_s + 23 * HOUR_S):
        rule.on_sample(SensorSample(at_s, False))
    rule.on_sample(SensorSample(again_s + 24 * HOUR_S, True))
    (loose,) = detected(rule, again_s + 24 * HOUR_S)

    assert loose.alone_for_h == round((again_s + 23 * HOUR_S) / HOUR_S)
    mended_s = again_s + 25 * HOUR_S
    for hour in range(26):
        rule.on_sample(SensorSample(mended_s + hour * HOUR_S, False))
    rule.on_sample(SensorSample(mended_s + 25.5 * HOUR_S, True))
    assert detected(rule, mended_s + 25.5 * HOUR_S)[0].alone_for_h is None


def test_state_keeps_the_event_and_its_cuts() -> None:
    rule, again = wire(), wire()
    for n in range(2 * SETTINGS.flaps_per_h):
        rule.on_sample(SensorSample(HOUR_S + 60.0 * n, n % 2 == 0))
    now_s = HOUR_S + 60.0 * 2 * SETTINGS.flaps_per_h
    rule.on_sample(SensorSample(now_s, True))
    again.restore_state(rule.to_state())

    (found,) = detected(rule, now_s)
    assert found.reason is not None
    assert found.reason.params["cuts_per_h"] == SETTINGS.flaps_per_h + 1
    assert detected(again, now_s) == [found]
    again.on_sample(SensorSample(now_s + HOUR_S, False))
    again.on_sample(SensorSample(now_s + 2 * HOUR_S, True))
    assert detected(again, now_s + 2 * HOUR_S)[0].alone_for_h is not None

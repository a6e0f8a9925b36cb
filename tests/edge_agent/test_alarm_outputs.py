"""Lamps and sounders on gpiozero's mock pins: on, off, and by whom."""

import re
from collections.abc import Iterator

import pytest
from gpiozero import DigitalInputDevice
from gpiozero.pins.mock import MockFactory

from edge_agent.alarm_outputs import AlarmOutputs, AlarmOutputSettings
from edge_agent.config import parse_node_settings
from service_runtime.settings import SettingsError

LAMP = AlarmOutputSettings(name="lamp", pin=5, from_level=4)
NODE = {
    "node": {"id": "n1", "latitude": 33.5, "longitude": 133.5},
    "uplink": {"gateway": "mqtt://127.0.0.1:1"},
    "sensor": [{"kind": "wire", "name": "span", "pin": 27}],
}


class Clock:
    """Monotonic time of a test."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def pins() -> Iterator[MockFactory]:
    """Pins of no board."""
    factory = MockFactory()
    yield factory
    factory.close()


def alarms(
    pins: MockFactory, *settings: AlarmOutputSettings
) -> tuple[AlarmOutputs, Clock]:
    clock = Clock()
    return AlarmOutputs(settings, pins, clock), clock


@pytest.mark.parametrize(
    ("own", "noticed", "lit", "siren"),
    [(1, 3, 0, 0), (4, 1, 1, 1), (1, 4, 1, 0), (5, 5, 1, 1)],
)
def test_level_switches_the_pin_whoever_sees_it(
    pins: MockFactory, own: int, noticed: int, lit: int, siren: int
) -> None:
    """One goes by notices too, the other only by what the node sees itself."""
    mute = AlarmOutputSettings(name="siren", pin=6, from_level=4, by_notice=False)
    both, _ = alarms(pins, LAMP, mute)
    both.update(own, noticed)

    assert (pins.pin(5).state, pins.pin(6).state) == (lit, siren)
    assert both.states() == {
        "lamp": "on" if lit else "off", "siren": "on" if siren else "off",
    }  # fmt: skip
    both.update(1, 1)
    assert (pins.pin(5).state, pins.pin(6).state) == (0, 0)


def test_sounder_ends_after_its_time_and_begins_anew_at_a_higher_level(
    pins: MockFactory,
) -> None:
    """People near it are told again when it gets worse, or when it comes back."""
    both, clock = alarms(
        pins, AlarmOutputSettings(name="siren", pin=6, from_level=3, most_s=60.0)
    )
    seen = []
    for at_s, level in ((0, 3), (59, 3), (60, 3), (70, 4), (129, 4), (131, 4),
                        (140, 1), (150, 3)):  # fmt: skip
        clock.s = 100.0 + at_s
        both.update(level, 1)
        seen.append(pins.pin(6).state)

    assert seen == [1, 1, 0, 1, 1, 0, 0, 1]


def test_relay_that_is_on_while_low_is_off_at_start_and_at_the_end(
    pins: MockFactory,
) -> None:
    """Most relay boards are."""
    both, _ = alarms(pins, AlarmOutputSettings(name="lamp", pin=5, active_high=False))
    begun = pins.pin(5).state
    both.update(5, 1)
    lit = pins.pin(5).state
    both.close()

    assert (begun, lit) == (1, 0)


def test_pin_that_cannot_be_had_is_told_and_stops_nobody(pins: MockFactory) -> None:
    """The other lamp still works."""
    with DigitalInputDevice(5, pin_factory=pins):
        both, _ = alarms(pins, LAMP, AlarmOutputSettings(name="siren", pin=6))
        both.update(5, 1)

    assert both.states()["siren"] == "on"
    assert "in use" in both.states()["lamp"]


def lamp(name: str = "lamp", pin: int = 5, **more: object) -> dict[str, object]:
    return {"name": name, "pin": pin, **more}


@pytest.mark.parametrize(
    ("alarm", "words"),
    [
        ([lamp(pin=27)], "alarm[1].pin must be a pin of its own, got 27; sensor.span"),
        ([lamp("a"), lamp("b")], "alarm.a uses it; choose another pin"),
        ([lamp(), lamp(pin=6)], "alarm[2].name must be named once"),
        ([lamp(from_level=6)], "alarm[1].from_level must be"),
        ([lamp(level=4)], "did you mean"),
    ],
)
def test_wrong_alarm_is_named(alarm: list[dict[str, object]], words: str) -> None:
    """A pin of a sensor, a pin or a name twice, a level that is none."""
    with pytest.raises(SettingsError, match=re.escape(words)):
        parse_node_settings({**NODE, "alarm": alarm})

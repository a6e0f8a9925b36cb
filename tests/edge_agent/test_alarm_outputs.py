"""Alarm outputs on gpiozero's mock pins."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

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


class FakeClock:
    """Settable monotonic clock in seconds."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def pins() -> Iterator[MockFactory]:
    """Mock pins without a board."""
    factory = MockFactory()
    yield factory
    factory.close()


def alarms(
    pins: MockFactory, *settings: AlarmOutputSettings
) -> tuple[AlarmOutputs, FakeClock]:
    clock = FakeClock()
    return AlarmOutputs(settings, pins, clock), clock


@pytest.mark.parametrize(
    ("own_level", "notice_level", "lit", "siren"),
    [(1, 3, 0, 0), (4, 1, 1, 1), (1, 4, 1, 0), (5, 5, 1, 1)],
)
def test_level_of_node_or_notice_switches_the_pin(
    pins: MockFactory, own_level: int, notice_level: int, lit: int, siren: int
) -> None:
    """One output follows notices too, the other only the node's own level."""
    mute = AlarmOutputSettings(name="siren", pin=6, from_level=4, by_notice=False)
    outputs, _ = alarms(pins, LAMP, mute)
    outputs.update(own_level, notice_level)

    assert (pins.pin(5).state, pins.pin(6).state) == (lit, siren)
    assert outputs.states() == {
        "lamp": "on" if lit else "off", "siren": "on" if siren else "off",
    }  # fmt: skip
    outputs.update(1, 1)
    assert (pins.pin(5).state, pins.pin(6).state) == (0, 0)


def test_siren_stops_after_its_time_and_restarts_at_a_higher_level(
    pins: MockFactory,
) -> None:
    """People nearby are warned again when the level rises or returns."""
    outputs, clock = alarms(
        pins,
        AlarmOutputSettings(
            name="siren", pin=6, from_level=3, most_s=60.0, unknown_every_s=0.0
        ),
    )
    seen = []
    for at_s, level in ((0, 3), (59, 3), (60, 3), (70, 4), (129, 4), (131, 4),
                        (140, 1), (150, 3)):  # fmt: skip
        clock.s = 100.0 + at_s
        outputs.update(level, 1)
        seen.append(pins.pin(6).state)

    assert seen == [1, 1, 0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        # A notice of level 4 lasts; the own level 5 returns after hours.
        (((0, 5), (60, 5), (70, 4), (700, 4), (18_000, 5)), [1, 0, 0, 0, 1]),
        # It flickers between both.
        (
            ((0, 5), (70, 4), (80, 4), (600, 5), (610, 4), (700, 4), (1200, 5)),
            [1, 0, 0, 0, 0, 0, 0],
        ),
        # Level 4 was there less than ten minutes ago.
        (((0, 5), (60, 3), (100, 4), (670, 3), (680, 4)), [1, 0, 0, 0, 0]),
        (((0, 5), (60, 4), (650, 3), (670, 4), (680, 5)), [1, 0, 0, 0, 1]),
        (((0, 5), (60, 4), (670, 3), (1280, 3), (1290, 4)), [1, 0, 0, 0, 1]),
    ],
)  # fmt: skip
def test_siren_restarts_when_a_level_returns_while_a_lower_one_lasts(
    pins: MockFactory, levels: tuple[tuple[int, int], ...], expected: list[int]
) -> None:
    """A second emergency is one, ten minutes after the first; flapping is none."""
    siren = AlarmOutputSettings(
        name="siren", pin=6, from_level=3, most_s=60.0, unknown_every_s=0.0
    )
    outputs, clock = alarms(pins, siren)
    seen = []
    for at_s, level in levels:
        clock.s = 100.0 + at_s
        outputs.update(level, 3)
        seen.append(pins.pin(6).state)

    assert seen == expected


def test_active_low_relay_is_off_at_start_and_at_close(
    pins: MockFactory,
) -> None:
    """Most relay boards switch on at a low level."""
    outputs, _ = alarms(
        pins, AlarmOutputSettings(name="lamp", pin=5, active_high=False)
    )
    initial = pins.pin(5).state
    outputs.update(5, 1)
    lit = pins.pin(5).state
    outputs.close()

    assert (initial, lit) == (1, 0)
    DigitalInputDevice(5, pin_factory=pins).close()  # the pin is released


def test_lamp_without_a_longest_time_stays_on(pins: MockFactory) -> None:
    """As long as the level lasts."""
    outputs, clock = alarms(pins, replace(LAMP, most_s=0.0))
    outputs.update(4, 1)
    clock.s += 1e6
    outputs.update(4, 1)

    assert (outputs.states(), pins.pin(5).state) == ({"lamp": "on"}, 1)


def test_output_blinks_only_while_it_is_on(pins: MockFactory) -> None:
    """Updates do not begin the rhythm anew."""
    outputs, _ = alarms(pins, replace(LAMP, blink_s=0.02))
    give_up_s = time.monotonic() + 20.0
    while len(pins.pin(5).states) < 7 and time.monotonic() < give_up_s:
        outputs.update(4, 1)
        time.sleep(0.001)
    assert [each.state for each in pins.pin(5).states][:7] == [0, 1, 0, 1, 0, 1, 0]

    outputs.update(1, 1)
    pins.pin(5).clear_states()
    time.sleep(0.1)
    assert [each.state for each in pins.pin(5).states] == [0]


def test_pin_in_use_is_reported_and_other_outputs_work(pins: MockFactory) -> None:
    """The state of the lamp gives the reason."""
    with DigitalInputDevice(5, pin_factory=pins):
        outputs, _ = alarms(pins, LAMP, AlarmOutputSettings(name="siren", pin=6))
        outputs.update(5, 1)

    assert outputs.states()["siren"] == "on"
    assert "in use" in outputs.states()["lamp"]
    assert outputs.summary() == "siren:on lamp:failed"


def lamp(name: str = "lamp", pin: int = 5, **more: object) -> dict[str, object]:
    return {"name": name, "pin": pin, **more}


@pytest.mark.parametrize(
    ("alarm", "expected"),
    [
        ([lamp(pin=27)], "alarm[1].pin must be a pin of its own, got 27; sensor.span"),
        ([lamp("a"), lamp("b")], "alarm.a uses it; choose another pin"),
        ([lamp(), lamp(pin=6)], "alarm[2].name must be named once"),
        ([lamp(from_level=6)], "alarm[1].from_level must be"),
        ([lamp(level=4)], "did you mean"),
    ],
)
def test_wrong_alarm_settings_are_reported(
    alarm: list[dict[str, object]], expected: str
) -> None:
    """A pin of a sensor, a pin or a name used twice, an impossible level."""
    with pytest.raises(SettingsError, match=re.escape(expected)):
        parse_node_settings({**NODE, "alarm": alarm})


def test_unknown_level_flashes_and_is_never_steady_off(pins: MockFactory) -> None:
    """One second of each interval; a level from notice or node goes first."""
    flashing = AlarmOutputSettings(name="lamp", pin=5, from_level=4)
    own = AlarmOutputSettings(name="own", pin=6, from_level=4, by_notice=False)
    dark = AlarmOutputSettings(name="dark", pin=7, from_level=4, unknown_every_s=0.0)
    outputs, clock = alarms(pins, flashing, own, dark)
    seen = []
    for second in range(20):
        clock.s = 1000.0 + second
        outputs.update(1, 1, is_unknown=True)
        seen.append(tuple(pins.pin(number).state for number in (5, 6, 7)))

    assert seen == [(0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 0, 0)] * 4
    assert outputs.states() == {"lamp": "unknown", "own": "off", "dark": "off"}
    outputs.update(4, 1, is_unknown=True)
    assert set(outputs.states().values()) == {"on"}
    outputs.update(1, 4, is_unknown=True)
    assert outputs.states()["lamp"] == "on"
    outputs.update(1, 1)
    assert outputs.states()["lamp"] == "off"
    assert pins.pin(5).state == 0


def test_outputs_flash_while_the_node_can_read_no_sensor(pins: MockFactory) -> None:
    """Its own level is unknown; where a backend judges the area, its level counts."""
    own = AlarmOutputSettings(name="own", pin=6, from_level=4, by_notice=False)
    outputs, _ = alarms(pins, LAMP, own)
    outputs.update(1, 1, is_unknown=True, is_blind=True)
    assert outputs.states() == {"lamp": "unknown", "own": "unknown"}
    outputs.update(1, 2, is_blind=True)
    assert outputs.states() == {"lamp": "off", "own": "unknown"}
    outputs.update(4, 1, is_unknown=True, is_blind=True)
    assert outputs.states() == {"lamp": "on", "own": "on"}


def test_siren_is_limited_by_default_and_flashes_while_the_level_lasts(
    pins: MockFactory,
) -> None:
    """An hour at full volume; then the sign of the level, or that it is unknown."""
    siren = AlarmOutputSettings(name="siren", pin=6, from_level=4)
    outputs, clock = alarms(pins, siren)
    states = []
    for at_s, notice, is_unknown in (
        (0, 4, False),
        (3599, 4, False),
        (3601, 4, False),
        (9000, 5, False),
        (20_000, 5, False),
        (20_001, 1, True),
        (90_000, 1, True),
        (90_001, 1, False),
    ):
        clock.s = 100.0 + at_s
        outputs.update(1, notice, is_unknown=is_unknown)
        states.append(outputs.states()["siren"])

    assert states == [
        "on", "on", "limited", "on", "limited", "unknown", "unknown", "off",
    ]  # fmt: skip


def test_interval_must_be_longer_than_the_flash() -> None:
    """The error names the rule and the remedy."""
    alarm = {"name": "lamp", "pin": 5, "unknown_every_s": 1.5}
    with pytest.raises(SettingsError, match="0, or 2 or more") as caught:
        parse_node_settings({**NODE, "alarm": [alarm]})
    assert "take 5 for a lamp" in str(caught.value)
    for every_s in (0.0, 2.0):
        parse_node_settings({**NODE, "alarm": [{**alarm, "unknown_every_s": every_s}]})


def lit_seconds(
    pins: MockFactory, outputs: AlarmOutputs, clock: FakeClock, seconds: int, **now: int
) -> list[int]:
    """Seconds in which the lamp is on, of some seconds of a drill."""
    clock.s, lit = 200.0, []
    for second in range(seconds):
        outputs.update(now.get("own", 1), now.get("notice", 1), drill_level=4)
        lit += [second] if pins.pin(5).state else []
        clock.s += 1.0
    return lit


def test_drill_has_a_rhythm_of_its_own(pins: MockFactory) -> None:
    """Three short signals every ten seconds, and the state says what it is."""
    outputs, clock = alarms(pins, LAMP)

    assert lit_seconds(pins, outputs, clock, 20) == [0, 2, 4, 10, 12, 14]
    assert outputs.states() == {"lamp": "drill"}
    assert outputs.summary() == "lamp:drill"
    outputs.update(1, 1)
    assert outputs.states() == {"lamp": "off"}


@pytest.mark.parametrize("now", [{"own": 4}, {"notice": 4}, {"own": 5, "notice": 2}])
def test_drill_never_hides_a_level(pins: MockFactory, now: dict[str, int]) -> None:
    """The output is steadily on, as without the drill."""
    outputs, clock = alarms(pins, LAMP)

    assert lit_seconds(pins, outputs, clock, 12, **now) == list(range(12))
    assert outputs.states() == {"lamp": "on"}


def test_drill_never_hides_an_unknown_level_or_the_longest_time(
    pins: MockFactory,
) -> None:
    """Flashes of both stay what they are, and no flashes too."""
    short = replace(LAMP, most_s=5.0)
    dark = replace(short, name="dark", pin=6, unknown_every_s=0.0)
    outputs, clock = alarms(pins, short, dark)
    outputs.update(1, 1, is_unknown=True, drill_level=5)
    assert outputs.states() == {"lamp": "unknown", "dark": "drill"}
    for _ in range(2):
        outputs.update(4, 1, drill_level=5)
        clock.s += 6.0
    assert outputs.states() == {"lamp": "limited", "dark": "off"}


def test_drill_leaves_outputs_of_other_levels_and_of_the_node_alone(
    pins: MockFactory,
) -> None:
    """An output from level 5, and one that follows only the node itself."""
    high = AlarmOutputSettings(name="siren", pin=6, from_level=5)
    own = AlarmOutputSettings(name="gate", pin=7, from_level=3, by_notice=False)
    outputs, _ = alarms(pins, LAMP, high, own)
    outputs.update(1, 1, drill_level=4)

    assert outputs.states() == {"lamp": "drill", "siren": "off", "gate": "off"}

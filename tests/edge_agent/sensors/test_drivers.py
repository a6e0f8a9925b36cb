import errno
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from edge_agent.sensors.base import (
    Hardware,
    RetryingSensor,
    Sensor,
    SensorBusError,
    SensorDriverError,
    SensorRangeError,
)
from edge_agent.sensors.registry import open_sensors, parse_sensors
from edge_agent.simulator.board import Board
from edge_agent.simulator.buses import Fault
from edge_agent.simulator.slope import SimulatedRain, Slope, SlopeSite, make_storm

START_S = 1_700_000_000.0
TABLES = (
    {"kind": "rain-gauge", "name": "rain", "pin": 17, "mm_per_tip": 0.5},
    {"kind": "soil-moisture", "name": "soil", "channel": 2, "dry_v": 2.6, "wet_v": 1.2},
    {"kind": "soil-moisture", "name": "deep", "channel": 5, "dry_v": 2.5, "wet_v": 1.1},
    {"kind": "tilt", "name": "tilt", "device": 1, "samples": 8},
    {"kind": "wire", "name": "wire", "pin": 27},
)


def node(
    site: SlopeSite | None = None,
    rain: SimulatedRain | None = None,
    **hardware: Callable[..., Any],
) -> tuple[Board, dict[str, Sensor]]:
    """A board and its opened sensors, at the start of a storm by default."""
    settings = parse_sensors(TABLES)
    rain = rain or make_storm("peaked", START_S, 10, 100)
    slope = Slope(rain, site or SlopeSite(start_s=START_S))
    board = Board(slope, settings, random.Random(1))
    parts = Hardware(board.pin_factory, **({"sleep": lambda _: None} | hardware))
    sensors = open_sensors(settings, parts)
    board.advance(START_S)
    return board, {sensor.name: sensor for sensor in sensors}


def values(sensor: Sensor) -> dict[str, Any]:
    """Readings by name."""
    return {reading.name: reading.value for reading in sensor.read(0.0)}


def test_gauge_counts_every_tip() -> None:
    """The number of tips corresponds to the rain."""
    board, sensors = node()
    total_mm = 0.0
    for minute in range(1, 601):
        board.advance(START_S + minute * 60)
        (reading,) = sensors["rain"].read(0.0)
        total_mm += reading.value
    assert (total_mm, reading.sum) == (pytest.approx(100.0), 100.0)


def test_gauge_continues_from_the_stored_tips() -> None:
    """The cumulative sum survives a restart; rain in between is lost."""
    board, sensors = node()
    board.advance(START_S + 5 * 3600)
    (before,) = sensors["rain"].read(0.0)
    stored = sensors["rain"].state()
    settings = parse_sensors(TABLES)
    slope = Slope(make_storm("peaked", START_S, 10, 100), SlopeSite(start_s=START_S))
    again = Board(slope, settings, random.Random(2))
    (rain, *_) = open_sensors(
        settings, Hardware(again.pin_factory, lambda _: None, get_state=stored.get)
    )
    again.advance(START_S + 6 * 3600)
    assert rain.read(0.0)[0].sum == before.sum
    again.advance(START_S + 10 * 3600)
    assert rain.read(0.0)[0].value > 0


def test_state_contains_only_tips_that_were_read() -> None:
    """Stored state agrees with the reading stored with it, whatever tips follow."""
    board, sensors = node()
    sensors["rain"].read(0.0)
    board.advance(START_S + 8 * 3600)
    assert sensors["rain"].state()["sensor.rain.tips"] == "0"


def test_damaged_state_counts_from_zero() -> None:
    """A stored count that is no number does not stop the gauge."""
    _, sensors = node(get_state=lambda _: "x7")
    assert sensors["rain"].read(0.0)[0].sum == 0


def test_failing_callback_loses_no_tips(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in the agent's callback does not reach the thread of the pins."""

    def fail(name: str) -> None:
        raise RuntimeError(name)

    board, sensors = node(on_event=fail)
    board.advance(START_S + 10 * 3600)
    assert sensors["rain"].read(0.0)[0].value == 100.0
    assert "event callback of sensor rain failed" in caplog.text


def test_moisture_is_read_back_within_the_noise() -> None:
    """Both channels of one chip give the water content of the slope."""
    board, sensors = node()
    for hour in (0, 5, 9):
        state = board.advance(START_S + hour * 3600)
        for name in ("soil", "deep"):
            assert values(sensors[name])[name] == pytest.approx(state.vwc, abs=0.005)


def test_tilt_is_read_back_within_two_thousandths() -> None:
    """Eight samples bring the noise of the chip below 0.002 deg."""
    board, sensors = node(SlopeSite(start_s=START_S, mounted_deg=(-3.0, 2.0)))
    state = board.advance(START_S + 3600)
    seen = values(sensors["tilt"])
    assert seen["tilt/x"] == pytest.approx(state.tilt_x_deg, abs=0.002)
    assert seen["tilt/y"] == pytest.approx(state.tilt_y_deg, abs=0.002)
    assert seen["tilt/temp"] == pytest.approx(state.temp_c, abs=0.1)


def test_samples_of_a_tilt_reading_are_a_filter_period_apart() -> None:
    """Closer samples would repeat; the first waits until the filter has settled."""
    sleeps = []
    _, sensors = node(sleep=sleeps.append)
    sensors["tilt"].read(0.0)
    assert sleeps == [2.0] + [0.256] * 7
    sensors["tilt"].read(0.0)
    assert sleeps[8:] == [0.256] * 7


def test_cut_wire_is_reported_at_once_and_stays() -> None:
    """The cut calls the agent, and every later reading is True."""
    notified = []
    site = SlopeSite(start_s=START_S, wire_break_s=START_S + 100)
    board, sensors = node(
        site, rain=make_storm("quiet", START_S, 1, 0), on_event=notified.append
    )
    assert values(sensors["wire"]) == {"wire": False}
    board.advance(START_S + 101)
    assert (notified, values(sensors["wire"])) == (["wire"], {"wire": True})


def test_dead_tilt_chip_is_an_error_and_others_are_read() -> None:
    """A chip that answers nothing is reported; the others on the bus are read."""
    board, sensors = node()
    board.inject_fault("tilt", Fault.DEAD)
    with pytest.raises(
        SensorBusError, match=r"^sensor tilt answers only 00; check power"
    ):
        sensors["tilt"].read(0.0)
    assert 0 < values(sensors["soil"])["soil"] < 0.5


def test_replaced_tilt_chip_is_set_up_again() -> None:
    """A chip that lost its settings is read only after it has them again."""
    board, sensors = node()
    board.inject_fault("tilt", Fault.DEAD)
    with pytest.raises(SensorBusError, match="answers only 00"):
        sensors["tilt"].read(0.0)
    board.clear_fault("tilt")
    state = board.advance(START_S + 60)
    assert values(sensors["tilt"])["tilt/x"] == pytest.approx(
        state.tilt_x_deg, abs=0.002
    )


def test_tilt_chip_that_lost_power_is_detected() -> None:
    """A chip in standby reads zero, which must not be taken for level ground."""
    board, sensors = node()
    board.clear_fault("tilt")
    with pytest.raises(SensorBusError, match="answers only 00"):
        sensors["tilt"].read(0.0)
    assert math.isfinite(values(sensors["tilt"])["tilt/x"])


def test_dead_converter_is_out_of_range_for_both_probes() -> None:
    """Zero volts is no water content; the message contains the voltage."""
    board, sensors = node()
    board.inject_fault("soil", Fault.DEAD)
    for name in ("soil", "deep"):
        with pytest.raises(SensorRangeError, match=r"got 0\.00 V"):
            sensors[name].read(0.0)


def test_stuck_probe_repeats_its_value() -> None:
    """A repeated value is not an error: quality control has to find it."""
    board, sensors = node()
    before = values(sensors["soil"])["soil"]
    board.inject_fault("soil", Fault.STUCK)
    board.advance(START_S + 9 * 3600)
    assert values(sensors["soil"])["soil"] == pytest.approx(before, abs=0.002)


def test_stuck_gauge_counts_no_tips() -> None:
    """A stuck reed counts no tips; tips in the meantime are not added later."""
    board, sensors = node()
    board.inject_fault("rain", Fault.STUCK)
    board.advance(START_S + 10 * 3600)
    board.clear_fault("rain")
    board.advance(START_S + 11 * 3600)
    assert sensors["rain"].read(0.0)[0].sum == 0


def test_fault_of_an_unknown_sensor_is_refused() -> None:
    """The error contains the unknown name."""
    board, _ = node()
    with pytest.raises(LookupError, match="no sensor with name 'rian'"):
        board.inject_fault("rian", Fault.DEAD)


def test_fault_that_a_part_cannot_have_is_refused() -> None:
    """A gauge cannot be saturated; the message lists its faults."""
    board, _ = node()
    with pytest.raises(LookupError, match=r"no fault 'saturated' for sensor 'rain'"):
        board.inject_fault("rain", Fault.SATURATED)


def test_sensor_that_does_not_open_is_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A missing chip is logged and read once it is there; others are not affected."""
    settings = parse_sensors(TABLES)
    slope = Slope(SimulatedRain(START_S, 60, (0.0,)), SlopeSite(start_s=START_S))
    board = Board(slope, settings, random.Random(1))
    board.inject_fault("tilt", Fault.DEAD)
    sensors = open_sensors(settings, Hardware(board.pin_factory, lambda _: None))
    tilt = sensors[3]
    assert [type(s) is RetryingSensor for s in sensors] == [False] * 3 + [True, False]
    assert "sensor tilt must answer as an ADXL355 (AD, ED), got 00, 00" in caplog.text
    with pytest.raises(SensorBusError, match="got 00, 00"):
        tilt.read(0.0)
    assert (tilt.name, tilt.unit, tilt.claims) == ("tilt", "deg", ("SPI0.1",))
    board.clear_fault("tilt")
    board.advance(START_S)
    assert values(tilt)["tilt/x"] == pytest.approx(1.2, abs=0.002)
    assert (tilt.error, tilt.state()) == (None, {})
    tilt.close()


def test_pin_in_use_is_an_open_error() -> None:
    """The reason is that another part of the program holds the pin."""
    board, sensors = node()
    (gauge,) = open_sensors(
        parse_sensors(TABLES[:1]), Hardware(board.pin_factory, lambda _: None)
    )
    assert "cannot be opened: pin GPIO17 is already in use" in str(gauge.error)
    sensors["rain"].close()
    assert gauge.read(0.0)[0].unit == "mm"


def test_pin_kept_by_systemd_is_reported_with_a_remedy() -> None:
    """Pins of a stopped agent stay open in systemd's store, so they are busy."""

    def busy() -> Sensor:
        raise OSError(errno.EBUSY, "Device or resource busy")

    retrying = RetryingSensor(parse_sensors(TABLES[:1])[0], busy)
    assert "busy; stop the process that uses it; pins kept for" in str(retrying.error)


def test_defect_that_shows_when_a_sensor_is_opened_stops_no_other() -> None:
    """The agent would not start, and the other sensors would not be read."""
    defect = ZeroDivisionError("division by zero")

    def fail() -> Sensor:
        raise defect

    retrying = RetryingSensor(parse_sensors(TABLES[:1])[0], fail)
    with pytest.raises(
        SensorDriverError,
        match=r"^sensor rain cannot be opened: ZeroDivisionError: division by zero; ",
    ) as caught:
        retrying.read(0.0)
    assert caught.value.__cause__ is defect


def test_boards_share_no_state() -> None:
    """Two boards in one process have their own pins and their own bus."""
    one, first = node(SlopeSite(start_s=START_S, mounted_deg=(1.0, 1.0)))
    _, second = node(SlopeSite(start_s=START_S, mounted_deg=(5.0, 5.0)))
    one.advance(START_S + 10 * 3600)
    assert values(second["rain"])["rain"] == 0
    assert values(second["tilt"])["tilt/x"] == pytest.approx(5.0, abs=0.002)
    assert values(first["tilt"])["tilt/x"] < 2
    for sensor in first.values():
        sensor.close()
    assert values(second["soil"])["soil"] > 0

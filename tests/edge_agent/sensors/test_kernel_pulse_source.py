import pytest

from edge_agent.sensors.base import Hardware, SensorRangeError
from edge_agent.sensors.buses import EDGE_EVENT, EdgeEvent, decode_edge_events
from edge_agent.sensors.rain_gauge_and_vibration import (
    KernelPulseSource,
    RainGauge,
    RainGaugeSettings,
)

SECOND = 10**9


class FakeLine:
    """A line with a list in place of the kernel's queue."""

    def __init__(self, request_id: str = "a") -> None:
        self.token = f"line17-{request_id}"
        self.is_kept = False
        self.waiting: list[EdgeEvent] = []
        self.number = 0
        self.active = False
        self.is_gone = False

    def edge(self, at_s: float, times: int = 1) -> None:
        """Queue edges that are four seconds apart."""
        for index in range(times):
            self.number += 1
            time_ns = int((at_s + 4 * index) * SECOND)
            self.waiting.append(EdgeEvent(time_ns, self.number))

    def read(self) -> list[EdgeEvent]:
        if self.is_gone:
            raise OSError("No such device")
        events, self.waiting = self.waiting, []
        return events

    def is_active(self) -> bool:
        return self.active

    def close(self) -> None:
        pass


class FakeLines:
    """A machine with one line."""

    def __init__(self, line: FakeLine) -> None:
        self.line = line

    def open(self, pin: int, debounce_s: float, active_high: bool) -> FakeLine:
        assert (pin, debounce_s, active_high) == (17, 0.02, False)
        return self.line


def gauge(line: FakeLine, stored: dict[str, str] | None = None) -> RainGauge:
    """A gauge on the line, with the state stored by an earlier process."""
    settings = RainGaugeSettings(kind="rain-gauge", name="rain", pin=17)
    get_state = (stored or {}).get
    hardware = Hardware(None, lambda _: None, get_state, edge_lines=FakeLines(line))
    return RainGauge(settings, hardware)


def test_events_are_decoded_in_the_layout_of_the_kernel() -> None:
    """Time, edge, line, number in the request and in the line; 24 bytes of padding."""
    raw = bytes.fromhex("00ca9a3b00000000 02000000 11000000 09000000 07000000")
    assert decode_edge_events((raw + bytes(24)) * 2) == [EdgeEvent(SECOND, 7)] * 2
    assert EDGE_EVENT.size == 48
    with pytest.raises(ValueError, match="whole events of 48 bytes, got 47"):
        decode_edge_events(bytes(47))


def test_queued_tips_are_counted_at_the_next_reading() -> None:
    """Edges are queued while the process is stopped."""
    line = FakeLine()
    rain = gauge(line)
    assert rain.read(0.0)[0].value == 0
    line.edge(10, times=40)
    (reading,) = rain.read(0.0)
    assert (reading.value, reading.sum) == (20.0, 20.0)


def test_lost_edges_are_counted_by_their_number() -> None:
    """A full queue drops the oldest; the next number gives how many."""
    line = FakeLine()
    rain = gauge(line)
    line.edge(10, times=8)
    del line.waiting[:5]
    assert rain.read(0.0)[0].value == 4.0


def test_new_process_continues_after_the_stored_reading() -> None:
    """Tips that were read but not stored, and tips while the process was dead."""
    line = FakeLine()
    first = gauge(line)
    line.edge(10, times=3)
    first.read(0.0)
    stored = first.state()
    assert stored == {
        "sensor.rain.tips": "3",
        "sensor.rain.tips.mark": "line17-a 3",
        "sensor.rain.tips.mm": "3 0.5 0.0",
    }
    line.edge(20, times=2)
    first.read(0.0)  # and the process is killed before this is stored
    line.edge(30, times=5)
    line.is_kept = True
    second = gauge(line, stored)
    (reading,) = second.read(0.0)
    assert (reading.value, reading.sum) == (3.5, 5.0)


def test_new_line_request_starts_at_its_own_first_edge() -> None:
    """After a reboot the numbers restart; the mark of the old request is void.

    Tips before the new request were missed, so its first report is missing.
    """
    old = FakeLine("a")
    first = gauge(old)
    old.edge(10, times=30)
    first.read(0.0)
    new = FakeLine("b")
    second = gauge(new, first.state())
    new.edge(5, times=2)
    (report,) = second.read(0.0)
    assert (report.value, report.sum, report.extra) == (None, 16.0, {"qc": 9})
    new.edge(15)
    assert second.read(0.0)[0].value == 0.5


@pytest.mark.parametrize("mark", ["", "line17-z 7", "line17-a x"])
def test_tips_of_a_kept_line_are_not_counted_again_when_the_state_is_lost(
    mark: str,
) -> None:
    """Another process has counted 300; the queue file with its mark is another one."""
    line = FakeLine()
    line.edge(10, times=300)
    line.read()
    line.is_kept = True
    rain = gauge(line, {"sensor.rain.tips.mark": mark})
    assert rain.read(0.0)[0].value == 0.0
    assert "sensor.rain.tips.mark" not in rain.state()
    line.edge(2000, times=2)
    assert rain.read(0.0)[0].value == 1.0
    assert rain.state()["sensor.rain.tips.mark"] == "line17-a 302"
    line.edge(2010, times=3)
    del line.waiting[:1]
    assert rain.read(0.0)[0].value == 1.5


@pytest.mark.parametrize("is_kept", [True, False])
def test_damaged_mark_is_ignored(is_kept: bool) -> None:
    """With an invalid mark no queued edge is lost."""
    line = FakeLine()
    line.is_kept = is_kept
    line.edge(1)
    assert KernelPulseSource(line, "line17-a x").drain().untimed_count == 0


def test_lost_edges_of_a_flapping_switch_are_not_rain() -> None:
    """Edges without a time are treated like the edges around them."""
    line = FakeLine()
    rain = gauge(line)
    for n in range(500):
        line.edge(10 + n / 10)
    del line.waiting[:300]
    readings = {reading.name: reading.value for reading in rain.read(0.0)}
    assert readings == {
        "rain": 10.0,
        "rain/refused": 480,
        "rain/health": "flaps: more than 20 closures a minute",
    }


def test_switch_that_is_stuck_across_a_restart_sends_missing_rain() -> None:
    """The pin was kept: the first reading already shows that no closure came."""
    line = FakeLine()
    first = gauge(line)
    line.edge(10)
    line.active = True
    first.read(0.0)
    line.is_kept = True
    second = gauge(line, first.state())
    with pytest.raises(SensorRangeError, match="stays closed") as error:
        second.read(0.0)
    assert [(r.value, r.sum) for r in error.value.readings] == [(None, 0.5)]


def test_removed_chip_is_a_sensor_error() -> None:
    """The kernel removed the pins; reading fails with a sensor error."""
    line = FakeLine()
    rain = gauge(line)
    line.is_gone = True
    with pytest.raises(OSError, match="sensor rain cannot be read: No such device"):
        rain.read(0.0)

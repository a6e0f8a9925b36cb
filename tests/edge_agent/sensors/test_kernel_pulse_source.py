import pytest

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.buses import EDGE_EVENT, EdgeEvent, decode_edge_events
from edge_agent.sensors.pulse_counter import KernelPulseSource
from edge_agent.sensors.rain_gauge import RainGauge, RainGaugeSettings

SECOND = 10**9


class FakeLine:
    """A line whose kernel is a list."""

    def __init__(self, watch: str = "a") -> None:
        self.token = f"line17-{watch}"
        self.waiting: list[EdgeEvent] = []
        self.number = 0
        self.active = False
        self.is_gone = False

    def edge(self, at_s: float, times: int = 1) -> None:
        """Let edges come, four seconds apart, and queue them."""
        for more in range(times):
            self.number += 1
            time_ns = int((at_s + 4 * more) * SECOND)
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
    """A gauge on the line, in a life that recalls what was stored."""
    settings = RainGaugeSettings(kind="rain-gauge", name="rain", pin=17)
    recall = (stored or {}).get
    hardware = Hardware(None, lambda _: None, recall, edge_lines=FakeLines(line))
    return RainGauge(settings, hardware)


def test_events_decode_as_the_kernel_lays_them_out() -> None:
    """Time, edge, line, number in the request, in the line; 24 bytes of nothing."""
    raw = bytes.fromhex("00ca9a3b00000000 02000000 11000000 09000000 07000000")
    assert decode_edge_events((raw + bytes(24)) * 2) == [EdgeEvent(SECOND, 7)] * 2
    assert EDGE_EVENT.size == 48
    with pytest.raises(ValueError, match="whole events of 48 bytes, got 47"):
        decode_edge_events(bytes(47))


def test_tips_that_waited_are_counted_at_the_next_reading() -> None:
    """The process was stopped; the kernel was not."""
    line = FakeLine()
    rain = gauge(line)
    assert rain.read(0.0)[0].value == 0
    line.edge(10, times=40)
    (reading,) = rain.read(0.0)
    assert (reading.value, reading.sum) == (20.0, 20.0)


def test_lost_edges_are_counted_by_their_number() -> None:
    """A full queue drops the oldest; the next number says how many."""
    line = FakeLine()
    rain = gauge(line)
    line.edge(10, times=8)
    del line.waiting[:5]
    assert rain.read(0.0)[0].value == 4.0


def test_next_life_goes_on_where_the_stored_reading_ended() -> None:
    """Tips before the crash that were read but not stored, and while it was dead."""
    line = FakeLine()
    first = gauge(line)
    line.edge(10, times=3)
    first.read(0.0)
    stored = first.state()
    assert stored == {
        "sensor.rain.tips": "3",
        "sensor.rain.tips.mark": "line17-a 3",
    }
    line.edge(20, times=2)
    first.read(0.0)  # and the process dies before this is stored
    line.edge(30, times=5)
    second = gauge(line, stored)
    (reading,) = second.read(0.0)
    assert (reading.value, reading.sum) == (3.5, 5.0)


def test_new_watch_of_the_pin_begins_at_its_own_first_edge() -> None:
    """After a reboot the numbers start anew; the mark of the old watch is void."""
    old = FakeLine("a")
    first = gauge(old)
    old.edge(10, times=30)
    first.read(0.0)
    new = FakeLine("b")
    second = gauge(new, first.state())
    new.edge(5, times=2)
    assert second.read(0.0)[0].sum == 16.0


def test_damaged_mark_begins_anew() -> None:
    """A mark that is no number loses nothing that the kernel still has."""
    line = FakeLine()
    line.edge(1)
    assert KernelPulseSource(line, "line17-a x").drain().untimed_count == 0


def test_lost_edges_of_a_flapping_switch_are_no_rain() -> None:
    """What is known by number alone is judged as what came around it."""
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


def test_gone_chip_is_an_error_of_the_sensor() -> None:
    """The kernel took the pins away; the reading says so."""
    line = FakeLine()
    rain = gauge(line)
    line.is_gone = True
    with pytest.raises(OSError, match="sensor rain cannot be read: No such device"):
        rain.read(0.0)

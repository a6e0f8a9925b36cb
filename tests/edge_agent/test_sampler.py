"""`Sampler`: triage, diagnostics and state stored with each pack."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from triage_readings import RAIN, START_S, TILT, WIRE, Measured, tilt, wire

from edge_agent.clock import SET_CLOCK_STATE
from edge_agent.quantities import SentReadings
from edge_agent.queue.base import Depth, QueueStats
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.sampler import TRIAGE_STATE, NodeIdentity, Sampler
from edge_agent.sensors.base import SensorBusError, SensorError
from edge_agent.status import HealthReporter, HealthSnapshot
from edge_agent.triage.engine import Triage, TriageResult
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from service_runtime.tls import Endpoint
from slope_science.levels import iter_chain
from slope_science.reason_codes import ReasonCode
from slope_science.reason_compat import parse_why
from slope_science.reasons import Reason, decode_reasons
from spatial_mqtt.announcements import CriteriaNotice
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import STATUS_PREFIX, Pack, Reading, decode_pack

CELL = Cell.at(33.56, 133.53, 20)
NOTICE = CriteriaNotice(90.0, 120.0, 240.0, version=5.0)
PROGRAM = """
import sys, time
from test_sampler import NOTICE, make_sampler
sampler, queue = make_sampler(sys.argv[1], [])
sampler.apply_criteria(NOTICE, withdrawn=False)
print("taken", flush=True)
time.sleep(60)
"""


class FakeClock:
    """Settable clock with the interface of the node's clock.

    Attributes:
        now_s: Unix time without steps.
        offset_s: Step of the wall clock in seconds.
        is_set: Whether the wall clock is synchronised.
    """

    speedup = 1.0

    def __init__(self) -> None:
        self.now_s = START_S
        self.offset_s = 0.0
        self.is_set = True

    def wall_s(self) -> float:
        """Unix time including the offset."""
        return self.now_s + self.offset_s

    def mono_s(self) -> float:
        """Monotonic seconds, without the offset."""
        return self.now_s - START_S

    def is_synchronised(self) -> bool:
        """Whether the wall clock is synchronised."""
        return self.is_set


CLOCK = FakeClock()


class FakeSensor:
    """A sensor with settable readings, by default a tilt sensor."""

    quantity, unit, claims = "tilt", "deg", ()
    range, largest_step, interval_s, warm_up_s = (-90.0, 90.0), 1.0, 60.0, 0.0
    line, is_noisy = None, False
    error: SensorError | None = None

    def __init__(self, readings: list[Reading], name: str = TILT.name) -> None:
        self.name = name
        self.readings = readings

    def read(self, now_s: float) -> list[Reading]:
        """The given readings, unless there is an error."""
        if self.error is not None:
            raise self.error
        return self.readings

    def state(self) -> dict[str, str]:
        """No state to store."""
        return {}

    def close(self) -> None:
        """No resources to release."""


def make_sampler(
    path: str,
    sensors: list[FakeSensor],
    self_report: Callable[[int], list[Reading]] = lambda _priority: [],
    triage: Triage | None = None,
) -> tuple[Sampler, SqliteQueue]:
    """A node with a gauge and a tilt sensor, and its queue."""
    queue = SqliteQueue(path, "n1", "boot", 10_000_000)
    identity = NodeIdentity("n1", CELL, CLOCK)
    triage = triage or Triage([RAIN, TILT, WIRE])
    stored = queue.get_state(TRIAGE_STATE)
    if stored is not None:
        triage.restore(stored)
    sampler = Sampler(sensors, triage, queue, identity)
    sampler.health_readings = self_report
    return sampler, queue


def test_time_of_a_clock_that_is_set_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart it is known what is over, whatever the clock."""
    sampler, queue = make_sampler(
        str(tmp_path / "queue.db"), [FakeSensor([Reading("tilt/x", "deg", 1.0)])]
    )
    sampler.sample()
    monkeypatch.setattr(CLOCK, "is_set", False)
    monkeypatch.setattr(CLOCK, "offset_s", 1e6)
    sampler.sample()

    assert queue.get_state(SET_CLOCK_STATE) == f"{CLOCK.now_s:.0f}"


def packs(queue: SqliteQueue) -> list[Pack]:
    """Queued packs, oldest first."""
    messages = sorted(queue.lease(1000), key=lambda message: message.id.seq)
    return [decode_pack(message.payload) for message in messages]


def test_criteria_of_a_notice_survive_a_kill(tmp_path: Path) -> None:
    """Criteria are on disk once accepted, without a reading."""
    path = str(tmp_path / "q.db")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parent,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "taken\n"
        os.kill(process.pid, signal.SIGKILL)
    queue = SqliteQueue(path, "n1", "boot", 10_000_000)
    triage = Triage([RAIN])
    triage.restore(queue.get_state(TRIAGE_STATE) or "")
    queue.close()
    assert triage.active_criteria.criteria.warning_mm == NOTICE.warning_mm
    assert not triage.active_criteria.criteria.assumed


def test_refused_criteria_are_logged_and_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is logged; the criteria in force stay."""
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [])
    sampler.apply_criteria(NOTICE, withdrawn=False)
    before = queue.get_state(TRIAGE_STATE)
    sampler.apply_criteria(CriteriaNotice(60.0, 80.0, 160.0, 4.0), withdrawn=False)
    assert "criteria.version must be no older than the one in force" in caplog.text
    assert queue.get_state(TRIAGE_STATE) == before
    queue.close()


def test_missing_criteria_at_start_keep_the_stored_ones(tmp_path: Path) -> None:
    """A start without notices keeps the stored criteria; a withdrawal removes them."""
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [])
    sampler.apply_criteria(NOTICE, withdrawn=False)
    before = queue.get_state(TRIAGE_STATE)
    sampler.apply_criteria(None, withdrawn=False)
    assert queue.get_state(TRIAGE_STATE) == before
    sampler.apply_criteria(None, withdrawn=True)
    assert queue.get_state(TRIAGE_STATE) != before
    queue.close()


def test_unusable_rule_is_reported_once(tmp_path: Path) -> None:
    """A coarse chip hides 0.01 deg/h, over six hours too; the note is sent once."""
    sensor = FakeSensor([])
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [sensor])
    for minute in range(0, 480, 10):
        CLOCK.now_s = START_S + minute * 60
        sensor.readings = tilt(1.0 + 0.001 * (minute % 20), 0.0, sigma_deg=0.1)
        sampler.sample()
    notes = [r for pack in packs(queue) for r in pack.readings if r.name == "tilt/rule"]
    queue.close()
    note = "rule tilt cannot be used for level 3: noise hides 0.01 deg/h"
    assert [reading.value for reading in notes] == [note]


def test_sensor_that_was_repaired_before_a_restart_is_reported_once(
    tmp_path: Path,
) -> None:
    """The office would see "no answer" for ever; one that worked sends nothing."""

    def health_of(sensor: FakeSensor, rounds: int = 1) -> list[object]:
        sampler, queue = make_sampler(tmp_path / "q.db", [sensor])
        packs(queue)  # those sent before
        for _ in range(rounds):
            sampler.sample()
        sent = [r for pack in packs(queue) for r in pack.readings]
        queue.close()
        return [r.value for r in sent if r.name == f"{TILT.name}/health"]

    dead = FakeSensor([])
    dead.error = SensorBusError(TILT.name, "is gone", "look for it")
    assert health_of(FakeSensor(tilt(1.0))) == []
    assert health_of(dead) == ["no answer: sensor tilt is gone; look for it"]
    assert health_of(FakeSensor(tilt(1.0)), rounds=2) == ["ok"]
    assert health_of(FakeSensor(tilt(1.0))) == []


def test_clock_step_does_not_change_a_tilt_rate(tmp_path: Path) -> None:
    """The wall clock goes back a day in the middle of an hour of creep."""
    sensor = FakeSensor([])
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [sensor])
    CLOCK.offset_s = 0.0
    for minute in range(0, 120, 5):
        CLOCK.now_s = START_S + minute * 60
        CLOCK.offset_s = -86400.0 if minute >= 60 else 0.0
        sensor.readings = tilt(1.0 + 0.2 * minute / 60)
        sampler.sample()
    sent = packs(queue)
    reasons = [(pack.priority, pack.why) for pack in sent]
    queue.close()
    for pack in sent:
        assert decode_reasons(pack.reasons) == parse_why(pack.why or "")
    assert reasons[-1][0] == 4
    assert "0.200±0.000 deg/h >= 0.1" in (reasons[-1][1] or "")


def test_clock_set_during_a_reading_does_not_make_its_time_right(
    tmp_path: Path,
) -> None:
    """A time server answers while a tilt burst is measured, hours after a power cut.

    The time from before the step must not be stated as right, or rain and tilt are
    judged as those of the evening before; and triage must count the hours without power
    at the next reading.
    """
    away_s, path = 5 * 3600.0, str(tmp_path / "q.db")
    sampler, queue = make_sampler(path, [FakeSensor(tilt(1.0))])
    CLOCK.now_s, CLOCK.offset_s = START_S, 0.0
    sampler.sample()
    packs(queue)
    queue.close()

    class SlowSensor(FakeSensor):
        def read(self, now_s: float) -> list[Reading]:
            CLOCK.now_s += 16.0
            CLOCK.is_set, CLOCK.offset_s = True, 0.0
            return self.readings

    sampler, queue = make_sampler(path, [SlowSensor(tilt(1.0))])
    CLOCK.now_s += away_s
    CLOCK.is_set, CLOCK.offset_s = False, -away_s
    try:
        sampler.sample()
        at_s = [json.loads(queue.get_state(TRIAGE_STATE) or "")["time"]["at"]]
        sampler.sample()
        at_s += [json.loads(queue.get_state(TRIAGE_STATE) or "")["time"]["at"]]
        first, second = packs(queue)[-2:]
    finally:
        CLOCK.is_set, CLOCK.offset_s = True, 0.0
        queue.close()

    assert (first.time_s, first.synchronised) == (START_S, False)
    assert (second.time_s, second.synchronised) == (START_S + away_s + 16.0, True)
    assert at_s == [START_S, START_S + away_s + 16.0]


def test_level_of_an_earlier_reading_does_not_replace_a_later_one(
    tmp_path: Path,
) -> None:
    """A wire is cut while the last result of a scheduled reading is passed on.

    The node would have the level of before the cut until its next reading, and its
    siren would be off.
    """
    slow, cut = FakeSensor(tilt(1.0)), FakeSensor([wire(is_cut=True)], WIRE.name)
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [slow, cut])
    levels: list[int] = []
    passed_on = threading.Event()
    event = threading.Thread(target=sampler.sample, args=([cut],))

    def on_assessed(result: TriageResult, _readings: object) -> None:
        if result.level == 1:
            event.start()
            passed_on.wait(2)  # in vain where results are passed on in their order
        levels.append(result.level)
        passed_on.set()

    sampler.on_assessed = on_assessed
    sampler.sample([slow])
    event.join()
    queue.close()

    assert levels == [1, 5]


def test_level_ends_although_no_sensor_can_be_read(tmp_path: Path) -> None:
    """A lamp without a longest time would be on until somebody repairs the sensor."""
    limit = {"sensor": "rod", "above": 10.0, "level": 4, "hold_s": 600}
    rod = sensor_of("displacement", Reading("rod", "mm", 12.0))
    triage = Triage(
        [Measured("rod", "displacement", "mm")],
        build_settings(TriageSection, {"limit": [limit]}),
    )
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [rod], triage=triage)
    levels: list[int] = []
    sampler.on_assessed = lambda result, _readings: levels.append(result.level)
    for at_s in (0.0, 60.0, 6 * 3600.0, 6 * 3600.0 + 1, 6 * 3600.0 + 601):
        CLOCK.now_s = START_S + at_s
        sampler.sample()
        rod.error = SensorBusError("rod", "is gone", "look for it")
    sent = [pack.priority for pack in packs(queue)]
    queue.close()
    assert levels == [4, 4, 4, 4, 1]
    assert sent == [4, 4]  # the reading, and that there is none


def test_level_that_rises_while_no_sensor_can_be_read_is_sent_once(
    tmp_path: Path,
) -> None:
    """Creep lasts long enough to count only after its sensor has failed.

    The siren would be on, and the office would not know why.
    """
    sensor = FakeSensor([])
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [sensor])
    levels: list[int] = []
    sampler.on_assessed = lambda result, _readings: levels.append(result.alarm_level)
    for minute in range(45):
        CLOCK.now_s = START_S + minute * 60
        sensor.readings = tilt(1.0 + 0.2 * max(0, minute - 10) / 60)
        if minute == 22:
            sensor.error = SensorBusError(TILT.name, "is gone", "look for it")
        sampler.sample()
    sent = packs(queue)
    queue.close()
    health = Reading("tilt/health", None, "no answer: sensor tilt is gone; look for it")
    assert levels[22:] == [1, 1, 1, *[3] * 20]
    raised = [pack for pack in sent if pack.priority > 1]
    assert [pack.mono_s for pack in raised] == [25 * 60]
    assert raised[0].readings == (health,)
    assert decode_reasons(raised[0].reasons) == parse_why(raised[0].why or "")


def test_failing_sensor_is_read_in_its_pause_only_for_an_event(tmp_path: Path) -> None:
    """Each reading of a dead probe takes seconds of its line."""
    reads: list[float] = []

    class DeadSensor(FakeSensor):
        def read(self, now_s: float) -> list[Reading]:
            reads.append(now_s)
            raise SensorError(self.name, "is gone", "look for it")

    sampler, queue = make_sampler(str(tmp_path / "q.db"), [DeadSensor([])])
    for _ in range(5):
        sampler.sample()
    assert len(reads) == 3
    sampler.sample(is_urgent=True)
    queue.close()
    assert len(reads) == 4


def test_state_of_a_sensor_is_stored_with_its_readings(tmp_path: Path) -> None:
    """Else a gauge would count its tips again after a restart."""
    sensor = FakeSensor(tilt(1.0))
    sensor.state = lambda: {"sensor.tilt.total": "7"}  # type: ignore[method-assign]
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [sensor])
    sampler.sample()
    assert queue.get_state("sensor.tilt.total") == "7"
    queue.close()


def test_sensor_without_a_state_stops_neither_pack_nor_states(tmp_path: Path) -> None:
    """A defect in a driver of another package ended the agent."""
    sensors = [FakeSensor(tilt(1.0)), FakeSensor([wire(is_cut=True)], WIRE.name)]
    sensors[0].state = lambda: {}["total"]  # type: ignore[method-assign]
    sensors[1].state = lambda: {"sensor.wire": "7"}  # type: ignore[method-assign]
    sampler, queue = make_sampler(str(tmp_path / "q.db"), list(sensors))
    sampler.sample()
    assert {r.name for r in packs(queue)[0].readings} >= {"tilt/x", "w/value"}
    assert queue.get_state("sensor.wire") == "7"
    queue.close()


def test_node_without_a_judged_sensor_is_not_blind(tmp_path: Path) -> None:
    """Its level is that of the notices, whatever its thermometer does."""
    air = sensor_of("temperature", Reading("air", "Cel", 12.0))
    air.error = SensorBusError("air", "is gone", "look for it")
    triage = Triage([Measured("air", "temperature", "Cel")])
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [air], triage=triage)
    sampler.sample()
    queue.close()
    assert sampler.problems
    assert not sampler.is_blind


def test_health_readings_add_no_message_and_few_bytes(
    tmp_path: Path,
) -> None:
    """Sent once per interval inside a pack of the sensors; no rule evaluates them."""
    stats = QueueStats({3: Depth(13, 900), 5: Depth(1, 80)})
    snapshot = HealthSnapshot(stats, 724.6, Endpoint("gw-3.example", 8883), 12.65)
    report = HealthReporter(lambda: snapshot, 3600.0, CLOCK.mono_s)
    sizes = []
    for name, options in (
        ("with", {"self_report": report.due_readings}),
        ("without", {}),
    ):
        sampler, queue = make_sampler(
            str(tmp_path / name), [FakeSensor(tilt(1.0, 0.0))], **options
        )
        sampler.sample()
        sampler.sample()
        sizes.append(queue.stats().depth[1].bytes)
        first, second = packs(queue)
        queue.close()
        has_status = [
            any(r.name.startswith(STATUS_PREFIX) for r in p.readings)
            for p in (first, second)
        ]
        assert has_status == [name == "with", False]
        assert first.why == second.why
    assert sizes[0] - sizes[1] < 200


def as_sent(path: Path, *sensors: FakeSensor) -> list[Reading]:
    """Readings of a pack of sensors."""
    sampler, queue = make_sampler(str(path / "q.db"), list(sensors))
    sampler.sample()
    (pack,) = packs(queue)
    return list(pack.readings)


def sensor_of(quantity: str, *readings: Reading) -> FakeSensor:
    """A sensor of a quantity that gives readings."""
    sensor = FakeSensor(list(readings), readings[0].name.partition("/")[0])
    sensor.quantity, sensor.unit = quantity, readings[0].unit  # type: ignore[misc]
    sensor.range, sensor.largest_step = (-1e9, 1e9), None  # type: ignore[misc]
    return sensor


def test_gauge_of_another_name_is_sent_as_rain(tmp_path: Path) -> None:
    """The backend takes other readings in mm for displacement."""
    read = Reading("gauge", "mm", 0.5, 7.5), Reading("gauge/refused", "count", 3.0)
    rod = Reading("rod", "mm", 12.0)
    gauge, span = sensor_of("Rain", *read), sensor_of("displacement", rod)

    assert as_sent(tmp_path, span, gauge) == [
        rod,
        Reading("rain", "mm", 0.5, 7.5),
        Reading("rain/refused", "count", 3.0),
    ]


def test_reasons_name_a_gauge_as_its_readings_do() -> None:
    """Else the backend would not lower the level by the flags of these readings."""
    names = {"sensor": "gauge", "by": "gauge"}
    sent = SentReadings([sensor_of("rain", Reading("gauge", "mm", 0.0, 1.0))])

    def reason(sensor: str, by: str) -> Reason:
        step = Reason(
            ReasonCode.WATER_LEVEL_STEP, sensor=sensor, step_m=1.0, limit_m=0.5
        )
        confirmed = Reason(ReasonCode.CONFIRMED, because=step, by=by)
        return Reason(ReasonCode.RULE, rule="limit", because=confirmed, number=2)

    assert sent.convert_reason(reason(**names)) == reason("rain", "rain")
    assert sent.convert_reason(reason("rod", "n2 rod")) == reason("rod", "n2 rod")
    part = reason("gauge/refused", "rod")  # of a limit
    assert sent.convert_reason(part) == reason("rain/refused", "rod")


def test_gauge_under_another_word_comes_after_one_that_measures_rain(
    tmp_path: Path,
) -> None:
    """The first in the file was not the node's gauge in earlier versions."""
    read = Reading("logger", "mm", 1.0, 5.0), Reading("bucket", "mm", 2.0, 9.0)
    sensors = sensor_of("雨量", read[0]), sensor_of("rain", read[1])

    assert [each.name for each in as_sent(tmp_path, *sensors)] == [
        "logger/rain",
        "rain",
    ]


def test_reasons_of_a_pack_are_sent_with_the_name_of_the_gauge(tmp_path: Path) -> None:
    """A limit on the gauge is passed."""
    limit = {"sensor": "gauge", "above": 0.1, "level": 3}
    gauge = sensor_of("rain", Reading("gauge", "mm", 0.5, 7.5))
    described = Measured("gauge", "rain", "mm")
    triage = Triage([described], build_settings(TriageSection, {"limit": [limit]}))
    sampler, queue = make_sampler(str(tmp_path / "q.db"), [gauge], triage=triage)
    sampler.sample()
    (pack,) = packs(queue)
    (reason,) = decode_reasons(pack.reasons)
    (sensor,) = {r.params["sensor"] for r in iter_chain(reason) if "sensor" in r.params}
    assert sensor == "rain"


@pytest.mark.parametrize("first", ["north", "rain"])
def test_second_gauge_of_a_node_is_sent_as_a_secondary_value(
    tmp_path: Path, first: str
) -> None:
    """The backend judges one gauge of a node; the node judges both."""
    second = {"north": "south", "rain": "north"}[first]
    read = Reading(first, "mm", 1.0, 5.0), Reading(second, "mm", 2.0, 9.0)
    noted = Reading(f"{second}/refused", "count", 1.0)
    sensors = sensor_of("rain", read[0]), sensor_of("rain", read[1], noted)

    assert as_sent(tmp_path, *sensors) == [
        Reading("rain", "mm", 1.0, 5.0),
        Reading(f"{second}/rain", "mm", 2.0, 9.0),
        noted,
    ]


@pytest.mark.parametrize(
    ("quantity", "unit", "value", "sent"),
    [
        ("water level", "mm", 500.0, ("m", 0.5)),
        ("water level", "cm", 50.0, ("m", 0.5)),
        ("Displacement", "m", 0.5127, ("mm", 512.7)),
        ("displacement", "cm", 51.27, ("mm", 512.7)),
        ("pore pressure", "m", 2.0, ("hPa", 196.133)),
        ("pore pressure", "Pa", -1500.0, ("hPa", -15.0)),
        ("volumetric water content", "/100", 31.0, ("/", 0.31)),
        ("snow depth", "cm", 12.0, ("cm", 12.0)),
        ("water level", "Pa", 5000.0, ("Pa", 5000.0)),
    ],
)
def test_judged_quantity_is_sent_in_the_unit_of_the_backend(
    tmp_path: Path, quantity: str, unit: str, value: float, sent: tuple[str, float]
) -> None:
    """It chooses its rules by the unit: mm is displacement, m a water level."""
    probe = sensor_of(quantity, Reading("probe", unit, value, extra={"qc": 3}))

    assert as_sent(tmp_path, probe) == [Reading("probe", *sent, extra={"qc": 3})]


@pytest.mark.parametrize(
    ("quantity", "unit"),
    [
        ("snow depth", "mm"),
        ("groundwater level", "m"),
        ("impacts", "count"),
        ("porosity", "/"),
        ("air pressure", "hPa"),
        ("wind direction", "deg"),
        ("water level", "hPa"),
        ("Displacement", "count"),
    ],
)
def test_reading_that_no_rule_judges_is_sent_as_a_secondary_value(
    tmp_path: Path, quantity: str, unit: str
) -> None:
    """The backend takes the unit of a judged quantity for that quantity."""
    probe = sensor_of(quantity, Reading("probe", unit, 3.0, extra={"qc": 3}))

    sent = Reading("probe/value", unit, 3.0, extra={"qc": 3})
    assert as_sent(tmp_path, probe) == [sent]


def test_displacement_named_as_the_gauge_is_not_sent_as_rain(tmp_path: Path) -> None:
    """The backend takes readings of that name in mm for rain."""
    rod = sensor_of("displacement", Reading("rain", "mm", 12.0))

    assert as_sent(tmp_path, rod) == [Reading("rain/value", "mm", 12.0)]


def test_truth_values_of_other_sensors_than_wires_are_sent_as_numbers(
    tmp_path: Path,
) -> None:
    """The backend takes each truth value for a trip wire."""
    read = Reading("door", None, True), Reading("door/locked", None, False)

    assert as_sent(tmp_path, sensor_of("door is open", *read)) == [
        Reading("door/value", "/", 1.0),
        Reading("door/locked", "/", 0.0),
    ]
    cut = wire(is_cut=True)
    assert as_sent(tmp_path / "w", sensor_of(WIRE.quantity, cut)) == [cut]


def test_total_of_rain_in_another_unit_is_sent_in_mm(tmp_path: Path) -> None:
    """A probe that counts gives no value."""
    gauge = sensor_of("rain", Reading("gauge", "cm", None, 123.4567))

    assert as_sent(tmp_path, gauge) == [Reading("rain", "mm", None, 1234.567)]

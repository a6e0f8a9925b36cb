"""Health readings of the node: when they are due, and their names and values."""

from dataclasses import replace

from edge_agent.notices import ReceivedOrder
from edge_agent.queue.base import Depth, QueueStats
from edge_agent.status import HealthReporter, HealthSnapshot
from service_runtime.tls import Endpoint
from spatial_mqtt.senml import Reading

HOUR_S = 3600.0
SNAPSHOT = HealthSnapshot(
    QueueStats({1: Depth(), 3: Depth(13, 900), 5: Depth(1, 80)}, dropped={1: 4, 2: 3}),
    oldest_s=724.6,
    gateway=Endpoint("gw-3.example", 8883, tls=True),
    battery_v=12.6543,
)
EMPTY = HealthSnapshot(QueueStats({}), None, None, None)


def values_by_name(readings: list[Reading]) -> dict[str, object]:
    """Values by name."""
    return {reading.name: reading.value for reading in readings}


def test_readings_of_a_snapshot() -> None:
    """Queue by priority, age of its oldest message, gateway, losses, battery."""
    assert values_by_name(SNAPSHOT.readings()) == {
        "agent/queued": "5:1 3:13",
        "agent/oldest": 725.0,
        "agent/gateway": "gw-3.example:8883",
        "agent/dropped": 7.0,
        "agent/battery": 12.65,
    }


def test_readings_of_an_empty_snapshot() -> None:
    """An empty queue and no gateway are reported; a missing battery is left out."""
    assert values_by_name(EMPTY.readings()) == {
        "agent/queued": "none",
        "agent/oldest": 0.0,
        "agent/gateway": "none",
        "agent/dropped": 0.0,
    }


def test_readings_are_due_at_start_and_once_per_interval() -> None:
    """The clock decides, not the number of packs."""
    now_s = [100.0]
    report = HealthReporter(lambda: SNAPSHOT, HOUR_S, lambda: now_s[0])
    due_at_s = []
    for now_s[0] in range(100, 100 + 3 * 3600, 60):
        due_at_s += [now_s[0]] * bool(report.due_readings(1))
    assert due_at_s == [100, 3700, 7300]


def test_urgent_pack_postpones_readings_at_most_one_interval() -> None:
    """In a storm of alarms the health readings are sent after one interval anyway."""
    now_s = [0.0]
    report = HealthReporter(lambda: SNAPSHOT, HOUR_S, lambda: now_s[0])
    assert not report.due_readings(4)
    now_s[0] = HOUR_S - 1
    assert not report.due_readings(5)
    now_s[0] = HOUR_S
    assert report.due_readings(5)
    assert not report.due_readings(1)


def test_report_has_the_alarms_and_what_they_follow() -> None:
    """Outputs, notice and drill with the times of creation and receipt."""
    order = ReceivedOrder(4, 1_800_000_000.0, 1_800_000_003.25)
    report = replace(EMPTY, alarms="siren:on lamp:drill", notice=order)
    found = values_by_name(report.readings())

    assert found["agent/alarms"] == "siren:on lamp:drill"
    assert found["agent/notice"] == "4 1800000000.000 1800000003.250"
    assert found["agent/drill"] == "none"

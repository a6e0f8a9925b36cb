"""What a node says of itself: when, and in which words."""

from edge_agent.queue.base import Depth, QueueStats
from edge_agent.status import HealthReporter, HealthSnapshot
from service_runtime.tls import Endpoint
from spatial_mqtt.senml import Reading

HOUR_S = 3600.0
FACTS = HealthSnapshot(
    QueueStats({1: Depth(), 3: Depth(13, 900), 5: Depth(1, 80)}, dropped={1: 4, 2: 3}),
    oldest_s=724.6,
    gateway=Endpoint("gw-3.example", 8883, tls=True),
    battery_v=12.6543,
)
EMPTY = HealthSnapshot(QueueStats({}), None, None, None)


def names_of(readings: list[Reading]) -> dict[str, object]:
    """Values by name."""
    return {reading.name: reading.value for reading in readings}


def test_words() -> None:
    """Queue by priority, age of its oldest message, gateway, losses, battery."""
    assert names_of(FACTS.readings()) == {
        "agent/queued": "5:1 3:13",
        "agent/oldest": 725.0,
        "agent/gateway": "gw-3.example:8883",
        "agent/dropped": 7.0,
        "agent/battery": 12.65,
    }


def test_what_is_not_there_is_said_or_left_out() -> None:
    """An empty queue and no gateway are facts; no battery is none."""
    assert names_of(EMPTY.readings()) == {
        "agent/queued": "none",
        "agent/oldest": 0.0,
        "agent/gateway": "none",
        "agent/dropped": 0.0,
    }


def test_it_is_due_at_the_start_and_once_in_its_interval() -> None:
    """The clock of the schedule decides, not the number of packs."""
    now_s = [100.0]
    report = HealthReporter(lambda: FACTS, HOUR_S, lambda: now_s[0])
    told = []
    for now_s[0] in range(100, 100 + 3 * 3600, 60):
        told += [now_s[0]] * bool(report.due_readings(1))
    assert told == [100, 3700, 7300]


def test_an_urgent_pack_stays_short_but_not_for_ever() -> None:
    """In a storm of nothing but alarms the battery is heard of all the same."""
    now_s = [0.0]
    report = HealthReporter(lambda: FACTS, HOUR_S, lambda: now_s[0])
    assert not report.due_readings(4)
    now_s[0] = HOUR_S - 1
    assert not report.due_readings(5)
    now_s[0] = HOUR_S
    assert report.due_readings(5)
    assert not report.due_readings(1)

"""Files and rows of the way back, as the publisher and the nodes write them."""

from pathlib import Path

import pyarrow as pa
from console_tables import Slope, silver_row
from console_workspace import NOW_S
from deltalake import write_deltalake

from backend_spark.notice_state import (
    CurrentLevel,
    DeliveryRecord,
    NoticePolicy,
    NoticeState,
    topic_of_drill,
)
from backend_spark.scoring.holds import JUDGED, PresentLevel
from backend_spark.scoring.observation import Observation
from backend_spark.tables.schemas import SILVER
from edge_agent.notices import ReceivedOrder
from edge_agent.status import HealthSnapshot
from spatial_mqtt.announcements import Drill, Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, notice_topic

BROKER = "manager-1:8883"
GATEWAY = "gw-otani:8883"
MICRO = 1_000_000


def publish_notice(data: Path, cell: str, level: int, now_s: float) -> Notice:
    """Publish a level as `notify` does, up to the answer of the broker."""
    state = NoticeState(NoticePolicy(2, 10_800.0), data / "notices.json")
    present = CurrentLevel(PresentLevel(level, JUDGED, now_s), now_s)
    state.update({cell: present}, now_s)
    topic = notice_topic(cell_topic(Cell.from_token(cell)))
    accept(data, topic, state.notices[topic].at_s, now_s + 1.0)
    return state.notices[topic]


def accept_drill(data: Path, cell: str, drill: Drill) -> None:
    """The broker's answer to a drill."""
    accept(data, topic_of_drill(cell), drill.at_s, drill.at_s + 1.0)


def accept(data: Path, topic: str, at_s: float, now_s: float) -> None:
    record = DeliveryRecord(data)
    record.accept(topic, at_s, BROKER, now_s)
    record.save()


def report_alarms(
    data: Path,
    slope: Slope,
    outputs: str,
    notice: Notice | None = None,
    drill: Drill | None = None,
) -> None:
    """Append a node's report of its alarms, made by the code of the node."""
    orders = [
        None if each is None else ReceivedOrder(each.level, each.at_s, each.at_s + 4.2)
        for each in (notice, drill)
    ]
    snapshot = HealthSnapshot(
        *(None, None, None, None),  # type: ignore[arg-type]
        alarms=outputs,
        notice=orders[0],
        drill=orders[1],
    )
    readings = [*snapshot.alarm_readings()]
    known = [
        Observation(
            *(NOW_S, slope.node, r.name, None),
            text=str(r.value),
            received_us=round((NOW_S + 2) * MICRO),
        )
        for r in readings
    ]
    gateway = Observation(
        NOW_S, slope.node, "agent/gateway", None, text="gw-otani:8883"
    )
    rows = [
        silver_row(slope, each, 900_000 + place) | {"received_at": (NOW_S + 2) * MICRO}
        for place, each in enumerate([*known, gateway])
    ]
    table = pa.Table.from_pylist(rows, schema=SILVER)
    write_deltalake(str(data / "tables" / "silver"), table, mode="append")

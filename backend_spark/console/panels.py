"""Panels: the data of one cell or one node over 72 hours, and the way back of a cell.

The way back is that of a notice or drill, from the backend to the alarms. Every stage
is read where it is known: what `notify` published and which brokers accepted it, and
what each node of the cell reports of itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from backend_spark.config import CONSOLE_FOLDER
from backend_spark.console import level_grid, snake_line
from backend_spark.console.level_grid import utc_time
from backend_spark.console.live_state import LiveState
from backend_spark.console.nodes import (
    NewestReading,
    NodeState,
    alarm_states,
    reported_text,
)
from backend_spark.evaluation.calibration_file import Calibration
from backend_spark.i18n import reasons_of, render_both
from backend_spark.notice_state import (
    DRILLS_FILE,
    NOTICES_FILE,
    DrillRequests,
    SentOrder,
    read_notices,
    read_sent,
)
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.store import Folder
from slope_science.evidence.settings import LevelThresholds
from slope_science.levels import Criteria
from spatial_mqtt import senml
from spatial_mqtt.announcements import Drill, Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, drill_topic, notice_topic

MAX_POINTS: Final = 20_000
EXTRA_COLUMNS: Final = (
    "margin_mm",
    "effective_1h5_mm",
    "effective_72h_mm",
    "moisture_percentile",
    "pore_percentile",
    "completeness",
    "official_level",
    "forecast_source",
    "forecast_why",
)

READING_COLUMNS: Final = ("at", "name", "unit", "value", "sum", "flag")
SAME_S: Final = 0.002
"""Reported times have milliseconds."""


@dataclass(frozen=True)
class PanelReader:
    """Reads panels from the live state and the tables.

    Attributes:
        live_state: Live state.
        tables: Folder of the tables, for data that the live state lacks.
        calibration: Landslide days by class of rain; None: nothing is said.
    """

    live_state: LiveState
    tables: Folder
    calibration: Calibration | None = None

    def cell_panel(
        self,
        token: str,
        criteria: Criteria,
        tilt: LevelThresholds,
        *,
        use_gold: bool = True,
    ) -> dict[str, Any] | None:
        """Panel of a cell; None if there is no such cell.

        Args:
            token: Of the cell.
            criteria: Of the cell.
            tilt: Levels and rates of tilt of the cell.
            use_gold: Whether gold was scored with these criteria. If so, its
                futures are shown; otherwise they are computed here.
        """
        board = self.live_state
        with board.lock:
            row = board.grid.row_of.get(token)
            if row is None:
                return None
            latest = board.grid.latest[row]
            numbers = {
                name: level_grid.json_numbers(array[row])
                for name, array in board.grid.numbers.items()
            }
            panel = {
                "token": token,
                "begin_s": board.grid.begin_s,
                "step_s": STEP_S,
                "levels": board.grid.levels[row].tolist(),
                "flags": (board.grid.flags[row] & level_grid.FLAGS).tolist(),
                "latest": asdict(latest),
                "causes": list(latest.causes),
                "reasons": render_both(reasons_of(latest.reason_codes, latest.reasons)),
                "nodes": [
                    _node(node, board.now_s())
                    for node in board.nodes.by_id.values()
                    if node.cell == token
                ],
            }
        newest = self._newest(token)
        return (
            panel
            | numbers
            | {"chance": self._chance(panel["levels"], newest)}
            | {"more": {name: newest[name] for name in EXTRA_COLUMNS if name in newest}}
            | {
                "lines": snake_line.criteria_lines(criteria),
                "futures": two_hour_futures(
                    latest, criteria, newest if use_gold else {}
                ),
                "tilt_limits": sorted(tilt),
            }
        )

    def _chance(
        self, levels: Sequence[int], newest: dict[str, Any]
    ) -> list[dict[str, str]]:
        """Landslide days of the past with such rain; none without a present level."""
        recent = levels[-1 - level_grid.LATE_STEPS :]
        present = [level for level in recent if level != level_grid.MISSING]
        if self.calibration is None or not present:
            return []
        return self.calibration.sentences(newest)

    def _newest(self, token: str) -> dict[str, Any]:
        """Newest row of a cell in gold, whose older versions have fewer columns."""
        with self.live_state.lock:
            row = self.live_state.grid.row_of.get(token)
            at_s = None if row is None else self.live_state.grid.latest[row].at_s
        rows = [] if at_s is None else self._rows(token, at_s)
        return rows[0] if rows else {}

    def sensor_rows(self, node_id: str, since_s: float) -> list[dict[str, Any]]:
        """Movement of the sensors of a node over time, from gold."""
        found = DeltaTables(self.tables).of(
            "sensors", "node", node_id, utc_time(since_s)
        )
        rows: list[dict[str, Any]] = found.to_pylist()
        return [{name: _plain(value) for name, value in row.items()} for row in rows]

    def _rows(self, token: str, at_s: int) -> list[dict[str, Any]]:
        at = utc_time(at_s)
        found = DeltaTables(self.tables).of("levels", "cell", token, at, at)
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def node_panel(
        self,
        node_id: str,
        tilt_of: Callable[[str], LevelThresholds],
        speed: LevelThresholds,
    ) -> dict[str, Any] | None:
        """Panel of a node; None if there is no such node.

        Args:
            node_id: Of the node.
            tilt_of: Levels and rates of tilt of a cell.
            speed: Levels and speeds of displacement.
        """
        with self.live_state.lock:
            node = self.live_state.nodes.by_id.get(node_id)
            if node is None:
                return None
            now_s = self.live_state.now_s()
            panel = _node(node, now_s) | {"faults": node.faults()}
        since_s = now_s - level_grid.HOURS * 3600
        return panel | {
            "now_s": now_s,
            "series": self._readings(node_id, since_s),
            "sensors": self.sensor_rows(node_id, since_s),
            "tilt_limits": sorted(tilt_of(node.cell or "")),
            "velocity_limits": sorted(speed),
        }

    def _readings(self, node_id: str, since_s: float) -> dict[str, Any]:
        rows = DeltaTables(self.tables).of(
            "silver", "node", node_id, utc_time(since_s), columns=READING_COLUMNS
        )
        found: dict[str, Any] = {}
        for row in rows.to_pylist()[-MAX_POINTS:]:
            value = row["sum"] if row["value"] is None else row["value"]
            if value is None:
                continue
            series = found.setdefault(
                row["name"], {"unit": row["unit"], "at_s": [], "value": [], "flag": []}
            )
            series["at_s"].append(round(row["at"].timestamp()))
            series["value"].append(round(value, 6))
            series["flag"].append(row.get("flag"))
        return found


def two_hour_futures(
    latest: level_grid.LatestRow, criteria: Criteria, row: dict[str, Any]
) -> list[dict[str, Any]]:
    """The next two hours: from gold if it has them, else computed here."""
    if latest.tanks is None or latest.r60_mm is None:
        return []
    found = snake_line.gold_futures(row, latest.tanks, latest.r60_mm)
    found = found or snake_line.computed_futures(latest.tanks, latest.r60_mm, criteria)
    return [asdict(each) for each in found]


def _node(node: NodeState, now_s: float) -> dict[str, Any]:
    return {
        "id": node.id,
        "cell": node.cell,
        "place": node.place(),
        "state": node.state(now_s),
        "flag": node.worst_flag(),
        "at_s": node.at_s,
        "received_s": node.received_s,
        "synchronised": node.synchronised,
        "age_s": node.age_s,
        "boot": node.boot,
        "readings": {
            name: asdict(reading) for name, reading in sorted(node.readings.items())
        },
    }


@dataclass(frozen=True)
class OrderReport:
    """A notice or drill as a node reports it.

    Attributes:
        level: Its level.
        at_s: Unix time of its creation.
        received_s: Unix time of its receipt; 0 if it is from before a restart.
    """

    level: int
    at_s: float
    received_s: float

    @classmethod
    def parse(cls, text: str | None) -> "OrderReport | None":
        """Parse `senml.STATUS_NOTICE`; None for none, and for other texts."""
        parts = (text or "").split()
        try:
            level, at_s, received_s = int(parts[0]), float(parts[1]), float(parts[2])
        except (IndexError, ValueError):
            return None
        return cls(level, at_s, received_s)


@dataclass(frozen=True)
class WayBack:
    """Reads the way back of cells.

    Attributes:
        data: The data folder.
        drills: Requests for drills.
    """

    data: Path
    drills: DrillRequests

    @classmethod
    def open(cls, data: Path) -> "WayBack":
        """The way back of a data folder."""
        return cls(data, DrillRequests(data / CONSOLE_FOLDER / DRILLS_FILE))

    def of_cell(
        self, token: str, nodes: Iterable[NodeState], now_s: float
    ) -> dict[str, Any]:
        """The way back of a cell.

        Args:
            token: Of the cell.
            nodes: The nodes in it.
            now_s: Unix time.
        """
        area = cell_topic(Cell.from_token(token))
        sent = read_sent(self.data)
        notice = read_notices(self.data / NOTICES_FILE).get(notice_topic(area))
        drill = self.drills.read().get(token)
        return {
            "now_s": now_s,
            "notice": notice and _order(notice, sent.get(notice_topic(area)), now_s),
            "drill": drill and _order(drill, sent.get(drill_topic(area)), now_s),
            "nodes": [_reported(node, notice, drill) for node in nodes],
        }


def _order(
    order: Notice | Drill, sent: SentOrder | None, now_s: float
) -> dict[str, Any]:
    """A notice or drill, and when each Manager's broker accepted it."""
    accepted = sent.accepted if sent is not None and _is_same(sent.at_s, order) else {}
    return {
        "level": order.level,
        "at_s": order.at_s,
        "until_s": order.until_s,
        "withdrawn": order.withdrawn,
        "in_force": not order.withdrawn and now_s < order.until_s,
        "held": isinstance(order, Notice) and order.state == "held",
        "accepted": [
            {"broker": broker, "at_s": at_s}
            for broker, at_s in sorted(accepted.items())
        ],
    }


def _reported(
    node: NodeState, notice: Notice | None, drill: Drill | None
) -> dict[str, Any]:
    """What a node reports: gateway, receipt, and the state of its outputs."""
    alarms = node.readings.get(senml.STATUS_ALARMS)
    gateway = node.readings.get(senml.STATUS_GATEWAY)
    return {
        "id": node.id,
        "reported_s": alarms and alarms.at_s,
        "gateway": reported_text(gateway),
        "outputs": alarm_states(node.readings),
        "notice": _receipt(node.readings.get(senml.STATUS_NOTICE), notice),
        "drill": _receipt(node.readings.get(senml.STATUS_DRILL), drill),
    }


def _receipt(
    reading: NewestReading | None, order: Notice | Drill | None
) -> dict[str, Any] | None:
    """The notice or drill that a node reports, and whether it is the newest sent."""
    found = OrderReport.parse(None if reading is None else reading.text)
    if found is None:
        return None
    is_newest = order is not None and _is_same(found.at_s, order)
    return {
        "level": found.level,
        "at_s": found.at_s,
        "received_s": found.received_s or None,
        "is_newest": is_newest,
    }


def _is_same(at_s: float, order: Notice | Drill) -> bool:
    return abs(at_s - order.at_s) < SAME_S


def _plain(value: object) -> object:
    """A value of a table for JSON: times become Unix seconds."""
    return value.timestamp() if isinstance(value, datetime) else value

"""The whole path of readings: node, backend, notices, and the siren on mock pins."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

from gpiozero.pins.mock import MockFactory

from backend_spark.config import BackendSettings
from backend_spark.judging import TableJudgement, judge_table, to_json
from backend_spark.memory_pipeline import Effort
from edge_agent.alarm_outputs import AlarmOutputs, AlarmOutputSettings
from edge_agent.cli.triage import match_all, replay_messages
from edge_agent.config import NodeSettings, parse_node_settings
from edge_agent.notices import Notices
from edge_agent.triage.engine import Triage
from experiments.evidence.series import PLACE, SLOPE, START_S, Series
from service_runtime.settings import build_settings
from spatial_mqtt.announcements import Notice
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.reading_table import read_table
from spatial_mqtt.topics import cell_topic, notice_topic
from spatial_mqtt.transport import IncomingMessage

BACKEND: Final = build_settings(BackendSettings, {"backend": {"data": "."}})
SENSORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "rain": {"kind": "rain-gauge", "pin": 17},
    "tilt": {"kind": "scl3300", "device": 1},
    "crack": {"kind": "extensometer", "channel": 1, "travel_mm": 500, "home_v": 0.2,
              "full_v": 3.0},
    "wire": {"kind": "wire", "pin": 27},
    "shocks": {"kind": "vibration", "pin": 22},
    "soil": {"kind": "soil-moisture", "channel": 0, "dry_v": 2.6, "wet_v": 1.2},
    "pore": {"kind": "piezometer", "channel": 2, "at_4ma_kpa": -20, "at_20ma_kpa": 80},
}  # fmt: skip
SIREN: Final = AlarmOutputSettings(name="siren", pin=5, from_level=4)
CELL: Final = Cell.at(*PLACE, ANALYSIS_LEVEL)
MINUTE_S: Final = 60.0
SUSPECT: Final = 3


@dataclass(frozen=True)
class Shown:
    """Level that the console shows from a moment on; None: unknown."""

    at_h: float
    level: int | None
    state: str


class NodeLevel(NamedTuple):
    """Level of the node from a message on, and those for its alarm outputs."""

    at_h: float
    level: int
    alarm_level: int
    isolated_alarm_level: int


@dataclass
class Outcome:
    """What a series does on the whole path.

    Attributes:
        node: Levels of the node after each message.
        shown: Changes of the level of the slope's cell, by the clock of receipt.
        steps: Final rows of the slope's cell, as `judge --json` prints them.
        notices: Notices for the slope's cell, likewise.
        siren_on_h: Hours of the minutes in which the siren was on.
        flagged: Codes of suspect or failed readings, by node.
        until_h: End of the clock.
    """

    node: list[NodeLevel]
    shown: list[Shown]
    steps: list[Mapping[str, Any]]
    notices: list[Mapping[str, Any]]
    flagged: dict[str, set[str]]
    until_h: float
    siren_on_h: list[float] = field(default_factory=list)

    @property
    def worst_node(self) -> int:
        """Highest level of the node."""
        return max((each.level for each in self.node), default=1)

    @property
    def worst_shown(self) -> int:
        """Highest level that the console showed."""
        return max((s.level or 1 for s in self.shown), default=1)

    @property
    def worst_notice(self) -> int:
        """Highest level of a notice."""
        return max((n["level"] or 1 for n in self.notices), default=1)

    def shown_at(self, at_h: float) -> Shown:
        """What the console shows at a moment."""
        before = [s for s in self.shown if s.at_h <= at_h + 1e-9]
        return before[-1] if before else Shown(at_h, None, "unknown")

    def lowest_shown(self, from_h: float, to_h: float) -> int:
        """Lowest level shown within a time; an unknown one counts as 0."""
        inside = [s for s in self.shown if from_h < s.at_h <= to_h]
        return min(s.level or 0 for s in (self.shown_at(from_h), *inside))

    def first_shown_h(self, level: int) -> float:
        """When a level is shown for the first time; infinity for never."""
        return min(
            (s.at_h for s in self.shown if (s.level or 0) >= level),
            default=float("inf"),
        )

    def first_node_h(self, level: int) -> float:
        """When the node first has a level; infinity for never."""
        return min(
            (each.at_h for each in self.node if each.level >= level),
            default=float("inf"),
        )

    def notice_level(self, at_h: float) -> int:
        """Level of the notice in force."""
        before = [n for n in self.notices if hours_of(n["at"]) <= at_h + 1e-9]
        if not before or before[-1]["withdrawn"]:
            return 1
        return int(before[-1]["level"]) if hours_of(before[-1]["until"]) > at_h else 1


def hours_of(time: str) -> float:
    """Hours since the start of a printed time."""
    return (datetime.fromisoformat(time).timestamp() - START_S) / 3600


def node_settings(series: Series) -> NodeSettings:
    """Settings of the slope's node, all by default, with the sensors of a series."""
    names = dict.fromkeys(s.sensor for s in series.samples if s.node == SLOPE)
    latitude, longitude = PLACE
    return parse_node_settings({
        "node": {"id": SLOPE, "latitude": latitude, "longitude": longitude},
        "uplink": {"gateway": "mqtt://127.0.0.1:1"},
        "sensor": [{"name": name, **SENSORS[name]} for name in names],
    })


def run_node(series: Series) -> list[NodeLevel]:
    """Levels of the node after each message."""
    settings = node_settings(series)
    messages = [
        m for m in read_table("node", series.table()).messages if m.node == SLOPE
    ]
    match_all("node", messages, settings.sensors)
    sections = settings.settings
    triage = Triage(settings.sensors, sections.triage, sections.criteria.criteria())
    return [
        NodeLevel(
            (step.at_s - START_S) / 3600,
            step.result.level,
            step.result.own_alarm_level(is_judged=True),
            step.result.own_alarm_level(is_judged=False),
        )
        for step in replay_messages(messages, settings.sensors, triage)
    ]


def judge_series(
    series: Series,
    until_h: float,
    spacing_s: int = 600,
    down_h: tuple[float, float] = (0.0, 0.0),
) -> TableJudgement:
    """Judge a series as the pipeline does."""
    table = read_table("series", series.table())
    until_s = START_S + until_h * 3600
    down_s = (START_S + down_h[0] * 3600, START_S + down_h[1] * 3600)
    effort = Effort(spacing_s)
    return judge_table(
        "series", table, BACKEND, until_s=until_s, effort=effort, down_s=down_s
    )


def run_path(
    series: Series,
    after_h: float = 0.0,
    spacing_s: int = 600,
    down_h: tuple[float, float] = (0.0, 0.0),
) -> Outcome:
    """Run a series through the whole path.

    Args:
        series: The readings.
        after_h: How long the clock runs on after the series.
        spacing_s: Shortest time between two passes.
        down_h: Hours between which the backend is down.
    """
    until_h = series.hours + after_h
    result = to_json(judge_series(series, until_h, spacing_s, down_h))
    cell = next(c for c in result["cells"] if c["cell"] == CELL.token)
    flagged: dict[str, set[str]] = {}
    for each in result["readings"]:
        if each["flag"] >= SUSPECT:
            codes = {reason["code"] for reason in each["reasons"]}
            flagged.setdefault(each["node"], set()).update(codes)
    outcome = Outcome(
        run_node(series),
        [Shown(hours_of(s["at"]), s["level"], s["state"]) for s in cell["shown"]],
        cell["steps"],
        [n for n in result["notices"] if n["cell"] == CELL.token],
        flagged,
        until_h,
    )
    outcome.siren_on_h = list(_siren(outcome))
    return outcome


def _siren(outcome: Outcome) -> Iterator[float]:
    """Minutes in which the siren is on: the node's own code on mock pins."""
    now_s = START_S
    pins = MockFactory()
    alarms = AlarmOutputs([SIREN], pins, lambda: now_s)
    notices = Notices(None, lambda _: None)
    topic = notice_topic(cell_topic(CELL))
    # Printed times are rounded; a node takes a later notice only.
    incoming = [
        (hours_of(n["at"]), _payload(n, number * 0.001))
        for number, n in enumerate(outcome.notices)
    ]
    own = _alarm_levels(outcome.node)
    try:
        for minute in range(round(outcome.until_h * 60) + 1):
            now_s = START_S + minute * MINUTE_S
            at_h = minute / 60
            while incoming and incoming[0][0] <= at_h + 1e-9:
                notices.on_message(_incoming(topic, incoming.pop(0)[1]))
            own_level = own(at_h, notices.is_judged(now_s))
            alarms.update(own_level, notices.level(now_s))
            if pins.pin(SIREN.pin).state:
                yield at_h
    finally:
        alarms.close()
        pins.close()


def _incoming(topic: str, payload: bytes) -> IncomingMessage:
    return IncomingMessage(
        topic,
        payload,
        qos=1,
        retain=True,
        priority=None,
        response_topic=None,
        message_id=None,
        delivery=(0, 0),
    )


def _alarm_levels(node: Sequence[NodeLevel]) -> Callable[[float, bool], int]:
    """Level for a node's alarm outputs by time, and whether a backend judges."""

    def level(at_h: float, is_judged: bool) -> int:
        before = [
            each.alarm_level if is_judged else each.isolated_alarm_level
            for each in node
            if each.at_h <= at_h + 1e-9
        ]
        return before[-1] if before else 1

    times = [each.at_h for each in node]
    if any(later < earlier for earlier, later in pairwise(times)):
        raise ValueError("the messages of a node must be in the order of time")
    return level


def _payload(notice: Mapping[str, Any], later_s: float) -> bytes:
    at_s = START_S + hours_of(notice["at"]) * 3600 + later_s
    if notice["withdrawn"]:
        return Notice(at_s=at_s, withdrawn=True).encode()
    until_s = START_S + hours_of(notice["until"]) * 3600
    return Notice(notice["level"], until_s, at_s=at_s).encode()

"""Status of a node: a line for systemd, a JSON file, and reports of its own health.

The health readings are added to a pack that is sent anyway: a pack of their own would
cost a commit, which writes 74 KiB to the card.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_agent.notices import ReceivedOrder
from edge_agent.queue.base import QueueStats, format_depth, format_waiting
from edge_agent.safe_mode import format_safe_mode
from edge_agent.triage.engine import TriageResult
from edge_agent.uplink.settings import UplinkState, format_link
from service_runtime.tls import Endpoint
from slope_science.levels import LOWEST
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, render_english
from spatial_mqtt import senml
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import Reading

STATUS_FILE: Final = "status.json"
"""In the folder that systemd makes for the agent under /run."""


@dataclass(frozen=True)
class NodeStatus:
    """State of a node at one moment.

    Attributes:
        line: Summary for a person.
        at_s: Unix time by the machine's clock, which may be wrong.
        mono_s: Seconds since the machine started.
        level: The node's own level.
        gateway: The gateway in use.
        is_up: Whether the link to it is up.
        is_served: Whether it accepts the node's messages.
        gives_receipts: Whether it gives receipts, or may still offer them.
        held: Urgent messages that are held until a store gives a receipt.
        withheld: Messages of another node that are not sent.
        queued: Messages by priority.
        oldest_s: Age of the oldest one; None when there is none.
        dropped: Messages dropped so far, by priority.
        sensors: Number of sensors.
        problems: What is wrong with sensors, by name.
        silent: Loops without a heartbeat for too long.
        mistakes: Mistakes in the settings, in safe mode.
        alarms: State of the alarm outputs: on, off, or why they cannot be switched.
        notice: Highest level of the notices, as text; None for level 1.
        refused: Reason of the last refused notice; None when none was refused.
        update: State of an update; None when there is none.
        drill: The drill in force, as text; None without one.
        disk: That the disk cannot be written, as text; None while it can.
    """

    line: str
    at_s: float
    mono_s: float
    level: int
    gateway: str | None
    is_up: bool
    is_served: bool
    queued: Mapping[int, int]
    oldest_s: float | None
    dropped: Mapping[int, int]
    sensors: int
    problems: Mapping[str, str]
    silent: Sequence[str]
    mistakes: Sequence[str]
    alarms: Mapping[str, str]
    notice: str | None
    refused: str | None
    update: str | None = None
    gives_receipts: bool = True
    held: int = 0
    withheld: int = 0
    drill: str | None = None
    disk: str | None = None


@dataclass(frozen=True)
class StatusInputs:
    """Inputs of a status.

    Attributes:
        uplink: The node's uplink.
        now_s: Monotonic time, on the uplink's clock.
        stats: Counters of the queue.
        oldest_s: Age of its oldest message.
        problems: What is wrong with sensors, by name.
        sensors: Number of sensors.
        mistakes: Mistakes in the settings, in safe mode.
        alarms: State of the alarm outputs.
        notice: Highest level of the notices, as text.
        refused: Reason of the last refused notice.
        update: State of an update.
        drill: The drill in force, as text.
        is_clock_set: Whether a time server has set the clock.
    """

    uplink: UplinkState
    now_s: float
    stats: QueueStats
    oldest_s: float | None
    problems: Mapping[str, str]
    sensors: int
    mistakes: Sequence[str] = ()
    alarms: Mapping[str, str] = field(default_factory=dict)
    notice: str | None = None
    refused: str | None = None
    update: str | None = None
    drill: str | None = None
    is_clock_set: bool = True


def make_status(
    inputs: StatusInputs, level: int, silent: Sequence[str], at_s: float, mono_s: float
) -> NodeStatus:
    """Make a status of its inputs; `NodeStatus` lists the meanings."""
    uplink, stats = inputs.uplink, inputs.stats
    return NodeStatus(
        line=f"level {level}; {_line(inputs)}",
        at_s=at_s,
        mono_s=mono_s,
        level=level,
        gateway=None if uplink.endpoint is None else str(uplink.endpoint),
        is_up=uplink.down_since_s is None,
        is_served=uplink.unserved_since_s is None,
        queued={p: depth.rows for p, depth in stats.depth.items()},
        oldest_s=inputs.oldest_s,
        dropped=dict(stats.dropped),
        sensors=inputs.sensors,
        problems=dict(inputs.problems),
        silent=tuple(silent),
        mistakes=tuple(inputs.mistakes),
        alarms=dict(inputs.alarms),
        notice=inputs.notice,
        refused=inputs.refused,
        update=inputs.update,
        gives_receipts=uplink.gives_receipts,
        held=uplink.held_count,
        withheld=uplink.withheld_count,
        drill=inputs.drill,
        disk=format_disk_failure(stats),
    )


def save_status(status: NodeStatus, folder: Path) -> None:
    """Write the status for `edge-agent status`; a reader never sees half a file.

    Raises:
        OSError: The folder cannot be written.
    """
    fresh = folder / f"{STATUS_FILE}.new"
    fresh.write_text(json.dumps(asdict(status), ensure_ascii=False))
    fresh.chmod(0o644)  # nothing in it is secret
    fresh.replace(folder / STATUS_FILE)  # in memory under /run: needs no fsync


def load_status(folder: Path) -> dict[str, Any]:
    """Read the last status that was saved.

    Raises:
        FileNotFoundError: There is none: the agent does not run.
        PermissionError: The folder is not readable.
    """
    status: dict[str, Any] = json.loads((folder / STATUS_FILE).read_text())
    return status


def _line(parts: StatusInputs) -> str:
    items = [format_safe_mode(parts.mistakes)] if parts.mistakes else []
    disk = format_disk_failure(parts.stats)
    if disk is not None:
        items.append(disk)
    if parts.notice is not None:
        items.append(parts.notice)
    if parts.drill is not None:
        items.append(parts.drill)
    if not parts.is_clock_set:
        items.append("the clock is not set")
    items.append(format_link(parts.uplink, parts.now_s))
    items.append(format_depth(parts.stats, parts.oldest_s))
    if parts.problems:
        fail = f"{len(parts.problems)} of {parts.sensors} sensors fail"
        items.append(f"{fail}: {', '.join(parts.problems)}")
    else:
        items.append(f"{parts.sensors} sensors, none is known to fail")
    return "; ".join(items)


MAX_UPDATE_CHARS: Final = 120
"""Some links are paid by the byte."""


@dataclass(frozen=True)
class HealthSnapshot:
    """Health of a node, as it is reported.

    Attributes:
        stats: Counters of the queue.
        oldest_s: Age of its oldest message; None when there is none.
        gateway: The gateway in use.
        battery_v: Voltage of the battery; None where there is none.
        update: State of an update; None when there is none.
        alarms: States of the alarm outputs as `AlarmOutputs.summary` gives them.
        notice: The notice in force; None without one.
        drill: The drill in force; None without one.
    """

    stats: QueueStats
    oldest_s: float | None
    gateway: Endpoint | None
    battery_v: float | None
    update: str | None = None
    alarms: str | None = None
    notice: ReceivedOrder | None = None
    drill: ReceivedOrder | None = None

    def readings(self) -> list[Reading]:
        """The readings that `spatial_mqtt.senml` names."""
        gateway = self.gateway
        where = senml.STATUS_NO_VALUE if gateway is None else str(gateway)
        dropped = sum(self.stats.dropped.values())
        readings = [
            Reading(
                senml.STATUS_QUEUED,
                None,
                format_waiting(self.stats) or senml.STATUS_NO_VALUE,
            ),
            Reading(senml.STATUS_OLDEST, "s", float(round(self.oldest_s or 0.0))),
            Reading(senml.STATUS_GATEWAY, None, where),
            Reading(senml.STATUS_DROPPED, "count", float(dropped)),
        ]
        readings += self.alarm_readings()
        if self.battery_v is not None:
            readings.append(
                Reading(senml.STATUS_BATTERY, "V", round(self.battery_v, 2))
            )
        if self.update is not None:
            readings.append(
                Reading(senml.STATUS_UPDATE, None, self.update[:MAX_UPDATE_CHARS])
            )
        return readings

    def alarm_readings(self) -> list[Reading]:
        """The readings about the way back; none at a node without outputs."""
        if self.alarms is None:
            return []
        orders = ((senml.STATUS_NOTICE, self.notice), (senml.STATUS_DRILL, self.drill))
        return [
            Reading(senml.STATUS_ALARMS, None, self.alarms),
            *(
                Reading(name, None, str(order) if order else senml.STATUS_NO_VALUE)
                for name, order in orders
            ),
        ]


class HealthReporter:
    """Adds the node's health to packs, at an interval.

    Args:
        take_snapshot: Gives the health.
        interval_s: Time between two reports.
        mono_s: Monotonic time.
    """

    def __init__(
        self,
        take_snapshot: Callable[[], HealthSnapshot],
        interval_s: float,
        mono_s: Callable[[], float],
    ) -> None:
        self._facts = take_snapshot
        self._every_s = interval_s
        self._mono_s = mono_s
        self._due_s = mono_s()

    def due_readings(self, priority: int) -> list[Reading]:
        """Readings to add to a pack of a priority; empty until the interval is over.

        An urgent pack is kept short: it carries them only when no other pack did for
        a whole interval more.
        """
        now_s = self._mono_s()
        delay_s = self._every_s if LADDER.is_urgent(priority) else 0.0
        if now_s < self._due_s + delay_s:
            return []
        self._due_s = now_s + self._every_s
        return self._facts().readings()


DISK_REPORT_PRIORITY: Final = 3
"""Above routine, so that the report is sent at once; below every alarm."""

FIRST_REPORT_S: Final = 30.0
"""A disk that fails for less, as while another program uses the file, is no report."""

REPORT_EVERY_S: Final = 3600.0
DISK_HEALTH: Final = "disk/health"
DISK_OK: Final = "ok"


def format_disk_failure(stats: QueueStats) -> str | None:
    """Format that the disk cannot be written, and what to do; None while it can."""
    if stats.failure is None:
        return None
    return f"{render_english(_reason(stats))} ({stats.failure})"


class DiskReports:
    """Decides when the state of the disk is reported.

    A worn SD card becomes read-only. The node goes on with messages in memory
    (`edge_agent.queue.memory`), until somebody replaces the card, or corrects
    `queue.path` if that is at fault.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due_s: float | None = None
        self._is_reported = False

    def due_report(
        self, stats: QueueStats
    ) -> tuple[list[Reading], TriageResult] | None:
        """Readings to report now, with their priority and reason; None for nothing."""
        text, now_s = format_disk_failure(stats), self._clock()
        if text is None:
            return self._recovery()
        if self._due_s is None:
            self._due_s = now_s + FIRST_REPORT_S
        if now_s < self._due_s:
            return None
        self._due_s, self._is_reported = now_s + REPORT_EVERY_S, True
        reason = _reason(stats)
        why = render_english(reason)
        return [Reading(DISK_HEALTH, None, text)], TriageResult(
            DISK_REPORT_PRIORITY, why, LOWEST, (reason,)
        )

    def _recovery(self) -> tuple[list[Reading], TriageResult] | None:
        """The report that the disk can be written again, if a failure was reported."""
        was_reported, self._is_reported, self._due_s = self._is_reported, False, None
        if not was_reported:
            return None
        return [Reading(DISK_HEALTH, None, DISK_OK)], TriageResult(
            DISK_REPORT_PRIORITY, None, LOWEST
        )


def _reason(stats: QueueStats) -> Reason:
    code = ReasonCode.QUEUE_MISPLACED if stats.is_misplaced else ReasonCode.DISK_FAILED
    return Reason(code, count=stats.unstored)

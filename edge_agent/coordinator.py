"""Coordinator: what a running node does on a sample, a notice, an event and a stop.

`edge_agent.app` builds the parts; this module knows no file, pin or random source.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_agent.alarm_outputs import DRILL, LIMITED, ON, AlarmOutputs
from edge_agent.clock import Clock
from edge_agent.notices import Drills, Notices
from edge_agent.queue.base import Queue
from edge_agent.sampler import Sampler
from edge_agent.sampling_loop import FAST_FROM_LEVEL, SamplingLoop
from edge_agent.sensors.base import Sensor
from edge_agent.status import (
    DiskReports,
    HealthSnapshot,
    StatusInputs,
    make_status,
    save_status,
)
from edge_agent.triage.engine import TriageResult
from edge_agent.updates import Updater
from edge_agent.uplink.gateway_selection import GatewaySelector
from edge_agent.uplink.uplink import Uplink
from service_runtime.lifecycle import start_watched_loop
from service_runtime.watchdog import Heartbeat, LoopWatchdog
from slope_science.levels import LOWEST
from spatial_mqtt.senml import Reading

log = logging.getLogger(__name__)

UPLINK_SILENCE_S = 60.0
SELECTION_SILENCE_S = 60.0
DIRECTORY_SILENCE_S = 600.0
"""Maximum time to query all Managers and better gateways, if none answers."""

SLOPE_SILENCE_S = 60.0
ALARMS_SILENCE_S = 30.0
ALARMS_INTERVAL_S = 1.0
REPORTS_SILENCE_S = 60.0
BLIND_S = 600.0
"""Time without any readable sensor after which the node's own level is unknown."""

DISK_INTERVAL_S = 5.0
UPDATE_SILENCE_S = 600.0
"""Maximum time between two heartbeats: a worn card reads a bundle for minutes."""

ENDED_LOOPS = {"uplink", "alarms", "alarm reports", "disk reports"}
"""Loops that a stop waits for; the others may wait for the network for minutes."""

MoveSlope = Callable[[threading.Event, Heartbeat], bool]
"""Moves a simulated slope until the event is set; returns whether its time is over."""


@dataclass(frozen=True)
class NodeParts:
    """The parts of a node.

    Attributes:
        queue: The node's queue.
        uplink: Sends from the queue to a gateway.
        selection: Chooses the gateway of the uplink.
        notices: Levels and criteria that analysts published for the position.
        drills: Drills of the alarm outputs.
        updater: Downloads updates of the image; None if the node takes none.
        alarms: The alarm outputs.
        sensors: All sensors, open.
        sampler: Makes messages of the sensors' readings.
        sampling: Runs the sampler on a schedule.
        clock: The node's clock; simulated together with the slope.
        machine_clock: The clock of the machine.
        move_slope: Moves the simulated slope; None for real pins.
    """

    queue: Queue
    uplink: Uplink
    selection: GatewaySelector
    notices: Notices
    drills: Drills
    updater: Updater | None
    alarms: AlarmOutputs
    sensors: Sequence[Sensor]
    sampler: Sampler
    sampling: SamplingLoop
    clock: Clock
    machine_clock: Clock
    move_slope: MoveSlope | None = None


class Coordinator:
    """A whole node: call `run`, and `stop` from another thread.

    Args:
        parts: What it coordinates.
        pulse: Watches its loops.
        stop: Ends its loops.
        battery: Name of the sensor of the battery's voltage; None without battery.
        mistakes: Mistakes in the settings, in safe mode.
        status_folder: Where the status is written; None for nowhere.
    """

    def __init__(
        self,
        parts: NodeParts,
        pulse: LoopWatchdog,
        stop: threading.Event,
        *,
        battery: str | None = None,
        mistakes: Sequence[str] = (),
        status_folder: Path | None = None,
    ) -> None:
        self._parts = parts
        self._pulse = pulse
        self._stop = stop
        self._battery = battery
        self._mistakes = mistakes
        self._status_folder = status_folder
        self._level = LOWEST
        self._assessment = TriageResult(LOWEST, None, LOWEST)
        self._battery_v: float | None = None
        if parts.updater is not None:
            parts.updater.find_obstacle = self._find_obstacle

    @property
    def parts(self) -> NodeParts:
        """The parts of the node."""
        return self._parts

    def run(self) -> None:
        """Work until `stop`, then close every part."""
        parts = self._parts
        self.on_notice()
        parts.sampler.resume_level()
        threads = {
            name: start_watched_loop(self._pulse, name, silence_s, loop)
            for name, silence_s, loop in self._loops()
        }
        parts.sampling.run()
        self._stop.set()
        parts.uplink.stop()
        # They use the outputs and the queue, which are closed now.
        for name in threads.keys() & ENDED_LOOPS:
            threads[name].join()
        for sensor in parts.sensors:
            sensor.close()
        parts.alarms.close()
        parts.queue.close()

    def stop(self) -> None:
        """End `run`."""
        self._parts.sampling.stop()

    def on_assessed(
        self, assessment: TriageResult, readings: Sequence[Reading]
    ) -> None:
        """Adapt outputs and sampling to the level, and sampling to the battery."""
        values = [r.value for r in readings if r.name == self._battery]
        battery_v = values[-1] if values and isinstance(values[-1], float) else None
        self._battery_v = self._battery_v if battery_v is None else battery_v
        if assessment.level != self._level:
            why = assessment.why or "nothing is found any more"
            log.warning("level %d, was %d: %s", assessment.level, self._level, why)
        self._level = assessment.level
        self._assessment = assessment
        self._parts.sampling.adapt_rate(
            max(self._level, self._notice_level()), battery_v
        )

    def on_notice(self, withdrawn: bool = False) -> None:
        """Apply the criteria and the level of the notices.

        Args:
            withdrawn: Whether criteria were just withdrawn.
        """
        criteria = self._parts.notices.criteria()
        self._parts.sampler.apply_criteria(criteria, withdrawn=withdrawn)
        self._parts.sampling.adapt_rate(max(self._level, self._notice_level()))

    def health_snapshot(self) -> HealthSnapshot:
        """What the node reports of itself now."""
        queue, endpoint = self._parts.queue, self._parts.uplink.endpoint
        stats, oldest_s = queue.stats(), queue.oldest_s()
        return HealthSnapshot(
            stats,
            oldest_s,
            endpoint,
            self._battery_v,
            self._update_words(),
            self._parts.alarms.summary(),
            self._parts.notices.current(self._parts.clock.wall_s()),
            self._parts.drills.current(),
        )

    def update_status(self) -> str:
        """The line for systemd; writes the whole status for `edge-agent status`."""
        parts = self._parts
        inputs = StatusInputs(
            parts.uplink,
            self._pulse.clock(),
            parts.queue.stats(),
            parts.queue.oldest_s(),
            parts.sampler.problems,
            len(parts.sensors),
            self._mistakes,
            parts.alarms.states(),
            parts.notices.summary(parts.clock.wall_s()),
            parts.notices.refused or parts.drills.refused,
            self._update_words(),
            parts.drills.summary(),
            is_clock_set=parts.clock.is_synchronised(),
        )
        at_s, mono_s = parts.machine_clock.wall_s(), parts.machine_clock.mono_s()
        status = make_status(
            inputs, self._level, self._pulse.find_late_loops(), at_s, mono_s
        )
        if self._status_folder is not None:
            try:
                save_status(status, self._status_folder)
            except OSError as error:  # no reason to end a node that works
                log.warning("edge-agent status is not renewed: %s", error)
        return status.line

    def _loops(self) -> Iterator[tuple[str, float, Callable[[Heartbeat], None]]]:
        parts = self._parts
        yield "uplink", UPLINK_SILENCE_S, parts.uplink.run
        yield "gateway choice", SELECTION_SILENCE_S, parts.selection.run
        yield "gateway list", DIRECTORY_SILENCE_S, parts.selection.run_checks
        yield "disk reports", REPORTS_SILENCE_S, self._report_disk
        yield "alarms", ALARMS_SILENCE_S, self._switch_alarms
        if parts.alarms.summary() is not None:
            yield "alarm reports", REPORTS_SILENCE_S, self._report_alarms
        if parts.move_slope is not None:
            yield "slope", SLOPE_SILENCE_S, self._move_slope
        if parts.updater is not None:
            yield "updates", UPDATE_SILENCE_S, parts.updater.run

    def _alarm_level(self, now_s: float) -> int:
        """The node's own level for alarm outputs."""
        is_judged = self._parts.notices.is_judged(now_s)
        return self._assessment.own_alarm_level(is_judged=is_judged)

    def _notice_level(self) -> int:
        return self._parts.notices.level(self._parts.clock.wall_s())

    def _update_words(self) -> str | None:
        updater = self._parts.updater
        return None if updater is None else updater.summary()

    def _find_obstacle(self) -> str | None:
        """Why the node must not reboot, which stops samples and outputs for minutes.

        An output that flashes because the node is blind is no reason: it may flash for
        weeks, and the update may repair it.
        """
        level = max(self._level, self._notice_level())
        if level >= FAST_FROM_LEVEL:
            return f"level {level}"
        if self._parts.notices.is_unknown(self._parts.clock.wall_s()):
            return "level unknown"
        states = self._parts.alarms.states().items()
        on = (
            f"{name}:{state}" for name, state in states if state in {ON, LIMITED, DRILL}
        )
        return next(on, None)

    def _switch_alarms(self, beat: Heartbeat) -> None:
        """Switch the alarm outputs; no other thread does."""
        was_unknown = False
        seen_s = self._pulse.clock()
        while not self._stop.wait(ALARMS_INTERVAL_S):
            beat()
            now_s = self._parts.clock.wall_s()
            if not self._parts.sampler.is_blind:
                seen_s = self._pulse.clock()
            is_unknown = self._parts.notices.is_unknown(now_s)
            if is_unknown != was_unknown:
                words = self._parts.notices.summary(now_s)
                log.warning("notices: %s", words or "the level is known again")
                was_unknown = is_unknown
            is_blind = self._pulse.clock() - seen_s >= BLIND_S
            is_judged = self._parts.notices.is_judged(now_s)
            self._parts.alarms.update(
                self._alarm_level(now_s),
                self._notice_level(),
                is_unknown=is_unknown or (is_blind and not is_judged),
                is_blind=is_blind,
                drill_level=self._parts.drills.level(),
            )

    def _report_alarms(self, beat: Heartbeat) -> None:
        """Queue a report when the state that nodes report back changes.

        In a thread of its own: neither a slow disk nor the assessment of samples may
        delay `_switch_alarms`.
        """
        reported = self._way_back()
        while not self._stop.wait(ALARMS_INTERVAL_S):
            beat()
            current = self._way_back()
            if current != reported:
                reported = current
                self._parts.sampler.report(self.health_snapshot().readings())
                self._parts.uplink.wake()

    def _report_disk(self, beat: Heartbeat) -> None:
        """Queue a report when the disk cannot be written, and every hour meanwhile."""
        reports = DiskReports(self._pulse.clock)
        while not self._stop.wait(DISK_INTERVAL_S):
            beat()
            report = reports.due_report(self._parts.queue.stats())
            if report is not None:
                self._parts.sampler.report(*report)
                self._parts.uplink.wake()

    def _way_back(self) -> tuple[object, ...]:
        """State of notices, drills and outputs, which is reported when it changes."""
        states = self._parts.alarms.summary()
        notice = self._parts.notices.current(self._parts.clock.wall_s())
        return states, notice and notice.level, self._parts.drills.current()

    def _move_slope(self, beat: Heartbeat) -> None:
        move_slope = self._parts.move_slope
        if move_slope is not None and move_slope(self._stop, beat):
            self._parts.sampling.pause_sampling()

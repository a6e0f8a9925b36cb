"""Sampler: reads sensors at one instant, runs triage and queues one pack."""

import logging
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edge_agent.clock import SET_CLOCK_STATE, Clock, Instant
from edge_agent.quantities import SentReadings
from edge_agent.queue.base import MessageDraft, Queue, QueueFileError, QueueFullError
from edge_agent.sensor_reader import SensorReader, health_name
from edge_agent.sensors.base import Health, Sensor
from edge_agent.triage.engine import Triage, TriageResult
from slope_science.levels import LOWEST
from slope_science.reasons import encode_reason
from spatial_mqtt.announcements import CriteriaNotice
from spatial_mqtt.cells import Cell
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import ForwardTopic, cell_topic

log = logging.getLogger(__name__)

TRIAGE_STATE = "triage"
REPORT_PRIORITY = 2
"""Before routine readings, and below the priorities that state a level."""

_NOTHING: Final = TriageResult(LOWEST, None, LOWEST)


def make_draft(pack: Pack, cell: Cell) -> MessageDraft:
    """The draft of a pack whose id the queue will assign.

    Args:
        pack: Readings and priority; its id is ignored.
        cell: Cell of the node's position.
    """
    topic = str(ForwardTopic(cell_topic(cell), pack.priority))

    def payload(message_id: MessageId) -> bytes:
        return encode_cbor(
            Pack(
                message_id,
                pack.priority,
                pack.time_s,
                pack.readings,
                pack.synchronised,
                pack.mono_s,
                pack.why,
                pack.reasons,
            )
        )

    return MessageDraft(pack.priority, topic, payload)


def _health_key(sensor: str) -> str:
    """Key of a sensor's last reported health."""
    return f"sensor.{sensor}.health"


def _state_of(sensor: Sensor) -> dict[str, str]:
    """What a sensor stores; nothing if its driver has a defect: the pack is sent."""
    try:
        return sensor.state()
    except Exception:
        log.exception("the state of sensor %s is not stored", sensor.name)
        return {}


def _levels(result: TriageResult) -> tuple[int, ...]:
    """The levels that switch outputs, or that the office sees."""
    return result.level, result.alarm_level, result.isolated_alarm_level


@dataclass(frozen=True)
class NodeIdentity:
    """Identity, position and clock of the node.

    Attributes:
        node: Id of the node.
        cell: S2 cell of its position.
        clock: The time of readings.
    """

    node: str
    cell: Cell
    clock: Clock


@dataclass(frozen=True)
class _Moment:
    """The clocks before a reading, which takes up to half a minute.

    Attributes:
        wall_s: Unix time.
        mono_s: Seconds since the machine started.
        is_synchronised: Whether a time server had set the wall clock by then.
        speedup: Seconds of wall time for each monotonic second.
    """

    wall_s: float
    mono_s: float
    is_synchronised: bool
    speedup: float

    @property
    def instant(self) -> Instant:
        """The moment as triage counts it."""
        return Instant(self.wall_s, self.mono_s * self.speedup, self.is_synchronised)


class Sampler:
    """Makes messages of the readings of sensors.

    Args:
        sensors: All sensors of the node.
        triage: Assesses the readings.
        queue: Gets the packs.
        identity: Identity, position and clock.

    Attributes:
        on_put: Called after each pack; nothing by default.
        on_assessed: Called with each assessment and its readings, in the order of the
            assessments and before the pack is stored; must not call the sampler.
        health_readings: Readings of the node's own health for a pack of a priority.
    """

    on_put: Callable[[], None] = staticmethod(lambda: None)
    on_assessed: Callable[[TriageResult, Sequence[Reading]], None] = staticmethod(
        lambda _assessment, _readings: None
    )
    health_readings: Callable[[int], list[Reading]] = staticmethod(lambda _priority: [])

    def __init__(
        self,
        sensors: Sequence[Sensor],
        triage: Triage,
        queue: Queue,
        identity: NodeIdentity,
    ) -> None:
        self._sensors = tuple(sensors)
        self._triage = triage
        self._queue = queue
        self._site = identity
        self._clock = identity.clock
        self._sent = SentReadings(self._sensors)
        self._diagnostics: dict[str, str] = {}
        self._stated = _levels(_NOTHING)
        states = {s.name: queue.get_state(_health_key(s.name)) for s in self._sensors}
        self._reader = SensorReader(
            self._sensors,
            identity.clock.mono_s,
            had_failed={
                n for n, state in states.items() if state not in {None, Health.OK}
            },
        )
        # A tilt reading takes seconds, and a worn card minutes to write. A cut wire and
        # the siren must wait for neither, so triage has a lock of its own. A thread
        # that holds both locks took `_storing` first.
        self._assessing = threading.Lock()
        self._storing = threading.Lock()

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with sensors, by name."""
        return self._reader.problems

    @property
    def is_blind(self) -> bool:
        """Whether none of the sensors that a rule judges can be read."""
        judged = self._triage.judged_sensors
        return bool(judged) and judged <= self._reader.errors.keys()

    def sample(
        self, sensors: Sequence[Sensor] | None = None, *, is_urgent: bool = False
    ) -> None:
        """Read sensors (all by default) at one instant and queue their readings.

        Args:
            sensors: The sensors; None for all.
            is_urgent: Whether sensors in back-off are read, too.
        """
        chosen = self._sensors if sensors is None else sensors
        moment = self._moment()
        readings = self._reader.read(chosen, moment.wall_s, is_urgent=is_urgent)
        with self._assessing:
            # Also without readings: hold times end although all sensors fail.
            assessment = self._triage.assess(readings, moment.instant)
            # Under the lock: an earlier level must not replace a later one.
            self.on_assessed(assessment, readings)
            if not readings and self._is_news(assessment):
                readings = self._reader.last_healths(chosen)
            if not readings:
                return
            self._stated = _levels(assessment)
            healths = self._healths(readings)
            readings = self._sent.convert([*readings, *self._changed_diagnostics()])
        with self._storing:
            readings += self.health_readings(assessment.priority)
            self._put(readings, assessment, moment, chosen, healths)
        self.on_put()

    def resume_level(self) -> None:
        """Pass on the level that triage has restored, if it is still in force."""
        with self._assessing:
            restored = self._triage.preview(self._moment().instant)
            if restored.level > LOWEST:
                self.on_assessed(restored, ())

    def report(
        self, readings: Sequence[Reading], result: TriageResult | None = None
    ) -> None:
        """Queue readings of the node's own state at once, in a pack of their own.

        Args:
            readings: The readings.
            result: Their priority and reasons; None for an ordinary report.
        """
        result = result or TriageResult(REPORT_PRIORITY, None, LOWEST)
        with self._storing:
            self._put(list(readings), result, self._moment(), ())

    def apply_criteria(
        self, criteria: CriteriaNotice | None, *, withdrawn: bool
    ) -> None:
        """Apply an analyst's criteria from now on, also after a restart.

        Args:
            criteria: The newest for the node; None when there are none.
            withdrawn: Whether some were just withdrawn.
        """
        try:
            with self._assessing:
                in_force = self._triage.active_criteria
                if criteria is not None:
                    is_new = in_force.apply(criteria, accepts_older=withdrawn)
                else:
                    is_new = withdrawn and in_force.revert()
            if is_new:
                log.info("criteria in force: %s", in_force.criteria)
                with self._storing:
                    self._queue.put([], self._triage_state())
        except NoticeError as error:
            log.warning("criteria of a notice are refused: %s", error)
        except QueueFileError as error:
            log.warning("new criteria are not stored: %s", error)

    def _is_news(self, assessment: TriageResult) -> bool:
        """Whether a level is higher than in the last pack; called under `_assessing`.

        Creep may last long enough to count only after its sensor has failed. A pack
        needs a reading, and the state of the sensors is the only one that is not old.
        """
        now = _levels(assessment)
        is_higher = any(map(operator.gt, now, self._stated))
        # one that ends without a pack, and begins anew, is news
        self._stated = tuple(map(min, now, self._stated))
        return is_higher

    def _moment(self) -> _Moment:
        clock = self._clock
        # First whether the clock is set: if that happens between the two calls, a
        # right time counts as doubtful, and never a wrong one as right.
        is_synchronised = clock.is_synchronised()
        return _Moment(clock.wall_s(), clock.mono_s(), is_synchronised, clock.speedup)

    def _changed_diagnostics(self) -> list[Reading]:
        """Readings of the rules that cannot be used, where that changed."""
        now, before = self._triage.diagnostics(), self._diagnostics
        self._diagnostics = now
        names = dict.fromkeys((*before, *now))
        changed = {n: now.get(n) for n in names if now.get(n) != before.get(n)}
        for sensor, note in changed.items():
            log.warning("sensor %s: %s", sensor, note or "its rules can be used again")
        return [Reading(f"{n}/rule", None, note or "ok") for n, note in changed.items()]

    def _healths(self, readings: Sequence[Reading]) -> dict[str, str]:
        """The reported healths to store: a restart must report a repair."""
        names = {health_name(each.name): each.name for each in self._sensors}
        return {
            _health_key(names[r.name]): str(r.value)
            for r in readings
            if r.name in names
        }

    def _triage_state(self) -> dict[str, str]:
        """The newest state of triage, to be stored under `_storing`.

        It may be later than the pack: a stored state is never replaced by an older one.
        """
        with self._assessing:
            return {TRIAGE_STATE: self._triage.snapshot()}

    def _put(
        self,
        readings: list[Reading],
        assessment: TriageResult,
        moment: _Moment,
        sampled: Sequence[Sensor],
        state: Mapping[str, str] = {},
    ) -> None:
        pack = Pack(
            id=MessageId(self._site.node, "-", 0),
            priority=assessment.priority,
            time_s=round(moment.wall_s, 3),
            readings=tuple(readings),
            synchronised=moment.is_synchronised,
            mono_s=round(moment.mono_s, 3),
            why=assessment.why,
            reasons=[
                encode_reason(self._sent.convert_reason(reason))
                for reason in assessment.reasons
            ],
        )
        state = {**self._triage_state(), **state}
        if moment.is_synchronised:
            state[SET_CLOCK_STATE] = f"{moment.wall_s:.0f}"
        for sensor in sampled:
            state |= _state_of(sensor)
        try:
            self._queue.put([make_draft(pack, self._site.cell)], state)
        except (QueueFullError, QueueFileError) as error:
            # With a full disk the node still reads sensors and sends its rows.
            log.error(  # noqa: TRY400
                "a pack of priority %d is lost: %s", assessment.priority, error
            )
            with self._assessing:
                self._stated = _levels(_NOTHING)  # the next pack states its level

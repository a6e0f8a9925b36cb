"""One sampling instant: read sensors, let triage judge, put one pack on the queue."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_agent.clock import Clock
from edge_agent.queue.base import Draft, Queue, QueueFileError, QueueFullError
from edge_agent.sensor_reader import Reader
from edge_agent.sensors.base import Sensor
from edge_agent.triage.engine import Assessment, Triage
from edge_agent.triage.samples import Instant
from slope_science.reasons import encode
from spatial_mqtt.announcements import CriteriaNotice
from spatial_mqtt.cells import Cell
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import Forward, cell_topic

log = logging.getLogger(__name__)

TRIAGE_STATE = "triage"


def draft_of(pack: Pack, cell: Cell) -> Draft:
    """The draft of a pack whose id the queue will give.

    Args:
        pack: Readings and priority; its id is ignored.
        cell: Where the node stands.
    """
    topic = str(Forward(cell_topic(cell), pack.priority))

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

    return Draft(pack.priority, topic, payload)


def _says_nothing(_priority: int) -> list[Reading]:
    return []


@dataclass(frozen=True)
class Site:
    """Where and when a sampler's readings come from.

    Attributes:
        node: Id of the node.
        cell: S2 cell it stands in.
        clock: Gives the time of a reading.
    """

    node: str
    cell: Cell
    clock: Clock


class Sampler:
    """Turns sensors into messages.

    Args:
        sensors: All sensors of the node.
        triage: Judges the readings.
        queue: Takes the packs.
        site: Where, who and when.
        on_put: Called after each pack with what triage said of its readings.
        self_report: What the node says of itself in a pack of a priority.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        triage: Triage,
        queue: Queue,
        site: Site,
        on_put: Callable[[Assessment, Sequence[Reading]], None],
        *,
        self_report: Callable[[int], list[Reading]] = _says_nothing,
    ) -> None:
        self._sensors = tuple(sensors)
        self._triage = triage
        self._queue = queue
        self._site = site
        self._clock = site.clock
        self._on_put = on_put
        self._self_report = self_report
        self._notes: dict[str, str] = {}
        self._reader = Reader(self._sensors, site.clock.mono_s)
        # A tilt reading takes seconds; a cut wire must not wait for it. Hence a
        # lock for judging and putting alone, held briefly.
        self._judging = threading.Lock()

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with sensors, by their names."""
        return self._reader.problems

    def sample(self, sensors: Sequence[Sensor] | None = None) -> None:
        """Read sensors (all by default) at one instant and queue what they say."""
        chosen = self._sensors if sensors is None else sensors
        clock = self._clock
        now_s, mono_s = clock.wall_s(), clock.mono_s()
        readings = self._reader.read(chosen, now_s)
        if not readings:
            return
        instant = Instant(now_s, mono_s * clock.speedup, clock.is_synchronised())
        with self._judging:
            assessment = self._triage.assess(readings, instant)
            readings += self._noted()
            readings += self._self_report(assessment.priority)
            self._put(readings, assessment, now_s, chosen)
        self._on_put(assessment, readings)

    def take_criteria(self, told: CriteriaNotice | None, *, withdrawn: bool) -> None:
        """Judge against an analyst's criteria from now on, also after a restart.

        Args:
            told: The newest that hold for the place; None when there are none.
            withdrawn: Whether some were just taken back.
        """
        with self._judging:
            in_force = self._triage.in_force
            try:
                if told is not None:
                    is_new = in_force.take(told, even_older=withdrawn)
                else:
                    is_new = withdrawn and in_force.drop()
                if is_new:
                    log.info("criteria in force: %s", in_force.criteria)
                    self._queue.put([], {TRIAGE_STATE: self._triage.snapshot()})
            except NoticeError as error:
                log.warning("criteria of a notice are refused: %s", error)
            except QueueFileError as error:
                log.warning("new criteria are not remembered: %s", error)

    def _noted(self) -> list[Reading]:
        """Readings that say which rules cannot be used, where that changed."""
        notes, before = self._triage.notes(), self._notes
        self._notes = notes
        changed = {n: notes.get(n) for n in (*before, *notes)}
        news = {n: note for n, note in changed.items() if note != before.get(n)}
        for sensor, note in news.items():
            log.warning("sensor %s: %s", sensor, note or "its rules can be used again")
        return [Reading(f"{n}/rule", None, note or "ok") for n, note in news.items()]

    def _put(
        self,
        readings: list[Reading],
        said: Assessment,
        now_s: float,
        sampled: Sequence[Sensor],
    ) -> None:
        pack = Pack(
            id=MessageId(self._site.node, "-", 0),
            priority=said.priority,
            time_s=round(now_s, 3),
            readings=tuple(readings),
            synchronised=self._clock.is_synchronised(),
            mono_s=round(self._clock.mono_s(), 3),
            why=said.why,
            reasons=[encode(reason) for reason in said.reasons],
        )
        state = {TRIAGE_STATE: self._triage.snapshot()}
        for sensor in sampled:
            state.update(sensor.state())
        try:
            self._queue.put([draft_of(pack, self._site.cell)], state)
        except (QueueFullError, QueueFileError) as error:
            # A node whose disk is full still has sensors to read and rows to send.
            log.error("a reading of priority %d is lost: %s", said.priority, error)  # noqa: TRY400

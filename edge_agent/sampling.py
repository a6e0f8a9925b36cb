"""One sampling instant: read sensors, let triage judge, put one pack on the queue."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_agent.clock import Clock
from edge_agent.queue.base import Draft, Queue
from edge_agent.queue.errors import QueueFileError, QueueFullError
from edge_agent.sensors.base import Sensor
from edge_agent.sensors.errors import SensorError
from edge_agent.triage import Assessment, Triage
from spatial_mqtt.cells import Cell
from spatial_mqtt.envelope import MessageId, Pack, Reading, encode_cbor
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

    def encode(message_id: MessageId) -> bytes:
        return encode_cbor(
            Pack(
                message_id,
                pack.priority,
                pack.time_s,
                pack.readings,
                pack.synchronised,
                pack.mono_s,
                pack.why,
            )
        )

    return Draft(pack.priority, topic, encode)


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
        on_put: Called after each pack with what triage said.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        triage: Triage,
        queue: Queue,
        site: Site,
        on_put: Callable[[Assessment], None],
    ) -> None:
        self._sensors = tuple(sensors)
        self._triage = triage
        self._queue = queue
        self._site = site
        self._clock = site.clock
        self._on_put = on_put
        self._failing: dict[str, str] = {}
        # A tilt reading takes seconds; a cut wire must not wait for it. Hence a
        # lock for each sensor, and one for judging and putting, held briefly.
        self._busy = {sensor.name: threading.Lock() for sensor in self._sensors}
        self._judging = threading.Lock()

    def sample(self, sensors: Sequence[Sensor] | None = None) -> None:
        """Read sensors (all by default) at one instant and queue what they say."""
        chosen = self._sensors if sensors is None else sensors
        now_s = self._clock.wall_s()
        readings = [r for sensor in chosen for r in self._read(sensor, now_s)]
        if not readings:
            return
        with self._judging:
            assessment = self._triage.assess(readings, now_s)
            self._put(readings, assessment, now_s, chosen)
        self._on_put(assessment)

    def _read(self, sensor: Sensor, now_s: float) -> list[Reading]:
        """Readings of one sensor; its health when that changed."""
        with self._busy[sensor.name]:
            try:
                readings = sensor.read(now_s)
            except SensorError as error:
                return self._health(sensor.name, str(error))
            return readings + self._health(sensor.name, None)

    def _health(self, name: str, problem: str | None) -> list[Reading]:
        if self._failing.get(name) == problem:
            return []
        if problem is None:
            log.info("sensor %s is well again", name)
            del self._failing[name]
        else:
            log.warning("%s", problem)
            self._failing[name] = problem
        return [Reading(f"{name}/health", None, problem or "ok")]

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
        )
        state = {TRIAGE_STATE: self._triage.snapshot()}
        for sensor in sampled:
            state.update(sensor.state())
        try:
            self._queue.put([draft_of(pack, self._site.cell)], state)
        except (QueueFullError, QueueFileError) as error:
            # A node whose disk is full still has sensors to read and rows to send.
            log.error("a reading of priority %d is lost: %s", said.priority, error)  # noqa: TRY400

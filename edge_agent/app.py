"""Puts a node together: the one place that names clocks, files, pins and randomness.

Puts a node's pins and buses together: real ones, or the simulated slope's.

Puts the updates of a node's image together.

Puts a node in safe mode together.
"""

import logging
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpiozero import Device

from edge_agent.agent import Agent
from edge_agent.alarm_outputs import Alarms
from edge_agent.clock import Clock, SystemClock
from edge_agent.config import NodeSettings
from edge_agent.notices import NOTICES_STATE, Notices, Remember, opener
from edge_agent.queue.base import (
    EVERY_PUT,
    Durability,
    Queue,
    QueueFileError,
    QueueFullError,
)
from edge_agent.queue.inspection import ledger_writer
from edge_agent.queue.memory import MemoryQueue
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.safe_mode import Safe, report, tell
from edge_agent.sampler import TRIAGE_STATE, Sampler, Site, draft_of
from edge_agent.schedule import Habits, Steps
from edge_agent.sensors.base import Hardware, Sensor
from edge_agent.sensors.buses import Buses
from edge_agent.sensors.linux.buses import LinuxBuses
from edge_agent.sensors.linux.gpio import KernelLines, header_chip, tells_of_edges
from edge_agent.sensors.registry import open_sensors
from edge_agent.simulator.board import Board, make_board, make_clock, move
from edge_agent.status import Facts, Parts, SelfReport, Status, save, status_of
from edge_agent.triage.engine import Assessment, Triage
from edge_agent.triage.snapshot import SnapshotError
from edge_agent.updates.download import Fetch
from edge_agent.updates.rollouts import ROLLOUTS_STATE, Rollouts
from edge_agent.updates.updater import Machine, Updater, Way
from edge_agent.uplink.gateway_selection import Choice, FixedGateway, ManagedGateways
from edge_agent.uplink.publications import Sender
from edge_agent.uplink.rate_limit import Throttle
from edge_agent.uplink.uplink import Ear, Uplink
from service_runtime.errors import FieldError
from service_runtime.lifecycle import Supervision, start_loop
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Beat, Pulse
from slope_science.findings import DANGER, LOWEST
from spatial_mqtt.announcements import Opened
from spatial_mqtt.cells import Cell
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.retained import fetch_retained
from spatial_mqtt.senml import Reading
from spatial_mqtt.topics import cell_topic, notice_filters, rollout_filters
from spatial_mqtt.transport import Incoming

PATIENCE_S = 30.0
"""What waits longer than this and its gathering is a backlog, and goes first."""

BUSY_S = 5.0


def rollouts(node: NodeSettings, queue: Queue, remember: Remember) -> Rollouts | None:
    """What is rolled out; None where the node takes updates from its card alone."""
    keys = node.settings.update.keys
    if not keys:
        return None
    try:
        opened = opener(keys)
    except FieldError as error:
        log.error("no rollout counts: update.%s", error)  # noqa: TRY400
        return None
    said = queue.recall(ROLLOUTS_STATE)
    return Rollouts(node.settings.node.id, opened, said, remember)


@dataclass(frozen=True)
class Beside:
    """What else the node has.

    Attributes:
        queue: Its queue.
        uplink: Its uplink.
        pulse: Listens to its loops.
        minute: Local minute of the day; None while the clock is not set.
        stop: Ends its loops.
    """

    queue: Queue
    uplink: Uplink
    pulse: Pulse
    minute: Callable[[], int | None]
    stop: threading.Event


def updater(
    node: NodeSettings, known: Rollouts | None, beside: Beside
) -> Updater | None:
    """The loop that fetches what is rolled out; None where nothing ever is."""
    if known is None:
        return None
    settings, uplink = node.settings, beside.uplink
    throttle = _throttle(node, beside.minute)

    def fetch(sha256: str) -> Fetch | None:
        endpoint = uplink.endpoint
        if endpoint is None or uplink.unserved_since_s is not None:
            return None
        return Fetch(
            settings.node.id,
            sha256,
            lambda session, ear: Connection(
                endpoint, session, ear, settings.tls, pulse=beside.pulse
            ),
            time.monotonic,
        )

    def wait_s() -> float:
        if uplink.unserved_since_s is not None:
            return math.inf
        if _has_backlog(node, beside.queue):
            return BUSY_S
        return throttle.wait_s(LOWEST, time.monotonic())

    way = Way(fetch, wait_s, lambda size: throttle.spend(size, time.monotonic()))
    folder = Path(settings.queue.path).with_name("update")
    machine = Machine(Path(os.environ.get("YAMAMORI_ROOT", "/")))
    return Updater(known, machine, folder, way, stop=beside.stop, clock=time.monotonic)


def _throttle(node: NodeSettings, minute: Callable[[], int | None]) -> Throttle:
    """The rate and timetable of updates: the link's, unless there are own."""
    own, link = node.settings.update, node.settings.uplink
    made = replace(
        link,
        rate_bytes_per_s=own.rate_bytes_per_s or link.rate_bytes_per_s,
        period=own.period or link.period,
        override_from=LADDER.top + 1,
    )
    return made.throttle(minute)


def _has_backlog(node: NodeSettings, queue: Queue) -> bool:
    """Whether messages wait that an update would delay."""
    waiting = queue.stats().depth
    if any(depth.rows for p, depth in waiting.items() if p >= DANGER):
        return True
    oldest_s = queue.oldest_s()
    patience_s = PATIENCE_S + node.settings.uplink.gather_s
    return oldest_s is not None and oldest_s > patience_s


log = logging.getLogger(__name__)

KERNEL_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DIRECTORY_TIMEOUT_S = 5.0

UPLINK_SILENCE_S = 60.0
CHOICE_SILENCE_S = 60.0
ALARMS_SILENCE_S = 30.0
UPDATE_SILENCE_S = 600.0
"""A sick card takes minutes to read a whole bundle."""
ALARMS_LOOK_S = 1.0
LIST_SILENCE_S = 600.0
"""One look at all Managers and better gateways, where none answers."""


def queue(node: NodeSettings, durability: Durability = EVERY_PUT) -> Queue:
    """The node's queue.

    Args:
        node: The node's settings.
        durability: Only the agent itself, which leases, may open a window.
    """
    settings = node.settings
    boot_id = KERNEL_BOOT_ID.read_text().strip()
    made = SqliteQueue(
        settings.queue.path,
        settings.node.id,
        boot_id,
        settings.queue.budget(),
        durability=durability,
        ageing=settings.queue.ageing(SystemClock().mono_s),
    )
    ledger = settings.simulation.ledger if settings.simulation else None
    if ledger:
        made.on_put = ledger_writer(Path(ledger))
    return made


def own_queue(node: NodeSettings) -> Queue:
    """The node's queue, for the agent that leases from it."""
    return queue(node, Durability(window_s=node.settings.queue.window_s))


def node_cell(node: NodeSettings) -> Cell:
    """The cell the node stands in."""
    section = node.settings.node
    return Cell.at(section.latitude, section.longitude, section.cell_level)


class Node:
    """A whole node: call `run`, and `stop` from another thread.

    Args:
        node: Its settings.
        own: Its queue; None opens the one that the settings name.
        mistakes: What is wrong in its settings, in safe mode.

    Attributes:
        supervision: Tells systemd how the node is.
    """

    def __init__(
        self,
        node: NodeSettings,
        own: Queue | None = None,
        mistakes: Sequence[str] = (),
    ) -> None:
        self._node = node
        self._mistakes = mistakes
        self._stop = threading.Event()
        self._pulse = Pulse(time.monotonic)
        self._level = LOWEST
        self._battery_v: float | None = None
        self._bench = bench(node)
        self._queue = own or own_queue(node)
        self._notices = self._make_notices()
        self._rollouts = rollouts(node, self._queue, self._remember)
        ear = _ear(node, self._notices, self._rollouts)
        self._uplink = _uplink(node, self._queue, ear, self._pulse)
        self._updater = self._make_updater()
        self._choice = Choice(
            self._uplink, candidates(node), self._stop, time.monotonic
        )
        pins = self._bench.pin_factory
        self._alarms = Alarms(node.settings.alarm, pins, time.monotonic)
        self._sensors = sensors(node, self._bench, self._hardware())
        self._sampler = self._make_sampler()
        machine = SystemClock()  # the schedule's, also where the slope's runs faster
        self._agent = Agent(
            self._sampler,
            self._sensors,
            _habits(node),
            self._bench.clock.speedup,
            self._pulse,
            steps=Steps(machine.wall_s, machine.mono_s),
        )
        self._pulse.watch("lgpio's thread", lambda: tells_of_edges(sys.modules))
        self.supervision = Supervision.of(
            os.environ, os.getpid(), self._pulse, self._status
        )

    def run(self) -> None:
        """Work until `stop`."""
        self._notices.on_change = self._on_notice
        self._on_notice()
        start_loop(self._pulse, "uplink", UPLINK_SILENCE_S, self._uplink.run)
        start_loop(self._pulse, "gateway choice", CHOICE_SILENCE_S, self._choice.run)
        start_loop(self._pulse, "gateway list", LIST_SILENCE_S, self._choice.look)
        start_loop(self._pulse, "slope", UPLINK_SILENCE_S, self._tick)
        start_loop(self._pulse, "alarms", ALARMS_SILENCE_S, self._watch_alarms)
        if self._updater is not None:
            start_loop(self._pulse, "updates", UPDATE_SILENCE_S, self._updater.run)
        self._agent.run()
        self._stop.set()
        self._uplink.stop()
        for sensor in self._sensors:
            sensor.close()
        self._alarms.close()
        self._queue.close()

    def stop(self) -> None:
        """End `run`."""
        self._agent.stop()

    def _status(self) -> str:
        """The line for systemd; the whole for `edge-agent status`."""
        parts = Parts(
            self._uplink,
            time.monotonic(),
            self._queue.stats(),
            self._queue.oldest_s(),
            self._sampler.problems,
            len(self._sensors),
            self._mistakes,
            self._alarms.words(),
            self._notices.words(self._bench.clock.wall_s()),
            self._notices.refused,
            self._update_words(),
        )
        machine = SystemClock()
        at_s, mono_s = machine.wall_s(), machine.mono_s()
        status = status_of(parts, self._level, self._pulse.late(), at_s, mono_s)
        runtime = os.environ.get("RUNTIME_DIRECTORY")  # systemd makes it
        if runtime is not None:
            _keep(status, Path(runtime))
        return status.line

    def _hardware(self) -> Hardware:
        return Hardware(
            self._bench.pin_factory,
            self._bench.sleep,
            self._queue.recall,
            self._on_event,
            self._bench.buses,
            self._bench.lines,
        )

    def _make_notices(self) -> Notices:
        said = self._queue.recall(NOTICES_STATE)
        opened = _opened(self._node.settings.notices.keys)
        return Notices(said, self._remember, opened=opened)

    def _make_sampler(self) -> Sampler:
        settings = self._node.settings
        criteria = settings.criteria.criteria()
        triage = Triage(self._node.sensors, settings.triage, criteria)
        remembered = self._queue.recall(TRIAGE_STATE)
        if remembered is not None:
            _restore(triage, remembered)
        site = Site(
            self._node.settings.node.id, node_cell(self._node), self._bench.clock
        )
        every_s = settings.sampling.report_s
        report = SelfReport(self._facts, every_s, time.monotonic)
        self._sampling = Sampler(
            self._sensors,
            triage,
            self._queue,
            site,
            self._on_put,
            self_report=report.due,
        )
        return self._sampling

    def _facts(self) -> Facts:
        stats, oldest_s = self._queue.stats(), self._queue.oldest_s()
        at, battery_v = self._uplink.endpoint, self._battery_v
        return Facts(stats, oldest_s, at, battery_v, self._update_words())

    def _make_updater(self) -> Updater | None:
        minute = _minute(self._node)
        beside = Beside(self._queue, self._uplink, self._pulse, minute, self._stop)
        return updater(self._node, self._rollouts, beside)

    def _update_words(self) -> str | None:
        return None if self._updater is None else self._updater.words()

    def _on_put(self, said: Assessment, readings: Sequence[Reading]) -> None:
        self._uplink.wake()
        power = self._node.settings.power
        volts = [r.value for r in readings if power and r.name == power.battery]
        battery_v = volts[-1] if volts and isinstance(volts[-1], float) else None
        self._battery_v = self._battery_v if battery_v is None else battery_v
        self._level = said.level
        self._agent.adapt(max(said.level, self._noticed_level()), battery_v)

    def _on_notice(self, withdrawn: bool = False) -> None:
        told = self._notices.criteria()
        self._sampling.take_criteria(told, withdrawn=withdrawn)
        self._agent.adapt(max(self._level, self._noticed_level()))

    def _noticed_level(self) -> int:
        return self._notices.level(self._bench.clock.wall_s())

    def _remember(self, values: Mapping[str, str]) -> None:
        try:
            self._queue.put([], values)
        except QueueFileError as error:
            log.warning("not remembered: %s", error)

    def _watch_alarms(self, beat: Beat) -> None:
        """Switch lamps and sounders, by one thread alone."""
        while not self._stop.wait(ALARMS_LOOK_S):
            beat()
            self._alarms.judge(self._level, self._noticed_level())

    def _on_event(self, name: str) -> None:
        self._agent.on_event(name)

    def _tick(self, beat: Beat) -> None:
        """Move the simulated slope; a real one moves by itself."""
        board, simulation = self._bench.board, self._node.settings.simulation
        if board is None or simulation is None:
            return
        if move(board, simulation, self._bench.clock, self._stop, beat):
            self._agent.rest()


def _keep(status: Status, folder: Path) -> None:
    try:
        save(status, folder)
    except OSError as error:  # no reason to end a node that works
        log.warning("edge-agent status is not renewed: %s", error)


def _restore(triage: Triage, remembered: str) -> None:
    try:
        triage.restore(remembered)
    except SnapshotError as error:
        log.warning("triage starts with dry soil: %s", error)


def _opened(keys: Sequence[str]) -> Opened | None:
    """Who may speak to the node; nobody where its keys cannot be read."""
    if not keys:
        return None
    try:
        return opener(keys)
    except FieldError as error:
        reason = NoticeError("notice", "checked with a key", "none", str(error))
        log.error("no notice counts: %s", error)  # noqa: TRY400

    def refuse(_topic: str, _payload: bytes) -> bytes:
        raise reason

    return refuse


def _habits(node: NodeSettings) -> Habits:
    fast_s, power = node.settings.sampling.fast_interval_s, node.settings.power
    if power is None:
        return Habits(fast_s)
    return Habits(fast_s, power.battery, power.low_v, power.well_v, power.stretch)


def sender(node: NodeSettings) -> Sender:
    """Who sends what the node says; by its name where brokers know it."""
    settings = node.settings
    id_, section = settings.node.id, settings.uplink
    by = id_ if settings.tls.name_us else None
    return section.sender(id_, is_relay=False, gather_s=section.gather_s, by=by)


def _minute(node: NodeSettings) -> Callable[[], int | None]:
    clock = bench_clock(node)

    def minute() -> int | None:
        """Local minute of the day, once the clock is set."""
        now = time.localtime(clock.wall_s())
        return now.tm_hour * 60 + now.tm_min if clock.is_synchronised() else None

    return minute


def _ear(node: NodeSettings, notices: Notices, rollouts: Rollouts | None) -> Ear:
    """What is said to us beside receipts."""
    topic = cell_topic(node_cell(node))
    filters = notice_filters(topic)
    if rollouts is None:
        return Ear(filters, notices.hear)
    others = rollout_filters(topic)

    def hear(incoming: Incoming) -> None:
        (rollouts if incoming.topic in others else notices).hear(incoming)

    return Ear((*filters, *others), hear)


def _uplink(node: NodeSettings, queue: Queue, ear: Ear, pulse: Pulse) -> Uplink:
    settings = node.settings
    section = settings.uplink
    return Uplink(
        queue,
        sender(node),
        lambda endpoint, session, handler: Connection(
            endpoint, session, handler, settings.tls, pulse=pulse
        ),
        section.throttle(_minute(node)),
        time.monotonic,
        ear=ear,
    )


def candidates(node: NodeSettings) -> FixedGateway | ManagedGateways:
    """Who knows the gateways for the node."""
    settings = node.settings
    if settings.uplink.gateway is not None:
        return FixedGateway(Endpoint.parse(settings.uplink.gateway))
    client_id = f"{settings.node.id}-asks"
    return ManagedGateways(
        [Endpoint.parse(url) for url in settings.uplink.managers],
        cell_topic(node_cell(node)),
        Path(settings.queue.path).with_name("gateways.json"),
        lambda manager, topic: fetch_retained(
            manager, topic, client_id, DIRECTORY_TIMEOUT_S, settings.tls
        ),
        settings.node.id,
    )


@dataclass(frozen=True)
class Bench:
    """A node's pins and buses: real ones, or a simulated slope.

    Attributes:
        pin_factory: gpiozero's way to the pins.
        buses: I2C, serial lines and the rest.
        clock: The node's clock.
        sleep: Waits between the samples of one reading.
        board: The simulated board, if it is one.
        lines: The kernel's events of pins, where it has the header's.
    """

    pin_factory: Any
    buses: Buses
    clock: Clock
    sleep: Callable[[float], object]
    board: Board | None = None
    lines: KernelLines | None = None


def bench(node: NodeSettings) -> Bench:
    """Real pins, or the slope of ``[simulation]``."""
    simulation = node.settings.simulation
    if simulation is None:
        factory = Device.pin_factory or Device._default_pin_factory()  # noqa: SLF001
        chip = header_chip()
        lines = chip and KernelLines(chip, os.environ, os.getpid(), time.monotonic_ns)
        return Bench(
            factory, LinuxBuses(), bench_clock(node), time.sleep, lines=lines or None
        )
    clock = bench_clock(node)
    board = make_board(simulation, node.sensors, clock.wall_s())
    return Bench(board.pin_factory, board.buses, clock, lambda _s: None, board)


def bench_clock(node: NodeSettings) -> Clock:
    """The machine's clock, or the simulated slope's."""
    simulation = node.settings.simulation
    if simulation is None:
        return SystemClock()
    return make_clock(simulation)


def sensors(
    node: NodeSettings, on: Bench, hardware: Hardware | None = None
) -> list[Sensor]:
    """A node's sensors on a bench, for a look at them."""
    parts = hardware or Hardware(
        on.pin_factory, on.sleep, buses=on.buses, lines=on.lines
    )
    opened = open_sensors(node.sensors, parts)
    if on.lines is not None:
        on.lines.forget_the_rest()
    return opened


MEMORY_BYTES = 10_000_000


def safe_node(safe: Safe) -> Node:
    """A node of what can be used, which tells what cannot.

    Raises:
        QueueFileError: Its queue cannot be opened.
    """
    for problem in safe.problems:
        log.error("safe mode: %s", problem)
    clock = bench_clock(safe.node)
    cell = node_cell(safe.node)
    queue = own_queue(safe.node) if safe.has_queue else _memory(safe)

    def put() -> None:
        pack = report(safe, clock.wall_s(), clock.is_synchronised())
        try:
            queue.put([draft_of(pack, cell)])
        except (QueueFullError, QueueFileError) as error:
            log.warning("safe mode is not reported: %s", error)

    rest = threading.Event().wait
    threading.Thread(
        target=tell, args=(put, rest), name="safe mode", daemon=True
    ).start()
    return Node(safe.node, queue, safe.problems)


def _memory(safe: Safe) -> Queue:
    log.error("safe mode: [queue] is wrong, so that its file is left alone")
    id_ = safe.node.settings.node.id
    return MemoryQueue(id_, secrets.token_hex(4), MEMORY_BYTES)

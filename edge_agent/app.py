"""Composition of a node: the only module that names clocks, files, pins and randomness.

The simulator is imported only for a node with ``[simulation]``.
"""

import logging
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpiozero import Device

from edge_agent.alarm_outputs import AlarmOutputs
from edge_agent.clock import SET_CLOCK_STATE, Clock, SystemClock
from edge_agent.config import NodeSettings
from edge_agent.coordinator import Coordinator, MoveSlope, NodeParts
from edge_agent.notices import (
    NOTICES_STATE,
    Drills,
    Notices,
    make_notice_verifier,
    make_state_writer,
    make_verifier,
    restored_time,
)
from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    Durability,
    Queue,
    QueueFileError,
    QueueFullError,
)
from edge_agent.queue.file_lifecycle import ledger_writer
from edge_agent.queue.memory import SPARE_BYTES, MemoryQueue, open_or_spare
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import RESERVE_BYTES
from edge_agent.safe_mode import RecoveredSettings, make_report, report_periodically
from edge_agent.sampler import TRIAGE_STATE, NodeIdentity, Sampler, make_draft
from edge_agent.sampling_loop import ClockStepDetector, SamplingLoop, SamplingPolicy
from edge_agent.sensors.base import Hardware, Sensor
from edge_agent.sensors.buses import Buses
from edge_agent.sensors.linux import (
    KernelLines,
    LinuxBuses,
    find_header_chip,
    is_edge_thread_alive,
)
from edge_agent.sensors.registry import open_sensors
from edge_agent.status import HealthReporter
from edge_agent.triage.engine import SnapshotError, Triage
from edge_agent.updates import (
    ROLLOUTS_STATE,
    DownloadTransport,
    FileDownload,
    ImageInfo,
    Rollouts,
    Updater,
    has_backlog,
)
from edge_agent.uplink.gateway_selection import (
    FixedGateway,
    GatewaySelector,
    ManagedGateways,
)
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import ExtraSubscriptions, Uplink
from service_runtime.errors import FieldError, YamamoriError
from service_runtime.lifecycle import SystemdSupervisor
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog
from slope_science.levels import LOWEST
from spatial_mqtt.cells import Cell
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.connection import Connection
from spatial_mqtt.priority import LADDER
from spatial_mqtt.shared_connection import ConnectionPool
from spatial_mqtt.topics import (
    cell_topic,
    drill_filters,
    notice_filters,
    rollout_filters,
)
from spatial_mqtt.transport import IncomingMessage, Session

if TYPE_CHECKING:
    from edge_agent.simulator.board import Board

log = logging.getLogger(__name__)

KERNEL_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UPDATE_BUSY_S = 5.0
"""Pause of a download while messages wait."""

SAFE_QUEUE_BYTES = 10_000_000
HELD_BYTES = RESERVE_BYTES // 4
"""Messages in memory while the disk fails; a full disk's reserve takes them later.

Its other half is for the log."""


class SimulationError(YamamoriError):
    """The simulated slope of ``[simulation]`` cannot be made."""


def open_queue(
    node: NodeSettings,
    durability: Durability = COMMIT_EVERY_PUT,
    spare: Path | None = None,
) -> SqliteQueue:
    """The node's queue.

    Args:
        node: The node's settings.
        durability: Only the agent itself, which leases, may open a window.
        spare: Its file in memory; None for the file on the disk.

    Raises:
        QueueError: It cannot be opened.
    """
    settings = node.settings
    budget = settings.queue.budget()
    if spare is not None:
        budget = replace(budget, max_bytes=min(budget.max_bytes, SPARE_BYTES))
    boot_id = KERNEL_BOOT_ID.read_text().strip()
    made = SqliteQueue(
        spare or settings.queue.path,
        settings.node.id,
        boot_id,
        budget,
        durability=durability,
        expiry=settings.queue.expiry_policy(SystemClock().mono_s),
    )
    ledger = settings.simulation.ledger if settings.simulation else None
    if ledger:
        made.on_put = ledger_writer(Path(ledger))
    return made


def find_node_cell(node: NodeSettings) -> Cell:
    """The S2 cell of the node's position, at the level of its topic."""
    section = node.settings.node
    return Cell.at(section.latitude, section.longitude, section.cell_level)


def make_node_clock(node: NodeSettings) -> Clock:
    """The machine's clock, or that of the simulated slope."""
    simulation = node.settings.simulation
    if simulation is None:
        return SystemClock()
    from edge_agent.simulator.board import make_clock  # noqa: PLC0415 - only for a simulation

    return make_clock(simulation)


@dataclass(frozen=True)
class HardwareBackend:
    """A node's pins, buses and clock: real ones, or a simulated slope.

    Attributes:
        pin_factory: gpiozero's access to the pins.
        buses: I2C, serial lines and the others.
        clock: The node's clock.
        sleep: Waits between the samples of one reading.
        lines: The kernel's edge events, where the header's pins give them.
        board: The simulated board; None for a real one.
        move_slope: Moves the simulated slope with the clock; None for a real one.
    """

    pin_factory: Any
    buses: Buses
    clock: Clock
    sleep: Callable[[float], object]
    lines: KernelLines | None = None
    board: "Board | None" = None
    move_slope: MoveSlope | None = None


def open_hardware(node: NodeSettings) -> HardwareBackend:
    """Open the real pins, or the slope of ``[simulation]``.

    Raises:
        gpiozero.exc.BadPinFactory: The machine has no pins.
        SimulationError: The simulated slope cannot be made.
    """
    if node.settings.simulation is not None:
        return _simulated_hardware(node)
    factory = Device.pin_factory or Device._default_pin_factory()  # noqa: SLF001
    chip = find_header_chip()
    lines = chip and KernelLines(chip, os.environ, os.getpid(), time.monotonic_ns)
    return HardwareBackend(
        factory, LinuxBuses(), SystemClock(), time.sleep, lines or None
    )


def _simulated_hardware(node: NodeSettings) -> HardwareBackend:
    # A node with real pins never imports the simulator.
    from edge_agent.simulator import board as simulator  # noqa: PLC0415
    from edge_agent.simulator.slope import RainFileError  # noqa: PLC0415

    simulation, clock = node.settings.simulation, make_node_clock(node)
    if simulation is None:
        raise AssertionError("a simulated bench needs [simulation]")
    try:
        board = simulator.make_board(simulation, node.sensors, clock.wall_s())
    except RainFileError as error:
        raise SimulationError(str(error)) from error
    return HardwareBackend(
        board.pin_factory,
        board.buses,
        clock,
        lambda _s: None,
        board=board,
        move_slope=lambda stop, beat: simulator.run_slope(
            board, simulation, clock, stop, beat
        ),
    )


def open_node_sensors(
    node: NodeSettings, backend: HardwareBackend, hardware: Hardware | None = None
) -> list[Sensor]:
    """Open a node's sensors.

    Args:
        node: The node's settings.
        backend: The pins and buses.
        hardware: The same for the drivers; None for a check, without state or events.
    """
    given = hardware or Hardware(
        backend.pin_factory,
        backend.sleep,
        buses=backend.buses,
        edge_lines=backend.lines,
    )
    opened = open_sensors(node.sensors, given)
    if backend.lines is not None:
        backend.lines.release_unclaimed()
    return opened


def make_gateway_source(node: NodeSettings) -> FixedGateway | ManagedGateways:
    """The source of gateways for the node: one from the settings, or the Managers."""
    settings = node.settings
    if settings.uplink.gateway is not None:
        return FixedGateway(Endpoint.parse(settings.uplink.gateway))
    client_id = f"{settings.node.id}-asks"
    return ManagedGateways(
        [Endpoint.parse(url) for url in settings.uplink.managers],
        cell_topic(find_node_cell(node)),
        Path(settings.queue.path).with_name("gateways.json"),
        lambda broker, topic, timeout_s: fetch_retained(
            broker, topic, client_id, timeout_s, settings.tls
        ),
        settings.node.id,
    )


def make_sender(node: NodeSettings) -> SenderProfile:
    """Profile of the node as a sender, with its id in topics where brokers check it."""
    settings = node.settings
    id_, section = settings.node.id, settings.uplink
    by = id_ if settings.tls.has_certificate else None
    profile = section.sender_profile(
        id_, is_relay=False, gather_s=section.gather_s, publisher_id=by
    )
    held_bytes = min(profile.limits.held_bytes, settings.queue.max_bytes // 10)
    return replace(profile, limits=replace(profile.limits, held_bytes=held_bytes))


@dataclass(frozen=True)
class _Shared:
    """Objects that several parts of a node share.

    Attributes:
        node: The node's settings.
        queue: Its queue.
        pulse: Watches its loops.
        stop: Ends its loops.
        minute: Local minute of the day; None while the clock is not set.
    """

    node: NodeSettings
    queue: Queue
    pulse: LoopWatchdog
    stop: threading.Event
    minute: Callable[[], int | None]


def build_node(
    node: NodeSettings, opened_queue: Queue | None = None, mistakes: Sequence[str] = ()
) -> tuple[Coordinator, SystemdSupervisor]:
    """Build a node.

    Args:
        node: Its settings.
        opened_queue: Its queue; None opens the queue that the settings name.
        mistakes: Mistakes in its settings, in safe mode.

    Returns:
        The node, and what reports its state to systemd.

    Raises:
        QueueError: The queue cannot be opened.
        gpiozero.exc.BadPinFactory: The machine has no pins.
        SimulationError: The simulated slope cannot be made.
    """
    backend = open_hardware(node)
    node_queue = opened_queue or _leased_queue(node)
    pulse, stop = LoopWatchdog(time.monotonic), threading.Event()
    shared = _Shared(node, node_queue, pulse, stop, _local_minute(node, backend.clock))
    parts = _parts(shared, backend)
    power, runtime = node.settings.power, os.environ.get("RUNTIME_DIRECTORY")
    coordinator = Coordinator(
        parts,
        pulse,
        stop,
        battery=None if power is None else power.battery,
        mistakes=mistakes,
        status_folder=None if runtime is None else Path(runtime),
    )
    parts.notices.on_change = coordinator.on_notice
    parts.sampler.on_assessed = coordinator.on_assessed
    parts.sampler.on_put = parts.uplink.wake
    report_s = node.settings.sampling.report_s
    parts.sampler.health_readings = HealthReporter(
        coordinator.health_snapshot, report_s, time.monotonic
    ).due_readings
    pulse.watch_thread("lgpio's thread", lambda: is_edge_thread_alive(sys.modules))
    status = coordinator.update_status
    return coordinator, SystemdSupervisor.from_environment(
        os.environ, os.getpid(), pulse, status
    )


def build_safe_node(safe: RecoveredSettings) -> tuple[Coordinator, SystemdSupervisor]:
    """Build a node in safe mode, and start to report the mistakes periodically.

    Raises:
        QueueError: Its queue cannot be opened.
    """
    for problem in safe.problems:
        log.error("safe mode: %s", problem)
    clock, cell = make_node_clock(safe.node), find_node_cell(safe.node)
    node_queue = (
        _leased_queue(safe.node) if safe.has_queue else _memory_queue(safe.node)
    )

    def put() -> None:
        pack = make_report(safe, clock.wall_s(), clock.is_synchronised())
        try:
            node_queue.put([make_draft(pack, cell)])
        except (QueueFullError, QueueFileError) as error:
            log.warning("safe mode is not reported: %s", error)

    wait = threading.Event().wait
    threading.Thread(
        target=report_periodically, args=(put, wait), name="safe mode", daemon=True
    ).start()
    return build_node(safe.node, node_queue, safe.problems)


def _parts(shared: _Shared, backend: HardwareBackend) -> NodeParts:
    node, machine = shared.node, SystemClock()
    notices, rollouts = _notices(shared, backend.clock), _rollouts(shared)
    verify = make_notice_verifier(node.settings.notices.keys)
    drills = Drills(backend.clock.wall_s, verify)
    links = _connections(shared)
    uplink = _uplink(shared, _subscriptions(node, notices, drills, rollouts), links)
    updater = None if rollouts is None else _updater(shared, rollouts, uplink, links)
    alarms = AlarmOutputs(node.settings.alarm, backend.pin_factory, time.monotonic)

    def on_event(name: str) -> None:
        sampling.on_event(name)

    opened = open_node_sensors(
        node, backend, _hardware(backend, shared.queue.get_state, on_event)
    )
    site = NodeIdentity(node.settings.node.id, find_node_cell(node), backend.clock)
    sampler = Sampler(opened, _triage(shared), shared.queue, site)
    sampling = SamplingLoop(
        sampler,
        opened,
        _sampling_policy(node),
        backend.clock.speedup,
        shared.pulse,
        clock_steps=ClockStepDetector(machine.wall_s, machine.mono_s),
    )
    return NodeParts(
        shared.queue,
        uplink,
        GatewaySelector(uplink, make_gateway_source(node), shared.stop, time.monotonic),
        notices,
        drills,
        updater,
        alarms,
        opened,
        sampler,
        sampling,
        backend.clock,
        machine,
        backend.move_slope,
    )


def _hardware(
    backend: HardwareBackend,
    recall: Callable[[str], str | None],
    on_event: Callable[[str], None],
) -> Hardware:
    pins, sleep = backend.pin_factory, backend.sleep
    return Hardware(pins, sleep, recall, on_event, backend.buses, backend.lines)


def _leased_queue(node: NodeSettings) -> Queue:
    section = node.settings.queue
    durability = Durability(window_s=section.window_s, held_bytes=HELD_BYTES)
    memory = os.environ.get("RUNTIME_DIRECTORY", "/dev/shm")  # noqa: S108
    return open_or_spare(
        lambda spare: open_queue(node, durability, spare),
        Path(section.path),
        Path(memory, f"queue-{node.settings.node.id}"),
        find_state_folder(),
    )


def find_state_folder() -> Path | None:
    """The state folder of the service; None for a program that is run by hand."""
    state = os.environ.get("STATE_DIRECTORY")
    return Path(state) if state else None


def _memory_queue(node: NodeSettings) -> Queue:
    log.error("safe mode: [queue] is wrong; its file is not opened")
    return MemoryQueue(node.settings.node.id, secrets.token_hex(4), SAFE_QUEUE_BYTES)


def _local_minute(node: NodeSettings, clock: Clock) -> Callable[[], int | None]:
    def minute() -> int | None:
        minute = node.settings.uplink.local_minute(clock.wall_s())
        return minute if clock.is_synchronised() else None

    return minute


def _sampling_policy(node: NodeSettings) -> SamplingPolicy:
    fast_s, power = node.settings.sampling.fast_interval_s, node.settings.power
    if power is None:
        return SamplingPolicy(fast_s)
    return SamplingPolicy(
        fast_s, power.battery, power.low_v, power.well_v, power.stretch
    )


def _triage(shared: _Shared) -> Triage:
    settings = shared.node.settings
    triage = Triage(shared.node.sensors, settings.triage, settings.criteria.criteria())
    state = shared.queue.get_state(TRIAGE_STATE)
    if state is not None:
        try:
            triage.restore(state)
        except SnapshotError as error:
            log.warning("triage starts with dry soil: %s", error)
    return triage


def _notices(shared: _Shared, clock: Clock) -> Notices:
    section = shared.node.settings.notices
    notices = Notices(
        shared.queue.get_state(NOTICES_STATE),
        make_state_writer(shared.queue),
        verify=make_notice_verifier(section.keys),
        unknown_s=section.unknown_s,
        clock=clock,
    )
    notices.passed_s = restored_time(shared.queue.get_state(SET_CLOCK_STATE))
    return notices


def _rollouts(shared: _Shared) -> Rollouts | None:
    """The rollouts; None if the node takes updates only from its card."""
    keys = shared.node.settings.update.keys
    if not keys:
        return None
    try:
        verify = make_verifier(keys)
    except FieldError as error:
        log.error("no rollout counts: update.%s", error)  # noqa: TRY400
        return None
    state = shared.queue.get_state(ROLLOUTS_STATE)
    id_ = shared.node.settings.node.id
    return Rollouts(id_, verify, state, make_state_writer(shared.queue))


def _subscriptions(
    node: NodeSettings, notices: Notices, drills: Drills, rollouts: Rollouts | None
) -> ExtraSubscriptions:
    """Subscriptions of the uplink beside receipts."""
    topic = cell_topic(find_node_cell(node))
    handlers = dict.fromkeys(notice_filters(topic), notices.on_message)
    handlers |= dict.fromkeys(drill_filters(topic), drills.on_message)
    if rollouts is not None:
        handlers |= dict.fromkeys(rollout_filters(topic), rollouts.on_message)

    def on_message(incoming: IncomingMessage) -> None:
        handlers.get(incoming.topic, notices.on_message)(incoming)

    return ExtraSubscriptions(tuple(handlers), on_message)


def _connections(shared: _Shared) -> ConnectionPool:
    """Connections for messages and for updates, which share one MQTT session.

    A second connection with the same client id would end the first.
    """
    tls, sender = shared.node.settings.tls, make_sender(shared.node)
    return ConnectionPool(
        Session(sender.id, keepalive_s=sender.keepalive_s),
        lambda endpoint, session, handler: Connection(
            endpoint, session, handler, tls, watchdog=shared.pulse
        ),
        time.monotonic,
    )


def _uplink(
    shared: _Shared, ear: ExtraSubscriptions, connections: ConnectionPool
) -> Uplink:
    settings = shared.node.settings
    return Uplink(
        shared.queue,
        make_sender(shared.node),
        connections.connect,
        settings.uplink.rate_limiter(shared.minute),
        time.monotonic,
        extra=ear,
    )


def _updater(
    shared: _Shared, rollouts: Rollouts, uplink: Uplink, connections: ConnectionPool
) -> Updater:
    settings = shared.node.settings
    throttle = _update_throttle(shared)

    def fetch(sha256: str) -> FileDownload | None:
        endpoint = uplink.endpoint
        if endpoint is None or uplink.unserved_since_s is not None:
            return None
        return FileDownload(
            settings.node.id,
            sha256,
            partial(connections.connect, endpoint),
            time.monotonic,
        )

    def wait_s() -> float:
        if uplink.unserved_since_s is not None:
            return math.inf
        if has_backlog(shared.queue, settings.uplink.gather_s):
            return UPDATE_BUSY_S
        return throttle.wait_s(LOWEST, time.monotonic())

    way = DownloadTransport(
        fetch, wait_s, lambda size: throttle.spend(size, time.monotonic())
    )
    folder = Path(settings.queue.path).with_name("update")
    image = ImageInfo(Path(os.environ.get("YAMAMORI_ROOT", "/")))
    return Updater(rollouts, image, folder, way, stop=shared.stop, clock=time.monotonic)


def _update_throttle(shared: _Shared) -> RateLimiter:
    """The rate and timetable of updates: those of the link, unless set for updates."""
    own, link = shared.node.settings.update, shared.node.settings.uplink
    section = replace(
        link,
        rate_bytes_per_s=own.rate_bytes_per_s or link.rate_bytes_per_s,
        period=own.period or link.period,
        override_from=LADDER.top + 1,
    )
    return section.rate_limiter(shared.minute)

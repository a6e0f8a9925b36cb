"""Autoscaler: load reports in; splits and joins of areas planned and executed.

`Autoscaler` decides without I/O, `AutoscaleExecutor` runs commands and logs. Only the
first reachable Manager decides. The others receive the same reports and can take over,
because the result of each decision is in the registry.
"""

import logging
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from gateway_daemon.manager.registry import WHOLE_WORLD, Registry
from gateway_daemon.manager.registry_changes import add_broker, remove_broker
from gateway_daemon.manager.replication import RecordKey
from gateway_daemon.manager.scaling_policy import (
    AreaLoad,
    ScalingDecision,
    ScalingLimits,
    ScalingPlanner,
    ScalingSituation,
    ServerKind,
)
from gateway_daemon.manager.server_probes import BrokerRateMonitor
from service_runtime.errors import FieldError
from service_runtime.tls import Endpoint
from spatial_mqtt.directory import (
    AreaSetting,
    BrokerEntry,
    BrokerInfo,
    LoadReport,
    decode_directory_message,
    decode_load_report,
    find_responsible_broker,
)
from spatial_mqtt.topics import covers

AutoscaleMode = Literal["off", "dry-run", "on"]

LOAD_STALE_S = 45.0
"""Load reports older than this are ignored: three of the gateway are missing."""

MAX_DECISIONS = 50
"""Decisions that are kept for administrators."""

SERVER_KINDS: tuple[ServerKind, ...] = ("broker", "gateway")


@dataclass(frozen=True)
class AutoscaleSettings:
    """Settings of an autoscaler.

    Attributes:
        standby: Servers that may be given an area.
        start_command: Starts one more server; the kind and the area are appended, and
            its last line of output is the URL. Empty: no server can be started.
        max_started: How many servers that it started may run at once.
        stop_command: Stops a started server; the kind and the URL are appended.
    """

    mode: AutoscaleMode = "off"
    limits: ScalingLimits = field(default_factory=ScalingLimits)
    standby: Mapping[ServerKind, tuple[BrokerInfo, ...]] = field(default_factory=dict)
    start_command: tuple[str, ...] = ()
    max_started: int = 4
    stop_command: tuple[str, ...] = ()


class AreaReport(msgspec.Struct, frozen=True):
    """Load of one area, for administrators."""

    part: ServerKind
    area: str
    who: BrokerInfo
    per_s: float
    peak_per_s: float
    age_s: float
    cpu: float
    heat: float
    is_spare: bool


class DecisionReport(msgspec.Struct, frozen=True):
    """One decision, for administrators."""

    at_ms: int
    text: str
    area: str
    is_dry_run: bool


class AutoscaleReport(msgspec.Struct, frozen=True):
    """Output of `gateway-daemon admin load`."""

    manager: str
    mode: AutoscaleMode
    areas: tuple[AreaReport, ...] = ()
    decisions: tuple[DecisionReport, ...] = ()


class Autoscaler:
    """Decides for one registry.

    Args:
        settings: Settings.
        manager_id: Id of the Manager.

    Attributes:
        is_starting: Whether the command that starts a server runs.
        stopping: Servers for which the command that stops them runs.
        unreachable: Brokers that the Manager does not reach.
    """

    def __init__(self, settings: AutoscaleSettings, manager_id: str = "") -> None:
        self.settings = settings
        self._manager_id = manager_id
        self._planner = ScalingPlanner(settings.limits)
        self._loads: dict[BrokerInfo, tuple[float, LoadReport]] = {}
        self._decisions: deque[DecisionReport] = deque(maxlen=MAX_DECISIONS)
        self.is_starting = False
        self.stopping: set[BrokerInfo] = set()
        self.unreachable: frozenset[BrokerInfo] = frozenset()

    def record_load(self, load: LoadReport, now_s: float) -> None:
        """Record a gateway's load report."""
        self._loads[load.gateway] = (now_s, load)

    def restore(self, report: AutoscaleReport) -> None:
        """Restore decisions and peaks of another Manager or of an earlier run."""
        if report.manager != self._manager_id or not self._decisions:
            self._decisions.clear()
            self._decisions.extend(report.decisions)
        for area in report.areas:
            server = AreaLoad(area.part, area.area, area.who)
            self._planner.restore_peak(server, area.peak_per_s)

    def decide(
        self,
        registry: Registry,
        rates: Mapping[BrokerInfo, float],
        now_s: float,
        now_ms: int,
    ) -> ScalingDecision | None:
        """Return the next decision; in a dry run the caller must not execute it.

        Args:
            registry: Areas and brokers.
            rates: Messages per second as counted by the brokers themselves.
            now_s: Monotonic.
            now_ms: Wall clock, for the report.
        """
        if self.settings.mode == "off":
            return None
        situation = self.current_situation(registry, rates, now_s)
        decision = self._planner.decide(situation, now_s)
        if decision is not None:
            is_dry_run = self.settings.mode == "dry-run"
            entry = DecisionReport(now_ms, str(decision), decision.area, is_dry_run)
            self._decisions.append(entry)
        return decision

    def make_report(
        self, registry: Registry, rates: Mapping[BrokerInfo, float], now_s: float
    ) -> AutoscaleReport:
        """Return loads and decisions for administrators."""
        areas = tuple(
            AreaReport(
                s.kind,
                s.area,
                s.server,
                round(s.per_s, 3),
                round(self._planner.peak_per_s(s), 3),
                s.age_s,
                s.cpu,
                round(self._planner.heat(s)[0], 3),
                s.is_spare,
            )
            for s in self.current_situation(registry, rates, now_s).areas
        )
        return AutoscaleReport(
            registry.manager_id, self.settings.mode, areas, tuple(self._decisions)
        )

    def standby_brokers(self, registry: Registry) -> set[BrokerInfo]:
        """Brokers that may get an area."""
        return {*self.settings.standby.get("broker", ()), *_started(registry)["broker"]}

    def current_situation(
        self, registry: Registry, rates: Mapping[BrokerInfo, float], now_s: float
    ) -> ScalingSituation:
        """Return all areas and their loads, and the free servers."""
        loads = [
            load for at_s, load in self._loads.values() if now_s - at_s < LOAD_STALE_S
        ]
        started = _started(registry)
        pool = {
            part: (*self.settings.standby.get(part, ()), *sorted(started[part]))
            for part in SERVER_KINDS
        }
        brokers = [
            replace(each, is_reachable=each.server not in self.unreachable)
            for each in _broker_servers(registry, loads, rates, pool["broker"])
        ]
        gateways = _gateway_servers(registry, loads, pool["gateway"])
        used = {server.server for server in (*brokers, *gateways)}
        here = {entry.broker_info for entry in registry.gateways}
        taken = used | self.stopping
        can_stop = bool(self.settings.stop_command)
        free = {
            "broker": tuple(w for w in pool["broker"] if w not in taken),
            "gateway": tuple(w for w in pool["gateway"] if w in here - taken),
        }
        return ScalingSituation(
            (*brokers, *gateways),
            {part: free[part] for part in SERVER_KINDS},
            started["broker"] | started["gateway"] if can_stop else frozenset(),
            self._may_start(started, used),
            self.unreachable,
        )

    def _may_start(
        self, started: Mapping[ServerKind, frozenset[BrokerInfo]], used: set[BrokerInfo]
    ) -> frozenset[ServerKind]:
        """Return the kinds of which a server may be started.

        One at a time, and none while the last one is unused, since it may be broken.
        """
        count = sum(len(each) for each in started.values())
        is_at_limit = count >= self.settings.max_started
        if self.is_starting or is_at_limit or not self.settings.start_command:
            return frozenset()
        return frozenset(part for part in SERVER_KINDS if started[part] <= used)


def decode_autoscale_report(payload: bytes) -> AutoscaleReport:
    """Decode an `AutoscaleReport`.

    Raises:
        DirectoryError: It does not parse.
    """
    return decode_directory_message(payload, AutoscaleReport, "load report")


def apply_decision(
    registry: Registry, decision: ScalingDecision, now_ms: int
) -> Registry:
    """Return the registry after a decision that changes it.

    Raises:
        DirectoryError: The decision is no longer possible.
    """
    server = decision.server
    if server is None or decision.action not in {"split", "join"}:
        return registry
    if decision.kind == "broker":
        entry = BrokerEntry(decision.area, server)
        if decision.action == "split":
            return add_broker(registry, entry, now_ms)
        return remove_broker(registry, entry, now_ms)
    area = decision.area if decision.action == "split" else WHOLE_WORLD
    return registry.with_areas(AreaSetting(server, topics=(area,)), now_ms)


def spare_key(kind: ServerKind, server: BrokerInfo) -> RecordKey:
    """Return the key of the record of a server that our command started."""
    return RecordKey("spare", f"{kind} {server}")


def _started(registry: Registry) -> dict[ServerKind, frozenset[BrokerInfo]]:
    return {
        part: frozenset(
            record.value
            for key, record in registry.records.items()
            if key.kind == "spare" and key.name.startswith(f"{part} ")
            if isinstance(record.value, BrokerInfo)
        )
        for part in SERVER_KINDS
    }


def _broker_servers(
    registry: Registry,
    loads: list[LoadReport],
    rates: Mapping[BrokerInfo, float],
    pool: tuple[BrokerInfo, ...],
) -> list[AreaLoad]:
    cells: dict[BrokerEntry, dict[str, float]] = {
        entry: {} for entry in registry.brokers
    }
    for topic, rate in ((t, r) for load in loads for t, r in load.cells):
        holder = find_responsible_broker(registry.brokers, topic)
        around = [e for e in registry.brokers if covers(e.topic, topic)]
        if holder is not None:
            entry = max(around, key=lambda e: len(e.topic))
            cells[entry][topic] = cells[entry].get(topic, 0.0) + rate
    ages: dict[BrokerInfo, float] = {}
    for lane in (lane for load in loads for lane in load.lanes):
        ages[lane.broker] = max(lane.age_s, ages.get(lane.broker, 0.0))
    return [
        AreaLoad(
            "broker",
            entry.topic,
            entry.broker_info,
            per_s=max(sum(rate_of.values()), rates.get(entry.broker_info, 0.0)),
            age_s=ages.get(entry.broker_info, 0.0),
            cells=rate_of,
            is_spare=entry.broker_info in pool,
        )
        for entry, rate_of in cells.items()
    ]


def _gateway_servers(
    registry: Registry, loads: list[LoadReport], pool: tuple[BrokerInfo, ...]
) -> list[AreaLoad]:
    by_gateway = {load.gateway: load for load in loads}
    servers = []
    for entry in registry.gateways:
        is_spare = entry.broker_info in pool
        load = by_gateway.get(entry.broker_info)
        if load is None or (is_spare and entry.topic == WHOLE_WORLD):
            continue
        cells = {t: r for t, r in load.cells if covers(entry.topic, t)}
        servers.append(
            AreaLoad(
                "gateway",
                entry.topic,
                entry.broker_info,
                per_s=sum(cells.values()),
                cpu=load.cpu,
                cells=cells,
                is_spare=is_spare,
            )
        )
    return servers


log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 5.0

COMMAND_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class CommandResult:
    """Result of a command.

    Attributes:
        decision: What it was run for.
        output: The last line of its output.
        failure: Why it failed; None if it succeeded.
    """

    decision: ScalingDecision
    output: str
    failure: str | None = None


def run_command_in_thread(
    command: Sequence[str],
    decision: ScalingDecision,
    on_result: Callable[[CommandResult], object],
) -> None:
    """Run a command in a thread of its own.

    Args:
        command: Program and arguments; no shell is involved.
        decision: What it is run for.
        on_result: Called with the result, in that thread.
    """
    threading.Thread(
        target=lambda: on_result(_run(command, decision)), name="command", daemon=True
    ).start()


def _run(command: Sequence[str], decision: ScalingDecision) -> CommandResult:
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own, from the settings
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return CommandResult(decision, "", str(error))
    output = (done.stdout.splitlines() or [""])[-1].strip()
    if done.returncode != 0:
        last = (done.stderr.splitlines() or [""])[-1]
        return CommandResult(decision, output, f"status {done.returncode}: {last}")
    return CommandResult(decision, output)


RunCommand = Callable[
    [Sequence[str], ScalingDecision, Callable[[CommandResult], object]], object
]


class AutoscaleExecutor:
    """Executes the decisions of one Manager's autoscaler.

    Args:
        autoscaler: Decides.
        rates: Message rates as counted by the brokers.
        run: Runs a command and calls a function with its result.

    Attributes:
        last_report: The newest report, ours or another Manager's.
    """

    def __init__(
        self, autoscaler: Autoscaler, rates: BrokerRateMonitor, run: RunCommand
    ) -> None:
        self._autoscaler = autoscaler
        self._rates = rates
        self._run = run
        self._reported_s = -REPORT_INTERVAL_S
        self.last_report: AutoscaleReport | None = None
        self._on_result: Callable[[CommandResult], object] = lambda _: None

    def start(self, on_result: Callable[[CommandResult], object]) -> None:
        """Set the function that receives results of commands, in another thread."""
        self._on_result = on_result

    def stop(self) -> None:
        """Disconnect from the brokers."""
        self._rates.stop()

    def on_load_report(self, payload: bytes, now_s: float) -> None:
        """Record a gateway's load report.

        Raises:
            DirectoryError: It does not parse.
        """
        self._autoscaler.record_load(decode_load_report(payload), now_s)

    def on_autoscale_report(self, payload: bytes) -> None:
        """Adopt the report of another Manager, or of an earlier run of this one.

        Raises:
            DirectoryError: It does not parse.
        """
        self.last_report = decode_autoscale_report(payload)
        self._autoscaler.restore(self.last_report)

    def run_once(self, registry: Registry, now_s: float, now_ms: int) -> Registry:
        """Decide once, and return the new registry.

        Raises:
            DirectoryError: The decision is no longer possible.
        """
        standby = self._autoscaler.standby_brokers(registry)
        table = {entry.broker_info for entry in registry.brokers}
        self._rates.set_brokers(table | standby)
        self._autoscaler.unreachable = self._rates.unreachable()
        decision = self._autoscaler.decide(
            registry, self._rates.rates_per_s(), now_s, now_ms
        )
        if decision is None:
            return registry
        self._reported_s = now_s - REPORT_INTERVAL_S
        if self._autoscaler.settings.mode == "dry-run":
            log.warning("autoscale would %s", decision)
            return registry
        log.warning("autoscale: %s", decision)
        scaling = self._autoscaler.settings
        if decision.action == "start":
            self._autoscaler.is_starting = True
            command = (*scaling.start_command, decision.kind, decision.area)
            self._run(command, decision, self._on_result)
        if decision.action == "stop" and decision.server is not None:
            self._autoscaler.stopping.add(decision.server)
            command = (
                *scaling.stop_command,
                decision.kind,
                f"mqtt://{decision.server}",
            )
            self._run(command, decision, self._on_result)
        return apply_decision(registry, decision, now_ms)

    def on_command_result(
        self, result: CommandResult, registry: Registry, now_ms: int
    ) -> Registry:
        """Return the registry with the server that a command started, or without it.

        Raises:
            FieldError: The command failed, or its output is not a URL.
        """
        decision = result.decision
        if decision.action == "start":
            self._autoscaler.is_starting = False
        if decision.server is not None:
            self._autoscaler.stopping.discard(decision.server)
        if result.failure is not None:
            rule = f"a command that succeeds ({result.failure})"
            raise FieldError(
                f"autoscale.{decision.action}_command", rule, result.output
            )
        if decision.action == "stop" and decision.server is not None:
            key = spare_key(decision.kind, decision.server)
            return registry.with_value(key.kind, key.name, None, now_ms)
        endpoint = Endpoint.parse(result.output)
        server = BrokerInfo(endpoint.host, endpoint.port)
        log.warning("autoscale: %s %s was started", decision.kind, server)
        key = spare_key(decision.kind, server)
        return registry.with_value(key.kind, key.name, server, now_ms)

    def report_if_due(self, registry: Registry, now_s: float) -> bytes | None:
        """Return the encoded report; None before the next one is due."""
        if now_s - self._reported_s < REPORT_INTERVAL_S:
            return None
        self._reported_s = now_s
        report = self._autoscaler.make_report(
            registry, self._rates.rates_per_s(), now_s
        )
        return msgspec.json.encode(report)

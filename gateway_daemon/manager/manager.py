"""Manager process: receives API messages, keeps the registry, and publishes it.

Each Manager has a broker of its own. It retains its records there and subscribes at the
brokers of the other Managers, so all of them converge, also after a partition or a
restart. If a Manager's process ends while its broker is up, the first of the remaining
Managers serves that broker too, for clients that have no other address.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty

from gateway_daemon.manager import storage
from gateway_daemon.manager.autoscaler import (
    AutoscaleExecutor,
    AutoscaleReport,
    CommandResult,
)
from gateway_daemon.manager.brokers import (
    PEERS_WAIT_S,
    BrokerConnectors,
    BrokerDown,
    BrokerEvent,
    BrokerMessage,
    BrokerSession,
    BrokerUp,
    Connect,
    DirectoryPublisher,
    EventInbox,
    NoticesSubscribed,
    StoredNotices,
    make_sessions,
)
from gateway_daemon.manager.registry import (
    DAY_MS,
    Registry,
    advance_day,
    collect_tombstones,
    is_forgotten,
)
from gateway_daemon.manager.registry_changes import (
    API_TOPICS,
    BrokerLeases,
    GatewayLeases,
    Refusals,
    apply_message,
    find_obstacles,
    find_subject,
    is_command,
    next_table,
)
from gateway_daemon.manager.replication import (
    Record,
    RecordKey,
    decode_record,
    decode_view,
)
from gateway_daemon.manager.server_probes import HealthProbes, ProbeResult
from service_runtime.errors import FieldError
from service_runtime.lifecycle import LogLimit, Service
from service_runtime.watchdog import MAX_SILENCE_S, LoopWatchdog
from spatial_mqtt.directory import (
    BrokerInfo,
    GatewayHeartbeat,
    decode_gateway_heartbeat,
    decode_gateway_location,
    decode_gateway_reference,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import (
    BROKER_DOWN,
    BROKER_HEARTBEAT,
    BROKER_TABLE,
    GATEWAY_DOWN,
    GATEWAY_HEARTBEAT,
    GATEWAY_INFO,
    GATEWAY_LOAD,
    GATEWAY_LOCATIONS,
    GATEWAY_NOTICE,
    MANAGER_LOAD,
    MANAGER_RECORDS,
    MANAGER_VIEW,
    gateway_location_topic,
    matches,
    parse_named_api_topic,
)
from spatial_mqtt.transport import IncomingMessage


@dataclass(frozen=True)
class ManagerClocks:
    """The two clocks of a Manager.

    Attributes:
        watchdog: Monotonic seconds, and supervision of the loop.
        wall_ms: Milliseconds since 1970.
    """

    watchdog: LoopWatchdog
    wall_ms: Callable[[], int]

    def mono_s(self) -> float:
        """Monotonic seconds."""
        return self.watchdog.clock()


log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
SAVE_AGAIN_S = 10.0
"""Pause before the registry is written again, after an error."""

APPLY_TIMEOUT_S = 30.0
"""A gateway that has not applied a new table after this time is skipped."""

COMPLETE_DELAY_S = 5.0
"""From `BROKER_READY` to "complete" while gateways of the original Gamma are present:
what ours published by the old table arrives before these unsubscribe."""

STARTUP_HEARTBEAT_S = 10.0
"""Heartbeat interval assumed after a start; three missed ones end a lease."""

MAX_CLOCK_LEAD_MS = 3_600_000
"""Lead of another Manager's clock above which it is reported."""


class Manager:
    """Runs one registry.

    Args:
        connectors: Make the connections to brokers.
        path: File that stores the registry.
        registry: Its content merged with the settings; `manager_id` is our id.
        clocks: Time.
        probes: Probes gateways and brokers; None disables probing.
        autoscaler: Splits hot areas; None disables it.
    """

    def __init__(
        self,
        connectors: BrokerConnectors,
        path: Path,
        registry: Registry,
        clocks: ManagerClocks,
        *,
        probes: HealthProbes | None = None,
        autoscaler: AutoscaleExecutor | None = None,
    ) -> None:
        self._path = path
        self._clocks = clocks
        self._probes = probes
        self._scaler = autoscaler
        self._registry = registry
        self._saved: storage.RegistrySnapshot | None = None
        self._is_saved, self._save_tried_s = True, 0.0
        self._leases, self._broker_leases = GatewayLeases(), BrokerLeases()
        self._waits_since_s: float | None = clocks.mono_s()
        self._is_completion_pending = False
        self._ready_for: frozenset[BrokerInfo] | None = None
        self._complete_at_s: float | None = None
        self._checked_s = self._started_s = clocks.mono_s()
        self._error_limit = LogLimit(clocks.mono_s)
        self._inbox = EventInbox[BrokerEvent | ProbeResult | CommandResult | None]()
        own, at_peers = make_sessions(
            registry.manager_id, has_notices=connectors.notices is not None
        )
        self._own = BrokerSession(connectors.own, own, self._inbox.put)
        self._peers = [
            BrokerSession(peer, at_peers, self._inbox.put) for peer in connectors.peers
        ]
        self._publisher = DirectoryPublisher(self._own)
        self._notices = self._make_notices(connectors.notices)
        self._parts: tuple[Service, ...] = (self._notices,) if self._notices else ()

    def _make_notices(self, connect: Connect | None) -> StoredNotices | None:
        if connect is None:
            return None
        return StoredNotices(
            connect,
            self._on_stored_notice,
            lambda: self._inbox.put(NoticesSubscribed()),
        )

    def attach(self, *services: Service) -> None:
        """Add services that start and stop with the Manager; call before `run`."""
        self._parts += services

    @property
    def registry(self) -> Registry:
        """Current state."""
        return self._registry

    @property
    def is_up(self) -> bool:
        """Whether messages on our own broker reach us."""
        return self._own.is_subscribed and self._receives_notices

    @property
    def sessions(self) -> dict[str, BrokerSession]:
        """Sessions by name: ``own``, and the address of each other Manager's broker."""
        return {"own": self._own, **{str(peer): peer for peer in self._peers}}

    @property
    def error_count(self) -> int:
        """Errors published since the start."""
        return self._publisher.error_count

    @property
    def load_report(self) -> AutoscaleReport | None:
        """Newest loads and decisions."""
        return self._scaler.last_report if self._scaler else None

    def run(self) -> None:
        """Serve until `stop`."""
        self._keep()
        self._expect_gateways()
        for part in (*self._parts, self._own, *self._peers):
            part.start()
        if self._probes is not None:
            self._probes.start(self._inbox.put)
            self._probes.set_targets(self._registry)
        if self._scaler is not None:
            self._scaler.start(self._inbox.put)
        with self._clocks.watchdog.watch_loop("manager", MAX_SILENCE_S) as heartbeat:
            while self._serve_next():
                heartbeat()
                now_s = self._clocks.mono_s()
                if now_s - self._checked_s >= CHECK_INTERVAL_S:
                    self._checked_s = now_s
                    self._check_periodically(now_s)
                elif not self._inbox.empty():
                    continue
                self._publish_pending()

    def status(self) -> str:
        """One-line summary."""
        registry = self._registry
        gateways, brokers = len(registry.gateways), len(registry.brokers)
        words = [
            f"{self._own} {'up' if self._own.is_up else 'DOWN'}",
            f"{gateways} gateways, {brokers} brokers",
            f"table {registry.table.version}",
        ]
        if registry.laggards:
            words[-1] += f" waits for {', '.join(map(str, registry.laggards))}"
        if registry.table.brokers != registry.newest_table.brokers:
            words.append(f"changes up to table {registry.version} wait for it")
        if self._peers:
            words.append(f"{len(registry.views)} of {len(self._peers)} other managers")
        if not self._is_saved:
            words.append("REGISTRY NOT SAVED")
        words += [f"serving {session} too" for session in self._publisher.adopted]
        return "; ".join(words)

    def stop(self) -> None:
        """End `run`, and announce it to the other Managers."""
        if self._probes is not None:
            self._probes.stop()
        if self._scaler is not None:
            self._scaler.stop()
        for part in (*self._parts, *self._peers):
            part.stop()
        # The will comes after all that the loop still publishes. A message at QoS 2
        # would be lost if DISCONNECT followed before the broker's answer.
        self._own.stop(leaves_will=True)
        self._inbox.put(None)

    @property
    def _receives_notices(self) -> bool:
        return self._notices is None or self._notices.is_subscribed

    def _on_stored_notice(self, message: IncomingMessage) -> None:
        self._inbox.put(BrokerMessage(self._own, message))

    def _serve_next(self) -> bool:
        """Process the next event, waiting at most one interval; False at the end."""
        try:
            event = self._inbox.get(timeout=CHECK_INTERVAL_S)
        except Empty:
            return True
        if event is not None:
            self._serve(event)
        return event is not None

    def _serve(self, event: BrokerEvent | ProbeResult | CommandResult) -> None:
        try:
            match event:
                case CommandResult():
                    self._on_ran(event)
                case ProbeResult():
                    self._change_to(self._found(event))
                case BrokerUp():
                    self._on_up(event.session)
                case NoticesSubscribed():
                    self._announce()
                case BrokerDown():
                    self._on_down(event.session)
                case BrokerMessage():
                    self._handle_message(event.session, event.message)
        except FieldError as error:
            self._report(event, error)

    def _report(self, event: object, error: FieldError) -> None:
        message = event.message if isinstance(event, BrokerMessage) else None
        topic = "manager" if message is None else message.topic
        is_awaited = message is not None and is_command(topic, message)
        self._report_once(f"{topic}: {error}", is_awaited=is_awaited)

    def _report_once(self, text: str, *, is_awaited: bool = False) -> None:
        """Report an error, which may come with every heartbeat."""
        if is_awaited or self._error_limit.count(text) is not None:
            self._publisher.report_error(text)

    def _on_up(self, session: BrokerSession) -> None:
        session.begin()
        if session is self._own:
            self._expect_gateways()
            self._broker_leases.extend(self._clocks.mono_s())
            self._announce()
        self._adopt()

    def _announce(self) -> None:
        """Publish everything, once this Manager receives the notices that follow."""
        is_new = self._own.is_up and not self._publisher.has_announced
        if is_new and self._receives_notices:
            self._publisher.publish_all(self._registry)

    def _on_down(self, session: BrokerSession) -> None:
        view = session.view
        session.end()
        if session is self._own:
            self._publisher.end()
        if view is not None:
            self._change_to(self._registry.without_view(view.manager))
        self._adopt()

    def _handle_message(self, session: BrokerSession, message: IncomingMessage) -> None:
        if message.topic == MANAGER_VIEW:
            self._handle_view(session, message)
        elif message.topic in {BROKER_TABLE, GATEWAY_INFO}:
            session.on_directory(message)
        elif matches(MANAGER_RECORDS, message.topic):
            self._handle_record(message.payload)
        elif message.topic == MANAGER_LOAD:
            if self._scaler is not None:
                self._scaler.on_autoscale_report(message.payload)
        elif session is self._own or session in self._publisher.adopted:
            self._handle_api(session, message)

    def _handle_api(self, session: BrokerSession, message: IncomingMessage) -> None:
        if matches(GATEWAY_LOCATIONS, message.topic):
            self._check_location(session, message)
        else:
            self._change_to(self._changed(session, message))

    def _check_location(self, session: BrokerSession, message: IncomingMessage) -> None:
        """Remove the retained position of a gateway from another one's topic."""
        if not message.payload:
            return
        gateway = decode_gateway_location(message.payload).broker_info
        owner = self._registry.owner_of(gateway)
        if owner is not None and gateway_location_topic(owner) != message.topic:
            session.publish(message.topic, b"")
            rule = "the address of the gateway in the topic"
            raise DirectoryError("broker_info", rule, f"{gateway} of {owner}")

    def _handle_view(self, session: BrokerSession, message: IncomingMessage) -> None:
        if session is self._own:
            if not message.retain:
                self._publisher.on_echo()
            return
        view = decode_view(message.payload)
        if view.manager == self._registry.manager_id:
            error = f"manager.id {view.manager!r} is also the id of {session}"
            self._publisher.report_error(error)
            return
        session.on_view(view)
        known = self._registry.with_view(view)
        self._change_to(collect_tombstones(known, view.horizon))
        self._adopt()

    def _handle_record(self, payload: bytes) -> None:
        if payload:  # empty: another Manager has dropped it
            keyed = decode_record(payload)
            self._merge(keyed.key, keyed.record)

    def _merge(self, key: RecordKey, record: Record) -> None:
        if is_forgotten(self._registry, key, record):
            self._publisher.clear_record(key)
            if record.value is not None:
                fact = f"{key.kind} {key.name} was deleted, and is published again"
                error = f"{fact} by {record.stamp.manager}: ignored"
                self._publisher.report_error(error)
            return
        conflict = self._registry.describe_conflict(key, record)
        ahead_ms = record.stamp.ms - self._clocks.wall_ms()
        before, after = self._registry, self._registry.with_record(key, record)
        self._change_to(after)
        if conflict is not None:
            # The peers receive only the merged record and see no conflict.
            self._publisher.report_error(conflict, self._peers)
        if after != before and ahead_ms > MAX_CLOCK_LEAD_MS:
            who = f"the clock of manager {record.stamp.manager}"
            self._publisher.report_error(f"{who} is {ahead_ms} ms ahead of ours")

    def _changed(self, session: BrokerSession, message: IncomingMessage) -> Registry:
        """Return the registry after a message that may be below a gateway's name."""
        name, topic = parse_named_api_topic(message.topic)
        subject = find_subject(topic, message)
        if topic not in API_TOPICS or (name is not None and subject is None):
            raise DirectoryError("topic", "one of a gateway's API", message.topic)
        registry = self._registry
        if subject is not None:
            wall_ms = self._clocks.wall_ms()
            registry = registry.with_owner(subject, name, wall_ms)
        return self._applied(registry, session, message._replace(topic=topic))

    def _applied(
        self, registry: Registry, session: BrokerSession, message: IncomingMessage
    ) -> Registry:
        now_s = self._clocks.mono_s()
        if message.topic == GATEWAY_HEARTBEAT:
            here = decode_gateway_heartbeat(message.payload)
            self._leases.renew(here, session, now_s)
            return registry.with_heartbeat(here.broker_info)
        if message.topic == GATEWAY_LOAD:
            if self._scaler is not None:
                self._scaler.on_load_report(message.payload, now_s)
            return registry
        if message.topic == GATEWAY_DOWN:
            gateway = decode_gateway_reference(message.payload)
            is_gone = self._leases.remove(gateway, session)
            return registry.with_departed(gateway) if is_gone else registry
        if message.topic in {BROKER_HEARTBEAT, BROKER_DOWN}:
            leases, now_ms = self._broker_leases, self._clocks.wall_ms()
            result = leases.apply(registry, session, message, (now_s, now_ms))
            return self._leased(result)
        if message.topic == GATEWAY_NOTICE:
            self._is_completion_pending = True
        return apply_message(registry, message, self._clocks.wall_ms())

    def _leased(self, result: tuple[Registry, Refusals]) -> Registry:
        """Report why areas of leased brokers have not changed; return the registry."""
        for error in result[1]:
            self._report_once(f"{BROKER_HEARTBEAT}: {error}")
        return result[0]

    def _found(self, finding: ProbeResult) -> Registry:
        """Return the registry after a probe result: a gateway is delisted.

        A broker is only reported: messages for it wait in the queues of the gateways.
        """
        words = "answers again" if finding.is_reachable else "does not answer"
        if finding.server in self._registry.areas:
            log.warning("gateway %s %s", finding.server, words)
            if finding.is_reachable:
                return self._registry.with_returned(finding.server)
            return self._registry.with_departed(finding.server)
        self._publisher.report_error(f"broker {finding.server} {words}")
        return self._registry

    def _check_periodically(self, now_s: float) -> None:
        if self._own.is_up:  # otherwise no heartbeat can arrive
            for gateway in self._leases.pop_expired(now_s):
                log.warning("gateway %s: heartbeat missing", gateway)
                self._change_to(self._registry.with_departed(gateway))
            now = now_s, self._clocks.wall_ms()
            leases = self._broker_leases
            self._change_to(self._leased(leases.end_expired(self._registry, now)))
        self._publisher.restore_directory(self._registry)
        day = self._clocks.wall_ms() // DAY_MS
        self._change_to(advance_day(self._registry, day, len(self._peers)))
        since_s = self._waits_since_s
        if since_s is not None and now_s - since_s >= APPLY_TIMEOUT_S:
            self._drop_laggards()
        if not self._is_saved and now_s - self._save_tried_s >= SAVE_AGAIN_S:
            self._keep()
        for obstacle in find_obstacles(self._registry):
            self._report_once(f"table {self._registry.version}: {obstacle}")
        if self._scaler is not None and self._is_first:
            self._scale(self._scaler, now_s)

    def _scale(self, scaler: AutoscaleExecutor, now_s: float) -> None:
        try:
            wall_ms = self._clocks.wall_ms()
            self._change_to(scaler.run_once(self._registry, now_s, wall_ms))
        except DirectoryError as error:
            self._report_once(f"autoscale: {error}")
        report = scaler.report_if_due(self._registry, now_s)
        if report is not None:
            self._publisher.publish_report(report, self._peers)

    def _on_ran(self, outcome: CommandResult) -> None:
        if self._scaler is not None:
            registry, wall_ms = self._registry, self._clocks.wall_ms()
            self._change_to(self._scaler.on_command_result(outcome, registry, wall_ms))

    @property
    def _is_first(self) -> bool:
        """Whether our id is the lowest of all reachable Managers."""
        return self._registry.manager_id == min({
            self._registry.manager_id,
            *self._registry.views,
        })

    def _drop_laggards(self) -> None:
        self._waits_since_s = None
        if laggards := self._registry.laggards:
            names = ", ".join(map(str, laggards))
            version = self._registry.table.version
            self._publisher.report_error(f"table {version}: not applied by {names}")
            self._change_to(self._registry.without_laggards())

    def _expect_gateways(self) -> None:
        """Grant a lease to the gateways that had one, until their next heartbeat."""
        for gateway in self._registry.heartbeating - self._registry.away:
            here = GatewayHeartbeat(gateway, every_s=STARTUP_HEARTBEAT_S)
            self._leases.renew(here, self._own, self._clocks.mono_s())

    def _adopt(self) -> None:
        """Serve the brokers of Managers that are down, if we are the first."""
        adopted = [p for p in self._peers if self._is_first and p.is_orphaned]
        before, self._publisher.adopted = self._publisher.adopted, adopted
        for session in adopted:
            if session not in before:
                self._is_completion_pending, self._ready_for = True, None
                log.warning("serving %s, whose manager is away", session)
                self._publisher.publish_directory(self._registry, session)
                if (view := session.last_view) is not None:
                    self._change_to(self._registry.with_inherited_view(view))
        for session in before:
            if session not in adopted:
                self._leases.remove_session(session)
                self._broker_leases.remove_session(session)

    def _change_to(self, registry: Registry) -> None:
        before, self._registry = self._registry, registry
        if registry == before:
            return
        self._keep()
        if registry.here != before.here:
            # Before the list: after a crash in between, the Manager that takes over
            # would not wait for a gateway that is in the list and in no view.
            self._publisher.publish_view(registry.own_view)
        self._publisher.publish_changes(before, registry)
        if self._probes is not None:
            self._probes.set_targets(registry)
        if registry.table != before.table:
            self._waits_since_s = self._ready_for = None
        if registry.laggards and self._waits_since_s is None:
            self._waits_since_s = self._clocks.mono_s()
        is_news = registry.is_complete and not before.is_complete
        self._is_completion_pending |= (
            is_news or registry.reported_versions != before.reported_versions
        )

    def _keep(self) -> None:
        snapshot = storage.RegistrySnapshot.from_registry(self._registry)
        if snapshot == self._saved:
            return
        self._save_tried_s = self._clocks.mono_s()
        self._is_saved = storage.save_registry(self._path, snapshot)
        if self._is_saved:
            self._saved = snapshot

    def _publish_pending(self) -> None:
        """Publish what is sent once for many events."""
        self._publisher.publish_view(self._registry.own_view)
        now_s, registry = self._clocks.mono_s(), self._registry
        if registry.is_complete:
            self._waits_since_s = None
        is_served = self._publisher.serves_own or bool(self._publisher.adopted)
        if self._is_completion_pending and registry.is_complete and is_served:
            self._publish_ready(now_s)
        if self._complete_at_s is not None and now_s >= self._complete_at_s:
            self._publisher.publish_complete()
            self._complete_at_s = None
        if is_served and self._complete_at_s is None:
            table = next_table(registry, was_ready=self._ready_for is not None)
            self._change_to(replace(registry, announced=table))
        elif not is_served and not registry.original_gateways:
            self._change_to(replace(registry, announced=None))  # all at once, later
        is_late = now_s - self._started_s >= PEERS_WAIT_S
        is_current = is_late or all(peer.view is not None for peer in self._peers)
        if is_current and self._publisher.begin_to_serve(self._registry):
            self._is_completion_pending, self._ready_for = True, None

    def _publish_ready(self, now_s: float) -> None:
        """Announce that all gateways have applied the table; "complete" follows."""
        registry, known = self._registry, frozenset(self._registry.reported_versions)
        self._publisher.publish_ready(registry.table.version)
        # Later once for each gateway, as it may repeat its notices for ever.
        is_news = self._ready_for is None or not known <= self._ready_for
        if is_news or self._complete_at_s is None:
            is_delayed = is_news and registry.original_gateways
            self._complete_at_s = now_s + (COMPLETE_DELAY_S if is_delayed else 0.0)
        self._ready_for = known | (self._ready_for or frozenset())
        self._is_completion_pending = False

"""Overlay runner: the event loop that drives a gateway's node, and its metrics.

Messages for clients are stored before any packet that acknowledges them is sent. What
cannot be stored is reported to its publisher as not complete, so that it keeps it.
"""

import logging
import math
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from edge_agent.uplink.link_rate import TokenBucket, wire_bytes
from gateway_daemon.overlay.gateway_node import OutgoingPacket, OverlayNode
from gateway_daemon.overlay.keys import GatewayName, OverlayError
from gateway_daemon.overlay.messages import (
    CarriedMessage,
    MessageCopy,
    OverlayMessage,
    PublicationResult,
    decode_frame,
    encode_frame,
)
from gateway_daemon.overlay.mqtt_transport import MqttTransport
from gateway_daemon.overlay.peers import NO_PEERS, PeerSummary
from service_runtime.lifecycle import start_watched_loop
from service_runtime.metrics import Metric, MetricSample, gauge
from service_runtime.watchdog import MAX_SILENCE_S, Heartbeat, LoopWatchdog
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.errors import TopicError

log = logging.getLogger(__name__)

MAX_WAIT_S = 0.5
"""Longest wait of the loop between checks of peers, retries and publications."""

EVENT_BATCH = 200
"""Events that are processed before packets go out, so that one commit covers all."""

MAX_NAMES_LOGGED = 10
"""Names in one log line."""

SEEK_ALONE_S, SEEK_S = 5.0, 60.0
"""Interval of probes of the directory's brokers: without any peer, and with peers."""

CONTROL_SHARE = 0.5
"""Share of the rate that control packets may use up; copies have the rest.

Control packets, such as pings, joins and receipts, are always sent at once. Where they
exceed this share, the rate is exceeded; otherwise no copy would ever be sent.
"""

ReceivedMessages = Sequence[tuple[OverlayMessage, CarriedMessage]]


class PublicationSource(Protocol):
    """Supplies publications and receives their results."""

    def poll(self, now_s: float) -> None:
        """Publish pending messages; called repeatedly in the loop."""

    def on_result(self, ended: PublicationResult) -> None:
        """Handle the result of a publication."""


@dataclass(frozen=True)
class OverlayConfig:
    """Settings of the overlay.

    Attributes:
        name: Our own name.
        peers: Brokers where names may be found.
        rate_bytes_per_s: Limit of wire bytes per second; None is no limit. Copies of
            the top priority and control packets pass it, but are charged to it.
    """

    name: GatewayName
    peers: tuple[BrokerInfo, ...] = ()
    rate_bytes_per_s: float | None = None


@dataclass(frozen=True)
class OverlayStatus:
    """Status of the overlay as seen from here; any thread may read it.

    Attributes:
        has_peers: Whether another gateway is reachable.
        peer_summary: Which of the others answer.
        queued_copies: Copies that wait to be sent.
        received, sent: Messages for our clients and copies for others, since the start.
        complete, broken: Publications that reached all subscribers, and that did not.
        timeout_count: Copies without an answer in time, which other nodes took over.
        round_trip_s: Mean time from a copy to its answer; None before the first.
    """

    has_peers: bool = False
    peer_summary: PeerSummary = NO_PEERS
    queued_copies: int = 0
    received: int = 0
    sent: int = 0
    complete: int = 0
    incomplete: int = 0
    timeout_count: int = 0
    round_trip_s: float | None = None


class OverlayRunner:
    """Runs a node.

    Args:
        config: Our name and peers.
        node: The state machine.
        make_transport: Makes the transport, given how to run an event in our loop.
        store: Stores messages for clients, on disk before it returns; returns the ids
            of those that it could not store.
        watchdog: Supervises the loop, and provides the clock.

    Attributes:
        source: Supplies publications; None if only `publish` is called.
        status: Status of the overlay.
    """

    def __init__(
        self,
        config: OverlayConfig,
        node: OverlayNode,
        make_transport: Callable[
            [Callable[[Callable[[], None]], object]], MqttTransport
        ],
        store: Callable[[ReceivedMessages], Collection[str]],
        *,
        watchdog: LoopWatchdog,
    ) -> None:
        self.source: PublicationSource | None = None
        self.status = OverlayStatus()
        self._around = config
        self._node = node
        self._store = store
        self._watchdog = watchdog
        self._clock = watchdog.clock
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._transport = make_transport(self._events.put)
        self._transport.handler = self
        rate = config.rate_bytes_per_s
        self._bucket = TokenBucket.for_rate(rate)
        self._control_bucket = TokenBucket.for_rate(rate and CONTROL_SHARE * rate)
        self._checked_s = self._searched_s = -math.inf
        self._directory: deque[BrokerInfo] = deque()
        self._partition_since_s: float | None = None

    def start(self) -> None:
        """Start the loop in a thread and join the overlay."""
        start_watched_loop(self._watchdog, "overlay", MAX_SILENCE_S, self.run)

    def stop(self) -> None:
        """Leave the overlay and end the loop."""
        self._events.put(None)

    def set_filters(self, filters: frozenset[str]) -> None:
        """Set the filters of our clients; from any thread."""
        self._events.put(lambda: self._node.set_filters(filters, self._clock()))

    def wake(self) -> None:
        """Wake the loop to poll the source; from any thread."""
        self._events.put(_no_op)

    def on_gateway_list(self, brokers: Iterable[BrokerInfo]) -> None:
        """Set the brokers of a Manager's gateway list; from any thread."""
        found = [each for each in brokers if each != self._around.name.broker]
        self._events.put(lambda: self._set_directory(found))

    def set_broker_outage(self, is_out_of_reach: bool) -> None:
        """Set whether the backbone is out of reach; only in our loop."""
        self._node.is_backbone_down = is_out_of_reach

    def publish(self, message_id: str, priority: int, carried: CarriedMessage) -> None:
        """Publish a message; only in our loop."""
        payload = msgspec.msgpack.encode(carried)
        message = OverlayMessage(message_id, priority, payload)
        try:
            self._node.publish(message, carried.topic, self._clock())
        except TopicError as error:  # no subscriber can match it
            log.error("not published on the overlay: %s", error)  # noqa: TRY400
            self._node.end_unreached(message_id)

    def on_frame(self, frame: bytes) -> None:
        try:
            self._node.receive(*decode_frame(frame), self._clock())
        except OverlayError as error:
            log.warning("frame dropped: %s", error)

    def on_name(self, name: str) -> None:
        try:
            GatewayName.parse(name)
        except OverlayError as error:
            log.warning("name ignored: %s", error)
        else:
            self._node.add_peer(name, self._clock())

    def run(self, heartbeat: Heartbeat) -> None:
        """Serve until `stop`."""
        around = self._around
        self._transport.start(str(around.name), around.peers, self._clock())
        self._node.start(self._clock())
        while self._serve(self._wait_s()):
            heartbeat()
            if self.source is not None:
                self.source.poll(self._clock())
            self._node.on_timer(self._clock())
            self._act()
            self._update_status(self._clock())
        self._node.leave(self._clock())
        self._act()
        self._update_status(self._clock())
        self._transport.stop()

    def _set_directory(self, found: Iterable[BrokerInfo]) -> None:
        known = {*self._directory}
        listed = dict.fromkeys(found)
        kept = [each for each in self._directory if each in listed]
        self._directory = deque([*(b for b in listed if b not in known), *kept])

    def _search_names(self, now_s: float) -> None:
        """Search for names at the next broker of the directory.

        A node without peers needs one to join. A node with peers continues, since the
        other half of a partitioned overlay can be found only by an address from
        elsewhere.
        """
        every_s = SEEK_S if self._node.has_peers else SEEK_ALONE_S
        if self._directory and now_s - self._searched_s >= every_s:
            self._searched_s = now_s
            self._directory.rotate(-1)
            self._transport.open_link(self._directory[-1], now_s)

    def _update_status(self, now_s: float) -> None:
        self._search_names(now_s)
        is_in = self._node.has_peers
        if is_in == self.status.has_peers and now_s - self._checked_s < MAX_WAIT_S:
            return
        self._checked_s = now_s
        if is_in != self.status.has_peers:
            log.info("overlay: %s", "others are reached" if is_in else "alone")
        node = self._node
        self._log_silent_peers(node.peer_summary(), now_s)
        self.status = replace(
            self.status,
            has_peers=is_in,
            peer_summary=node.peer_summary(),
            queued_copies=node.queued_copies,
            timeout_count=node.round_trips.timeout_count,
            round_trip_s=node.round_trips.mean_s,
        )

    def _log_silent_peers(self, census: PeerSummary, now_s: float) -> None:
        """Log which gateways no longer answer, and when all do again."""
        if census.silent == self.status.peer_summary.silent:
            return
        if census.silent:
            since_s = self._partition_since_s
            self._partition_since_s = now_s if since_s is None else since_s
            log.warning(
                "overlay: %s: %s", census, ", ".join(census.silent[:MAX_NAMES_LOGGED])
            )
        elif self._partition_since_s is not None:
            took_s = now_s - self._partition_since_s
            self._partition_since_s = None
            log.info("overlay: %s again, after %.0f s", census, took_s)

    def _serve(self, wait_s: float) -> bool:
        """Process the pending events; return whether to continue."""
        try:
            event = self._events.get(timeout=wait_s)
            for _ in range(EVENT_BATCH):
                if event is None:
                    return False
                event()
                event = self._events.get_nowait()
        except Empty:
            return True
        if event is not None:
            event()
        return event is not None

    def _wait_s(self) -> float:
        now_s = self._clock()
        wait_s = min(self._node.next_due_s() or MAX_WAIT_S, now_s + MAX_WAIT_S) - now_s
        if self._node.queued_copies:
            wait_s = min(wait_s, self._bucket.wait_s(now_s))
        return max(0.0, wait_s)

    def _act(self) -> None:
        """Carry out the node's output: first store, then send."""
        outbox = self._node.pop_outbox()
        if outbox.received:
            refused = self._store(outbox.received)
            if refused:
                self._node.refuse(outbox, refused)
            stored = len(outbox.received) - len(refused)
            self.status = replace(self.status, received=self.status.received + stored)
        for letter in outbox.packets:
            self._send(letter)
        for ended in outbox.results:
            self.status = replace(
                self.status,
                complete=self.status.complete + ended.is_complete,
                incomplete=self.status.incomplete + (not ended.is_complete),
            )
            if self.source is not None:
                self.source.on_result(ended)
        now_s = self._clock()
        while copy := self._node.pop_copy(
            now_s, is_top_only=self._bucket.wait_s(now_s) > 0
        ):
            self.status = replace(self.status, sent=self.status.sent + 1)
            self._send(copy)
        self._transport.close_idle(now_s)

    def _send(self, letter: OutgoingPacket) -> None:
        frame = encode_frame(*letter)
        try:
            to = GatewayName.parse(letter.to.gateway)
        except OverlayError as error:
            log.warning("packet not sent: %s", error)
            return
        now_s = self._clock()
        self._charge(letter, wire_bytes(len(frame), is_first=True), now_s)
        self._transport.send(to.broker, to.gateway_id, frame, now_s)

    def _charge(self, letter: OutgoingPacket, size_bytes: int, now_s: float) -> None:
        """Charge a packet; control packets only up to their share of the rate."""
        if not isinstance(letter.packet, MessageCopy):
            if self._control_bucket.wait_s(now_s) > 0:
                return
            self._control_bucket.spend(size_bytes, now_s)
        self._bucket.spend(size_bytes, now_s)


def _no_op() -> None:
    """Do nothing; an event that only wakes the loop."""


def overlay_metrics(
    status: OverlayStatus, waiting: Mapping[int, int]
) -> Iterator[Metric]:
    """Yield all metrics with their current values.

    Args:
        status: Status of the overlay.
        waiting: Messages that wait until all subscribed gateways have them, by
            priority.
    """
    silent = len(status.peer_summary.silent)
    others = {"answers": status.peer_summary.known - silent, "silent": silent}
    yield gauge(
        "yamamori_overlay_up",
        "Whether another gateway is reachable.",
        status.has_peers,
    )
    yield Metric(
        "yamamori_overlay_gateways",
        "gauge",
        "Known other gateways.",
        tuple(MetricSample(count, {"state": state}) for state, count in others.items()),
    )
    yield _counter(
        "yamamori_overlay_returns_total",
        "Gateways that answer again after silence.",
        status.peer_summary.return_count,
    )
    yield Metric(
        "yamamori_overlay_waiting_messages",
        "gauge",
        "Messages that wait until all subscribed gateways have them.",
        tuple(
            MetricSample(n, {"priority": str(p)}) for p, n in sorted(waiting.items())
        ),
    )
    yield gauge(
        "yamamori_overlay_waiting_copies",
        "Copies that wait to be sent.",
        status.queued_copies,
    )
    yield from _of_copies(status)


def _of_copies(facts: OverlayStatus) -> Iterator[Metric]:
    yield _counter("yamamori_overlay_copies_total", "Copies sent.", facts.sent)
    yield _counter(
        "yamamori_overlay_heard_total",
        "Messages received by the overlay for our clients.",
        facts.received,
    )
    yield Metric(
        "yamamori_overlay_publications_total",
        "counter",
        "Publications that ended: whole, or broken if a gateway was given up or full.",
        (
            MetricSample(facts.complete, {"end": "whole"}),
            MetricSample(facts.incomplete, {"end": "broken"}),
        ),
    )
    yield _counter(
        "yamamori_overlay_silences_total",
        "Copies without an answer in time, which other nodes took over.",
        facts.timeout_count,
    )
    if facts.round_trip_s is not None:
        yield gauge(
            "yamamori_overlay_round_trip_seconds",
            "Mean time from a copy to its answer.",
            facts.round_trip_s,
        )


def _counter(name: str, doc: str, value: float) -> Metric:
    return Metric(name, "counter", doc, (MetricSample(value),))

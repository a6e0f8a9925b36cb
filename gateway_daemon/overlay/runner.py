"""Overlay runner: the event loop that drives a gateway's node, and its metrics.

Messages for clients are stored before any packet that acknowledges them is sent.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from edge_agent.uplink.rate_limit import TokenBucket, wire_bytes
from gateway_daemon.overlay import wire_format
from gateway_daemon.overlay.gateway_node import Carried, Ended, Letter, Node
from gateway_daemon.overlay.keys import Name, OverlayError
from gateway_daemon.overlay.messages import Message
from gateway_daemon.overlay.mqtt_transport import Post
from gateway_daemon.overlay.peers import NOBODY, Census
from service_runtime.lifecycle import start_loop
from service_runtime.metrics import Metric, Sample, gauge
from service_runtime.watchdog import Beat, Pulse
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.errors import TopicError

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Longest wait of the loop between checks of peers, retries and publications."""

TOGETHER = 200
"""Events that are processed before packets go out, so that one commit covers all."""

SILENCE_S = 60.0

MOST_TOLD = 10
"""Names in one log line."""

SEEK_ALONE_S, SEEK_S = 5.0, 60.0
"""Between two looks at a broker of the directory: alone, and in company."""

Heard = Sequence[tuple[Message, Carried]]


class Source(Protocol):
    """Supplies publications and receives their results."""

    def look(self, now_s: float) -> None:
        """Publish pending messages; called repeatedly in the loop."""

    def ended(self, ended: Ended) -> None:
        """Handle the result of a publication."""


@dataclass(frozen=True)
class Surroundings:
    """Settings of the overlay.

    Attributes:
        name: Our own name.
        peers: Brokers where names may be found.
        rate_bytes_per_s: Limit of wire bytes of copies per second; None is no limit.
    """

    name: Name
    peers: tuple[BrokerInfo, ...] = ()
    rate_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Facts:
    """Status of the overlay as seen from here; any thread may read it.

    Attributes:
        is_in_company: Whether another gateway is reachable.
        census: Which of the others answer.
        waiting: Copies that wait to be sent.
        heard, sent: Messages for our clients and copies for others, since the start.
        whole, broken: Publications that reached all subscribers, and that did not.
        silences: Copies without an answer in time, which other nodes took over.
        round_trip_s: Mean time from a copy to its answer; None before the first.
    """

    is_in_company: bool = False
    census: Census = NOBODY
    waiting: int = 0
    heard: int = 0
    sent: int = 0
    whole: int = 0
    broken: int = 0
    silences: int = 0
    round_trip_s: float | None = None


class Live:
    """Runs a node.

    Args:
        around: Our name and peers.
        node: The state machine.
        make_post: Makes the transport, given how to run an event in our loop.
        store: Stores messages for clients, on disk before it returns.
        pulse: Supervises the loop, and provides the clock.

    Attributes:
        source: Supplies publications; None if only `publish` is called.
        facts: Status of the overlay.
    """

    def __init__(
        self,
        around: Surroundings,
        node: Node,
        make_post: Callable[[Callable[[Callable[[], None]], object]], Post],
        store: Callable[[Heard], object],
        *,
        pulse: Pulse,
    ) -> None:
        self.source: Source | None = None
        self.facts = Facts()
        self._around = around
        self._node = node
        self._store = store
        self._pulse = pulse
        self._clock = pulse.clock
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._transport = make_post(self._events.put)
        self._transport.hears = self
        self._bucket = TokenBucket.of_rate(around.rate_bytes_per_s)
        self._looked_s = self._searched_s = -math.inf
        self._directory: deque[BrokerInfo] = deque()
        self._partition_since_s: float | None = None

    @property
    def is_in_company(self) -> bool:
        """Whether another gateway is reachable."""
        return self.facts.is_in_company

    def start(self) -> None:
        """Start the loop in a thread and join the overlay."""
        start_loop(self._pulse, "overlay", SILENCE_S, self.run)

    def stop(self) -> None:
        """Leave the overlay and end the loop."""
        self._events.put(None)

    def listen(self, filters: frozenset[str]) -> None:
        """Set the filters of our clients; from any thread."""
        self._events.put(lambda: self._node.listen(filters, self._clock()))

    def wake(self) -> None:
        """Wake the loop to poll the source; from any thread."""
        self._events.put(_nothing)

    def listed(self, brokers: Iterable[BrokerInfo]) -> None:
        """Set the brokers of a Manager's gateway list; from any thread."""
        found = [each for each in brokers if each != self._around.name.broker]
        self._events.put(lambda: self._set_directory(found))

    def cut(self, is_cut: bool) -> None:
        """Set whether the backbone is out of reach; only in our loop."""
        self._node.is_cut = is_cut

    def publish(self, message_id: str, priority: int, carried: Carried) -> None:
        """Publish a message; only in our loop."""
        payload = msgspec.msgpack.encode(carried)
        message = Message(message_id, priority, payload)
        try:
            self._node.publish(message, carried.topic, self._clock())
        except TopicError as error:  # no subscriber can match it
            log.error("not published on the overlay: %s", error)  # noqa: TRY400
            self._node.give_up(message_id)

    def on_frame(self, frame: bytes) -> None:
        try:
            self._node.receive(*wire_format.decode(frame), self._clock())
        except OverlayError as error:
            log.warning("frame dropped: %s", error)

    def on_name(self, name: str) -> None:
        try:
            Name.parse(name)
        except OverlayError as error:
            log.warning("name ignored: %s", error)
        else:
            self._node.contact(name, self._clock())

    def run(self, beat: Beat) -> None:
        """Serve until `stop`."""
        around = self._around
        self._transport.start(str(around.name), around.peers, self._clock())
        self._node.start(self._clock())
        while self._serve(self._wait_s()):
            beat()
            if self.source is not None:
                self.source.look(self._clock())
            self._node.due(self._clock())
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
        every_s = SEEK_S if self._node.is_in_company else SEEK_ALONE_S
        if self._directory and now_s - self._searched_s >= every_s:
            self._searched_s = now_s
            self._directory.rotate(-1)
            self._transport.look_at(self._directory[-1], now_s)

    def _update_status(self, now_s: float) -> None:
        self._search_names(now_s)
        is_in = self._node.is_in_company
        if is_in == self.facts.is_in_company and now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        if is_in != self.facts.is_in_company:
            log.info("overlay: %s", "others are reached" if is_in else "alone")
        node = self._node
        self._log_silent_peers(node.census(), now_s)
        self.facts = replace(
            self.facts,
            is_in_company=is_in,
            census=node.census(),
            waiting=node.waiting,
            silences=node.trips.silences,
            round_trip_s=node.trips.mean_s,
        )

    def _log_silent_peers(self, census: Census, now_s: float) -> None:
        """Log which gateways no longer answer, and when all do again."""
        if census.silent == self.facts.census.silent:
            return
        if census.silent:
            since_s = self._partition_since_s
            self._partition_since_s = now_s if since_s is None else since_s
            log.warning("overlay: %s: %s", census, ", ".join(census.silent[:MOST_TOLD]))
        elif self._partition_since_s is not None:
            took_s = now_s - self._partition_since_s
            self._partition_since_s = None
            log.info("overlay: %s again, after %.0f s", census, took_s)

    def _serve(self, wait_s: float) -> bool:
        """Process the pending events; return whether to continue."""
        try:
            event = self._events.get(timeout=wait_s)
            for _ in range(TOGETHER):
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
        wait_s = min(self._node.next_due_s() or LOOK_S, now_s + LOOK_S) - now_s
        if self._node.waiting:
            wait_s = min(wait_s, self._bucket.wait_s(now_s))
        return max(0.0, wait_s)

    def _act(self) -> None:
        """Carry out the node's output: first store, then send."""
        outbox = self._node.collect()
        if outbox.heard:
            self.facts = replace(self.facts, heard=self.facts.heard + len(outbox.heard))
            self._store(outbox.heard)
        for letter in outbox.letters:
            self._send(letter)
        for ended in outbox.ended:
            self.facts = replace(
                self.facts,
                whole=self.facts.whole + ended.is_whole,
                broken=self.facts.broken + (not ended.is_whole),
            )
            if self.source is not None:
                self.source.ended(ended)
        now_s = self._clock()
        while self._bucket.wait_s(now_s) <= 0 and (copy := self._node.take(now_s)):
            self.facts = replace(self.facts, sent=self.facts.sent + 1)
            self._send(copy)
        self._transport.rest(now_s)

    def _send(self, letter: Letter) -> None:
        frame = wire_format.encode(*letter)
        try:
            to = Name.parse(letter.to.gateway)
        except OverlayError as error:
            log.warning("packet not sent: %s", error)
            return
        now_s = self._clock()
        self._bucket.spend(wire_bytes(len(frame), is_first=True), now_s)
        self._transport.send(to.broker, to.id, frame, now_s)


def _nothing() -> None:
    """Do nothing; an event that only wakes the loop."""


def measures_of(facts: Facts, waiting: Mapping[int, int]) -> Iterator[Metric]:
    """Yield all metrics with their current values.

    Args:
        facts: Status of the overlay.
        waiting: Messages that wait until all subscribed gateways have them, by
            priority.
    """
    silent = len(facts.census.silent)
    others = {"answers": facts.census.known - silent, "silent": silent}
    yield gauge(
        "yamamori_overlay_up",
        "Whether another gateway is reachable.",
        facts.is_in_company,
    )
    yield Metric(
        "yamamori_overlay_gateways",
        "gauge",
        "Known other gateways.",
        tuple(Sample(count, {"state": state}) for state, count in others.items()),
    )
    yield _counter(
        "yamamori_overlay_returns_total",
        "Gateways that answer again after silence.",
        facts.census.returns,
    )
    yield Metric(
        "yamamori_overlay_waiting_messages",
        "gauge",
        "Messages that wait until all subscribed gateways have them.",
        tuple(Sample(n, {"priority": str(p)}) for p, n in sorted(waiting.items())),
    )
    yield gauge(
        "yamamori_overlay_waiting_copies", "Copies that wait to be sent.", facts.waiting
    )
    yield from _of_copies(facts)


def _of_copies(facts: Facts) -> Iterator[Metric]:
    yield _counter("yamamori_overlay_copies_total", "Copies sent.", facts.sent)
    yield _counter(
        "yamamori_overlay_heard_total",
        "Messages received by the overlay for our clients.",
        facts.heard,
    )
    yield Metric(
        "yamamori_overlay_publications_total",
        "counter",
        "Publications that ended: whole, or broken if a gateway was given up.",
        (
            Sample(facts.whole, {"end": "whole"}),
            Sample(facts.broken, {"end": "broken"}),
        ),
    )
    yield _counter(
        "yamamori_overlay_silences_total",
        "Copies without an answer in time, which other nodes took over.",
        facts.silences,
    )
    if facts.round_trip_s is not None:
        yield gauge(
            "yamamori_overlay_round_trip_seconds",
            "Mean time from a copy to its answer.",
            facts.round_trip_s,
        )


def _counter(name: str, doc: str, value: float) -> Metric:
    return Metric(name, "counter", doc, (Sample(value),))

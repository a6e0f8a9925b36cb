"""Link check: connects to a gateway as the agent does; sends a message and a burst.

The test message is a pack of priority 1 with a text and no number: every store on its
path keeps it, and no rule and no score uses it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge_agent.queue.memory import MemoryQueue
from edge_agent.sampler import make_draft
from edge_agent.uplink.gateway_selection import FetchRetained
from edge_agent.uplink.link_rate import RateLimiter, wire_bytes
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.cells import Cell
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.directory import BrokerEntry, decode_gateways
from spatial_mqtt.errors import BrokerError, DirectoryError, ReceiptError
from spatial_mqtt.paho_client import NO_SUBACK
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import (
    GATEWAY_INFO,
    ForwardTopic,
    cell_topic,
    covers,
    custody_topic,
)
from spatial_mqtt.transport import (
    NO_SUBSCRIBERS,
    ConnectionHandler,
    IncomingMessage,
    Publication,
    SentPublication,
    Session,
)

DECIMAL_BELOW_S = 0.01
MIN_BURST_S = 0.005
"""A shorter burst gives no useful rate."""


@dataclass(frozen=True)
class ManagerResult:
    """Result of querying a Manager.

    Attributes:
        manager: Its ``host:port``.
        took_s: Time until the list arrived.
        gateways: Number of gateways in the list.
        problem: Why there is no list; None when it answered.
    """

    manager: str
    took_s: float
    gateways: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class GatewayResult:
    """Result of testing a gateway.

    Attributes:
        gateway: Its ``host:port``.
        area: The area by which it was chosen; None for one from the settings.
        connect_s: Time from the first packet to a session; None without a session.
        round_trip_s: Round trip of a subscription; None without one.
        receipt_s: Time from publishing the test message to its receipt.
        receipted: Whether a receipt confirmed it: it is on the gateway's disk. Else
            only a PUBACK did.
        message_id: Id of the test message.
        burst_bytes: Wire bytes of the burst that were acknowledged.
        burst_s: Time from its first to its last acknowledgement.
        problem: Why it does not serve; None when it does.
    """

    gateway: str
    area: str | None
    connect_s: float | None = None
    round_trip_s: float | None = None
    receipt_s: float | None = None
    receipted: bool = False
    message_id: str | None = None
    burst_bytes: int = 0
    burst_s: float = 0.0
    problem: str | None = None

    @property
    def rate_bytes_per_s(self) -> float | None:
        """Measured rate; None when the burst was too short."""
        if self.burst_s < MIN_BURST_S:
            return None
        return self.burst_bytes / self.burst_s


@dataclass(frozen=True)
class LinkReport:
    """Result of a link check.

    Attributes:
        manager_results: Managers, in the order of the settings; empty with a fixed
            gateway.
        gateway_results: Gateways, best first, up to the one that serves.
        used_bytes: Estimate of the bytes on the wire.
    """

    manager_results: Sequence[ManagerResult]
    gateway_results: Sequence[GatewayResult]
    used_bytes: int

    @property
    def chosen(self) -> GatewayResult | None:
        """The gateway that serves the node."""
        return next(
            (each for each in self.gateway_results if each.problem is None), None
        )

    @property
    def is_passed(self) -> bool:
        """Whether a gateway took over the test message."""
        return self.chosen is not None

    def to_dict(self) -> dict[str, Any]:
        """As a dict of JSON's types."""
        chosen = self.chosen
        return {
            "managers": [vars(each) for each in self.manager_results],
            "gateways": [vars(each) for each in self.gateway_results],
            "chosen": chosen and chosen.gateway,
            "rate_bytes_per_s": chosen and chosen.rate_bytes_per_s,
            "used_bytes": self.used_bytes,
        }

    def format_lines(self) -> Iterator[str]:
        """Format the result for a person."""
        chosen = self.chosen
        verdict = "ok" if chosen else "FAIL"
        yield f"link      {verdict}, about {self.used_bytes} bytes used"
        for each in self.manager_results:
            result = each.problem or f"{each.gateways} areas in {_ms(each.took_s)}"
            yield f"  manager {each.manager}: {result}"
        if not self.gateway_results:
            yield "  no gateway is known: start a Manager, or give uplink.gateway"
        for tried in self.gateway_results:
            yield from _gateway(tried)


def _gateway(tried: GatewayResult) -> Iterator[str]:
    area = "named by the settings" if tried.area is None else f"area {tried.area}"
    yield f"  gateway {tried.gateway} ({area})"
    if tried.connect_s is not None and tried.round_trip_s is not None:
        trip = (
            f"connected in {_ms(tried.connect_s)}, round trip {_ms(tried.round_trip_s)}"
        )
        yield f"          {trip}"
    if tried.problem is not None:
        yield f"          FAIL {tried.problem}"
        return
    if tried.burst_bytes:
        rate = tried.rate_bytes_per_s
        speed = "too fast to measure" if rate is None else f"{rate:.0f} bytes/s"
        yield f"          rate {speed} ({tried.burst_bytes} bytes)"
    how = (
        "receipted: on the gateway's disk"
        if tried.receipted
        else "taken by PUBACK: in the broker's memory, it gives no receipts"
    )
    took = _ms(tried.receipt_s or 0)
    yield f"          test message {tried.message_id} {how}, {took}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.{1 if seconds < DECIMAL_BELOW_S else 0}f} ms"


@dataclass
class LinkTimings:
    """Events of a link, with times in monotonic seconds.

    Attributes:
        start_s: Start of the connection attempt.
        up_s: When the broker accepted it.
        subscribed_s: When the broker confirmed the subscriptions.
        handed: Size in bytes of each publication, by its token.
        answers: Time of the broker's answer and reason of a refusal, by token.
        receipts: The receipts, with their times.
        reason: Why the last attempt ended.
    """

    start_s: float
    up_s: float | None = None
    subscribed_s: float | None = None
    handed: dict[int, int] = field(default_factory=dict)
    answers: dict[int, tuple[float, str | None]] = field(default_factory=dict)
    receipts: list[tuple[float, CustodyReceipt]] = field(default_factory=list)
    reason: str = ""


@dataclass
class InstrumentedConnection(Connection):
    """A connection that records its publications."""

    timings: LinkTimings = field(default_factory=lambda: LinkTimings(0.0))

    def publish_together(
        self, publications: Sequence[Publication]
    ) -> list[SentPublication]:
        handed = super().publish_together(publications)
        self.timings.handed.update((each.token, each.size_bytes) for each in handed)
        return handed


@dataclass(frozen=True)
class InstrumentedHandler:
    """A handler that records events and passes them on.

    Attributes:
        inner: The handler that gets every event.
        timings: The record.
        clock: Monotonic seconds.
        receipt_topic: Topic of the node's receipts.
    """

    inner: ConnectionHandler
    timings: LinkTimings
    clock: Callable[[], float]
    receipt_topic: str

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self.timings.up_s = self.clock()
        self.inner.on_up(session_present, receive_maximum)

    def on_subscribed(self) -> None:
        self.timings.subscribed_s = self.clock()
        self.inner.on_subscribed()

    def on_down(self, reason: str) -> None:
        self.timings.reason = reason
        self.inner.on_down(reason)

    def on_message(self, message: IncomingMessage) -> None:
        if message.topic == self.receipt_topic:
            try:
                receipt = CustodyReceipt.decode(message.payload)
                self.timings.receipts.append((self.clock(), receipt))
            except ReceiptError as error:
                self.timings.reason = str(error)
        self.inner.on_message(message)

    def on_published(self, token: int, refused: str | None) -> None:
        self.timings.answers[token] = (self.clock(), refused)
        self.inner.on_published(token, refused)


TEST_READING = "check/link"
"""Name of the test message's only reading."""

CHECK_SUFFIX = "-check"
"""Suffix of the client id: a check must not end the session of a running agent."""

BURST_MESSAGE_BYTES = 1000
HANDSHAKE_BYTES = 900
"""Estimate for TCP, CONNECT, SUBSCRIBE and DISCONNECT, without TLS."""

TLS_BYTES = 4000
_POLL_S = 0.02
_BUDGET_BYTES = 1_000_000


@dataclass(frozen=True)
class CheckTimeouts:
    """Timeouts of a link check.

    Attributes:
        connect_s: Timeout of a session, and of the list of a Manager.
        receipt_s: Timeout of the receipt of the test message.
        burst_s: Timeout of the acknowledgement of the burst.
    """

    connect_s: float = 12.0
    receipt_s: float = 20.0
    burst_s: float = 60.0


@dataclass(frozen=True)
class TestIdentity:
    """Identity and parameters of a link check.

    Attributes:
        sender: How the agent sends.
        cell: Cell of the node's position.
        tls: Files for an ``mqtts`` gateway.
        boot: Random id of this check, for its message ids.
        clock: Monotonic seconds.
        wall_s: Unix time.
        filler: Makes text of a length that does not compress.
        burst_bytes: Size of the burst; 0 for none.
        timeouts: Timeouts.
    """

    sender: SenderProfile
    cell: Cell
    tls: TlsFiles
    boot: str
    clock: Callable[[], float]
    wall_s: Callable[[], float]
    filler: Callable[[int], str]
    burst_bytes: int
    timeouts: CheckTimeouts = CheckTimeouts()

    def make_pack(self, seq: int, text: str) -> Pack:
        """Make a test message."""
        return Pack(
            MessageId(self.sender.id, self.boot, seq),
            LADDER.default,
            round(self.wall_s(), 3),
            (Reading(TEST_READING, None, text),),
        )


def query_managers(
    managers: Sequence[Endpoint], fetch: FetchRetained, clock: Callable[[], float]
) -> tuple[list[ManagerResult], list[BrokerEntry], bool]:
    """Query every Manager for its gateways.

    Returns:
        The result of each; the first list that is not empty, and whether its gateways
        use TLS.
    """
    asked: list[ManagerResult] = []
    found: list[BrokerEntry] = []
    tls = False
    for manager in managers:
        began_s = clock()
        try:
            payload = fetch(manager, GATEWAY_INFO, CheckTimeouts.connect_s)
            entries = decode_gateways(payload)
        except (BrokerError, DirectoryError) as error:
            asked.append(ManagerResult(str(manager), clock() - began_s, 0, str(error)))
            continue
        problem = None if entries else "knows no gateway yet"
        asked.append(
            ManagerResult(str(manager), clock() - began_s, len(entries), problem)
        )
        if entries and not found:
            found, tls = list(entries), manager.tls
    return asked, found, tls


def find_serving_area(
    entries: Sequence[BrokerEntry], gateway: Endpoint, topic: str
) -> str | None:
    """The area by which a gateway was chosen: the longest that covers the topic."""
    areas = [e.topic for e in entries if str(e.broker_info) == str(gateway)]
    covering = [area for area in areas if covers(area, topic)]
    return max(covering or areas, key=len, default=None)


class LinkTester:
    """Tests gateways, one after the other.

    Args:
        identity: Identity and parameters.

    Attributes:
        used_bytes: Estimate of the bytes on the wire so far.
    """

    def __init__(self, identity: TestIdentity) -> None:
        self._identity = identity
        self.used_bytes = 0

    def try_gateway(self, gateway: Endpoint, area: str | None) -> GatewayResult:
        """Connect, deliver one test message, then a burst."""
        identity = self._identity
        notes = LinkTimings(identity.clock())
        links: list[InstrumentedConnection] = []
        queue = MemoryQueue(identity.sender.id, identity.boot, _BUDGET_BYTES)
        uplink = Uplink(
            queue,
            identity.sender,
            lambda endpoint, session, handler: self._connect(
                endpoint, session, handler, notes, links
            ),
            RateLimiter(None, (), LADDER.top, lambda: None),
            identity.clock,
        )
        thread = threading.Thread(target=uplink.run, name="link trial", daemon=True)
        thread.start()
        uplink.switch_to(gateway)
        try:
            return self._test(GatewayResult(str(gateway), area), queue, notes, links[0])
        finally:
            uplink.stop()
            thread.join()
            self._count(notes, gateway.tls)

    def _test(
        self,
        tried: GatewayResult,
        queue: MemoryQueue,
        notes: LinkTimings,
        link: InstrumentedConnection,
    ) -> GatewayResult:
        identity = self._identity
        if not self._wait_for(lambda: notes.subscribed_s, identity.timeouts.connect_s):
            none = "no answer" if notes.up_s is None else NO_SUBACK
            reason = link.last_reason or notes.reason or none
            return replace(tried, problem=f"cannot be reached: {reason}")
        up_s, subscribed_s = notes.up_s or 0.0, notes.subscribed_s or 0.0
        tried = replace(
            tried,
            connect_s=up_s - notes.start_s,
            round_trip_s=max(subscribed_s - up_s, 0.0),
        )
        began_s = identity.clock()
        text = "test message of an installer, no reading"
        id_ = queue.put([make_draft(identity.make_pack(0, text), identity.cell)])[0]
        if not self._wait_for(
            lambda: sum(queue.stats().acked.values()), identity.timeouts.receipt_s
        ):
            return replace(tried, problem=self._failure(notes), message_id=str(id_))
        receipt_times = [
            at_s for at_s, r in notes.receipts if id_ is not None and id_ in r
        ]
        tried = replace(
            tried,
            receipt_s=min(receipt_times, default=identity.clock()) - began_s,
            receipted=bool(receipt_times),
            message_id=str(id_),
        )
        return self._burst(tried, notes, link)

    def _burst(
        self, tried: GatewayResult, notes: LinkTimings, link: InstrumentedConnection
    ) -> GatewayResult:
        """Measure the rate from the first to the last acknowledgement of a burst."""
        identity = self._identity
        pieces = identity.burst_bytes // BURST_MESSAGE_BYTES
        if not pieces:
            return tried
        forward = ForwardTopic(
            cell_topic(identity.cell), LADDER.default, identity.sender.publisher_id
        )
        topic = str(forward)
        handed = link.publish_together([
            Publication(
                topic,
                encode_cbor(
                    identity.make_pack(seq, identity.filler(BURST_MESSAGE_BYTES))
                ),
            )
            for seq in range(2, pieces + 3)
        ])
        tokens = [each.token for each in handed]
        self._wait_for(
            lambda: all(token in notes.answers for token in tokens),
            identity.timeouts.burst_s,
        )
        acked = sorted((notes.answers[t][0], t) for t in tokens if t in notes.answers)
        if not acked:
            return tried
        sizes = [wire_bytes(notes.handed[token], is_first=False) for _, token in acked]
        return replace(
            tried, burst_bytes=sum(sizes[1:]), burst_s=acked[-1][0] - acked[0][0]
        )

    def _failure(self, notes: LinkTimings) -> str:
        refused = {why for _, why in notes.answers.values() if why is not None}
        if NO_SUBSCRIBERS in refused:
            return (
                "its broker answers, but no gateway takes messages there; "
                "start its gateway-daemon"
            )
        if refused:
            reasons = ", ".join(sorted(refused))
            return (
                f"refuses the test message ({reasons}); check the node's rights there"
            )
        waited = f"{self._identity.timeouts.receipt_s:g} s"
        if notes.answers:
            return f"gives no receipt within {waited}; see the gateway's log and disk"
        return f"answers nothing within {waited}; check the signal and the data plan"

    def _connect(
        self,
        endpoint: Endpoint,
        session: Session,
        handler: ConnectionHandler,
        notes: LinkTimings,
        links: list[InstrumentedConnection],
    ) -> InstrumentedConnection:
        identity = self._identity
        own_session = replace(session, client_id=session.client_id + CHECK_SUFFIX)
        receipts_on = custody_topic(identity.sender.id)
        recording = InstrumentedHandler(handler, notes, identity.clock, receipts_on)
        links.append(
            InstrumentedConnection(
                endpoint, own_session, recording, identity.tls, timings=notes
            )
        )
        return links[-1]

    def _wait_for(self, is_true: Callable[[], object], within_s: float) -> bool:
        """Wait for a condition; returns whether it became true in time."""
        until_s = self._identity.clock() + within_s
        pause = threading.Event()
        while not is_true():
            if self._identity.clock() >= until_s:
                return False
            pause.wait(_POLL_S)
        return True

    def _count(self, notes: LinkTimings, tls: bool) -> None:
        sent = sum(wire_bytes(size, is_first=True) for size in notes.handed.values())
        self.used_bytes += sent + HANDSHAKE_BYTES + TLS_BYTES * tls

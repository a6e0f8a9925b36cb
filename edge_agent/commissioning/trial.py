"""Tries a gateway as the agent would use it: connect, one test message, a burst.

The test message is a pack of priority 1 with a text and no number: every store on
the way keeps it, and no rule and no score reads it.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edge_agent.commissioning.link import Asked, Tried
from edge_agent.commissioning.overheard import NotedConnection, Notes, Overhearing
from edge_agent.queue.memory import MemoryQueue
from edge_agent.sampling import draft_of
from edge_agent.uplink.bucket import wire_bytes
from edge_agent.uplink.loads import Sender
from edge_agent.uplink.nearest import Fetch
from edge_agent.uplink.throttle import Throttle
from edge_agent.uplink.uplink import Uplink
from spatial_mqtt.cells import Cell
from spatial_mqtt.directory import Entry, decode_gateways
from spatial_mqtt.endpoint import Endpoint, TlsFiles
from spatial_mqtt.envelope import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.errors import BrokerError, DirectoryError
from spatial_mqtt.link import NO_TAKER, Handler, Publication, Session
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import (
    GATEWAY_INFO,
    Forward,
    cell_topic,
    covers,
    custody_topic,
)

TEST = "check/link"
"""Name of the test message's only reading."""

CHECK_SUFFIX = "-check"
"""The session of a check must not end the running agent's."""

PIECE_BYTES = 1000
HANDSHAKE_BYTES = 900
"""About what TCP, CONNECT, SUBSCRIBE and DISCONNECT take; TLS is more."""

TLS_BYTES = 4000
_POLL_S = 0.02
_BUDGET_BYTES = 1_000_000


@dataclass(frozen=True)
class Patience:
    """How long a check waits.

    Attributes:
        connect_s: For a session.
        receipt_s: For the receipt of the test message.
        burst_s: For the acknowledgement of the burst.
    """

    connect_s: float = 12.0
    receipt_s: float = 20.0
    burst_s: float = 60.0


@dataclass(frozen=True)
class Traveller:
    """Who tries the link.

    Attributes:
        sender: As the agent sends.
        cell: Where it stands.
        tls: Files for an ``mqtts`` gateway.
        boot: Random id of this trial, for its message ids.
        clock: Monotonic seconds.
        wall_s: Unix time.
        filler: Makes so many characters that do not compress.
        burst_bytes: Size of the burst; 0 for none.
        patience: How long to wait.
    """

    sender: Sender
    cell: Cell
    tls: TlsFiles
    boot: str
    clock: Callable[[], float]
    wall_s: Callable[[], float]
    filler: Callable[[int], str]
    burst_bytes: int
    patience: Patience = Patience()

    def pack(self, seq: int, text: str) -> Pack:
        """A test message."""
        return Pack(
            MessageId(self.sender.id, self.boot, seq),
            LADDER.default,
            round(self.wall_s(), 3),
            (Reading(TEST, None, text),),
        )


def ask(
    managers: Sequence[Endpoint], fetch: Fetch, clock: Callable[[], float]
) -> tuple[list[Asked], list[Entry], bool]:
    """Ask every Manager for its gateways.

    Returns:
        How each answered; the first list that names any, and whether its gateways
        are spoken to by TLS.
    """
    asked: list[Asked] = []
    found: list[Entry] = []
    tls = False
    for manager in managers:
        began_s = clock()
        try:
            entries = decode_gateways(fetch(manager, GATEWAY_INFO))
        except (BrokerError, DirectoryError) as error:
            asked.append(Asked(str(manager), clock() - began_s, 0, str(error)))
            continue
        problem = None if entries else "knows no gateway yet"
        asked.append(Asked(str(manager), clock() - began_s, len(entries), problem))
        if entries and not found:
            found, tls = list(entries), manager.tls
    return asked, found, tls


def area_of(entries: Sequence[Entry], gateway: Endpoint, topic: str) -> str | None:
    """The area by which a gateway was chosen: the longest that holds the topic."""
    areas = [e.topic for e in entries if str(e.broker_info) == str(gateway)]
    ours = [area for area in areas if covers(area, topic)]
    return max(ours or areas, key=len, default=None)


class Trial:
    """Tries one gateway after the other.

    Args:
        who: Who tries.

    Attributes:
        used_bytes: About what it has put on the wire so far.
    """

    def __init__(self, who: Traveller) -> None:
        self._who = who
        self.used_bytes = 0

    def try_gateway(self, gateway: Endpoint, area: str | None) -> Tried:
        """Connect, deliver one test message, then a burst."""
        who = self._who
        notes = Notes(who.clock())
        links: list[NotedConnection] = []
        queue = MemoryQueue(who.sender.id, who.boot, _BUDGET_BYTES)
        uplink = Uplink(
            queue,
            who.sender,
            lambda endpoint, session, handler: self._connect(
                endpoint, session, handler, notes, links
            ),
            Throttle(None, (), LADDER.top, lambda: None),
            who.clock,
        )
        thread = threading.Thread(target=uplink.run, name="link trial", daemon=True)
        thread.start()
        uplink.use(gateway)
        try:
            return self._tried(Tried(str(gateway), area), queue, notes, links[0])
        finally:
            uplink.stop()
            thread.join()
            self._count(notes, gateway.tls)

    def _tried(
        self, tried: Tried, queue: MemoryQueue, notes: Notes, link: NotedConnection
    ) -> Tried:
        who = self._who
        if not self._comes(lambda: notes.subscribed_s, who.patience.connect_s):
            reason = link.last_reason or notes.reason or "no answer"
            return replace(tried, problem=f"cannot be reached: {reason}")
        up_s, subscribed_s = notes.up_s or 0.0, notes.subscribed_s or 0.0
        tried = replace(
            tried,
            connect_s=up_s - notes.began_s,
            round_trip_s=max(subscribed_s - up_s, 0.0),
        )
        began_s = who.clock()
        text = "test message of an installer, no reading"
        id_ = queue.put([draft_of(who.pack(0, text), who.cell)])[0]
        if not self._comes(
            lambda: sum(queue.stats().acked.values()), who.patience.receipt_s
        ):
            return replace(tried, problem=self._why_not(notes), message_id=str(id_))
        told_s = [at_s for at_s, r in notes.receipts if id_ is not None and id_ in r]
        tried = replace(
            tried,
            receipt_s=min(told_s, default=who.clock()) - began_s,
            receipted=bool(told_s),
            message_id=str(id_),
        )
        return self._burst(tried, notes, link)

    def _burst(self, tried: Tried, notes: Notes, link: NotedConnection) -> Tried:
        """What is acknowledged after the first of it, over the time that it takes."""
        who = self._who
        pieces = who.burst_bytes // PIECE_BYTES
        if not pieces:
            return tried
        forward = Forward(cell_topic(who.cell), LADDER.default, who.sender.by)
        topic = str(forward)
        handed = link.publish_together([
            Publication(topic, encode_cbor(who.pack(seq, who.filler(PIECE_BYTES))))
            for seq in range(2, pieces + 3)
        ])
        tokens = [each.token for each in handed]
        self._comes(
            lambda: all(token in notes.answered for token in tokens),
            who.patience.burst_s,
        )
        came = sorted((notes.answered[t][0], t) for t in tokens if t in notes.answered)
        if not came:
            return tried
        sizes = [wire_bytes(notes.handed[token], is_first=False) for _, token in came]
        return replace(
            tried, burst_bytes=sum(sizes[1:]), burst_s=came[-1][0] - came[0][0]
        )

    def _why_not(self, notes: Notes) -> str:
        refused = {why for _, why in notes.answered.values() if why is not None}
        if NO_TAKER in refused:
            return (
                "its broker answers, but no gateway takes messages there; "
                "start its gateway-daemon"
            )
        if refused:
            words = ", ".join(sorted(refused))
            return f"refuses the test message ({words}); check the node's rights there"
        waited = f"{self._who.patience.receipt_s:g} s"
        if notes.answered:
            return f"gives no receipt within {waited}; see the gateway's log and disk"
        return f"answers nothing within {waited}; check the signal and the data plan"

    def _connect(
        self,
        endpoint: Endpoint,
        session: Session,
        handler: Handler,
        notes: Notes,
        links: list[NotedConnection],
    ) -> NotedConnection:
        who = self._who
        ours = replace(session, client_id=session.client_id + CHECK_SUFFIX)
        receipts_on = custody_topic(who.sender.id)
        hearing = Overhearing(handler, notes, who.clock, receipts_on)
        links.append(NotedConnection(endpoint, ours, hearing, who.tls, notes=notes))
        return links[-1]

    def _comes(self, is_true: Callable[[], object], within_s: float) -> bool:
        """Whether something becomes true in time."""
        until_s = self._who.clock() + within_s
        rest = threading.Event()
        while not is_true():
            if self._who.clock() >= until_s:
                return False
            rest.wait(_POLL_S)
        return True

    def _count(self, notes: Notes, tls: bool) -> None:
        sent = sum(wire_bytes(size, is_first=True) for size in notes.handed.values())
        self.used_bytes += sent + HANDSHAKE_BYTES + TLS_BYTES * tls

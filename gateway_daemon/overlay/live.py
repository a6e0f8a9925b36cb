"""The overlay live: one loop that drives a gateway's node over the post.

What clients are to hear is stored before any packet goes out that says we have it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from edge_agent.uplink.bucket import TokenBucket, wire_bytes
from gateway_daemon.overlay import wire
from gateway_daemon.overlay.errors import OverlayError
from gateway_daemon.overlay.names import Name
from gateway_daemon.overlay.node import Node
from gateway_daemon.overlay.packets import Message
from gateway_daemon.overlay.post import Post
from gateway_daemon.overlay.todo import Carried, Ended, Letter
from spatial_mqtt.daemon import start_loop
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.errors import TopicError
from spatial_mqtt.pulse import Beat, Pulse

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Longest wait: peers, retries and the source are looked at so often."""

TOGETHER = 200
"""Events that are served before packets go out: one commit for all they bring."""

SILENCE_S = 60.0

Heard = Sequence[tuple[Message, Carried]]


class Source(Protocol):
    """Where publications come from, and who hears what came of them."""

    def look(self, now_s: float) -> None:
        """Publish what waits; called again and again in the loop."""

    def ended(self, ended: Ended) -> None:
        """A publication has come to its end."""


@dataclass(frozen=True)
class Surroundings:
    """What a gateway knows of the others before it starts.

    Attributes:
        name: Its own name.
        peers: Brokers where names may be found.
        rate_bytes_per_s: Most wire bytes of copies in a second; None is no limit.
    """

    name: Name
    peers: tuple[BrokerInfo, ...] = ()
    rate_bytes_per_s: float | None = None


class Live:
    """Runs a node.

    Args:
        around: Our name and peers.
        node: The state machine.
        make_post: Makes the post, given how to run an event in our loop.
        store: Stores what clients are to hear, on disk before it returns.
        pulse: Listens to our loop, and has the clock.

    Attributes:
        source: Where publications come from; None when somebody calls `publish`.
        heard, sent: Messages for our clients and copies for others, since the start.
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
        self.heard = self.sent = 0
        self._around = around
        self._node = node
        self._store = store
        self._pulse = pulse
        self._clock = pulse.clock
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._post = make_post(self._events.put)
        self._post.hears = self
        self._bucket = TokenBucket.of_rate(around.rate_bytes_per_s)
        self._was_in_company = False

    @property
    def is_in_company(self) -> bool:
        """Whether another gateway is reached."""
        return self._node.is_in_company

    @property
    def waiting(self) -> int:
        """Copies that wait to be sent."""
        return self._node.waiting

    def start(self) -> None:
        """Join the overlay, in a thread."""
        start_loop(self._pulse, "overlay", SILENCE_S, self.run)

    def stop(self) -> None:
        """Leave the overlay: say so to the neighbours, and end."""
        self._events.put(None)

    def listen(self, filters: frozenset[str]) -> None:
        """Our clients listen to these; from any thread."""
        self._events.put(lambda: self._node.listen(filters, self._clock()))

    def wake(self) -> None:
        """The source has something; from any thread."""
        self._events.put(_nothing)

    def cut(self, is_cut: bool) -> None:
        """Say whether the backbone is out of reach; only in our loop."""
        self._node.is_cut = is_cut

    def publish(self, message_id: str, priority: int, carried: Carried) -> None:
        """Publish; only in our loop, and only what somebody may publish."""
        payload = msgspec.msgpack.encode(carried)
        message = Message(message_id, priority, payload)
        try:
            self._node.publish(message, carried.topic, self._clock())
        except TopicError as error:  # nobody can ever hear it
            log.error("not published on the overlay: %s", error)  # noqa: TRY400
            self._node.give_up(message_id)

    def on_frame(self, frame: bytes) -> None:
        """See `post.Hears`."""
        try:
            self._node.receive(*wire.decode(frame), self._clock())
        except OverlayError as error:
            log.warning("a frame is dropped: %s", error)

    def on_name(self, name: str) -> None:
        """See `post.Hears`."""
        try:
            Name.parse(name)
        except OverlayError as error:
            log.warning("a name is not used: %s", error)
        else:
            self._node.contact(name, self._clock())

    def run(self, beat: Beat) -> None:
        """Serve until `stop`."""
        around = self._around
        self._post.start(str(around.name), around.peers, self._clock())
        self._node.start(self._clock())
        while self._serve(self._wait_s()):
            beat()
            if self.source is not None:
                self.source.look(self._clock())
            self._node.due(self._clock())
            self._act()
            self._tell_company()
        self._node.leave(self._clock())
        self._act()
        self._post.stop()

    def _tell_company(self) -> None:
        is_in = self.is_in_company
        if is_in != self._was_in_company:
            self._was_in_company = is_in
            log.info("overlay: %s", "others are reached" if is_in else "alone")

    def _serve(self, wait_s: float) -> bool:
        """Take what has come; whether to go on."""
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
        """Do what the node says: first store, then tell."""
        todo = self._node.collect()
        if todo.heard:
            self.heard += len(todo.heard)
            self._store(todo.heard)
        for letter in todo.letters:
            self._send(letter)
        for ended in todo.ended:
            if self.source is not None:
                self.source.ended(ended)
        now_s = self._clock()
        while self._bucket.wait_s(now_s) <= 0 and (copy := self._node.take(now_s)):
            self.sent += 1
            self._send(copy)
        self._post.rest(now_s)

    def _send(self, letter: Letter) -> None:
        frame = wire.encode(*letter)
        try:
            to = Name.parse(letter.to.gateway)
        except OverlayError as error:
            log.warning("a packet is not sent: %s", error)
            return
        now_s = self._clock()
        self._bucket.spend(wire_bytes(len(frame), is_first=True), now_s)
        self._post.send(to.broker, to.id, frame, now_s)


def _nothing() -> None:
    """An event that only wakes the loop."""

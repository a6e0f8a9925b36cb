"""Overlay node of a gateway: its keys, its publications and its subscriptions.

A gateway has a *home* key for its lifetime, a subscriber key for each area its clients
subscribe to, and a publisher key for each area they publish in. A publication goes to
several areas and ends when all of them have ended.

Pure state machine: methods take the time and collect their output in an `Outbox`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gateway_daemon.overlay.ddll import RHYTHM, Link, Rhythm
from gateway_daemon.overlay.forwarder import Backlog, Forwarder
from gateway_daemon.overlay.keys import (
    Key,
    OverlayError,
    Role,
    stretch_of,
    stretches_for,
    subscribers_of,
    valley_of,
)
from gateway_daemon.overlay.messages import (
    Action,
    Copy,
    Deliver,
    Done,
    Message,
    Packet,
    Receipt,
    Report,
)
from gateway_daemon.overlay.peers import Census, Contacts
from gateway_daemon.overlay.publisher_suspension import (
    AskHeard,
    Heard,
    Suspension,
    Whisper,
)
from gateway_daemon.overlay.skip_graph_node import Locate, Mail, Place
from gateway_daemon.overlay.timeouts import PATIENCE, Patience, RoundTrips
from gateway_daemon.overlay.wire_format import Spoken
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import matches


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A client's message inside one of the overlay.

    Attributes:
        topic: Where subscribers see it.
        payload: What.
        age_s: How late it was when it was published here.
    """

    topic: str
    payload: bytes
    age_s: float = 0.0


class Letter(NamedTuple):
    """A packet to send."""

    to: Key
    sender: Key
    packet: Spoken


class Ended(NamedTuple):
    """A publication has come to its end.

    Attributes:
        id: Of the message.
        reached: Subscriptions that were reached, on all stretches.
        is_whole: Whether nobody had to be given up.
    """

    id: str
    reached: int
    is_whole: bool


@dataclass
class Todo:
    """What a gateway has to do."""

    letters: list[Letter] = field(default_factory=list)
    heard: list[tuple[Message, Carried]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)


def carried_by(message: Message) -> Carried:
    """The client's message inside one of the overlay.

    Raises:
        OverlayError: There is none.
    """
    try:
        return msgspec.msgpack.decode(message.payload, type=Carried)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        rule = f"a client's message ({error})"
        raise OverlayError("message", rule, message.id) from error


@dataclass
class _Open:
    stretches: set[str]
    reached: int = 0
    is_whole: bool = True


class Publications:
    """What one gateway publishes."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def begin(self, message_id: str, stretches: Iterable[str]) -> None:
        """A message goes to these; one that is sent again begins anew."""
        self._open[message_id] = _Open(set(stretches))

    def end(
        self, message_id: str, stretch: str, reached: int, is_whole: bool
    ) -> Ended | None:
        """One stretch is done; what there is to tell when all are."""
        publication = self._open.get(message_id)
        if publication is None or stretch not in publication.stretches:
            return None
        publication.stretches.discard(stretch)
        publication.reached += reached
        publication.is_whole &= is_whole
        if publication.stretches:
            return None
        del self._open[message_id]
        return Ended(message_id, publication.reached, publication.is_whole)


MOST_REMEMBERED = 10_000

ALONE_AFTER_S = 3.0
"""Who hears of nobody for so long begins a ring, which a meeting may join later."""

BUSY = 4
"""So many copies in our queue make the way out of the valley narrow."""

HURRY = 4
"""Who is not in looks so many times in the time of an answer."""

MOST_TRIES = 32
"""Who let us in so often and is silent then is gone: we begin a ring."""

PUBLISHER_RESTS_S = 1800.0
"""A publisher that says nothing for so long gives its key back."""


class Node:
    """One gateway.

    Args:
        name: As `names.Name` writes it.
        choose: Takes one of several by chance.
        rhythm: Of the links.
        patience: Of the forwarders.

    Attributes:
        home: The key that it has as long as it lives.
        trips: How long the others take to answer.
        is_cut: Whether the backbone is out of reach, so a slow radio may be all there
            is; set by its owner.
    """

    def __init__(
        self,
        name: str,
        choose: Callable[[Sequence[Key]], Key],
        rhythm: Rhythm = RHYTHM,
        patience: Patience = PATIENCE,
    ) -> None:
        self.home = _home(name)
        self.is_cut = False
        self._name = name
        self._choose = choose
        self._rhythm = rhythm
        self._patience = patience
        self.trips: RoundTrips[Key] = RoundTrips(patience, lambda key: key.gateway)
        self._places: dict[Key, Place] = {}
        self._forwarders: dict[Key, Forwarder[Key]] = {}
        self._suspensions: dict[Key, Suspension] = {}
        self._links: dict[Key, tuple[Key, Key]] = {}
        self._used_s: dict[Key, float] = {}
        self._meets_s: dict[Key, float] = {}
        self._contacts = Contacts(name, rhythm.answer_s)
        self._filters: frozenset[str] = frozenset()
        self._backlog: Backlog[Letter] = Backlog()
        self._publications = Publications()
        self._seen: dict[str, None] = {}
        self._own: list[Letter] = []
        self._tries = 0
        self._todo = Todo()

    @property
    def is_in_company(self) -> bool:
        """Whether another gateway is on our ring."""
        place = self._places.get(self.home)
        if place is None or not place.is_in:
            return False
        return any(
            key.gateway != self._name
            for each in self._places.values()
            for key in (each.links[0].left, each.links[0].right)
        )

    @property
    def waiting(self) -> int:
        """Copies that wait to be sent."""
        return len(self._backlog)

    def joined(self) -> list[Key]:
        """Our keys that are in the ring, in order."""
        return sorted(key for key, place in self._places.items() if place.is_in)

    def neighbours(self, key: Key) -> tuple[Key, Key]:
        """Left and right neighbour of one of our keys on level 0."""
        link = self._places[key].links[0]
        return link.left, link.right

    def links_of(self, key: Key) -> Sequence[Link[Key]]:
        """Links of one of our keys, by level."""
        return self._places[key].links

    def start(self, now_s: float) -> None:
        """Join, as soon as somebody is known."""
        self._add(self.home, now_s)
        self._meets_s[self.home] = now_s + ALONE_AFTER_S
        self._settle(now_s)

    def contact(self, name: str, now_s: float) -> None:
        """A gateway is known by name; it need not be there."""
        if self._contacts.add(name) and self.home in self._places:
            self._post(self.home, [Mail(_home(name), Locate(self.home))])
            self._settle(now_s)

    def census(self) -> Census:
        """Which of the gateways that we know answer."""
        return self._contacts.census()

    def listen(self, filters: frozenset[str], now_s: float) -> None:
        """Our clients listen to these."""
        self._filters = filters
        wanted = {
            Key(stretch_of(each), Role.SUBSCRIBER, self._name) for each in filters
        }
        ours = {key for key in self._meets_s if key.role == Role.SUBSCRIBER}
        for key in wanted - ours:
            self._add(key, now_s)
        for key in ours - wanted:
            self._go(key, now_s)
        self._settle(now_s)

    def publish(self, message: Message, topic: str, now_s: float) -> None:
        """Publish to everybody who listens to a topic; `Ended` tells how it went.

        Args:
            message: Its payload is an encoded `Carried`.
            topic: Where subscribers see it.
            now_s: Now.

        Raises:
            TopicError: Nobody may publish there.
        """
        stretches = stretches_for(topic)
        self._hear(message)  # our own clients
        if not self.is_in_company:
            self._todo.ended.append(Ended(message.id, 0, is_whole=False))
            return
        self._publications.begin(message.id, stretches)
        for stretch in stretches:
            key = Key(stretch, Role.PUBLISHER, self._name)
            self._used_s[key] = now_s
            if key not in self._meets_s:
                self._add(key, now_s)
            self._publish(message, key, now_s)
        self._settle(now_s)

    def give_up(self, message_id: str) -> None:
        """Say of a publication that it has come to its end, and reached nobody."""
        self._todo.ended.append(Ended(message_id, 0, is_whole=True))

    def receive(self, to: Key, sender: Key, packet: Spoken, now_s: float) -> None:
        """Take what came for one of our keys; for a key we have not, nothing.

        Raises:
            OverlayError: A message in it is none of ours.
        """
        if isinstance(packet, Copy):
            carried_by(packet.message)
        self._contacts.heard(sender.gateway, now_s)
        self._take(Letter(to, sender, packet), now_s)
        self._settle(now_s)

    def next_due_s(self) -> float | None:
        """When `due` has something to do."""
        dues = [place.next_due_s() for place in self._places.values()]
        dues += [forwarder.next_due_s() for forwarder in self._forwarders.values()]
        dues += self._meets_s.values()
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def due(self, now_s: float) -> None:
        """Look at neighbours, send again, meet somebody."""
        for key, place in list(self._places.items()):
            self._post(key, place.due(now_s))
        for key, forwarder in list(self._forwarders.items()):
            self._act(key, forwarder.due(now_s), now_s)
        for key, due_s in list(self._meets_s.items()):
            if due_s <= now_s:
                self._meet(key, now_s)
        for key, used_s in list(self._used_s.items()):
            if now_s - used_s > PUBLISHER_RESTS_S:
                del self._used_s[key]
                self._go(key, now_s)
        self._settle(now_s)

    def leave(self, now_s: float) -> None:
        """Leave in order."""
        for key in list(self._places):
            self._go(key, now_s)
        self._settle(now_s)

    def take(self, now_s: float) -> Letter | None:
        """The copy to send next, if one waits: the urgent first."""
        while len(self._backlog):
            letter = self._backlog.take(now_s)
            forwarder = self._forwarders.get(letter.sender)
            if forwarder is not None and isinstance(letter.packet, Copy):
                forwarder.leaves(letter.packet.number, now_s)
                return letter
        return None

    def collect(self) -> Todo:
        """What is to be done, once."""
        todo, self._todo = self._todo, Todo()
        return todo

    def _add(self, key: Key, now_s: float) -> None:
        place = self._places[key] = Place(key, self._rhythm)
        self._forwarders[key] = self._forwarder(place)
        if key.role == Role.PUBLISHER and key.topic:
            self._suspensions[key] = Suspension(key)
        self._meets_s[key] = now_s

    def _forwarder(self, place: Place) -> Forwarder[Key]:
        return Forwarder(place.key, place, self._patience, _valley, trips=self.trips)

    def _go(self, key: Key, now_s: float) -> None:
        self._meets_s.pop(key, None)
        self._post(key, self._places[key].leave(now_s))

    def _forget(self, key: Key) -> None:
        for table in (self._places, self._forwarders, self._suspensions, self._links):
            table.pop(key, None)

    def _meet(self, key: Key, now_s: float) -> None:
        """Let somebody known look where our place is: on the way in, and ever after.

        More neighbours than are known may die at once, or the network be cut in two;
        the list is then several rings, and meetings join them.
        """
        place, rhythm = self._places[key], self._rhythm
        self._meets_s[key] = now_s + (
            rhythm.ping_s if place.is_in else rhythm.answer_s / HURRY
        )
        ours = [k for k, each in self._places.items() if each.is_in and k != key]
        around = (ours, [_home(name) for name in self._contacts.names()])
        if others := [self._choose(keys) for keys in around if keys]:
            whom = self._choose(others) if place.is_in else others[0]
            self._post(key, [Mail(whom, Locate(key))])
        if key != self.home:
            return
        if place.is_in:
            for name in self._contacts.to_ask(now_s):
                self._post(key, place.ask(_home(name)))
            return
        self._tries += 1
        if place.is_gone or self._tries >= MOST_TRIES:
            self._tries = 0
            place = self._places[key] = Place(key, rhythm)
            self._forwarders[key] = self._forwarder(place)
            place.found(now_s)

    def _publish(self, message: Message, key: Key, now_s: float) -> None:
        is_in = self._places[key].is_in
        is_silent = is_in and not self._suspensions[key].is_heard
        # A message too many costs less than a warning too few.
        if is_silent and message.priority < LADDER.top:
            self._end(message.id, key.topic, 0, is_whole=True)
            return
        own = key if is_in else self.home
        low, high = subscribers_of(key.topic)
        forwarder = self._informed(own)
        self._act(own, forwarder.publish(message, low, high, now_s), now_s)

    def _informed(self, key: Key) -> Forwarder[Key]:
        """A forwarder that knows how our way out is."""
        forwarder = self._forwarders[key]
        forwarder.waiting = self.waiting
        forwarder.is_narrow = self.is_cut or self.waiting >= BUSY
        return forwarder

    def _take(self, letter: Letter, now_s: float) -> None:
        to, sender, packet = letter
        place = self._places.get(to)
        if place is None:
            return
        match packet:
            case Copy() | Receipt() | Report():
                forwarder = self._informed(to)
                self._act(to, forwarder.receive(sender, packet, now_s), now_s)
            case Heard() | AskHeard():
                if to in self._suspensions:
                    said = self._suspensions[to].receive(sender, packet)
                    self._whisper(to, said)
            case _:
                self._post(to, place.receive(sender, packet, now_s))

    def _settle(self, now_s: float) -> None:
        """Serve what our keys say to each other; tell publishers of new neighbours."""
        while self._own:
            letters, self._own = self._own, []
            for letter in letters:
                self._take(letter, now_s)
        for key, place in list(self._places.items()):
            if place.is_gone and key not in self._meets_s:
                self._forget(key)
        for key, suspension in list(self._suspensions.items()):
            if self._places[key].is_in and self._links.get(key) != (
                links := self.neighbours(key)
            ):
                self._links[key] = links
                self._whisper(key, suspension.neighbours(*links))
        if self._own:
            self._settle(now_s)

    def _whisper(self, key: Key, said: Iterable[Whisper]) -> None:
        self._post(key, [Mail(to, packet) for to, packet in said])

    def _post(self, sender: Key, mail: Iterable[Mail]) -> None:
        for to, packet in mail:
            self._send(Letter(to, sender, packet))

    def _send(self, letter: Letter) -> None:
        if letter.to.gateway == self._name:
            self._own.append(letter)
        else:
            self._todo.letters.append(letter)

    def _act(self, key: Key, actions: Iterable[Action[Key]], now_s: float) -> None:
        for action in actions:
            match action:
                case Deliver(message):
                    self._hear(message)
                case Done(own, count, is_whole):
                    if own.tree == 0:
                        self._end(own.message.id, own.low.topic, count, is_whole)
                case _:
                    self._forward(Letter(action.to, key, action.packet), now_s)

    def _forward(self, letter: Letter, now_s: float) -> None:
        """Send a packet of a forwarder: copies wait for their turn."""
        packet: Packet[Key] = letter.packet  # type: ignore[assignment]
        if not isinstance(packet, Copy) or letter.to.gateway == self._name:
            self._send(letter)
            return
        self._forwarders[letter.sender].leaves(packet.number, float("inf"))
        self._backlog.put(letter, packet.message.priority, now_s)

    def _hear(self, message: Message) -> None:
        """Hand a message to our clients, once, if they want it."""
        if message.id in self._seen:
            return
        carried = carried_by(message)
        if not any(matches(each, carried.topic) for each in self._filters):
            return
        self._seen[message.id] = None
        if len(self._seen) > MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._todo.heard.append((message, carried))

    def _end(self, id_: str, stretch: str, reached: int, is_whole: bool) -> None:
        """One stretch of a publication has come to its end."""
        ended = self._publications.end(id_, stretch, reached, is_whole)
        if ended is not None:
            self._todo.ended.append(ended)


def _home(name: str) -> Key:
    return Key("", Role.PUBLISHER, name)


def _valley(key: Key) -> str:
    return valley_of(key.gateway)

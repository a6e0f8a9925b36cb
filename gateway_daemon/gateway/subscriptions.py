"""Who on a gateway's broker listens to what, and where that must be asked for. No I/O.

A client need only subscribe: its broker tells (see `watch`). A Gamma client says it
again on ``/api/register``, without its name, which counts where the broker is mute.

Finds out who subscribes on the gateway's own broker.

Stock Mosquitto tells on ``$SYS/broker/log/...`` when its configuration has
``log_dest topic`` and ``log_type subscribe unsubscribe notice``. A lasting session
of ours makes the broker keep what is said while the daemon is down.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from service_runtime.files import write_best_effort
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo, BrokerTable
from spatial_mqtt.topics import (
    CLIENT_LOG,
    REGISTER,
    SUBSCRIBE_LOG,
    UNREGISTER,
    UNSUBSCRIBE_LOG,
    covers,
    fixed_part,
    is_of_the_system,
    meets,
)
from spatial_mqtt.transport import ConnectionHandler, Incoming, Session

_SUBSCRIBED = re.compile(r"\d+: (?P<client>.+?) [012] (?P<filter>.+)")
_UNSUBSCRIBED = re.compile(r"\d+: (?P<client>.+?) (?P<filter>[/+#].*)")
_CONNECTED = re.compile(
    r"\d+: New client connected from \S+ as (?P<client>.+) \(p\d, c(?P<clean>[01]),.*"
)
_GONE = re.compile(
    r"\d+: Client (?P<client>.+?) "
    r"(?:\[\S+\] )?(?:disconnected|closed its connection|has exceeded timeout).*"
)


MOST_PRESUMED = 1000
"""Clients with random names leave one behind at each restart of their broker."""


class Kept(msgspec.Struct, frozen=True):
    """What survives a restart of the daemon."""

    clients: dict[str, tuple[str, ...]] = {}
    lasting: tuple[str, ...] = ()
    presumed: tuple[str, ...] = ()
    counted: dict[str, int] = {}


class Subscriptions:
    """A table with reference counts: of each client, and of the nameless."""

    def __init__(self, kept: Kept | None = None) -> None:
        kept = kept or Kept()
        self._clients = {name: set(filters) for name, filters in kept.clients.items()}
        self._lasting = set(kept.lasting)
        self._presumed = dict.fromkeys(kept.presumed)
        self._counted = Counter(kept.counted)
        self._is_told = False

    @property
    def filters(self) -> frozenset[str]:
        """Everything that somebody listens to, our own business apart."""
        named = [f for filters in self._clients.values() for f in filters]
        nameless = [] if self._is_told else [f for f, n in self._counted.items() if n]
        return frozenset(f for f in (*named, *nameless) if not is_of_the_system(f))

    def keep(self) -> Kept:
        """What should survive a restart."""
        return Kept(
            {name: tuple(sorted(filters)) for name, filters in self._clients.items()},
            tuple(sorted(self._lasting)),
            tuple(self._presumed),
            dict(+self._counted),
        )

    def subscribed(self, line: str) -> None:
        """The broker logged a SUBSCRIBE."""
        self._is_told = True
        if found := _SUBSCRIBED.fullmatch(line):
            self._clients.setdefault(found["client"], set()).add(found["filter"])

    def unsubscribed(self, line: str) -> None:
        """The broker logged an UNSUBSCRIBE."""
        if found := _UNSUBSCRIBED.fullmatch(line):
            self._clients.get(found["client"], set()).discard(found["filter"])

    def client(self, line: str) -> None:
        """The broker logged that a client came or went.

        A client that asked for a lasting session is still listening when it is
        away: its broker keeps the messages for it.
        """
        if found := _CONNECTED.fullmatch(line):
            if found["clean"] == "1" or found["client"] in self._presumed:
                self._forget(found["client"])
            if found["clean"] == "0":
                self._lasting.add(found["client"])
        elif (found := _GONE.fullmatch(line)) and found["client"] not in self._lasting:
            self._forget(found["client"])

    def registered(self, filter_: str) -> None:
        """A Gamma client registered a filter."""
        self._counted[filter_] += 1

    def unregistered(self, filter_: str) -> None:
        """A Gamma client took a filter back."""
        self._counted[filter_] = max(0, self._counted[filter_] - 1)

    def broker_restarted(self) -> None:
        """The broker has forgotten its clients, and tells of those that come after us.

        One that was quicker than we is never told of while it stays, so each is
        presumed to have come back, until it is told of. A filter too many costs some
        of our link, one too few a siren that hears nothing.
        """
        self._lasting.clear()
        listening = [name for name, filters in self._clients.items() if filters]
        self._presumed = dict.fromkeys(listening[-MOST_PRESUMED:])
        self._clients = {name: self._clients[name] for name in self._presumed}

    def _forget(self, client: str) -> None:
        self._lasting.discard(client)
        self._presumed.pop(client, None)
        self._clients.pop(client, None)


def asked_of(
    filters: Iterable[str], table: BrokerTable
) -> dict[BrokerInfo, frozenset[str]]:
    """Which filters each distributed broker must be asked for.

    A filter goes to *every* broker that holds a topic it takes, not only to the
    first: messages of a sub-area are on the sub-area's broker. A broker whose whole
    part of the filter is somebody else's sub-area is left out.
    """
    asked: dict[BrokerInfo, set[str]] = {b.broker_info: set() for b in table.brokers}
    for filter_ in filters:
        fixed = fixed_part(filter_)
        holders = [b.topic for b in table.brokers if covers(b.topic, fixed)]
        closest = max(holders, key=len, default="")
        for entry in table.brokers:
            if meets(filter_, entry.topic) and len(entry.topic) >= len(closest):
                asked[entry.broker_info].add(filter_)
    return {broker: frozenset(told) for broker, told in asked.items()}


log = logging.getLogger(__name__)

SESSION_EXPIRY_S = 7 * 86_400
LISTENS_TO = (SUBSCRIBE_LOG, UNSUBSCRIBE_LOG, CLIENT_LOG, REGISTER, UNREGISTER)

Connect = Callable[[Session, ConnectionHandler], Connection]


class Watch:
    """Keeps the table of subscriptions.

    Args:
        gateway_id: Names the session.
        connect: Makes the connection to the gateway's own broker.
        path: File that keeps the table.
        on_change: Called with all filters after a change, in the network thread.
    """

    def __init__(
        self,
        gateway_id: str,
        connect: Connect,
        path: Path,
        on_change: Callable[[frozenset[str]], object],
    ) -> None:
        self._path = path
        self._on_change = on_change
        self._table = Subscriptions(_recalled(path))
        self._told: frozenset[str] | None = None
        session = Session(
            f"{gateway_id}-watch",
            filters=tuple((topic, 1) for topic in LISTENS_TO),
            expiry_s=SESSION_EXPIRY_S,
        )
        self._is_subscribed = False
        self._connection = connect(session, self)

    @property
    def is_up(self) -> bool:
        """Whether we hear of who subscribes: what was said before is not repeated."""
        return self._is_subscribed and self._connection.is_up

    def start(self) -> None:
        """Begin to connect, with what is remembered."""
        self._tell()
        self._connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        if not session_present:
            self._table.broker_restarted()
            self._tell()

    def on_down(self, reason: str) -> None:
        self._is_subscribed = False

    def on_message(self, message: Incoming) -> None:
        line = message.payload.decode(errors="replace")
        match message.topic:
            case t if t == SUBSCRIBE_LOG:
                self._table.subscribed(line)
            case t if t == UNSUBSCRIBE_LOG:
                self._table.unsubscribed(line)
            case t if t == CLIENT_LOG:
                self._table.client(line)
            case t if t == REGISTER:
                self._table.registered(line)
            case _:
                self._table.unregistered(line)
        self._tell()

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        self._is_subscribed = True

    def _tell(self) -> None:
        filters = self._table.filters
        if filters == self._told:
            return
        self._told = filters
        write_best_effort(self._path, msgspec.json.encode(self._table.keep()))
        log.info("clients listen to %s", ", ".join(sorted(filters)) or "nothing")
        self._on_change(filters)


def _recalled(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        log.warning("remembered subscriptions are not used: %s", error)
        return None

"""Subscriptions of clients at the own broker, and the filters for each broker.

Subscriptions are discovered from Mosquitto's log topics. A Gamma client also registers
its filters on ``/api/register``, without its name; those count only while the broker
logs no subscriptions.
"""

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import MAX_SHOWN_CHARS
from service_runtime.files import write_best_effort
from service_runtime.lifecycle import LogLimit
from spatial_mqtt.directory import BrokerInfo, BrokerTable
from spatial_mqtt.topics import (
    CLIENT_LOG,
    MAX_TOPIC_CHARS,
    REGISTER,
    SUBSCRIBE_LOG,
    UNREGISTER,
    UNSUBSCRIBE_LOG,
    can_match_in,
    covers,
    filter_area,
    is_filter,
    is_system_topic,
)
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    Connect,
    IncomingMessage,
    Session,
)

log = logging.getLogger(__name__)

SESSION_EXPIRY_S = 7 * 86_400
DISCOVERY_TOPICS = (SUBSCRIBE_LOG, UNSUBSCRIBE_LOG, CLIENT_LOG, REGISTER, UNREGISTER)
MAX_PRESUMED = 1000
"""Clients with random names leave one entry at each restart of their broker."""

MAX_CLIENTS = 20_000
MAX_FILTERS_OF_CLIENT = 100
"""Further filters of a client are ignored; a siren or an analyst has a few."""

MAX_REGISTERED = 1000
"""Filters that Gamma clients register, which have no names."""

CHANGE_INTERVAL_S = 0.5
"""Shortest time between two changes. The first one takes effect at once."""

MAX_LOGGED = 5
"""Filters in a log line."""

_SUBSCRIBED = re.compile(r"\d+: (?P<client>.+?) [012] (?P<filter>.+)")
_UNSUBSCRIBED = re.compile(r"\d+: (?P<client>.+?) (?P<filter>[/+#].*)")
_CONNECTED = re.compile(
    r"\d+: New client connected from \S+ as (?P<client>.+) \(p\d, c(?P<clean>[01]),.*"
)
# A client's id may contain such words itself: what the broker adds comes last. When a
# session is taken over, the new connection is logged next.
_DISCONNECTED = re.compile(
    r"\d+: Client (?!.* already connected, closing old connection\.)(?P<client>.+) "
    r"(?:disconnected(?:| due to .+|: .+|, not authorised)|closed its connection|"
    r"been disconnected by administrative action|has exceeded timeout, disconnecting)\."
)
_ADDRESS = re.compile(r" \[\S+:\d+\]$")


class SavedSubscriptions(msgspec.Struct, frozen=True):
    """State of `SubscriptionTable` in its file.

    Attributes:
        clients: Filters by client.
        lasting: Clients with persistent sessions.
        presumed: Clients presumed to be connected after a restart of the broker.
        counted: Number of registrations by filter.
    """

    clients: dict[str, tuple[str, ...]] = {}
    lasting: tuple[str, ...] = ()
    presumed: tuple[str, ...] = ()
    counted: dict[str, int] = {}


class SubscriptionTable:
    """Filters by client, and reference counts of the registered filters. No I/O."""

    def __init__(self, saved: SavedSubscriptions | None = None) -> None:
        saved = saved or SavedSubscriptions()
        self._clients = {name: set(filters) for name, filters in saved.clients.items()}
        self._persistent = set(saved.lasting)
        self._presumed = dict.fromkeys(saved.presumed)
        self._registered = Counter(saved.counted)
        self._is_logged = False

    @property
    def filters(self) -> frozenset[str]:
        """All filters of clients that brokers accept, without system topics."""
        filters = [f for filters in self._clients.values() for f in filters]
        if not self._is_logged:
            filters += [f for f, count in self._registered.items() if count]
        return frozenset(
            f for f in set(filters) if not is_system_topic(f) and is_filter(f)
        )

    def to_state(self) -> SavedSubscriptions:
        """State to restore after a restart."""
        return SavedSubscriptions(
            {name: tuple(sorted(filters)) for name, filters in self._clients.items()},
            tuple(sorted(self._persistent)),
            tuple(self._presumed),
            dict(+self._registered),
        )

    def on_subscribe_log(self, line: str) -> None:
        """Handle a log line about a SUBSCRIBE."""
        self._is_logged = True
        found = _SUBSCRIBED.fullmatch(line)
        if found is None or len(found["filter"]) > MAX_TOPIC_CHARS:
            return
        client = found["client"]
        filters = self._clients.get(client, set())
        is_known = client in self._clients or len(self._clients) < MAX_CLIENTS
        if is_known and len(filters) < MAX_FILTERS_OF_CLIENT:
            filters.add(found["filter"])
            self._clients[client] = filters

    def on_unsubscribe_log(self, line: str) -> None:
        """Handle a log line about an UNSUBSCRIBE."""
        if found := _UNSUBSCRIBED.fullmatch(line):
            self._clients.get(found["client"], set()).discard(found["filter"])

    def on_client_log(self, line: str) -> None:
        """Handle a log line about a client that connected or disconnected.

        A client with a persistent session stays subscribed while it is disconnected:
        its broker stores the messages for it.
        """
        if found := _CONNECTED.fullmatch(line):
            client = found["client"]
            if found["clean"] == "1" or client in self._presumed:
                self._remove(client)
            if found["clean"] == "0" and len(self._persistent) < MAX_CLIENTS:
                self._persistent.add(client)
        elif found := _DISCONNECTED.fullmatch(line):
            client = _ADDRESS.sub("", found["client"])
            if client not in self._persistent:
                self._remove(client)

    def register(self, filter_: str) -> None:
        """Count a filter that a Gamma client registered."""
        is_known = filter_ in self._registered or len(self._registered) < MAX_REGISTERED
        if is_known and len(filter_) <= MAX_TOPIC_CHARS:
            self._registered[filter_] += 1

    def unregister(self, filter_: str) -> None:
        """Uncount a filter that a Gamma client unregistered."""
        self._registered[filter_] -= 1
        if self._registered[filter_] <= 0:
            del self._registered[filter_]

    def on_broker_restart(self) -> None:
        """Presume that all subscribed clients reconnect to the restarted broker.

        The broker lost its clients and does not log those that reconnected before this
        gateway did, so each is presumed to be subscribed until it is logged again. A
        filter too many costs bandwidth; one too few makes a siren miss its alarm.
        """
        self._persistent.clear()
        subscribed = [name for name, filters in self._clients.items() if filters]
        self._presumed = dict.fromkeys(subscribed[-MAX_PRESUMED:])
        self._clients = {name: self._clients[name] for name in self._presumed}

    def _remove(self, client: str) -> None:
        self._persistent.discard(client)
        self._presumed.pop(client, None)
        self._clients.pop(client, None)


def filters_by_broker(
    filters: Iterable[str], table: BrokerTable
) -> dict[BrokerInfo, frozenset[str]]:
    """Filters with topics that each distributed broker is responsible for.

    A filter belongs to *every* broker with a topic it matches, not only to the first:
    messages of a sub-area are on the sub-area's broker. A broker is left out if
    another broker's sub-area covers its whole part of the filter.
    """
    by_broker: dict[BrokerInfo, set[str]] = {
        b.broker_info: set() for b in table.brokers
    }
    for filter_ in filters:
        fixed = filter_area(filter_)
        holders = [b.topic for b in table.brokers if covers(b.topic, fixed)]
        closest = max(holders, key=len, default="")
        for entry in table.brokers:
            if can_match_in(filter_, entry.topic) and len(entry.topic) >= len(closest):
                by_broker[entry.broker_info].add(filter_)
    return {broker: frozenset(needed) for broker, needed in by_broker.items()}


class SubscriptionDiscovery(BaseConnectionHandler):
    """Discovers subscriptions from the log of the gateway's own broker.

    Stock Mosquitto publishes on ``$SYS/broker/log/...`` when its configuration has
    ``log_dest topic`` and ``log_type subscribe unsubscribe notice``. In the persistent
    session the broker stores log lines while the daemon is down, and until the table
    with them is on disk.

    Args:
        gateway_id: Name of the session.
        connect: Makes the connection to the gateway's own broker.
        path: File of the subscription table.
        on_change: Called with all filters after a change, in a thread of its own.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        gateway_id: str,
        connect: Connect,
        path: Path,
        on_change: Callable[[frozenset[str]], object],
        clock: Callable[[], float],
    ) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="subscriptions", daemon=True
        )
        self._log_limit = LogLimit(clock)
        self._on_change = on_change
        self._table = SubscriptionTable(_read_saved(path))
        self._filters: frozenset[str] | None = None
        self._saved: SavedSubscriptions | None = None
        self._unsaved: list[IncomingMessage] = []
        session = Session(
            f"{gateway_id}-watch",
            filters=tuple((topic, 1) for topic in DISCOVERY_TOPICS),
            expiry_s=SESSION_EXPIRY_S,
            manual_ack=True,
        )
        self._is_subscribed = False
        self._connection = connect(session, self)

    @property
    def is_up(self) -> bool:
        """Whether log lines arrive; the broker does not repeat earlier ones."""
        return self._is_subscribed and self._connection.is_up

    def start(self) -> None:
        """Begin to connect, with the subscriptions of the last run."""
        self._apply_change()
        self._thread.start()
        self._connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._connection.stop()
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        if not session_present:
            with self._lock:
                self._table.on_broker_restart()
            self._changed.set()

    def on_down(self, reason: str) -> None:
        self._is_subscribed = False

    def on_message(self, message: IncomingMessage) -> None:
        handlers = {
            SUBSCRIBE_LOG: self._table.on_subscribe_log,
            UNSUBSCRIBE_LOG: self._table.on_unsubscribe_log,
            CLIENT_LOG: self._table.on_client_log,
            REGISTER: self._table.register,
        }
        handle = handlers.get(message.topic, self._table.unregister)
        with self._lock:
            handle(message.payload.decode(errors="replace"))
            self._unsaved.append(message)
        self._changed.set()

    def on_subscribed(self) -> None:
        self._is_subscribed = True

    def _run(self) -> None:
        """Apply changes, many at once when they come fast.

        Each writes the whole table and compares all filters: a client that subscribes
        thousands of times would cost the square of that.
        """
        # Checked after `clear`: `stop` may set both events just before it.
        while not self._stopping.is_set():
            self._changed.wait()
            self._changed.clear()
            self._apply_change()
            self._stopping.wait(CHANGE_INTERVAL_S)

    def _apply_change(self) -> None:
        with self._lock:
            filters, state = self._table.filters, self._table.to_state()
            unsaved, self._unsaved = self._unsaved, []
        self._save(state)
        self._connection.acknowledge(*unsaved)
        if filters == self._filters:
            return
        self._filters = filters
        text = format_filters(filters)
        if self._log_limit.count(text) is not None:
            log.info("clients subscribe to %s", text)
        self._on_change(filters)

    def _save(self, state: SavedSubscriptions) -> None:
        """Write the table if it has changed, also where the filters are the same.

        A second client of a filter keeps it when the first one leaves.
        """
        if state != self._saved:
            is_saved = write_best_effort(self._path, msgspec.json.encode(state))
            self._saved = state if is_saved else None


def format_filters(filters: frozenset[str]) -> str:
    """Return the first filters, shortened, for a log line."""
    shown = [each[:MAX_SHOWN_CHARS] for each in sorted(filters)[:MAX_LOGGED]]
    if len(filters) > MAX_LOGGED:
        shown.append(f"and {len(filters) - MAX_LOGGED} more")
    return ", ".join(shown) or "nothing"


def _read_saved(path: Path) -> SavedSubscriptions | None:
    try:
        return decode_json(path.read_bytes(), SavedSubscriptions)
    except FileNotFoundError:
        return None
    except (OSError, *DECODE_ERRORS) as error:
        log.warning("the last subscriptions cannot be used: %s", error)
        return None

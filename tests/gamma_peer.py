"""Programs that behave like the published Gamma: gateway, Manager, broker and client.

The originals are Go programs that are not part of this project. Each class below speaks
their MQTT API (JSON, MQTT 3.1.1, clean sessions) with their habits, also the harmful
ones, so that tests can mix them with ours. A program that ends with a fatal error, as
the originals do at many faults, has the reason in `ended`; `errors` are its log lines.

Not simulated: the metrics of the originals, and subscriptions of single topics without
``/#`` below a filter with it.

Source: Gamma (seed 000); behaviour of the published programs.
"""

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, cast

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from service_runtime.tls import Endpoint
from spatial_mqtt.cells import LEAF_LEVEL, Cell, cover_circle
from spatial_mqtt.topics import cell_filter, cell_topic

NOTICE, INFO = "/api/notice/gatewaybroker", "/api/gateway/info/all"
TABLE, STATUS = "/api/brokertable/all/info", "/api/brokertable/update/status"
ADD, SET = "/api/tool/distributedbroker/add", "/api/tool/gatewaybroker/set"
REGISTER, UNREGISTER = "/api/register", "/api/unregister"

CALL_TIMEOUT_S = 30.0
AREA = re.compile(r"/|/[0-9]+(/[0-3])*")
FILTER = re.compile(r"(/[0-9]+(/[0-3])*)?(/#|/\w+)?")
HOST = re.compile(
    r"localhost|(\d{1,3}\.){3}\d{1,3}|"
    r"([a-zA-Z0-9][a-zA-Z0-9-]{1,61}[a-zA-Z0-9]\.)+[a-zA-Z-]{2,}"
)


class FatalError(Exception):
    """The program ends, as Go's ``log.Fatal`` ends the originals."""


class Entry(NamedTuple):
    """A topic and its server, in the broker table or the gateway list."""

    topic: str
    server: Endpoint

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "Entry":
        """Parse JSON fields; missing ones are empty, as Go decodes them."""
        return cls(fields.get("topic", ""), parse_info(fields))

    def to_json(self) -> dict[str, object]:
        """JSON fields, as Go encodes them."""
        return {"topic": self.topic, "broker_info": info_of(self.server)}


def info_of(server: Endpoint) -> dict[str, object]:
    """The field ``broker_info`` of a server."""
    return {"host": server.host, "port": server.port}


def parse_info(fields: dict[str, Any]) -> Endpoint:
    """The server in the field ``broker_info``."""
    info = fields.get("broker_info") or {}
    return Endpoint(info.get("host", ""), info.get("port", 0))


def connect(
    endpoint: Endpoint, on_message: Callable[[str, bytes], object]
) -> paho.Client:
    """Connect with a clean session; it reconnects, but does not subscribe again.

    Raises:
        FatalError: The server does not accept the connection.
    """
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
    is_up = threading.Event()
    client.on_connect = lambda *_: is_up.set()
    client.on_message = lambda _client, _data, m: on_message(m.topic, bytes(m.payload))
    try:
        client.connect(endpoint.host, endpoint.port)
    except OSError as error:
        raise FatalError(f"MQTT connect error: {error}") from error
    client.loop_start()
    if not is_up.wait(CALL_TIMEOUT_S):
        raise FatalError(f"MQTT connect error: {endpoint} does not answer")
    return client


def disconnect(client: paho.Client) -> None:
    """End a connection."""
    client.disconnect()
    client.loop_stop()


def subscribe(client: paho.Client, topic: str, qos: int) -> None:
    """Subscribe and wait for the answer."""
    done = threading.Event()
    client.on_subscribe = lambda *_: done.set()
    client.subscribe(topic, qos)
    if not done.wait(CALL_TIMEOUT_S):
        raise FatalError(f"MQTT subscribe error: {topic}")


def publish(
    client: paho.Client, topic: str, payload: bytes, qos: int, *, retain: bool = False
) -> bool:
    """Publish and wait for the acknowledgement; False if the message was not sent."""
    sent = client.publish(topic, payload, qos, retain)
    if sent.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
        return False
    sent.wait_for_publish(CALL_TIMEOUT_S)
    return True


class Program:
    """One process: connections, whose messages one loop handles in order.

    Attributes:
        errors: Log lines of level error.
        ended: Reason of a fatal error; empty while the program runs.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.ended = ""
        self._inbox: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._handlers: dict[str, Callable[[bytes], object]] = {}
        self._clients: list[paho.Client] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Connect and subscribe; the program serves until `stop`.

        Raises:
            FatalError: A server does not answer.
        """
        self.set_up()
        self._thread.start()

    def stop(self) -> None:
        """End the program as if it was killed: nothing is published."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def set_up(self) -> None:
        """Connect and subscribe."""
        raise NotImplementedError

    def on_other(self, topic: str, payload: bytes) -> None:
        """Handle a message on a topic without a handler."""

    def on_idle(self) -> None:
        """Do what is due; called often."""

    def _connect(self, endpoint: Endpoint) -> paho.Client:
        client = connect(endpoint, lambda topic, got: self._inbox.put((topic, got)))
        self._clients.append(client)
        return client

    def _run(self) -> None:
        try:
            while self._serve_next():
                self.on_idle()
        except FatalError as error:
            self.ended = str(error)
            self._close()

    def _serve_next(self) -> bool:
        try:
            item = self._inbox.get(timeout=0.05)
        except Empty:
            return True
        if item is None:
            return False
        topic, payload = item
        if topic in self._handlers:
            self._handlers[topic](payload)
        else:
            self.on_other(topic, payload)
        return True

    def _close(self) -> None:
        for client in self._clients:
            disconnect(client)
        self._clients.clear()


def decode(payload: bytes) -> dict[str, Any]:
    """Decode JSON.

    Raises:
        FatalError: It does not parse; this ends an original.
    """
    try:
        return cast("dict[str, Any]", json.loads(payload))
    except ValueError as error:
        raise FatalError(f"JSON decode error: {error}") from error


@dataclass
class Node:
    """A level of the broker table of a gateway, as a tree of topic levels."""

    server: Endpoint | None = None
    children: dict[str, "Node"] = field(default_factory=dict)

    def find(self, topic: str) -> "Node":
        """The deepest node on the way to a topic.

        Raises:
            ValueError: The topic is no cell; a ``priN`` at its end suffices.
        """
        if not AREA.fullmatch(topic):
            raise ValueError(f"Invalid topic name({topic})")
        node = self
        for level in levels_of(topic):
            if level not in node.children:
                break
            node = node.children[level]
        return node

    def update(self, topic: str, server: Endpoint) -> None:
        """Set the server of an area.

        Areas below it are dropped, and missing levels above it get the same server.
        """
        if not AREA.fullmatch(topic) or not HOST.fullmatch(server.host):
            raise FatalError(f"Brokertable Update error: {topic} {server}")
        node = self
        for level in levels_of(topic):
            node.server = node.server or server
            node = node.children.setdefault(level, Node(server))
        node.server, node.children = server, {}

    def servers(self) -> set[Endpoint]:
        """Servers of this level and all below it."""
        own = {self.server} if self.server else set()
        return own.union(*(child.servers() for child in self.children.values()))


def levels_of(topic: str) -> list[str]:
    """Levels of a topic; none for ``/``."""
    return [level for level in topic.split("/") if level]


@dataclass
class PooledBroker:
    """A gateway's connection to a distributed broker, with counted filters, QoS 0."""

    client: paho.Client
    filters: Counter[str] = field(default_factory=Counter)

    def register(self, filter_: str) -> None:
        """Count a filter, and subscribe unless a wider one is subscribed."""
        if FILTER.fullmatch(filter_):
            self.filters[filter_] += 1
            self._follow()

    def unregister(self, filter_: str) -> None:
        """Uncount a filter."""
        if self.filters[filter_] > 0:
            self.filters[filter_] -= 1
            if not self.filters[filter_]:
                del self.filters[filter_]
                self.client.unsubscribe(filter_)
                self._follow()

    def filters_in(self, area: str) -> Counter[str]:
        """The filters below an area; a wider filter is not one of them."""
        return Counter({f: n for f, n in self.filters.items() if is_in(f, area)})

    def drop(self, area: str) -> None:
        """Unsubscribe the filters below an area."""
        for filter_ in self.filters_in(area):
            del self.filters[filter_]
            self.client.unsubscribe(filter_)

    def _follow(self) -> None:
        for filter_ in self.filters:
            wider = (f for f in self.filters if f != filter_ and f.endswith("/#"))
            if not any(is_in(filter_, f.removesuffix("/#") or "/") for f in wider):
                subscribe(self.client, filter_, 0)
            else:
                self.client.unsubscribe(filter_)


def is_in(filter_: str, area: str) -> bool:
    """Whether a filter lies in an area."""
    return area == "/" or f"{filter_.removesuffix('/#')}/".startswith(f"{area}/")


class GammaGateway(Program):
    """The original gateway.

    It sends ``up`` once, at its start. It takes the first table with a broker as a
    whole, and from each later one only the first broker that it does not know: the
    previous new broker is forgotten if ``complete`` has not come. Until then it
    publishes to the old broker and to the new one.

    Args:
        manager: Broker of the Manager.
        own: Its own broker.

    Attributes:
        version: Version of the last table; -1 before the first.
        pending: New broker that waits for ``complete``.
        root: Its broker table.
    """

    def __init__(self, manager: Endpoint, own: Endpoint) -> None:
        super().__init__()
        self.version = -1
        self.pending: Entry | None = None
        self.is_started = False
        self.root = Node()
        self._manager, self._own = manager, own
        self._pool: dict[Endpoint, PooledBroker] = {}

    @property
    def brokers(self) -> set[Endpoint]:
        """Brokers that it is connected to."""
        return set(self._pool)

    def server_of(self, topic: str) -> Endpoint | None:
        """Broker that it publishes a topic to."""
        return self.root.find(topic).server

    def set_up(self) -> None:
        self._manager_client = self._connect(self._manager)
        self._own_client = self._connect(self._own)
        self._handlers = {
            TABLE: self._on_table,
            STATUS: self._on_status,
            REGISTER: self._on_register,
            UNREGISTER: self._on_unregister,
        }
        for topic in (TABLE, STATUS):
            subscribe(self._manager_client, topic, 2)
        for topic, qos in ((REGISTER, 1), (UNREGISTER, 1), ("/forward/#", 0)):
            subscribe(self._own_client, topic, qos)
        self._notify("up")

    def on_other(self, topic: str, payload: bytes) -> None:
        if not self.is_started:
            return
        if topic.startswith("/forward"):
            self._forward(topic.replace("/forward", "", 1), payload)
        else:
            publish(self._own_client, topic, payload, 0)

    def _notify(self, status: str) -> None:
        notice = {
            "broker_info": info_of(self._own),
            "status": status,
            "version": self.version,
        }
        publish(self._manager_client, NOTICE, json.dumps(notice).encode(), 1)

    def _on_table(self, payload: bytes) -> None:
        table = decode(payload)
        entries = [Entry.parse(each) for each in table["brokers"] or ()]
        self.version = table["version"]
        if not self.is_started:
            self._start_with(entries, payload)
            return
        unknown = [entry for entry in entries if entry.server not in self._pool]
        self.pending = unknown[0] if unknown else self.pending
        if self.pending is not None:
            self._add(self.pending)
            self._notify("complete")

    def _start_with(self, entries: list[Entry], payload: bytes) -> None:
        if not entries:
            self.errors.append(f"Invalid message: {payload.decode()}")
            return
        first, *others = entries
        self.root.update(first.topic, first.server)
        self._pool[first.server] = PooledBroker(self._connect(first.server))
        for entry in others:
            self._add(entry)
            self._use(entry)
        self._notify("complete")
        self.is_started = True

    def _add(self, entry: Entry) -> None:
        """Connect to a new broker with the filters that fall into its area."""
        if entry.server in self._pool:
            raise FatalError(f"This broker is already connected ({entry.server})")
        holder = self.server_of(entry.topic)
        if holder not in self._pool:
            raise FatalError(f"Not found ({holder})")
        broker = PooledBroker(self._connect(entry.server))
        self._pool[entry.server] = broker
        for filter_, count in self._pool[holder].filters_in(entry.topic).items():
            broker.filters[filter_] = count - 1
            broker.register(filter_)

    def _use(self, entry: Entry) -> None:
        for server in self.root.find(entry.topic).servers():
            if server in self._pool:
                self._pool[server].drop(entry.topic)
        self.root.update(entry.topic, entry.server)

    def _on_status(self, payload: bytes) -> None:
        if self.is_started and self.pending is not None and payload == b"complete":
            self._use(self.pending)
            self.pending = None

    def _on_register(self, payload: bytes) -> None:
        if broker := self._holder_of(payload):
            broker.register(payload.decode())

    def _on_unregister(self, payload: bytes) -> None:
        if broker := self._holder_of(payload):
            broker.unregister(payload.decode())

    def _holder_of(self, payload: bytes) -> PooledBroker | None:
        return self._find(payload.decode().replace("/#", "", 1) or "/")

    def _find(self, topic: str) -> PooledBroker | None:
        if not self.is_started:
            return None
        try:
            server = self.server_of(topic)
        except ValueError as error:
            self.errors.append(str(error))
            return None
        return self._pool.get(server) if server else None

    def _forward(self, topic: str, payload: bytes) -> None:
        broker = self._find(topic)
        if broker is None:
            return
        publish(broker.client, topic, payload, 0)
        new = self.pending
        if new is not None and (
            len(topic) < len(new.topic) or topic.startswith(new.topic)
        ):
            publish(self._pool[new.server].client, topic, payload, 0)


class GammaManager(Program):
    """The original Manager; a restart forgets everything, but its broker does not.

    Args:
        own: Its broker.

    Attributes:
        areas: Areas of each gateway.
        statuses: Last version that each gateway reported.
        version: Version of the table; -1 without one.
        brokers: The table.
        notices: Notices received, as (gateway, status, version).
    """

    def __init__(self, own: Endpoint) -> None:
        super().__init__()
        self.areas: dict[Endpoint, list[str]] = {}
        self.statuses: dict[Endpoint, int] = {}
        self.version = -1
        self.brokers: list[Entry] = []
        self.notices: list[tuple[Endpoint, str, int]] = []
        self.is_updating = False
        self._own = own

    def set_up(self) -> None:
        self._client = self._connect(self._own)
        self._handlers = {NOTICE: self._on_notice, SET: self._on_set, ADD: self._on_add}
        for topic, qos in ((NOTICE, 2), (SET, 1), (ADD, 1)):
            subscribe(self._client, topic, qos)

    def _on_notice(self, payload: bytes) -> None:
        notice = decode(payload)
        gateway, version = parse_info(notice), notice.get("version", 0)
        self.notices.append((gateway, notice.get("status", ""), version))
        self.areas.setdefault(gateway, ["/"])
        self.statuses[gateway] = version
        if notice.get("status") == "up":
            self._publish_list()
        self.is_updating = any(v != self.version for v in self.statuses.values())
        if not self.is_updating:
            publish(self._client, STATUS, b"complete", 2)

    def _on_set(self, payload: bytes) -> None:
        setting = decode(payload)
        gateway = parse_info(setting)
        if gateway not in self.areas:
            self.errors.append("This gateway is not exists...")
            return
        # The older form has no `topics`, which Go decodes as an empty list.
        self.areas[gateway] = list(setting.get("topics") or ())
        self._publish_list()

    def _on_add(self, payload: bytes) -> None:
        if self.is_updating:
            self.errors.append("Could not add distributed broker...")
            return
        self.is_updating = True
        self.version += 1
        entry = Entry.parse(decode(payload))
        if entry.server in (known.server for known in self.brokers):
            self.is_updating = False
            self.errors.append("This broker is already exists")
        self.brokers = sorted([*self.brokers, entry], key=lambda e: len(e.topic))
        table = {
            "version": self.version,
            "brokers": [each.to_json() for each in self.brokers],
        }
        publish(self._client, TABLE, json.dumps(table).encode(), 2, retain=True)

    def _publish_list(self) -> None:
        entries = [
            Entry(area, gateway).to_json()
            for gateway, areas in self.areas.items()
            for area in areas
        ]
        # Go encodes a list that was never appended to as null.
        publish(
            self._client, INFO, json.dumps(entries or None).encode(), 2, retain=True
        )


class GammaBroker(Program):
    """The original's program beside a distributed broker, which announces it.

    It repeats the request after random times, until its broker is in the table.

    Args:
        manager: Broker of the Manager.
        entry: The broker and its area.
        base_s: Time before the first repetition.
        max_s: Longest time between two.

    Attributes:
        request_count: Requests sent.
    """

    def __init__(
        self, manager: Endpoint, entry: Entry, base_s: float = 0.1, max_s: float = 2.0
    ) -> None:
        super().__init__()
        self.is_registered = False
        self.request_count = 0
        self._manager, self._entry = manager, entry
        self._wait_s, self._max_s = base_s, max_s
        self._due = threading.Event()

    def set_up(self) -> None:
        self._client = self._connect(self._manager)
        self._handlers = {TABLE: self._on_table}
        subscribe(self._client, TABLE, 1)
        self._request()

    def on_idle(self) -> None:
        if self._due.is_set() and not self.is_registered:
            self._request()

    def _on_table(self, payload: bytes) -> None:
        entries = [Entry.parse(each) for each in decode(payload)["brokers"] or ()]
        self.is_registered |= self._entry.server in (e.server for e in entries)

    def _request(self) -> None:
        self.request_count += 1
        publish(self._client, ADD, json.dumps(self._entry.to_json()).encode(), 1)
        self._due.clear()
        timer = threading.Timer(random.uniform(0.0, self._wait_s), self._due.set)
        timer.daemon = True
        timer.start()
        self._wait_s = min(2 * self._wait_s, self._max_s)


class GammaClient:
    """The original client: it reads the list once and stays at one gateway.

    Args:
        manager: Broker of the Manager.
        latitude_deg: Latitude.
        longitude_deg: Longitude.
        radius_km: Radius of its circle.

    Attributes:
        gateway: Gateway in use.
        received: Topics and payloads, doubles too: the original compares no ids.
    """

    def __init__(
        self,
        manager: Endpoint,
        latitude_deg: float,
        longitude_deg: float,
        radius_km: float = 1.0,
    ) -> None:
        self.received: list[tuple[str, bytes]] = []
        self._radius_km = radius_km
        self._filters: list[str] = []
        entries = self._fetch_list(manager)
        random.shuffle(entries)
        entries.sort(key=lambda entry: len(entry.topic), reverse=True)
        here = cell_topic(Cell.at(latitude_deg, longitude_deg, LEAF_LEVEL))
        near = [entry for entry in entries if here.startswith(entry.topic)]
        self.gateway = (near or entries[-1:])[0].server
        self._client = connect(
            self.gateway, lambda topic, payload: self.received.append((topic, payload))
        )

    def subscribe_at(
        self, latitude_deg: float, longitude_deg: float, qos: int = 0
    ) -> None:
        """Move the circle: subscribe what is new, then unsubscribe what is gone."""
        cells = cover_circle(latitude_deg, longitude_deg, self._radius_km)
        filters = [cell_filter(cell) for cell in cells]
        for filter_ in without(filters, self._filters):
            subscribe(self._client, filter_, qos)
            publish(self._client, REGISTER, filter_.encode(), 0)
        for filter_ in without(self._filters, filters):
            self._client.unsubscribe(filter_)
            publish(self._client, UNREGISTER, filter_.encode(), 0)
        self._filters = filters

    def publish_at(
        self, latitude_deg: float, longitude_deg: float, payload: bytes, qos: int = 0
    ) -> None:
        """Publish at the leaf cell of a position."""
        cell = Cell.at(latitude_deg, longitude_deg, LEAF_LEVEL)
        publish(self._client, f"/forward{cell_topic(cell)}", payload, qos)

    def close(self) -> None:
        """Disconnect; the registered filters stay registered."""
        disconnect(self._client)

    @staticmethod
    def _fetch_list(manager: Endpoint) -> list[Entry]:
        got: SimpleQueue[bytes] = SimpleQueue()
        client = connect(manager, lambda _topic, payload: got.put(payload))
        try:
            subscribe(client, INFO, 2)
            entries = json.loads(got.get(timeout=CALL_TIMEOUT_S)) or []
        except Empty:
            raise FatalError("Timeout occured (gateway brokers information)") from None
        finally:
            disconnect(client)
        if not entries:
            raise FatalError("Gateway info error (info size is zero)")
        return [Entry.parse(each) for each in entries]


def without(filters: Iterable[str], others: list[str]) -> list[str]:
    """Filters that are not among the others."""
    return [each for each in filters if each not in others]

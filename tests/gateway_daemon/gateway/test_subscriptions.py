"""Subscriptions of the clients, and the brokers that must be subscribed to."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from hypothesis import given
from hypothesis import strategies as st
from programs import Client

from gateway_daemon.gateway import subscriptions
from gateway_daemon.gateway.downstream import BrokerSubscriber
from gateway_daemon.gateway.subscriptions import (
    MAX_PRESUMED,
    SavedSubscriptions,
    SubscriptionDiscovery,
    SubscriptionTable,
    filters_by_broker,
)
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    BrokerEntry,
    BrokerInfo,
    BrokerTable,
    find_responsible_broker,
)
from spatial_mqtt.topics import (
    REGISTER,
    UNREGISTER,
    can_match_in,
    filter_area,
    is_system_topic,
    matches,
)

B1, B2, B3 = (BrokerInfo(f"b{n}", 1883) for n in (1, 2, 3))
TABLE = BrokerTable(
    3, (BrokerEntry("/", B1), BrokerEntry("/1/2", B2), BrokerEntry("/1/2/0", B3))
)

LEVELS = st.sampled_from("012")
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map(lambda d: "/" + "/".join(d))
FILTERS = st.tuples(
    st.lists(st.sampled_from("012+"), max_size=4), st.sampled_from(["", "#"])
).map(lambda t: "/" + "/".join([*t[0], *t[1]]))
AREAS = st.lists(LEVELS, max_size=4).map(lambda d: "/" + "/".join(d))


@pytest.mark.parametrize(
    ("filter_", "brokers"),
    [
        ("/1/2/3/#", {B2}),
        ("/1/2/#", {B2, B3}),
        ("/1/#", {B1, B2, B3}),
        ("#", {B1, B2, B3}),
        ("/1/+/0/#", {B1, B2, B3}),
        ("/1/2/0/1", {B3}),
        ("/2/#", {B1}),
        ("/1/2", {B2}),
    ],
)
def test_filter_goes_to_every_broker_that_holds_a_part(
    filter_: str, brokers: set[BrokerInfo]
) -> None:
    """Gamma asks one broker, and misses messages at the brokers of the sub-areas."""
    subscribed = filters_by_broker([filter_], TABLE)

    assert {broker for broker, filters in subscribed.items() if filters} == brokers


@given(
    filters=st.lists(FILTERS, max_size=4),
    topic=TOPICS,
    areas=st.lists(AREAS, min_size=1, max_size=5, unique=True),
)
def test_no_message_is_missed(filters: list[str], topic: str, areas: list[str]) -> None:
    """The broker responsible for a topic gets every filter that matches it."""
    entries = [BrokerEntry(a, BrokerInfo(f"b{n}", 1883)) for n, a in enumerate(areas)]
    subscribed = filters_by_broker(filters, BrokerTable(1, tuple(entries)))
    holder = find_responsible_broker(entries, topic)

    for filter_ in filters:
        if holder is not None and matches(filter_, topic):
            assert filter_ in subscribed[holder]


@given(filter_=FILTERS, topic=TOPICS, area=AREAS)
def test_matching_filter_matches_in_every_enclosing_area(
    filter_: str, topic: str, area: str
) -> None:
    """Every prefix of a matching topic is an area in which the filter can match."""
    levels = topic.split("/")
    if matches(filter_, topic):
        for count in range(2, len(levels) + 1):
            assert can_match_in(filter_, "/".join(levels[:count]))
        assert topic.startswith(filter_area(filter_).rstrip("/"))


def test_client_is_tracked_from_connect_to_disconnect() -> None:
    """Log lines are literal output of Mosquitto 2.0."""
    table = SubscriptionTable()
    table.on_client_log(
        "1795245098: New client connected from 127.0.0.1:56707 as c one (p5, c1, k60)."
    )
    table.on_subscribe_log("1795245098: c one 1 /3/1/#")
    table.on_subscribe_log("1795245099: c one 0 /a b/+")
    assert table.filters == {"/3/1/#", "/a b/+"}
    table.on_unsubscribe_log("1795245099: c one /3/1/#")
    assert table.filters == {"/a b/+"}
    table.on_client_log("1795245099: Client c one disconnected.")

    assert table.filters == set()


ENDS = (
    "closed its connection.",
    "has exceeded timeout, disconnecting.",
    "disconnected.",
    "disconnected: Connection reset by peer.",
    "disconnected, not authorised.",
    "disconnected due to protocol error.",
    "disconnected due to QoS too high or retain not supported.",
    "disconnected due to using not allowed feature (QoS too high, and so on).",
    "been disconnected by administrative action.",
    "[127.0.0.1:59845] disconnected.",
    "[127.0.0.1:59845] disconnected: connection closed by client.",
    "[::1:59845] disconnected: exceeded timeout.",
)
"""Ends of the lines in Mosquitto 2.0.11 and later."""


@pytest.mark.parametrize("line", [f"Client d {end}" for end in ENDS])
@pytest.mark.parametrize(("clean", "stays"), [("1", False), ("0", True)])
def test_persistent_session_keeps_its_filters_while_disconnected(
    line: str, clean: str, stays: bool
) -> None:
    """Its broker queues messages for it, so the gateway must go on fetching them."""
    table = SubscriptionTable()
    client = f"d (p5, c{clean}, k60)."
    table.on_client_log(f"1: New client connected from 127.0.0.1:59845 as {client}")
    table.on_subscribe_log("2: d 0 /3/2/#")
    table.on_client_log(f"3: {line}")

    assert table.filters == ({"/3/2/#"} if stays else set())


def test_filter_is_dropped_with_its_last_subscriber() -> None:
    """Two clients subscribe to one valley; one unsubscribes."""
    table = SubscriptionTable()
    for client in ("a", "b"):
        table.on_subscribe_log(f"1: {client} 1 /3/#")
    table.on_unsubscribe_log("2: a /3/#")
    assert table.filters == {"/3/#"}
    table.on_unsubscribe_log("3: b /3/#")

    assert table.filters == set()


def test_registered_filters_count_only_without_a_broker_log() -> None:
    """A Gamma client registers without a client id; the broker's log has precedence."""
    table = SubscriptionTable()
    for _ in range(2):
        table.register("/3/#")
    table.unregister("/3/#")
    table.unregister("/4/#")
    assert table.filters == {"/3/#"}
    table.on_subscribe_log("1: a 1 /5/#")

    assert table.filters == {"/5/#"}


def test_system_topics_are_no_subscriptions() -> None:
    """Receipts, directories and logs are not forwarded."""
    table = SubscriptionTable()
    for filter_ in ("$SYS/#", "/custody/n1", "/forward/#", "/api/#", "/notice/3"):
        table.on_subscribe_log(f"1: a 1 {filter_}")
        assert is_system_topic(filter_)

    assert table.filters == set()


@pytest.mark.parametrize(
    "filter_", ["", "/1/#/2", "a+b", "/1/2#", "/\x01", "/" * 201, "/\ufffe"], ids=ascii
)
def test_filter_that_a_broker_does_not_accept_is_not_served(filter_: str) -> None:
    """Mosquitto ends the connection at it, also at its removal; paho raises an error.

    It may be registered, in the name of a client, or in a file of an earlier version.
    """
    table = SubscriptionTable(SavedSubscriptions({"siren": (filter_, "/5/#")}))
    table.register(filter_)
    assert table.filters == {"/5/#"}
    table.on_subscribe_log("1: name 1 a+b 1 /1")

    assert table.filters == {"/5/#"}


def test_table_survives_a_restart() -> None:
    """A restart of the daemon."""
    table = SubscriptionTable()
    table.on_client_log("1: New client connected from ::1:5 as a (p4, c0, k60).")
    table.on_subscribe_log("1: a 1 /3/#")
    again = SubscriptionTable(table.to_state())
    again.on_client_log("2: Client a disconnected.")

    assert again.filters == {"/3/#"}
    assert SubscriptionTable(SavedSubscriptions()).filters == set()


@pytest.mark.parametrize("clean", [0, 1])
@pytest.mark.parametrize("is_restarted_between", [False, True])
def test_client_that_reconnected_before_our_start_keeps_its_filters(
    clean: int, is_restarted_between: bool
) -> None:
    """A restarted broker does not log it again; only later log lines are seen."""
    table = SubscriptionTable()
    table.on_client_log(f"1: New client connected from ::1:5 as a (p4, c{clean}, k60).")
    table.on_subscribe_log("1: a 1 /3/#")
    table.on_subscribe_log("1: b 1 /4/#")
    table.on_unsubscribe_log("1: b /4/#")
    table.on_broker_restart()
    if is_restarted_between:
        table = SubscriptionTable(table.to_state())
    assert table.filters == {"/3/#"}
    gone = SubscriptionTable(table.to_state())
    gone.on_client_log("2: Client a disconnected.")
    assert gone.filters == set()
    table.on_client_log(f"2: New client connected from ::1:6 as a (p4, c{clean}, k60).")
    assert table.filters == set()
    table.on_subscribe_log("3: a 1 /3/1/#")

    assert table.filters == {"/3/1/#"}
    assert table.to_state().presumed == ()


def test_presumed_clients_are_bounded() -> None:
    """Random client ids before many restarts: only the latest are kept."""
    table = SubscriptionTable()
    for number in range(MAX_PRESUMED + 5):
        table.on_subscribe_log(f"1: c{number} 1 /3/{number % 4}/#")
        table.on_broker_restart()

    assert len(table.to_state().clients) == MAX_PRESUMED
    assert "c0" not in table.to_state().clients


@pytest.mark.parametrize("end", [*ENDS, "already connected, closing old connection."])
@pytest.mark.parametrize(
    "suffix", ["disconnected x", *ENDS, "disconnected: x", "disconnected due to x"]
)
def test_client_id_with_the_words_of_the_log_ends_no_other_client(
    suffix: str, end: str
) -> None:
    """Any client may choose `siren disconnected x` as its id."""
    table = SubscriptionTable()
    table.on_subscribe_log("1: siren 1 /3/#")
    table.on_client_log(f"2: Client siren {suffix} {end}")

    assert table.filters == {"/3/#"}


@given(st.text())
def test_arbitrary_log_lines_change_nothing_else(line: str) -> None:
    """A hostile client id is only a name."""
    table = SubscriptionTable()
    table.on_subscribe_log("1: a 1 /3/#")
    table.on_client_log(line)
    table.on_unsubscribe_log(line)

    assert table.filters <= {"/3/#"}


def test_filters_of_one_client_are_bounded() -> None:
    """Those of others are not affected."""
    table = SubscriptionTable()
    for n in range(2000):
        table.on_subscribe_log(f"1: greedy 1 /3/{n}")
    table.on_subscribe_log("1: greedy 1 /" + "x" * 60_000)
    table.on_subscribe_log("1: siren 1 /5/#")

    assert len(table.filters) == subscriptions.MAX_FILTERS_OF_CLIENT + 1
    assert "/5/#" in table.filters


@pytest.mark.attack("thousands of clients and registrations", "unbounded")
def test_clients_and_registrations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without certificates a client may invent names."""
    monkeypatch.setattr(subscriptions, "MAX_CLIENTS", 10)
    monkeypatch.setattr(subscriptions, "MAX_REGISTERED", 10)
    table = SubscriptionTable()
    for n in range(100):
        table.register(f"/4/{n}")
    assert len(table.filters) == 10
    for n in range(100):
        line = f"as c{n} (p5, c0, k60)."
        table.on_client_log(f"1: New client connected from 127.0.0.1:59845 {line}")
        table.on_subscribe_log(f"1: c{n} 1 /3/{n}")

    assert len(table.filters) == 10
    assert len(table.to_state().lasting) == 10


@pytest.fixture
def logging_broker(make_broker: Callable[..., Broker]) -> Broker:
    """A broker that logs subscriptions, as on a gateway."""
    kinds = ("subscribe", "unsubscribe", "notice")
    return make_broker("log_dest topic", *(f"log_type {kind}" for kind in kinds))


def discover(
    broker: Broker, folder: Path, on_change: Callable[[frozenset[str]], object]
) -> SubscriptionDiscovery:
    """Start the discovery of subscriptions of a gateway."""
    discovery = SubscriptionDiscovery(
        "gw",
        lambda session, handler: Connection(broker.endpoint, session, handler),
        folder / "subscriptions.json",
        on_change,
        time.monotonic,
    )
    discovery.start()
    wait_until(lambda: discovery.is_up)
    return discovery


@pytest.mark.broker
def test_filter_of_two_clients_outlasts_a_restart_and_the_first_client(
    logging_broker: Broker, tmp_path: Path
) -> None:
    """The second one was not stored, as the filters were the same with it."""
    seen: list[frozenset[str]] = []
    first_run = discover(logging_broker, tmp_path, seen.append)
    analyst = Client(logging_broker.endpoint, "analyst", "/5/#")
    wait_until(lambda: "/5/#" in seen[-1])
    siren = Client(logging_broker.endpoint, "siren", "/5/#")
    table = first_run._table  # noqa: SLF001 - nothing else shows that it was logged
    wait_until(lambda: "siren" in table.to_state().clients)
    first_run.stop()
    second_run = discover(logging_broker, tmp_path, seen.append)
    analyst.connection.stop()
    later = Client(logging_broker.endpoint, "later", "/7/#")
    wait_until(lambda: "/7/#" in seen[-1])
    for each in (siren, later):
        each.connection.stop()
    second_run.stop()

    assert "/5/#" in seen[-1]


@pytest.mark.broker
@pytest.mark.parametrize("malformed", [b"/1/#/2", b"/" * 201], ids=len)
def test_malformed_registration_does_not_cut_off_a_distributed_broker(
    make_broker: Callable[..., Broker], tmp_path: Path, malformed: bytes
) -> None:
    """Filters that are registered later are served there, also after its removal."""
    own, distributed = make_broker(), make_broker()
    subscriber = BrokerSubscriber(
        "gw", distributed.endpoint, Connection, lambda _: None, lambda: None
    )
    discovery = discover(own, tmp_path, subscriber.set_filters)
    rogue = Client(own.endpoint, "rogue")
    for topic, filter_ in ((REGISTER, b"/5/#"), (UNREGISTER, b"/5/#")):
        rogue.publish(topic, malformed)
        rogue.publish(topic, filter_)
        rogue.publish(REGISTER, b"/6/#")
        wanted = frozenset({"/5/#", "/6/#"} if topic == REGISTER else {"/6/#"})
        wait_until(lambda: subscriber._confirmed == wanted)  # noqa: SLF001, B023
    discovery.stop()
    for connection in (rogue.connection, subscriber.connection):
        connection.stop()


@pytest.mark.broker
def test_subscription_that_is_not_on_disk_at_the_end_is_logged_again(
    logging_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was acknowledged before, and the siren missed alarms until it reconnected."""
    seen: list[frozenset[str]] = []
    monkeypatch.setattr(subscriptions, "CHANGE_INTERVAL_S", 3600)
    first_run = discover(logging_broker, tmp_path, seen.append)
    siren = Client(logging_broker.endpoint, "siren", "/5/#")
    table = first_run._table  # noqa: SLF001 - nothing else shows that it was logged
    wait_until(lambda: "siren" in table.to_state().clients)
    first_run.stop()
    monkeypatch.undo()
    second_run = discover(logging_broker, tmp_path, seen.append)
    wait_until(lambda: "/5/#" in seen[-1])
    siren.connection.stop()
    second_run.stop()


@pytest.mark.broker
def test_thousands_of_subscriptions_are_applied_together(
    make_broker: Callable[..., Broker],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Short log, few writes; the first and the last change take effect in a second."""
    caplog.set_level(logging.INFO)
    kinds = ("subscribe", "unsubscribe", "notice")
    logged = [f"log_type {kind}" for kind in kinds]
    broker, seen = make_broker("log_dest topic", *logged), list[frozenset[str]]()
    discovery = SubscriptionDiscovery(
        "gw",
        lambda session, handler: Connection(broker.endpoint, session, handler),
        tmp_path / "subscriptions.json",
        seen.append,
        time.monotonic,
    )
    discovery.start()
    wait_until(lambda: discovery.is_up)
    clients = [Client(broker.endpoint, f"c{n}", "/first") for n in range(2)]
    wait_until(lambda: {"/first"} in seen)
    for client in clients:
        for n in range(0, 2000, 100):
            filters = [(f"/3/{n + k}", 1) for k in range(100)]
            client.connection.subscribe(filters)
    limit = subscriptions.MAX_FILTERS_OF_CLIENT
    wait_until(lambda: len(seen[-1]) >= limit)
    siren = Client(broker.endpoint, "siren", "/5/#")
    wait_until(lambda: "/5/#" in seen[-1])
    for each in (*clients, siren):
        each.connection.stop()
    discovery.stop()

    assert len(seen) < 20
    lines = [r.getMessage() for r in caplog.records if "subscribe to" in r.getMessage()]
    assert sum(map(len, lines)) < 10_000

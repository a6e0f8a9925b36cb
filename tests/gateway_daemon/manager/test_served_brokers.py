"""A Manager and the broker of another one, which a client stands for, at real brokers.

What it publishes there, and when it no longer does.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client
from soak.relay import Relay

from gateway_daemon.manager.brokers import BrokerConnectors
from gateway_daemon.manager.manager import Manager, ManagerClocks
from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.replication import ManagerView
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    BrokerEntry,
    BrokerInfo,
    BrokerTable,
    GatewayNotice,
    decode_broker_table,
    encode_directory_message,
)
from spatial_mqtt.topics import (
    BROKER_ADD,
    BROKER_READY,
    BROKER_TABLE,
    GATEWAY_INFO,
    GATEWAY_NOTICE,
    MANAGER_VIEW,
)
from spatial_mqtt.transport import ConnectionHandler, Session

pytestmark = pytest.mark.broker

GATEWAY = BrokerInfo("127.0.0.1", 1)


class Pair:
    """A running Manager with one peer, and a client at the broker of each."""

    def __init__(self, own: Broker, peer: Broker, folder: Path) -> None:
        self.relay = Relay(peer.port)

        def connect_to(port: int) -> Callable[..., Connection]:
            def connect(session: Session, handler: ConnectionHandler) -> Connection:
                return Connection(Endpoint("127.0.0.1", port), session, handler)

            return connect

        self.manager = Manager(
            BrokerConnectors(connect_to(own.port), [connect_to(self.relay.port)]),
            folder / "registry.json",
            Registry("a"),
            ManagerClocks(LoopWatchdog(time.monotonic), lambda: 1),
        )
        self.own = Client(own.endpoint, "own", "/api/#")
        self.peer = Client(peer.endpoint, "peer", "/api/#")
        self._thread = threading.Thread(target=self.manager.run)
        self._thread.start()
        wait_until(lambda: self.manager.is_up)
        wait_until(lambda: all(s.is_up for s in self.manager.sessions.values()))
        wait_until(lambda: self.own.on(GATEWAY_INFO))

    def end_peer(self) -> None:
        """The other Manager ends, and this one serves its broker."""
        self.publish_view(is_away=True)
        wait_until(lambda: "serving" in self.manager.status())

    def publish_view(self, *, is_away: bool) -> None:
        """The view of the other Manager, which its broker retains."""
        view = encode_directory_message(ManagerView("b", is_away=is_away))
        self.peer.publish(MANAGER_VIEW, view, retain=True)

    def close(self) -> None:
        """End all."""
        self.manager.stop()
        self._thread.join()
        for client in (self.own, self.peer):
            client.connection.stop()
        self.relay.close()


@pytest.fixture
def pair(
    broker: Broker, make_broker: Callable[[], Broker], tmp_path: Path
) -> Iterator[Pair]:
    created = Pair(broker, make_broker(), tmp_path)
    yield created
    created.close()


def add_broker(client: Client, area: str) -> None:
    port = 1000 + sum(area.encode())
    entry = BrokerEntry(area, BrokerInfo("localhost", port))
    client.publish(BROKER_ADD, encode_directory_message(entry))


def versions(client: Client) -> list[int]:
    return [decode_broker_table(table).version for table in client.on(BROKER_TABLE)]


def replace_list(client: Client) -> None:
    """Publish a list, and wait until the Manager has published its own again."""
    ours = client.on(GATEWAY_INFO)[-1]
    rounds = client.on(GATEWAY_INFO).count(ours)
    theirs = encode_directory_message([BrokerEntry("/", GATEWAY)])
    client.publish(GATEWAY_INFO, theirs, retain=True)
    wait_until(lambda: client.on(GATEWAY_INFO).count(ours) > rounds)


def cut_the_link_to_a_served_broker(pair: Pair) -> None:
    """Serve the broker of a Manager that has ended, with table 1, then cut the link."""
    add_broker(pair.own, "/1")
    wait_until(lambda: versions(pair.own) == [1])
    pair.end_peer()
    wait_until(lambda: versions(pair.peer) == [1])
    pair.relay.cut()
    wait_until(lambda: "serving" not in pair.manager.status())


def test_manager_that_ran_again_behind_a_broken_link_keeps_its_directory(
    pair: Pair,
) -> None:
    """A table of before its return replaced its newer one, for good."""
    cut_the_link_to_a_served_broker(pair)
    pair.publish_view(is_away=False)
    pair.peer.publish(BROKER_TABLE, b'{"version":2,"brokers":[]}', retain=True)
    lists = len(pair.peer.on(GATEWAY_INFO))
    pair.relay.restore()
    wait_until(lambda: "1 of 1 other managers" in pair.manager.status())
    pair.end_peer()
    add_broker(pair.peer, "/2")  # its table comes after all else that is published
    wait_until(lambda: len(versions(pair.peer)) > 3)

    assert versions(pair.peer) == [1, 2, 1, 2]
    assert len(pair.peer.on(GATEWAY_INFO)) == lists + 1


def test_table_is_not_published_again_after_a_break_of_the_link(pair: Pair) -> None:
    """A gateway of the original Gamma ends when it receives a table again."""
    cut_the_link_to_a_served_broker(pair)
    pair.relay.restore()
    wait_until(lambda: "serving" in pair.manager.status())
    add_broker(pair.peer, "/2")
    wait_until(lambda: 2 in versions(pair.peer))

    assert versions(pair.peer) == [1, 2]


def test_list_and_older_table_of_another_manager_are_replaced(pair: Pair) -> None:
    """One that served this broker may publish until it has the view of its Manager."""
    for number in (1, 2):
        add_broker(pair.own, f"/{number}")
        wait_until(lambda number=number: number in versions(pair.own))
    older, ours = pair.own.on(BROKER_TABLE)
    for number in (1, 2):
        pair.own.publish(BROKER_TABLE, older, retain=True)
        replace_list(pair.own)
        wait_until(lambda number=number: len(versions(pair.own)) == 2 + 2 * number)

    assert versions(pair.own) == [1, 2, 1, 2, 1, 2]
    assert pair.own.on(BROKER_TABLE)[-1] == ours


def test_newer_table_of_another_manager_stays(pair: Pair) -> None:
    """Its records follow; each Manager would replace the table of the other."""
    add_broker(pair.own, "/1")
    wait_until(lambda: versions(pair.own) == [1])
    newer = encode_directory_message(BrokerTable(9, ()))
    pair.own.publish(BROKER_TABLE, newer, retain=True)
    replace_list(pair.own)

    assert versions(pair.own) == [1, 9]


def test_changes_in_a_row_are_published_once(pair: Pair) -> None:
    """A gateway of the original Gamma ends when it receives a table again."""
    for number in range(1, 51):
        add_broker(pair.own, f"/{number}")
    wait_until(lambda: 50 in versions(pair.own))
    replace_list(pair.own)

    assert versions(pair.own) == sorted(set(versions(pair.own)))


def test_table_follows_at_a_served_broker_while_the_own_one_is_down(
    broker: Broker, pair: Pair
) -> None:
    """A completed table waited for the own broker, and each later change for it."""
    pair.end_peer()
    notice = GatewayNotice(GATEWAY, "up")
    pair.peer.publish(GATEWAY_NOTICE, encode_directory_message(notice))
    wait_until(lambda: "1 gateways" in pair.manager.status())
    add_broker(pair.peer, "/1")
    wait_until(lambda: versions(pair.peer) == [1])
    broker.kill()
    wait_until(lambda: "DOWN" in pair.manager.status())
    add_broker(pair.peer, "/1/2")
    notice = GatewayNotice(GATEWAY, "complete", 1)
    pair.peer.publish(GATEWAY_NOTICE, encode_directory_message(notice))

    wait_until(lambda: versions(pair.peer) == [1, 2])
    assert pair.peer.on(BROKER_READY)[-1] == b"1"

"""The end of a Manager, as the other Managers see it, at a real broker."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client

from gateway_daemon.manager.brokers import BrokerConnectors
from gateway_daemon.manager.manager import Manager, ManagerClocks
from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.replication import decode_view
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo, GatewayNotice, encode_directory_message
from spatial_mqtt.topics import GATEWAY_NOTICE, MANAGER_VIEW
from spatial_mqtt.transport import ConnectionHandler, Session

pytestmark = pytest.mark.broker


class GatewayAtTheEnd:
    """A service of the Manager; when it stops, a gateway announces itself."""

    def __init__(self, broker: Broker) -> None:
        self.is_seen: Callable[[], object] = lambda: True
        self._client = Client(broker.endpoint, "gateway")

    def start(self) -> None:
        """See `Service`."""

    def stop(self) -> None:
        """Announce a gateway, and wait until the Manager has published it."""
        notice = GatewayNotice(BrokerInfo("localhost", 1), "up")
        self._client.publish(GATEWAY_NOTICE, encode_directory_message(notice))
        wait_until(self.is_seen)
        self._client.connection.stop()


@pytest.mark.parametrize("has_news", [False, True])
def test_manager_that_ended_is_away(
    broker: Broker, tmp_path: Path, has_news: bool
) -> None:
    """Otherwise no other Manager serves its broker: an orderly end has no will."""

    def connect(session: Session, handler: ConnectionHandler) -> Connection:
        return Connection(broker.endpoint, session, handler)

    clocks = ManagerClocks(LoopWatchdog(time.monotonic), lambda: 1)
    manager = Manager(
        BrokerConnectors(connect), tmp_path / "registry.json", Registry("m1"), clocks
    )
    if has_news:
        gateway = GatewayAtTheEnd(broker)
        gateway.is_seen = lambda: decode_view(fetch_view(broker)).here
        manager.attach(gateway)
    thread = threading.Thread(target=manager.run)
    thread.start()
    wait_until(lambda: manager.is_up)
    wait_until(lambda: fetch_view(broker))
    manager.stop()
    thread.join()

    wait_until(lambda: decode_view(fetch_view(broker)).is_away)


def fetch_view(broker: Broker) -> bytes:
    return fetch_retained(broker.endpoint, MANAGER_VIEW, "reader", 5)
